"""Ranks on the GPUs of one machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented

from tensorstore_ds.annex.training.process import ranks

CODE = """
import torch.distributed
from tensorstore_ds.errors import OptionError
from tensorstore_ds.annex.training.process import ranks
if {has_group}:
    torch.distributed.init_process_group("nccl")
try:
    with ranks({device!r}) as group:
        print(group.device)
except OptionError as error:
    print(error)
"""


def started(gpus: int, device: str | None, *, has_group: bool = False) -> list[str]:
    """What two ranks print that torchrun would have started; with `has_group`, their script has a process group."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun has it
    shared = {
        **os.environ,
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        **{"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "FAKE_CUDA_DEVICES": str(gpus)},
        "TORCH_DIST_USE_NCCL2": "0",  # which connects GPUs at once, as the fake ones cannot be
    }
    command = [sys.executable, "-c", CODE.format(device=device, has_group=has_group)]
    processes = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = []
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        found.append(output.strip())
    return found


@pytest.mark.parametrize(("gpus", "device", "has_group"), [(1, None, False), (2, "cuda:1", False), (1, None, True)])
def test_ranks_that_would_share_a_gpu_are_refused(gpus: int, device: str | None, has_group: bool) -> None:
    expected = (
        "`device`: expected a GPU for each of 2 ranks, found 1. Start 1 with torchrun, leave out `device` if it names "
        'one GPU, or use `device="cpu"`.'
    )
    assert started(gpus, device, has_group=has_group) == [expected] * 2


def test_the_current_gpu_is_the_one_before_when_a_run_has_ended() -> None:
    with ranks("cuda:1"):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


def test_a_gpu_for_each_rank() -> None:
    assert started(2, None) == started(2, None, has_group=True) == ["cuda:0", "cuda:1"]
