"""What a comparison comes to, as data: the ways, their first epochs, and cells."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tensorstore_ds.comparison.options import GROUPS, Group
from tensorstore_ds.durable import replacing

Phase = Literal["load", "train"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One way at one batch size, loading alone or training.

    Attributes:
        way: its name.
        phase: ``load`` or ``train``.
        batch_size: samples per batch.
        seconds: of an epoch of the split, the median; None if it was not measured.
        spread: the least and the most seconds.
        rate: samples per second.
        ratio: how many times as fast as the first way that was measured here.
        batches: that were timed of an epoch, at most; fewer than `of` when the epoch was reckoned from a part.
        of: batches in an epoch.
        epochs: whole epochs, or parts, that were timed.
        memory: peak of private memory, worker processes included, in bytes.
        device_memory: peak of tensors on the GPU, in bytes.
        utilisation: share of the time in which the GPU computed.
        reason: why it was not measured; or why `utilisation` is missing.
    """

    way: str
    phase: Phase
    batch_size: int
    seconds: float | None = None
    spread: tuple[float, float] | None = None
    rate: float | None = None
    ratio: float | None = None
    batches: int = 0
    of: int = 0
    epochs: int = 0
    memory: int | None = None
    device_memory: int | None = None
    utilisation: float | None = None
    reason: str = ""

    @property
    def reckoned(self) -> bool:
        """Whether the epoch was reckoned from a part of it."""
        return self.seconds is not None and self.batches < self.of


@dataclass(frozen=True, slots=True)
class First:
    """The first epoch of a way, from files that are not in memory.

    Attributes:
        batch_size: samples per batch.
        opened: seconds before it: to list files, to open the store, or to copy everything into memory.
        seconds: of the epoch; None if it was not measured.
        batches, of: as in `Cell`.
        reason: why it was not measured.
    """

    batch_size: int
    opened: float | None = None
    seconds: float | None = None
    batches: int = 0
    of: int = 0
    reason: str = ""

    @property
    def reckoned(self) -> bool:
        """Whether the epoch was reckoned from a part of it."""
        return self.seconds is not None and self.batches < self.of


@dataclass(frozen=True, slots=True)
class Way:
    """One way to load a split, and what is not of one batch size.

    Attributes:
        name: unique, for programs: ``files-2``.
        title: for people.
        group: what is read, and by whom: see `BenchOptions.ways`.
        workers: processes of torch's DataLoader.
        ours: it is what this library advises.
        reader: what reads, where the way leaves it open: ``ImageFolder``.
        reason: why nothing was measured; empty otherwise.
        delivered: what its samples were found to be.
        correct: whether they are what is stored; None if that was not seen.
        first: its first epoch.
    """

    name: str
    title: str
    group: str
    workers: int = 0
    ours: bool = False
    reader: str = ""
    reason: str = ""
    delivered: str = ""
    correct: bool | None = None
    first: First | None = None

    @property
    def full_title(self) -> str:
        """The title, with what reads the files.

        >>> Way("files-2", "files, 2 workers", "files", 2, reader="ImageFolder").full_title
        'files (ImageFolder), 2 workers'
        """
        return self.title.replace("files,", f"files ({self.reader}),", 1) if self.reader else self.title


def ways_of(groups: Sequence[Group], cores: int) -> list[Way]:
    """All ways of some groups, on a machine of so many cores.

    torch's DataLoader is used with no workers, half as many as there are cores, and as many; over the store, whose
    samples need no decoding, with none and with as many.

    >>> [way.name for way in ways_of(("plain", "files", "store"), 8)]
    ['files-0', 'files-4', 'files-8', 'plain-0', 'plain-8', 'store']
    """
    words = {n: "1 worker" if n == 1 else f"{n} workers" for n in sorted({0, max(1, cores // 2), cores})}
    ways = [
        *(Way(f"files-{n}", f"files, {words[n]}", "files", n) for n in words),
        Way("tensors", "TensorDataset", "tensors"),
        Way("tensors-whole", "TensorDataset, whole batches", "tensors"),
        *(Way(f"plain-{n}", f"store, torch DataLoader, {words[n]}", "plain", n) for n in (0, cores)),
        Way("store", "store, tensorstore-ds", "store", ours=True),
        Way("device", "store, tensorstore-ds on the GPU", "device", ours=True),
    ]
    return [way for group in GROUPS if group in groups for way in ways if way.group == group]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that was found.

    Attributes:
        store, split: what was loaded.
        samples: of the split.
        shape: (height, width, channels) of its images; None if they differ.
        device: where batches arrived: ``cpu``, or the GPU's name.
        machine: what else figures depend on, by name.
        batch_sizes: in rising order.
        seconds: given to each measurement.
        took: seconds, all in all.
        interrupted: it was stopped early, and holds what was measured until then.
        baseline: private memory of a process that has imported torch and done nothing else, in bytes.
        ways: in order.
        cells: of each way, phase and batch size.
        notes: what else should be known, a line each.
    """

    store: str
    split: str
    samples: int
    shape: tuple[int, int, int] | None
    device: str
    machine: Mapping[str, str]
    batch_sizes: Sequence[int]
    seconds: float
    took: float
    interrupted: bool
    baseline: int | None
    ways: Sequence[Way]
    cells: Sequence[Cell]
    notes: Sequence[str] = ()

    def cell(self, way: str, phase: Phase, batch_size: int) -> Cell | None:
        """One of the cells; None if there is none."""
        wanted = (way, phase, batch_size)
        return next((cell for cell in self.cells if (cell.way, cell.phase, cell.batch_size) == wanted), None)

    def advantage(self, phase: Phase, group: str) -> tuple[float, float] | None:
        """How many times as fast as the best way of a group ours is, at least and at most over the batch sizes.

        Ours is the best of what this library advises. None if that was not measured.
        """
        ratios = []
        for size in self.batch_sizes:
            rates = [(way, cell.rate) for way in self.ways if (cell := self.cell(way.name, phase, size)) and cell.rate]
            ours = [rate for way, rate in rates if way.ours]
            others = [rate for way, rate in rates if way.group == group]
            ratios += [max(ours) / max(others)] if ours and others else []
        return (min(ratios), max(ratios)) if ratios else None

    def as_data(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for plain, cell in zip(data["cells"], self.cells, strict=True):
            plain["reckoned"] = cell.reckoned
        return data

    def write(self, folder: Path) -> Path:
        """Write ``bench.json`` into a folder, which is made if need be; one that is there is replaced in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "bench.json"
        with replacing(path) as file:
            file.write(json.dumps(self.as_data(), indent=1).encode() + b"\n")
        return path


def make_cell(way: str, phase: Phase, batch_size: int, answers: Sequence[Mapping[str, Any]], samples: int) -> Cell:
    """The answers of all rounds as one cell; epochs are of the split's `samples`, whatever a way's own were.

    Args:
        way, phase, batch_size: of the cell.
        answers: of a lane, to ``load`` or ``train``, in turn.
        samples: of the split.
    """
    failed = next((answer for answer in answers if answer["state"] != "ok"), None)
    if failed is not None or not answers:
        return Cell(way, phase, batch_size, reason=failed["reason"] if failed else "stopped before it was measured")
    of = answers[0]["of"]
    used = [answer for answer in answers if answer["batches"] == of] or answers  # whole epochs, if there were any
    seconds = [epoch * samples / answer["samples"] for answer in used for epoch in answer["epochs"]]
    values = {
        name: [answer[name] for answer in answers if answer.get(name) is not None]
        for name in ("memory", "device_memory", "utilisation")
    }
    median = statistics.median(seconds)
    return Cell(
        way,
        phase,
        batch_size,
        seconds=median,
        spread=(min(seconds), max(seconds)),
        rate=samples / median,
        batches=max(answer["batches"] for answer in answers),
        of=of,
        epochs=len(seconds),
        memory=max(values["memory"], default=None),
        device_memory=max(values["device_memory"], default=None),
        utilisation=statistics.mean(values["utilisation"]) if values["utilisation"] else None,
        reason=used[0].get("utilisation_reason", ""),
    )


def with_ratios(cells: Sequence[Cell]) -> list[Cell]:
    """Cells, in the order of their ways, with their ratio to the first that was measured of their phase and size."""
    first: dict[tuple[str, int], float] = {}
    compared = []
    for cell in cells:
        if cell.rate is not None:
            reference = first.setdefault((cell.phase, cell.batch_size), cell.rate)
            cell = dataclasses.replace(cell, ratio=cell.rate / reference)
        compared.append(cell)
    return compared
