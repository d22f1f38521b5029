"""What a comparison comes to, as data: the ways, their first epochs, and cells."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tensorstore_ds.annex.measuring.bench_options import GROUPS, Group
from tensorstore_ds.durable import write_file

Phase = Literal["load", "train"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Measurement of one way at one batch size, for loading alone or for training."""

    way: str  #: Name of the way.
    phase: Phase  #: ``load`` or ``train``.
    batch_size: int  #: Samples per batch.
    seconds: float | None = None  #: Seconds per epoch of the split, the median of the rounds; None if not measured.
    spread: tuple[float, float] | None = None  #: Minimum and maximum seconds per epoch.
    rate: float | None = None  #: Samples per second.
    ratio: float | None = None  #: `rate` relative to the first way that was measured in this phase at this batch size.
    memory: int | None = None  #: Peak of private memory, including worker processes, in bytes.
    device_memory: int | None = None  #: Peak of the memory of tensors on the GPU, in bytes.
    reason: str = ""  #: Why the cell was not measured.


@dataclass(frozen=True, slots=True)
class First:
    """First epoch of a way, read from files that are not in the page cache."""

    batch_size: int  #: Samples per batch.
    #: Seconds before the epoch for listing files, opening the store, or copying everything into memory.
    opened: float | None = None
    seconds: float | None = None  #: Seconds of the epoch; None if it was not measured.
    estimated: bool = False  #: Whether `seconds` is an estimate from a part of the epoch.
    reason: str = ""  #: Why the epoch was not measured.


@dataclass(frozen=True, slots=True)
class Way:
    """One way to load a split, with everything that does not depend on the batch size."""

    name: str  #: Unique name for programs, such as ``files-2``.
    title: str  #: Title for display.
    group: str  #: One of `BenchOptions.ways`.
    workers: int = 0  #: Number of worker processes of torch's DataLoader.
    ours: bool = False  #: Whether this library recommends it.
    reader: str = ""  #: Reader of the files, such as ``ImageFolder``, or empty.
    reason: str = ""  #: Why nothing was measured, or empty.
    delivered: str = ""  #: Result of comparing its samples with the stored samples, in words.
    correct: bool | None = None  #: Whether its samples equal the stored samples; None if they were not compared.
    first: First | None = None  #: Its first epoch, or None.

    @property
    def full_title(self) -> str:
        """Title that includes the reader of the files.

        >>> Way("files-2", "files, 2 workers", "files", 2, reader="ImageFolder").full_title
        'files (ImageFolder), 2 workers'
        """
        return self.title.replace("files,", f"files ({self.reader}),", 1) if self.reader else self.title


def ways_of(groups: Sequence[Group], cores: int) -> list[Way]:
    """All ways of some groups, for a number of cores.

    torch's DataLoader is used with 0 workers, half as many as cores, and as many; over the store, whose samples need no
    decoding, with 0 and as many.

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
    """Result of `bench`."""

    store: str  #: Path or URL of the store.
    split: str  #: Name of the split.
    samples: int  #: Number of samples in the split.
    shape: tuple[int, int, int] | None  #: (height, width, channels) of the images; None if they differ.
    device: str  #: Device of the batches, ``cpu`` or the name of the GPU.
    machine: Mapping[str, str]  #: Hardware, versions and date that the measurements depend on, by name.
    batch_sizes: Sequence[int]  #: Batch sizes in ascending order.
    seconds: float  #: Seconds given to each measurement.
    took: float  #: Duration of the whole comparison in seconds.
    interrupted: bool  #: Whether it was stopped early. It then contains the measurements made so far.
    baseline: int | None  #: Private memory of a process that has only imported torch, in bytes.
    ways: Sequence[Way]  #: All ways to load.
    cells: Sequence[Cell]  #: One measurement for each way, phase and batch size.
    notes: Sequence[str] = ()  #: Remarks on the measurements, one per line.

    def cell(self, way: str, phase: Phase, batch_size: int) -> Cell | None:
        """Return the measurement of a way in a phase at a batch size, or None if there is none."""
        wanted = (way, phase, batch_size)
        return next((cell for cell in self.cells if (cell.way, cell.phase, cell.batch_size) == wanted), None)

    def advantage(self, phase: Phase, group: str) -> tuple[float, float] | None:
        """Return the smallest and the largest speed-up of this library over a group of ways, over all batch sizes.

        At each batch size, the fastest way that this library recommends is compared with the fastest way of the group.
        Ways whose samples differ from the stored samples do not count.

        Returns:
            Minimum and maximum of the ratio of samples per second, or None if it was not measured.
        """
        ratios = []
        right = [way for way in self.ways if way.correct is not False]
        for size in self.batch_sizes:
            rates = [(way, cell.rate) for way in right if (cell := self.cell(way.name, phase, size)) and cell.rate]
            ours = [rate for way, rate in rates if way.ours]
            others = [rate for way, rate in rates if way.group == group]
            ratios += [max(ours) / max(others)] if ours and others else []
        return (min(ratios), max(ratios)) if ratios else None

    def as_data(self) -> dict[str, Any]:
        """Return the comparison as plain values for JSON."""
        data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return data

    def write(self, folder: Path) -> Path:
        """Write ``bench.json`` into a folder, and return its path.

        The folder is created if it does not exist. An existing file is replaced in one step.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "bench.json"
        write_file(path, json.dumps(self.as_data(), indent=1).encode() + b"\n")
        return path


def make_cell(way: str, phase: Phase, batch_size: int, answers: Sequence[Mapping[str, Any]], samples: int) -> Cell:
    """Combine a lane's answers of all rounds into a cell, given the samples per epoch."""
    failed = next((answer for answer in answers if answer["state"] != "ok"), None)
    if failed is not None or not answers:
        return Cell(way, phase, batch_size, reason=failed["reason"] if failed else "stopped before it was measured")
    seconds = [samples * answer["seconds"] / answer["samples"] for answer in answers]
    peaks = ([answer[name] for answer in answers if answer.get(name)] for name in ("memory", "device_memory"))
    memory, device_memory = (max(each, default=None) for each in peaks)
    median = statistics.median(seconds)
    return Cell(
        *(way, phase, batch_size, median, (min(seconds), max(seconds)), samples / median),
        memory=memory,
        device_memory=device_memory,
    )


def with_ratios(cells: Sequence[Cell]) -> list[Cell]:
    """Cells in the order of their ways, with their ratio to the first measured one of their phase and size."""
    first: dict[tuple[str, int], float] = {}
    for cell in cells:
        if cell.rate is not None:
            first.setdefault((cell.phase, cell.batch_size), cell.rate)
    return [
        dataclasses.replace(cell, ratio=cell.rate / first[cell.phase, cell.batch_size]) if cell.rate else cell
        for cell in cells
    ]
