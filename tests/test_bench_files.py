"""The source of a store, read as torchvision reads it: the same samples as the store's, whatever the format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

import tensorstore_ds as tsds
from small_stores import image_field, voc, write_store
from stores import class_folders
from tensorstore_ds.annex.measuring.delivery import Marks, agree, marks_of, marks_of_split
from tensorstore_ds.annex.measuring.feeds import collate_files
from tensorstore_ds.annex.measuring.files import RawData, image_transform, open_files
from tensorstore_ds.annex.measuring.system import drop_files


def convert(source: Path, out: Path, **options: Any) -> tsds.Store:
    tsds.convert(source, out, tsds.ConvertOptions(workers=0, **options))
    return tsds.open(out)


def opened(store: tsds.Store, raw: Path, fields: Mapping[str, str], scratch: Path) -> RawData:
    return open_files(store, store["train"], fields, raw, scratch)


def marks(raw: RawData, fields: Mapping[str, str], *, pixels: bool = True) -> Marks:
    """Of all samples, by a DataLoader."""
    found = []
    for images, *rest in DataLoader(raw.dataset, 3, collate_fn=collate_files if "objects" in fields else None):
        batch = {"image": images.permute(0, 2, 3, 1).numpy()}
        batch.update({"label": rest[0].numpy()} if "label" in fields else {})
        batch.update({n: rest[-1][n].numpy() for n in ("offsets", "labels")} if "objects" in fields else {})
        found.append(marks_of(batch, pixels=pixels))
    return np.concatenate(found)


def as_stored(store: tsds.Store, raw: RawData, fields: Mapping[str, str]) -> bool:
    return agree(marks(raw, fields), marks_of_split(store["train"], fields, pixels=True), whole=True)


LABELLED = {"image": "image", "label": "label"}
WITH_OBJECTS = {"image": "image", "objects": "objects"}


@pytest.mark.parametrize("given", ["", "train"])
def test_class_folders_are_read_by_image_folder(tmp_path: Path, given: str) -> None:
    source = class_folders(tmp_path / "source")
    store = convert(source, tmp_path / "s.tsds")
    raw = opened(store, source / given, LABELLED, tmp_path)
    assert raw.reader == "ImageFolder" and raw.folder == source / "train" and as_stored(store, raw, LABELLED)


def test_classes_keep_their_numbers_in_whatever_order_they_are(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "source")
    (tmp_path / "classes.txt").write_text("bee\nant\n")
    store = convert(source, tmp_path / "s.tsds", classes=("bee", "ant"))
    assert store["train"].fields["label"].classes == ("bee", "ant")
    assert as_stored(store, opened(store, source, LABELLED, tmp_path), LABELLED)


def test_colors_and_sizes_are_those_of_the_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for i in range(2):
            pixels = rng.integers(0, 256, (20 + i, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "source" / name / f"{i}.png")
    for fit in ("crop", "pad"):
        store = convert(tmp_path / "source", tmp_path / f"{fit}.tsds", fit=tsds.Fit((8, 10), fit), color="gray")
        raw = opened(store, tmp_path / "source", LABELLED, tmp_path)
        assert [tuple(raw.dataset[i][0].shape) for i in range(4)] == [(1, 8, 10)] * 4


@pytest.mark.parametrize("recorded", [None, 5, ["size"]])
def test_options_of_another_form_are_passed_over(tmp_path: Path, recorded: Any) -> None:
    pixels = np.zeros((2, 8, 10, 3), np.uint8)
    fields = {"image": image_field(pixels)}
    write_store(tmp_path / "s.tsds", fields, ("train", 2, {"image": pixels}), provenance={"options": recorded})
    store = tsds.open(tmp_path / "s.tsds")
    made = image_transform(store, store["train"], "image")
    assert tuple(made(Image.fromarray(pixels[0])).shape) == (3, 8, 10)


def voc_jpeg(path: Path) -> Path:
    """A Pascal VOC folder as `VOCDetection` wants it; one box has no area."""
    voc(path, "a", "b", "c", boxes=[("cat", 1, 2, 8, 9), ("dog", 2, 2, 5, 6), ("dog", 3, 3, 3, 6)])
    for name in "abc":
        Image.open(path / "JPEGImages" / f"{name}.png").save(path / "JPEGImages" / f"{name}.jpg")
        (path / "JPEGImages" / f"{name}.png").unlink()
        xml = path / "Annotations" / f"{name}.xml"
        xml.write_text(xml.read_text().replace(".png", ".jpg"))
    (path / "ImageSets" / "Main").mkdir(parents=True)
    (path / "ImageSets" / "Main" / "train.txt").write_text("a\nc\n")
    (path / "ImageSets" / "Main" / "val.txt").write_text("b\n")
    return path


def test_pascal_voc_is_read_by_voc_detection(tmp_path: Path) -> None:
    source = voc_jpeg(tmp_path / "VOC2012")
    store = convert(source, tmp_path / "s.tsds", on_error="skip")
    raw = opened(store, source, WITH_OBJECTS, tmp_path)
    assert raw.reader == "VOCDetection" and len(raw.dataset) == 2 and as_stored(store, raw, WITH_OBJECTS)
    assert raw.dataset[0][1]["boxes"].tolist() == [[1, 2, 8, 9], [2, 2, 5, 6]]


def test_what_no_reader_of_torchvision_reads_is_listed(tmp_path: Path) -> None:
    store = convert(voc(tmp_path / "voc", "a", "b"), tmp_path / "v.tsds")
    raw = opened(store, tmp_path / "voc", WITH_OBJECTS, tmp_path)
    assert raw.reader == "image files" and as_stored(store, raw, WITH_OBJECTS)
    source = tmp_path / "plain"
    source.mkdir()
    for i in range(4):
        Image.new("RGB", (6, 5), (i, 0, 0)).save(source / f"{i}.png")
    store = convert(source, tmp_path / "s.tsds")
    raw = opened(store, source, {"image": "image"}, tmp_path)
    assert raw.reader == "image files" and as_stored(store, raw, {"image": "image"})


def test_a_folder_that_is_not_the_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "train.npz", image=np.zeros((3, 5, 5, 1), np.uint8), label=np.array([0, 1, 1]))
    arrays = convert(tmp_path / "train.npz", tmp_path / "a.tsds")
    with pytest.raises(tsds.OptionError, match="arrays"):
        opened(arrays, tmp_path, LABELLED, tmp_path)
    store = convert(class_folders(tmp_path / "source"), tmp_path / "s.tsds")
    (tmp_path / "other").mkdir()
    with pytest.raises(tsds.OptionError, match=r"other: expected the source of s.tsds, found no train/ant/0.png in it"):
        opened(store, tmp_path / "other", LABELLED, tmp_path)
    Image.new("L", (5, 6)).save(tmp_path / "secret.png")
    split = store["train"]
    for key in ("../secret.png", "/secret.png"):
        monkeypatch.setitem(split._columns, "key", [key] * len(split))
        with pytest.raises(tsds.OptionError, match="expected the path of a file inside the source"):
            open_files(store, split, LABELLED, tmp_path / "source", tmp_path)


def test_files_are_dropped_and_still_there(disk_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = class_folders(disk_path / "source")
    before = {path: path.read_bytes() for path in source.rglob("*.png")}
    assert drop_files(source) == 0  # although they were written just now
    assert {path: path.read_bytes() for path in source.rglob("*.png")} == before
    monkeypatch.setattr("tensorstore_ds.annex.measuring.system.PATIENCE", -1.0)
    with pytest.raises(tsds.errors.ResidencyError, match="takes more than"):
        drop_files(source)


def test_a_first_sample_without_a_label_is_not_of_the_last_class(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "source") / "train"
    rows = [f"{name}/{i}.png,{'' if name == 'bee' and i < 2 else name}" for name in ("bee", "ant") for i in range(3)]
    (source / "train.csv").write_text("\n".join(["path,label", *rows]))
    store = convert(source / "train.csv", tmp_path / "s.tsds")
    assert store["train"]["label"][:3].tolist() == [-1, -1, 1]
    raw = opened(store, source, LABELLED, tmp_path)
    assert raw.reader == "image files" and as_stored(store, raw, LABELLED)
