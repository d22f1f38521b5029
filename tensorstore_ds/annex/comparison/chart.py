"""A picture of a comparison: seconds per epoch over the batch size, a line per way."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensorstore_ds.annex.comparison.options import GROUPS
from tensorstore_ds.annex.comparison.results import Cell, Comparison, Phase, Way
from tensorstore_ds.annex.pictures.sheet import FADED, INK, plots_available, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

#: By group; colors that the color-blind tell apart (Okabe and Ito, Color Universal Design, 2008).
_COLORS: Mapping[str, str] = dict(zip(GROUPS, ("#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7"), strict=True))
#: Of the ways of a group, in turn.
_MARKERS, _DASHES = ("o", "s", "^"), ("-", "--", ":")
_TITLES: Mapping[Phase, str] = {"load": "Loading alone", "train": "Training a small ViT"}


def draw_comparison(comparison: Comparison, path: str | os.PathLike[str]) -> bool:
    """Draw the seconds per epoch against the batch size as a PNG file, with one line per way.

    >>> found = tsds.bench("photos.tsds", device="cpu", train=False, batch_sizes=[4], ways=["store"], seconds=0.1)
    >>> tsds.comparison.draw_comparison(found, "bench.png")  # with matplotlib
    True
    >>> Path("bench.png").is_file()
    True

    Lower is faster. Hollow marks are epochs estimated from a part.

    Args:
        comparison: result of `bench`.
        path: path of the PNG file.

    Returns:
        True if the file was written, False if matplotlib is not installed.

    Raises:
        OutputError: the file cannot be written.
    """
    if not plots_available():
        return False
    from matplotlib.lines import Line2D

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
            if any(cell.reckoned for cell in comparison.cells):
                part = Line2D([], [], linestyle="", marker="o", color=FADED, markerfacecolor="white")
                named["estimated from a part of an epoch"] = part
            figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=1 + len(phases), fontsize=9)
    return True


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
    color, marker, front = _COLORS[way.group], _MARKERS[place], 3 if way.ours else 2
    sizes, seconds = [cell.batch_size for cell in cells], [cell.seconds or 0.0 for cell in cells]
    style = {"linestyle": _DASHES[place], "linewidth": 2.6 if way.ours else 1.4, "marker": marker, "markersize": 6}
    (line,) = axes.plot(sizes, seconds, color=color, zorder=front, **style)  # type: ignore[arg-type]
    parts = [cell for cell in cells if cell.reckoned]
    sizes, seconds = [cell.batch_size for cell in parts], [cell.seconds or 0.0 for cell in parts]
    axes.scatter(sizes, seconds, 36, edgecolors=color, facecolors="white", marker=marker, zorder=4)
    return line


def _name_axes(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    low, high = axes.get_ylim()
    if high / low < 10:  # a decade at least, so that there are numbers to read
        middle = (low * high) ** 0.5
        low, high = axes.set_ylim(middle / 10**0.5, middle * 10**0.5)
    axes.set_xticks(_apart(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("samples per batch", color=INK)
    axes.set_ylabel("seconds per epoch", color=INK)
    axes.grid(axis="y", which="major")


def _apart(sizes: Sequence[int]) -> list[int]:
    """Sizes that can be named beside each other on a logarithmic scale, the largest among them.

    >>> _apart([100, 300, 500, 1000, 3000, 5000, 10000]), _apart([100, 205])
    ([100, 500, 1000, 5000, 10000], [100, 205])
    """
    least = (sizes[-1] / sizes[0]) ** 0.15
    kept: list[int] = []
    for size in reversed(sizes):
        if not kept or size * least <= kept[-1]:
            kept.append(size)
    return kept[::-1]
