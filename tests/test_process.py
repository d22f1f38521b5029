"""The ranks of a run, and the memory of their GPUs."""

from __future__ import annotations

import pytest
import torch

from tensorstore_ds.training.process import Ranks

NBYTES = 256 * 2**20


def test_a_cpu_has_no_memory_of_a_gpu() -> None:
    ranks = Ranks(0, 1, torch.device("cpu"))
    ranks.forget_peak()
    assert ranks.device_memory() is None


@pytest.mark.gpu
def test_the_memory_of_a_gpu_is_the_most_since_it_was_forgotten() -> None:
    ranks = Ranks(0, 1, torch.device("cuda", 0))
    held = torch.empty(NBYTES, dtype=torch.uint8, device=ranks.device)
    del held
    assert ranks.device_memory() >= NBYTES  # torch keeps it
    torch.cuda.empty_cache()
    assert ranks.device_memory() >= NBYTES
    ranks.forget_peak()
    assert ranks.device_memory() < NBYTES
