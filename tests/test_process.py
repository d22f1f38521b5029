"""The ranks of a run, and the memory of their GPUs."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from tensorstore_ds.annex.training.process import Ranks, ranks

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


def test_a_group_of_the_script_gets_no_more_groups() -> None:
    """Each has connections and threads of its own, and a script may train many times."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with ranks("cpu") as found:
            host = found._host_group
            assert dist.get_rank(host) == 0
        with pytest.raises((KeyError, ValueError)):
            dist.get_process_group_ranks(host)
        assert found._host_group is None  # kept until Python ends, it would be destroyed while its threads run
        assert sys.getrefcount(host) == 2, "something else holds it"
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
