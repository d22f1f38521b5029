from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from small_stores import tsds
from tensorstore_ds.annex.measuring import BenchOptions
from tensorstore_ds.annex.measuring.bench_results import Cell, Comparison, Way
from tensorstore_ds.errors import OptionError


def comparison(**changes: Any) -> Comparison:
    facts: dict[str, Any] = {"store": "/data/s.tsds", "split": "train", "samples": 1000, "shape": None, "device": "cpu"}
    facts |= {"machine": {"cpu": "AMD"}, "batch_sizes": (100,), "seconds": 1.0, "took": 3.0, "interrupted": False}
    ways = [Way("files-0", "files, 0 workers", "files", 0, False), Way("store", "ours", "store", 0, True)]
    cells = [Cell("files-0", "load", 100, 4.0, (4.0, 4.0), 250.0, 1.0, 5 * 10**8)]
    cells += [Cell("store", "load", 100, reason="it broke")]
    return Comparison(**{**facts, "baseline": None, "ways": ways, "cells": cells, **changes})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command asks the library for; answered with what is put first."""
    seen: list[Any] = [comparison()]

    def bench(store: Path, options: BenchOptions, *, progress: object) -> Comparison:
        seen.append(options)
        found: Comparison = seen[0]
        return found

    monkeypatch.setattr("tensorstore_ds.bench", bench)
    return seen


def test_what_is_shown(asked: list[Any], tmp_path: Path) -> None:
    shown = tsds("bench", "s.tsds", "--out", tmp_path).stdout
    assert re.search(r"^  files, 0 workers +4.0 s +250 +1.0 +500 MB$", shown, re.MULTILINE)
    assert re.search(r"^  ours +- +- +- +-$", shown, re.MULTILINE)
    assert "loading, batch 100, ours: not measured, it broke" in shown
    wrong = Way("store", "ours", "store", 0, True, delivered="990 samples, the store has 1,000", correct=False)
    asked[0] = comparison(ways=[wrong], cells=[], notes=["training was not measured: it was left out"])
    shown = tsds("bench", "s.tsds", "--out", tmp_path).stdout
    assert re.search(r"^  ours +990 samples, the store has 1,000$", shown, re.MULTILINE)
    assert "training was not measured: it was left out" in shown
    found = Cell("store", "load", 100, 4.0, (4.0, 4.0), 250.0, 1.0, 5 * 10**8, 10**9)
    asked[0] = comparison(device="NVIDIA H200", cells=[found])
    shown = tsds("bench", "s.tsds", "--out", tmp_path).stdout
    assert re.search(r"memory +GPU memory$", shown, re.MULTILINE)
    assert re.search(r"^  ours +4.0 s +250 +1.0 +500 MB +1.0 GB$", shown, re.MULTILINE)


def test_a_comparison_without_a_number_fails(asked: list[Any], tmp_path: Path) -> None:
    asked[0] = comparison(cells=[Cell(name, "load", 100, reason="it broke") for name in ("files-0", "store")])
    done = tsds("bench", "s.tsds", "--out", tmp_path)
    assert (done.exit_code, done.stderr) == (1, "tsds: nothing was measured; bench.json has the reasons\n")
    assert json.loads((tmp_path / "bench.json").read_text()) == asked[0].as_data()


def test_json_and_ctrl_c(asked: list[Any], tmp_path: Path) -> None:
    done = tsds("bench", "s.tsds", "--out", tmp_path, "--json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "bench.json").read_text()) == asked[0].as_data()
    asked[0] = comparison(interrupted=True)
    done = tsds("bench", "s.tsds", "--out", tmp_path)
    assert done.exit_code == 130
    assert "interrupted; what was measured until then is written" in done.stderr
    assert json.loads((tmp_path / "bench.json").read_text())["interrupted"] is True


@pytest.mark.parametrize("is_there", [False, True])
def test_a_failure_leaves_no_new_folder(is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(*_: object, **__: object) -> Comparison:
        raise OptionError("the device is not available")

    monkeypatch.setattr("tensorstore_ds.bench", bench)
    folder = tmp_path / "made"
    if is_there:
        folder.mkdir()
    assert tsds("bench", "s.tsds", "--out", folder).exit_code == 1
    assert folder.exists() == is_there


def test_the_folder_is_named_after_the_store(asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tsds("bench", "/data/s.tsds").exit_code == 0
    assert (tmp_path / "s.tsds.bench" / "bench.json").exists()
