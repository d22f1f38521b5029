"""Texts: any number of them a sample, from what they are read, and wherever a sample goes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import stored, tar
from small_stores import INVALID, VALID, tsds as command
from stores import store_of
from tensorstore_ds.annex.exporting import EXPORT_FORMATS as FORMATS
from tensorstore_ds.format.kinds import text

PIXELS = np.arange(8 * 10 * 3, dtype=np.uint8).reshape(8, 10, 3)
CAPTIONS = [["a cat", "ein Kater"], [], ["猫 on a mat\nand\0so on"], [""], ["one", "", "one"]]
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=3)


def samples(captions: list[list[str]]) -> list[dict[str, Any]]:
    return [{"image": np.roll(PIXELS, i), "captions": texts} for i, texts in enumerate(captions)]


def captions_of(store: tsds.Store, split: str = "train", field: str = "captions") -> list[list[str]]:
    return list(store[split][field][:])


# --- the kind -------------------------------------------------------------------------------------------------------


def test_texts_of_a_store_of_another_writer() -> None:
    store = tsds.open(VALID / "captions.tsds")
    assert captions_of(store) == [["a cat", ""], [], ["dwa kóty"]]
    assert "texts" in command("info", store.path).output
    broken = tsds.open(INVALID / "text--utf-8.tsds")
    assert captions_of(broken)[2] == ["dwa k\\xf3\\xf3ty"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=6), max_size=4), min_size=1, max_size=6), st.integers(1, 9))
@example([[b"\xc2"], [b"\x80"]], 2)
@example([[b"\xc2"], [b"\x80"], [b"\xff"]], 9)
@example([[b"a"], [b"\x80"]], 2)
def test_what_a_check_finds(rows: list[list[bytes]], at_once: int) -> None:
    """As an oracle that decodes text by text, however many bytes are looked at together."""
    expected = next((i for i, each in enumerate(rows) if any(_is_wrong(one) for one in each)), None)
    flat = [one for each in rows for one in each]

    class Items:
        offsets = np.cumsum([0, *map(len, flat)])

        def __getitem__(self, name: str) -> Any:
            return np.frombuffer(b"".join(flat), np.uint8)

    table = SimpleNamespace(offsets=np.cumsum([0, *map(len, rows)]), lists={"text": Items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_NBYTES", at_once)
        found = list(text.TextField().check(table, lambda rows: np.empty((0, 2))))  # type: ignore[arg-type]
    if expected is None:
        assert found == []
    else:
        assert found == [("text", f"expected texts in UTF-8, found other bytes in row {expected}.")]


def _is_wrong(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


# --- from what they are read ----------------------------------------------------------------------------------------


def test_python_objects(tmp_path: Path) -> None:
    given = [
        {"image": PIXELS, "caption": "a cat", "texts": np.array(["x", "y"]), "url": "https://a"},
        {"image": PIXELS, "caption": None, "texts": ["z"]},
        {"image": PIXELS},
    ]
    store = store_of(tmp_path / "s.tsds", given)
    assert captions_of(store, field="caption") == [["a cat"], [], []]
    assert captions_of(store, field="texts") == [["x", "y"], ["z"], []]
    assert "url" not in store["train"].fields


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"image": PIXELS, "caption": 3}, "expected the fields of the first sample"),
        ({"image": PIXELS, "text": "b"}, "The first sample had no text"),
        ({"image": PIXELS, "caption": "\ud800"}, "found a surrogate alone"),
    ],
)
def test_texts_that_are_none(tmp_path: Path, second: dict[str, Any], message: str) -> None:
    with pytest.raises(tsds.SourceError, match=message):
        store_of(tmp_path / "s.tsds", [{"image": PIXELS, "caption": "a"}, second])


def coco(root: Path, *, captions: list[dict[str, Any]], images: list[dict[str, Any]] | None = None) -> Path:
    (root / "val2017").mkdir(parents=True)
    (root / "annotations").mkdir()
    own = [{"id": i, "file_name": f"{name}.png"} for i, name in ((9, "b"), (4, "a"))]
    for name in "ab":
        Image.fromarray(PIXELS).save(root / "val2017" / f"{name}.png")
    box = {"id": 1, "image_id": 4, "category_id": 3, "bbox": [1, 2, 3, 4]}
    instances = {"images": own, "annotations": [box], "categories": [{"id": 3, "name": "cat"}]}
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(instances))
    quoted = {"images": own if images is None else images, "annotations": captions}
    (root / "annotations" / "captions_val2017.json").write_text(json.dumps(quoted))
    return root


GOOD = [
    {"id": 1, "image_id": 4, "caption": "A cat.\n"},
    {"id": 2, "image_id": 9, "caption": "Nothing \u2013 at all"},
    {"id": 3, "image_id": 4, "caption": "Eine \\ Katze"},
]


def test_coco_with_boxes_and_captions(tmp_path: Path) -> None:
    store = stored(coco(tmp_path / "src", captions=GOOD))
    assert captions_of(store, "val") == [["Nothing – at all"], ["A cat.\n", "Eine \\ Katze"]]
    assert store["val"]["objects"][1]["boxes"].tolist() == [[1, 2, 4, 6]]
    assert not (store.path / "skipped.jsonl").exists()


def test_coco_with_other_ids_in_the_file_of_captions(tmp_path: Path) -> None:
    images = [{"id": "x", "file_name": "a.png"}]
    store = stored(coco(tmp_path / "src", captions=[{"image_id": "x", "caption": "A"}], images=images))
    assert captions_of(store, "val") == [[], ["A"]]


@pytest.mark.parametrize(
    ("caption", "reason"),
    [
        ({"image_id": 4, "caption": 3}, "annotation"),
        ({"image_id": 4, "caption": "\ud800"}, "annotation"),
        ({"image_id": 77, "caption": "a"}, "no-image"),
    ],
)
def test_captions_that_are_none(tmp_path: Path, caption: dict[str, Any], reason: str) -> None:
    root = coco(tmp_path / "src", captions=[*GOOD, caption])
    with pytest.raises(tsds.SourceError, match=r"captions_val2017\.json") as caught:
        stored(root)
    assert caught.value.reason == reason and "\n" not in str(caught.value)


def test_webdataset_as_downloaders_of_captions_write_it(tmp_path: Path) -> None:
    """The caption is in .txt, and in .json once more."""
    store = store_of(tmp_path / "s.tsds", samples([["a"], ["b"]]))
    tsds.export(store.path, tmp_path / "w", "webdataset")
    archive = next((tmp_path / "w").glob("*.tar"))
    with tarfile.open(archive) as file:
        members = {each.name: file.extractfile(each).read() for each in file}  # type: ignore[union-attr]
    assert sorted(name.rpartition(".")[2] for name in members) == ["png", "png", "txt", "txt"]
    about = {
        name[:-4] + ".json": json.dumps({"caption": data.decode(), "status": "ok"}).encode()
        for name, data in members.items()
        if name.endswith(".txt")
    }
    archive.write_bytes(tar(*sorted((members | about).items())))
    assert captions_of(stored(tmp_path / "w")) == [["a"], ["b"]]


# --- there and back -------------------------------------------------------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.parametrize("to", ["coco", "webdataset", "parquet", "huggingface"])
@settings(max_examples=10, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4).filter(any))
def test_there_and_back(to: str, tmp_path_factory: pytest.TempPathFactory, captions: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    store = store_of(folder / "s.tsds", samples(captions))
    summary = tsds.export(store.path, folder / to, to)
    assert not summary.left_out
    options = tsds.ConvertOptions(workers=0, format=to if to == "webdataset" else "auto")
    tsds.convert(folder / to, folder / "again.tsds", options)
    assert captions_of(tsds.open(folder / "again.tsds")) == captions


def test_formats_without_a_place_for_texts_say_so(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "label": 0, "captions": ["a"]}], ("cat",))
    of_objects = {"voc", "yolo", "dota", "cvat", "labelme"}
    for to in sorted(FORMATS.keys() - {"coco", "webdataset", "parquet", "huggingface"} - of_objects):
        assert tsds.export(store.path, tmp_path / to, to).left_out == {"captions": 1}


# --- in a store, and out of a loader --------------------------------------------------------------------------------


def test_edits_keep_texts(tmp_path: Path) -> None:
    one = store_of(tmp_path / "a.tsds", samples(CAPTIONS))
    other = store_of(tmp_path / "b.tsds", samples([["x"], []]))
    tsds.editing.merge_stores([one.path, other.path], tmp_path / "m.tsds")
    tsds.editing.filter_store(tmp_path / "m.tsds", tmp_path / "f.tsds", "key != 'a/train/00002'")
    merged, chosen = tsds.open(tmp_path / "m.tsds"), tsds.open(tmp_path / "f.tsds")
    assert captions_of(merged) == [*CAPTIONS, ["x"], []]
    assert captions_of(chosen) == [each for i, each in enumerate(captions_of(merged)) if i != 2]
    tsds.repack(one.path, tmp_path / "r.tsds", layout="zarr")
    assert captions_of(tsds.open(tmp_path / "r.tsds")) == CAPTIONS
    assert tsds.verify(tmp_path / "f.tsds") == tsds.verify(tmp_path / "r.tsds") == []
    changed = store_of(tmp_path / "c.tsds", samples([*CAPTIONS[:3], ["", ""], CAPTIONS[4]]))
    found = tsds.editing.compare_stores(one.path, changed.path)
    assert {name: each.count for name, each in found.splits["train"].fields.items()} == {"captions": 1}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_have_lists_of_texts(tmp_path: Path, workers: int) -> None:
    store = store_of(tmp_path / "s.tsds", samples(CAPTIONS))
    loader = tsds.DataLoader(tsds.StoreDataset(store.path), 2, num_workers=workers)
    assert [batch["captions"] for batch in loader] == [CAPTIONS[:2], CAPTIONS[2:4], CAPTIONS[4:]]
    dataset = tsds.StoreDataset(store.path, return_as="tuple")
    image, captions = dataset[4]
    assert image.shape == (3, 8, 10) and captions == CAPTIONS[4]
    images, captions = next(iter(tsds.DataLoader(dataset, 5, shuffle=False, collate="padded")))
    assert images.shape == (5, 3, 8, 10) and captions == CAPTIONS


def test_sources_without_texts_beside_others(tmp_path: Path) -> None:
    with_texts = coco(tmp_path / "one", captions=GOOD)
    without = coco(tmp_path / "two", captions=[])
    tsds.convert(tsds.Sources(with_texts, without), tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    assert sorted(map(len, captions_of(tsds.open(tmp_path / "s.tsds"), "val"))) == [0, 0, 1, 2]


def test_a_card_and_a_picture_show_texts(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    store = store_of(tmp_path / "s.tsds", samples(CAPTIONS))
    folder = tsds.card(store.path, croissant=True).path
    assert parquet.read_table(folder / "preview" / "train.parquet")["captions"].to_pylist() == CAPTIONS
    assert "image-to-text" in (folder / "README.md").read_text()
    assert command("preview", store.path, "--out", tmp_path / "sheet.png").exit_code == 0
