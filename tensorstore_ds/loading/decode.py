"""Stored image files become tensors again; Pillow decodes without holding the GIL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tensorstore_ds.reading.stored_images import decode_stored


def decode_images(files: Sequence[bytes], keys: Sequence[str]) -> torch.Tensor | list[torch.Tensor]:
    """Decode image files, orientation applied.

    Args:
        files: their bytes.
        keys: names for errors.

    Returns:
        (B, C, H, W) in channels-last memory where all images are of one shape, else a list of (C, H, W).

    Raises:
        SourceError: an image is damaged, named by its key.
    """
    arrays = [decode_stored(file, key=key) for file, key in zip(files, keys, strict=True)]
    if arrays and len({(array.shape, array.dtype) for array in arrays}) == 1:
        return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    return [torch.from_numpy(array.copy()).permute(2, 0, 1) for array in arrays]
