"""Copies of images side by side: a line for each group."""

from __future__ import annotations

from PIL import Image, ImageDraw

from tensorstore_ds.annex.checking.findings import CheckFindings
from tensorstore_ds.annex.pictures.contact_sheet import (
    EDGE,
    FADED,
    GAP,
    INK,
    LINE,
    MARGIN,
    MEDIUM,
    PAPER,
    magnified,
    picture_of,
    write,
)
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ImageField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.reading.store import Store

_BESIDE = 6  # samples of a group, at most


def draw_copies(store: Store, findings: CheckFindings, *, count: int = 24) -> Image.Image:
    """Draw the images of each group of copies in a row: leaks first, then groups whose labels disagree.

    >>> image = np.zeros((32, 32, 3), np.uint8)
    >>> image[8:, 4:] = 200
    >>> _ = tsds.convert({"train": [(image, 0)], "val": [(image, 0)]}, "leak.tsds", classes=["a", "b"])
    >>> found = tsds.check_store("leak.tsds")
    >>> found.copies[0].is_leak
    True
    >>> tsds.draw_copies(tsds.open("leak.tsds"), found).mode
    'RGB'

    Args:
        store: the open store that was checked.
        findings: result of `check_store` for this store.
        count: maximum number of groups to draw.

    Returns:
        An RGB image. It shows at most 6 samples per group.

    Raises:
        OptionError: `findings` has no copies.
    """
    if not findings.copies:
        raise OptionError("expected findings with copies, found none. There is nothing to draw.")
    ordered = sorted(findings.copies, key=lambda each: (not each.is_leak, not each.labels_disagree))
    groups = ordered[:count]
    image = next(iter(of_kind(store.manifest.fields, ImageField)))
    with quiet_pillow():
        lines = [
            [magnified(picture_of(store[s.split], s.row, image), MEDIUM)[0] for s in group.samples[:_BESIDE]]
            for group in groups
        ]
    width = max(picture.width for line in lines for picture in line)
    heights = [max(picture.height for picture in line) + 3 * LINE for line in lines]
    columns = max(map(len, lines))
    total = max(columns * (width + GAP) - GAP, 360) + 2 * MARGIN
    sheet = Image.new("RGB", (total, MARGIN * 2 + 30 + sum(heights) + GAP * (len(lines) - 1)), PAPER)
    draw = ImageDraw.Draw(sheet)
    write(draw, (MARGIN, MARGIN + 8), f"{len(groups):,} of {len(ordered):,} groups of copies", 17, INK)
    y = MARGIN + 30
    for group, line, height in zip(groups, lines, heights, strict=True):
        marks = ["equal" if group.exact else "changed"]
        marks += ["leak"] * group.is_leak + ["labels disagree"] * group.labels_disagree
        more = len(group.samples) - len(line)
        write(draw, (MARGIN, y + LINE // 2), ", ".join(marks) + (f", and {more:,} more" if more else ""), 14, INK)
        for i, (sample, picture) in enumerate(zip(group.samples, line, strict=False)):
            x = MARGIN + i * (width + GAP)
            at = (x, y + LINE + 4)
            sheet.paste(picture, at)
            draw.rectangle((at[0] - 1, at[1] - 1, at[0] + picture.width, at[1] + picture.height), outline=EDGE)
            names = sample.place, sample.label or ""
            below = y + height - 2 * LINE + 4
            for n, name in enumerate(names):
                write(draw, (x, below + n * LINE + LINE // 2), name, 11, FADED, width)
        y += height + GAP
    return sheet
