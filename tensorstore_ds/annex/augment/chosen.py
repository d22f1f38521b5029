"""Change some images of a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tensorstore_ds.loading.augment.pixels import as_array, as_images, axis_of_width, bits_of, in_one_operation, parts
from tensorstore_ds.loading.buffers import on_device


def change_some(
    images: Tensor, chosen: Tensor, change: Callable[..., Tensor], *amounts: Tensor, in_place: bool = False
) -> Tensor:
    """Apply ``change(images, *amounts)`` where `chosen`, (B,) bool on the CPU, is true.

    `images` are (B, C, H, W), each of `amounts` is (B, ...). `change` gets n of both on their device, and returns new
    memory of the same shape without changing its arguments. `in_place` writes to the memory of `images`.

    Only chosen images are computed. The CPU knows which these are, so that nothing waits for a GPU. On a CPU, a few
    images at a time stay in the cache. `torch.compile` needs static shapes, so it changes all images and selects
    afterwards.
    """
    if torch.compiler.is_compiling():
        return torch.where(chosen[:, None, None, None], change(images, *amounts), images)
    rows = chosen.nonzero()[:, 0]
    if in_one_operation(images):
        out = images if in_place else images.clone()
        if len(rows):
            there = on_device(rows, images.device)
            out[there] = change(images[there], *(on_device(each[rows], images.device) for each in amounts))
        return out
    out = images if in_place else torch.empty_like(images) if len(rows) == len(images) else images.clone()
    axis = axis_of_width(images)
    source, target = as_array(images, axis), as_array(out, axis)
    for part in parts(out, len(rows)):  # NumPy copies whole images, torch copies single bytes
        numbers = rows[part].numpy()
        one_piece = numbers[-1] - numbers[0] == len(numbers) - 1
        place = slice(numbers[0], numbers[-1] + 1) if one_piece else numbers
        changed = change(as_images(source[place], axis, images.dtype), *(each[place] for each in amounts))
        moved = bits_of(changed) if axis == 3 else bits_of(changed).transpose(0, 2, 3, 1)
        if axis == 3 or moved.flags.c_contiguous:
            target[place] = moved
        else:  # NumPy is slow across channels, and fast within a channel
            laid = target[place] if one_piece else np.empty(moved.shape, moved.dtype)
            for channel in range(laid.shape[3]):
                laid[..., channel] = moved[..., channel]
            if not one_piece:
                target[place] = laid
    return out
