"""What is said where a GPU is full, by the error that torch raises there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from stores import store_of

GPU = torch.device("cuda", 0)


def test_a_full_gpu_is_one_line_with_what_needs_less(tmp_path: Path) -> None:
    samples = [{"image": np.full((64, 64, 3), row % 251, np.uint8), "label": row % 2} for row in range(1000)]
    store = store_of(tmp_path / "s.tsds", samples, ["a", "b"]).path  # a split of 12 MB
    torch.cuda.set_per_process_memory_fraction(0.001, GPU)  # 4 MiB
    try:
        with pytest.raises(tsds.errors.TrainingError) as error:
            tsds.train(store, out=tmp_path / "run", model="seed", device="cuda", batch_size=32, residency="device")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
    assert isinstance(error.value.__cause__, torch.OutOfMemoryError)
    assert str(error.value) == (
        "cuda:0: expected memory for batches of 32, found too little. Try, in this order: "
        '`residency="page-cache"`, `batch_size=16` with `accumulate=2`, `grad_checkpointing=True`, '
        "a smaller `image_size` or `model`."
    )
