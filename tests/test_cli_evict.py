from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds
from cold_stores import linux, make_cold, make_store
from small_stores import tsds
from tensorstore_ds.page_cache.residency import data_files
from tensorstore_ds.page_cache.warming import warm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def _store(disk: Path) -> tensorstore_ds.Store:
    return make_store(disk / "evict.tsds")


@pytest.fixture
def store(_store: tensorstore_ds.Store) -> tensorstore_ds.Store:
    warm(make_cold(_store))
    return _store


@linux
def test_shares_before_and_after(store: tensorstore_ds.Store) -> None:
    done = tsds("evict", store.path)
    assert done.exit_code == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"  train/image +11\.8 MB +100 % +0 %", lines[1])
    assert lines[-1] == "dropped 16.5 MB"
    assert tsds("evict", store.path).stdout.endswith("dropped 0 B\n")


@linux
def test_what_stays_is_said(store: tensorstore_ds.Store) -> None:
    path, _ = data_files(store, "val", "label")[0]
    mapped = np.memmap(store.path / path, np.uint8, "r")
    assert mapped.sum() >= 0  # now a page of it is used
    shown = tsds("evict", store.path).stdout
    assert re.search(r"^  val/label +216 B +100 % +100 %  █{10}$", shown, re.MULTILINE)
    assert shown.endswith("216 B stay: a process has them mapped or locked; end it and evict again\n")


@linux
def test_a_split_as_json(store: tensorstore_ds.Store) -> None:
    found = json.loads(tsds("evict", store.path, "--split", "val", "--json").stdout)
    assert list(found["before"]) == list(found["after"]) == ["val/image", "val/label"]
    assert found["dropped"] == sum(column["nbytes"] for column in found["before"].values())
    assert found["left"] == 0
