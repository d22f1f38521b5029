"""Fields of kinds, and images of encodings, that came after this version: skipped, listed, read as arrays, kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from small_stores import VALID, tsds as command, write_store

UNKNOWN, CAPTIONS = VALID / "unknown-kinds.tsds", VALID / "captions.tsds"
POINTS = [[[0, 4.625, 9.25], [13.875, 18.5, 23.125]]]


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
    captions = tsds.open(CAPTIONS)["train"]["captions"]
    texts = [[text.tobytes().decode() for text in captions[row]["text"]] for row in range(3)]
    assert texts == [["a cat", ""], [], ["dwa koty"]]


def test_lists_of_lists_go_on_over_shards(tmp_path: Path) -> None:
    """Offsets of each shard begin at 0: those of the second level, too."""
    source = Path(write_store(tmp_path / "one.tsds", *captions_of([["a", "bcd"], []])))
    lists = tsds.open(source)["train"].table("captions")
    assert [[text.tobytes() for text in row["text"]] for row in lists[:]] == [[b"a", b"bcd"], []]
    assert len(lists.lists["text"]) == 2 and lists.nbytes == (3 + 3) * 8 + 4


def captions_of(rows: list[list[str]]) -> tuple[dict[str, object], tuple[str, int, dict[str, np.ndarray]]]:
    texts = [text.encode() for row in rows for text in row]
    arrays = {
        "captions/offsets": np.cumsum([0, *map(len, rows)]),
        "captions/text/offsets": np.cumsum([0, *map(len, texts)]),
        "captions/text/items": np.frombuffer(b"".join(texts), np.uint8),
    }
    value = {"dtype": "uint8", "shape": [], "ragged": True}
    return {"captions": {"kind": "captions", "values": {"text": value}}}, ("train", len(rows), arrays)


@pytest.mark.parametrize("path", [UNKNOWN, CAPTIONS], ids=lambda path: path.stem)
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


def test_a_damaged_list_is_found_when_it_is_used() -> None:
    with pytest.raises(tsds.FormatError, match="never fall"):
        _ = tsds.open(VALID.with_name("invalid") / "offsets--ragged.tsds")["train"].table("captions")[0]
