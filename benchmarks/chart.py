"""Horizontal bars on a logarithmic scale, as a PNG file. Needs matplotlib, which nothing else here does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_OURS, _LIMIT, _PEER = "#c2410c", "#9ca3af", "#475569"


@dataclass(frozen=True, slots=True)
class Bar:
    """One loader.

    Attributes:
        label: its name.
        value: positive.
        ours: drawn in another colour.
        limit: no loader, but what none can exceed by much: drawn lighter.
    """

    label: str
    value: float
    ours: bool = False
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One group of bars, the longest first."""

    title: str
    bars: Sequence[Bar]


def draw(panels: Sequence[Panel], file: Path, title: str) -> None:
    """Draw the panels below each other, each with a scale of its own.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [len(panel.bars) + 2.2 for panel in panels]
    figure = Figure(figsize=(9.5, 0.27 * sum(heights) + 0.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    grid = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        _draw_panel(axes, panel)
    figure.savefig(file)


def _draw_panel(axes: object, panel: Panel) -> None:
    from matplotlib.axes import Axes

    if not isinstance(axes, Axes):
        raise TypeError(f"expected matplotlib's axes, found {type(axes).__name__}")
    bars = list(reversed(panel.bars))
    colors = [_OURS if bar.ours else _LIMIT if bar.limit else _PEER for bar in bars]
    values = [bar.value for bar in bars]
    axes.barh([bar.label for bar in bars], values, color=colors, height=0.72, log=True)
    for place, (bar, value) in enumerate(zip(bars, values, strict=True)):
        axes.text(
            value * 1.06, place, f"{value:,.0f}", va="center", fontsize=8, fontweight="bold" if bar.ours else None
        )
    for label, bar in zip(axes.get_yticklabels(), bars, strict=True):
        label.set_color(_OURS if bar.ours else "black")
    low, high = min(values), max(values)
    axes.set_xlim(10 ** (len(str(int(low))) - 1) / 2, high * 3)
    axes.set_title(panel.title, fontsize=9.5, loc="left")
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e5e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
