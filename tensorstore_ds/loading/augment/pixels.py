"""Cut, resize, mirror and pad the images of a batch, each at its own position.

On a GPU one batched operation handles all images, because many small ones would leave it idle. On a CPU each image is
copied separately, because torch's gathers copy single bytes there: 224x224 crops of 256x256 images run at 44,500 per
second and core instead of 2,350, resized crops at 5,400 instead of 310. The pixels are the same.

All functions take (B, C, H, W) images of any dtype in channels-last or contiguous memory, and return new memory with
the same layout. Callers that own the images may pass a `pool`; results are then in its memory or in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.augment.values import BITS, rounded
from tensorstore_ds.loading.buffers import BufferPool, on_device
from tensorstore_ds.reading.columns import LARGE_NBYTES

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]

#: Number of bytes of images to transform at a time. They fit into a processor's L2 cache.
PART_NBYTES = 256 * 1024
#: `shift` has a table of an image for each position of a cut: at most this many bytes, which fit into L2 too.
SHIFT_NBYTES = 512 * 1024


def crop(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int], pool: BufferPool | None = None) -> Tensor:
    """Cut (height, width) `size` from each image, with the upper left corner `top`, `left`: (B,) int64 on the CPU."""
    if in_one_operation(images):
        return crop_batched(images, on_device(top, images.device), on_device(left, images.device), size)
    if is_large(images):
        return crop_padded(images, top, left, size, 0, pool)
    out = empty_like(images, pool, size=size)
    axis = axis_of_width(images)
    source, target = as_array(images, axis), as_array(out, axis)
    windows = sliding_window_view(source, size, axis=(axis - 1, axis))
    windows = windows.transpose(0, 1, 2, 4, 5, 3) if axis == 2 else windows.transpose(0, 2, 3, 1, 4, 5)
    places = np.stack([np.arange(len(images)), top, left])
    for part in parts(target):
        target[part] = windows[tuple(places[:, part])]
    return out


def is_large(images: Tensor) -> bool:
    """Whether copying an image on a CPU takes longer than the Python call for it."""
    large = math.prod(images.shape[1:]) * images.element_size() >= LARGE_NBYTES
    return large and not in_one_operation(images)


def crop_padded(
    images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int], fill: float, pool: BufferPool | None
) -> Tensor:
    """Cut images on a CPU one by one. Pixels outside of an image become `fill`."""
    out = empty_like(images, pool, size=size)
    axis = axis_of_width(images)
    source, target = as_array(images, axis), as_array(out, axis)
    filling = bits_of(torch.tensor(fill).to(images.dtype))
    for i, (y, x) in enumerate(zip(top.tolist(), left.tolist(), strict=True)):
        _place(target[i], source[i], y, x, filling, axis)
    return out


def _place(target: NDArray[Any], source: NDArray[Any], y: int, x: int, filling: NDArray[Any], axis: int) -> None:
    """Copy `source` from (y, x) on into `target`, with `filling` outside of it."""
    height, width = target.shape[axis - 2 : axis]
    lines, from_lines = span(y, height, source.shape[axis - 2])
    columns, from_columns = span(x, width, source.shape[axis - 1])
    if (lines, columns) != (slice(0, height), slice(0, width)):
        target[...] = filling
    before = (slice(None),) * (axis - 2)
    target[(*before, lines, columns)] = source[(*before, from_lines, from_columns)]


def span(start: int, length: int, has: int) -> tuple[slice, slice]:
    """Return the part of [start, start + length) that is in [0, has), counted from `start`, and counted from 0."""
    first = min(max(0, -start), length)
    last = max(first, min(length, has - start))
    return slice(first, last), slice(start + first, start + last)


def crop_batched(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut all images in one gather. All tensors are on one device."""
    samples, y, x = (torch.arange(n, device=images.device) for n in (len(images), *size))
    y, x = top[:, None] + y, left[:, None] + x
    out = images.permute(0, 2, 3, 1)[samples[:, None, None], y[:, :, None], x[:, None, :]]
    return out.permute(0, 3, 1, 2).contiguous(memory_format=memory_format_of(images))


def resized_crop(images: Tensor, boxes: Tensor, size: tuple[int, int], pool: BufferPool | None = None) -> Tensor:
    """Cut a box from each image and resize it to (height, width) `size`, bilinear and antialiased.

    Always antialiased, as in Pillow and by default in torchvision: otherwise a reduced crop keeps only a few of its
    pixels. uint8 is rounded to the nearest; on a CPU, torch's integer arithmetic also rounds in between. `boxes`,
    (B, 4) int64 on the CPU, are top, left, height and width, inside the images and at least 1 x 1.
    """
    # torch 2.15 on a CPU fills results of width 1 with their first row where images are floating-point and contiguous.
    if images.device.type != "cpu" or size[1] == 1 or torch.compiler.is_compiling():
        return resized_crop_batched(images, on_device(boxes, images.device), size)
    out = empty_like(images, pool, size=size)
    for i, (top, left, height, width) in enumerate(boxes.tolist()):
        part = images[i : i + 1, :, top : top + height, left : left + width]
        if part.dtype not in (torch.uint8, torch.float32, torch.float64):
            part = part.to(torch.float32)
        if part.dtype != torch.uint8:
            part = part.contiguous()  # torch is slow across the channels of channels-last floats
        resized = functional.interpolate(part, size=size, mode="bilinear", antialias=True)[0]
        out[i] = rounded(resized, images.dtype) if part.dtype != images.dtype else resized
    return out


def resized_crop_batched(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Compute `resized_crop` as two batched float32 products. TensorFloat-32 adds an error of 0.1 of 255 levels."""
    samples, channels, height, width = images.shape
    work = torch.float64 if images.dtype == torch.float64 else torch.float32
    top, left, part_height, part_width = boxes.to(work).unbind(1)
    rows = resize_weights(top, part_height, height, size[0])
    columns = resize_weights(left, part_width, width, size[1])
    with torch.autocast(images.device.type, enabled=False):
        values = images.to(work, memory_format=torch.contiguous_format)
        values = torch.bmm(values.view(samples, channels * height, width), columns.transpose(1, 2))
        values = rows[:, None] @ values.view(samples, channels, height, size[1])
    if images.dtype in BITS:
        values = values.round_()
    return values.to(images.dtype, memory_format=memory_format_of(images))


def resized_crop_nearest(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut and resize masks (B, 1, H, W) without smoothing: each pixel is the one at its center."""
    top, left, height, width = on_device(boxes, masks.device).to(torch.float64)[:, :, None].unbind(1)
    y, x = (torch.arange(n, device=masks.device) + 0.5 for n in size)
    y, x = (top + y * (height / size[0])).long(), (left + x * (width / size[1])).long()
    samples = torch.arange(len(masks), device=masks.device)[:, None, None]
    return masks[:, 0][samples, y[:, :, None], x[:, None, :]][:, None]


def resize_weights(start: Tensor, extent: Tensor, length: int, size: int) -> Tensor:
    """Return the weight of each of `length` pixels for each of `size` results, (B, size, length).

    The triangle filter of Pillow and of torch's antialiased `interpolate` (ATen, UpSampleKernel.cpp,
    `_compute_indices_weights_aa`): centered at ``(i + 0.5) * scale``, with a reach of ``max(scale, 1)`` to both sides,
    cut off at the ends of the part. Parts begin at `start` and have `extent` pixels: (B,) floating-point, whole
    numbers.
    """
    scale = (extent / size)[:, None, None]
    targets = torch.arange(size, device=start.device, dtype=start.dtype)[:, None]
    pixels = torch.arange(length, device=start.device, dtype=start.dtype) + 0.5 - start[:, None, None]
    weights = (1 - (pixels - (targets + 0.5) * scale).abs() / scale.clamp(min=1)).clamp_(min=0)
    weights *= (pixels > 0) & (pixels < extent[:, None, None])
    return weights / weights.sum(-1, keepdim=True)


def mask_fill_of(masks: Tensor, fill: int | None) -> int:
    """Value outside of masks: `fill`, or the ignored value of stores. uint16 arrives as int16, in which 65535 is -1."""
    if masks.dtype != torch.int16:
        return 255 if fill is None else fill
    return -1 if fill is None else fill - 2**16 if fill >= 2**15 else fill


def mirror(images: Tensor, flip: Tensor, pool: BufferPool | None = None) -> Tensor:
    """Mirror images left to right where `flip`, (B,) bool on the CPU: in place if there is a `pool`."""
    if in_one_operation(images):
        return mirror_batched(images, on_device(flip, images.device))
    out = images.clone() if pool is None else images
    axis = axis_of_width(out)
    array = as_array(out, axis)
    chosen = flip.nonzero()[:, 0].numpy()
    for part in parts(array, len(chosen)):
        mirrored = torch.from_numpy(array[chosen[part]]).flip(axis)  # torch is fast here, NumPy copies single bytes
        array[chosen[part]] = mirrored.numpy()
    return out


def mirror_batched(images: Tensor, flip: Tensor) -> Tensor:
    """Mirror all images in one operation. Both tensors are on one device."""
    return torch.where(flip[:, None, None, None], images.flip(-1), images)


def can_shift(images: Tensor, size: tuple[int, int], padding: tuple[int, int, int, int]) -> bool:
    """Whether `shift` replaces `pad` and `crop` and is faster: for small images on a CPU with constant padding."""
    left, top, right, bottom = padding
    ways = (1 + top + bottom) * (1 + left + right)
    nbytes = math.prod(images.shape[1:]) * images.element_size()
    dense = images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last)
    alike = dense and size == tuple(images.shape[-2:]) and len(images) > 0
    return alike and ways > 1 and ways * nbytes <= SHIFT_NBYTES and not in_one_operation(images)


def shift(
    images: Tensor, top: Tensor, left: Tensor, padding: tuple[int, int, int, int], fill: float, pool: BufferPool | None
) -> Tensor:
    """Pad by (left, top, right, bottom) with `fill`, and cut the original size at `top`, `left`: (B,) int64.

    Reading an image's memory from a different byte on moves the image. Lines and columns from outside of it are then
    overwritten, with a table of the pixels to keep for each position of the cut.
    """
    out = empty_like(images, pool)
    axis = axis_of_width(images)
    source, target = as_array(images, axis), as_array(out, axis)
    samples, pixels = len(source), math.prod(source.shape[1:])
    ways_x = 1 + padding[0] + padding[2]
    which = top.numpy() * ways_x + left.numpy()
    keep = _kept(source.shape[1:], axis, padding, source.dtype)
    filling = torch.tensor(fill).to(images.dtype)
    line, step = (math.prod(source.shape[axis:]), math.prod(source.shape[axis + 1 :]))
    y, x = top.numpy() - padding[1], left.numpy() - padding[0]
    starts = np.arange(samples) * pixels + y * line + x * step
    last = max(0, (samples - 1) * pixels)
    outside = np.flatnonzero((starts < 0) | (starts > last))
    flat_source, flat = source.reshape(-1), target.reshape(samples, pixels)
    views = sliding_window_view(flat_source, pixels)
    for part in parts(target):
        np.bitwise_and(views[starts[part].clip(0, last)], keep[which[part]], out=flat[part])
    for i in outside:
        _place(target[i], source[i], int(y[i]), int(x[i]), bits_of(filling), axis)
    if filling != 0:
        filled = np.invert(keep) & bits_of(filling)
        for part in parts(target):
            flat[part] |= filled[which[part]]
    return out


@functools.lru_cache(maxsize=8)
def _kept(shape: tuple[int, ...], axis: int, padding: tuple[int, int, int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return bit masks of the pixels that remain, (positions, pixels), for each position of the cut."""
    left, top, right, bottom = padding
    whole = np.zeros(shape, dtype)
    height, width = shape[axis - 2 : axis]
    kept = np.full((1 + top + bottom, 1 + left + right, *shape), ~dtype.type(0))
    lines, columns = np.arange(height), np.arange(width)
    y = np.arange(-top, bottom + 1)[:, None] + lines
    x = np.arange(-left, right + 1)[:, None] + columns
    inside = ((y >= 0) & (y < height))[:, None, :, None] & ((x >= 0) & (x < width))[None, :, None, :]
    inside = inside[..., None] if axis == 2 else inside[:, :, None]
    return np.where(inside, kept, whole).reshape(-1, whole.size)


def pad(images: Tensor, padding: tuple[int, int, int, int], mode: PaddingMode, fill: float) -> Tensor:
    """Pad by (left, top, right, bottom) pixels with `fill`, or with numpy.pad's `mode`."""
    left, top, right, bottom = padding
    if mode == "constant":
        return functional.pad(images, (left, right, top, bottom), value=fill)
    # torch cannot pad bytes in these modes: pad the pixels' indices instead.
    rows = _continued(images.shape[2], top, bottom, mode, images.device)
    columns = _continued(images.shape[3], left, right, mode, images.device)
    lines = images.permute(0, 2, 3, 1).index_select(1, rows).index_select(2, columns)
    return lines.permute(0, 3, 1, 2).contiguous(memory_format=memory_format_of(images))


def _continued(length: int, before: int, after: int, mode: PaddingMode, device: torch.device) -> Tensor:
    """Return the indices that `numpy.pad` takes, (before + length + after,) int64."""
    places = torch.arange(-before, length + after, device=device)
    if mode == "edge" or length == 1:
        return places.clamp(0, length - 1)
    period = 2 * length - (2 if mode == "reflect" else 0)
    places = places % period
    return torch.minimum(places, period - (0 if mode == "reflect" else 1) - places)


def empty_like(
    images: Tensor, pool: BufferPool | None, *, size: tuple[int, int] | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Allocate memory for as many images of (height, width) `size`, with the same layout, from `pool` if any."""
    height, width = size or images.shape[-2:]
    dtype = dtype or images.dtype
    if pool is None or not images.permute(0, 2, 3, 1).is_contiguous():
        return torch.empty(
            (*images.shape[:2], height, width),
            dtype=dtype,
            device=images.device,
            memory_format=memory_format_of(images),
        )
    rows, _ = pool.empty(len(images), ArraySpec(f"int{8 * dtype.itemsize}", (height, width, images.shape[1])))
    return rows.view(dtype).permute(0, 3, 1, 2)


def memory_format_of(images: Tensor) -> torch.memory_format:
    """Memory format of images (B, C, H, W), contiguous or channels-last."""
    contiguous = images.is_contiguous() or not images.is_contiguous(memory_format=torch.channels_last)
    return torch.contiguous_format if contiguous else torch.channels_last


def in_one_operation(images: Tensor) -> bool:
    """Whether all images are transformed in one operation: on a GPU, for gradients, and under `torch.compile`."""
    return images.device.type != "cpu" or images.requires_grad or torch.compiler.is_compiling()


def bits_of(images: Tensor) -> NDArray[Any]:
    """View pixels of any dtype as integers of the same size, because NumPy does not support bfloat16."""
    of_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return images.detach().view(of_size[images.element_size()]).numpy()


def axis_of_width(images: Tensor) -> int:
    """Axis of the width in memory: the last one if images are contiguous, the third one if they are channels-last."""
    return 3 if images.is_contiguous() else 2


def as_array(images: Tensor, axis: int) -> NDArray[Any]:
    """View the images' memory with the width along `axis`: (B, C, H, W) or (B, H, W, C)."""
    return bits_of(images if axis == 3 else images.permute(0, 2, 3, 1))


def as_images(array: NDArray[Any], axis: int, dtype: torch.dtype) -> Tensor:
    """View an array from `as_array` as (B, C, H, W) images of `dtype`."""
    images = torch.from_numpy(array).view(dtype)
    return images if axis == 3 else images.permute(0, 3, 1, 2)


def parts(array: NDArray[Any] | Tensor, rows: int | None = None) -> Iterator[slice]:
    """Iterate over slices whose results fit into the processor's cache."""
    step = max(1, PART_NBYTES // max(1, array[:1].nbytes))
    rows = len(array) if rows is None else rows
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))
