from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds_library
from small_stores import class_folders, tsds
from stores import store_of


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return store_of(tmp_path / "s.tsds", [{"image": np.zeros((4, 4, 1), np.uint8)}] * 2).path


def test_it_says_that_the_digest_has_changed(store: Path) -> None:
    before = tsds_library.open(store).sha256
    shown = tsds("annotate", store, "--license", "cc-by-4.0", "--citation", "We, 2026", "--description", "Black.")
    assert shown.exit_code == 0
    now = tsds_library.open(store).sha256
    assert re.search(rf"digest has changed\n  before  {before}\n  now     {now}\n", shown.output)
    known = tsds("info", store).output
    assert re.search(r"about +Black\.\n +license +CC-BY-4\.0\n +cite +We, 2026\n", known)
    again = tsds("annotate", store, "--license", "CC-BY-4.0")
    assert "nothing changed" in again.output


def test_json(store: Path) -> None:
    before = tsds_library.open(store).sha256
    found = json.loads(tsds("annotate", store, "--license", "MIT", "--json").output)
    assert found == {"path": str(store), "before": before, "sha256": tsds_library.open(store).sha256}


def test_texts_come_from_files(store: Path, tmp_path: Path) -> None:
    bib = tmp_path / "paper.bib"
    bib.write_text("@misc{us,\n title={Ü}}\n", "utf-8")
    assert tsds("annotate", store, "--citation", f"@{bib}", "--description", f"@{bib}").exit_code == 0
    assert tsds_library.open(store).manifest.citation == "@misc{us,\n title={Ü}}"


def test_of_convert_too(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("We, 2026\n")
    source = class_folders(tmp_path / "photos", "a")
    given = ("--license", "mit", "--citation", f"@{tmp_path / 'c.txt'}", "--workers", 0)
    assert tsds("convert", source, tmp_path / "s.tsds", *given).exit_code == 0
    manifest = tsds_library.open(tmp_path / "s.tsds").manifest
    assert (manifest.license, manifest.citation) == ("MIT", "We, 2026")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "Give --license, --citation or --description."),
        (
            ("--license", "CC-BY"),
            "--license: expected an SPDX expression, such as CC-BY-4.0, found CC-BY. Did you mean",
        ),
        (("--citation", "@nothing.bib"), "expected a text or @FILE, found @nothing.bib: No such file"),
        (("--citation", "@"), "expected a text or @FILE"),
    ],
)
def test_what_is_wrong_is_one_line(store: Path, given: tuple[str, ...], message: str) -> None:
    shown = tsds("annotate", store, *given)
    assert shown.exit_code in (1, 2)
    assert message in shown.output
    assert "Traceback" not in shown.output


def test_a_large_file_is_no_citation(store: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (2**20 + 1))
    (tmp_path / "other").write_bytes(b"\xff")
    assert "at most 1 MiB" in tsds("annotate", store, "--citation", f"@{tmp_path / 'large'}").output
    assert "in UTF-8" in tsds("annotate", store, "--citation", f"@{tmp_path / 'other'}").output
