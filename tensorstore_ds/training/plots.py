"""Pictures of a training run: curves over the epochs, the confusion matrix, the error of each landmark.

Each function returns whether it has drawn: without matplotlib it draws nothing, and no run fails for lack of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError
from tensorstore_ds.pictures.sheet import EVAL, FADED, INK, NOT_DRAWN, TRAIN, name_ticks, plots_available, sheet
from tensorstore_ds.training.confusion import draw_confusion
from tensorstore_ds.training.epoch_record import EpochRecord, best_record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["NOT_DRAWN", "draw_confusion", "draw_curves", "draw_point_errors", "plots_available"]

#: Bars in a picture, at most.
BARS = 100
#: Points of a curve that are marked, at most.
MARKED_EPOCHS = 40
#: What metrics are called where there is room for it.
TITLES = {"f1": "F1", "nme": "normalised mean error"}


def draw_curves(
    records: Sequence[EpochRecord],
    path: str | os.PathLike[str],
    *,
    metric: str,
    higher_is_better: bool = True,
) -> bool:
    """Draw the loss and a metric of every epoch, of training and of evaluation, and mark the best one.

    Values that are missing or not finite are left out. Values over more than two decades get a logarithmic scale.

    Args:
        records: of the run, in order; with none, the picture says so.
        path: of the PNG file; one that is there is replaced in one step.
        metric: a name in `EpochRecord.train` or `EpochRecord.eval`, or in both.
        higher_is_better: of the metric: what the best epoch is.

    Returns:
        Whether it was drawn: False without matplotlib.

    Raises:
        TrainingError: the file could not be written.
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
    """A value of training and of evaluation over the epochs."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(TITLES.get(name, name.replace("_", " ")))
    axes.set_xlabel("epoch")
    axes.grid(axis="y")
    drawn: list[float] = []
    for who, color, marker in (("train", TRAIN, "o"), ("eval", EVAL, "s")):
        found = [(record.epoch, _value(getattr(record, who), name)) for record in records]
        points = [(epoch, value) for epoch, value in found if math.isfinite(value)]
        if not points:
            continue
        marked = marker if len(points) <= MARKED_EPOCHS else ""
        axes.plot(*zip(*points, strict=True), color=color, marker=marked, markersize=4, linewidth=1.6, label=who)
        drawn += [value for _, value in points]
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


def _value(values: Mapping[str, float] | None, name: str) -> float:
    return (values or {}).get(name, math.nan)


def draw_point_errors(
    errors: NDArray[np.floating[Any]],
    names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    unit: str = "normalised mean error",
) -> bool:
    """Draw the error of each landmark, the largest first; of more than 100, the 100 largest.

    Args:
        errors: (K,) 0 or more; NaN for a landmark that was never there.
        names: K names; any text.
        path: of the PNG file; one that is there is replaced in one step.
        unit: of the errors.

    Returns:
        Whether it was drawn: False without matplotlib.

    Raises:
        OptionError: shapes do not agree.
        TrainingError: the file could not be written.
    """
    errors = np.asarray(errors, np.float64)
    if errors.shape != (len(names),) or not len(names):
        raise OptionError(f"point errors: expected one a name, {len(names)}, found shape {errors.shape}.")
    if not plots_available():
        return False
    order = np.argsort(-errors, kind="stable")[:BARS]  # NaN is last
    with sheet(path, 7, 1.2 + 0.21 * max(len(order), 3)) as figure:
        axes = figure.subplots()
        shown = np.nan_to_num(errors[order], nan=0.0)
        axes.barh(range(len(order)), shown, height=0.7, color=TRAIN)
        for place, error in enumerate(errors[order]):
            text = f" {error:#.3g}".rstrip(".") if math.isfinite(error) else " never there"
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over the line of the mean
            axes.text(shown[place], place, text, va="center", fontsize=8, color=FADED, bbox=paper)
        some = errors[np.isfinite(errors)]
        if len(some):
            axes.axvline(some.mean(), color=EVAL, linewidth=1.2, linestyle="--", label=f"mean {some.mean():.3g}")
            axes.legend(loc="lower right")
        of_all = "" if len(order) == len(names) else f", the {len(order)} largest of {len(names)}"
        axes.set_title(f"error of each landmark{of_all}")
        axes.set_xlabel(unit)
        axes.margins(x=0.12, y=0.01)
        axes.set_xlim(left=0)
        axes.invert_yaxis()
        name_ticks(axes.yaxis, range(len(order)), [names[i] for i in order], size=9)
        axes.tick_params(axis="y", length=0)
    return True
