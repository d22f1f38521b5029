"""Fields of kinds, and images of encodings, that came after this version: skipped, listed, read as arrays, kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from small_stores import VALID, Shard, Store, tsds as command, write_plain

UNKNOWN = VALID / "unknown-kinds.tsds"


def test_the_loader_has_what_it_knows() -> None:
    dataset = tsds.StoreDataset(UNKNOWN)
    assert dataset.fields == ("label",)
    (batch,) = tsds.DataLoader(dataset, 2)
    assert batch["label"].tolist() == [1, 0]


def test_an_array_can_be_asked_for_and_lists_cannot() -> None:
    (batch,) = tsds.DataLoader(tsds.StoreDataset(UNKNOWN, fields=["pose"]), 2)
    assert batch["pose"].shape == (2, 4, 4) and batch["pose"].dtype == torch.float64
    with pytest.raises(
        tsds.OptionError, match=r"polygons: object, points, area · not known to this version, kind poly"
    ):
        tsds.StoreDataset(UNKNOWN, fields=["label", "polygons"])


def test_lists_of_lists_are_read() -> None:
    polygons = tsds.open(UNKNOWN)["train"].table("polygons")
    first = polygons[0]
    assert list(first) == ["object", "points"] and first["object"].tolist() == [0, 0]
    assert [points.shape for points in first["points"]] == [(3, 2), (0, 2)]
    assert [points.shape for points in polygons[1]["points"]] == [(2, 2)]
    assert [area.tolist() for area in polygons.per_row["area"][:]] == [2.5, 1]


def test_lists_of_lists_go_on_over_shards(tmp_path: Path) -> None:
    """Offsets of each shard begin at 0: those of the second level, too."""
    rows: list[list[list[str]]] = [[["a", "bcd"], []], [[]], [["ef"]]]
    value = {"dtype": "uint8", "shape": [], "ragged": True}
    fields = {"captions": {"kind": "captions", "values": {"text": value}}}
    store = Store(fields, {"train": [Shard(len(part), captions_of(part)) for part in rows]})
    captions = tsds.open(write_plain(tmp_path / "s.tsds", store))["train"].table("captions")
    texts = [[text.tobytes() for text in row["text"]] for row in captions[:]]
    assert texts == [[b"a", b"bcd"], [], [], [b"ef"]]
    assert len(captions.lists["text"]) == 3 and captions.lists["text"].take([2, 0]).values["items"].tobytes() == b"efa"
    assert tsds.verify(tmp_path / "s.tsds") == []


def captions_of(rows: list[list[str]]) -> dict[str, np.ndarray[Any, Any]]:
    texts = [text.encode() for row in rows for text in row]
    return {
        "captions/offsets": np.cumsum([0, *map(len, rows)]),
        "captions/text/offsets": np.cumsum([0, *map(len, texts)]),
        "captions/text/items": np.frombuffer(b"".join(texts), np.uint8),
    }


@pytest.mark.parametrize("path", [UNKNOWN], ids=lambda path: path.stem)
def test_the_commands_show_and_keep_them(path: Path, tmp_path: Path) -> None:
    shown = command("info", path)
    assert shown.exit_code == 0 and "not known to this version" in shown.stdout
    for name in ("stats", "verify", "warm"):
        assert command(name, path).exit_code == 0
    layout = "memmap" if tsds.open(path).layout == "zarr" else "zarr"
    there = tsds.repack(path, tmp_path / "there.tsds", layout=layout).path
    assert tsds.verify(there) == []
    back = tsds.repack(there, tmp_path / "back.tsds", layout=tsds.open(path).layout).path
    assert tsds.open(back).manifest.fields == tsds.open(path).manifest.fields
    for data in path.glob("train/00000/*/**/c/**/0"):
        if data.is_file() and tsds.open(path).layout == "memmap":
            assert (back / data.relative_to(path)).read_bytes() == data.read_bytes()


def test_a_value_may_be_called_items(tmp_path: Path) -> None:
    """As a part of a ragged value is."""
    arrays = {"bag/offsets": np.array([0, 2]), "bag/items": np.array([7, 8])}
    fields = {"bag": {"kind": "bag", "values": {"items": {"dtype": "int64", "shape": []}}}}
    path = write_plain(tmp_path / "s.tsds", Store(fields, {"train": [Shard(1, arrays)]}))
    assert tsds.open(path)["train"].table("bag")[0]["items"].tolist() == [7, 8]
    assert tsds.verify(path) == []


def test_a_field_has_the_layout_that_is_its_own(tmp_path: Path) -> None:
    labels, sizes = np.array([1, 0, 1]), np.array([[3, 4]] * 3, np.int32)
    fields = {
        "label": {"kind": "label", "dtype": "int64", "shape": [], "classes": ["a", "b"], "layout": "zarr"},
        "size": {"kind": "size", "dtype": "int32", "shape": [2], "layout": "zarr"},
    }
    store = Store(fields, {"train": [Shard(3, {"label": labels, "size": sizes})]})
    path = write_plain(tmp_path / "s.tsds", store)
    split = tsds.open(path)["train"]
    assert split["label"][:].tolist() == [1, 0, 1] and split["size"][:].tolist() == sizes.tolist()
    assert tsds.verify(path) == []
    assert tsds.open(path).manifest.fields["label"].dump()["layout"] == "zarr"


def test_a_damaged_list_is_found_when_it_is_used() -> None:
    with pytest.raises(tsds.FormatError, match="never fall"):
        _ = tsds.open(VALID.with_name("invalid") / "offsets--ragged.tsds")["train"].table("captions")[0]


def test_images_are_compared_with_images_of_an_unknown_encoding() -> None:
    for pair in ((VALID / "encoded-jpeg.tsds", UNKNOWN), (UNKNOWN, VALID / "encoded-jpeg.tsds")):
        assert tsds.editing.compare_stores(*pair, by="row").splits["train"].fields["image"].count
