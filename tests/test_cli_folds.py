from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds
from small_stores import class_folders, tsds


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folds")
    tensorstore_ds.convert(class_folders(root / "src", "ant", "bee", count=12, size=(2, 2)), root / "s.tsds", workers=0)
    return root / "s.tsds"


def test_the_table_is_that_of_python(store: Path) -> None:
    (split,) = tensorstore_ds.open(store)
    done = tsds("folds", store, "-k", 3, "--split", split, "--stratify", "label", "--repeats", 2, "--seed", 4)
    assert (done.exit_code, done.stderr) == (0, "")
    made = tensorstore_ds.folds(store, 3, split=split, stratify="label", repeats=2, seed=4)
    assert done.stdout == f"{made}\n"
    data = json.loads(tsds("folds", store, "-k", 3, "--split", split, "--stratify", "label", "--json").stdout)
    assert data["repeat"][0]["classes"] == {"ant": [4, 4, 4], "bee": [4, 4, 4]}
    assert data["repeat"][0]["rows"] == [8, 8, 8] and data["repeat"][0]["largest_deviation"] == 0


@pytest.mark.parametrize("key", ["=cmd|' C calc'!A0", "+1", "-1", "@SUM(1)", "\tx"])
def test_no_key_is_a_formula_of_a_spreadsheet(tmp_path: Path, key: str) -> None:
    class_folders(tmp_path / "src", "ant", "bee", count=3, size=(2, 2))
    (tmp_path / "src/ant").rename(tmp_path / f"src/{key}")
    tensorstore_ds.convert(tmp_path / "src", tmp_path / "s.tsds", workers=0)
    done = tsds("folds", tmp_path / "s.tsds", "-k", 2, "--out", tmp_path / "f.csv")
    assert done.exit_code == 1 and not (tmp_path / "f.csv").exists()
    assert "expected texts that no spreadsheet runs as a formula, found" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stderr.endswith("Write the folds to a .json file.\n")
    assert tsds("folds", tmp_path / "s.tsds", "-k", 2, "--out", tmp_path / "f.json").exit_code == 0
    assert f"{key}/0.png" in json.loads((tmp_path / "f.json").read_text())["folds"]


def test_a_file_of_folds(store: Path, tmp_path: Path) -> None:
    done = tsds("folds", store, "-k", 4, "--groups", r"([01])\.png", "--out", tmp_path / "f.csv")
    assert done.exit_code == 0 and done.stdout.endswith(f"\n{tmp_path / 'f.csv'}: 24 keys\n")
    with (tmp_path / "f.csv").open(newline="", encoding="utf-8") as file:
        found = {row["key"]: int(row["fold"]) for row in csv.DictReader(file)}
    split = tensorstore_ds.open(store)["train"]
    assert np.array_equal([*found.values()], tensorstore_ds.folds(split, 4, groups=r"([01])\.png").numbers[0])


def test_a_rare_class_is_noted(store: Path) -> None:
    with warnings.catch_warnings(action="error"):
        done = tsds("folds", store, "-k", 20, "--stratify", "label")
    assert done.exit_code == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("note: label: expected classes with 20 samples or more, found ant (12), bee (12). ")
