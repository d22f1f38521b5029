"""What does not fit on a GPU: advice is tried with the memory that there really is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.annex.training.batch_fit import let_go, memory_advice
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.process import Ranks

GPU = torch.device("cuda", 0)
OPTIONS = TrainOptions(model="seed", patch_size=16, batch_size=32, augment="none", residency="device")
ROWS = 1000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split of 12 MB, which torch keeps apart from smaller tensors."""
    samples = [{"image": np.full((64, 64, 3), row % 251, np.uint8), "label": row % 2} for row in range(ROWS)]
    return store_of(tmp_path_factory.mktemp("memory") / "s.tsds", samples, ["a", "b"]).path


@pytest.fixture
def taken(store: Path) -> Iterator[int]:
    """Bytes that steps of the whole batch take, without the split."""
    let_go(GPU)
    torch.cuda.reset_peak_memory_stats(GPU)
    assert "page-cache" in memory_advice(tsds.open(store), OPTIONS, Ranks(0, 1, GPU), resident=True)
    yield torch.cuda.max_memory_reserved(GPU)
    torch.cuda.set_per_process_memory_fraction(1.0, GPU)


def test_where_only_the_split_is_too_large_it_stays_in_the_page_cache(store: Path, taken: int) -> None:
    split = tsds.StoreDataset(store, fields=["image", "label"]).nbytes
    let_go(GPU)
    total = torch.cuda.mem_get_info(GPU)[1]
    torch.cuda.set_per_process_memory_fraction((taken + split / 2) / total, GPU)
    text = memory_advice(tsds.open(store), OPTIONS, Ranks(0, 1, GPU), resident=True)
    expected = 'cuda:0: expected memory for batches of 32, found too little. `residency="page-cache"` fits'
    assert text == f"{expected}; `grad_checkpointing` needs less."
    torch.cuda.set_per_process_memory_fraction(0.001, GPU)  # 4 MiB
    text = memory_advice(tsds.open(store), OPTIONS, Ranks(0, 1, GPU), resident=True)
    assert text.endswith("Use a smaller `image_size` or `model`; `grad_checkpointing` needs less.")
