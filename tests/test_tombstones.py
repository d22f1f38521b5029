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
from small_stores import class_folders, tsds as command
from tensorstore_ds.editing.tombstones import Tombstones
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
    before = tsds.open(store).sha256
    for grow in (tsds.append, tsds.update):
        done = grow(store, source, workers=0)
        assert (done.erased, done.not_added) == ((GONE,), ()) and tsds.open(store).sha256 == before
    (source / GONE).rename(source / "dog/other name.png")  # also as a renamed copy of another class
    done = tsds.append(store, source, workers=0)
    assert done.erased == ("dog/other name.png",) and done.added == () and keys(store).isdisjoint(done.erased)
    shutil.copy(source / "dog/other name.png", source / "dog/0.png")  # and in the place of a sample that stays
    done = tsds.update(store, source, workers=0)
    assert "dog/0.png" in done.erased and done.updated == () and tsds.open(store).sha256 == before
    done = tsds.append(store, source, workers=0, update=True, restore_erased=True)
    assert (done.added, done.updated, done.erased) == (("dog/other name.png",), ("dog/0.png",), ())
    provenance = tsds.open(store).manifest.provenance
    assert "erased" not in provenance and tsds.verify(store) == []  # it is in the store again


def test_stores_that_are_made_of_it_keep_the_tombstones(store: Path, source: Path, tmp_path: Path) -> None:
    tsds.erase(store, keys=[GONE])
    made = {
        name: tmp_path / f"{name}.tsds" for name in ("filter", "split", "sample", "relabel", "repack", "copy", "packed")
    }
    tsds.filter_store(store, made["filter"], "label == 'dog'")
    tsds.split_store(store, made["split"], {"train": 0.5, "test": 0.5})
    tsds.sample_store(store, made["sample"], 1)
    tsds.relabel_store(store, made["relabel"], {"cat": "animal"})
    tsds.repack(store, made["repack"], layout="zarr")
    tsds.copy(store, made["copy"])
    tsds.pack(store, tmp_path / "x.tsds.zip")
    tsds.unpack(tmp_path / "x.tsds.zip", made["packed"])
    tsds.add_fields(store, {"age": np.arange(5)})
    tsds.drop_fields(store, ["age"])
    for path in (store, *made.values()):
        assert erased(path) == erased(store), path
    assert tsds.append(made["copy"], source, workers=0).erased == (GONE,)


def test_merging_leaves_out_what_was_erased_from_the_other(store: Path, source: Path, tmp_path: Path) -> None:
    whole = shutil.copytree(store, tmp_path / "whole.tsds")
    shutil.copy(source / "cat/2.png", source / "cat/copy.png")
    tsds.append(store, source, workers=0)
    tsds.erase(store, keys=[GONE, "cat/copy.png"])  # of two copies of an image, one stays
    done = tsds.merge_stores([store, whole], tmp_path / "m.tsds")
    assert not [key for key in keys(tmp_path / "m.tsds") if "1.png" in key and "cat" in key]
    assert {"s/cat/2.png", "s/dog/1.png", "whole/dog/1.png"} <= keys(tmp_path / "m.tsds")
    (note,) = [note for note in done.notes if note.startswith("not merged: ")]
    assert note.startswith("not merged: 2 samples that were erased from a different store, such as cat/1.png of ")
    assert len(Tombstones(tsds.open(tmp_path / "m.tsds").manifest.provenance)) == 2
    tsds.merge_stores([store, whole], tmp_path / "all.tsds", restore_erased=True)
    assert {"whole/cat/1.png", "whole/cat/2.png"} <= keys(tmp_path / "all.tsds")
    assert "erased" not in tsds.open(tmp_path / "all.tsds").manifest.provenance
    twice = shutil.copytree(store, tmp_path / "twice.tsds")  # both know of it, and both have the copy that stays
    assert not [n for n in tsds.merge_stores([store, twice], tmp_path / "t.tsds").notes if "not merged" in n]
    tsds.filter_store(whole, tmp_path / "one.tsds", f"key == '{GONE}'")
    tsds.merge_stores([store, tmp_path / "one.tsds"], tmp_path / "n.tsds")
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
    assert tsds.append(store, source, workers=0).added == (GONE,)


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
        patch.setattr("tensorstore_ds.editing.erase.removed_after", stop)
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
    tsds.filter_store(tmp_path / "s.tsds", tmp_path / "t.tsds", where)
    tsds.erase(tmp_path / "t.tsds", "'anna_mueller' in key")
    steps = tsds.open(tmp_path / "t.tsds").manifest.provenance["history"]
    assert [step["where"] for step in steps if step["command"] == "filter"] == [left]
    assert b"anna" not in (tmp_path / "t.tsds/zarr.json").read_bytes()
