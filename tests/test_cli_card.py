from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from small_stores import tsds
from stores import store_of


@pytest.fixture
def store(tmp_path: Path) -> Path:
    samples = [{"image": np.full((4, 4, 3), i, np.uint8), "label": i % 2} for i in range(4)]
    return store_of(tmp_path / "pets.tsds", samples, ("cat", "dog")).path


def test_it_says_what_it_wrote_and_what_is_missing(store: Path) -> None:
    shown = tsds("card", store)
    out = store.with_name("pets-card")
    assert shown.exit_code == 0
    assert f"{out}  README.md, pictures/samples.jpg\n" in shown.output
    assert "missing: description, creators, " in shown.output
    assert f"next: fill in {out / 'card.yaml'}, and run this again" in shown.output
    strict = tsds("card", store, "--strict")
    assert strict.exit_code == 1 and "missing description, creators, contact" in strict.output


def test_json_and_another_folder(store: Path, tmp_path: Path) -> None:
    found = json.loads(tsds("card", store, tmp_path / "a" / "b", "--croissant", "--json").output)
    assert found["path"] == str(tmp_path / "a" / "b")
    assert {"README.md", "croissant.json", "preview/train.parquet"} <= set(found["files"])
    assert all((tmp_path / "a" / "b" / name).is_file() for name in found["files"])
    assert "license" in found["missing"]


def test_answers_of_another_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "answers.yaml").write_text('title: Pets\ncreators: ["Doe, Jane"]\n')
    shown = tsds("card", store, tmp_path / "out", "--from", tmp_path / "answers.yaml")
    assert "CITATION.cff" in shown.output
    assert not (tmp_path / "out" / "card.yaml").exists()
    (tmp_path / "answers.yaml").write_text("titel: Pets\n")
    shown = tsds("card", store, tmp_path / "out", "--from", tmp_path / "answers.yaml")
    assert shown.exit_code == 1 and "Did you mean title?" in shown.output
