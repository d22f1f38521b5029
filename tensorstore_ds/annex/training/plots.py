"""The curves of a training run over its epochs, drawn with matplotlib, which an extra installs.

pyplot and its figures are not changed. The user's own style (a dark one, one that calls LaTeX) is replaced while a
picture is drawn, and restored afterwards.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tensorstore_ds.annex.training.history import EpochRecord, best_record
from tensorstore_ds.durable import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Epochs of a curve that are marked, at most.
MARKED_EPOCHS = 40
#: What metrics are called where there is room for it.
TITLES = {"f1": "F1", "nme": "normalized mean error", "map": "mAP"}
#: Colors that the color-blind tell apart (Okabe and Ito, Color Universal Design, 2008): of training, of evaluation.
TRAIN, EVAL = "#0072b2", "#d55e00"
INK, FADED = "#1c1f24", "#6b7280"
_STYLE = {
    "font.family": "DejaVu Sans",  # matplotlib brings it along
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.edgecolor": FADED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": FADED,
    "ytick.color": FADED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": "#d9dce1",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "figure.dpi": 144,
}


@contextmanager
def sheet(path: str | os.PathLike[str], width: float, height: float) -> Iterator[Figure]:
    """A white sheet, sized in inches, written to `path` as PNG if the block succeeds."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style.context(["default", _STYLE]):
        figure = Figure((width, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.03)  # type: ignore[union-attr, call-arg]
        yield figure
        with replacing(path) as file:
            FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]


def draw_curves(
    records: Sequence[EpochRecord], path: str | os.PathLike[str], *, metric: str, higher_is_better: bool = True
) -> bool:
    """Draw the loss and a metric of every epoch for training and evaluation, and mark the best one, as a PNG file.

    Values that are missing or not finite are left out. Values over more than two decades get a logarithmic scale.
    Returns whether it has drawn: not without matplotlib. A file that cannot be written is an `OutputError`.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
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
