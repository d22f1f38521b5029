"""Random images and objects, as batches, for tests of batch transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import settings, strategies as st
from torch import Tensor

from tensorstore_ds.loading.augment.base import BatchTransform
from tensorstore_ds.loading.collate import PackedObjects, pack_objects

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32)
sizes = st.tuples(st.integers(1, 24), st.integers(1, 24))
formats = st.sampled_from([torch.contiguous_format, torch.channels_last])
dtypes = st.sampled_from([torch.uint8, torch.float32])


def images(
    seed: int,
    size: tuple[int, int],
    dtype: torch.dtype = torch.uint8,
    memory: torch.memory_format = torch.channels_last,
    *,
    count: int = 4,
    channels: int = 3,
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, channels, *size), generator=generator, dtype=torch.uint8)
    found = pixels if dtype == torch.uint8 else (pixels / 255).to(dtype)
    return found.contiguous(memory_format=memory)


def objects(seed: int, size: tuple[int, int], lengths: tuple[int, ...] = (3, 0, 1, 5)) -> PackedObjects:
    """Boxes inside of images of `size`, keypoints of which some are absent, and numbers to tell objects apart."""
    rng = np.random.default_rng(seed)
    samples = []
    for n in lengths:
        corners = np.sort(rng.random((n, 2, 2)) * (size[1], size[0]), axis=1)
        points = rng.random((n, 3, 2)) * 30 - 3
        points[rng.random((n, 3)) < 0.3] = np.nan
        values = {
            "boxes": torch.tensor(corners.reshape(n, 4), dtype=torch.float32),
            "labels": torch.tensor(rng.integers(0, 2**40, n)),
            "keypoints": torch.tensor(points, dtype=torch.float32),
        }
        samples.append(values)
    return pack_objects(samples)


def params_of(transform: BatchTransform, batch: dict[str, Any], epoch: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows for a batch, and the parameters that `transform` will draw for them."""
    rows = torch.arange(len(batch["image"])) + 7
    return rows, transform.make_params(transform.keys(rows, epoch), batch["image"].shape[-2:])


def same_format(found: Tensor, given: Tensor) -> bool:
    """Whether both are contiguous, or both channels-last; true where one channel or pixel makes it the same."""
    if found.shape[1] == 1 or found.shape[2:] == (1, 1) or given.shape[2:] == (1, 1):
        return True
    memory = torch.contiguous_format if given.is_contiguous() else torch.channels_last
    return found.is_contiguous(memory_format=memory)
