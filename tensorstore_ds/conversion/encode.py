"""One sample of a source becomes one row of a store: decode, orient, resize, move boxes along, encode."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.conversion.smart import pixel_file, worth
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, MaskField
from tensorstore_ds.format.kinds.objects import FLAGS, LISTS
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.imaging.codecs import (
    ImageHeader,
    OnDecode,
    bad_image,
    decode_file,
    decode_image,
    decode_mask,
    further_frames,
    open_image,
    orientation,
    own_pixel_limit,
    read_image_header,
)
from tensorstore_ds.imaging.jpeg import JPEG, encode_jpeg, find_entries, find_restarts, scale_for
from tensorstore_ds.imaging.outlines import mask_of_runs, runs_of_mask
from tensorstore_ds.imaging.placement import Placement, box_faults, clip
from tensorstore_ds.imaging.resizing import resize, resize_nearest
from tensorstore_ds.regular_files import archive_of, check_machine, read_file
from tensorstore_ds.sources.base import Objects, Sample

#: Reasons that are the resizing's doing, not a fault of the source.
BOX_CROPPED = "box-cropped"
#: By which a share of an area may be less than it should be.
_ROUNDING = 1e-9
#: An image is decoded at least so many times as large as it is to become.
_RESERVE = 2
#: Characters of a path in an error.
_SHOWN = 100


def encode_sample(
    sample: Sample,
    options: ImageOptions,
    on_decode: OnDecode | None = None,
    masks: Mapping[str, MaskField] = MappingProxyType({}),
    least_worth: float = math.inf,
) -> EncodedSample:
    """Decode a sample's image, fit it, its objects and its masks to the size asked for, and encode it.

    Args:
        on_decode: called before an image file is decoded, with the bytes of memory that this may take.
        least_worth: of the encoding ``smart``, the least `worth` of an image that is kept as pixels.

    Raises:
        SourceError: the image or a mask cannot be decoded, or an annotation belongs to an image of another size.
        ConversionError: memory is short, or the disk fails.
    """
    try:
        return _encode_sample(sample, options, on_decode, masks, least_worth)
    except (MemoryError, RecursionError) as error:
        check_machine(sample.key, error)
        raise


def _encode_sample(
    sample: Sample,
    options: ImageOptions,
    on_decode: OnDecode | None,
    masks: Mapping[str, MaskField],
    least_worth: float,
) -> EncodedSample:
    source: Any = sample.image
    try:
        if isinstance(source, str | Path):
            source = read_file(source, sample.key)
        size, scale, original = _decode(source, sample, options, on_decode)
    except SourceError as error:
        raise with_path(error, sample.key, sample.image) from error
    placement = options.placement(size)
    objects, problems = fitted_objects(sample, size, placement)
    pixels = original
    if placement is not None:
        left, top, right, bottom = (edge / scale for edge in placement.box)
        pixels = resize(original, replace(placement, box=(left, top, right, bottom)))
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        message = "expected finite numbers as pixels, found NaN or infinity"
        resized = ", or numbers too large to be resized" if pixels is not original else ""
        raise bad_image(sample.key, "pixel-nan", f"{message}{resized}.")
    encoded = _encode(sample.key, source, pixels, options)
    height, width = size if placement is None else placement.size
    shape = height, width, pixels.shape[2]
    if encoded is not None:
        check_pixels(sample.key, shape, options)
        if options.encoding == "smart" and worth(shape, len(encoded)) >= least_worth:
            encoded = pixel_file(pixels)
    return EncodedSample(
        key=sample.key,
        pixels=pixels,
        image=encoded,
        size=size,
        shape=shape,
        restarts=None if encoded is None else find_restarts(encoded),
        entries=None if encoded is None or options.encoding != "source" else find_entries(encoded),
        label=sample.label,
        objects=objects,
        masks={
            name: _encode_mask(sample, name, field, size, placement, options.max_pixels)
            for name, field in masks.items()
        },
        arrays=sample.arrays,
        texts=_checked_texts(sample),
        problems=problems,
        scale=scale if placement is None else 1,
        file_nbytes=len(source) if isinstance(source, bytes) else 0,
    )


def _decode(
    source: Any, sample: Sample, options: ImageOptions, on_decode: OnDecode | None
) -> tuple[tuple[int, int], int, NDArray[Any]]:
    """(height, width) of an image as it is shown, and its pixels, made so many times smaller by decoding.

    There are none where files are kept and only their headers are read.
    """
    key = sample.key
    if not isinstance(source, bytes):
        pixels = decode_image(source, color=options.color, max_pixels=options.max_pixels, key=key, on_decode=on_decode)
        return pixels.shape[:2], 1, pixels
    header = read_image_header(source, max_pixels=options.max_pixels, key=key)
    if header.image is not None:
        sample.left_out += further_frames(header.image, key)
    if options.encoding == "source" and options.check == "headers":
        return header.size, 1, np.empty((0, 0, header.channels), header.dtype)
    scale = _scale(header, options)
    pixels = decode_file(source, header, color=options.color, key=key, on_decode=on_decode, scale=scale)
    return header.size, scale, pixels


def _scale(header: ImageHeader, options: ImageOptions) -> int:
    """By how much an image is decoded smaller: as much as suffices to check it, or to make it smaller well."""
    if header.jpeg is None:
        return 1
    if options.encoding == "source":
        return 8 if options.check == "eighth" and min(header.size) >= 8 else 1
    placement = None if options.max_side is None else options.placement(header.size)
    if placement is None:
        return 1
    height, width = placement.size
    return scale_for(header.size, (_RESERVE * height, _RESERVE * width))


def check_pixels(key: str, shape: tuple[int, ...], options: ImageOptions) -> None:
    """Raise `SourceError` for an image, (H, W, C), of more than `max_pixels`: an array, which was not decoded."""
    if math.prod(shape[:2]) > options.max_pixels:
        message = f"this image has {shape[1]}x{shape[0]} pixels, the limit is {options.max_pixels}."
        raise SourceError(Problem(key, "too-many-pixels", message), "Raise the limit with `max_pixels`.")


def with_path(error: SourceError, key: str, image: Any) -> SourceError:
    """The same error anew, with the path of the sample's image if its key does not say it."""
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
    sample: Sample, size: tuple[int, int], placement: Placement | None
) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """The objects of a sample whose image has this (height, width), as they are stored; and the boxes dropped.

    Raises:
        SourceError: the annotation belongs to an image of another size; a coordinate is infinite.
    """
    check_size(sample, size)
    if sample.objects is None:
        return {}, ()
    objects = in_pixels(sample.objects, size) if sample.relative else sample.objects
    placed, problems = place_objects(sample.key, objects, size, placement, sample.annotation)
    return _encode_objects(sample.key, placed), problems


def check_size(sample: Sample, size: tuple[int, int]) -> None:
    """Raise `SourceError` where the annotation of a sample is for an image of another (height, width)."""
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
    """Whether EXIF says that the image file of a sample is to be turned by a quarter."""
    image: Any = sample.image
    with contextlib.suppress(SourceError), own_pixel_limit():
        if isinstance(image, str | Path):
            image = read_file(image, sample.key)
        opened = open_image(image, key=sample.key) if isinstance(image, bytes) else image
        return not isinstance(opened, np.ndarray) and orientation(opened, sample.key) >= 5
    return False


def in_pixels(objects: Objects, size: tuple[int, int]) -> Objects:
    """Objects whose coordinates are fractions of an image of this (height, width), in its pixels."""
    scale = np.array(size[::-1], np.float64)  # of x and y
    scales = {"boxes": np.tile(scale, 2), "keypoints": scale}
    moved = {name: objects[name] * scales[name] for name in scales if name in objects}
    if "polygons" in objects:
        moved["polygons"] = [corners * scale for corners in objects["polygons"]]
    return {**objects, **moved}


def _encode_objects(key: str, objects: Objects) -> dict[str, Any]:
    """The values that there are in the dtypes stored; a keypoint that lacks one coordinate is absent."""
    values: dict[str, Any] = {}
    for name, (dtype, _) in OBJECT_VALUES.items():
        if name in objects:
            value = objects[name] != 0 if name in FLAGS else objects[name]
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
    """(H, W) of a sample's mask, in the field's dtype, fitted as its image of (height, width) `size` was.

    What that leaves free is ignored, or 0 where nothing is.
    """
    key, source = f"{sample.key} ({name})", sample.masks.get(name)
    if source is None:  # of several sources, this one has no masks
        source = np.full(size, field.ignored or 0, field.spec.dtype)
    try:
        if isinstance(source, str | Path):
            source = read_file(source, key)
        mask = decode_mask(source, max_pixels=max_pixels, key=key)
    except SourceError as error:
        raise with_path(error, sample.key, sample.masks.get(name)) from error
    if mask.shape != size:
        of_mask, of_image = ("x".join(map(str, each)) for each in (mask.shape, size))
        message = f"the mask is {of_mask} (height x width), the image is {of_image} as it is shown."
        raise bad_image(key, "size-mismatch", message)
    wrong = mask[field.wrong(mask)]
    if wrong.size:
        message = f"expected pixels in {field.expected()}, found {int(wrong[0])}."
        advice = "Name all classes with `classes`, that of 0 first, or correct the mask."
        if source[:2] == JPEG if isinstance(source, bytes) else getattr(source, "format", None) == "JPEG":
            advice = "This mask is a JPEG, which changes the numbers: write all masks again as PNG."
        raise SourceError(Problem(key, "mask-range", message), advice)
    if placement is not None:
        mask = resize_nearest(mask, placement, field.ignored or 0)
    return mask.astype(field.spec.dtype, copy=False)


def _encode(key: str, source: Any, pixels: NDArray[Any], options: ImageOptions) -> bytes | None:
    if options.encoding in ("auto", "raw"):
        return None
    if options.encoding == "source":
        if not isinstance(source, bytes):
            raise OptionError(
                f'{key}: this source has no image files to keep. Use `encoding="raw"` or `encoding="jpeg"`.'
            )
        return source
    if pixels.dtype != np.uint8 or pixels.shape[2] not in (1, 3):
        message = f"JPEG keeps 8-bit gray or RGB, this image is {pixels.dtype} with {pixels.shape[2]} channels."
        raise bad_image(key, "unsupported-depth", message)
    return encode_jpeg(pixels, options.quality, options.subsampling)


def place_objects(
    key: str, objects: Objects, source: tuple[int, int], placement: Placement | None, annotation: str = ""
) -> tuple[Objects, tuple[Problem, ...]]:
    """Check boxes against their image, move boxes and keypoints with it, and clip boxes to what is stored.

    A box that is not finite, is reversed, has no area or lies outside of its image is dropped with its object and
    listed. So is a box of which the crop leaves nothing, or less than the placement's `min_visibility` (reason
    `box-cropped`). Keypoints are moved, never clipped: one outside of the stored image keeps its coordinates there.

    Args:
        objects: in pixels of the source image, whose (height, width) is `source`.
        placement: how that was fitted; None if it was not.
        annotation: the file that they are from, if it is known.

    Returns:
        The objects that remain, in pixels of the stored image, and the problems.
    """
    moved = dict(objects) if placement is None else _moved(key, objects, source, placement)
    if "boxes" not in moved:
        return moved, ()
    boxes = moved["boxes"]
    faults = box_faults(boxes, source)
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
    for i in np.flatnonzero(lost | (faults != "")):
        reason = str(faults[i]) or (BOX_CROPPED if placement is not None else "box-empty")
        numbers = ", ".join(f"{v:g}" for v in boxes[i])
        which = f"object {i + 1} of {len(boxes)}{f' in {annotation}' if annotation else ''}"
        message = f"{which}: the box ({numbers}) {_FAULTS[reason]}, in an image of {source[0]}x{source[1]}."
        problems.append(Problem(key, reason, message))
    remains = ~lost & (faults == "")
    moved["boxes"] = clipped
    if not remains.all():
        moved = {name: _selected(values, remains) for name, values in moved.items()}
    return moved, tuple(problems)


def _moved(key: str, objects: Objects, source: tuple[int, int], placement: Placement) -> dict[str, Any]:
    """All but the boxes in pixels of the stored image."""
    moved = dict(objects)
    if "keypoints" in moved:
        moved["keypoints"] = placement.move(moved["keypoints"])
    if "area" in moved:
        left, top, right, bottom = placement.box
        moved["area"] = moved["area"] * (math.prod(placement.resized) / ((right - left) * (bottom - top)))
    if "polygons" in moved:
        moved["polygons"] = [placement.move(corners) for corners in moved["polygons"]]
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
