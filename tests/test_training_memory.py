"""What is said where memory is full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from tensorstore_ds.annex.training.memory import is_out_of_memory, memory_advice
from tensorstore_ds.errors import TrainingError

MORE_THAN_ANYBODY_HAS = 2**50
SMALLER = "a smaller `image_size` or `model`."


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


@pytest.mark.parametrize(
    ("options", "facts", "expected"),
    [
        (
            {"batch_size": 9, "accumulate": 3, "precision": "fp32"},
            {"resident": True},
            '`residency="page-cache"`, `batch_size=4` with `accumulate=6`, `grad_checkpointing=True`, '
            f'`precision="bf16"`, {SMALLER}',
        ),
        ({"batch_size": 2}, {"is_detector": True}, f"`batch_size=1` with `accumulate=2`, {SMALLER}"),
        ({"batch_size": 1, "grad_checkpointing": True, "precision": "bf16"}, {}, SMALLER),
    ],
)
def test_advice_names_what_the_run_does_not_do_yet(
    options: dict[str, Any], facts: dict[str, bool], expected: str
) -> None:
    facts = {"resident": False, "is_detector": False, **facts}
    text = memory_advice(torch.device("cpu"), tsds.training.TrainOptions(**options), **facts)
    batches = f"batches of {options['batch_size']}"
    assert text == f"cpu: expected memory for {batches}, found too little. Try, in this order: {expected}"


def test_advice_before_the_size_of_batches_is_known() -> None:
    text = memory_advice(torch.device("cuda", 0), tsds.training.TrainOptions(), resident=False, is_detector=False)
    assert text.startswith("cuda:0: expected memory for the model, found too little. Try")
