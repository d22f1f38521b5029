"""One sample of a source becomes one row of a store: decode, orient, resize, move boxes along, encode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.errors import OptionError, Problem
from tensorstore_ds.format.schema import OBJECT_VALUES
from tensorstore_ds.imaging.codecs import OnDecode, bad_image, decode_image, encode_jpeg, resize
from tensorstore_ds.imaging.placement import Placement, box_faults, clip, place
from tensorstore_ds.regular_files import check_machine, read_file
from tensorstore_ds.sources.base import Objects, Sample

#: Reasons that are the resizing's doing, not a fault of the source.
BOX_CROPPED = "box-cropped"


@dataclass(slots=True)  # not frozen, which would triple the time to make one
class EncodedSample:
    """One row.

    Attributes:
        pixels: (H, W, C) of the stored image.
        image: the stored bytes, or None where the pixels themselves are stored.
        size: (height, width) of the image before it was resized.
        objects: each (M, ...) in the dtype stored; empty without objects.
        problems: boxes that were dropped, and why.
    """

    pixels: NDArray[Any]
    image: bytes | None
    size: tuple[int, int]
    objects: Mapping[str, NDArray[Any]]
    problems: tuple[Problem, ...] = ()


def encode_sample(sample: Sample, options: ImageOptions, on_decode: OnDecode | None = None) -> EncodedSample:
    """Decode a sample's image, fit it and its objects to the size asked for, and encode it.

    Args:
        on_decode: called before an image file is decoded, with the bytes of memory that this may take.

    Raises:
        SourceError: the image cannot be decoded, or the annotation belongs to an image of another size.
        ConversionError: memory is short, or the disk fails.
    """
    try:
        return _encode_sample(sample, options, on_decode)
    except (MemoryError, RecursionError) as error:
        check_machine(sample.key, error)
        raise


def _encode_sample(sample: Sample, options: ImageOptions, on_decode: OnDecode | None) -> EncodedSample:
    source: Any = sample.image
    if isinstance(source, str | Path):
        source = read_file(source, sample.key)
    original = decode_image(
        source, color=options.color, max_pixels=options.max_pixels, key=sample.key, on_decode=on_decode
    )
    height, width = original.shape[:2]
    if sample.annotated_size is not None and sample.annotated_size != (height, width):
        annotated = "x".join(map(str, sample.annotated_size))
        message = f"the annotation is for an image of {annotated} (height x width), the image is {height}x{width}."
        raise bad_image(sample.key, "size-mismatch", message)
    pixels, placement = original, None
    if options.size is not None:
        placement = place((height, width), options.size, options.fit)
        pixels = resize(original, placement)
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        message = "expected finite numbers as pixels, found NaN or infinity"
        resized = ", or numbers too large to be resized" if pixels is not original else ""
        raise bad_image(sample.key, "pixel-nan", f"{message}{resized}.")
    objects: dict[str, NDArray[Any]] = {}
    problems: tuple[Problem, ...] = ()
    if sample.objects is not None:
        placed, problems = place_objects(sample.key, sample.objects, (height, width), placement)
        for name, (dtype, _) in OBJECT_VALUES.items():
            value = getattr(placed, name)
            if value is not None:
                objects[name] = np.ascontiguousarray(value, dtype)
    return EncodedSample(pixels, _encode(sample.key, source, pixels, options), (height, width), objects, problems)


def _encode(key: str, source: Any, pixels: NDArray[Any], options: ImageOptions) -> bytes | None:
    if options.encoding == "raw":
        return None
    if options.encoding == "source":
        if not isinstance(source, bytes):
            raise OptionError(f"{key}: this source has no image files to keep. Use `encoding=raw` or `encoding=jpeg`.")
        return source
    if pixels.dtype != np.uint8 or pixels.shape[2] not in (1, 3):
        message = f"JPEG keeps 8-bit gray or RGB, this image is {pixels.dtype} with {pixels.shape[2]} channels."
        raise bad_image(key, "unsupported-depth", message)
    return encode_jpeg(pixels, options.quality)


def place_objects(
    key: str, objects: Objects, source: tuple[int, int], placement: Placement | None
) -> tuple[Objects, tuple[Problem, ...]]:
    """Check boxes against their image, move boxes and landmarks with it, and clip boxes to what is stored.

    A box that is not finite, is reversed, has no area or lies outside of its image is dropped with its object and
    named; so is one that the crop leaves without area (reason `box-cropped`). Landmarks are moved, never clipped: one
    that lies outside of the stored image keeps its coordinates there.

    Args:
        key: names the sample in problems.
        objects: in pixels of the source image.
        source: (height, width) of that image.
        placement: how it was fitted; None if it was not.

    Returns:
        The objects that remain, in pixels of the stored image, and the problems.
    """
    keypoints = objects.keypoints
    if keypoints is not None and placement is not None:
        keypoints = placement.move(keypoints)
    if objects.boxes is None:
        return replace(objects, keypoints=keypoints), ()
    boxes = objects.boxes
    faults = box_faults(boxes, source)
    height, width = source if placement is None else placement.size
    with np.errstate(invalid="ignore"):  # infinite or NaN boxes are faults already
        clipped = clip(boxes, source)
        if placement is not None:
            clipped = clip(placement.move(clipped.reshape(-1, 2, 2)).reshape(-1, 4), (height, width))
        stored = clipped.astype(np.float32)
        lost = ~((stored[:, 0] < stored[:, 2]) & (stored[:, 1] < stored[:, 3]))
    problems = []
    for i in np.flatnonzero(lost | (faults != "")):
        reason = str(faults[i]) or (BOX_CROPPED if placement is not None else "box-empty")
        numbers = ", ".join(f"{v:g}" for v in boxes[i])
        message = f"object {i}: the box ({numbers}) {_FAULTS[reason]}, in an image of {source[0]}x{source[1]}."
        problems.append(Problem(key, reason, message))
    keep = ~lost & (faults == "")
    moved = replace(objects, boxes=clipped, keypoints=keypoints)
    if keep.all():
        return moved, ()
    arrays = {name: getattr(moved, name) for name in Objects.__dataclass_fields__}
    return Objects(**{name: None if a is None else a[keep] for name, a in arrays.items()}), tuple(problems)


_FAULTS = {
    "box-nan": "is not finite",
    "box-reversed": "ends before it begins",
    "box-empty": "has no area",
    "box-outside": "lies outside",
    BOX_CROPPED: "is cut off by the crop",
}
