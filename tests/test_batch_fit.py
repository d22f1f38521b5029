"""Which batch size fits, where allocations really fail."""

from __future__ import annotations

import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.annex.training import batch_fit
from tensorstore_ds.annex.training.augmentation import train_transform
from tensorstore_ds.annex.training.batch_fit import (
    fitting_batch_size,
    is_out_of_memory,
    memory_advice,
    residency_beside_model,
)
from tensorstore_ds.annex.training.learner import Learner
from tensorstore_ds.annex.training.options import TrainOptions, ViTOptions
from tensorstore_ds.annex.training.process import Ranks
from tensorstore_ds.annex.training.tasks import Classification
from tensorstore_ds.errors import TrainingError

CPU = torch.device("cpu")
TASK = Classification(("ant", "bee"), label_field="label")
OPTIONS = TrainOptions(precision="fp32", augment="none")
SIDE = 32
VIT = ViTOptions((SIDE, SIDE), channels=1, patch_size=4, width=32, depth=1, heads=1, mlp_width=32)
MORE_THAN_ANYBODY_HAS = 2**50

#: In a process of its own: little more memory than it has already.
LIMITED = """
import resource, sys
import torch
from test_batch_fit import found_for
torch.set_num_threads(1)
assert found_for(sys.argv[1], too_large=4) == 2  # so that all is loaded
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 1024**2,) * 2)
print(found_for(sys.argv[1], too_large=2**20))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (SIDE, SIDE, 1), np.uint8), "label": row % 2} for row in range(5)]
    return store_of(tmp_path_factory.mktemp("fit") / "s.tsds", samples, TASK.classes).path


def found_for(path: str | Path, *, too_large: int, hook: Any = None) -> int:
    dataset = tsds.StoreDataset(path, fields=TASK.fields)

    def learner() -> Learner:
        made = Learner(VIT, TASK, OPTIONS, device=CPU, steps=2)
        if hook is not None:
            made.module.register_forward_hook(hook)
        return made

    return fitting_batch_size(learner, dataset, train_transform(dataset.split, OPTIONS, VIT), CPU, too_large=too_large)


def limit(rows: int, *, from_step: int = 0) -> tuple[Any, list[int]]:
    """A forward hook that asks for more memory than there is, for more than so many rows."""
    seen: list[int] = []

    def hook(module: Any, inputs: Any, outputs: torch.Tensor) -> None:
        seen.append(len(outputs))
        if len(outputs) > rows and seen.count(len(outputs)) > from_step:
            torch.empty(MORE_THAN_ANYBODY_HAS, dtype=torch.uint8)

    return hook, seen


@pytest.mark.parametrize("from_step", [0, 1])  # where the optimizer's memory is needed, too
def test_the_first_half_that_fits(path: Path, from_step: int) -> None:
    hook, seen = limit(6, from_step=from_step)
    assert found_for(path, too_large=50, hook=hook) == 6
    assert seen == [size for size in (25, 12) for _ in range(1 + from_step)] + [6, 6]


def test_none_fits(path: Path) -> None:
    hook, seen = limit(0)
    assert found_for(path, too_large=9, hook=hook) == 0
    assert seen == [4, 2, 1]
    assert found_for(path, too_large=1) == 0


def test_another_error_is_not_taken_for_a_full_memory(path: Path) -> None:
    def hook(*given: Any) -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        found_for(path, too_large=8, hook=hook)


def test_what_says_that_memory_is_full() -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(MORE_THAN_ANYBODY_HAS, dtype=torch.uint8)
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(MORE_THAN_ANYBODY_HAS, np.uint8)
    with pytest.raises(RuntimeError) as other:
        torch.zeros(2) @ torch.zeros(3)
    assert is_out_of_memory(of_torch.value) and is_out_of_memory(of_numpy.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(TrainingError("a checkpoint cannot be read (can't allocate memory)"))
    assert not is_out_of_memory(other.value) and not is_out_of_memory(KeyError("out of memory"))


@pytest.mark.parametrize(("free", "expected"), [(3, "page-cache"), (2**20, "auto"), (1, "auto")])
def test_a_split_is_kept_on_a_gpu_where_the_model_has_room_beside_it(
    path: Path, free: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice of `auto` is the loader's, unless the split takes less than half of what is free without the model."""
    dataset = tsds.StoreDataset(path, fields=TASK.fields)
    monkeypatch.setattr(batch_fit, "free_nbytes", lambda device: free * dataset.nbytes)
    transform = train_transform(dataset.split, OPTIONS, VIT)

    def chosen(**changes: Any) -> str:
        options, gpu = replace(OPTIONS, batch_size=4, **changes), Ranks(0, 1, torch.device("cuda", 0))
        return residency_beside_model(tsds.open(path), TASK, VIT, options, gpu, transform, None)

    assert chosen(residency="auto") == expected
    assert chosen(residency="device") == "device"


@pytest.mark.parametrize(
    ("alone", "beside", "expected"),
    [
        (8, 0, '`residency="page-cache"` fits; `grad_checkpointing` needs less.'),
        (4, 2, "`batch_size=2` with `accumulate=4` fits; `grad_checkpointing` needs less."),
        (
            4,
            0,
            '`batch_size=4` with `accumulate=2` and `residency="page-cache"` fits; `grad_checkpointing` needs less.',
        ),
        (0, 0, "Use a smaller `image_size` or `model`; `grad_checkpointing` needs less."),
    ],
)
def test_advice_knows_that_the_split_was_on_the_device(
    path: Path, alone: int, beside: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[Any] = []

    class Resident(batch_fit.DeviceSplit):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            weakref.finalize(self, there.clear)
            there.append(True)

    def fits(*given: Any, too_large: int) -> int:
        most, size = beside if there else alone, too_large // 2
        while size > most:
            size //= 2
        return size

    monkeypatch.setattr(batch_fit, "DeviceSplit", Resident)
    monkeypatch.setattr(batch_fit, "fitting_batch_size", fits)
    options = TrainOptions(model="seed", patch_size=8, batch_size=8, augment="none")
    text = memory_advice(tsds.open(path), options, Ranks(0, 1, CPU), resident=True)
    assert text == f"cpu: expected memory for batches of 8, found too little. {expected}"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
def test_where_the_system_gives_no_more(path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, path]
    # Addresses are limited, and malloc would reserve 128 MiB of them for each thread.
    environment = {"PYTHONPATH": str(Path(__file__).parent), "PATH": "", "MALLOC_ARENA_MAX": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert 2 <= int(run.stdout) <= 2**14  # images of 1 KiB, and some 20 KiB of what a step keeps of each
