"""What a comparison comes to, as data: the ways, their first epochs, and cells."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tensorstore_ds.annex.measuring.bench_options import GROUPS, Group
from tensorstore_ds.annex.pictures.sheet import FADED, INK, plots_available, sheet
from tensorstore_ds.durable import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

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

    def draw(self, path: str | os.PathLike[str]) -> bool:
        """Draw the seconds per epoch against the batch size as a PNG file, with one line per way. Lower is faster.

        Returns:
            True if the file was written, False if matplotlib is not installed.

        Raises:
            OutputError: the file cannot be written.
        """
        if plots_available():
            _draw(self, path)
        return plots_available()

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


# --- the picture ---------------------------------------------------------------------------------------------------

#: By group; colors that the color-blind tell apart (Okabe and Ito, Color Universal Design, 2008).
_COLORS: Mapping[str, str] = dict(zip(GROUPS, ("#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7"), strict=True))
#: Of the ways of a group, in turn.
_MARKERS, _DASHES = ("o", "s", "^"), ("-", "--", ":")
_TITLES: Mapping[Phase, str] = {"load": "Loading alone", "train": "Training a small ViT"}


def _draw(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    phases: list[Phase] = [p for p in _TITLES if any(c.phase == p for c in comparison.cells)] or ["load"]
    height, width, *_ = comparison.shape or (0, 0)
    of = f"{comparison.samples:,} images" + (f" of {height} x {width} pixels" if comparison.shape else "")
    with sheet(path, 5.4 * len(phases) + 0.6, 5.6) as figure:
        figure.suptitle(f"An epoch of {of}, on {comparison.device}", x=0.01, ha="left", fontsize=12)
        panels = figure.subplots(1, len(phases), squeeze=False)[0]
        named: dict[str, Line2D] = {}
        for axes, phase in zip(panels, phases, strict=True):
            _draw_phase(axes, comparison, phase, named)
        if named:
            figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=1 + len(phases), fontsize=9)


def _draw_phase(axes: Axes, comparison: Comparison, phase: Phase, named: dict[str, Line2D]) -> None:
    axes.set_title(_TITLES[phase])
    places: Counter[str] = Counter()
    for way in comparison.ways:
        place = min(places[way.group], len(_MARKERS) - 1)
        places[way.group] += 1
        cells = [comparison.cell(way.name, phase, size) for size in comparison.batch_sizes]
        measured = [cell for cell in cells if cell is not None and cell.seconds is not None]
        if measured:
            named[way.full_title] = _draw_way(axes, way, place, measured)
    if axes.lines:
        _name_axes(axes, comparison.batch_sizes)
    else:
        axes.text(0.5, 0.5, "nothing was measured", ha="center", transform=axes.transAxes, color=FADED)
        axes.set_axis_off()


def _draw_way(axes: Axes, way: Way, place: int, cells: Sequence[Cell]) -> Line2D:
    sizes, seconds = [cell.batch_size for cell in cells], [cell.seconds or 0.0 for cell in cells]
    style = {"linestyle": _DASHES[place], "linewidth": 2.6 if way.ours else 1.4, "marker": _MARKERS[place]}
    (line,) = axes.plot(sizes, seconds, color=_COLORS[way.group], zorder=3 if way.ours else 2, **style)  # type: ignore[arg-type]
    return line


def _name_axes(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45 if len(sizes) > 4 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "125" else ""))
    axes.set_xlabel("samples per batch", color=INK)
    axes.set_ylabel("seconds per epoch", color=INK)
    axes.grid(axis="y", which="major")
