"""Convert one sample of a source into one row of a store: decode, orient, resize, move boxes, encode."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.large import sums_of
from tensorstore_ds.conversion.options import ConvertOptions, ImageOptions
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, MaskField
from tensorstore_ds.format.kinds.objects import FLAGS, LISTS, PI
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.imaging.codecs import (
    OnDecode,
    bad_image,
    decode_mask,
    encode_png,
    open_image,
    orientation,
    quiet_pillow,
)
from tensorstore_ds.imaging.jpeg import MOST_SIDE, encode_jpeg, find_entries, find_restarts, scale_for
from tensorstore_ds.imaging.oriented import as_corners, corners_to_oriented, oriented_faults, smallest_rectangle
from tensorstore_ds.imaging.outlines import mask_of_runs, runs_of_mask
from tensorstore_ds.imaging.picture import Picture, is_jpeg, open_picture, read_header
from tensorstore_ds.imaging.placement import Placement, box_faults, clip
from tensorstore_ds.imaging.resizing import resize, resize_nearest
from tensorstore_ds.regular_files import archive_of, check_machine, open_file, read_file
from tensorstore_ds.sources.base import Objects, Sample

#: Reasons caused by resizing, not by the source.
BOX_CROPPED = "box-cropped"
#: A file of a format that stores do not hold.
NOT_KEPT = "file-not-kept"
#: Kinds of doubt of `doubtful_boxes`.
FRACTIONS, CUT = "fractions", "cut"
#: Tolerance for shares of an area.
_ROUNDING = 1e-9
#: An image is decoded at least this many times larger than it becomes.
_RESERVE = 2
_NOT_KEPT = "this {} file is not kept: stores hold no files of this format. Its image is stored as a {} file."
#: Largest number of characters of a path in an error.
_SHOWN = 100


def encode_sample(
    sample: Sample,
    options: ImageOptions,
    on_decode: OnDecode | None = None,
    masks: Mapping[str, MaskField] = MappingProxyType({}),
    *,
    by_parts: bool = False,
    only_header: bool = False,
) -> EncodedSample:
    """Decode a sample's image, fit it, its objects and its masks to the requested size, and encode it.

    `on_decode` is called before an image file is decoded, with the bytes of memory that this may take. `by_parts`
    allows leaving large images as a `Picture`, to be written in bands. With `only_header`, no pixels are read, and the
    result has a `Picture`, and no masks.
    """
    try:
        return _encode_sample(sample, options, on_decode, {} if only_header else masks, by_parts, only_header)
    except (MemoryError, RecursionError) as error:
        check_machine(sample.key, error)
        raise


def _encode_sample(
    sample: Sample,
    options: ImageOptions,
    on_decode: OnDecode | None,
    masks: Mapping[str, MaskField],
    by_parts: bool,
    only_header: bool,
) -> EncodedSample:
    key, as_files = sample.key, options.encoding == "source"
    try:
        how: Any = {"color": options.color, "max_pixels": options.max_pixels, "key": key, "as_files": as_files}
        picture = (read_header if only_header else open_picture)(sample.image, **how)
        left_out, placement = picture.left_out, options.placement(picture.size)
        is_kept = as_files and picture.is_storable
        in_bands = by_parts and picture.is_large and placement is None and (is_kept or not as_files)
        is_read = not (only_header or in_bands or (is_kept and options.check == "headers"))
        scale = _scale(picture, placement, options)
        pixels = picture.pixels(scale, on_decode) if is_read else None
    except SourceError as error:
        raise with_path(error, key, sample.image) from error
    sample.left_out += left_out if is_kept else picture.left_out
    if as_files and not picture.is_file:
        raise OptionError(f'{key}: this source has no image files to keep. Use `encoding="raw"` or `encoding="jpeg"`.')
    if as_files and not is_kept:
        sample.left_out += (not_kept(key, picture),)
    objects, problems = fitted_objects(sample, picture.size, placement, options)
    shape = (*(picture.size if placement is None else placement.size), (picture if pixels is None else pixels).shape[2])
    if pixels is not None:
        pixels = _finite(key, _placed(pixels, placement, scale), pixels)
    elif options.encoding == "jpeg":
        _check_jpeg(key, picture.dtype, shape)
    image: Any = picture
    if not only_header and not (in_bands and not is_kept):
        image = picture.file if is_kept or pixels is None else _encode(key, pixels, options)
    if isinstance(image, bytes):
        check_pixels(key, shape, options)
    return EncodedSample(
        key=key,
        image=image,
        size=picture.size,
        shape=shape,
        dtype=picture.dtype if pixels is None else pixels.dtype,
        sums=partial(sums_of, key, picture if in_bands else pixels),
        restarts=find_restarts(image) if isinstance(image, bytes) else None,
        entries=find_entries(image) if isinstance(image, bytes) and as_files else None,
        label=sample.label,
        objects=objects,
        masks={
            name: _encode_mask(sample, name, field, picture.size, placement, options.max_pixels)
            for name, field in masks.items()
        },
        arrays=sample.arrays,
        texts=_checked_texts(sample),
        problems=problems,
        file_nbytes=picture.file_nbytes,
    )


def _placed(pixels: NDArray[Any], placement: Placement | None, scale: int) -> NDArray[Any]:
    """Pixels, which were reduced to 1/`scale` while they were decoded, in the requested size."""
    if placement is None:
        return pixels
    left, top, right, bottom = (edge / scale for edge in placement.box)
    return resize(pixels, replace(placement, box=(left, top, right, bottom)))


def _finite(key: str, pixels: NDArray[Any], original: NDArray[Any]) -> NDArray[Any]:
    """The pixels; raises `SourceError` if some are not finite, which may come from resizing the original ones."""
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        message = "expected finite numbers as pixels, found NaN or infinity"
        resized = ", or numbers too large to be resized" if pixels is not original else ""
        raise bad_image(key, "pixel-nan", f"{message}{resized}.")
    return pixels


def _check_jpeg(key: str, dtype: np.dtype[Any], shape: tuple[int, int, int]) -> None:
    """Raise `SourceError` for an image that is not decoded yet, and cannot become a JPEG file."""
    height, width, channels = shape
    _check_depth(key, dtype, channels)
    if max(height, width) > MOST_SIDE:
        message = f"JPEG has at most {MOST_SIDE:,} pixels in a row and rows, this image has {width}x{height}."
        raise SourceError(Problem(key, "too-many-pixels", message), 'Use `encoding="raw"`, or `tiles`.')


def not_kept(key: str, picture: Picture) -> Problem:
    """What is said of a file that no store can hold, if files are kept."""
    message = _NOT_KEPT.format(picture.format, "PNG" if picture.dtype == "uint16" else "JPEG")
    return Problem(key, NOT_KEPT, message)


def _scale(picture: Picture, placement: Placement | None, options: ImageOptions) -> int:
    """By how much to reduce an image while decoding: as far as the quality of the final resize allows."""
    if not picture.can_scale or placement is None or options.max_side is None:
        return 1
    height, width = placement.size
    return scale_for(picture.size, (_RESERVE * height, _RESERVE * width))


def check_pixels(key: str, shape: tuple[int, ...], options: ImageOptions) -> None:
    """Raise `SourceError` for an array, (H, W, C), of more than `max_pixels`."""
    if math.prod(shape[:2]) > options.max_pixels:
        message = f"this image has {shape[1]}x{shape[0]} pixels, the limit is {options.max_pixels}."
        raise SourceError(Problem(key, "too-many-pixels", message), "Raise the limit with `max_pixels`.")


def with_path(error: SourceError, key: str, image: Any) -> SourceError:
    """A copy of the error with the path of the sample's image, unless the key contains it."""
    path, advice = str(image) if isinstance(image, str | Path) else "", error.advice
    is_missing = error.reason == "unreadable-file" and not os.path.lexists(path) and archive_of(path) is None
    if not path or (path.endswith(key) and not is_missing):
        return SourceError(error.problems, advice)
    if is_missing:
        advice = "If the images are in another folder, name it with `images`."
    shown = path if len(path) <= _SHOWN else f"...{path[-_SHOWN:]}"
    problems = [replace(problem, message=f"{shown}: {problem.message}") for problem in error.problems]
    return SourceError(problems, advice)


def fitted_objects(
    sample: Sample, size: tuple[int, int], placement: Placement | None, options: ImageOptions
) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """The stored form of a sample's objects, whose image has this (height, width), and problems of dropped boxes."""
    check_size(sample, size)
    if sample.objects is None:
        return {}, sample.problems
    objects = in_pixels(sample.objects, size) if sample.relative else sample.objects
    placed, problems = place_objects(sample.key, objects, size, placement, sample.annotation)
    if options.oriented_boxes == "polygons" and "polygons" in placed:
        placed = {**placed, "oriented_boxes": _with_rectangles(placed)}
    return _encode_objects(sample.key, placed), (*sample.problems, *problems)


def check_size(sample: Sample, size: tuple[int, int]) -> None:
    """Raise `SourceError` if the annotation of a sample is for an image of a different (height, width)."""
    height, width = size
    if sample.annotated_size is not None and sample.annotated_size != size:
        annotated = "x".join(map(str, sample.annotated_size))
        which = f"the annotation {sample.annotation}".rstrip()
        message = f"{which} is for an image of {annotated} (height x width), the image is {height}x{width}"
        if sample.annotated_size == size[::-1] and _is_turned(sample):
            message += " as its EXIF orientation shows it: annotations are in pixels of the image as it is shown"
        message += "."
        raise bad_image(sample.key, "size-mismatch", message)


def _is_turned(sample: Sample) -> bool:
    """Whether EXIF turns the image file of a sample by a quarter."""
    image: Any = sample.image
    with contextlib.suppress(SourceError), quiet_pillow(), contextlib.ExitStack() as stack:
        if isinstance(image, str | Path):
            image = stack.enter_context(open_file(image, sample.key))
        is_file = isinstance(image, bytes | io.IOBase)
        opened = open_image(cast(Any, image), key=sample.key) if is_file else image
        return not isinstance(opened, np.ndarray | Picture) and orientation(opened) >= 5
    return False


def doubtful_boxes(sample: Sample, size: tuple[int, int]) -> dict[str, list[Any]]:
    """Number of probably wrong boxes of a sample, and an example, by the kind of doubt.

    `FRACTIONS`: all coordinates of all boxes, or of all keypoints without boxes, are within 0 and 1 in an image of this
    (height, width). `CUT`: less than half of the box's area is inside the image.
    """
    objects = sample.objects
    values = None if objects is None else objects.get("boxes", objects.get("keypoints"))
    if values is None or not len(values):
        return {}
    values = np.asarray(values, np.float64)
    if not sample.relative:
        with np.errstate(invalid="ignore"):
            finite = values[np.isfinite(values)]
        if len(finite) and min(size) > 1 and finite.min() >= 0 and finite.max() <= 1:
            return {FRACTIONS: [len(values), _example(sample, values[0].reshape(-1)[:4], size)]}
    if values.ndim == 3:  # keypoints
        return {}
    height, width = (1, 1) if sample.relative else size
    x1, y1, x2, y2 = values.T
    if x1.min() >= 0 and y1.min() >= 0 and x2.max() <= width and y2.max() <= height:
        return {}
    with np.errstate(invalid="ignore"):
        inside = clip(values, (height, width))
        areas, seen = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) for box in (values, inside))
        is_cut = (box_faults(values, (height, width)) == "") & (2 * seen < areas)
    first = int(is_cut.argmax())
    return {CUT: [int(is_cut.sum()), _example(sample, values[first], size)]} if is_cut.any() else {}


def _example(sample: Sample, values: NDArray[np.float64], size: tuple[int, int]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)}) in {sample.key}, an image of {size[0]}x{size[1]}"


def notes_of_doubtful(doubtful: Mapping[str, list[Any]], options: ConvertOptions) -> list[str]:
    """Notes for the user on the `doubtful_boxes` of all samples."""
    notes = []
    if FRACTIONS in doubtful and options.boxes == "auto" and options.tiles is None:  # a tile may have a corner of a box
        n, example = doubtful[FRACTIONS]
        which = "1 object is" if n == 1 else f"{n:,} objects are"
        advice = 'Pass `boxes="fraction"` if they are fractions of the image, or `boxes="pixels"` if they are pixels.'
        notes.append(f"{which} within 0 and 1 pixel, such as {example}. {advice}")
    if CUT in doubtful:
        n, example = doubtful[CUT]
        which = "1 box is" if n == 1 else f"{n:,} boxes are"
        notes.append(f"{which} cut at the edge of the image to less than half of the area, such as {example}.")
    return notes


def in_pixels(objects: Objects, size: tuple[int, int]) -> Objects:
    """Convert coordinates from fractions of an image of this (height, width) to pixels."""
    scale = np.array(size[::-1], np.float64)  # of x and y
    scales = {"boxes": np.tile(scale, 2), "keypoints": scale}
    moved = {name: objects[name] * scales[name] for name in scales if name in objects}
    if "polygons" in objects:
        moved["polygons"] = [corners * scale for corners in objects["polygons"]]
    if "oriented_boxes" in objects:
        moved["oriented_boxes"] = as_corners(objects["oriented_boxes"]) * scale
    return {**objects, **moved}


def _with_rectangles(objects: Objects) -> NDArray[np.float64]:
    """(M, 4, 2) corners of oriented boxes; if missing, of the smallest rectangle around the polygons."""
    polygons = objects["polygons"]
    corners = np.full((len(polygons), 4, 2), np.nan)
    if "oriented_boxes" in objects:
        corners[:] = as_corners(objects["oriented_boxes"])
    for i in np.flatnonzero(np.isnan(corners).any(axis=(1, 2))):
        around = smallest_rectangle(polygons[i])
        if not oriented_faults(around[None])[0]:  # a polygon without an area has no oriented box
            corners[i] = around
    return corners


def _encode_objects(key: str, objects: Objects) -> dict[str, Any]:
    """The given values in their stored dtypes; a keypoint that lacks one coordinate is absent."""
    values: dict[str, Any] = {}
    for name, (dtype, _) in OBJECT_VALUES.items():
        if name in objects:
            value = objects[name] != 0 if name in FLAGS else objects[name]
            if name == "oriented_boxes":
                value = _oriented(key, value)
            with np.errstate(over="ignore"):  # infinity is refused below
                if name in LISTS:
                    values[name] = [np.ascontiguousarray(each, dtype) for each in value]
                else:
                    values[name] = np.ascontiguousarray(value, dtype)
    if "keypoints" in values:
        keypoints = values["keypoints"]
        if np.isinf(keypoints).any():
            raise bad_image(key, "annotation", "expected finite coordinates of keypoints, found infinity.")
        values["keypoints"] = np.where(np.isnan(keypoints).any(axis=2, keepdims=True), np.float32(np.nan), keypoints)
    if any(np.isinf(corners).any() for corners in values.get("polygons", ())):
        raise bad_image(key, "annotation", "expected finite coordinates of polygons, found infinity.")
    if any((np.isnan(corners[:, 0]) != np.isnan(corners[:, 1])).any() for corners in values.get("polygons", ())):
        raise bad_image(key, "annotation", "expected corners with two coordinates in polygons, found one that is NaN.")
    return values


def _oriented(key: str, value: NDArray[Any]) -> NDArray[np.float64]:
    """(M, 5) of oriented boxes, or of their corners (M, 4, 2)."""
    boxes: NDArray[np.float64] = corners_to_oriented(as_corners(value))
    boxes[:, 4] = np.clip(boxes[:, 4], -PI, PI)
    return boxes


def _checked_texts(sample: Sample) -> Mapping[str, Sequence[str]]:
    for name, texts in sample.texts.items():
        try:
            _ = [text.encode() for text in texts]
        except UnicodeEncodeError as error:
            message = f"expected {name} that UTF-8 can hold, found a surrogate alone."
            raise SourceError(Problem(sample.key, "annotation", message), "Correct the text.") from error
    return sample.texts


def _encode_mask(
    sample: Sample, name: str, field: MaskField, size: tuple[int, int], placement: Placement | None, max_pixels: int
) -> NDArray[Any]:
    """(H, W) of a sample's mask, in the field's dtype, fitted like its image; free space is ignored, or 0."""
    key, source = f"{sample.key} ({name})", sample.masks.get(name)
    if source is None:  # of several sources, this one has no masks
        mask = np.full(size, field.ignored or 0, field.spec.dtype)
    else:
        mask = mask_of_image(sample, name, size, max_pixels)
    wrong = mask[field.wrong(mask)]
    if wrong.size:
        message = f"expected pixels in {field.expected()}, found {int(wrong[0])}."
        advice = "Name all classes with `classes`, class 0 first, or correct the mask."
        if is_jpeg(source, key):
            advice = "This mask is a JPEG, which changes the numbers: write all masks again as PNG."
        raise SourceError(Problem(key, "mask-range", message), advice)
    if placement is not None:
        mask = resize_nearest(mask, placement, field.ignored or 0)
    return mask.astype(field.spec.dtype, copy=False)


def mask_of_image(sample: Sample, name: str, size: tuple[int, int], max_pixels: int) -> NDArray[Any]:
    """(H, W) integers of a sample's mask, whose image has this (height, width)."""
    key, source = f"{sample.key} ({name})", sample.masks[name]
    try:
        if isinstance(source, str | Path):
            source = read_file(source, key)
        mask = decode_mask(source, max_pixels=max_pixels, key=key)
    except SourceError as error:
        raise with_path(error, sample.key, sample.masks[name]) from error
    if mask.shape != size:
        of_mask, of_image = ("x".join(map(str, each)) for each in (mask.shape, size))
        message = f"the mask is {of_mask} (height x width), the image is {of_image} as it is shown."
        raise bad_image(key, "size-mismatch", message)
    return mask


def _encode(key: str, pixels: NDArray[Any], options: ImageOptions) -> NDArray[Any] | bytes:
    """The pixels, or a file of them."""
    if options.encoding in ("auto", "raw"):
        return pixels
    if options.encoding == "source" and pixels.dtype == np.uint16:
        return encode_png(pixels)
    _check_depth(key, pixels.dtype, pixels.shape[2])
    return encode_jpeg(pixels, options.quality, options.subsampling)


def _check_depth(key: str, dtype: np.dtype[Any], channels: int) -> None:
    if dtype != np.uint8 or channels not in (1, 3):
        message = f"JPEG keeps 8-bit gray or RGB, this image is {dtype} with {channels} channels."
        raise bad_image(key, "unsupported-depth", message)


def place_objects(
    key: str,
    objects: Objects,
    source: tuple[int, int],
    placement: Placement | None,
    annotation: str = "",
    *,
    is_tile: bool = False,
) -> tuple[Objects, tuple[Problem, ...]]:
    """Check boxes against their image, move boxes and keypoints with it, and clip boxes to the stored image.

    `objects` are in pixels of the source image, whose (height, width) is `source`. The result is in pixels of the
    stored image, with the problems. A box that is not finite, is reversed, has no area or lies outside its image is
    dropped with its object; an oriented box likewise, also if its corners are not in order around it. So is a box with
    nothing left by the crop, or less than the placement's `min_visibility` (reason `box-cropped`); with `is_tile` this
    is no problem, because other tiles have the box. Keypoints are moved, never clipped, and keep their coordinates
    outside the image.
    """
    moved = dict(objects) if placement is None else _moved(key, objects, source, placement)
    if "boxes" not in moved:
        return moved, ()
    boxes = moved["boxes"]
    faults = box_faults(boxes, source)
    oriented = oriented_faults(objects["oriented_boxes"]) if "oriented_boxes" in objects else np.full(len(faults), "")
    is_oriented = (faults == "") & (oriented != "")
    faults = np.where(is_oriented, oriented, faults)
    height, width = source if placement is None else placement.size
    with np.errstate(invalid="ignore"):  # infinite or NaN boxes are faults already
        clipped = clip(boxes, source)
        if placement is not None:
            whole = placement.move(clipped.reshape(-1, 2, 2)).reshape(-1, 4)
            clipped = clip(whole, (height, width))
        stored = clipped.astype(np.float32)
        lost = ~((stored[:, 0] < stored[:, 2]) & (stored[:, 1] < stored[:, 3]))
        if placement is not None and placement.min_visibility:
            seen, area = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) for box in (clipped, whole))
            lost |= seen < (placement.min_visibility - _ROUNDING) * area
    problems = []
    for i in np.flatnonzero((lost & (not is_tile)) | (faults != "")):
        reason = str(faults[i]) or (BOX_CROPPED if placement is not None else "box-empty")
        what, means, shown = "box", _FAULTS, boxes[i]
        if is_oriented[i]:
            what, means, shown = "oriented box", _ORIENTED_FAULTS, np.asarray(objects["oriented_boxes"][i]).reshape(-1)
        numbers = ", ".join(f"{v:g}" for v in shown)
        which = f"object {i + 1} of {len(boxes)}{f' in {annotation}' if annotation else ''}"
        message = f"{which}: the {what} ({numbers}) {means[reason]}, in an image of {source[0]}x{source[1]}."
        problems.append(Problem(key, reason, message))
    remains = ~lost & (faults == "")
    moved["boxes"] = clipped
    if not remains.all():
        moved = {name: _selected(values, remains) for name, values in moved.items()}
    return moved, tuple(problems)


def _moved(key: str, objects: Objects, source: tuple[int, int], placement: Placement) -> dict[str, Any]:
    """All values except the boxes, in pixels of the stored image."""
    moved = dict(objects)
    if "keypoints" in moved:
        moved["keypoints"] = placement.move(moved["keypoints"])
    if "area" in moved:
        left, top, right, bottom = placement.box
        moved["area"] = moved["area"] * (math.prod(placement.resized) / ((right - left) * (bottom - top)))
    if "polygons" in moved:
        moved["polygons"] = [placement.move(corners) for corners in moved["polygons"]]
    if "oriented_boxes" in moved:
        moved["oriented_boxes"] = placement.move(as_corners(moved["oriented_boxes"]))
    if "rle" in moved:
        masks = [mask_of_runs(runs, source, key) if len(runs) else None for runs in moved["rle"]]
        none = np.empty(0, np.uint32)
        moved["rle"] = [none if mask is None else runs_of_mask(resize_nearest(mask, placement, 0)) for mask in masks]
    return moved


def _selected(values: Any, remains: NDArray[np.bool_]) -> Any:
    return list(itertools.compress(values, remains)) if isinstance(values, list) else values[remains]


_FAULTS = {
    "box-nan": "is not finite",
    "box-reversed": "ends before it begins",
    "box-empty": "has no area",
    "box-outside": "lies outside",
    BOX_CROPPED: "is cut off by the crop",
}
_ORIENTED_FAULTS = {**_FAULTS, "box-reversed": "has sides below 0, or corners that are not in order around it"}
