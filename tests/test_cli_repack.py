from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds
from small_stores import VALID, tsds


@pytest.mark.parametrize(("source", "layout"), [("chunks.tsds", "zarr"), ("zarr-chunks.tsds", "memmap")])
def test_there(source: str, layout: str, tmp_path: Path) -> None:
    done = tsds("repack", VALID / source, tmp_path / "out.tsds", "--layout", layout)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{tmp_path / 'out.tsds'}  {layout}, ")
    opened = tensorstore_ds.open(tmp_path / "out.tsds")
    assert opened.layout == layout
    before = tensorstore_ds.open(VALID / source)["train"]["image"]
    np.testing.assert_array_equal(np.asarray(opened["train"]["image"]), np.asarray(before))


def test_json(tmp_path: Path) -> None:
    done = tsds("repack", VALID / "chunks.tsds", tmp_path / "out.tsds", "--layout", "zarr", "--json")
    assert json.loads(done.stdout)["path"] == str(tmp_path / "out.tsds")


def test_the_layout_must_be_said(tmp_path: Path) -> None:
    assert tsds("repack", VALID / "chunks.tsds", tmp_path / "out.tsds").exit_code == 2


def test_out_exists(tmp_path: Path) -> None:
    done = tsds("repack", VALID / "chunks.tsds", tmp_path, "--layout", "zarr")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"tsds: {tmp_path}: ")


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def repack(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorstore_ds.repack", repack)
    done = tsds("repack", VALID / "chunks.tsds", tmp_path / "out.tsds", "--layout", "zarr")
    assert (done.exit_code, done.stderr) == (130, f"tsds: interrupted; {tmp_path / 'out.tsds'} was not made\n")
