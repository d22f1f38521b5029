"""Move, mirror and normalize images of one size while they are gathered, in one call of a compiled kernel."""

from __future__ import annotations

import functools
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tensorstore_ds import native
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.augment.geometry import Geometry
from tensorstore_ds.loading.augment.normalize import Normalize
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.decoding import Plan, steps_of
from tensorstore_ds.reading.store import Split

#: Dtypes of normalized images: the kernel supports tables of 2 and 4 bytes.
_NORMALIZED = (torch.float32, torch.float16, torch.bfloat16)


def is_move(step: object) -> TypeGuard[Geometry]:
    """Whether a step of a plan moves whole pixels, with a constant fill value."""
    return isinstance(step, Geometry) and step._moves_only and getattr(step, "fill", 0) in range(256)


def only_moves(*plans: Plan | None) -> bool:
    """Whether plans only move whole pixels, with one fill value."""
    steps = [step for plan in plans if plan is not None for step in steps_of(plan)]
    return all(map(is_move, steps)) and len({step.fill for step in steps if hasattr(step, "fill")}) < 2


def can_normalize(step: object) -> TypeGuard[Normalize]:
    """Whether a step is a `Normalize` to a dtype that the kernel can write."""
    return isinstance(step, Normalize) and step.dtype in _NORMALIZED


def can_move(split: Split) -> bool:
    """Whether the images are 8-bit pixels of one size. Without compiled kernels this is false."""
    field = split.fields.get("image")
    return native.core is not None and field is not None and bool(field.one_shape) and field.dtype == "uint8"


@functools.lru_cache(maxsize=32)
def _levels(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype
) -> tuple[NDArray[np.integer[Any]], NDArray[np.float32]]:
    """Return the result for each level of each channel, (C, 256), as bits, and the factors that give most of them."""
    normalize = Normalize(mean, std, dtype=dtype)
    bits = torch.int32 if dtype.itemsize == 4 else torch.int16
    return normalize.levels().view(bits).numpy(), normalize.factors().numpy()


def move(
    split: Split, rows: NDArray[np.int64], placements: Placements, pool: BufferPool, normalize: Normalize | None = None
) -> Tensor | None:
    """Gather images of some rows as `placements` of plans that `only_moves`, and normalize them.

    Returns (B, C, H, W) in channels-last memory of `pool`, or None if the kernel cannot do this. Raises ValueError if
    `normalize` is for floating-point images.
    """
    if not can_move(split) or not len(rows):
        return None
    column = split.column("image")
    canvas, dtype = tuple(placements.size[0].tolist()), torch.uint8
    levels: tuple[Any, Any] = None, None
    if normalize is not None:
        levels = _levels(normalize.mean, normalize.std, normalize.dtype)
        dtype = normalize.dtype
        if len(levels[0]) != column.spec.shape[2]:
            return None
    tensor, array = pool.empty(len(rows), ArraySpec(f"int{8 * dtype.itemsize}", (*canvas, column.spec.shape[2])))
    rows = np.ascontiguousarray(rows)
    where = [np.ascontiguousarray(each.T) for each in (placements.offset, placements.first, placements.last)]

    fill = int(placements.fill or 0)

    def call(table: object) -> int:
        moved: int = native.core.small(
            table, column.spec.shape, rows, *where, placements.flip, fill, *levels, canvas, dtype.itemsize, array
        )
        return moved

    return tensor.view(dtype).permute(0, 3, 1, 2) if column._by_kernel(rows, call) else None
