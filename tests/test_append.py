"""Samples appended to a store: compared with a conversion of all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import VALID, class_folders, tsds as command, voc
from stores import files_of, smart_store
from tensorstore_ds.annex.editing import in_place
from tensorstore_ds.errors import ConversionError, OptionError, SourceError


def photos(root: Path, count: int, *classes: str, start: int = 0, size: int | None = 12) -> Path:
    for label, name in enumerate(classes or ("cat", "dog")):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(start, start + count):
            rng = np.random.default_rng([label, i])
            height = size or 10 + i % 7
            Image.fromarray(rng.integers(0, 256, (height, 9, 3), np.uint8)).save(root / name / f"{i:03d}.png")
    return root


def convert(source: Path, out: Path, **options: Any) -> tsds.Store:
    tsds.convert(source, out, tsds.ConvertOptions(workers=0, **options))
    return tsds.open(out)


def samples(store: tsds.Store, split: str = "train") -> dict[str, tuple[bytes, str]]:
    """Image and class by key."""
    part = store[split]
    classes = part.fields["label"].classes
    found = {}
    for row in range(len(part)):
        image = part["image"][row]
        data = image if isinstance(image, bytes) else image.tobytes()
        found[part["key"][row]] = (data, classes[int(part["label"][row])])
    return found


WAYS: list[dict[str, Any]] = [
    {},
    {"layout": "zarr"},
    {"fit": tsds.Fit((8, 8), "crop"), "color": "gray"},
    {"encoding": "jpeg"},
    {"encoding": "source"},
    {"encoding": "raw"},
]


@pytest.mark.slow
@pytest.mark.drawn(3)
@pytest.mark.parametrize("options", WAYS, ids=lambda each: "-".join(map(str, each.values())) or "raw")
@pytest.mark.parametrize("size", [12, None], ids=["one-size", "sizes"])
def test_a_folder_that_has_grown(tmp_path: Path, options: dict[str, Any], size: int | None) -> None:
    root = photos(tmp_path / "photos", 5, size=size)
    opened = convert(root, tmp_path / "s.tsds", shard_nbytes=2000, **options)
    before = samples(opened)
    photos(root, 3, "cat", "ant", start=5, size=size)
    summary = tsds.append(tmp_path / "s.tsds", root, workers=0)
    assert summary.rows == {"train": 16}
    grown, whole = tsds.open(tmp_path / "s.tsds"), convert(root, tmp_path / "whole.tsds", **options)
    assert samples(grown) == samples(whole)
    assert grown["train"].fields["label"].classes == ("cat", "dog", "ant")
    assert tsds.verify(tmp_path / "s.tsds") == []
    assert samples(opened) == before  # who has it open sees what it was
    assert list(samples(grown))[:10] == list(before)
    one, other = (each.manifest.splits["train"].statistics for each in (grown, whole))
    assert sorted(one["label"]["class_counts"]) == sorted(other["label"]["class_counts"])
    np.testing.assert_allclose(one["image"]["mean"], other["image"]["mean"], rtol=1e-12)
    np.testing.assert_allclose(one["image"]["std"], other["image"]["std"], rtol=1e-9)
    assert one["size"] == other["size"]
    assert grown.manifest.provenance["history"][-1]["command"] == "append"
    assert not list(tmp_path.glob("*.append*"))


def test_a_store_of_the_encoding_smart_takes_no_more_images(tmp_path: Path) -> None:
    smart_store(tmp_path / "s.tsds", [{"image": np.zeros((6, 5), np.uint8)}] * 2)
    with pytest.raises(tsds.OptionError, match=r"found smart\. Repack it with `encoding=\"jpeg\"` or"):
        tsds.append(tmp_path / "s.tsds", class_folders(tmp_path / "more"), workers=0)


def test_a_check_that_an_earlier_version_had_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = photos(tmp_path / "photos", 2, "a", "b", size=None)
    store = convert(source, tmp_path / "o.tsds", encoding=tsds.conversion.SourceFiles(check="headers"))
    recorded = {**store.manifest.conversion_options, "check": "eighth"}
    monkeypatch.setattr(type(store.manifest), "conversion_options", recorded)
    photos(source, 1, "a", start=9, size=None)
    assert tsds.append(store.path, source).added.count == 1


def test_samples_of_a_program(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 5, 4, 3), np.uint8)
    rows = [{"key": f"s{row}", "image": image, "label": "ab"[row % 2]} for row, image in enumerate(images)]
    store, classes = tmp_path / "s.tsds", ["a", "b"]
    tsds.convert(rows[:4], store, workers=0, classes=classes)
    assert tsds.append(store, rows, workers=0, classes=classes).added.keys == ["s4", "s5"]
    assert samples(tsds.open(store)) == {each["key"]: (each["image"].tobytes(), each["label"]) for each in rows}
    rows[1] |= {"label": "a"}
    assert tsds.update(store, {"train": rows}, workers=0, classes=classes).updated.keys == ["s1"]
    assert samples(tsds.open(store))["s1"] == (images[1].tobytes(), "a")
    with pytest.raises(OptionError, match=r"train: expected __len__ and __getitem__, found list_iterator. Pass a list"):
        tsds.append(store, iter(rows), workers=0)  # type: ignore[arg-type]


def test_options_of_one_format_are_taken_over_for_its_sources_alone(tmp_path: Path) -> None:
    folder = photos(tmp_path / "all", 1)
    (folder / "list.csv").write_text("path,kind,age\ncat/000.png,cat,3\ndog/000.png,dog,4\n")
    store = convert(folder, tmp_path / "s.tsds", label_from="kind").path
    photos(folder, 2)
    (folder / "list.csv").write_text("path,kind,age\ncat/000.png,cat,3\ndog/000.png,dog,4\ncat/001.png,cat,1\n")
    assert tsds.append(store, folder, workers=0).added.keys == ["cat/001.png"]
    assert tsds.append(store, photos(tmp_path / "more", 1, "dog", start=7), workers=0).added.keys == ["dog/007.png"]
    assert [name for _, name in samples(tsds.open(store)).values()] == ["cat", "dog", "cat", "dog"]
    several = convert(photos(tmp_path / "m", 1), tmp_path / "m.tsds", multi_label=True).path
    (tmp_path / "m/list.csv").write_text("path,labels\ncat/000.png,cat\n")
    assert tsds.append(several, tmp_path / "m/list.csv", workers=0).already_there.count == 1


def test_objects_and_a_split_that_is_new(tmp_path: Path) -> None:
    convert(voc(tmp_path / "a", "x", "y"), tmp_path / "s.tsds")
    more = voc(tmp_path / "b", "z", boxes=(("dog", 1, 2, 8, 9), ("cat", 0, 0, 3, 3)))
    (more / "ImageSets/Main").mkdir(parents=True)
    (more / "ImageSets/Main/val.txt").write_text("z\n")
    tsds.append(tmp_path / "s.tsds", more, workers=0)
    store = tsds.open(tmp_path / "s.tsds")
    assert {name: len(store[name]) for name in store} == {"train": 2, "val": 1}
    assert store.manifest.fields["objects"].classes == ("cat", "dog")
    assert store["val"]["objects"][0]["labels"].tolist() == [1, 0]
    assert store.manifest.splits["val"].statistics["objects"]["class_counts"] == [1, 1]
    assert tsds.verify(tmp_path / "s.tsds") == []


def test_what_is_not_new_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 3)
    path = convert(root, tmp_path / "s.tsds").path
    state = (path / "zarr.json").read_bytes()
    photos(tmp_path / "large", 2, start=10, size=30)
    with pytest.raises(OptionError, match=r'large: expected images of 12x9 .*Pass `size=\(12, 9\)` and `color="rgb"`'):
        tsds.append(path, tmp_path / "large", workers=0)
    with pytest.raises(OptionError, match="`sized`: expected an option of ConvertOptions"):
        tsds.append(path, root, sized=3)
    with pytest.raises(SourceError, match="expected an image file"):
        photos(root, 1, start=7)
        (root / "cat/007.png").write_bytes(b"none")
        tsds.append(path, root, workers=0)
    assert (path / "zarr.json").read_bytes() == state
    assert tsds.verify(path) == []
    (root / "cat/007.png").unlink()
    (tmp_path / "s.tsds.append").mkdir()
    (tmp_path / "s.tsds.append" / "mine").write_text("x")
    with pytest.raises(OptionError, match="found a folder that was made by something else"):
        tsds.append(path, root, workers=0)
    assert (tmp_path / "s.tsds.append" / "mine").read_text() == "x"


def test_image_files_of_another_depth_are_refused(tmp_path: Path) -> None:
    """A batch of both would have no data type."""
    for depth in (np.uint8, np.uint16):
        for i in range(3):
            path = tmp_path / f"{depth.__name__}/a/{depth.__name__}{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((9, 8 + i), 200, depth)).save(path)
        convert(tmp_path / depth.__name__, tmp_path / f"{depth.__name__}.tsds")
    eight, sixteen = tmp_path / "uint8.tsds", tmp_path / "uint16.tsds"
    before = files_of(eight)
    expected = "expected uint8 pixels in its images, as in uint8.tsds, found uint16"
    with pytest.raises(OptionError, match=expected):
        tsds.append(eight, tmp_path / "uint16")
    with pytest.raises(OptionError, match=expected):
        tsds.editing.merge_stores([eight, sixteen], tmp_path / "both.tsds")
    assert files_of(eight) == before and not (tmp_path / "both.tsds").exists()
    pixels = convert(tmp_path / "uint8", tmp_path / "pixels.tsds", size=9)
    others = convert(tmp_path / "uint16", tmp_path / "others.tsds", size=9)
    with pytest.raises(OptionError, match=r"be uint8 9 x 9 x 1, found uint16 .* Save all images with one bit depth"):
        tsds.editing.merge_stores([pixels.path, others.path], tmp_path / "both.tsds")
    with pytest.raises(
        OptionError, match=r"expected uint8 9 x 9 x 1 as in pixels.tsds, found uint16 .* separate store"
    ):
        tsds.append(pixels.path, tmp_path / "uint16")
    assert tsds.append(sixteen, tmp_path / "uint16", key_prefix="more/").rows == {"train": 6}


@pytest.mark.parametrize(
    ("name", "found"), [("unlabelled", "no field image"), ("unknown-kinds", "bytes · not known to this version")]
)
def test_a_store_without_images_gets_none(tmp_path: Path, name: str, found: str) -> None:
    shutil.copytree(VALID / f"{name}.tsds", tmp_path / "s.tsds")
    with pytest.raises(OptionError, match=f"expected images, found {found}"):
        tsds.append(tmp_path / "s.tsds", photos(tmp_path / "photos", 1), workers=0)


def test_the_work_folder_of_an_interrupted_call_is_removed(tmp_path: Path) -> None:
    """Also by a call that finds nothing new."""
    root = photos(tmp_path / "photos", 3)
    path = convert(root, tmp_path / "s.tsds").path
    work = tmp_path / "s.tsds.append"
    shutil.copytree(path, work / "new")
    (work / "new" / "zarr.json").unlink()  # it was being removed
    (work / "tsds.lock").write_text("run")
    shutil.copytree(path / "train/00000", path / "train/00007.partial")
    (advised,) = {
        each.where.split("/")[1] for each in tsds.verify(path) if "again that was interrupted" in each.message
    }
    assert advised == "00007.partial"
    assert tsds.append(path, root, workers=0).added.count == 0
    assert tsds.verify(path) == [] and not work.exists()


def test_what_others_have_put_into_the_store_stays(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 3)
    path = convert(root, tmp_path / "s.tsds").path
    (path / "val/00000").mkdir(parents=True)
    (path / "val/notes.txt").write_text("mine")
    photos(tmp_path / "splits/val", 1, start=9)
    with pytest.raises(ConversionError, match=r"val: expected no such name, found something that is not of the store"):
        tsds.append(path, tmp_path / "splits", workers=0)
    assert (path / "val/notes.txt").read_text() == "mine" and (path / "val/00000").is_dir()


def test_what_is_skipped_is_named(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 3)
    convert(root, tmp_path / "s.tsds")
    photos(root, 1, "kitten", start=9)
    for i in range(5):
        (root / f"kitten/bad {i}.png").write_bytes(b"none" if i else b"")
    done = command("append", tmp_path / "s.tsds", root, "--on-error", "skip")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    first = lines.index("skipped: 5 (not-an-image 5)")
    assert lines[first + 1 : first + 5] == [
        "  kitten/bad 0.png: expected an image file, found an empty file.",
        "  kitten/bad 1.png: expected an image file, found something else.",
        "  kitten/bad 2.png: expected an image file, found something else.",
        "  and 2 more; --json prints all",
    ]
    found = json.loads(command("append", tmp_path / "s.tsds", root, "--on-error", "skip", "--json").stdout)
    assert [each["where"] for each in found["left_out"]] == [f"kitten/bad {i}.png" for i in range(5)]


def test_the_command(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 3)
    convert(root, tmp_path / "s.tsds")
    photos(root, 2, "kitten", start=9)
    (tmp_path / "names.txt").write_text("kitten = cat\n")
    done = command("append", tmp_path / "s.tsds", root, "--class-map", tmp_path / "names.txt")
    assert done.exit_code == 0, done.output
    assert "8 samples" in done.output
    assert tsds.open(tmp_path / "s.tsds").manifest.fields["label"].classes == ("cat", "dog")
    again = command("append", tmp_path / "s.tsds", root, "--class-map", tmp_path / "names.txt")
    assert again.exit_code == 0 and "nothing new" in again.output


def test_new_samples_that_are_all_bad_are_listed_and_nothing_is_new(tmp_path: Path) -> None:
    source = photos(tmp_path / "src", 2)
    store = convert(source, tmp_path / "s.tsds")
    (source / "cat" / "bad.png").write_bytes((source / "cat" / "000.png").read_bytes()[:60])
    with pytest.raises(tsds.SourceError):
        tsds.append(store.path, source, workers=0)
    summary = tsds.append(store.path, source, workers=0, on_error="skip")
    assert (summary.added.count, sum(summary.skipped.values()), summary.already_there.count) == (0, 1, 4)
    assert [problem.where for problem in summary.left_out] == ["cat/bad.png"]
    assert tsds.open(store.path).sha256 == store.sha256
    assert not (tmp_path / "s.tsds.append").exists()


def listed(store: Path) -> list[tuple[str, str]]:
    """Sample and reason of each line of ``skipped.jsonl``."""
    lines = [json.loads(line) for line in (store / "skipped.jsonl").read_text().splitlines()]
    return [(line["where"], line["reason"]) for line in lines]


def card_of(store: Path, out: Path) -> str:
    tsds.card(store, out)
    return (out / "README.md").read_text()


def test_what_is_skipped_is_listed_in_the_store(tmp_path: Path) -> None:
    source, path = photos(tmp_path / "src", 2), tmp_path / "s.tsds"
    bad, worse = source / "cat" / "bad.png", source / "dog" / "worse.png"
    convert(source, path)
    bad.write_bytes(b"none")
    photos(source, 1, start=5)
    before = tsds.open(path)
    tsds.append(path, source, workers=0, on_error="skip")
    assert listed(path) == [("cat/bad.png", "not-an-image")]
    assert "skipped.jsonl" not in before.manifest.files and before["train"].key(3) == "dog/001.png"  # reads on
    assert tsds.open(path).manifest.provenance["skipped"] == {"not-an-image": 1}
    assert tsds.verify(path) == []
    assert "cat/bad.png: expected an image file" in card_of(path, tmp_path / "one")

    between = tsds.open(path)
    shutil.copy(source / "cat" / "000.png", bad)  # mended
    worse.write_bytes((source / "dog" / "000.png").read_bytes()[:60])
    tsds.append(path, source, workers=0, on_error="skip")
    expected = [("cat/bad.png", "not-an-image"), ("cat/bad.png", "mended"), ("dog/worse.png", "truncated-image")]
    assert listed(path) == expected
    assert tsds.open(path).manifest.provenance["skipped"] == {"truncated-image": 1}
    with between.open_file("skipped.jsonl") as file:  # a reader sees the list of the store that it has opened
        assert [json.loads(line)["where"] for line in file.read().splitlines()] == ["cat/bad.png"]
    assert "cat/bad.png" not in card_of(path, tmp_path / "two")

    photos(source, 1, start=7)
    tsds.append(path, source, workers=0, on_error="skip")
    assert listed(path) == expected  # each once
    tsds.repack(path, tmp_path / "r.tsds", layout="zarr")
    assert listed(tmp_path / "r.tsds") == [("dog/worse.png", "truncated-image")]


@pytest.mark.parametrize("had_some", [False, True])
def test_lines_of_an_append_that_was_killed_do_not_count(tmp_path: Path, had_some: bool) -> None:
    """It was killed when ``skipped.jsonl`` had its lines, and the manifest did not list them yet."""
    source, path = photos(tmp_path / "src", 2), tmp_path / "s.tsds"
    (source / "cat" / "zero.png").write_bytes(b"none" if had_some else (source / "cat" / "000.png").read_bytes())
    convert(source, path, on_error="skip")
    before, root = files_of(path), (path / "zarr.json").read_bytes()
    (source / "cat" / "bad.png").write_bytes(b"none")
    photos(source, 1, start=5)
    tsds.append(path, source, workers=0, on_error="skip")
    whole = files_of(path)
    (path / "zarr.json").write_bytes(root)
    shutil.rmtree(path / "train" / "00001")
    assert {problem.reason for problem in tsds.verify(path)} == (set() if had_some else {"unlisted-file"})
    if had_some:
        tsds.pack(path, tmp_path / "s.tsds.zip")
        assert tsds.verify(tmp_path / "s.tsds.zip") == []
    in_place.remove_leftovers(tsds.open(path))
    assert files_of(path) == before
    tsds.append(path, source, workers=0, on_error="skip")
    assert {name: data for name, data in files_of(path).items() if name != "zarr.json"} == {
        name: data for name, data in whole.items() if name != "zarr.json"
    }
