"""What a comparison found: rows and cells, as data."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tensorstore_ds.durable import replacing

Phase = Literal["load", "train"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One way at one batch size, loading alone or training.

    Attributes:
        way: its name.
        phase: ``load`` or ``train``.
        batch_size: samples a batch.
        seconds: of an epoch of the split, the median; None if it was not measured.
        spread: the least and the most seconds.
        rate: samples a second.
        ratio: how many times as fast as the first row that was measured here.
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
        batch_size: samples a batch.
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
class Row:
    """One way.

    Attributes:
        name, title, group, workers: of the way.
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
    workers: int
    ours: bool
    reader: str = ""
    reason: str = ""
    delivered: str = ""
    correct: bool | None = None
    first: First | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that was found.

    Attributes:
        store, split: what was loaded.
        rows: samples of the split.
        shape: (height, width, channels) of its images; None if they differ.
        device: where batches arrived: ``cpu``, or the GPU's name.
        machine: what else figures depend on, by name.
        batch_sizes: in rising order.
        seconds: given to each measurement.
        took: seconds, all in all.
        interrupted: it was stopped early, and holds what was measured until then.
        baseline: private memory of a process that has imported torch and done nothing else, in bytes.
        ways: the rows, in order.
        cells: of each row, phase and batch size.
        notes: what else should be known, a line each.
    """

    store: str
    split: str
    rows: int
    shape: tuple[int, int, int] | None
    device: str
    machine: Mapping[str, str]
    batch_sizes: Sequence[int]
    seconds: float
    took: float
    interrupted: bool
    baseline: int | None
    ways: Sequence[Row]
    cells: Sequence[Cell]
    notes: Sequence[str] = field(default_factory=tuple)

    def cell(self, way: str, phase: Phase, batch_size: int) -> Cell | None:
        """One of the cells; None if there is none."""
        wanted = (way, phase, batch_size)
        return next((cell for cell in self.cells if (cell.way, cell.phase, cell.batch_size) == wanted), None)

    def advantage(self, phase: Phase, group: str) -> tuple[float, float] | None:
        """How many times as fast as the best way of a group ours is, at least and at most over the batch sizes.

        Ours is the best of what this library advises. None if that was not measured.
        """
        found = []
        for size in self.batch_sizes:
            cells = {row: self.cell(row.name, phase, size) for row in self.ways}
            ours = [cell.rate for row, cell in cells.items() if cell and cell.rate and row.ours]
            others = [cell.rate for row, cell in cells.items() if cell and cell.rate and row.group == group]
            found += [max(ours) / max(others)] if ours and others else []
        return (min(found), max(found)) if found else None

    def as_data(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for made, kept in zip(found["cells"], self.cells, strict=True):
            made["reckoned"] = kept.reckoned
        return found

    def write(self, folder: Path) -> Path:
        """Write ``bench.json`` into a folder, which is made if need be; one that is there is replaced in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "bench.json"
        with replacing(path) as file:
            file.write(json.dumps(self.as_data(), indent=1).encode() + b"\n")
        return path


def make_cell(way: str, phase: Phase, batch_size: int, answers: Sequence[Mapping[str, Any]], rows: int) -> Cell:
    """The answers of all rounds as one cell; epochs are of the split's `rows`, whatever a way's own were.

    Args:
        way, phase, batch_size: of the cell.
        answers: of a lane, to ``load`` or ``train``, in turn.
        rows: samples of the split.
    """
    failed = next((answer for answer in answers if answer["state"] != "ok"), None)
    if failed is not None or not answers:
        return Cell(way, phase, batch_size, reason=failed["reason"] if failed else "stopped before it was measured")
    longest, of = max(answer["batches"] for answer in answers), answers[0]["of"]
    used = [answer for answer in answers if answer["batches"] == of] or answers  # whole epochs, if there were any
    seconds = [epoch * rows / answer["rows"] for answer in used for epoch in answer["epochs"]]
    median = statistics.median(seconds)
    return Cell(
        way,
        phase,
        batch_size,
        seconds=median,
        spread=(min(seconds), max(seconds)),
        rate=rows / median,
        batches=longest,
        of=of,
        epochs=len(seconds),
        memory=_peak(answers, "memory"),
        device_memory=_peak(answers, "device_memory"),
        utilisation=_mean(answers, "utilisation"),
        reason=used[0].get("utilisation_reason", ""),
    )


def with_ratios(cells: Sequence[Cell]) -> list[Cell]:
    """Cells, in the order of their rows, with their ratio to the first that was measured of their phase and size."""
    first: dict[tuple[str, int], float] = {}
    found = []
    for cell in cells:
        rate = cell.rate
        if rate is not None:
            reference = first.setdefault((cell.phase, cell.batch_size), rate)
            cell = dataclasses.replace(cell, ratio=rate / reference)
        found.append(cell)
    return found


def _peak(answers: Sequence[Mapping[str, Any]], name: str) -> int | None:
    return max((answer[name] for answer in answers if answer.get(name) is not None), default=None)


def _mean(answers: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [answer[name] for answer in answers if answer.get(name) is not None]
    return statistics.mean(found) if found else None
