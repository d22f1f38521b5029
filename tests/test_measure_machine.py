"""What a diagnosis measures of the machine: cores, memory and storage."""

from __future__ import annotations

import os

import numpy as np
import pytest

import tensorstore_ds as tsds
from cold_stores import linux
from stores import store_of
from tensorstore_ds.annex.measuring import measure_machine as module
from tensorstore_ds.annex.measuring.measure_machine import measure_cores, measure_storage
from tensorstore_ds.page_cache.residency import residency, total_residency


def test_the_least_quota_is_the_limit(monkeypatch):
    monkeypatch.setattr(module, "core_limits", lambda: {"affinity": 4, "/outer/inner": 0.5, "/outer": 1.5})
    found = measure_cores(None, seconds=0.01)
    assert (found.allowed, found.limited_by) == (0.5, "/outer/inner")
    assert (found.measured, found.threads) == (1.0, 1)


def test_the_cores_of_this_process():
    found = measure_cores(None, seconds=0.05)
    assert 0 < found.allowed <= found.machine == os.cpu_count()
    assert found.measured > 0
    assert measure_cores(1, seconds=0.01).allowed == 1


# --- storage and memory -----------------------------------------------------------------------------------------


@linux
def test_storage_is_read_past_the_page_cache(cold):
    found = measure_storage(cold, [("train", "image"), ("val", "image")], seconds=5)
    if found.rate is None:
        pytest.skip(found.reason)
    assert found.nbytes == sum(r.nbytes for name, r in residency(cold).items() if name.endswith("/image"))
    assert found.rate > 0
    assert total_residency(residency(cold)).resident == 0  # nothing was brought in
    shares = []
    while len(shares) < 3 and 1 not in shares:  # a kernel may take single pages back at any time
        tsds.warm(cold)
        assert measure_storage(cold, [("train", "image")], seconds=5).nbytes > 10 * 2**20
        shares.append(total_residency(residency(cold)).share)
    assert 1 in shares  # nothing is dropped


@linux
def test_what_is_read_of_the_storage_is_bounded(cold, monkeypatch):
    monkeypatch.setattr(module, "MOST_NBYTES", 2**20)
    monkeypatch.setattr(module, "STEP_NBYTES", 2**18)
    found = measure_storage(cold, [("train", "image"), ("val", "image")], seconds=60)
    if found.rate is None:
        pytest.skip(found.reason)
    assert found.nbytes == 2**20
    assert measure_storage(cold, [("train", "image")], seconds=1e-9).nbytes == 2**18


def test_storage_that_cannot_be_measured_is_said(tmp_path, cold, monkeypatch):
    samples = [{"image": np.zeros((8, 6, 3), np.uint8), "label": i % 2} for i in range(22)]
    few = store_of(tmp_path / "few.tsds", samples, ["ant", "bee"])
    small = measure_storage(tsds.open(few.path), [("train", "image")], seconds=1)
    assert (small.rate, small.reason) == (None, "the store is too small to tell how fast its storage is")
    monkeypatch.setattr("sys.platform", "plan9")
    elsewhere = measure_storage(cold, [("train", "image")], seconds=1)
    assert (elsewhere.rate, elsewhere.reason) == (None, "reading past the page cache is not available on plan9")
