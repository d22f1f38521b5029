"""A sheet to draw on with matplotlib, which an extra installs, and common parts of all plots of a run.

pyplot and its figures are not changed. The user's own style (a dark one, one that calls LaTeX) is replaced while a
sheet is drawn, and restored afterwards.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import ImageFont

from tensorstore_ds.annex.pictures.lettering import lettering
from tensorstore_ds.durable import replacing
from tensorstore_ds.errors import one_line

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Colors that the color-blind tell apart (Okabe and Ito, Color Universal Design, 2008): of training, of evaluation.
TRAIN, EVAL = "#0072b2", "#d55e00"
INK, FADED, EDGE, EMPTY = "#1c1f24", "#6b7280", "#d9dce1", "#eceef1"

#: Pixels an inch: text of 10 points is 20 pixels high.
DPI = 144
#: Characters of a name that are drawn, at most.
LONGEST = 24

_FONT = "DejaVu Sans"  # matplotlib brings it along
_STYLE = {
    "font.family": _FONT,
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$5 or $10"
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
    "grid.color": EDGE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "figure.dpi": DPI,
}


def plots_available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


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


def name_ticks(axis: Axis, places: Sequence[float], names: Sequence[str], *, size: float) -> None:
    """Put names at an axis, converted by `legible`."""
    from matplotlib.font_manager import FontProperties

    shown = [legible(name) for name in names]
    axis.set_ticks(places, [text for text, _ in shown], fontsize=size)
    for tick, (_, font) in zip(axis.get_ticklabels(), shown, strict=True):
        if font is not None:
            tick.set_fontproperties(FontProperties(fname=font, size=size))


@functools.cache
def legible(name: str) -> tuple[str, Path | None]:
    """The drawable form of a name, at most `LONGEST` characters, and the file of the font; None for the default font.

    Characters that no font has are escaped: ``\\u732b`` can be read, an empty box cannot.
    """
    text = shortened(one_line(name), LONGEST)
    usual = _characters(None)
    if set(map(ord, text)) <= usual:
        return text, None
    drawn, font = lettering(text, 10)
    path = font.path if isinstance(font, ImageFont.FreeTypeFont) else None
    if drawn == text and isinstance(path, str) and set(map(ord, text)) <= _characters(path):
        return text, Path(path)
    escaped = "".join(c if ord(c) in usual else c.encode("unicode_escape").decode() for c in text)
    return shortened(escaped, LONGEST), None


def shortened(text: str, length: int) -> str:
    """`text`, or its beginning and its end, of at most `length` characters.

    >>> shortened("yellow-bellied flycatcher", 16)
    'yellow-b…catcher'
    """
    if len(text) <= length:
        return text
    end = (length - 1) // 2
    return f"{text[: length - 1 - end]}…{text[-end:]}"


@functools.cache
def _characters(path: str | None) -> Set[int]:
    """Code points in a font; None for the default font."""
    from matplotlib.font_manager import findfont, get_font

    return get_font(path or findfont(_FONT)).get_charmap().keys()
