"""Samples erased from a store: no byte of them is left, and the others are as in a store made without them."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numcodecs.zstd
import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import class_folders, voc
from stores import files_of
from tensorstore_ds.annex.editing import in_place
from tensorstore_ds.annex.editing.mentions import Mentions, problems_of
from tensorstore_ds.annex.editing.rows import ShardRows
from tensorstore_ds.annex.editing.skipped import skipped_in
from tensorstore_ds.errors import ConversionError, FormatError, OptionError, Problem
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.format.statistics import ImageSums

CLASSES = ("cat", "dog", "bird")
ROWS = {"train": 14, "val": 5}
#: Rows that are erased: some of a shard, and all of another one.
ERASED = {"train": [0, 4, 5, 6, 7, 13], "val": [2]}
#: Layout, encoding, and whether all images have one size.
WAYS = [*itertools.product(("memmap", "zarr"), ("raw",), (True,))]
WAYS += [*itertools.product(("memmap", "zarr"), ("jpeg", "source"), (False,))]


def sample(split: str, row: int, *, one_size: bool, encoding: str) -> dict[str, Any]:
    """A sample whose every value is found in no other one."""
    rng = np.random.default_rng([*split.encode(), row])
    count = row % 3
    corner = rng.uniform(0, 5, (count, 2))
    height = 16 if one_size else 16 + row % 4
    pixels = rng.integers(0, 256, (height, 14, 3), np.uint8)
    image: Any = pixels
    if encoding == "source":
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=95)
        image = file.getvalue()
    values: dict[str, Any] = {
        "image": image,
        "label": row % 3,
        "age": rng.uniform(size=6),
        "captions": [f"this is {split} number {row * 977}", *["and again"] * count],
        "objects": {
            "boxes": np.concatenate([corner, corner + rng.uniform(1, 6, (count, 2))], axis=1),
            "labels": rng.integers(0, 3, count),
            "polygons": [rng.uniform(0, 9, (4, 2)) for _ in range(count)],
        },
    }
    if one_size:
        values["mask"] = rng.integers(0, 3, (height, 14), np.uint8)
    return values


def key(split: str, row: int) -> str:
    return f"{split}/{split}-person-{row * 977:06d}.jpg"


def write(path: Path, rows: dict[str, Sequence[int]], **options: Any) -> tsds.Store:
    """A store of these samples."""
    one_size = options.pop("one_size", True)
    options = {"encoding": "raw", "shard_nbytes": 3000, **options}
    with tsds.Writer(path, classes=CLASSES, workers=0, **options) as writer:
        for split, some in rows.items():
            for row in some:
                made = sample(split, row, one_size=one_size, encoding=options["encoding"])
                writer.append(split, made, key=key(split, row))
    return tsds.open(path)


def left() -> dict[str, list[int]]:
    return {split: [row for row in range(count) if row not in ERASED[split]] for split, count in ROWS.items()}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return (value.dtype.name, value.tolist()) if isinstance(value, np.ndarray | np.generic) else value


def values(store: tsds.Store) -> dict[str, list[Any]]:
    return {
        name: [{each: plain(store[name][each][row]) for each in store[name].fields} for row in range(len(store[name]))]
        for name in store
    }


def unpacked(path: Path) -> Iterator[tuple[Path, bytes]]:
    """The bytes of each file below a folder, and what each Zstandard frame in it holds."""
    for file in path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            yield file, data
            for part in data.split(b"\x28\xb5\x2f\xfd")[1:]:
                frame = b"\x28\xb5\x2f\xfd" + part
                for end in range(len(frame), 8, -1):  # the last frame ends before the checksums
                    try:
                        yield file, bytes(numcodecs.zstd.decompress(frame[:end]))
                        break
                    except RuntimeError:
                        continue


def needles(store: tsds.Store, rows: dict[str, list[int]]) -> list[bytes]:
    """Bytes that only these samples have: of keys, images, texts, masks, numbers and boxes."""
    found = []
    for name, some in rows.items():
        for row in some:
            split = store[name]
            found += [split.key(row).encode(), Path(split.key(row)).stem.encode(), split["captions"][row][0].encode()]
            image = split["image"][row]
            data = image if isinstance(image, bytes) else image.tobytes()
            found += [data[-120:-80], data[-50:-4], split["age"][row].tobytes()]
            if "mask" in split.fields:
                found.append(split["mask"][row].tobytes()[:60])
            objects = split["objects"][row]
            found += [box.tobytes() for box in objects["boxes"]] + [each.tobytes() for each in objects["polygons"]]
    return [each for each in found if len(each) >= 12]


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("layout", "encoding", "one_size"), WAYS)
def test_no_byte_is_left(tmp_path: Path, layout: str, encoding: str, one_size: bool) -> None:
    """And the others are those of a store that was written without them, and of a filtered one."""
    path, options = tmp_path / "s.tsds", {"layout": layout, "encoding": encoding, "one_size": one_size}
    store = write(path, {split: range(count) for split, count in ROWS.items()}, **options)
    assert len(store.manifest.splits["train"].shards) > 3
    searched = needles(store, ERASED)
    whole = b"".join(data for _, data in unpacked(path))
    assert all(each in whole for each in searched), "what is searched for was there"
    keys = [key(split, row) for split, rows in ERASED.items() for row in rows]
    filtered = tsds.editing.filter_store(path, tmp_path / "f.tsds", drop=ERASED)
    summary = tsds.erase(path, keys=keys)
    assert summary.erased == {"train": 6, "val": 1} and set(summary.keys) == set(keys)
    assert summary.rows == filtered.rows == {"train": 8, "val": 4}
    for file, data in unpacked(tmp_path / "s.tsds"):
        for each in searched:
            assert each not in data, f"{file}: {each!r}"
    assert tsds.verify(path) == []
    made, other = tsds.open(path), tsds.open(tmp_path / "f.tsds")
    fresh = write(tmp_path / "fresh.tsds", left(), **options)
    assert values(made) == values(fresh) == values(other)
    for name in ROWS:
        one, two = (dict(each.manifest.splits[name].statistics) for each in (made, other))
        three = dict(fresh.manifest.splits[name].statistics)
        if encoding != "raw":  # of image files, which are not decoded: pooled, as a filtered store has them
            kept, pooled = one.pop("image"), two.pop("image")
            assert all(kept[each] == pytest.approx(pooled[each], rel=1e-12) for each in ("mean", "std", "scale"))
            del three["image"]
        assert one == two == three
    assert tsds.editing.compare_stores(path, tmp_path / "fresh.tsds").is_empty
    step = made.manifest.provenance["history"][-1]
    assert (step["command"], step["erased"]) == ("erase", {"train": 6, "val": 1})
    assert step.keys() == {"command", "erased", "tombstones", "tool_version", "created", "before"}
    assert step["before"] == [store.sha256]
    assert not [name for split in made for name in made._files.replaced()]


@pytest.mark.parametrize("layout", ["memmap", "zarr"])
def test_pixels_of_differing_sizes(tmp_path: Path, layout: str) -> None:
    rng = np.random.default_rng(0)
    for i in range(8):
        (tmp_path / "src" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        image = rng.integers(0, 256, (9 + i, 12, 3), np.uint8)
        Image.fromarray(image).save(tmp_path / "src" / "ab"[i % 2] / f"{i}.png")
    path = tmp_path / "s.tsds"
    tsds.convert(tmp_path / "src", path, workers=0, encoding="raw", layout=layout, shard_nbytes=1500)
    pixels = tsds.open(path)["train"]["image"][2].tobytes()
    tsds.editing.filter_store(path, tmp_path / "f.tsds", drop={"train": [2]})
    tsds.erase(path, rows={"train": [2]})
    assert values(tsds.open(path)) == values(tsds.open(tmp_path / "f.tsds"))
    assert tsds.verify(path) == []
    assert not any(pixels[-60:] in data for _, data in unpacked(path))
    one, other = (dict(tsds.open(each)["train"].statistics) for each in (path, tmp_path / "f.tsds"))
    assert one.pop("image")["mean"] == pytest.approx(other.pop("image")["mean"])
    assert one == other


def test_the_ways_to_choose_are_the_same(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.tsds", {split: range(count) for split, count in ROWS.items()})
    chosen: list[dict[str, Any]] = [
        {"rows": {"train": [3, 3, 9], "val": [0]}},
        {"keys": [key("train", 3), key("train", 9), key("val", 0)]},
        {"where": f"key in {[key('train', 3), key('train', 9), key('val', 0)]}"},
    ]
    roots = set()
    for i, each in enumerate(chosen):
        path = shutil.copytree(whole.path, tmp_path / f"{i}.tsds")
        assert tsds.erase(path, dry_run=True, **each).erased == {"train": 2, "val": 1}
        assert tsds.open(path).sha256 == whole.sha256
        assert tsds.erase(path, **each).erased == {"train": 2, "val": 1}
        document = json.loads((path / "zarr.json").read_bytes())["attributes"]["tsds"]
        del document["provenance"]["history"][-1]["created"]
        roots.add(json.dumps(document))
    assert len(roots) == 1
    path = shutil.copytree(whole.path, tmp_path / "split.tsds")
    assert tsds.erase(path, "label == 'cat'", splits=["val"]).erased == {"val": 2}


def test_a_store_without_keys(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.tsds", {"train": range(8)})
    path = tmp_path / "s.tsds"
    tsds.pull(str(whole.path), path, fields=["image", "label"])
    with pytest.raises(OptionError, match="expected samples with keys, found none"):
        tsds.erase(path, keys=[key("train", 1)])
    assert tsds.erase(path, rows={"train": [1]}).keys == ("train/00001",)
    assert tsds.erase(path, "label == 'cat'").erased == {"train": 3}
    assert tsds.open(path)["train"]["label"][:].tolist() == [2, 1, 2, 1]
    assert tsds.verify(path) == []


def test_keys_are_read_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(8)}).path
    monkeypatch.setattr("tensorstore_ds.format.kinds.key_index._ROWS", 3)
    tsds.erase(path, keys=[key("train", row) for row in (2, 3, 7)])
    assert [tsds.open(path)["train"].key(row) for row in range(5)] == [key("train", row) for row in (0, 1, 4, 5, 6)]


def test_rows_of_an_earlier_store(tmp_path: Path) -> None:
    """Rows have other numbers after an erasure: the digest says which store they are of."""
    path = write(tmp_path / "s.tsds", {"train": range(8)}).path
    digest = tsds.check_store(path, near=False).sha256
    assert digest == tsds.open(path).sha256
    tsds.erase(path, rows={"train": [1]}, sha256=digest)
    with pytest.raises(FormatError, match="Rows have other numbers after samples were erased") as caught:
        tsds.erase(path, rows={"train": [1]}, sha256=digest)
    assert caught.value.reason == "checksum" and len(tsds.open(path)["train"]) == 7


def test_only_pixels_of_erased_rows_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(9)}, shard_nbytes=1).path
    counted = []

    def of_pixels(pixels: Any) -> Any:
        counted.append(len(pixels))
        return original(pixels)

    original = ImageSums.of_pixels
    monkeypatch.setattr(ImageSums, "of_pixels", of_pixels)
    tsds.erase(path, rows={"train": [1, 4]})
    assert sum(counted) == 2
    tsds.erase(path, rows={"train": [0, 1, 2, 3, 4]})  # of those that are left, which are fewer
    assert sum(counted) == 4
    pixels = np.asarray(tsds.open(path)["train"]["image"][:]) / 255
    moments = tsds.open(path)["train"].channel_moments
    assert moments is not None
    np.testing.assert_allclose(moments[:2], [pixels.mean(axis=(0, 1, 2)), pixels.std(axis=(0, 1, 2))], rtol=1e-12)


def test_only_shards_with_such_rows_are_written(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(9), "val": range(2)}, shard_nbytes=1).path
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}
    tsds.erase(path, rows={"train": [1]})  # a whole shard: nothing is written but the root
    after = {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}
    assert {file for file in after if after[file] != before.get(file)} == {path / "zarr.json"}
    split = tsds.open(path).manifest.splits["train"]
    assert (split.numbers, split.replaced) == ([0, 2, 3, 4, 5, 6, 7, 8], (1,))
    tsds.erase(path, rows={"train": [7]})  # the last one, whose number is not used again
    tsds.erase(path, rows={"val": [0]})
    assert tsds.open(path).manifest.splits["train"].replaced == (8,)
    source = class_folders(tmp_path / "more", "cat", count=2)
    other = tsds.convert(source, tmp_path / "o.tsds", workers=0)
    assert other.rows == {"train": 2}
    assert values(tsds.open(path))["train"] == [
        row for i, row in enumerate(values(write(tmp_path / "w.tsds", {"train": range(9)}))["train"]) if i not in (1, 8)
    ]
    assert tsds.verify(path) == []


def test_numbers_of_shards_after_append(tmp_path: Path) -> None:
    """A number that a shard had is given to no other one, also when the last shard went and another split changed."""
    root = class_folders(tmp_path / "photos", "cat", "dog", count=4)
    path = tmp_path / "s.tsds"
    tsds.convert(root, path, workers=0, shard_nbytes=1, split_into={"train": 0.5, "val": 0.5})
    last = tsds.open(path)["train"].key(3)
    tsds.erase(path, keys=[last])
    tsds.erase(path, rows={"val": [0]})
    assert tsds.append(path, root, workers=0).added.count == 0  # they were erased
    tsds.append(path, root, workers=0, restore_erased=True)
    used = tsds.open(path).manifest.splits["train"].numbers
    assert used[:3] == [0, 1, 2] and min(used[3:]) > 3
    assert tsds.verify(path) == []


def test_all_of_a_split(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(4), "val": range(3)}).path
    tsds.erase(path, "width > 0", splits=["val"])
    store = tsds.open(path)
    assert (len(store["val"]), store.manifest.splits["val"].shards) == (0, ())
    assert store["val"].statistics == {}
    assert tsds.verify(path) == []
    assert len(tsds.StoreDataset(path, "val")) == 0 and len(tsds.StoreDataset(path, "train")) == 4
    assert [len(store["val"][name]) for name in store["val"].fields] == [0] * len(store["val"].fields)
    with pytest.raises(OptionError, match="expected samples that stay, found none"):
        tsds.erase(path, "width > 0")
    assert len(tsds.open(path)["train"]) == 4


# --- other files ------------------------------------------------------------------------------------------------------


def annotated(tmp_path: Path) -> Path:
    """A store of Pascal VOC with lines in ``skipped.jsonl``: of stored samples, and of others."""
    root = voc(tmp_path / "voc", *"abcdef", boxes=(("cat", 1, 2, 8, 9), ("cat", 3, 3, 3, 5)))
    Image.new("RGB", (12, 10)).save(root / "JPEGImages" / "unlisted.png")
    (root / "JPEGImages" / "e.png").write_bytes(b"no image")
    tsds.convert(root, tmp_path / "s.tsds", workers=0, on_error="skip", size=(8, 8))
    return tmp_path / "s.tsds"


@pytest.mark.parametrize("erased", ["a", "c", "f", "af", "abc", "abcd"])
def test_lines_of_what_was_skipped(tmp_path: Path, erased: str) -> None:
    path = annotated(tmp_path)
    before, counts = skipped_in(tsds.open(path)), tsds.open(path).manifest.provenance["skipped"]
    assert [each.where[11] for each in before if each.reason == "box-empty"] == [*"abcdf"]
    keys = [f"JPEGImages/{name}.png" for name in erased]
    tsds.erase(path, keys=keys)
    after, store = skipped_in(tsds.open(path)), tsds.open(path)
    assert after == [each for each in before if each.where not in keys]
    assert store.manifest.provenance["skipped"] == {**counts, "box-empty": 5 - len(erased)}
    assert tsds.verify(path) == []
    assert not [name for name in path.iterdir() if name.name not in ("zarr.json", "skipped.jsonl", "train")]
    text = (path / "skipped.jsonl").read_text()
    assert all(f"/{name}." not in text for name in erased) and text.count("\n") == len(after)


def test_names_are_found_as_whole_words_and_paths() -> None:
    def found(name: str, text: str) -> bool:
        return text in Mentions([name], [text])

    assert all(found("1.png", text) for text in ("1.png", "see '1.png'.", "(1.png)", "a: 1.png: b", "1.png is gone"))
    assert not any(found("1.png", text) for text in ("11.png", "a/1.png", "1.png/2", "1.png.txt", "x-1.png", "1.pngs"))
    assert found("a/1.png", "train/a/1.png: bad") and not found("a/1.png", "ca/1.png")
    assert found("a b.png", "the file a b.png is") and not found("a", "that and b")
    assert not found("", "")
    problems = [Problem("Annotations/a.xml", "x", ""), Problem("b.xml", "x", "as a.png"), Problem("b.png", "x", "")]
    assert problems_of({"a.png"}, problems) == set(problems[:2])


def test_provenance_names_no_sample(tmp_path: Path) -> None:
    first = write(tmp_path / "a.tsds", {"train": range(6)})
    gone, other = key("train", 1), key("train", 2)
    where = f"key != '{key('train', 4)}' and key != {gone!r} or key in ['{other}', '{gone}']"
    tsds.editing.filter_store(first.path, tmp_path / "b.tsds", where)
    path = tmp_path / "b.tsds"
    tsds.annotate(path, description=f"Thanks to {gone}.", license="MIT")
    notes = tsds.erase(path, keys=[gone]).notes
    provenance = tsds.open(path).manifest.provenance
    history = json.dumps(provenance["history"])
    assert gone not in history and other in history and "(erased)" in history
    assert provenance["description"] == f"Thanks to {gone}."  # a text of people
    assert any("the description names a sample that was erased" in note for note in notes)


def test_a_class_without_samples_is_noted(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", "anna", "otto", count=2)
    tsds.convert(root, tmp_path / "s.tsds", workers=0)
    (note,) = tsds.erase(tmp_path / "s.tsds", "label == 'anna'").notes
    assert note.startswith("these classes of label have no samples left, and the store keeps their names: anna.")


def test_shards_that_were_replaced_before_go_as_well(tmp_path: Path) -> None:
    root = voc(tmp_path / "voc", *"abcdef")
    path = tmp_path / "s.tsds"
    tsds.convert(root, path, workers=0, shard_nbytes=1, size=(8, 8))
    for name in "ab":
        xml = root / "Annotations" / f"{name}.xml"
        xml.write_text(xml.read_text().replace("<xmin>1<", "<xmin>2<"))
    tsds.update(path, root, workers=0)
    assert tsds.open(path).replaced[0] == 2
    (tmp_path / "s.tsds.append").mkdir()
    summary = tsds.erase(path, keys=["JPEGImages/a.png"])
    assert (summary.removed_shards, tsds.open(path).replaced) == (3, (0, 0))
    assert sorted(int(each.name) for each in (path / "train").iterdir() if each.is_dir()) == [2, 3, 4, 5, 7]
    assert any("holds samples of an interrupted append" in note for note in summary.notes)


def test_crops_of_an_image(tmp_path: Path) -> None:
    root = voc(tmp_path / "voc", *"ab", boxes=(("cat", 1, 2, 8, 9), ("cat", 3, 3, 9, 9), ("cat", 3, 3, 3, 5)))
    path = tmp_path / "s.tsds"
    tsds.convert(root, path, workers=0, cut=tsds.conversion.ObjectCrops(), size=(8, 8), on_error="skip")
    named = [each.where for each in skipped_in(tsds.open(path))]
    assert any("a.png" in where for where in named)
    tsds.erase(path, keys=[tsds.open(path)["train"].key(0)])
    tsds.erase(path, "'a.png' in key")
    assert not any("a.png" in each.where for each in skipped_in(tsds.open(path)))
    assert any("b.png" in each.where for each in skipped_in(tsds.open(path)))


# --- readers ----------------------------------------------------------------------------------------------------------


def test_who_has_the_store_open(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(10)}, shard_nbytes=2000).path
    store = tsds.open(path)
    split, pickled = store["train"], pickle.dumps(store)
    assert [shard.rows for shard in store.manifest.splits["train"].shards][:2] == [2, 2]
    mapped = split["image"][0]  # a view of the map of a shard that will go
    before = mapped.tobytes()
    tsds.erase(path, rows={"train": [0, 3]})
    assert mapped.tobytes() == before
    assert len(split["image"][8].tobytes()) > 0 and split.table("key")["bytes"].part(4) is not None  # of one that stays
    for read in (lambda: split["image"][2], lambda: split["label"][0], lambda: pickle.loads(pickled)):  # noqa: S301
        with pytest.raises(FormatError, match=r"Open it again\.$") as caught:
            read()
        assert caught.value.reason == "replaced"
    assert len(pickle.loads(pickle.dumps(tsds.open(path)))["train"]) == 8  # noqa: S301


def test_a_shard_that_is_half_removed_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(10)}, shard_nbytes=2000).path
    split = tsds.open(path)["train"]
    split["label"][0]  # its list of files was read
    tsds.erase(path, rows={"train": [0]})
    (path / "train" / "00000").mkdir()
    for name in ("image", "captions"):
        with pytest.raises(FormatError, match="Open it again") as caught:
            split[name][0]
        assert caught.value.reason == "replaced"


def test_a_store_whose_files_are_missing_is_still_damaged(tmp_path: Path) -> None:
    """No erasure: the reason stays the one of damage."""
    path = write(tmp_path / "s.tsds", {"train": range(10)}, shard_nbytes=2000).path
    split = tsds.open(path)["train"]
    shutil.rmtree(path / "train" / "00000")
    with pytest.raises(FormatError) as caught:
        split["image"][0]
    assert caught.value.reason == "missing-file"
    with pytest.raises(FormatError) as caught:
        tsds.open(path)
    assert caught.value.reason == "missing-file"


# --- interruptions ----------------------------------------------------------------------------------------------------


#: What ends at some step: functions that change the disk, or are called between such.
STEPS = [
    *((in_place, name) for name in ("write_file", "sync", "open_store")),
    (ShardRows, "write"),
    *((in_place.shutil, name) for name in ("rmtree",)),
    *((in_place.os, name) for name in ("truncate", "unlink", "rmdir")),
]


def counted(call: Any, steps: Iterator[int], end: Callable[[], None]) -> Any:
    def run(*args: Any, **named: Any) -> Any:
        if next(steps, None) is None:
            end()
        return call(*args, **named)

    return run


def killed_at(step: int, path: Path, keys: Sequence[str]) -> bool:
    """Erase in a child that ends without any cleaning at a step on the disk; whether it got there."""
    child = os.fork()
    if child == 0:
        steps = iter(range(step))
        for place, name in STEPS:
            setattr(place, name, counted(getattr(place, name), steps, lambda: os._exit(9)))
        try:
            tsds.erase(path, keys=keys)
        except BaseException:  # whatever it is, the test is told of it
            os._exit(3)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child is ended in the middle")
@pytest.mark.parametrize("erased", ["c", "f", "b"])
def test_killed_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, erased: str) -> None:
    """The store is what it was or what it is to be, always valid; the same command again ends well, and all is gone."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first, keys = annotated(tmp_path), [f"JPEGImages/{erased}.png"]
    if erased == "b":  # with shards of an update before
        xml = tmp_path / "voc" / "Annotations" / "c.xml"
        xml.write_text(xml.read_text().replace("<xmin>1<", "<xmin>2<"))
        tsds.update(first, tmp_path / "voc", workers=0, on_error="skip")
    whole = shutil.copytree(first, tmp_path / "whole.tsds")
    tsds.erase(whole, keys=keys)
    expected, old, new = files_of(whole), values(tsds.open(first)), values(tsds.open(whole))
    completed = 0
    for step in range(1000):
        path = shutil.copytree(first, tmp_path / f"{step}.tsds")
        if not killed_at(step, path, keys):
            break
        assert {each.reason for each in tsds.verify(path)} <= {"unlisted-file"}
        found = values(tsds.open(path))
        assert found in (old, new)
        try:
            summary = tsds.erase(path, keys=keys)
        except OptionError:  # nothing was left to do
            assert found == new and files_of(path) == expected
            continue
        assert summary.completed == (found == new)
        completed += summary.completed
        assert files_of(path) == expected
        assert tsds.verify(path) == []
    assert step > 10 and completed > 2


def stopped(path: Path, monkeypatch: pytest.MonkeyPatch, keys: Sequence[str], error: BaseException) -> None:
    """Erase, and fail when the first old shard is to be removed."""

    def remove(*_: object) -> int:
        raise error

    with monkeypatch.context() as patched, pytest.raises((type(error), ConversionError)):
        patched.setattr(in_place, "_remove_shard", remove)
        tsds.erase(path, keys=keys)


@pytest.mark.parametrize("after", ["keys", "where", "other keys", "rows", "append", "annotate"])
def test_what_was_left_is_removed_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(8)}).path
    keys = [key("train", 1)]
    stopped(path, monkeypatch, keys, KeyboardInterrupt())
    assert tsds.open(path).replaced[0] == 1 and len(tsds.open(path)["train"]) == 7
    digest = tsds.open(path).sha256
    if after == "append":
        source = class_folders(tmp_path / "more", "cat")
        with pytest.raises(OptionError):  # another kind of data
            tsds.append(path, source, workers=0)
        assert tsds.open(path).replaced[0] == 0
        return
    if after == "annotate":
        tsds.annotate(path, license="MIT")
        digest = tsds.open(path).sha256
    chosen: dict[str, dict[str, Any]] = {
        "where": {"where": f"key == {keys[0]!r}"},
        "rows": {"rows": {"train": [1]}},
        "other keys": {"keys": [key("train", 2)]},
    }
    summary = tsds.erase(path, **chosen.get(after, {"keys": keys}))
    assert summary.completed and summary.removed_shards == (2 if after == "other keys" else 1)
    assert tsds.open(path).replaced[0] == 0
    assert (tsds.open(path).sha256 == digest) == (after != "other keys")
    assert len(tsds.open(path)["train"]) == (6 if after == "other keys" else 7)
    assert any("No more samples were erased" in note for note in summary.notes) == (after == "rows")
    if after == "keys":
        with pytest.raises(OptionError, match="found 1 that no sample has"):
            tsds.erase(path, keys=keys)


def test_what_a_later_command_has_replaced_is_no_interrupted_erasure(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(8)}).path
    tsds.erase(path, rows={"train": [0]})
    tsds.editing.add_fields(path, {"loss": np.zeros(7)})
    assert tsds.open(path).replaced[0] > 0
    summary = tsds.erase(path, rows={"train": [0]})
    assert (summary.erased, summary.completed) == ({"train": 1}, False)
    assert len(tsds.open(path)["train"]) == 6


def test_files_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(8)}).path
    error = PermissionError(13, "Permission denied", str(path / "train" / "00000"))
    with monkeypatch.context() as patched, pytest.raises(ConversionError) as caught:
        patched.setattr(in_place, "_remove_shard", lambda folder: (_ for _ in ()).throw(error))
        tsds.erase(path, keys=[key("train", 1)])
    assert "the samples are erased from the store, but their old files could not all be removed" in str(caught.value)
    assert "Run the same command again" in str(caught.value) and "\n" not in str(caught.value)
    assert tsds.erase(path, keys=[key("train", 1)]).completed


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsds", {split: range(count) for split, count in ROWS.items()}).path
    before = files_of(path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "expected one of `where`, `rows` and `keys`"),
        ({"where": "label == 'cat'", "keys": ["a"]}, "expected one of `where`, `rows` and `keys`"),
        ({"rows": {"train": [1]}, "splits": ["train"]}, "`rows` names the splits itself"),
        ({"where": "label == 'cow'"}, "found none that do. There is no class 'cow'"),
        ({"where": "label = 'cow'"}, "`where`: expected a condition"),
        ({"where": "width > 0", "splits": ["test"]}, "expected splits of train, val, found 'test'"),
        ({"rows": {"test": [1]}}, "expected splits of train, val, found 'test'"),
        ({"rows": {"train": [14]}}, "expected rows of train from 0 to 13 to erase, found 14"),
        ({"rows": {"train": [-1]}}, "expected rows of train from 0 to 13 to erase, found -1"),
        ({"rows": {"train": np.arange(14) > 9}}, "whole numbers, the rows of train to erase, found False. For a mask"),
        ({"rows": {"train": [1.0]}}, "whole numbers, the rows of train to erase, found 1.0"),
        ({"rows": {"train": []}}, "expected samples to erase, found none"),
        ({"keys": []}, "expected samples to erase, found none"),
        ({"keys": [key("val", 1), "zz", "yy"]}, "found 2 that no sample has: 'yy', 'zz'. Nothing was erased."),
        ({"keys": [key("val", 1)], "splits": ["train"]}, "found 1 that no sample has"),
        ({"keys": ["train-person-000977.jpg"]}, f"There is '{key('train', 1)}'."),
    ]
    for chosen, message in cases:
        with pytest.raises(OptionError) as caught:
            tsds.erase(path, **chosen)
        assert message in str(caught.value) and "\n" not in str(caught.value)
    assert files_of(path) == before


def test_shards_of_which_nothing_is_copied_may_be_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsds", {"train": range(10)}, shard_nbytes=2000).path
    count = tsds.open(path).manifest.splits["train"].shards[0].rows
    (data,) = (file for file in (path / shard_path("train", 0) / "image" / "c").rglob("*") if file.is_file())
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(FormatError, match="Nothing was changed: a damaged shard would get new checksums"):
        tsds.erase(path, rows={"train": [0]})
    tsds.erase(path, rows={"train": [9]})  # of other shards
    tsds.erase(path, rows={"train": [*range(count)]})
    assert tsds.verify(path) == []


def test_a_store_that_is_served(tmp_path: Path) -> None:
    """The server goes on with what is left; a reader by URL of what is gone gets one line."""
    pytest.importorskip("obstore")
    root = voc(tmp_path / "voc", *"abcdef", boxes=(("cat", 1, 2, 8, 9), ("cat", 3, 3, 3, 5)))
    path = tmp_path / "s.tsds"
    tsds.convert(root, path, workers=0, on_error="skip", size=(8, 8), shard_nbytes=1)
    with tsds.serve(path) as url:
        before = tsds.open(url, cache_dir=tmp_path / "cache")
        assert before["train"].key(0) == "JPEGImages/a.png"
        tsds.erase(path, keys=["JPEGImages/c.png"])
        after = tsds.open(url, cache_dir=tmp_path / "cache")
        assert [after["train"].key(row) for row in range(5)] == [f"JPEGImages/{name}.png" for name in "abdef"]
        assert after["train"]["image"][:].tolist() == tsds.open(path)["train"]["image"][:].tolist()
        assert len(before["train"]["image"][5]) == 8
        with pytest.raises(tsds.TsdsError) as caught:
            before["train"]["image"][2]
        assert "\n" not in str(caught.value)
