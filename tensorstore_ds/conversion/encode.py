"""Convert one sample of a source into one row of a store: decode, orient, resize, move boxes, encode."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.large import sums_of
from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.imaging.codecs import (
    OnDecode,
    bad_image,
    decode_mask,
    encode_png,
)
from tensorstore_ds.imaging.jpeg import MOST_SIDE, encode_jpeg, find_entries, find_restarts, scale_for
from tensorstore_ds.imaging.objects import in_pixels, place_objects, stored_objects
from tensorstore_ds.imaging.picture import Picture, is_jpeg, open_picture, read_header
from tensorstore_ds.imaging.placement import Placement
from tensorstore_ds.imaging.resizing import resize, resize_nearest
from tensorstore_ds.regular_files import archive_of, check_machine, read_file
from tensorstore_ds.sources.base import Sample

#: A file of a format that stores do not hold.
NOT_KEPT = "file-not-kept"
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
        is_unread = only_header or (is_kept and options.check == "headers")
        in_bands = by_parts and picture.is_large and placement is None and (is_kept or not as_files) and not is_unread
        scale = _scale(picture, placement, options)
        walked = picture.walk(on_decode) if is_kept and not (is_unread or in_bands) else None
        pixels = None if is_unread or in_bands or walked else picture.pixels(scale, on_decode)
    except SourceError as error:
        raise with_path(error, key, sample.image) from error
    sample.left_out += left_out if is_kept else picture.left_out
    if as_files and not picture.is_file:
        raise OptionError(f'{key}: this source has no image files to keep. Use `encoding="raw"` or `encoding="jpeg"`.')
    if as_files and not is_kept:
        sample.left_out += (not_kept(key, picture),)
    objects, problems = _fitted_objects(sample, picture, placement, options)
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
        sums=partial(sums_of, key, picture if in_bands else walked[1] if walked else pixels, on_decode),
        restarts=find_restarts(image) if isinstance(image, bytes) else None,
        entries=walked[0] if walked else find_entries(image) if isinstance(image, bytes) and as_files else None,
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


def _check_jpeg(key: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise `SourceError` for an image that cannot become a JPEG file."""
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


def _fitted_objects(
    sample: Sample, picture: Picture, placement: Placement | None, options: ImageOptions
) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """The stored form of a sample's objects, and problems of dropped boxes."""
    check_size(sample, picture)
    if sample.objects is None:
        return {}, sample.problems
    objects = in_pixels(sample.objects, picture.size) if sample.relative else sample.objects
    placed, problems = place_objects(sample.key, objects, picture.size, placement, sample.annotation)
    with_rectangles = options.oriented_boxes == "polygons"
    return stored_objects(sample.key, placed, with_rectangles=with_rectangles), (*sample.problems, *problems)


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
        raise bad_image(sample.key, "size-mismatch", message)


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
    _check_jpeg(key, pixels.dtype, pixels.shape)
    return encode_jpeg(pixels, options.quality, options.subsampling)


def _check_depth(key: str, dtype: np.dtype[Any], channels: int) -> None:
    if dtype != np.uint8 or channels not in (1, 3):
        message = f"JPEG keeps 8-bit gray or RGB, this image is {dtype} with {channels} channels."
        raise bad_image(key, "unsupported-depth", message)
