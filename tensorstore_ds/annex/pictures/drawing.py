"""What is drawn onto a sample's picture: boxes, keypoints, class names, and masks as a translucent layer."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

from tensorstore_ds.annex.pictures.lettering import lettering
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.imaging.oriented import oriented_to_corners

#: Told apart at a glance, on dark and on bright pictures.
COLORS = (
    "#ff4b4b", "#2f9bff", "#22c55e", "#ffb020", "#b66dff", "#00c2c7",
    "#ff6fb5", "#8bd300", "#ff8a3d", "#6b7cff", "#d6b400", "#00a67d",
)  # fmt: skip
_DOT = "#fff04d"
_SMOOTH = 4  # boxes and dots are drawn this much larger, and reduced
_CROWD = 8  # with more boxes on a picture their lines are thinner, and each class is named once
_MASK_ALPHA = 110  # of 255
_IGNORED = (255, 255, 255)
_GOLDEN = 0.618034  # multiples of it, modulo 1, lie as far apart as can be
_BACKGROUND = ("background", "bg", "unlabeled", "unlabelled")


def draw_objects(
    picture: Image.Image, objects: Mapping[str, NDArray[Any]], scale: float, classes: Sequence[str]
) -> None:
    """Draw boxes, keypoints and class names onto `picture`. An oriented box replaces the box around it."""
    labels = objects.get("labels")
    oriented = oriented_to_corners(objects.get("oriented_boxes", np.empty((0, 5)))) * scale
    hulls = np.concatenate([oriented.min(1), oriented.max(1)], 1)
    boxes = objects["boxes"] * scale if "boxes" in objects else hulls
    colors = [_color_of(labels, i) for i in range(len(boxes))]
    layer, draw = _layer_with(picture, boxes, colors, oriented)
    for keypoints in objects.get("keypoints", ()):
        present = keypoints[np.isfinite(keypoints).all(axis=1)] * scale
        # Dots are smaller where they lie close together.
        radius = float(np.clip(np.ptp(present, axis=0).max() / 45, 0.7, 2.4)) if len(present) > 1 else 2.4
        for color, r in (("#000000", radius + 0.6), (_DOT, radius)):
            for x, y in present.tolist():
                draw.ellipse([v * _SMOOTH for v in (x - r, y - r, x + r, y + r)], fill=color)
    _lay(picture, layer)
    if labels is not None and classes:
        _draw_names(picture, boxes, [class_name(classes, int(label)) for label in labels], colors)


def draw_boxes(picture: Image.Image, boxes: NDArray[Any], colors: Sequence[str], names: Sequence[str]) -> None:
    """Draw boxes (n, 4) onto `picture`, in its pixels, each with its color and name."""
    _lay(picture, _layer_with(picture, boxes, colors)[0])
    _draw_names(picture, boxes, names, colors)


def _layer_with(
    picture: Image.Image, boxes: NDArray[Any], colors: Sequence[str], oriented: NDArray[Any] | None = None
) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """A layer with boxes, larger than the picture; finite corners (n, 4, 2) replace a box."""
    layer = Image.new("RGBA", (picture.width * _SMOOTH, picture.height * _SMOOTH))
    draw = ImageDraw.Draw(layer)
    line = _SMOOTH * (1 if len(boxes) > _CROWD else 2)
    for i, (box, color) in enumerate(zip(boxes, colors, strict=True)):
        if oriented is not None and len(oriented) and np.isfinite(oriented[i]).all():
            ring = [(x * _SMOOTH, y * _SMOOTH) for x, y in oriented[i].tolist()]
            draw.line([*ring, *ring[:2]], fill="#000000a0", width=2 * line, joint="curve")
            draw.line([*ring, *ring[:2]], fill=color, width=line, joint="curve")
        elif np.isfinite(box).all() and (box[:2] <= box[2:]).all():
            corners = [float(v) * _SMOOTH for v in box]
            draw.rectangle(corners, outline="#000000a0", width=2 * line)
            inner = [corners[0] + _SMOOTH, corners[1] + _SMOOTH, corners[2] - _SMOOTH, corners[3] - _SMOOTH]
            if inner[0] < inner[2] and inner[1] < inner[3]:
                draw.rectangle(inner, outline=color, width=line)
    return layer, draw


def _lay(picture: Image.Image, layer: Image.Image) -> None:
    layer = layer.resize(picture.size, Image.Resampling.BOX)
    picture.paste(layer, (0, 0), layer)


def _draw_names(picture: Image.Image, boxes: NDArray[Any], names: Sequence[str], colors: Sequence[str]) -> None:
    """Draw class names above or inside boxes without overlap; the legend lists all of them.

    In a crowd, names would hide the boxes, so each class is named once.
    """
    draw = ImageDraw.Draw(picture)
    taken: list[tuple[float, float, float, float]] = []
    named: set[str] = set()
    for i, box in enumerate(boxes):
        if not np.isfinite(box).all() or (len(boxes) > _CROWD and names[i] in named):
            continue
        name, font = lettering(names[i], 11)
        width, height = font.getlength(name) + 6, 14
        left = min(max(0.0, float(box[0])), max(0.0, picture.width - width))
        top = float(box[1]) - height if box[1] >= height else float(box[1])
        place = (left, top, left + width, top + height)
        if any(place[0] < t[2] and t[0] < place[2] and place[1] < t[3] and t[1] < place[3] for t in taken):
            continue
        taken.append(place)
        named.add(names[i])
        draw.rectangle(place, fill=colors[i])
        draw.text((left + 3, top + height / 2), name, fill="#10131a", font=font, anchor="lm")


def _color_of(labels: NDArray[np.int64] | None, index: int) -> str:
    return COLORS[int(labels[index]) % len(COLORS)] if labels is not None else COLORS[0]


def class_name(classes: Sequence[str], label: int) -> str:
    """The name of a class; its number if it has none."""
    return classes[label] if 0 <= label < len(classes) else str(label)


def draw_mask(picture: Image.Image, mask: NDArray[Any], field: MaskField) -> None:
    """Draw the colors of a mask's classes over `picture`; a first class that is the background stays transparent."""
    palette = np.zeros((2**16, 4), np.uint8)
    for label in mask_labels(field):
        palette[label] = (*ImageColor.getrgb(mask_color(label)), _MASK_ALPHA)
    if field.ignored is not None:
        palette[field.ignored] = (*_IGNORED, _MASK_ALPHA)
    layer = Image.fromarray(palette[mask], "RGBA").resize(picture.size, Image.Resampling.NEAREST)
    picture.paste(layer, (0, 0), layer)


def mask_color(label: int) -> str:
    """Color of a class in masks, which often have more classes than `COLORS`; distant hues are used in this case."""
    if label < len(COLORS):
        return COLORS[label]
    red, green, blue = colorsys.hsv_to_rgb(label * _GOLDEN % 1, 0.55, 0.9)
    return f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"


def mask_labels(field: MaskField) -> range:
    """The classes of a mask to draw."""
    clear = bool(field.classes) and field.classes[0].strip("_ ").lower() in _BACKGROUND
    return range(int(clear), len(field.classes))
