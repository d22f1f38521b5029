from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds
from small_stores import VALID, tsds
from stores import store_of


@pytest.mark.parametrize(("source", "layout"), [("chunks.tsds", "zarr"), ("zarr-chunks.tsds", "memmap")])
def test_there(source: str, layout: str, tmp_path: Path) -> None:
    done = tsds("repack", VALID / source, tmp_path / "out.tsds", "--layout", layout)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{tmp_path / 'out.tsds'}  {layout}, ")
    opened = tensorstore_ds.open(tmp_path / "out.tsds")
    assert opened.layout == layout
    before = tensorstore_ds.open(VALID / source)["train"]["image"]
    np.testing.assert_array_equal(np.asarray(opened["train"]["image"]), np.asarray(before))


def test_another_encoding(tmp_path: Path) -> None:
    files, out = VALID / "encoded-jpeg.tsds", tmp_path / "out.tsds"
    done = tsds("repack", files, out, "--encoding", "jpeg", "--quality", 50, "--workers", 0)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{out}  jpeg, ")
    assert "note: JPEG files are decoded and encoded again" in done.stderr
    done = tsds("repack", out, tmp_path / "raw.tsds", "--encoding", "raw", "--size", "4", "--workers", 0, "--json")
    assert json.loads(done.stdout)["path"] == str(tmp_path / "raw.tsds")
    split = next(iter(tensorstore_ds.open(tmp_path / "raw.tsds")._splits.values()))
    assert split["image"].shape[1:3] == (4, 4)


def test_boxes_that_are_cut_off_are_counted(tmp_path: Path) -> None:
    sample = {"image": np.zeros((4, 20, 3), np.uint8), "boxes": [[0, 0, 2, 2], [9, 0, 11, 4]], "labels": [0, 0]}
    store = store_of(tmp_path / "s.tsds", [sample], ["a"])
    arguments = ("--encoding", "raw", "--size", 4, "--fit", "crop", "--workers", 0)
    done = tsds("repack", store.path, tmp_path / "out.tsds", *arguments)
    assert "skipped: box-cropped 1" in done.stdout
