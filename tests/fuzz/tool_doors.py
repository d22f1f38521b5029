"""Doors of whoever converts what labelling tools and old data sets have written, and archives of it."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.door import Door
from fuzz.mutations import NAMES, TABLE_TOKENS, mutate_bytes, mutate_json, mutate_text, mutate_xml
from fuzz.source_doors import SourceFile, mutate_tar, write_images
from mds_files import COLUMNS, row, shard, write_mds

_NUMBERS = (b"0.5", b"-1", b"1e9", b"nan", b"inf", b"2", b"0", b"99999999999999999999", b"0x1", b" ", b"\n", b"\t")


def yolo_labels(folder: Path) -> Door:
    """A file of objects: boxes, or polygons."""
    write_images(folder / "set/images/train", "a.png", "b.png")
    (folder / "set/labels/train").mkdir(parents=True)
    (folder / "set/data.yaml").write_text("train: images/train\nnames: [cat, dog]\n")
    goods = (b"0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.2 0.2\n", b"1 0.1 0.1 0.9 0.1 0.5 0.9 0.2 0.7\n", b"")
    mutate = partial(mutate_text, tokens=_NUMBERS)
    return SourceFile(folder, "yolo", "set/labels/train/a.txt", mutate, *goods)


def yolo_config(folder: Path) -> Door:
    """The data.yaml of Ultralytics."""
    write_images(folder / "set/images/train", "a.png", "b.png")
    (folder / "set/labels/train").mkdir(parents=True)
    (folder / "set/labels/train/a.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    goods = (
        b"path: .\ntrain: images/train\nval: [images/train]\nnames:\n  0: cat\n  1: dog\n",
        b"train: images/train\nnames: [cat]\nnc: 1\n# kpt_shape: [2, 3]\n",
    )
    tokens = (
        b"&a [*a]",
        b"!!python/object:os.system",
        b"{",
        b"- ",
        b": ",
        b"../",
        b"<<: *a",
        b"kpt_shape: [2, 3]",
        *NAMES,
    )
    return SourceFile(folder, "yolo", "set/data.yaml", partial(mutate_text, tokens=tokens), *goods)


def labelme(folder: Path) -> Door:
    """A JSON file of labelme beside its image."""
    shapes = [
        {
            "label": "cat",
            "points": [[50, 30], [10.5, 20]],
            "group_id": 1,
            "shape_type": "rectangle",
            "flags": {"occluded": True},
        },
        {"label": "nose", "points": [[30, 25]], "group_id": 1, "shape_type": "point", "flags": {}},
        {"label": "dog", "points": [[1, 2], [9, 3], [5, 8]], "group_id": None, "shape_type": "polygon", "flags": {}},
        {"label": "dog", "points": [[30, 30], [33, 34]], "group_id": None, "shape_type": "circle"},
    ]
    good = {"version": "5.4.1", "flags": {}, "shapes": shapes, "imagePath": "a.png", "imageData": None}
    write_images(folder / "set", "a.png", "b.png")
    data = json.dumps({**good, "imageHeight": 40, "imageWidth": 60}).encode()
    return SourceFile(folder, "labelme", "set/a.json", mutate_json, data)


def cvat(folder: Path) -> Door:
    """The XML file of CVAT for images."""
    good = (
        b"<annotations><version>1.1</version><meta><task><id>5</id><subset>Train</subset></task></meta>"
        b'<image id="0" name="a.png" subset="Train" task_id="5" width="60" height="40">'
        b'<box label="cat" occluded="1" xtl="10.50" ytl="20.00" xbr="50.00" ybr="30.00" group_id="7">'
        b'<attribute name="Truncated">true</attribute></box>'
        b'<points label="nose" occluded="0" points="30.00,20.00;12,22" group_id="7"/>'
        b'<polygon label="dog" occluded="0" points="1,2;9,3;5,8"/>'
        b'<box label="dog" occluded="0" xtl="10" ytl="20" xbr="30" ybr="24" rotation="90.0"/>'
        b'<ellipse label="dog" occluded="0" cx="20" cy="30" rx="10" ry="4"/>'
        b'<mask label="dog" occluded="0" rle="3, 5, 4" left="4" top="5" width="6" height="7"/></image>'
        b'<image id="1" name="b.png" width="60" height="40"/></annotations>'
    )
    write_images(folder / "set/images/Train", "a.png")
    write_images(folder / "set/images", "b.png")
    return SourceFile(folder, "cvat", "set/annotations.xml", mutate_xml, good)


def labelstudio(folder: Path) -> Door:
    """The JSON export of Label Studio."""
    size = {"original_width": 60, "original_height": 40, "image_rotation": 0}
    box = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 10, "rectanglelabels": ["cat"]}
    point = {"x": 12, "y": 25, "keypointlabels": ["nose"]}
    polygon = {"points": [[1, 2], [9, 3], [5, 8]], "polygonlabels": ["dog"]}
    results = [
        {**size, "id": "r1", "type": "rectanglelabels", "value": box},
        {**size, "id": "k1", "parentID": "r1", "type": "keypointlabels", "value": point},
        {**size, "id": "p1", "type": "polygonlabels", "value": polygon},
        {"id": "c1", "type": "choices", "value": {"choices": ["indoors"]}},
    ]
    done = {"id": 9, "completed_by": 1, "was_cancelled": False, "result": results}
    tasks = [
        {"id": 1, "annotations": [done], "data": {"image": "a.png"}},
        {"id": 2, "annotations": [{"id": 11, "result": []}], "data": {"image": "/data/local-files/?d=b.png"}},
    ]
    write_images(folder / "set", "a.png", "b.png")
    return SourceFile(folder, "labelstudio", "set/export.json", mutate_json, json.dumps(tasks).encode())


def pts(folder: Path) -> Door:
    """A file of facial points, beside a good one."""
    good = b"version: 1\nn_points: 3\n{\n10.5 20\n30 30.25\n21 35\n}\n"
    write_images(folder / "set", "a.png", "b.png")
    (folder / "set/b.pts").write_bytes(good)
    tokens = (*_NUMBERS, b"{", b"}", b"version: 2", b"n_points: 4", *TABLE_TOKENS)
    return SourceFile(
        folder, "pts", "set/a.pts", partial(mutate_text, tokens=tokens), good, good.replace(b"\n", b"\r\n")
    )


def dota(folder: Path) -> Door:
    """A text file of quadrilaterals, beside a good one."""
    good = b"imagesource:GoogleEarth\ngsd:0.1\n1 2 30 4 28 28 0 26 ship 0\n5 5 9 5 9 9 5 9 plane 1\n"
    write_images(folder / "set/images", "a.png", "b.png")
    (folder / "set/labelTxt").mkdir()
    (folder / "set/labelTxt/b.txt").write_bytes(good)
    mutate = partial(mutate_text, tokens=(*_NUMBERS, b"gsd:", b" ship 2\n", b", ", *TABLE_TOKENS))
    return SourceFile(folder, "dota", "set/labelTxt/a.txt", mutate, good, b"1, 2, 30, 4, 28, 28, 0, 26, ship\r\n")


def lmdb_datum(folder: Path) -> Door:
    """A Datum of Caffe in an LMDB database."""
    return LmdbValue(folder, lmdb_value=True)


class LmdbValue(SourceFile):
    """A database of one page: it is changed as a whole, or in its value, a Datum of Caffe."""

    def __init__(self, folder: Path, *, lmdb_value: bool) -> None:
        datum = bytes([8, 1, 16, 2, 24, 3, 34, 6, *range(6), 40, 0])
        floats = bytes([8, 1, 16, 1, 24, 2, 53, 0, 0, 0, 63, 53, 0, 0, 128, 63, 40, 0])
        tokens = (b"\xff\xff\xff\xff\x0f", b"\x22", b"\x35", b"\x28", b"\x38\1", b"\x80", b"\0", b"\x7f")
        mutate = partial(mutate_pages, tokens=tokens)
        goods = (datum, floats) if lmdb_value else (one_page(datum), one_page(floats), several_pages(datum))
        super().__init__(folder, "lmdb", "set/data.mdb", mutate, *goods)
        self._is_value = lmdb_value

    def enter(self, data: bytes) -> None:
        super().enter(one_page(data[:4000]) if self._is_value else data)


def lmdb_database(folder: Path) -> Door:
    """A data file of LMDB."""
    return LmdbValue(folder, lmdb_value=False)


def several_pages(datum: bytes) -> bytes:
    """LMDB's data file as its own library writes it, with branches, and values that fill pages of their own."""
    import lmdb

    large = bytes([8, 1, 16, 50, 24, 90, 34, 148, 35, *bytes(4500), 40, 0])
    with tempfile.TemporaryDirectory() as folder:
        with lmdb.open(f"{folder}/a", subdir=False, map_size=1 << 24) as database, database.begin(write=True) as put:
            for i in range(120):
                put.put(b"%06d" % i, large if i % 20 == 0 else datum)
        return Path(folder, "a").read_bytes()


def mutate_pages(random: Random, data: bytes, tokens: Sequence[bytes]) -> bytes:
    """Any bytes changed, or some near the beginnings of pages, where the tree is."""
    if random.random() < 0.5 or len(data) < 4096:
        return mutate_bytes(random, data, tokens)
    changed = bytearray(data)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(data) // 4096) * 4096 + random.randrange(64)] = random.randrange(256)
    return bytes(changed)


def one_page(value: bytes) -> bytes:
    """LMDB's data file with one value: two pages that say where the tree is, and its root."""
    tree = struct.pack("<IHHQQQQQ", 4096, 0, 1, 0, 1, 0, 1, 2)
    free = struct.pack("<IHHQQQQQ", 4096, 8, 0, 0, 0, 0, 0, 2**64 - 1)
    pages = [
        struct.pack("<QHHHH", i, 0, 8, 0, 0) + struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 1 << 20) + free + tree
        + struct.pack("<QQ", 2, i)
        for i in range(2)
    ]  # fmt: skip
    node = struct.pack("<HHHH", len(value), 0, 0, 1) + b"k" + value
    place = 4096 - len(node) - len(node) % 2
    leaf = struct.pack("<QHHHHH", 2, 0, 2, 18, place, place)
    return b"".join(page.ljust(4096, b"\0") for page in (*pages, leaf.ljust(place, b"\0") + node))


def hdf5(folder: Path) -> Door:
    """An HDF5 file: an array, a compressed one, and the bytes of files."""
    import h5py

    goods = []
    for kind in ("plain", "gzip", "files"):
        buffer = io.BytesIO()
        with h5py.File(buffer, "w") as file:
            if kind == "files":
                dataset = file.create_dataset("images", (2,), h5py.vlen_dtype(np.uint8))
                write_images(folder, "a.png")
                for i in range(2):
                    dataset[i] = np.fromfile(folder / "a.png", np.uint8)
            else:
                options = {"chunks": (2, 5, 7), "compression": "gzip"} if kind == "gzip" else {}
                file.create_dataset("images", data=np.arange(140, dtype=np.uint8).reshape(4, 5, 7), **options)
            file["labels"] = np.arange(2 if kind == "files" else 4) % 2
            file["labels"].attrs["classes"] = ["cat", "dog"]
        goods.append(buffer.getvalue())
    tokens = (b"TREE", b"HEAP", b"SNOD", b"OHDR", b"\xff" * 8, b"\0" * 8, b"images", b"\x7f\xff", b"GCOL")
    return SourceFile(folder, "hdf5", "data.h5", partial(mutate_bytes, tokens=tokens), *goods)


def zip_archive(folder: Path) -> Door:
    """A ZIP archive, stored or compressed."""
    goods = []
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, data in _files(folder).items():
                archive.writestr(name, data)
        goods.append(buffer.getvalue())
    tokens = (
        b"PK\x01\x02",
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"PK\x06\x06",
        b"\xff\xff\xff\xff",
        b"../",
        b"\x0e\x00",
        b"\0\0\0\0",
    )
    return SourceFile(folder, "folders", "set.zip", partial(mutate_bytes, tokens=tokens), *goods)


def tar_archive(folder: Path) -> Door:
    """A tar archive of images alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in _files(folder).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return SourceFile(folder, "folders", "set.tar", mutate_tar, buffer.getvalue())


def tar_gz_archive(folder: Path) -> Door:
    """The same, compressed: changed before that, or afterwards."""
    good = gzip.compress(tar_archive(folder).goods[0], 1, mtime=0)
    return SourceFile(folder, "folders", "set.tar.gz", partial(_mutate_compressed, gzip), good)


def tar_xz_archive(folder: Path) -> Door:
    """The same, compressed otherwise."""
    good = lzma.compress(tar_archive(folder).goods[0], preset=0)
    return SourceFile(folder, "folders", "set.tar.xz", partial(_mutate_compressed, lzma), good)


def _mutate_compressed(module: Any, random: Random, data: bytes) -> bytes:
    if random.random() < 0.5:
        return bytes(module.compress(mutate_tar(random, module.decompress(data))))
    return mutate_bytes(random, data)


def _files(folder: Path) -> dict[str, bytes]:
    write_images(folder / "made", "a.png")
    data = (folder / "made/a.png").read_bytes()
    return {"cat/a.png": data, "cat/b.png": data, "dog/c.png": data, "readme.txt": b"x"}


_SIZES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\1\0")


def mds(folder: Path) -> Door:
    """A shard of MDS beside a good index."""
    rows = [row(0), row(1)]
    write_mds(folder / "mds", COLUMNS, rows)
    mutate = partial(_mutate_in_place, tokens=_SIZES)
    return SourceFile(folder, "mds", "mds/shard.00000.mds", mutate, shard(COLUMNS, rows))


def mds_index(folder: Path) -> Door:
    """The index beside good shards."""
    index = write_mds(folder / "mds", COLUMNS, [row(0), row(1)], [row(2)]) / "index.json"
    return SourceFile(folder, "mds", "mds/index.json", mutate_json, index.read_bytes())


def _mutate_in_place(random: Random, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """Bytes changed, mostly without a change of their number, which an index says too."""
    changed = mutate_bytes(random, data, tokens)
    return changed if random.random() < 0.1 else changed[: len(data)].ljust(len(data), b"\0")
