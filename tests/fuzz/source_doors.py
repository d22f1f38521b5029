"""Doors to the conversion of a data set: annotations, lists, arrays, archives, names of files, images."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np
import pillow_heif
from PIL import Image

import tensorstore_ds as tsds
from fuzz.door import Door
from fuzz.mutations import NAMES, TABLE_TOKENS, mutate_bytes, mutate_json, mutate_table, mutate_text, mutate_xml
from jpeg_files import exif_of
from labelling_files import Files, npy, npz, tar, write
from mds_files import COLUMNS, row, shard, write_mds
from stores import image_file, png_bytes
from tensorstore_ds.archives import decompressing
from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import LabelField, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.format.statistics import ImageSums
from tensorstore_ds.imaging.codecs import decode_image, open_image, oriented_size, quiet_pillow
from tensorstore_ds.sources import FORMATS, open_source
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.names import read_classes, read_keypoints

_SAMPLES = 20  # of each split; a damaged file may claim any number
_IMAGE = ImageOptions(size=(8, 8), max_pixels=1_000_000)
_PNG = png_bytes(np.full((40, 60), 90, np.uint8))

Mutate = Callable[[Random, bytes], bytes]
MakeDoor = Callable[[Path], Door]


class SourceFile(Door):
    """A file of a data set, scanned and read as a conversion does it.

    The data set is ``folder/file``, or the first part of that path. ``beside`` are its other files.
    """

    def __init__(
        self,
        folder: Path,
        format: str,
        file: str,
        mutate: Mutate,
        goods: Sequence[bytes] | Callable[[], Sequence[bytes]],
        beside: Files | None = None,
    ) -> None:
        super().__init__(folder, goods() if callable(goods) else goods)
        self._format, self._file, self._path = format, folder / file, folder / file.split("/")[0]
        self._mutate = mutate
        write(folder, {file: b"", **(beside or {})})

    def mutate(self, random: Random, good: bytes) -> bytes:
        return self._mutate(random, good)

    def enter(self, data: bytes) -> None:
        self._file.write_bytes(data)
        with decompressing():
            for each in FORMATS.values():
                each.load().detect(self._path)
            scan_and_read(self._path, self._format)


def scan_and_read(path: Path, format: str) -> None:
    """What a conversion does but for writing; raises `SourceError` where it would stop."""
    source = open_source(path, format, SourceOptions())
    contents = source.contents()
    problems = list(contents.problems)
    sums, masks = ImageSums(), of_kind(contents.fields, MaskField)
    for split, references in contents.splits.items():
        for reference in list(references[:_SAMPLES]):
            try:
                sample = source.read(split, reference)
                if sample.key.startswith("/") or ".." in sample.key.split("/"):
                    raise AssertionError(f"expected a key inside of the source, found {sample.key!r}")
                encoded = encode_sample(sample, _IMAGE, masks=masks)
                sums += ImageSums.of_pixels(encoded.image)
                problems += encoded.problems
            except SourceError as error:
                problems += error.problems
    sums.summary()
    if problems:
        raise SourceError(problems)


def source(
    format: str,
    file: str,
    mutate: Mutate,
    *goods: bytes | Callable[[], Sequence[bytes]],
    images: str = "a.png b.png",
    beside: Files | None = None,
) -> MakeDoor:
    """A door for a file. Its inputs may be made when the door is."""
    made = goods[0] if callable(goods[0]) else goods
    pictures = dict.fromkeys(images.split(), _PNG)
    return partial(
        SourceFile, format=format, file=file, mutate=mutate, goods=made, beside={**pictures, **(beside or {})}
    )


def words(*more: bytes, numbers: str = "") -> Mutate:
    """A mutation of text that also inserts these, and the tokens of tables."""
    return partial(mutate_text, tokens=(*numbers.encode().split(b" "), *more, *TABLE_TOKENS))


def inserts(*tokens: bytes) -> Mutate:
    """A mutation of bytes that also inserts these."""
    return partial(mutate_bytes, tokens=tokens)


# --- annotations --------------------------------------------------------------------------------------------------

VOC = (
    b"<annotation><folder>f</folder><filename>a.png</filename><source><database>d</database></source>"
    b"<size><width>60</width><height>40</height><depth>1</depth></size><segmented>0</segmented>"
    b"<object><name>cat</name><pose>Left</pose><truncated>0</truncated><occluded>0</occluded><difficult>0</difficult>"
    b"<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30.5</xmax><ymax>20</ymax></bndbox>"
    b"<landmarks><eye><x>3</x><y>4</y></eye></landmarks></object>"
    b"<object><name>dog</name><truncated>1</truncated><difficult>1</difficult>"
    b"<bndbox><xmin>5</xmin><ymin>2</ymin><xmax>30</xmax><ymax>20</ymax></bndbox>"
    b"<part><name>head</name><bndbox><xmin>6</xmin><ymin>3</ymin><xmax>8</xmax><ymax>5</ymax></bndbox></part></object>"
    b"</annotation>"
)
_VOC_NAMES = ("a", "b", "2007_000032")
_VOC_SET = {f"voc/Annotations/{name}.xml": VOC.replace(b"a.png", f"{name}.png".encode()) for name in _VOC_NAMES}
_IMGLAB = (
    b"<?xml version='1.0' encoding='UTF-8'?>\n<dataset><name>t</name><comment>c</comment><images>"
    b"<image file='a.png' width='60' height='40'><box top='1' left='2' width='20' height='20' ignore='0'>"
    b"<label>cat</label><part name='00' x='3' y='4'/><part name='01' x='5' y='6'/></box></image>"
    b"<image file='b.png'><box top='1' left='2' width='9' height='9'><label>dog</label></box></image>"
    b"</images></dataset>"
)
_OBJECT = {"image_id": 1, "category_id": 7, "bbox": [1, 2, 8, 10]}
_OUTLINES = (
    {"segmentation": [[1, 2, 9, 2, 9, 12], [1, 1, 2, 2]], "area": 40, "keypoints": [3, 4, 2, 0, 0, 0]},
    {"segmentation": {"counts": [31, 4, 2365], "size": [40, 60]}, "iscrowd": 1},
    {"segmentation": {"counts": "o04mY2", "size": [40, 60]}},
    {},
)
_COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 40, "width": 60}, {"id": "b", "file_name": "b.png"}],
    "annotations": [{"id": i, **_OBJECT, **each} for i, each in enumerate(_OUTLINES)],
    "categories": [
        {"id": 7, "name": "cat", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}, {"id": 9, "name": "dog"}
    ],
}  # fmt: skip
_SHAPES = [
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

_LABELME = {
    "version": "5.4.1", "flags": {}, "shapes": _SHAPES, "imagePath": "a.png", "imageData": None, "imageHeight": 40,
    "imageWidth": 60,
}  # fmt: skip
_CVAT = (
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
_SIZE = {"original_width": 60, "original_height": 40, "image_rotation": 0}
_BOX = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 10, "rectanglelabels": ["cat"]}
_POINT = {"x": 12, "y": 25, "keypointlabels": ["nose"]}
_POLYGON = {"points": [[1, 2], [9, 3], [5, 8]], "polygonlabels": ["dog"]}
_RESULTS = [
    {**_SIZE, "id": "r1", "type": "rectanglelabels", "value": _BOX},
    {**_SIZE, "id": "k1", "parentID": "r1", "type": "keypointlabels", "value": _POINT},
    {**_SIZE, "id": "p1", "type": "polygonlabels", "value": _POLYGON},
    {"id": "c1", "type": "choices", "value": {"choices": ["indoors"]}},
]
_DONE = {"id": 9, "completed_by": 1, "was_cancelled": False, "result": _RESULTS}
_TASKS = [
    {"id": 1, "annotations": [_DONE], "data": {"image": "a.png"}},
    {"id": 2, "annotations": [{"id": 11, "result": []}], "data": {"image": "/data/local-files/?d=b.png"}},
]
_PTS = b"version: 1\nn_points: 3\n{\n10.5 20\n30 30.25\n21 35\n}\n"
_DOTA = b"imagesource:GoogleEarth\ngsd:0.1\n1 2 30 4 28 28 0 26 ship 0\n5 5 9 5 9 9 5 9 plane 1\n"
_NUMBERS = "0.5 -1 1e9 nan inf 2 0 99999999999999999999 0x1  \n \t"
_YAML_TOKENS = b"&a [*a]|!!python/object:os.system|{|- |: |../|<<: *a|kpt_shape: [2, 3]".split(b"|")
_YAMLS = (
    b"path: .\ntrain: images/train\nval: [images/train]\nnames:\n  0: cat\n  1: dog\n",
    b"train: images/train\nnames: [cat]\nnc: 1\n# kpt_shape: [2, 3]\n",
)
_ROWS = b"0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.2 0.2\n", b"1 0.1 0.1 0.9 0.1 0.5 0.9 0.2 0.7\n", b""


def _masks() -> list[bytes]:
    return [image_file(Image.new(mode, (60, 40), 1)) for mode in ("P", "L", "1")]


_IMAGE_TOKENS = (
    *(b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xda", b"\xff\xc0", b"\xff\xe1"),
    *(b"Exif\0\0", b"MM\0*", b"II*\0", b"VP8X", b"65535 65535", b"99999 99999", b"irot\x03", b"imir\x01"),
    *b"IDAT IHDR tRNS eXIf jp2c ftyp meta iloc ipma ispe av1C hvcC grid mif1 auxC".split(),
)


# --- lists and arrays ---------------------------------------------------------------------------------------------

LISTS = {
    "csv": (
        b"path,label\na.png,x\nb.png,y\nc.png,x\n",
        b"path,label,x1,y1,x2,y2,split\na.png,x,1,2,30,30,train\nb.png,y,3,4,9,9,val\nc.png,x,,,,,val\n",
        b"image;p0_x;p0_y;p1_x;p1_y\na.png;1;2;3;4\nb.png;1;2;;\n",
        b"\xef\xbb\xbffile_name,x,y,width,height\r\na.png,1,2,3.5,4e0\r\n",
    ),
    "tsv": (b'path\tlabel\r\na.png\t"x ""y"""\r\nb.png\tz\r\n', b"path\tlabel\na.png\t0\nb.png\t1\n"),
    "txt": (b"a.png 0\nb.png 1\nc.png 0\n", b"a.png\nb.png\n", b"path;label\na.png;x\nb.png;y\n", b"a.png, x\n"),
}
_IDX = b"\0\0\x08\x03" + (4).to_bytes(4, "big") + (3).to_bytes(4, "big") * 2 + bytes(range(36))
_IDX_TOKENS = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\x0e\x04", b"\0\0\x0d\x01", b"\0\1\0\0")
_IDX_LABELS = {"mnist/train-labels-idx1-ubyte": b"\0\0\x08\x01" + (4).to_bytes(4, "big") + bytes([0, 1, 2, 1])}


def mutate_gz(random: Random, data: bytes) -> bytes:
    """Compressed bytes, changed before they were compressed or afterwards."""
    if random.random() < 0.5:
        return gzip.compress(mutate_bytes(random, gzip.decompress(data), _IDX_TOKENS), 1, mtime=0)
    return mutate_bytes(random, data)


_NPY_TOKENS = (
    *(b"'|O'", b"'<f4'", b"'>c16'", b"'V8'", b"'M8[ns]'", b"True", b"()", b"(-1,)", b"(0,)", b"(3, 4, 4, 99999999)"),
    *(b"(9223372036854775807,)", b"(4294967296, 4294967296, 1)", b"\xff\xff", b"'descr'", b"__import__('os')", b"L"),
)
_NPYS = (
    *(npy(np.arange(48).astype(t).reshape(3, 4, 4)) for t in ("u1", "<f4", ">i2", "f8")),
    npy(np.asfortranarray(np.zeros((2, 8, 6, 3), "u1"))),
)
_NPZ = npz(image=np.arange(48, dtype="u1").reshape(3, 4, 4), label=np.array([0, 1, 0]))


def mutate_npz(random: Random, data: bytes) -> bytes:
    """An archive with a member changed, renamed, or of which any bytes are changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    way = random.random()
    if way < 0.5:
        name = random.choice(list(members))
        members[name] = mutate_bytes(random, members[name], _NPY_TOKENS)
    elif way < 0.6:
        members[random.choice(("../image.npy", "image", "x.npy", "/a.npy", "image.npy\n"))] = members["image.npy"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    if way < 0.6:
        return buffer.getvalue()
    return mutate_bytes(random, buffer.getvalue(), (b"PK\1\2", b"PK\3\4", b"\xff\xff\xff\xff"))


# --- packed data sets ---------------------------------------------------------------------------------------------

_DESCRIBED = {"class": "cat", "boxes": [[1, 2, 3, 4]], "labels": [1], "classes": ["dog"], "keypoints": [[[1, None]]]}
_NUMBERED = {"boxes": [[1, 2, 3, 4]], "labels": [1], "keypoints": [[[1, 2], [None, None]]]}
_TAR_TOKENS = b"\x80\0\0\1", b"\xff" * 12, b"\0" * 512, *b"0000000 7777777 ustar\x0000 S L x 1 ../".split()
_NAMED = {
    "label": LabelField(classes=("cat", "dog")).dump(),
    "objects": ObjectsField.of(
        "boxes", "labels", "keypoints", classes=("cat", "dog"), keypoints=("l_eye", "r_eye"), flip_pairs=((0, 1),)
    ).dump(),
}
_SAMPLE = ("a.png", _PNG), ("a.cls", b"0")
_FILES = {"cat/a.png": _PNG, "cat/b.png": _PNG, "dog/c.png": _PNG, "readme.txt": b"x"}
_TAR = tar(*_FILES.items())
_SIZES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\1\0")
_MDS_ROWS = [row(0), row(1)]


def _webdatasets() -> list[bytes]:
    """In each of the formats of tar, and with names that are too long for a header."""
    found = []
    for format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        long = "b" if format == tarfile.USTAR_FORMAT else "\u00e9" * 120
        described = ("a.json", json.dumps(_DESCRIBED).encode())
        found.append(tar(*_SAMPLE, described, (f"{long}.jpg", _PNG), (f"{long}.cls", b"cat"), format=format))
    return found


def mutate_tar(random: Random, data: bytes) -> bytes:
    """An archive with bytes changed, most often so that the checksums of its headers are right again."""
    changed = bytearray(mutate_bytes(random, data, _TAR_TOKENS))
    if random.random() < 0.8:
        for start in range(0, len(changed) - 511, 512):
            if changed[start + 257 : start + 262] == b"ustar":
                changed[start + 148 : start + 156] = b" " * 8
                changed[start + 148 : start + 156] = b"%06o\0 " % sum(changed[start : start + 512])
    return bytes(changed)


def mutate_compressed(random: Random, data: bytes, module: ModuleType) -> bytes:
    """A compressed tar archive, changed before it was compressed or afterwards."""
    if random.random() < 0.5:
        return bytes(module.compress(mutate_tar(random, module.decompress(data))))
    return mutate_bytes(random, data)


def _parquets() -> list[bytes]:
    """With labels, objects and numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [i % 2], "keypoints": [[[1.0, 2.0], [3.0, 4.0]]],
            "visibility": [[1, 2]], "polygons": [[[[1.0, 2.0], [3.0, 2.0], [3.0, 4.0]]]], "rle": [[1, 2, 2397]],
        }
        for i in range(3)
    ]  # fmt: skip
    columns = {
        "image": pa.array([{"bytes": _PNG, "path": f"{i}.png"} for i in range(3)]),
        "label": pa.array([0, 1, None]),
        "objects": pa.array(rows),
        "n": pa.array([1.5, 2.5, 3.5]),
    }
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}, "label": label}}})}
    metadata["tsds"] = json.dumps({"objects": _NAMED["objects"]})
    table, found = pa.table(columns).replace_schema_metadata(metadata), []
    for compression in ("none", "zstd"):
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=2, compression=compression, store_schema=compression == "none")
        found.append(buffer.getvalue())
    return found


def _hdf5s() -> list[bytes]:
    """An array, a compressed one, and the bytes of files."""
    import h5py

    found = []
    for kind in ("plain", "gzip", "files"):
        buffer = io.BytesIO()
        with h5py.File(buffer, "w") as file:
            if kind == "files":
                dataset = file.create_dataset("images", (2,), h5py.vlen_dtype(np.uint8))
                for i in range(2):
                    dataset[i] = np.frombuffer(_PNG, np.uint8)
            else:
                options = {"chunks": (2, 5, 7), "compression": "gzip"} if kind == "gzip" else {}
                file.create_dataset("images", data=np.arange(140, dtype=np.uint8).reshape(4, 5, 7), **options)
            file["labels"] = np.arange(2 if kind == "files" else 4) % 2
            file["labels"].attrs["classes"] = ["cat", "dog"]
        found.append(buffer.getvalue())
    return found


def _zips() -> list[bytes]:
    found = []
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, data in _FILES.items():
                archive.writestr(name, data)
        found.append(buffer.getvalue())
    return found


_DATUM = bytes([8, 1, 16, 2, 24, 3, 34, 6, *range(6), 40, 0])
_FLOATS = bytes([8, 1, 16, 1, 24, 2, 53, 0, 0, 0, 63, 53, 0, 0, 128, 63, 40, 0])


class LmdbValue(SourceFile):
    """A Datum of Caffe in a database of one page."""

    def enter(self, data: bytes) -> None:
        super().enter(one_page(data[:4000]))


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


def _mutate_in_place(random: Random, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """Bytes changed, mostly without a change of their number, which an index says too."""
    changed = mutate_bytes(random, data, tokens)
    return changed if random.random() < 0.1 else changed[: len(data)].ljust(len(data), b"\0")


def mds_index(folder: Path) -> Door:
    """The index beside good shards."""
    index = write_mds(folder / "mds", COLUMNS, _MDS_ROWS, [row(2)]) / "index.json"
    return SourceFile(folder, "mds", "mds/index.json", mutate_json, [index.read_bytes()])


def mds(folder: Path) -> Door:
    """A shard of MDS beside a good index."""
    write_mds(folder / "mds", COLUMNS, _MDS_ROWS)
    mutate = partial(_mutate_in_place, tokens=_SIZES)
    return SourceFile(folder, "mds", "mds/shard.00000.mds", mutate, [shard(COLUMNS, _MDS_ROWS)])


# --- lists of names -----------------------------------------------------------------------------------------------


class NamesFile(Door):
    """A file of class or keypoint names, which an option names."""

    def __init__(self, folder: Path, read: Callable[[Path], object], goods: Sequence[bytes]) -> None:
        super().__init__(folder, goods)
        self._read = read

    def mutate(self, random: Random, good: bytes) -> bytes:
        tokens = (*TABLE_TOKENS, b"cat\n", b"left_eye, right_eye\n", b"l_1\n", b"R2\n")
        return mutate_text(random, good, tokens)

    def enter(self, data: bytes) -> None:
        (self.folder / "names.txt").write_bytes(data)
        self._read(self.folder / "names.txt")


CLASSES = (b"cat\ndog\n# x\n", b"cat\r\n\r\n dog \r\n", "\ufeffK\u00e4tzchen\n".encode(), b"0\n1\n10\n")
KEYPOINTS = (
    *(b"left_eye\nright_eye\nnose\n", b"a\tb\nb\ta\nc\n", b"l1,r1\nr1\nm,m\n", b"LShoulder\nRShoulder\n"),
    b"\n".join(b"%d" % i for i in range(1, 69)),
)


class FileNames(Door):
    """Names of a class folder and of an image in it; they are converted, and are stored as class and key."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, (b"cat", "K\u00e4tzchen".encode(), b"2007_000032", b"train"))

    def mutate(self, random: Random, good: bytes) -> bytes:
        return mutate_text(random, good, NAMES)

    def enter(self, data: bytes) -> None:
        name = data.replace(b"/", b"_").replace(b"\0", b"_")[:240]
        source, out = self.folder / "source", self.folder / "out.tsds"
        for path in (source, out):
            shutil.rmtree(path, ignore_errors=True)
        write(source / "dog", {"a.png": _PNG})
        folder = os.fsencode(source) + b"/" + (b"_" if name in (b"", b".", b"..") else name)
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103  # names are bytes
        shutil.copy(os.fsencode(source / "dog/a.png"), folder + b"/" + name + b".png")
        tsds.convert(source, out, tsds.ConvertOptions(workers=0, on_error="skip"))
        if problems := tsds.verify(out, threads=1):
            raise AssertionError(f"expected a good store, found {problems}")


# --- images -------------------------------------------------------------------------------------------------------


def image_bases() -> list[bytes]:
    """Small images of every format that is accepted, in many modes, some with an orientation."""
    noise = Image.frombytes("L", (20, 14), Random(7).randbytes(280))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "description"
    found = []
    for mode in ("1", "L", "P", "RGB", "RGBA", "LA", "I;16", "CMYK"):
        image = noise.convert("I").convert("I;16") if mode == "I;16" else noise.convert(mode)
        for format in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"):
            for extra in ({}, {"exif": exif}) if mode == "RGB" and format != "GIF" else ({},):
                if (mode, format) != ("I;16", "PPM"):  # which is refused
                    with contextlib.suppress(OSError, KeyError, ValueError):  # a mode that this format has not
                        found.append(image_file(image, format, **extra))
        found += [heif_file(noise.convert(mode), format) for format in ("AVIF", "HEIF") if mode in ("L", "RGB", "RGBA")]
    compressions = "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"
    return found + [image_file(noise, "TIFF", compression=compression) for compression in compressions]


def heif_file(image: Image.Image, format: str) -> bytes:
    """A turned AVIF or HEIC file."""
    if format != "HEIF":
        return image_file(image, format, exif=exif_of(6))
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, exif=exif_of(6).tobytes())
    return buffer.getvalue()


class ImageFile(Door):
    """The bytes of an image: its header as a dry run reads it, and its pixels."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, image_bases())

    def mutate(self, random: Random, good: bytes) -> bytes:
        return mutate_bytes(random, good, _IMAGE_TOKENS)

    def enter(self, data: bytes) -> None:
        with quiet_pillow():
            with contextlib.suppress(SourceError):
                oriented_size(open_image(data, max_pixels=1_000_000))
            decode_image(data, max_pixels=1_000_000)


# --- all of them --------------------------------------------------------------------------------------------------

_PAGES = partial(
    mutate_pages, tokens=(b"\xff\xff\xff\xff\x0f", b"\x22", b"\x35", b"\x28", b"\x38\1", b"\x80", b"\0", b"\x7f")
)
_VOC_IMAGES = " ".join(f"voc/JPEGImages/{name}.png" for name in _VOC_NAMES)
_YOLO_IMAGES = "set/images/train/a.png set/images/train/b.png"
_DOORS_OF_FILES: Mapping[str, MakeDoor] = {
    "voc-annotation": source(
        "voc", "voc/Annotations/a.xml", mutate_xml, VOC, images="voc/JPEGImages/a.png voc/JPEGImages/b.png",
        beside={name: _VOC_SET[name] for name in ["voc/Annotations/b.xml"]},
    ),
    "voc-list": source(
        "voc", "voc/ImageSets/Main/train.txt", words(b" 1", b" -1", numbers="a b a.xml ../a"),
        b"a\n2007_000032\n", b"a 1\nb -1\n", b"a\r\nb\r\n", images=_VOC_IMAGES,
        beside={**_VOC_SET, "voc/ImageSets/Main/val.txt": "b\n"},
    ),
    "mask": source("masks", "city/masks/a.png", inserts(*_IMAGE_TOKENS), _masks, images="city/images/a.png"),
    "mask-list": source(
        "masks", "voc/ImageSets/Segmentation/train.txt", words(numbers="a b a.png ../a"), b"a\n2007_000032\n", b"a\r\n",
        images="voc/JPEGImages/a.png voc/JPEGImages/2007_000032.png",
        beside=dict.fromkeys(
            ("voc/SegmentationClass/a.png", "voc/SegmentationClass/2007_000032.png"),
            png_bytes(np.zeros((40, 60), np.uint8)),
        ),
    ),
    "coco": source("coco", "labels.json", mutate_json, json.dumps(_COCO).encode()),
    "imglab": source("imglab", "faces.xml", mutate_xml, _IMGLAB),
    "yolo-labels": source(
        "yolo", "set/labels/train/a.txt", words(numbers=_NUMBERS), *_ROWS, images=_YOLO_IMAGES,
        beside={"set/data.yaml": "train: images/train\nnames: [cat, dog]\n"},
    ),
    "yolo-config": source(
        "yolo", "set/data.yaml", partial(mutate_text, tokens=(*_YAML_TOKENS, *NAMES)), *_YAMLS, images=_YOLO_IMAGES,
        beside={"set/labels/train/a.txt": "0 0.5 0.5 0.2 0.4\n"},
    ),
    "labelme": source(
        "labelme", "set/a.json", mutate_json, json.dumps(_LABELME).encode(), images="set/a.png set/b.png"
    ),
    "cvat": source(
        "cvat", "set/annotations.xml", mutate_xml, _CVAT, images="set/images/Train/a.png set/images/b.png"
    ),
    "labelstudio": source(
        "labelstudio", "set/export.json", mutate_json, json.dumps(_TASKS).encode(), images="set/a.png set/b.png"
    ),
    "pts": source(
        "pts", "set/a.pts", words(b"version: 2", b"n_points: 4", numbers=_NUMBERS + " { }"), _PTS,
        _PTS.replace(b"\n", b"\r\n"), images="set/a.png set/b.png", beside={"set/b.pts": _PTS},
    ),
    "dota": source(
        "dota", "set/labelTxt/a.txt", words(b"gsd:", b" ship 2\n", b", ", numbers=_NUMBERS), _DOTA,
        b"1, 2, 30, 4, 28, 28, 0, 26, ship\r\n", images="set/images/a.png set/images/b.png",
        beside={"set/labelTxt/b.txt": _DOTA},
    ),
    "lmdb": source(
        "lmdb", "set/data.mdb", _PAGES, lambda: [one_page(_DATUM), one_page(_FLOATS), several_pages(_DATUM)], images=""
    ),
    "lmdb-datum": partial(
        LmdbValue, format="lmdb", file="set/data.mdb", mutate=_PAGES, goods=(_DATUM, _FLOATS)
    ),
    "hdf5": source(
        "hdf5", "data.h5", inserts(b"\xff" * 8, b"\0" * 8, b"\x7f\xff", *b"TREE HEAP SNOD OHDR images GCOL".split()),
        _hdf5s, images="",
    ),
    "mds": mds,
    "mds-index": mds_index,
    "zip": source(
        "folders", "set.zip",
        inserts(b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"\xff" * 4, b"../", b"\x0e\0", bytes(4)), _zips,
        images="",
    ),
    "tar": source("folders", "set.tar", mutate_tar, _TAR, images=""),
    "tar-gz": source(
        "folders", "set.tar.gz", partial(mutate_compressed, module=gzip), gzip.compress(_TAR, 1, mtime=0), images=""
    ),
    "tar-xz": source(
        "folders", "set.tar.xz", partial(mutate_compressed, module=lzma), lzma.compress(_TAR, preset=0), images=""
    ),
    **{
        f"list-{suffix}": source("list", f"list.{suffix}", mutate_table, *goods, images="a.png b.png c.png")
        for suffix, goods in LISTS.items()
    },
    "webdataset": source("webdataset", "train-000000.tar", mutate_tar, _webdatasets, images=""),
    "webdataset-fields": source(
        "webdataset", "set/FIELDS", mutate_json, json.dumps(_NAMED).encode(), images="",
        beside={"set/train-000000.tar": tar(*_SAMPLE, ("a.json", json.dumps(_NUMBERED).encode()))},
    ),
    "parquet": source(
        "parquet", "train-00000.parquet",
        inserts(b"\xff\xff\xff\xff\x0f", b"\x15\x02", b"\x7f", b"\0", *b"PAR1 image bytes ClassLabel".split()),
        _parquets, images="",
    ),
    "idx": source(
        "idx", "mnist/train-images-idx3-ubyte", inserts(*_IDX_TOKENS), _IDX, images="", beside=_IDX_LABELS
    ),
    "idx-gz": source(
        "idx", "mnist/train-images-idx3-ubyte.gz", mutate_gz, gzip.compress(_IDX, 1, mtime=0), images="",
        beside=_IDX_LABELS,
    ),
    "npy": source("arrays", "image.npy", inserts(*_NPY_TOKENS), *_NPYS, images=""),
    "npz": source("arrays", "data.npz", mutate_npz, _NPZ, images=""),
}  # fmt: skip
SOURCE_DOORS: Mapping[str, MakeDoor] = {
    **_DOORS_OF_FILES,
    "classes": partial(NamesFile, read=read_classes, goods=CLASSES),
    "keypoints": partial(NamesFile, read=read_keypoints, goods=KEYPOINTS),
    "file-names": FileNames,
    "image": ImageFile,
}
