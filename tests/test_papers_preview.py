"""The small table that viewers show."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import write_store
from stores import detections, store_of
from tensorstore_ds.annex.publishing.preview_table import SAMPLES, preview_table


def read(split: tsds.Split, *limit: int) -> tuple[pa.Table, dict[str, Any]]:
    table = pq.read_table(io.BytesIO(preview_table(split, *limit)))
    return table, json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]


def picture(value: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(value["bytes"]))


def test_boxes_have_the_scale_of_their_image(tmp_path: Path) -> None:
    image = np.zeros((300, 512, 3), np.uint8)
    samples = [{"image": image, "boxes": [[100.0, 50, 300, 250]], "labels": [1]}]
    table, features = read(store_of(tmp_path / "s.tsds", samples, ("a", "b"))["train"])
    row = table.to_pylist()[0]
    assert row["objects"] == {"bbox": [[50.0, 25.0, 100.0, 100.0]], "category": [1]}
    assert picture(row["image"]).size == picture(row["drawn"]).size == (256, 150)
    plain, drawn = (np.asarray(picture(row[name]).convert("RGB")) for name in ("image", "drawn"))
    assert plain.max() < 10
    assert drawn[75, 48:54].max() > 100 and drawn[75, 100].max() < 30  # the edge of the box, and its middle
    assert features["objects"]["category"]["feature"] == {"names": ["a", "b"], "_type": "ClassLabel"}
    assert features["image"] == {"_type": "Image"}


def test_labels_are_class_labels_and_may_be_missing(tmp_path: Path) -> None:
    samples = [{"image": np.full((4, 4, 1), i, np.uint8), "label": label} for i, label in enumerate([1, -1, 0])]
    table, features = read(store_of(tmp_path / "s.tsds", samples, ("a", "b"))["train"])
    assert table.column("label").to_pylist() == [1, None, 0]
    assert features["label"] == {"names": ["a", "b"], "_type": "ClassLabel"}
    assert "drawn" not in table.column_names
    assert [np.asarray(picture(v))[0, 0].max() for v in table.column("image").to_pylist()] == [0, 1, 2]


def test_rows_are_drawn_alike_and_in_order(tmp_path: Path) -> None:
    images = np.arange(SAMPLES * 2, dtype=np.uint16).view(np.uint8).reshape(-1, 1, 2, 1).repeat(2, axis=1)
    store = write_store(
        tmp_path / "s.tsds",
        {"image": {"kind": "image", "encoding": "raw", "dtype": "uint8", "shape": [2, 2, 1]}},
        ("train", len(images), {"image": images}),
    )
    split = tsds.open(store)["train"]
    table, _ = read(split)
    rows = [int(value["path"].split(".")[0]) for value in table.column("image").to_pylist()]
    assert len(set(rows)) == SAMPLES and rows == sorted(rows)
    assert preview_table(split) == preview_table(split)
    assert max(rows) > SAMPLES  # from all of the split
    for value, row in zip(table.column("image").to_pylist(), rows, strict=True):
        assert np.array_equal(np.asarray(picture(value))[:, :, 0], images[row, :, :, 0])


def test_a_budget_takes_fewer_samples_but_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (32, 32, 3), np.uint8)} for _ in range(20)]
    split = store_of(tmp_path / "s.tsds", samples)["train"]
    assert len(read(split)[0]) == 20
    assert 2 <= len(read(split, 10_000)[0]) <= 3
    assert len(read(split, 1)[0]) == 1


def test_objects_of_any_values(tmp_path: Path) -> None:
    samples = [{k: each[k] for k in ("image", "keypoints")} for each in detections()]
    table, _ = read(store_of(tmp_path / "s.tsds", samples)["train"])
    assert "objects" not in table.column_names and "drawn" in table.column_names


def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "s.tsds", [{"image": np.zeros((4, 4, 1), np.uint8)}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(tsds.OptionError, match=r"pip install '\.\[hub\]' in a clone of tensorstore-ds"):
        tsds.card(store.path, croissant=True)
    assert "README.md" in tsds.card(store.path).files
