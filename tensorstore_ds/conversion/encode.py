"""Convert one sample of a source into one row of a store: decode, orient, resize, move boxes, encode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.imaging.codecs import OnDecode, decode_mask
from tensorstore_ds.imaging.objects import in_pixels, place_objects, stored_objects
from tensorstore_ds.imaging.picture import PathInErrors, Picture, PlacedPicture, is_jpeg, open_picture, read_header
from tensorstore_ds.imaging.placement import Placement
from tensorstore_ds.imaging.resizing import resize_nearest
from tensorstore_ds.regular_files import check_machine, read_file
from tensorstore_ds.sources.base import Sample
from tensorstore_ds.sources.files import encoding_problem

#: `open_picture` or `read_header`.
Opener = Callable[..., Picture]


def encode_sample(
    sample: Sample,
    options: ImageOptions,
    on_decode: OnDecode | None = None,
    masks: Mapping[str, MaskField] = MappingProxyType({}),
    *,
    by_parts: bool = False,
    channels: int = 0,
) -> EncodedSample:
    """Open a sample's image, fit its objects and its masks to the requested size, and encode it.

    `on_decode` is called before an image file is decoded, with the bytes of memory that this may take. With `by_parts`,
    a large image remains a `PlacedPicture`, and the caller writes it in bands. `channels` is the number of channels of
    the first image, for encodings that mix gray and color images.
    """
    key, encoding = sample.key, options.encoding
    try:
        picture, placement, row = _opened(sample, options, open_picture)
        if is_widened := encoding.mixes_colors and (picture.shape[2], channels) == (1, 3):
            row.shape = (*row.shape[:2], channels)
        placed = PlacedPicture(picture, placement, is_widened, key, sample.image, on_decode)
        encoding.encode(row, placed, by_parts=by_parts)
        if isinstance(row.image, bytes):
            check_pixels(key, row.shape, options)
        row.masks = {
            name: _encode_mask(sample, name, field, picture.size, placement, options.max_pixels)
            for name, field in masks.items()
        }
        return row
    except (MemoryError, RecursionError) as error:
        check_machine(key, error)
        raise


def read_sample(sample: Sample, options: ImageOptions) -> tuple[EncodedSample, Picture]:
    """What the header and the annotations of a sample tell of its row, which has no image and no masks."""
    try:
        picture, _, row = _opened(sample, options, read_header)
        options.encoding.check_row(row, picture)
        return row, picture
    except (MemoryError, RecursionError) as error:
        check_machine(sample.key, error)
        raise


def _opened(sample: Sample, options: ImageOptions, open_it: Opener) -> tuple[Picture, Placement | None, EncodedSample]:
    """The picture of a sample, its placement, and its row, of which the image and the masks are missing."""
    key, picture = sample.key, picture_of(sample, options, open_it)
    size, placement, objects, problems = picture.size, options.placement(picture.size), sample.objects, sample.problems
    if objects is not None:
        given = in_pixels(objects, size) if sample.relative else objects
        placed, dropped = place_objects(key, given, size, placement, sample.annotation)
        objects = stored_objects(key, placed, with_rectangles=options.oriented_boxes == "polygons")
        problems += dropped
    row = EncodedSample(
        key,
        None,
        size,
        (*(size if placement is None else placement.size), picture.shape[2]),
        picture.dtype,
        label=sample.label,
        objects=objects or {},
        arrays=sample.arrays,
        texts=_checked_texts(sample),
        problems=problems,
        left_out=sample.left_out + picture.left_out,
        channels=picture.shape[2],
        file_nbytes=picture.file_nbytes,
    )
    return picture, placement, row


def picture_of(sample: Sample, options: ImageOptions, open_it: Opener = open_picture, **how: Any) -> Picture:
    """Open a sample's image, or read its header, and compare its size with the annotation's."""
    how = {"color": options.color, "max_pixels": options.max_pixels, "as_files": options.encoding.keeps_files, **how}
    with PathInErrors(sample.key, sample.image):
        picture = open_it(sample.image, key=sample.key, **how)
    check_size(sample, picture)
    return picture


def about(row: EncodedSample, options: ImageOptions) -> tuple[bytes, float]:
    """The stored bytes of an image, or of its first rows if it is large, and the factor to the size of all of it."""
    times = 1.0
    if isinstance(row.image, PlacedPicture):
        band = next(row.image.bands([]))
        times = row.shape[0] / len(band)
        row = replace(row)
        options.encoding.encode_whole(row, band)
    return row.image if isinstance(row.image, bytes) else np.ascontiguousarray(row.image).tobytes(), times


def check_pixels(key: str, shape: tuple[int, ...], options: ImageOptions) -> None:
    """Raise `SourceError` for an array, (H, W, C), of more than `max_pixels`."""
    if math.prod(shape[:2]) > options.max_pixels:
        message = f"this image has {shape[1]}x{shape[0]} pixels, the limit is {options.max_pixels}."
        raise SourceError(Problem(key, "too-many-pixels", message), "Raise the limit with `max_pixels`.")


def check_size(sample: Sample, picture: Picture) -> None:
    """Raise `SourceError` if the annotation of a sample is for an image of a different (height, width)."""
    height, width = size = picture.size
    if sample.annotated_size is not None and sample.annotated_size != size:
        annotated = "x".join(map(str, sample.annotated_size))
        which = f"the annotation {sample.annotation}".rstrip()
        message = f"{which} is for an image of {annotated} (height x width), the image is {height}x{width}"
        if sample.annotated_size == size[::-1] and picture.is_turned:
            message += " as its EXIF orientation shows it: annotations are in pixels of the image as it is shown"
        message += "."
        raise SourceError(Problem(sample.key, "size-mismatch", message))


def _checked_texts(sample: Sample) -> Mapping[str, Sequence[str]]:
    for name, texts in sample.texts.items():
        if any(map(encoding_problem, texts)):
            message = f"expected {name} that UTF-8 can hold, found a surrogate alone."
            raise SourceError(Problem(sample.key, "annotation", message), "Correct the text.")
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
    with PathInErrors(sample.key, source):
        data = read_file(source, key) if isinstance(source, str | Path) else source
        mask = decode_mask(data, max_pixels=max_pixels, key=key)
    if mask.shape != size:
        of_mask, of_image = ("x".join(map(str, each)) for each in (mask.shape, size))
        message = f"the mask is {of_mask} (height x width), the image is {of_image} as it is shown."
        raise SourceError(Problem(key, "size-mismatch", message))
    return mask
