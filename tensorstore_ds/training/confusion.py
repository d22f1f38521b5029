"""A picture of the confusion matrix."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError
from tensorstore_ds.pictures.sheet import EMPTY, FADED, INK, legible, name_ticks, plots_available, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Cells have their counts written in them up to this many classes.
COUNTED = 20
#: Names along an axis, at most.
NAMED = 50


def draw_confusion(matrix: NDArray[Any], classes: Sequence[str], path: str | os.PathLike[str]) -> bool:
    """Draw a confusion matrix: how the samples of each true class, a row, were predicted.

    Colours show shares of a row, on a scale that makes one percent visible. Up to 20 classes, cells hold their counts;
    beyond 50, only some of the classes are named.

    Args:
        matrix: (C, C) counts, [true, predicted].
        classes: C names; any text.
        path: of the PNG file; one that is there is replaced in one step.

    Returns:
        Whether it was drawn: False without matplotlib.

    Raises:
        OptionError: shapes do not agree.
        TrainingError: the file could not be written.
    """
    matrix = np.asarray(matrix)
    if matrix.shape != (len(classes), len(classes)) or not len(classes):
        size = f"({len(classes)}, {len(classes)})"
        raise OptionError(f"confusion: expected a matrix {size}, a row and a column a class, found {matrix.shape}.")
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
        _describe(axes, matrix)
    return True


def _describe(axes: Axes, matrix: NDArray[Any]) -> None:
    total = int(matrix.sum())
    axes.set_title(f"{matrix.trace() / total:.1%} of {total:,} right" if total else "no samples")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class" if matrix.any(1).all() else "true class (gray: no samples)")


def _draw_cells(axes: Axes, matrix: NDArray[Any], cell: float) -> None:
    """Colours, their scale, and counts; `cell` is the side of one in inches."""
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
