"""A contact sheet of samples of a split as they are stored, with classes, boxes, keypoints and masks drawn on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tensorstore_ds.annex.pictures.drawing import COLORS, class_name, draw_mask, draw_objects, mask_color, mask_labels
from tensorstore_ds.annex.pictures.lettering import lettering, shortened
from tensorstore_ds.errors import OptionError, one_line
from tensorstore_ds.format.kinds import ImageField, LabelField, LabelsField, MaskField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import of_image, of_kind
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.reading.store import Split
from tensorstore_ds.reading.stored_images import decode_stored

#: The longer side of a picture, in pixels: of images with objects or masks, of others, and of others that are tiny.
LARGE, MEDIUM, SMALL = 320, 176, 112
_TINY = 64  # an image up to this size is magnified by a whole number, without smoothing
_RGB = ("red", "green", "blue")  # the channels that are shown, if an image has them
_SHOWN = 200  # characters of a text, most of which do not fit

#: Pixels around and between what is on a sheet, and of a line of text.
MARGIN, GAP, LINE = 20, 14, 17
_ASPECT = 1.5  # of the whole sheet
#: Colors of a sheet.
PAPER, INK, FADED, EDGE = "#ffffff", "#1c1f24", "#7b828c", "#d9dce1"


class Cell(NamedTuple):
    """One sample to place: its picture, and the names of its classes and its key below it."""

    picture: Image.Image
    classes: list[str]
    key: str


def choose_rows(split: Split, count: int, *, seed: int = 0) -> list[int]:
    """Up to `count` different rows of a split, chosen at random, in order."""
    rows = np.random.default_rng(seed).choice(len(split), min(count, len(split)), replace=False)
    return sorted(rows.tolist())


def preview(split: Split, rows: Sequence[int] | None = None, *, count: int = 24, seed: int = 0) -> Image.Image:
    """Draw samples of a split as a contact sheet, with their classes, boxes, keypoints and masks.

    >>> sheet = tsds.preview(tsds.open("photos.tsds")["train"], [0, 5])
    >>> sheet.mode
    'RGB'
    >>> sheet.save("sheet.png")

    Args:
        split: split of an open store.
        rows: numbers of the rows to show. None takes `count` random rows.
        count: the largest number of random rows.
        seed: seed of the random choice of rows.

    Returns:
        An RGB image. Tiny images are magnified by a whole number. Values of more than 8 bits are scaled from the range
        of their image. Transparent pixels show a checkerboard.

    Raises:
        OptionError: the split has no images, or a row is out of range.
        SourceError: an encoded image cannot be decoded.
    """
    field = split.first(ImageField)
    if field is None:
        raise OptionError(f"{split.name}: expected a field of images, found none. There is nothing to draw.")
    rows = choose_rows(split, count, seed=seed) if rows is None else rows
    if not rows:
        raise OptionError(f"{split.name}: expected at least one row to draw, found none.")
    for row in rows:
        if not 0 <= row < len(split):
            raise OptionError(f"{split.name}: expected rows in [0, {len(split)}), found {row}.")
    names = list(of_image(split.fields, ObjectsField, field))
    with quiet_pillow():
        cells = [_cell(split, row, field, names) for row in rows]
    title = f"{split.name}: {len(cells):,} of {len(split):,} samples"
    return sheet_of(title, cells, _legend(split, names, rows, field))


def _cell(split: Split, row: int, image: str, tables: Sequence[str]) -> Cell:
    masks = of_image(split.fields, MaskField, image)
    picture, scale = magnified(picture_of(split, row, image), LARGE if tables or masks else MEDIUM)
    draw_annotations(picture, split, row, scale, image)
    labelled = of_kind(split.fields, LabelField)
    indices = {name: int(split[name][row]) for name in labelled}
    labels = [
        "no label" if index == UNLABELLED else class_name(labelled[name].classes, index)
        for name, index in indices.items()
    ]
    for name, several in of_kind(split.fields, LabelsField).items():
        names = several.names_of(split[name][row])
        labels.append(one_line(", ".join(names) or "no label")[:_SHOWN])
    for name in of_kind(split.fields, TextField):
        labels.append(one_line(next(iter(split[name][row]), "")[:_SHOWN]))
    return Cell(picture, labels, split.key(row))


def picture_of(split: Split, row: int, image: str) -> Image.Image:
    """The image of a sample as RGB in its stored size."""
    stored = split[image][row]
    pixels = decode_stored(stored, key=split.key(row)) if isinstance(stored, bytes) else stored
    names = getattr(split.fields[image], "channels", None) or ()
    if {*_RGB} <= {*names}:
        pixels = pixels[:, :, [names.index(color) for color in _RGB]]
    return _rgb(pixels)


def draw_annotations(picture: Image.Image, split: Split, row: int, scale: float, image: str) -> None:
    """Draw the masks and objects of a sample onto its picture, which is `scale` times as large as the stored image."""
    for name, mask in of_image(split.fields, MaskField, image).items():
        draw_mask(picture, split[name][row], mask)
    for name in of_image(split.fields, ObjectsField, image):
        draw_objects(picture, split[name][row], scale, split.fields[name].classes)


def _rgb(pixels: NDArray[Any]) -> Image.Image:
    if pixels.dtype != np.uint8:
        values = pixels.astype(np.float64)
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        spread = (np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
        pixels = np.rint(spread * 255).astype(np.uint8)
    channels = pixels.shape[2]
    if channels == 4:
        return _on_checkerboard(Image.fromarray(np.ascontiguousarray(pixels), "RGBA"))
    if channels < 3:
        return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0])).convert("RGB")
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, :3]))


def _on_checkerboard(image: Image.Image) -> Image.Image:
    side = max(2, min(image.size) // 12)
    rows, columns = np.arange(image.height) // side, np.arange(image.width) // side
    board = np.where((rows[:, None] + columns[None, :]) % 2, np.uint8(205), np.uint8(240))
    paper = Image.fromarray(board).convert("RGBA")
    return Image.alpha_composite(paper, image).convert("RGB")


def magnified(image: Image.Image, side: int) -> tuple[Image.Image, float]:
    """`image` enlarged to a longer side near `side`, and the factor."""
    longer = max(image.size)
    if longer <= _TINY and side == MEDIUM:
        side = SMALL
    scale: float = side // longer if longer * 2 <= side else min(1.0, side / longer)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    if size == image.size:
        return image, 1.0
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS), scale


def _legend(split: Split, tables: Sequence[str], rows: Sequence[int], image: str) -> list[tuple[str, str]]:
    """(color, text) of every class in these rows, with its number of objects or share of the pixels."""
    legend = []
    for table in tables:
        classes = split.fields[table].classes
        if not classes or "labels" not in split.table(table).values:
            continue
        counts = np.bincount(np.concatenate([split[table][row]["labels"] for row in rows]).clip(0))
        for label in np.flatnonzero(counts):
            text = f"{class_name(classes, int(label))} {counts[label]:,}"
            legend.append((COLORS[int(label) % len(COLORS)], text))
    for name, field in of_image(split.fields, MaskField, image).items():
        pixels = sum((np.bincount(split[name][row].reshape(-1), minlength=2**16) for row in rows), np.zeros(2**16))
        shares = [(mask_color(i), field.classes[i], pixels[i]) for i in mask_labels(field)]
        if field.ignored is not None:
            shares.append((EDGE, "ignored", pixels[field.ignored]))
        legend += [(color, f"{text} {n / pixels.sum():.1%}") for color, text, n in shares if n]
    return legend


def sheet_of(title: str, cells: Sequence[Cell], legend: Sequence[tuple[str, str]]) -> Image.Image:
    """Cells below a title and a legend of (color, text)."""
    width = max(cell.picture.width for cell in cells)
    lines = len(cells[0].classes) + 1
    height = max(cell.picture.height for cell in cells) + 6 + lines * LINE
    columns = _columns(len(cells), width + GAP, height + GAP)
    total = max(columns * (width + GAP) - GAP, 260) + 2 * MARGIN
    chips, legend_height = _place_legend(legend, total)
    top = MARGIN + 30 + legend_height
    sheet = Image.new("RGB", (total, top + math.ceil(len(cells) / columns) * (height + GAP) - GAP + MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    write(draw, (MARGIN, MARGIN + 8), title, 17, INK, total - 2 * MARGIN)
    for color, text, x, y in chips:
        draw.rounded_rectangle((x, y - 5, x + 10, y + 5), 2, fill=color)
        write(draw, (x + 16, y), text, 13, INK)
    for i, cell in enumerate(cells):
        x = MARGIN + i % columns * (width + GAP)
        y = top + i // columns * (height + GAP)
        at = (x + (width - cell.picture.width) // 2, y + (height - 6 - lines * LINE - cell.picture.height))
        sheet.paste(cell.picture, at)
        draw.rectangle((at[0] - 1, at[1] - 1, at[0] + cell.picture.width, at[1] + cell.picture.height), outline=EDGE)
        bottom = y + height - lines * LINE + LINE // 2
        for n, name in enumerate(cell.classes):
            write(draw, (x, bottom + n * LINE), name, 14, INK, width)
        write(draw, (x, bottom + (lines - 1) * LINE), cell.key, 11, FADED, width)
    return sheet


def _columns(cells: int, width: int, height: int) -> int:
    """Number of cells per row, so that the sheet is near its aspect and few places stay empty."""

    def cost(columns: int) -> float:
        lines = math.ceil(cells / columns)
        return abs(math.log(columns * width / (lines * height) / _ASPECT)) + (columns * lines - cells) / cells

    return min(range(1, cells + 1), key=cost)


def _place_legend(legend: Sequence[tuple[str, str]], width: int) -> tuple[list[tuple[str, str, int, int]], int]:
    """Position of each entry, in lines that end at `width`, and the total height."""
    placed = []
    x, y = MARGIN, MARGIN + 34
    for color, text in legend:
        shown, font = lettering(text, 13)
        needed = 16 + math.ceil(font.getlength(shown)) + 18
        if x > MARGIN and x + needed > width - MARGIN:
            x, y = MARGIN, y + 20
        placed.append((color, text, x, y))
        x += needed
    return placed, y - MARGIN - 14 if placed else 0


def write(
    draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, color: str, width: float = math.inf
) -> None:
    """Draw one line, shortened to a width and vertically centered at the height given."""
    shown, font = lettering(text, size)
    draw.text(at, shortened(shown, font, width), fill=color, font=font, anchor="lm")
