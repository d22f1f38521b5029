"""Text on pictures, in whatever script a class is named."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator

from PIL import ImageFont

from tensorstore_ds.errors import one_line

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

#: Fonts with more scripts than Pillow's own, looked for where the system keeps its fonts.
_WIDER = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "NotoSansCJKsc-Regular.otf",
    "wqy-zenhei.ttc",
    "wqy-microhei.ttc",
    "DroidSansFallbackFull.ttf",
    "Arial Unicode.ttf",
    "PingFang.ttc",
    "msyh.ttc",
)
_NO_CHARACTER = "\U0010ffff"


def lettering(text: str, size: int) -> tuple[str, Font]:
    """The text to draw, and the first font with all its characters; `size` is in pixels.

    If no font has them, characters are escaped: ``\\u732b`` can be read, an empty box cannot. Control characters are
    escaped as well.
    """
    text = one_line(text)
    for font in _fonts(size):
        if all(map(functools.partial(_has, font), set(text))):
            return text, font
    default = _default(size)
    return "".join(c if _has(default, c) else c.encode("unicode_escape").decode() for c in text), default


def shortened(text: str, font: Font, width: float) -> str:
    """`text`, or if it is wider than `width` pixels, its end after an ellipsis, because paths differ in their ends."""
    if font.getlength(text) <= width:
        return text
    # How many characters must go: what is left becomes shorter with each.
    gone = bisect.bisect_left(range(len(text)), True, key=lambda n: font.getlength("..." + text[n:]) <= width)
    return "..." + text[gone:]


@functools.cache
def _default(size: int) -> Font:
    return ImageFont.load_default(size)


def _fonts(size: int) -> Iterator[Font]:
    yield _default(size)
    yield from filter(None, (_installed(name, size) for name in _WIDER))


@functools.cache
def _installed(name: str, size: int) -> Font | None:
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None


def _has(font: Font, character: str) -> bool:
    """Whether a font has a character; fonts draw the same box for all missing ones."""
    if character.isascii():
        return True
    mask, missing = font.getmask(character), font.getmask(_NO_CHARACTER)
    return mask.size != missing.size or bytes(mask) != bytes(missing)
