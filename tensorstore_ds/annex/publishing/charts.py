"""The pictures of a card: a sheet of samples, and how often each class occurs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from tensorstore_ds.annex.pictures.contact_sheet import preview
from tensorstore_ds.annex.pictures.sheet import TRAIN, name_ticks, sheet
from tensorstore_ds.durable import write_file
from tensorstore_ds.reading.store import Split

#: Samples on the sheet.
_SAMPLES = 12
#: More classes than these are drawn as a curve, without names.
_NAMED = 40


def write_samples(split: Split, path: Path) -> None:
    """Write some samples of a split as a JPEG file; raises `SourceError` if an image cannot be decoded."""
    buffer = io.BytesIO()
    preview(split, count=_SAMPLES).save(buffer, "JPEG", quality=88)
    write_file(path, buffer.getvalue())


def write_class_chart(counts: Mapping[str, int], what: str, path: Path) -> None:
    """Write a chart of class counts as a PNG file, largest first; `what` names the counted things. Needs matplotlib."""
    from matplotlib.ticker import FuncFormatter

    ordered = sorted(counts.items(), key=lambda item: -item[1])
    values, places = [count for _, count in ordered], range(len(ordered))
    is_named = len(ordered) <= _NAMED
    with sheet(path, 7.2, 0.9 + 0.26 * len(ordered) if is_named else 3.6) as figure:
        axes = figure.subplots()
        if is_named:
            bars = axes.barh(places, values, color=TRAIN, height=0.72)
            axes.bar_label(bars, [f"{value:,}" for value in values], padding=4, fontsize=9)
            axes.invert_yaxis()
            axes.margins(x=0.12, y=0.02)
            axes.xaxis.set_visible(False)
            axes.spines["bottom"].set_visible(False)
            axes.tick_params(left=False)
            name_ticks(axes.yaxis, places, [name for name, _ in ordered], size=10)
        else:
            axes.fill_between(places, values, step="mid", color=TRAIN, alpha=0.85, linewidth=0)
            axes.set_xlim(0, len(values) - 1)
            axes.set_ylim(0)
            axes.set_xlabel("classes, most frequent first")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.grid(axis="y")
        axes.set_title(f"{what.capitalize()} of each class")
