"""What was erased stays away: from the source, under another name, and from other stores."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import class_folders, instructions, tsds as command, voc
from tensorstore_ds.annex.editing.tombstones import Tombstones
from tensorstore_ds.errors import OptionError

GONE = "cat/1.png"


def keys(path: Path) -> set[str]:
    store = tsds.open(path)
    return {store[name].key(row) for name in store for row in range(len(store[name]))}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "photos", "cat", "dog")


@pytest.fixture(params=["raw", "jpeg", "source"])
def store(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Path:
    tsds.convert(source, tmp_path / "s.tsds", workers=0, encoding=request.param)
    return tmp_path / "s.tsds"


def erased(path: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((path / "zarr.json").read_bytes())["attributes"]["tsds"]["provenance"][
        "erased"
    ]
    return found


def pairs(path: Path) -> list[bytes]:
    """Both hashes of each tombstone."""
    found = [base64.b64decode(group["samples"]) for group in erased(path)]
    return [data[i : i + 24] for data in found for i in range(0, len(data), 24)]


def test_the_hashes_are_those_of_the_specification(store: Path) -> None:
    """Computed here from its text, and from the stored image."""
    opened = tsds.open(store)
    row = next(row for row in range(6) if opened["train"].key(row) == GONE)
    image = opened["train"]["image"][row]
    if not isinstance(image, bytes):
        image = f"|u1 {image.shape} ".encode() + image.tobytes()
    tsds.erase(store, keys=[GONE])
    (group,) = erased(store)
    salt, found = bytes.fromhex(group["salt"]), base64.b64decode(group["samples"])
    hashed = [
        hashlib.blake2b(data, digest_size=12, key=salt, person=person).digest()
        for data, person in ((GONE.encode(), b"tsds key"), (image, b"tsds image"))
    ]
    assert found == b"".join(hashed) and len(salt) == 16
    assert GONE.encode() not in (store / "zarr.json").read_bytes() and tsds.verify(store) == []


def test_the_source_does_not_bring_them_back(store: Path, source: Path) -> None:
    tsds.erase(store, keys=[GONE])
    (first,), before = pairs(store), tsds.open(store).sha256
    for grow in (tsds.append, tsds.update):
        done = grow(store, source, workers=0)
        assert (done.erased.keys, done.not_added.count) == ([GONE], 0) and tsds.open(store).sha256 == before
    (source / GONE).rename(source / "dog/other name.png")  # also as a renamed copy of another class
    done = tsds.append(store, source, workers=0)
    assert (
        done.erased.keys == ["dog/other name.png"]
        and done.added.count == 0
        and keys(store).isdisjoint(done.erased.keys)
    )
    shutil.copy(source / "dog/other name.png", source / "dog/0.png")  # and in the place of a sample that stays
    done = tsds.update(store, source, workers=0)
    assert "dog/0.png" in done.erased.keys and done.updated.count == 0 and tsds.open(store).sha256 == before
    done = tsds.append(store, source, workers=0, update=True, restore_erased=True)
    assert (done.added.keys, done.updated.keys, done.erased.keys) == (["dog/other name.png"], ["dog/0.png"], [])
    (pair,) = pairs(store)  # the image is in the store again, but not under its key
    assert pair[:12] == first[:12] and pair[12:] != first[12:] and tsds.verify(store) == []
    shutil.copy(source / "dog/1.png", source / GONE)
    assert tsds.append(store, source, workers=0).erased.keys == [GONE]
    done = tsds.append(store, source, workers=0, restore_erased=True)
    assert done.added.keys == [GONE] and "erased" not in tsds.open(store).manifest.provenance


def test_stores_that_are_made_of_it_keep_the_tombstones(store: Path, source: Path, tmp_path: Path) -> None:
    tsds.erase(store, keys=[GONE])
    made = {
        name: tmp_path / f"{name}.tsds" for name in ("filter", "split", "sample", "relabel", "repack", "copy", "packed")
    }
    tsds.editing.filter_store(store, made["filter"], "label == 'dog'")
    tsds.editing.split_store(store, made["split"], {"train": 0.5, "test": 0.5})
    tsds.editing.sample_store(store, made["sample"], 1)
    tsds.editing.relabel_store(store, made["relabel"], {"cat": "animal"})
    tsds.repack(store, made["repack"], layout="zarr")
    tsds.copy(store, made["copy"])
    tsds.pack(store, tmp_path / "x.tsds.zip")
    tsds.unpack(tmp_path / "x.tsds.zip", made["packed"])
    tsds.editing.add_fields(store, {"age": np.arange(5)})
    tsds.editing.drop_fields(store, ["age"])
    for path in (store, *made.values()):
        assert erased(path) == erased(store), path
    assert tsds.append(made["copy"], source, workers=0).erased.keys == [GONE]


def test_merging_leaves_out_what_was_erased_from_the_other(store: Path, source: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(store, tmp_path / "whole.tsds")
    shutil.copy(source / "cat/2.png", source / "cat/copy.png")
    tsds.append(store, source, workers=0)
    tsds.erase(store, keys=[GONE, "cat/copy.png"])  # of two copies of an image, one stays
    done = tsds.editing.merge_stores([store, whole], tmp_path / "m.tsds")
    assert not [key for key in keys(tmp_path / "m.tsds") if "1.png" in key and "cat" in key]
    assert {"s/cat/2.png", "s/dog/1.png", "whole/dog/1.png"} <= keys(tmp_path / "m.tsds")
    (note,) = [note for note in done.notes if note.startswith("not merged: ")]
    assert note.startswith("not merged: 2 samples that were erased from a different store, such as cat/1.png of ")
    assert len(Tombstones(tsds.open(tmp_path / "m.tsds").manifest.provenance)) == 2
    tsds.editing.merge_stores([store, whole], tmp_path / "all.tsds", restore_erased=True)
    assert {"whole/cat/1.png", "whole/cat/2.png"} <= keys(tmp_path / "all.tsds")
    assert len(pairs(tmp_path / "all.tsds")) == 1  # of the copy, whose key is not in it
    twice = shutil.copytree(store, tmp_path / "twice.tsds")  # both know of it, and both have the copy that stays
    assert not [n for n in tsds.editing.merge_stores([store, twice], tmp_path / "t.tsds").notes if "not merged" in n]
    tsds.editing.filter_store(whole, tmp_path / "one.tsds", f"key == '{GONE}'")
    tsds.editing.merge_stores([store, tmp_path / "one.tsds"], tmp_path / "n.tsds")
    assert len(tsds.open(tmp_path / "n.tsds")["train"]) == 5


def test_skipped_lines_of_an_erased_sample_do_not_return(source: Path, tmp_path: Path) -> None:
    (source / "cat/bad.png").write_bytes((source / "cat/0.png").read_bytes()[:200])
    path = tmp_path / "s.tsds"
    tsds.convert(source, path, workers=0, on_error="skip")
    tsds.erase(path, keys=[GONE])
    (source / GONE).write_bytes(b"broken")
    tsds.append(path, source, workers=0, on_error="skip")
    for file in path.rglob("*"):
        assert not file.is_file() or GONE.encode() not in file.read_bytes(), file


def test_without_tombstones(store: Path, source: Path, tmp_path: Path) -> None:
    done = tsds.erase(store, keys=[GONE], tombstones=False)
    assert "erased" not in tsds.open(store).manifest.provenance and done.receipt["samples"] == []
    assert tsds.append(store, source, workers=0).added.keys == [GONE]


@pytest.mark.parametrize(
    "found",
    [
        {},
        3,
        [3],
        [{"salt": "x", "samples": ""}],
        [{"salt": "00", "samples": "AAAA"}],
        [{"salt": "00"}],
        [{"salt": 3, "samples": 4}],
    ],
)
def test_other_things_in_their_place_are_ignored(found: Any) -> None:
    assert len(Tombstones({"erased": found})) == 0
    assert Tombstones({"erased": found}).noted({"a": 1, "erased": found}) == {"a": 1}


def test_the_receipt(store: Path, source: Path, tmp_path: Path) -> None:
    before = tsds.open(store)
    receipt = tmp_path / "receipt.json"
    done = command("erase", store, "--where", f"key == '{GONE}'", "--receipt", receipt)
    assert done.exit_code == 0, done.stderr
    found, now = json.loads(receipt.read_text()), tsds.open(store)
    assert (found["sha256_before"], found["sha256_after"]) == (before.sha256, now.sha256)
    assert found["content_sha256_after"] == now.content_sha256 and found["erased"] == {"train": 1}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["created"])
    (group,) = erased(store)
    assert [bytes.fromhex(each["key"] + each["image"]) for each in found["samples"]] == [
        base64.b64decode(group["samples"])
    ]
    assert "the source photos" in found["not_reached"] and GONE not in receipt.read_text()
    assert "The source photos, copies of the store, " in done.stdout and f"receipt: {receipt}\n" in done.stdout
    for place, message in (
        (receipt, "receipts are not replaced"),
        (store / "r.json", "store"),
        (tmp_path / "no/r", "expected a folder"),
    ):
        with pytest.raises(OptionError, match=message):
            tsds.erase(store, keys=["dog/1.png"], receipt=place)
    assert "dog/1.png" in keys(store)
    assert tsds.erase(store, keys=["dog/1.png"], dry_run=True, receipt=tmp_path / "dry.json").receipt == {}
    assert not (tmp_path / "dry.json").exists()


def test_the_receipt_of_an_erasure_that_was_interrupted(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call, which removes the files, has the receipt of the first."""
    whole = tsds.open(store).sha256

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tensorstore_ds.annex.editing.erase.removed_after", stop)
        with pytest.raises(KeyboardInterrupt):
            tsds.erase(store, keys=[GONE], receipt=tmp_path / "r.json")
    assert len(erased(store)) == 1 and not (tmp_path / "r.json").exists()  # the tombstone is there before bytes go
    done = tsds.erase(store, keys=[GONE], receipt=tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    assert done.completed and found["erased"] == {"train": 1} and len(found["samples"]) == 1
    assert found["sha256_before"] == whole and found["removed_shards"] > 0


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("'b.png' not in key or 'anna_mueller.png' in key", "'b.png' not in key or '(erased)' in key"),
        ("'anna' not in key or 'png' in key", "'(erased)' not in key or 'png' in key"),
        ('key != "train/cat/anna_mueller.png" or width > 0', 'key != "(erased)" or width > 0'),
        ("'cat' in key or 'c.png' in key", "'cat' in key or 'c.png' in key"),
    ],
)
def test_conditions_do_not_name_them_by_a_part_of_the_key(tmp_path: Path, where: str, left: str) -> None:
    folder = tmp_path / "src/train/cat"
    folder.mkdir(parents=True)
    for i, name in enumerate(("anna_mueller", "b", "c", "d")):
        Image.new("RGB", (20, 20), (i, 0, 0)).save(folder / f"{name}.png")
    tsds.convert(tmp_path / "src", tmp_path / "s.tsds", workers=0)
    tsds.editing.filter_store(tmp_path / "s.tsds", tmp_path / "t.tsds", where)
    tsds.erase(tmp_path / "t.tsds", "'anna_mueller' in key")
    steps = tsds.open(tmp_path / "t.tsds").manifest.provenance["history"]
    assert [step["where"] for step in steps if step["command"] == "filter"] == [left]
    assert b"anna" not in (tmp_path / "t.tsds/zarr.json").read_bytes()


def test_restoring_a_sample_keeps_the_tombstone_of_another_with_its_image(store: Path, source: Path) -> None:
    shutil.copy(source / GONE, source / "cat/twin.png")
    tsds.append(store, source, workers=0)
    tsds.erase(store, keys=[GONE, "cat/twin.png"])
    (source / "cat/twin.png").unlink()
    assert tsds.append(store, source, workers=0, restore_erased=True).added.keys == [GONE]
    width, height = tsds.open(store)["train"].image_shapes[0, 1::-1].tolist()
    Image.new("RGB", (width, height), (9, 8, 7)).save(source / "cat/twin.png")
    assert tsds.append(store, source, workers=0).erased.keys == ["cat/twin.png"]
    shutil.copy(source / GONE, source / "cat/third.png")  # the image is in the store: it may be there twice
    assert tsds.append(store, source, workers=0).added.keys == ["cat/third.png"]
    tsds.append(store, source, workers=0, restore_erased=True)
    assert "erased" not in tsds.open(store).manifest.provenance


def test_restoring_samples_without_keys(source: Path, tmp_path: Path) -> None:
    """They are known by their images alone, so nothing of their tombstones is left."""
    tsds.convert(source, tmp_path / "keys.tsds", workers=0)
    for name in ("whole.tsds", "s.tsds"):
        tsds.pull(str(tmp_path / "keys.tsds"), tmp_path / name, fields=["image", "label"])
    stores = [tmp_path / "s.tsds", tmp_path / "whole.tsds"]
    tsds.erase(stores[0], rows={"train": [1, 2]})
    assert len(pairs(stores[0])) == 2
    tsds.editing.merge_stores(stores, tmp_path / "m.tsds")
    tsds.editing.merge_stores(stores, tmp_path / "all.tsds", restore_erased=True)
    assert [len(tsds.open(tmp_path / name)["train"]) for name in ("m.tsds", "all.tsds")] == [8, 10]
    assert len(pairs(tmp_path / "m.tsds")) == 2
    assert "erased" not in tsds.open(tmp_path / "all.tsds").manifest.provenance


def animation(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    frames = [Image.fromarray(random.integers(0, 255, (8, 8), dtype=np.uint8)) for _ in range(2)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def named(path: Path, name: str) -> list[str]:
    """The files of a store with these bytes."""
    return [file.name for file in path.rglob("*") if file.is_file() and name.encode() in file.read_bytes()]


def test_problems_of_refused_samples_are_not_recorded(tmp_path: Path) -> None:
    source, store = tmp_path / "photos", tmp_path / "s.tsds"
    for i in range(3):
        animation(source / f"train/cat/{i}.gif", i)
    tsds.convert(source, store, workers=0)
    lines = (store / "skipped.jsonl").read_text().splitlines()
    assert [json.loads(line)["where"].partition(":")[0] for line in lines] == [f"train/cat/{i}.gif" for i in range(3)]
    tsds.erase(store, keys=["train/cat/0.gif"])
    (source / "train/cat/0.gif").rename(source / "train/cat/anna_smith.gif")
    animation(source / "train/cat/9.gif", 9)
    done = tsds.append(store, source, workers=0)
    assert (done.added.keys, done.erased.keys) == (["train/cat/9.gif"], ["train/cat/anna_smith.gif"])
    assert not named(store, "anna_smith") and "9.gif" in (store / "skipped.jsonl").read_text()


def test_problems_of_restored_samples_are_recorded(tmp_path: Path) -> None:
    source, store = tmp_path / "photos", tmp_path / "s.tsds"
    for i in range(3):
        animation(source / f"train/cat/{i}.gif", i)
    tsds.convert(source, store, workers=0)
    lines = (store / "skipped.jsonl").read_text().splitlines()
    tsds.erase(store, keys=["train/cat/0.gif"])
    assert sorted((store / "skipped.jsonl").read_text().splitlines()) == lines[1:]
    tsds.append(store, source, workers=0, restore_erased=True)
    assert sorted((store / "skipped.jsonl").read_text().splitlines()) == lines


def test_problems_of_images_whose_crops_are_refused_are_not_recorded(tmp_path: Path) -> None:
    """The name of the image is only a part of the keys of its crops."""
    boxes = (("cat", 1, 2, 8, 9), ("cat", 3, 3, 3, 5))
    source, store = voc(tmp_path / "voc", *"abc", boxes=boxes), tmp_path / "s.tsds"
    for i, name in enumerate("abc"):
        noise = np.random.default_rng(i).integers(0, 256, (10, 12, 3), np.uint8)
        Image.fromarray(noise).save(source / f"JPEGImages/{name}.png")
    xml = source / "Annotations/c.xml"
    hidden = {path: path.rename(tmp_path / path.name) for path in (xml, source / "JPEGImages/c.png")}
    tsds.convert(source, store, workers=0, cut=tsds.conversion.ObjectCrops(), size=(8, 8), on_error="skip")
    tsds.erase(store, "'a.png' in key")
    for path, away in hidden.items():
        away.rename(path)
    (source / "JPEGImages/a.png").rename(source / "JPEGImages/anna_smith.png")
    text = (source / "Annotations/a.xml").read_text().replace("a.png", "anna_smith.png")
    (source / "Annotations/a.xml").unlink()
    (source / "Annotations/anna_smith.xml").write_text(text)
    done = tsds.append(store, source, workers=0, cut=tsds.conversion.ObjectCrops(), on_error="skip")
    assert [key.partition("#")[0] for key in (*done.added.keys, *done.erased.keys)] == [
        "JPEGImages/c.png",
        "JPEGImages/anna_smith.png",
    ]
    assert not named(store, "anna_smith") and named(store, "c.png")
    assert [each.where for each in done.left_out if "anna_smith" in each.where or "anna_smith" in each.message]


def two_splits(tmp_path: Path) -> Path:
    """COCO's keys have no split, so each of these samples is in two."""
    source = tmp_path / "coco"
    (source / "annotations").mkdir(parents=True)
    (source / "images").mkdir()
    for i in range(4):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(source / f"images/{i}.png")
    boxes = [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 1, 3, 3], "iscrowd": 0, "area": 9} for i in range(4)
    ]
    listed = [{"id": i, "file_name": f"{i}.png", "height": 8, "width": 8} for i in range(4)]
    for split in ("train", "val"):
        (source / f"annotations/instances_{split}.json").write_text(
            json.dumps({"images": listed, "annotations": boxes, "categories": [{"id": 1, "name": "x"}]})
        )
    return source


def test_equal_tombstones_are_counted_once(tmp_path: Path) -> None:
    source, store = two_splits(tmp_path), tmp_path / "s.tsds"
    tsds.convert(source, store, workers=0)
    gone, other, last = (tsds.open(store)["train"].key(row) for row in range(3))
    done = [tsds.erase(store, keys=[key]) for key in (gone, other)]
    assert [each.erased for each in done] == [{"train": 1, "val": 1}] * 2
    samples = [[bytes.fromhex(each["key"] + each["image"]) for each in one.receipt["samples"]] for one in done]
    assert [len(each) for each in samples] == [1, 1] and [*samples[0], *samples[1]] == pairs(store)
    for split in ("train", "val"):
        (sample,) = tsds.erase(store, keys=[last], splits=[split]).receipt["samples"]
        assert pairs(store) == [*samples[0], *samples[1], bytes.fromhex(sample["key"] + sample["image"])]
    steps = [each for each in tsds.open(store).manifest.provenance["history"] if each["command"] == "erase"]
    assert [each["tombstones"] for each in steps] == [1, 1, 1, 1]


def test_restoring_many_takes_time_in_proportion(tmp_path: Path) -> None:
    def work(count: int) -> int:
        source, store = tmp_path / f"{count}", tmp_path / f"{count}.tsds"
        (source / "train/cat").mkdir(parents=True)
        for i in range(count + 1):
            Image.new("L", (4, 4), i).save(source / f"train/cat/{i}.png")
        tsds.convert(source, store, workers=0)
        tsds.erase(store, f"key != 'train/cat/{count}.png'")

        def restore() -> None:
            assert tsds.append(store, source, workers=0, restore_erased=True).added.count == count

        return instructions("tombstones.py", restore)

    assert work(200) < 7 * work(50)  # 4 times as many; 16 if each goes through all


def test_a_different_image_of_a_key_that_stays_in_a_split_restores_nothing(tmp_path: Path) -> None:
    source, store = two_splits(tmp_path), tmp_path / "s.tsds"
    tsds.convert(source, store, workers=0)
    tsds.erase(store, keys=[tsds.open(store)["val"].key(2)], splits=["val"])
    before = pairs(store)
    Image.new("RGB", (8, 8), (0, 9, 0)).save(source / "images/2.png")
    assert tsds.update(store, source, workers=0).updated.count == 1 and pairs(store) == before
