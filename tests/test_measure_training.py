"""What a diagnosis measures of training: models, and copies."""

from __future__ import annotations

import time

import pytest
import torch

from stores import numbered
from tensorstore_ds.annex.measuring.measure_training import (
    Student,
    fitting_batch,
    model_alone,
)
from tensorstore_ds.loading.dataset import StoreDataset

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
ROWS = 22


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return numbered(tmp_path_factory.mktemp("d") / "s.tsds", ROWS).path


# --- models -----------------------------------------------------------------------------------------------------


def test_the_batch_that_fits_into_the_time(path):
    sizes = []

    def step(batch):
        sizes.append(len(batch["label"]))
        time.sleep(0.004 * sizes[-1])

    student = Student("naps", step)
    assert fitting_batch(student, StoreDataset(path), 20, CPU, seconds=10) == (20, "")
    assert set(sizes) == {1, 4, 16, 20}
    size, why = fitting_batch(student, StoreDataset(path), 20, CPU, seconds=0.03)
    assert 1 <= size <= 7 and why.startswith(f"a step of {size} takes ")


def test_the_time_to_start_up_is_not_that_of_a_step(path):
    waits = iter([0.3])
    student = Student("late", lambda batch: time.sleep(next(waits, 0)))
    assert fitting_batch(student, StoreDataset(path), 20, CPU, seconds=0.1) == (20, "")


def test_the_batch_that_fits_into_the_memory(path):
    """Libraries say in their own words that memory is full; other errors end the measurement."""
    forgotten = []

    def fitting(error):
        def step(batch):
            if len(batch["label"]) > 4:
                raise error

        student = Student("glutton", step, forget=lambda: forgotten.append(True))
        return fitting_batch(student, StoreDataset(path), 20, CPU, seconds=10)

    assert fitting(torch.OutOfMemoryError()) == (4, "a step of 16 does not fit into the memory of cpu")
    assert fitting(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))[0] == 4
    assert forgotten == [True, True]
    with pytest.raises(RuntimeError, match="a defect"):
        fitting(RuntimeError("a defect"))


@pytest.mark.gpu
def test_a_step_that_does_not_fit_leaves_no_memory_taken(path):
    gradients = []

    def step(batch):
        gradients.append(torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda"))
        if len(batch["label"]) > 4:
            torch.empty(2**50, dtype=torch.uint8, device="cuda")
        gradients.clear()

    device = torch.device("cuda", 0)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)  # such as cuBLAS's, by tests before this one
    student = Student("glutton", step, forget=gradients.clear)
    assert fitting_batch(student, StoreDataset(path), 20, device, seconds=60)[0] == 4
    assert torch.cuda.memory_reserved(device) - before < 64 * 2**20


def test_the_model_alone(path):
    seen = []
    student = Student("one", seen.append, transform=lambda batch, rows, epoch: (batch, rows.tolist(), epoch))
    found = model_alone(student, StoreDataset(path), 6, CPU, seconds=0.02)
    assert (found.name, found.batch_size) == ("one", 6)
    assert found.seconds == pytest.approx(6 / found.rate)
    assert all(batch is seen[0][0] and rows == list(range(6)) for batch, rows, _ in seen)
    assert [epoch for *_, epoch in seen[:3]] == [0, 1, 2]
