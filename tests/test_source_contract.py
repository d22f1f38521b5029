"""What is added to a source, or damaged in it, is used, or said with its name, or an error, in every format.

`test_source_perturbed` changes the text in annotations. Here are files that no reader knows, images that are gone,
damaged archives, and what archives and tables may hold beside the data.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import Found, found, idx, npy, npz, refused, tar, write
from layouts import HEIGHT, WIDTH
from mask_sources import write_folders, write_voc
from mds_files import image_bytes, write_mds
from stores import contents, interrupted, png_bytes
from tensorstore_ds import packed_strings
from tensorstore_ds.annex.sources import json_files
from tensorstore_ds.annex.sources.coco import source as coco
from tensorstore_ds.errors import TsdsError
from tensorstore_ds.sources import FORMATS, open_source, recognized
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, SourceOptions
from test_source_idx import IMAGES, LABELS
from test_source_perturbed import SOURCES, samples

PNG = image_bytes(7)


def packed(members: Mapping[str, bytes]) -> bytes:
    return tar(*members.items())


def parquet(rows: int = 2, **more: Any) -> bytes:
    pa = pytest.importorskip("pyarrow")
    image = [{"bytes": image_bytes(i), "path": f"{i}.png"} for i in range(rows)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return table({"image": pa.array(image, kind), "label": pa.array(range(rows), pa.int64()), **more})


def table(columns: Mapping[str, Any]) -> bytes:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), buffer)
    return buffer.getvalue()


def hdf5(change: Callable[[Any], None] = lambda file: None) -> bytes:
    h5py = pytest.importorskip("h5py")
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["images"], file["labels"] = IMAGES, LABELS.astype(np.int64)
        file["class_names"] = np.array([b"a", b"b", b"c"])
        change(file)
    return buffer.getvalue()


def lmdb(path: Path, entries: Mapping[bytes, bytes]) -> None:
    library = pytest.importorskip("lmdb")
    path.mkdir(parents=True)
    with library.open(str(path), map_size=1 << 20) as env, env.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)


def numbered(*labels: str) -> dict[bytes, bytes]:
    entries = {b"image-%09d" % i: image_bytes(i) for i, _ in enumerate(labels, 1)}
    return entries | {b"label-%09d" % i: label.encode() for i, label in enumerate(labels, 1)}


def databases(root: Path) -> None:
    lmdb(root / "train", numbered("0", "1"))
    lmdb(root / "val", numbered("1"))


def shards(root: Path) -> None:
    columns = {"image": "png", "class": "int"}
    rows = [{"image": image_bytes(i), "class": struct.pack("<q", i)} for i in range(3)]
    write_mds(root / "train", columns, rows[:2])
    write_mds(root / "val", columns, rows[2:])


def files(**contents: bytes | Callable[[], bytes]) -> Callable[[Path], None]:
    """A source of these files, by path with ``__`` for ``/`` and ``-`` for ``.``."""

    def make(root: Path) -> None:
        write(root, {name: data() if callable(data) else data for name, data in contents.items()})

    return make


_SAMPLE = {"a.png": PNG, "a.cls": b"0", "a.json": b'{"caption": "a cat"}', "b.png": image_bytes(8), "b.cls": b"1"}
_IDX = {
    f"{split}-{what}-idx{d}-ubyte": idx(array)
    for split in ("train", "t10k")
    for what, d, array in (("images", 3, IMAGES), ("labels", 1, LABELS))
}

#: Of each a valid source of files that are not text.
BUILT: Mapping[str, Callable[[Path], None]] = {
    "parquet": files(**{"data/train-00000-of-00001.parquet": parquet, "data/test-00000-of-00001.parquet": parquet}),
    "webdataset": files(**{"train-000000.tar": packed(_SAMPLE), "val-000000.tar": packed(_SAMPLE)}),
    "npz": files(**{f"{split}.npz": npz(images=IMAGES, labels=LABELS) for split in ("train", "test")}),
    "npy": files(**{"x_train.npy": npy(IMAGES), "y_train.npy": npy(LABELS)}),
    "hdf5": files(**{"train.h5": hdf5, "test.h5": hdf5}),
    "idx": files(**_IDX),
    "lmdb": databases,
    "mds": shards,
    "masks": lambda root: write_folders(root, 2) and None,
    "masks, VOC": lambda root: write_voc(root, ((8, 9), (9, 8), (8, 8), (9, 9))) and None,
    "classes": files(**{f"{c}/{i}.png": image_bytes(i) for c in ("cat", "dog") for i in (1, 2)}),
    "classes of splits": files(**{f"{s}/{c}/{s}.png": PNG for s in ("train", "val") for c in ("cat", "dog")}),
    "images": files(**{"a.png": PNG, "b/c.png": image_bytes(1), "b/d.png": image_bytes(2)}),
}  # fmt: skip


def make(name: str, root: Path) -> Path:
    if name in BUILT:
        BUILT[name](root)
    else:
        write(
            root, {path: PNG if path.endswith(tuple(IMAGE_SUFFIXES)) else text for path, text in SOURCES[name].items()}
        )
    return root


ALL = (*SOURCES, *BUILT)

_ZIP = io.BytesIO()
with zipfile.ZipFile(_ZIP, "w") as _archive:
    _archive.writestr("mood.txt", "good")

#: Files that belong to no source.
STRANGE: Mapping[str, bytes] = {
    **{
        f"strange.{suffix}": b"mood good\n" for suffix in ("xyz", "txt", "tfrecord", "bin", "dat", "mdb", "log", "list")
    },
    "oddity": b"mood good\n",
    "strange.csv": b"mood,place\ngood,here\n",
    "strange.tsv": b"mood\tplace\ngood\there\n",
    "strange.json": b'{"mood": "good"}',
    "strange.jsonl": b'{"mood": "good"}\n{"mood": "bad"}\n',
    "strange.xml": b"<mood>good</mood>",
    "strange.yaml": b"mood: good\n",
    "strange.pts": b"mood good\n",
    "strange.mat": b"MATLAB 5.0 MAT-file".ljust(128),
    "strange.npy": npy(np.arange(7)),
    "strange.npz": npz(mood=np.arange(7)),
    "strange.h5": b"\x89HDF\r\n\x1a\n".ljust(64),
    "strange.parquet": b"PAR1".ljust(64) + b"PAR1",
    "strange.tar": packed({"mood.txt": b"good"}),
    "strange.zip": _ZIP.getvalue(),
    "strange.pkl": b"\x80\x04N.",
    "strange.png": image_bytes(99),
}


def told(root: Path, options: SourceOptions | None = None) -> tuple[Any, str]:
    """What is read, and all that is said, also by an error, which must say where it is."""
    try:
        found, said = samples(root, options)
    except TsdsError as error:
        lines = [str(error), *map(str, getattr(error, "problems", ()))]
        return None, "\n".join(lines)
    return found, said


def lost(root: Path, added: Mapping[str, bytes], before: str) -> Iterator[str]:
    """The names of files that are neither said nor a sample, once they are added all at once.

    After an error, those that it does not name are added again, or each alone.
    """
    write(root, added)
    found, said = told(root)
    for name in added:
        (root / name).unlink()
    more = "".join(line for line in said.splitlines() if line not in before)
    missing = [
        name
        for name in added
        if name not in str(found)
        and Path(name).name not in more
        and (found or str(root) not in said)
        and f"{Path(name).suffix or name} files" not in more  # one more of those that are not read
    ]
    if len(added) == 1 or (found is not None and not missing):
        yield from (f"{name}: {said or 'nothing is said'}" for name in missing)
        return
    others = {name: data for name, data in added.items() if found is not None or Path(name).name not in said}
    for some in [others] if others and len(others) < len(added) else [{name: added[name]} for name in added]:
        yield from lost(root, some, before)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", ALL)
def test_a_file_of_another_kind(name: str, tmp_path: Path) -> None:
    root = make(name, tmp_path / "source")
    folders = sorted({path.parent.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} | {"."})
    _, said = told(root)
    silent = []
    for folder in {folders[0], folders[-1]}:
        prefix = "" if folder == "." else f"{folder}/"
        silent += lost(root, {f"{prefix}{each}": data for each, data in STRANGE.items()}, said)
    assert silent == []


def damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    for part in (1 / 3, 0.6, 0.95):
        yield f"cut at {part:.2f}", data[: int(len(data) * part) + 1]
    yield "cut by a byte", data[:-1]
    yield "zeros at its beginning", b"\0" * min(16, len(data)) + data[16:]
    yield "bytes behind its end", data + b"strange"


@pytest.mark.parametrize("name", BUILT)
def test_a_damaged_file(name: str, tmp_path: Path) -> None:
    root = make(name, tmp_path / "source")
    expected, _ = samples(root)
    silent = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if path.suffix in IMAGE_SUFFIXES or path.name == "lock.mdb":
            continue
        for what, changed in damaged(data):
            path.write_bytes(changed)
            found, said = told(root)
            if found != expected and path.name not in said and path.parent.name not in said.replace(str(root), ""):
                silent.append(f"{path.relative_to(root)}, {what}: {said or 'nothing is said'}")
        path.write_bytes(data)
    assert silent == []


@pytest.mark.parametrize("name", SOURCES)
def test_an_image_that_is_gone(name: str, tmp_path: Path) -> None:
    root = make(name, tmp_path / "source")
    silent = []
    for image in sorted(path for path in root.rglob("*") if path.suffix in IMAGE_SUFFIXES):
        image.unlink()
        found, said = told(root)
        source = None if found is None else open_source(root)
        contents = None if source is None else source.contents()
        named = [] if source is None or contents is None else [
            str(source.read(split, each).image) for split, some in contents.splits.items() for each in some
        ]  # fmt: skip
        if image.name not in said and image.stem not in said and str(image) not in named:
            silent.append(f"{image.relative_to(root)}: {said or 'nothing is said'}")
        image.write_bytes(PNG)
    assert silent == []


#: What is said where the end of a path does not tell the image.
UNTOLD = {
    "Roboflow, COCO": "expected one image of that name",
    "Darknet": "expected the path of an image in this source",
}


@pytest.mark.parametrize("written", ["C:\\me\\x\\{}", "/home/me/{}", "../../../x/{}"])
@pytest.mark.parametrize("name", SOURCES)
def test_paths_of_another_machine(name: str, written: str, tmp_path: Path) -> None:
    root = make(name, tmp_path / "source")
    expected = found(root).keys
    images = {path.name for path in root.rglob("*") if path.suffix in IMAGE_SUFFIXES}
    for path, text in SOURCES[name].items():
        if path.endswith((".xml", ".json", ".jsonl", ".csv", ".txt")):
            for image in images:
                place = written.format(image)
                place = json.dumps(place)[1:-1] if "json" in path else place
                text = place.join(re.split(rf"[\w./]*{re.escape(image)}", text))
            write(root, {path: text})
    _, said = told(root)
    if name in UNTOLD:
        assert UNTOLD[name] in said
        return
    assert found(root).keys == expected
    assert written.partition("{")[0] in said or name not in ("imglab", "CSV", "text list")


#: Formats that tell images by their places, or are not recognized without any.
BESIDE = frozenset({"Roboflow, COCO", "Ultralytics, coco8", "Darknet", "CSV, names without suffixes"})


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in BESIDE])
def test_images_in_a_folder_apart(name: str, tmp_path: Path) -> None:
    root, apart = make(name, tmp_path / "source"), tmp_path / "apart"
    expected = {split: [f"deep/{key}" for key in keys] for split, keys in found(root).keys.items()}
    for path in [path for path in root.rglob("*") if path.suffix in IMAGE_SUFFIXES]:
        place = Path("deep", path.relative_to(root))
        write(apart, {f"{place}": path.read_bytes(), f"{place.with_name('more.png')}": PNG})
        path.unlink()
    got = found(root, images=apart)
    assert got.keys == expected and any("more.png" in each for each in got.said)
    for split, references in got.contents.splits.items():
        for key, reference in zip(expected[split], references, strict=True):
            assert f"{apart}/{key}" in got.source.files(reference)


@pytest.mark.parametrize("name", ALL)
def test_a_link_that_leads_back(name: str, tmp_path: Path) -> None:
    root = make(name, tmp_path / "source")
    (root / "again").symlink_to(root)
    found, said = told(root)
    assert "again" in said or (found is None and name == "lmdb"), said  # which finds each database twice


def _lmdb_more(root: Path, more: Mapping[bytes, bytes]) -> None:
    shutil.rmtree(root / "val")
    lmdb(root / "val", numbered("1") | more)


def _mds_index(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads((root / "val/index.json").read_bytes())
    change(index)
    (root / "val/index.json").write_text(json.dumps(index))


def _mood(array: Any) -> Any:
    return pytest.importorskip("pyarrow").array(array)


def _more() -> Iterator[tuple[str, str, Callable[[Path], object], str]]:
    """A source, what is added to it, how, and the name that must be said."""

    def adds(name: str, path: str, data: bytes | Callable[[], bytes], says: str, what: str) -> Any:
        return name, what, lambda root: write(root, {path: data() if callable(data) else data}), says

    new, other = "data/val-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"
    yield adds("parquet", other, lambda: parquet(mood=_mood(["good", "bad"])), "mood", "a column")
    yield adds("parquet", other, lambda: parquet(mood=_mood([[1], [2, 3]])), "mood", "a column of lists")
    yield adds("parquet", other, lambda: parquet(mood=_mood([{"a": 1}] * 2)), "mood", "a column of structs")
    yield adds("parquet", new, lambda: parquet(0), "val-00000", "no rows")
    yield adds("parquet", new, lambda: table({"mood": [1, 2]}), "val-00000", "another schema")
    yield adds(
        "webdataset", "val-000000.tar", packed({**_SAMPLE, "a.mood": b"x"}), "val-000000.tar: a.mood", "a member"
    )
    yield adds(
        "webdataset", "val-000000.tar", packed({**_SAMPLE, "a.seg.png": b"x"}), "a.seg.png", "a member of two dots"
    )
    yield adds("webdataset", "val-000000.tar", packed({**_SAMPLE, "b.json": b'{"mood": 1}'}), "mood", "in JSON")
    yield adds("webdataset", "test-000000.tar", tar(), "test-000000.tar", "no members")
    yield adds("webdataset", "test-000000.tar", packed({"a.txt": b"good"}), "test-000000.tar", "no image")
    yield adds("webdataset", "test-000000.tar", packed({"a.cls": b"1"}), "test-000000.tar", "a label alone")
    yield adds("webdataset", "test-000000.tar", packed(_SAMPLE)[:1300], "test-000000.tar", "cut")
    for name, path in (("npz", "train.npz"), ("npz", "test.npz")):
        good = {"images": IMAGES, "labels": LABELS}
        yield adds(name, path, npz(**good, mood=np.arange(9)), "mood", f"an array in {path}")
    yield adds("npz", "val.npz", npz(images=IMAGES[:0], labels=LABELS[:0]), "val.npz", "no rows")
    yield adds("npy", "mood.npy", npy(np.arange(3)), "mood", "an array")
    yield adds("npy", "mood_train.npy", npy(np.array([{}, {}], object), allow_pickle=True), "mood_train", "objects")
    yield adds("npy", "x_val.npy", npy(IMAGES[:0]), "x_val", "no rows")
    for what, change in _hdf5_changes().items():
        yield adds(
            "hdf5", "test.h5", lambda change=change: hdf5(change), "classes" if "names" in what else "mood", what
        )
    yield adds("idx", "train-mood-idx1-ubyte", idx(LABELS), "mood", "a file")
    empty = {f"val-{what}-idx{d}-ubyte": idx(a[:0]) for what, d, a in (("images", 3, IMAGES), ("labels", 1, LABELS))}
    yield "idx", "no rows", lambda root: write(root, empty), "val-images"
    yield "lmdb", "entries", lambda root: _lmdb_more(root, {b"mood-000000001": b"good"}), "mood"
    yield "lmdb", "a label alone", lambda root: _lmdb_more(root, {b"label-000000009": b"1"}), "label-000000009"
    yield "lmdb", "another count", lambda root: _lmdb_more(root, {b"num-samples": b"7"}), "num-samples"
    yield "lmdb", "no entries", lambda root: lmdb(root / "test", {}), "test"
    yield "mds", "in the index", lambda root: _mds_index(root, lambda index: index.update(mood="good")), "mood"
    yield "mds", "in a shard", lambda root: _mds_index(root, lambda index: index["shards"][0].update(mood=1)), "mood"
    yield "mds", "no samples", lambda root: write_mds(root / "test", {"image": "png", "class": "int"}, []), "test"
    yield adds("mds", "val/shard.00007.mds", b"good", "shard.00007", "a shard that is not listed")
    yield "classes of splits", "an empty split", lambda root: (root / "test").mkdir(), "test"
    yield "classes of splits", "empty classes", lambda root: (root / "test/cat").mkdir(parents=True), "test"
    yield "classes", "an empty class", lambda root: (root / "mood").mkdir(), "3 classes"
    yield adds("classes of splits", "test/strange.xyz", b"x", "test/strange.xyz", "a split without images")
    yield adds("masks", "masks/mood.png", PNG, "mood.png", "a mask alone")
    yield adds("masks", "images/mood.png", PNG, "mood.png", "an image alone")


def _hdf5_changes() -> Mapping[str, Callable[[Any], None]]:
    return {
        "a dataset": lambda file: file.create_dataset("mood", data=np.arange(9)),
        "texts": lambda file: file.create_dataset("mood", data=[b"good"] * 6),
        "a number": lambda file: file.create_dataset("mood", data=5),
        "complex numbers": lambda file: file.create_dataset("mood", data=np.ones(6, complex)),
        "a group": lambda file: file.create_group("mood").create_dataset("a", data=[1]),
        "an attribute": lambda file: file.attrs.create("mood", "good"),
        "an attribute of a dataset": lambda file: file["images"].attrs.create("mood", "good"),
        "more names of classes": lambda file: file.create_dataset("classes", data=[b"mood", b"x", b"y"]),
        "numbers as names of classes": lambda file: file.create_dataset("list_classes", data=[1, 2]),
    }


@pytest.mark.parametrize(
    ("name", "what", "change", "says"), [pytest.param(*each, id=f"{each[0]}-{each[1]}") for each in _more()]
)
def test_what_is_more_is_said(
    name: str, what: str, change: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    root = make(name, tmp_path / "source")
    change(root)
    found, said = told(root)
    fields = "" if found is None else str(found[0])
    assert says in said.replace(str(root), "") or says in fields, f"{what}: {said}"


#: The formats of sources that are not named after theirs.
FORMAT_OF = {
    "Roboflow, COCO": "coco", "VOCdevkit": "voc", "Ultralytics, coco8": "yolo", "Darknet": "yolo",
    "VOC, folders of splits": "voc", "CVAT": "cvat", "Label Studio": "labelstudio", "captions": "coco", "DOTA": "dota",
    "300-W": "pts", "imagefolder, labels": "list", "imagefolder, objects": "list", "text list": "list", "npz": "arrays",
    "npy": "arrays", "masks, VOC": "masks", "classes": "folders", "classes of splits": "folders", "images": "folders",
}  # fmt: skip
_XML, _CATS = SOURCES["VOC, folders of splits"]["train/annotations/a.xml"], {"cat/a.jpg": "", "dog/b.jpg": ""}
#: Folders and files with more than their format needs, and arrays and archives that only a scan opens.
ODD: Mapping[str, Mapping[str, str | bytes]] = {
    "folders": {"train/cat/a.jpg": "", "test/cat/b.jpg": "", "README.txt": "Cats.\n", "classes.txt": "cat\ndog\n"},
    "voc": {"a.xml": _XML, "a.jpg": "", "train.txt": "a.jpg\n"},
    "voc of splits": {"train/a.xml": _XML, "train/a.jpg": "", "test/b.xml": _XML, "test/b.jpg": ""},
    "idx": {"train-images-idx3-ubyte": idx(IMAGES), "t10k-images-idx3-ubyte.gz": ""},
    "arrays": {"train/images.npy": "", "test/images.npy": ""},
    **{f"arrays in {name}": {name: ""} for name in ("mnist.npz", "x.npy")},
    **{f"list in {name}": {name: text} for name, text in (("x.csv", "path\na.png\n"), ("x.txt", "a.png 1\n"))},
    "voc in UTF-16": {"x/a.xml": _XML.encode("utf-16"), "x/a.jpg": ""},
    "voc with a document type": {"a.xml": "<!DOCTYPE annotation><annotation/>", "a.jpg": ""},
    **{f"imglab with {name}": {"a.xml": "<dataset><images/></dataset>", **more} for name, more in (
        ("nothing else", {}), ("annotations", {"b.xml": _XML}),
    )},
    "folders beside lists of something else": {
        "labels.txt": "cat\ndog\n", "prices.csv": "id,price\nfood,3\n", **_CATS
    },
    "folders beside arrays": {"x.npy": "", "cat/1.png": ""},
    "arrays of a split": {"train/x.npy": "", "train/y.npy": ""},
    **{f"list of numbers in {name}": {name: text} for name, text in (
        ("l.txt", "a.png 1\nb.png 2\n"), ("l.csv", "id,label\n'a.png',1\n"), ("m.csv", "a.png,1"),
    )},
    **{f" {name} {len(text)}": {name: text} for name, text in (
        ("l.txt", "Photographs of cats.\nSee a.png for one.\nBy Ann.\nLicence: CC0.\n"), ("l.txt", "cat\ndog\n"),
        ("l.md", "a.png 1\n"), ("l.txt", ""), ("cat/1.txt", ""), ("a.xml", "<svg/>"),
    )},
    " nothing": {"empty/": ""},
    " a drawing": {"a.xml": "<svg/>", "b.jpg": ""},
    " annotations of VOC": {"Annotations/1.xml": "", "JPEGImages/1.jpg": ""},
}  # fmt: skip


def test_each_format_is_recognized_by_its_own_source_alone(tmp_path: Path) -> None:
    formats = {name: FORMAT_OF.get(name, name.split(",")[0].replace("CSV in split folders", "CSV")) for name in ALL}
    formats = {name: "list" if format == "CSV" else format for name, format in formats.items()}
    assert {*formats.values(), "panlabel"} == set(FORMATS)
    assert {name: format.load().name for name, format in FORMATS.items()} == {name: name for name in FORMATS}
    assert {name: recognized(make(name, tmp_path / name)) for name in ALL} == {name: [formats[name]] for name in ALL}
    for name, odd in ODD.items():
        root = write(tmp_path / f"odd {name}", odd)
        expected = [each for each in name.split(" ")[:1] if each]
        assert (recognized(root), recognized(root / next(iter(odd)))[: len(odd) == 1]) == (
            expected,
            expected * (len(odd) == 1),
        )


_PARTS = "".join(f"<part name='{i}' x='1' y='2'/>" for i in range(68))
_FACE = f"<box top='1' left='2' width='3' height='4'>{_PARTS}</box>"


def _large(format: str, count: int) -> Mapping[str, str | bytes]:
    """Samples of some objects each, in one file; images are empty."""
    names, rng = [f"{i:09}.jpg" for i in range(count)], random.Random(0)
    if format == "webdataset":
        return {"a.tar": tar(*((name, b"0") for each in names for name in (each, f"{each[:-4]}.cls")))}
    images = [{"id": i, "file_name": name, "height": 32, "width": 32} for i, name in enumerate(names)]
    box = {"category_id": 1, "bbox": [1, 2, 3, 4]}
    boxes = [{"id": i, "image_id": rng.randrange(count), **box} for i in range(5 * count)]
    content = {"images": images, "categories": [{"id": 1, "name": "cat"}], "annotations": boxes}
    faces = "".join(f"<image file='{name}'>{_FACE * 5}</image>" for name in names)
    text = {"coco": json.dumps(content), "imglab": f"<dataset><images>{faces}</images></dataset>"}[format]
    return {"train.json" if format == "coco" else "a.xml": text, **dict.fromkeys(names, "")}


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("format", "count", "nbytes"), [("coco", 200, 6 * 64), ("webdataset", 300, 64), ("imglab", 40, 5 * 68 * 12 + 300)]
)
def test_a_scan_takes_little_memory_beside_its_references(
    format: str, count: int, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of a sample: lists and dicts would take several thousand, and tuples 300 to 700."""
    for module, name, value in ((json_files, "_PIECE", 1 << 13), (coco, "_AT_ONCE", 32), (packed_strings, "_PACK", 32)):
        monkeypatch.setattr(module, name, value)

    def peak(root: Path, number: int) -> int:
        source = open_source(root / "a.tar" if format == "webdataset" else root, format)
        tracemalloc.start()
        try:
            references = source.scan().splits["train"]
            found = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(references) == number
        return found - sum(len(str(each)) + 8 for each in references)

    taken = []
    for number in (count, 5 * count):
        root = write(tmp_path / str(number), _large(format, number))
        taken.append(min(peak(root, number) for _ in range(3)))  # other threads may allocate meanwhile
    assert (taken[1] - taken[0]) / (4 * count) < nbytes


# --- options, plans and changes -----------------------------------------------------------------------------------


def shown(name: str, root: Path) -> Path:
    """A source whose images can be stored, and differ."""
    make(name, root)
    for i, path in enumerate(sorted(root.rglob("*"))):
        if path.suffix in IMAGE_SUFFIXES and path.read_bytes() == PNG:
            path.write_bytes(png_bytes(np.random.default_rng(i).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)))
    return root


#: Their labels are numbers, which given names are for in turn.
NUMBERED = frozenset({"npz", "npy", "hdf5", "idx", "mds", "imagefolder, objects"})


def names(got: Found) -> list[Any]:
    """The names of each sample; the order of several labels is that of the classes."""
    return [sorted(each) if isinstance(each, list) and "objects" not in got.fields else each for each in got.names]


@pytest.mark.parametrize("name", ALL)
def test_given_classes(name: str, tmp_path: Path) -> None:
    got = found(make(name, tmp_path / "source"))
    if len(got.classes) < 2:
        return
    given = (*reversed(got.classes), "more")
    other = found(tmp_path / "source", classes=given)
    assert other.classes == list(given)
    assert (other.labels == got.labels) if name in NUMBERED else (names(other) == names(got))
    assert refused(tmp_path / "source", classes=tuple(got.classes[1:])) == "unknown-class"


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", ALL)
def test_a_conversion_that_is_stopped_goes_on(name: str, tmp_path: Path) -> None:
    options = tsds.ConvertOptions(workers=0, shard_nbytes=1, on_error="skip", fit=tsds.Fit((8, 8), "stretch"))
    root = shown(name, tmp_path / "source")
    done = sum(tsds.convert(root, tmp_path / "fresh.tsds", options).rows.values())
    interrupted(root, tmp_path / "s.tsds", done, options)
    summary = tsds.convert(root, tmp_path / "s.tsds", options)
    assert summary.resumed > 0 or done < 3
    assert contents(tmp_path / "s.tsds") == contents(tmp_path / "fresh.tsds")


@pytest.mark.parametrize("share", [0, 1 / 3, 0.9])
@pytest.mark.parametrize("name", ALL)
def test_files_that_are_gone_or_cut_after_the_scan(name: str, share: float, tmp_path: Path) -> None:
    root = make(name, tmp_path / "source")
    before = found(root)
    source = open_source(root)
    listed = source.contents().splits
    source = pickle.loads(pickle.dumps(source))  # noqa: S301  as a worker process gets it
    for path in (path for path in root.rglob("*") if path.is_file()):
        path.unlink() if share == 0 else os.truncate(path, int(path.stat().st_size * share))
    for split, references in listed.items():
        for reference, expected in zip(references, before.samples[split], strict=True):
            try:
                sample = source.read(split, reference)
            except TsdsError as error:
                assert "\n" not in str(error) and (share > 0 or "cannot be read" in str(error))
            else:  # the scan read the annotations, and the image is not read yet; or this part of the file is there
                assert str(sample) == str(expected)
                assert share > 0 or isinstance(sample.image, str | Path) or name in ("lmdb", "npz")  # unpacked, mapped
