from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tensorstore_ds
from cold_stores import linux, make_cold, make_store
from small_stores import tsds

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def _store(disk: Path) -> tensorstore_ds.Store:
    return make_store(disk / "warm.tsds")


@pytest.fixture
def store(_store: tensorstore_ds.Store) -> tensorstore_ds.Store:
    return make_cold(_store)


@linux
def test_shares_before_and_after(store: tensorstore_ds.Store) -> None:
    done = tsds("warm", store.path)
    assert done.exit_code == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["size", "before", "after"]
    assert re.fullmatch(r"  train/image +11\.8 MB +0 % +100 %  █{10}", lines[1])
    assert [line.split()[0] for line in lines[1:-1]] == ["train/image", "train/label", "val/image", "val/label"]
    assert re.fullmatch(r"read 16\.5 MB in .+, .+/s", lines[-1])
    again = tsds("warm", store.path).stdout.splitlines()
    assert re.fullmatch(r"  train/image +11\.8 MB +100 % +100 %  █{10}", again[1])
    assert again[-1] == "read 0 B: all was there"


@linux
def test_a_split_and_a_budget(store: tensorstore_ds.Store) -> None:
    shown = tsds("warm", store.path, "--split", "val", "--budget", "2MB").stdout
    assert "train" not in shown
    assert re.search(r"^  val/image +4\.7 MB +0 % +42 %", shown, re.MULTILINE)
    assert re.search(r"^  val/label +216 B +0 % +100 %", shown, re.MULTILINE)
    assert shown.endswith("warmed the first 2.0 MB of 4.7 MB: that is the budget\n")


@linux
def test_memory_is_the_limit_otherwise(store: tensorstore_ds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorstore_ds.page_cache.memory_limit", lambda: 2_000_000)
    shown = tsds("warm", store.path).stdout
    assert shown.endswith("warmed the first 2.0 MB of 16.5 MB: that is what this process may use\n")


@linux
def test_json(store: tensorstore_ds.Store) -> None:
    found = json.loads(tsds("warm", store.path, "--split", "train", "--split", "val", "--threads", 1, "--json").stdout)
    assert found["path"] == str(store.path)
    assert found["read"] == sum(column["nbytes"] for column in found["after"].values())
    assert {column["resident"] for column in found["before"].values()} == {0}
    assert list(found["after"]) == ["train/image", "train/label", "val/image", "val/label"]
    assert found["seconds"] >= 0 and found["budget"] > found["read"]
