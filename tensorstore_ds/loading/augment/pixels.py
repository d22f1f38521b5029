"""Cut, resize, mirror and pad the images of a batch, each at a place of its own.

On a GPU one batched operation does it, because many small ones would leave it idle. On a CPU each image is copied,
because torch's gathers go byte by byte there: 224x224 crops of 256x256 images at 44,500 a second and core against
2,350, resized crops at 5,400 against 310. The pixels are the same.

All take (B, C, H, W) images of any dtype in channels-last or contiguous memory, and return new memory laid out alike;
with a `pool`, which only those pass to whom the images belong, memory of it, or the images themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.augment.base import on_device
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.reading.columns import LARGE_NBYTES

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]

#: Images are moved so many bytes at a time, which stay in the second level of a processor's cache.
PART_NBYTES = 256 * 1024
#: `shift` has a table of an image for each place of a cut: at most so many bytes, which stay there too.
SHIFT_NBYTES = 512 * 1024


def crop(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int], pool: BufferPool | None = None) -> Tensor:
    """Cut (height, width) `size` from each image, its upper left corner at `top`, `left`: (B,) int64 on the CPU."""
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
    """Whether an image on a CPU takes longer to copy than Python needs to say so."""
    large = math.prod(images.shape[1:]) * images.element_size() >= LARGE_NBYTES
    return large and not in_one_operation(images)


def crop_padded(
    images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int], fill: float, pool: BufferPool | None
) -> Tensor:
    """As `crop`, of images on a CPU, one by one; what lies outside of an image is `fill`."""
    out = empty_like(images, pool, size=size)
    axis = axis_of_width(images)
    source, target = as_array(images, axis), as_array(out, axis)
    filling = bits_of(torch.tensor(fill).to(images.dtype))
    for i, (y, x) in enumerate(zip(top.tolist(), left.tolist(), strict=True)):
        _place(target[i], source[i], y, x, filling, axis)
    return out


def _place(target: NDArray[Any], source: NDArray[Any], y: int, x: int, filling: NDArray[Any], axis: int) -> None:
    """Copy what `source` has from (y, x) on into `target`; `filling` where that is outside of it."""
    height, width = target.shape[axis - 2 : axis]
    lines, from_lines = span(y, height, source.shape[axis - 2])
    columns, from_columns = span(x, width, source.shape[axis - 1])
    if (lines, columns) != (slice(0, height), slice(0, width)):
        target[...] = filling
    before = (slice(None),) * (axis - 2)
    target[(*before, lines, columns)] = source[(*before, from_lines, from_columns)]


def span(start: int, length: int, has: int) -> tuple[slice, slice]:
    """Of `length` places from `start` on, those that lie in [0, has): counted from `start`, and from 0."""
    first = min(max(0, -start), length)
    last = max(first, min(length, has - start))
    return slice(first, last), slice(start + first, start + last)


def crop_batched(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """As `crop`, in one gather; all tensors on one device."""
    samples, y, x = (torch.arange(n, device=images.device) for n in (len(images), *size))
    y, x = top[:, None] + y, left[:, None] + x
    out = images.permute(0, 2, 3, 1)[samples[:, None, None], y[:, :, None], x[:, None, :]]
    return out.permute(0, 3, 1, 2).contiguous(memory_format=memory_format_of(images))


def resized_crop(images: Tensor, boxes: Tensor, size: tuple[int, int], pool: BufferPool | None = None) -> Tensor:
    """Cut a box from each image and resize it to (height, width) `size`: bilinear, antialiased.

    Antialiased always, as Pillow does, and torchvision by default: otherwise a crop that is made smaller keeps only a
    few of its pixels. uint8 is rounded to the nearest; on a CPU torch's integer arithmetic rounds once more in between.
    The boxes, (B, 4) int64 on the CPU, are top, left, height and width: inside the images, at least 1 x 1.
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
            part = part.contiguous()  # of floats, torch is slow across the channels of channels-last memory
        out[i] = functional.interpolate(part, size=size, mode="bilinear", antialias=True)[0]
    return out


def resized_crop_batched(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """As `resized_crop`, as two batched matrix products in float32; all tensors on one device.

    TensorFloat-32, where the user has it switched on, rounds weights to 11 bits: an error of 0.1 of 255 levels.
    """
    samples, channels, height, width = images.shape
    work = torch.float64 if images.dtype == torch.float64 else torch.float32
    top, left, part_height, part_width = boxes.to(work).unbind(1)
    rows = resize_weights(top, part_height, height, size[0])
    columns = resize_weights(left, part_width, width, size[1])
    with torch.autocast(images.device.type, enabled=False):
        values = images.to(work, memory_format=torch.contiguous_format)
        values = torch.bmm(values.view(samples, channels * height, width), columns.transpose(1, 2))
        values = rows[:, None] @ values.view(samples, channels, height, size[1])
    if images.dtype == torch.uint8:
        values = values.round_()
    return values.to(images.dtype, memory_format=memory_format_of(images))


def resized_crop_nearest(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """As `resized_crop` of masks (B, 1, H, W), without smoothing: each pixel is the one at its center."""
    top, left, height, width = on_device(boxes, masks.device).to(torch.float64)[:, :, None].unbind(1)
    y, x = (torch.arange(n, device=masks.device) + 0.5 for n in size)
    y, x = (top + y * (height / size[0])).long(), (left + x * (width / size[1])).long()
    samples = torch.arange(len(masks), device=masks.device)[:, None, None]
    return masks[:, 0][samples, y[:, :, None], x[:, None, :]][:, None]


def resize_weights(start: Tensor, extent: Tensor, length: int, size: int) -> Tensor:
    """(B, size, length): what each of `length` pixels adds to each of `size` results of resizing a part.

    The triangle filter of Pillow and of torch's antialiased `interpolate` (ATen, UpSampleKernel.cpp,
    `_compute_indices_weights_aa`): centered at ``(i + 0.5) * scale``, reaching ``max(scale, 1)`` to both sides, cut off
    at the ends of the part. The parts begin at `start` and have `extent` pixels: (B,) floating-point, whole numbers.
    """
    scale = (extent / size)[:, None, None]
    targets = torch.arange(size, device=start.device, dtype=start.dtype)[:, None]
    pixels = torch.arange(length, device=start.device, dtype=start.dtype) + 0.5 - start[:, None, None]
    weights = (1 - (pixels - (targets + 0.5) * scale).abs() / scale.clamp(min=1)).clamp_(min=0)
    weights *= (pixels > 0) & (pixels < extent[:, None, None])
    return weights / weights.sum(-1, keepdim=True)


def change_some(
    images: Tensor, chosen: Tensor, change: Callable[..., Tensor], *amounts: Tensor, in_place: bool = False
) -> Tensor:
    """Images with ``change(images, *amounts)`` where `chosen`, (B,) bool, is true, and as they are elsewhere.

    Only the chosen ones are changed: which these are is known on the CPU, so that a GPU is not waited for. On a CPU it
    is a few images at a time, which stay in the processor's cache. `torch.compile` changes all and takes the chosen,
    because its shapes are static.

    Args:
        images: (B, C, H, W).
        chosen: on the CPU, where nothing is compiled.
        change: gets n of the images, and n of each of `amounts`, on their device: new memory, of the same shape. It
            changes none of them.
        amounts: (B, ...), where `chosen` is.
        in_place: in the memory of `images`.
    """
    if torch.compiler.is_compiling():
        return torch.where(chosen[:, None, None, None], change(images, *amounts), images)
    rows = chosen.nonzero()[:, 0]
    if in_one_operation(images):
        out = images if in_place else images.clone()
        there = on_device(rows, images.device)
        if len(rows):
            out[there] = change(images[there], *(on_device(each[rows], images.device) for each in amounts))
        return out
    out = images if in_place else torch.empty_like(images) if len(rows) == len(images) else images.clone()
    axis = axis_of_width(images)
    source, target = as_array(images, axis), as_array(out, axis)
    for part in parts(out, len(rows)):  # NumPy copies images as a whole, torch goes byte by byte
        numbers = rows[part].numpy()
        one_piece = numbers[-1] - numbers[0] == len(numbers) - 1
        place = slice(numbers[0], numbers[-1] + 1) if one_piece else numbers
        changed = change(as_images(source[place], axis, images.dtype), *(each[place] for each in amounts))
        moved = bits_of(changed) if axis == 3 else bits_of(changed).transpose(0, 2, 3, 1)
        if axis == 3 or moved.flags.c_contiguous:
            target[place] = moved
        else:  # NumPy is slow across channels, and quick in each of them
            laid = target[place] if one_piece else np.empty(moved.shape, moved.dtype)
            for channel in range(laid.shape[3]):
                laid[..., channel] = moved[..., channel]
            if not one_piece:
                target[place] = laid
    return out


def mask_fill_of(masks: Tensor, fill: int | None) -> int:
    """What is added to masks: `fill`, or the value that stores ignore. uint16 comes as int16, in which 65535 is -1."""
    if masks.dtype != torch.int16:
        return 255 if fill is None else fill
    return -1 if fill is None else fill - 2**16 if fill >= 2**15 else fill


def mirror(images: Tensor, flip: Tensor, pool: BufferPool | None = None) -> Tensor:
    """Mirror those images left to right where `flip`, (B,) bool on the CPU, is true: in place if there is a `pool`."""
    if in_one_operation(images):
        return mirror_batched(images, on_device(flip, images.device))
    out = images.clone() if pool is None else images
    axis = axis_of_width(out)
    array = as_array(out, axis)
    chosen = flip.nonzero()[:, 0].numpy()
    for part in parts(array, len(chosen)):
        mirrored = torch.from_numpy(array[chosen[part]]).flip(axis)  # torch's is quick, NumPy's goes byte by byte
        array[chosen[part]] = mirrored.numpy()
    return out


def mirror_batched(images: Tensor, flip: Tensor) -> Tensor:
    """As `mirror`, of all images at once; both tensors on one device."""
    return torch.where(flip[:, None, None, None], images.flip(-1), images)


def can_shift(images: Tensor, size: tuple[int, int], padding: tuple[int, int, int, int]) -> bool:
    """Whether `shift` does what `pad` with a constant and `crop` do, and is quicker: for small images on a CPU."""
    left, top, right, bottom = padding
    ways = (1 + top + bottom) * (1 + left + right)
    nbytes = math.prod(images.shape[1:]) * images.element_size()
    dense = images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last)
    alike = dense and size == tuple(images.shape[-2:]) and len(images) > 0
    return alike and ways > 1 and ways * nbytes <= SHIFT_NBYTES and not in_one_operation(images)


def shift(
    images: Tensor, top: Tensor, left: Tensor, padding: tuple[int, int, int, int], fill: float, pool: BufferPool | None
) -> Tensor:
    """Pad by (left, top, right, bottom) with `fill` and cut the size of before at `top`, `left`: (B,) int64.

    An image whose memory is read from another byte on is moved, but for the lines and columns that come from outside of
    it: these are then overwritten, by a table of what to keep at each place of the cut.
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
    """(ways, pixels): all bits of the pixels of an image that stay in it, for each place of a cut of its size."""
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
    """Pad by (left, top, right, bottom) pixels: with `fill`, or with what `mode` makes of the image, as numpy.pad's."""
    left, top, right, bottom = padding
    if mode == "constant":
        return functional.pad(images, (left, right, top, bottom), value=fill)
    # torch pads no bytes in these modes: the pixels that are taken are found by padding their numbers.
    rows = _continued(images.shape[2], top, bottom, mode, images.device)
    columns = _continued(images.shape[3], left, right, mode, images.device)
    lines = images.permute(0, 2, 3, 1).index_select(1, rows).index_select(2, columns)
    return lines.permute(0, 3, 1, 2).contiguous(memory_format=memory_format_of(images))


def _continued(length: int, before: int, after: int, mode: PaddingMode, device: torch.device) -> Tensor:
    """(before + length + after,) int64: the places that `numpy.pad` takes."""
    places = torch.arange(-before, length + after, device=device)
    if mode == "edge" or length == 1:
        return places.clamp(0, length - 1)
    period = 2 * length - (2 if mode == "reflect" else 0)
    places = places % period
    return torch.minimum(places, period - (0 if mode == "reflect" else 1) - places)


def empty_like(
    images: Tensor, pool: BufferPool | None, *, size: tuple[int, int] | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Memory for as many images of (height, width) `size`, laid out alike, and of `pool` if there is one."""
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
    """Of images (B, C, H, W): dense, or channels-last."""
    contiguous = images.is_contiguous() or not images.is_contiguous(memory_format=torch.channels_last)
    return torch.contiguous_format if contiguous else torch.channels_last


def in_one_operation(images: Tensor) -> bool:
    """Whether all images of a batch are moved at once: on a GPU, for gradients, and where this is compiled."""
    return images.device.type != "cpu" or images.requires_grad or torch.compiler.is_compiling()


def planar(images: Tensor) -> Tensor:
    """Images (n, C, H, W) in contiguous memory. On a CPU, NumPy copies one channel after the other: torch is slower."""
    if in_one_operation(images) or images.is_contiguous():
        return images.contiguous()
    out = torch.empty(images.shape, dtype=images.dtype)
    source, target = bits_of(images), bits_of(out)
    for channel in range(images.shape[1]):
        target[:, channel] = source[:, channel]
    return out


def bits_of(images: Tensor) -> NDArray[Any]:
    """Pixels of any dtype as whole numbers of as many bytes: NumPy knows no bfloat16."""
    of_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return images.detach().view(of_size[images.element_size()]).numpy()


def axis_of_width(images: Tensor) -> int:
    """Of their memory: the last one where they are contiguous, the third where they are channels-last."""
    return 3 if images.is_contiguous() else 2


def as_array(images: Tensor, axis: int) -> NDArray[Any]:
    """The images' memory, with the width along `axis`: (B, C, H, W) or (B, H, W, C)."""
    return bits_of(images if axis == 3 else images.permute(0, 2, 3, 1))


def as_images(array: NDArray[Any], axis: int, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) images of `dtype` in the memory of an array as `as_array` makes it."""
    images = torch.from_numpy(array).view(dtype)
    return images if axis == 3 else images.permute(0, 3, 1, 2)


def parts(array: NDArray[Any] | Tensor, rows: int | None = None) -> Iterator[slice]:
    """Slices of so many rows of it that what is made of them stays in the processor's cache."""
    step = max(1, PART_NBYTES // max(1, array[:1].nbytes))
    rows = len(array) if rows is None else rows
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))
