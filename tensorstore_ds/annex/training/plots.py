"""Plots of a training run: curves over the epochs, and the confusion matrix.

Each function writes or atomically replaces a PNG file, and returns whether it has drawn it: without matplotlib it draws
nothing, and the run continues. Class names may be any text. A file that cannot be written is an `OutputError`, shapes
that do not agree an `OptionError`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.training.history import EpochRecord, best_record
from tensorstore_ds.annex.training.sheet import (
    EMPTY,
    EVAL,
    FADED,
    INK,
    TRAIN,
    legible,
    name_ticks,
    plots_available,
    sheet,
)
from tensorstore_ds.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Epochs of a curve that are marked, at most.
MARKED_EPOCHS = 40
#: Cells have their counts written in them up to this many classes.
COUNTED = 20
#: Names along an axis, at most.
NAMED = 50
#: What metrics are called where there is room for it.
TITLES = {"f1": "F1", "nme": "normalized mean error", "map": "mAP"}


def draw_curves(
    records: Sequence[EpochRecord], path: str | os.PathLike[str], *, metric: str, higher_is_better: bool = True
) -> bool:
    """Draw the loss and a metric of every epoch for training and evaluation, and mark the best one.

    Values that are missing or not finite are left out. Values over more than two decades get a logarithmic scale.
    """
    if not plots_available():
        return False
    best = best_record(records, metric, higher_is_better=higher_is_better)
    with sheet(path, 10, 4) as figure:
        left, right = figure.subplots(1, 2)
        for axes, name in ((left, "loss"), (right, metric)):
            _draw_series(axes, records, name)
            if best is not None:
                axes.axvline(best.epoch, color=FADED, linewidth=1, linestyle=(0, (2, 3)), zorder=1)
        if best is not None:
            value = (best.eval or {})[metric]
            right.plot([best.epoch], [value], "o", markersize=11, markerfacecolor="none", color=INK, zorder=4)
            note = f"best {value:.4g}, epoch {best.epoch}"
            right.set_title(note, loc="right", color=FADED, fontsize=10, fontweight="normal")
    return True


def _draw_series(axes: Axes, records: Sequence[EpochRecord], name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(TITLES.get(name, name.replace("_", " ")))
    axes.set_xlabel("epoch")
    axes.grid(axis="y")
    drawn: list[float] = []
    for who, color, marker in (("train", TRAIN, "o"), ("eval", EVAL, "s")):
        values = [(record.epoch, (getattr(record, who) or {}).get(name, math.nan)) for record in records]
        curve = [(epoch, value) for epoch, value in values if math.isfinite(value)]
        if not curve:
            continue
        marked = marker if len(curve) <= MARKED_EPOCHS else ""
        axes.plot(*zip(*curve, strict=True), color=color, marker=marked, markersize=4, linewidth=1.6, label=who)
        drawn += [value for _, value in curve]
    if not drawn:
        axes.text(0.5, 0.5, "no values", ha="center", va="center", color=FADED, transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    if min(drawn) > 0 and max(drawn) > 100 * min(drawn):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    first, last = records[0].epoch, records[-1].epoch
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.legend()


def draw_confusion(matrix: NDArray[Any], classes: Sequence[str], path: str | os.PathLike[str]) -> bool:
    """Draw a confusion matrix of counts (C, C), with a row for each true class.

    Colors show shares of a row, on a scale that makes 1% visible. Up to 20 classes, cells show their counts; beyond 50,
    only some class names are shown.
    """
    matrix = np.asarray(matrix)
    if matrix.shape != (len(classes), len(classes)) or not len(classes):
        size = f"({len(classes)}, {len(classes)})"
        raise OptionError(f"confusion: expected a matrix {size}, a row and a column per class, found {matrix.shape}.")
    if not plots_available():
        return False
    count = len(classes)
    side = min(max(0.5 * count, 3.0), 10.0)  # inches
    font_size = 9 if count <= COUNTED else 7
    step = math.ceil(count / NAMED)
    longest = max(len(legible(name)[0]) for name in classes[::step])
    width = longest * font_size * 0.62 / 72  # of the longest name: a character is about 0.62 of its size wide
    turned = step > 1 or width > 0.8 * side / count
    with sheet(path, side + width + 1.7, side + (width if turned else font_size / 72) + 0.9) as figure:
        axes = figure.subplots()
        _draw_cells(axes, matrix, side / count)
        for axis in (axes.xaxis, axes.yaxis):
            name_ticks(axis, range(0, count, step), classes[::step], size=font_size)
        axes.tick_params("x", labelrotation=90 if turned else 0)
        axes.tick_params(length=0 if step == 1 else 3)
        total = int(matrix.sum())
        axes.set_title(f"{matrix.trace() / total:.1%} of {total:,} right" if total else "no samples")
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class" if matrix.any(1).all() else "true class (gray: no samples)")
    return True


def _draw_cells(axes: Axes, matrix: NDArray[Any], cell: float) -> None:
    """Colors, their scale, and counts; `cell` is the side of one in inches."""
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    sums = matrix.sum(1, keepdims=True)
    shares = np.divide(matrix, sums, out=np.full(matrix.shape, np.nan), where=sums > 0)
    # A square root: one percent is a tenth of the scale. On an even scale mistakes cannot be seen.
    norm = PowerNorm(0.5, 0, 1)
    image = axes.imshow(shares, cmap=colormaps["Blues"].with_extremes(bad=EMPTY), norm=norm, interpolation="none")
    beside = axes.inset_axes((1.03, 0, 0.15 / (cell * len(matrix)), 1))
    bar = axes.figure.colorbar(image, cax=beside, format="{x:.0%}", label="share of the true class")
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1])
    bar.outline.set_visible(False)
    axes.spines[:].set_visible(False)
    if len(matrix) > COUNTED:
        return
    longest = max(len(str(count)) for count in matrix.flat)
    size = min(10.0, 72 * cell * 0.9 / (0.64 * longest))  # a digit is 0.64 of its size wide
    for (row, column), count in np.ndenumerate(matrix):
        dark = bool(norm(shares[row, column]) > 0.55)
        color = "white" if dark else INK if count else FADED
        axes.text(column, row, str(count), ha="center", va="center", fontsize=size, color=color)
