"""Doors of whoever converts a data set: annotations, lists, arrays, names of files, images."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pillow_heif
from PIL import Image

import tensorstore_ds as tsds
from fuzz.door import Door
from fuzz.mutations import NAMES, TABLE_TOKENS, mutate_bytes, mutate_json, mutate_table, mutate_text, mutate_xml
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

Mutate = Callable[[Random, bytes], bytes]


def write_images(folder: Path, *names: str) -> None:
    """Images of 40 x 60 pixels (height x width)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("L", (60, 40), 90).save(folder / name)


class SourceFile(Door):
    """A file of a data set, scanned and read as a conversion does it."""

    def __init__(self, folder: Path, format: str, file: str, mutate: Mutate, *goods: bytes) -> None:
        """The data set is ``folder/file``, or the first part of that path."""
        super().__init__(folder, goods)
        self._format = format
        self._file = folder / file
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._path = folder / file.split("/")[0]
        self._mutate = mutate

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
                sums += ImageSums.of_pixels(encoded.pixels)
                problems += encoded.problems
            except SourceError as error:
                problems += error.problems
    sums.summary()
    if problems:
        raise SourceError(problems)


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


def voc_annotation(folder: Path) -> Door:
    """An annotation of Pascal VOC, beside a good one."""
    write_images(folder / "voc/JPEGImages", "a.png", "b.png")
    (folder / "voc/Annotations").mkdir()
    (folder / "voc/Annotations/b.xml").write_bytes(VOC.replace(b"a.png", b"b.png"))
    return SourceFile(folder, "voc", "voc/Annotations/a.xml", mutate_xml, VOC)


def voc_list(folder: Path) -> Door:
    """A list of a split of Pascal VOC."""
    write_images(folder / "voc/JPEGImages", "a.png", "b.png", "2007_000032.png")
    (folder / "voc/Annotations").mkdir()
    for name in (b"a", b"b", b"2007_000032"):
        (folder / f"voc/Annotations/{name.decode()}.xml").write_bytes(VOC.replace(b"a.png", name + b".png"))
    (folder / "voc/ImageSets/Main").mkdir(parents=True)
    (folder / "voc/ImageSets/Main/val.txt").write_bytes(b"b\n")
    mutate = partial(mutate_text, tokens=(b"a", b"b", b"a.xml", b"../a", b" 1", b" -1", *TABLE_TOKENS))
    goods = (b"a\n2007_000032\n", b"a 1\nb -1\n", b"a\r\nb\r\n")
    return SourceFile(folder, "voc", "voc/ImageSets/Main/train.txt", mutate, *goods)


def mask(folder: Path) -> Door:
    """A mask beside its image."""
    write_images(folder / "city/images", "a.png")
    goods = []
    for mode in ("P", "L", "1"):
        buffer = io.BytesIO()
        Image.new(mode, (60, 40), 1).save(buffer, "PNG")
        goods.append(buffer.getvalue())
    mutate = partial(mutate_bytes, tokens=_IMAGE_TOKENS)
    return SourceFile(folder, "masks", "city/masks/a.png", mutate, *goods)


def mask_list(folder: Path) -> Door:
    """A list of a split of Pascal VOC's masks."""
    write_images(folder / "voc/JPEGImages", "a.png", "2007_000032.png")
    (folder / "voc/SegmentationClass").mkdir()
    for name in ("a.png", "2007_000032.png"):
        Image.new("L", (60, 40)).save(folder / "voc/SegmentationClass" / name)
    mutate = partial(mutate_text, tokens=(b"a", b"b", b"a.png", b"../a", *TABLE_TOKENS))
    file = "voc/ImageSets/Segmentation/train.txt"
    return SourceFile(folder, "masks", file, mutate, b"a\n2007_000032\n", b"a\r\n")


def imglab(folder: Path) -> Door:
    """An XML file of dlib's imglab."""
    good = (
        b"<?xml version='1.0' encoding='UTF-8'?>\n<dataset><name>t</name><comment>c</comment><images>"
        b"<image file='a.png' width='60' height='40'><box top='1' left='2' width='20' height='20' ignore='0'>"
        b"<label>cat</label><part name='00' x='3' y='4'/><part name='01' x='5' y='6'/></box></image>"
        b"<image file='b.png'><box top='1' left='2' width='9' height='9'><label>dog</label></box></image>"
        b"</images></dataset>"
    )
    write_images(folder, "a.png", "b.png")
    return SourceFile(folder, "imglab", "faces.xml", mutate_xml, good)


def coco(folder: Path) -> Door:
    """A JSON file of COCO."""
    category = {"id": 7, "name": "cat", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}
    polygon = {"segmentation": [[1, 2, 9, 2, 9, 12], [1, 1, 2, 2]], "area": 40, "keypoints": [3, 4, 2, 0, 0, 0]}
    runs = {"segmentation": {"counts": [31, 4, 2365], "size": [40, 60]}, "iscrowd": 1}
    packed = {"segmentation": {"counts": "o04mY2", "size": [40, 60]}}
    owner = {"image_id": 1, "category_id": 7, "bbox": [1, 2, 8, 10]}
    good = {
        "images": [{"id": 1, "file_name": "a.png", "height": 40, "width": 60}, {"id": "b", "file_name": "b.png"}],
        "annotations": [{"id": i, **owner, **each} for i, each in enumerate((polygon, runs, packed, {}))],
        "categories": [category, {"id": 9, "name": "dog"}],
    }
    write_images(folder, "a.png", "b.png")
    return SourceFile(folder, "coco", "labels.json", mutate_json, json.dumps(good).encode())


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


def list_of(suffix: str, folder: Path) -> Door:
    """A list of images."""
    write_images(folder, "a.png", "b.png", "c.png")
    return SourceFile(folder, "list", f"list.{suffix}", mutate_table, *LISTS[suffix])


# --- arrays -------------------------------------------------------------------------------------------------------

_IDX = b"\0\0\x08\x03" + (4).to_bytes(4, "big") + (3).to_bytes(4, "big") * 2 + bytes(range(36))
_IDX_TOKENS = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\x0e\x04", b"\0\0\x0d\x01", b"\0\1\0\0")


def idx(folder: Path) -> Door:
    """A file of images in MNIST's format, with good labels beside it."""
    mutate = partial(mutate_bytes, tokens=_IDX_TOKENS)
    return _with_labels(SourceFile(folder, "idx", "mnist/train-images-idx3-ubyte", mutate, _IDX))


def idx_gz(folder: Path) -> Door:
    """The same, compressed."""
    good = gzip.compress(_IDX, 1, mtime=0)
    return _with_labels(SourceFile(folder, "idx", "mnist/train-images-idx3-ubyte.gz", mutate_gz, good))


def mutate_gz(random: Random, data: bytes) -> bytes:
    """Compressed bytes, changed before they were compressed or afterwards."""
    if random.random() < 0.5:
        return gzip.compress(mutate_bytes(random, gzip.decompress(data), _IDX_TOKENS), 1, mtime=0)
    return mutate_bytes(random, data)


def _with_labels(door: Door) -> Door:
    labels = b"\0\0\x08\x01" + (4).to_bytes(4, "big") + bytes([0, 1, 2, 1])
    (door.folder / "mnist/train-labels-idx1-ubyte").write_bytes(labels)
    return door


_NPY_TOKENS = (
    *(b"'|O'", b"'<f4'", b"'>c16'", b"'V8'", b"'M8[ns]'", b"True", b"()", b"(-1,)", b"(0,)", b"(3, 4, 4, 99999999)"),
    *(b"(9223372036854775807,)", b"(4294967296, 4294967296, 1)", b"\xff\xff", b"'descr'", b"__import__('os')", b"L"),
)


def _npy_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npy(folder: Path) -> Door:
    """A file of NumPy's."""
    goods = [_npy_bytes(np.arange(48).astype(t).reshape(3, 4, 4)) for t in ("u1", "<f4", ">i2", "f8")]
    goods.append(_npy_bytes(np.asfortranarray(np.zeros((2, 8, 6, 3), "u1"))))
    return SourceFile(folder, "arrays", "image.npy", partial(mutate_bytes, tokens=_NPY_TOKENS), *goods)


def npz(folder: Path) -> Door:
    """An archive of NumPy's, changed as a whole or within a member."""
    buffer = io.BytesIO()
    np.savez(buffer, image=np.arange(48, dtype="u1").reshape(3, 4, 4), label=np.array([0, 1, 0]))
    return SourceFile(folder, "arrays", "data.npz", mutate_npz, buffer.getvalue())


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


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (60, 40), 90).save(buffer, "PNG")
    return buffer.getvalue()


_DESCRIBED = {"class": "cat", "boxes": [[1, 2, 3, 4]], "labels": [1], "classes": ["dog"], "keypoints": [[[1, None]]]}
_TAR_TOKENS = (
    b"0000000",
    b"7777777",
    b"\x80\0\0\1",
    b"\xff" * 12,
    b"ustar\x0000",
    b"S",
    b"L",
    b"x",
    b"1",
    b"../",
    b"\0" * 512,
)


_NAMED = {
    "label": LabelField(classes=("cat", "dog")).dump(),
    "objects": ObjectsField.of(
        "boxes", "labels", "keypoints", classes=("cat", "dog"), keypoints=("l_eye", "r_eye"), flip_pairs=((0, 1),)
    ).dump(),
}


def webdataset(folder: Path) -> Door:
    """An archive of samples, in each of the formats of tar, and with names that are too long for a header."""
    goods = []
    for format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
            long = "b" if format == tarfile.USTAR_FORMAT else "\u00e9" * 120
            members = {"a.png": _png(), "a.cls": b"0", "a.json": json.dumps(_DESCRIBED).encode()}
            for name, data in {**members, f"{long}.jpg": _png(), f"{long}.cls": b"cat"}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        goods.append(buffer.getvalue())
    return SourceFile(folder, "webdataset", "train-000000.tar", mutate_tar, *goods)


def webdataset_fields(folder: Path) -> Door:
    """The names beside a good archive."""
    described = json.dumps({"boxes": [[1, 2, 3, 4]], "labels": [1], "keypoints": [[[1, 2], [None, None]]]}).encode()
    (folder / "set").mkdir()
    with tarfile.open(folder / "set/train-000000.tar", "w") as archive:
        for name, data in {"a.png": _png(), "a.cls": b"0", "a.json": described}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return SourceFile(folder, "webdataset", "set/FIELDS", mutate_json, json.dumps(_NAMED).encode())


def mutate_tar(random: Random, data: bytes) -> bytes:
    """An archive with bytes changed, most often so that the checksums of its headers are right again."""
    changed = bytearray(mutate_bytes(random, data, _TAR_TOKENS))
    if random.random() < 0.8:
        for start in range(0, len(changed) - 511, 512):
            if changed[start + 257 : start + 262] == b"ustar":
                changed[start + 148 : start + 156] = b" " * 8
                changed[start + 148 : start + 156] = b"%06o\0 " % sum(changed[start : start + 512])
    return bytes(changed)


def parquet(folder: Path) -> Door:
    """A file of Parquet with labels, objects and numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "image": pa.array([{"bytes": _png(), "path": f"{i}.png"} for i in range(3)]),
        "label": pa.array([0, 1, None]),
        "objects": pa.array(
            [
                {
                    "bbox": [[1.0, 2.0, 3.0, 4.0]],
                    "category": [i % 2],
                    "keypoints": [[[1.0, 2.0], [3.0, 4.0]]],
                    "visibility": [[1, 2]],
                    "polygons": [[[[1.0, 2.0], [3.0, 2.0], [3.0, 4.0]]]],
                    "rle": [[1, 2, 2397]],
                }
                for i in range(3)
            ]
        ),
        "n": pa.array([1.5, 2.5, 3.5]),
    }
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}, "label": label}}})}
    metadata["tsds"] = json.dumps({"objects": _NAMED["objects"]})
    goods = []
    for compression in ("none", "zstd"):
        buffer = io.BytesIO()
        table = pa.table(columns).replace_schema_metadata(metadata)
        pq.write_table(table, buffer, row_group_size=2, compression=compression, store_schema=compression == "none")
        goods.append(buffer.getvalue())
    tokens = (b"\xff\xff\xff\xff\x0f", b"PAR1", b"image", b"bytes", b"ClassLabel", b"\0", b"\x15\x02", b"\x7f")
    return SourceFile(folder, "parquet", "train-00000.parquet", partial(mutate_bytes, tokens=tokens), *goods)


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

classes = partial(NamesFile, read=read_classes, goods=CLASSES)
keypoints = partial(NamesFile, read=read_keypoints, goods=KEYPOINTS)


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
        write_images(source / "dog", "a.png")
        folder = os.fsencode(source) + b"/" + (b"_" if name in (b"", b".", b"..") else name)
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103  # names are bytes
        shutil.copy(os.fsencode(source / "dog/a.png"), folder + b"/" + name + b".png")
        tsds.convert(source, out, tsds.ConvertOptions(workers=0, on_error="skip"))
        if problems := tsds.verify(out, threads=1):
            raise AssertionError(f"expected a good store, found {problems}")


# --- images -------------------------------------------------------------------------------------------------------

_IMAGE_TOKENS = (
    *(
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\x7f\xff\xff\xff",
        b"\x80\0\0\0",
        b"IDAT",
        b"IHDR",
        b"tRNS",
        b"eXIf",
        b"\xff\xda",
    ),
    *(b"\xff\xc0", b"\xff\xe1", b"Exif\0\0", b"MM\0*", b"II*\0", b"VP8X", b"65535 65535", b"99999 99999", b"jp2c"),
    *(
        b"ftyp",
        b"meta",
        b"iloc",
        b"ipma",
        b"ispe",
        b"irot\x03",
        b"imir\x01",
        b"av1C",
        b"hvcC",
        b"grid",
        b"mif1",
        b"auxC",
    ),
)


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
                buffer = io.BytesIO()
                try:
                    image.save(buffer, format, **extra)
                except (OSError, KeyError, ValueError):
                    continue  # a mode that this format has not
                if (mode, format) != ("I;16", "PPM"):  # which is refused
                    found.append(buffer.getvalue())
        found += [heif_file(noise.convert(mode), format) for format in ("AVIF", "HEIF") if mode in ("L", "RGB", "RGBA")]
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        buffer = io.BytesIO()
        noise.save(buffer, "TIFF", compression=compression)
        found.append(buffer.getvalue())
    return found


def heif_file(image: Image.Image, format: str) -> bytes:
    """A turned AVIF or HEIC file."""
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    if format == "HEIF":
        pillow_heif.from_pillow(image).save(buffer, exif=exif.tobytes())
    else:
        image.save(buffer, format, exif=exif)
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
