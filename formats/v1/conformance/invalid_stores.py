"""The invalid conformance stores: each is a valid one with one thing wrong, and says which.

A change is made to the `files` before they are listed (sizes and hashes then agree), to a `shard`'s list of them, to
the `manifest`, or `after`wards, to the files as they lie on the disk, the root's ``zarr.json`` among them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plain_store import Files, Json, Link, Shard, Store, data_file, dump_json, index_of, root, sealed, zstd_frame
from valid_stores import (
    ENTRIES_COLOR,
    JPEG_8X8,
    JPEG_16X8,
    JPEG_COLOR,
    JPEG_RESTART,
    KEY,
    SIZE,
    bytes_table,
    captions,
    chunks,
    classification,
    encoded_image,
    encoded_jpeg,
    encoded_smart,
    encoded_source,
    entries,
    gray_palettes,
    image,
    image_table,
    label,
    masks,
    minimal,
    multi_label,
    objects,
    outlines,
    pattern,
    png,
    raw_sizes,
    replaced_shard,
    restarts,
    row_checksums,
    signed,
    table,
    turned,
    two_images,
    unreadable_fields,
)

SHARD = "train/00000"
LABEL = f"{SHARD}/label/c/0"
IMAGE = f"{SHARD}/image/c/0/0/0/0"
LISTED = "splits/train/shards/0"  # in the manifest
SHARDING = "codecs/0/configuration"  # in the metadata of an array
GONE = object()  # what a member is set to that is removed


@dataclass(frozen=True)
class Case:
    """An invalid store.

    Attributes:
        name: the reason code, and a detail after two hyphens.
        stage: when a reader or verifier must find it at the latest: ``open``, ``map``, ``verify`` or ``decode``.
        why: what is wrong, in a sentence.
        store: the store that is made invalid; it may be so already.
    """

    name: str
    stage: str
    why: str
    store: Store
    files: Callable[[Files], Any] = lambda files: None
    shard: Callable[[Files], Any] = lambda files: None
    manifest: Callable[[Json], Any] = lambda manifest: None
    after: Callable[[Files], Any] = lambda files: None


# --- the stores they are made from ------------------------------------------------------------------------------


def labels_store(values: Sequence[int] = (0, 2, 1), layout: str = "memmap", level: int = 3) -> Store:
    """Labels of three classes and nothing else."""
    shard = Shard(len(values), {"label": np.array(values)})
    return Store({"label": label("a", "b", "c")}, {"train": [shard]}, layout, zstd_level=level)


def floats_store() -> Store:
    """One array of floating-point numbers."""
    shard = Shard(1, {"x": np.zeros(1, np.float32)})
    return Store({"x": {"kind": "array", "dtype": "float32", "shape": []}}, {"train": [shard]})


def twin_store() -> Store:
    """Two label fields with the same values, so that one file can be a link to the other."""
    arrays = {"label": np.array([1, 0]), "twin": np.array([1, 0])}
    return Store({name: label("a", "b") for name in arrays}, {"train": [Shard(2, arrays)]})


def objects_store(offsets: Sequence[int] = (0, 2, 2, 3), labels: Sequence[int] = (0, 1, 0)) -> Store:
    """Three samples with three objects of two classes; the objects have nothing but labels."""
    arrays = table("objects", [], {"labels": np.array(labels)})
    arrays["objects/offsets"] = np.array(offsets)
    fields = {"objects": objects({"labels": arrays["objects/labels"]}, ["a", "b"], ["left", "right"], [[0, 1]])}
    return Store(fields, {"train": [Shard(3, arrays)]})


def boxes_store(*box: float) -> Store:
    """An image of 4 (height) x 6 (width) pixels with two objects; `box` is the second one's."""
    boxes = {"boxes": np.array([[0, 0, 6, 4], box], np.float32)}
    arrays = {"image": pattern((1, 4, 6, 1), "uint8"), **table("objects", [2], boxes)}
    return Store({"image": image(arrays["image"]), "objects": objects(boxes, [])}, {"train": [Shard(1, arrays)]})


def boxes_alone_store(*box: float) -> Store:
    """A box without an image, in a field of another name."""
    boxes = {"boxes": np.array([box], np.float32)}
    return Store({"things": objects(boxes, [])}, {"train": [Shard(1, table("things", [1], boxes))]})


def flags_store(*flags: int) -> Store:
    """Objects with a flag and nothing else."""
    values = {"difficult": np.array(flags, np.uint8)}
    return Store({"objects": objects(values, [])}, {"train": [Shard(1, table("objects", [len(flags)], values))]})


def points_store(x: float, y: float) -> Store:
    """Two objects of one keypoint, the first absent."""
    values = {"keypoints": np.array([[[math.nan, math.nan]], [[x, y]]], np.float32)}
    return Store({"objects": objects(values, [], ["tip"])}, {"train": [Shard(1, table("objects", [2], values))]})


def oriented_store(*box: float) -> Store:
    """Two objects with an oriented box, the first absent."""
    values = {"oriented_boxes": np.array([[math.nan] * 5, box], np.float32)}
    return Store({"objects": objects(values, [])}, {"train": [Shard(1, table("objects", [2], values))]})


def corners_store(x: float, y: float) -> Store:
    """An object of one polygon."""
    arrays = {
        "objects/offsets": np.array([0, 1]),
        "objects/polygons/offsets": np.array([0, 4]),
        "objects/polygons/items": np.array([[0, 0], [4, 0], [math.nan, math.nan], [x, y]], np.float32),
    }
    field = {**objects({}, []), "values": {"polygons": {"dtype": "float32", "shape": [2], "ragged": True}}}
    return Store({"objects": field}, {"train": [Shard(1, arrays)]})


def keys_store(*keys: bytes, name: str = "key") -> Store:
    """Keys and nothing else."""
    return Store({name: KEY}, {"train": [Shard(len(keys), bytes_table(name, keys))]})


def sizes_store(size: tuple[int, int] = (4, 6)) -> Store:
    """Original sizes and nothing else."""
    return Store({"size": SIZE}, {"train": [Shard(1, {"size": np.array([size], np.int32)})]})


def with_frame(at: int, data: bytes) -> bytes:
    """`JPEG_8X8` with other bytes in its frame header, behind the precision from 1 on."""
    start = JPEG_8X8.index(b"\xff\xc0") + 4 + at
    return JPEG_8X8[:start] + data + JPEG_8X8[start + len(data) :]


def two_restarts(listed: Sequence[int]) -> Store:
    """A JPEG file with two restart markers, 0 and 1, and a third one, -1, in a comment; the store lists `listed`."""
    file = JPEG_RESTART[:2] + b"\xff\xfe\x00\x04\xff\xd0" + JPEG_RESTART[2:-2] + b"\xff\xd1\x00" + JPEG_RESTART[-2:]
    first = file.index(b"\xff\xd0", 20) + 2
    places = {-1: 8, 0: first, 1: len(file) - 3}
    return restarts([places[each] for each in listed], file)


def two_scans() -> Store:
    """A JPEG file with a restart marker in each of two scans; the store lists the first marker."""
    scan = JPEG_RESTART[JPEG_RESTART.index(b"\xff\xda") : -2]
    return restarts(None, JPEG_RESTART[:-2] + scan + JPEG_RESTART[-2:])


def turned_mask() -> Store:
    """A source file that is to be turned, and a mask of its size before that."""
    arrays = {**image_table([turned(JPEG_16X8)], [(16, 8, 1)]), "mask": np.zeros((1, 8, 16), np.uint8)}
    mask = {"kind": "mask", "dtype": "uint8", "shape": [8, 16], "classes": ["back"]}
    return Store({"image": encoded_image("source", 1024), "mask": mask}, {"train": [Shard(1, arrays)]})


# --- changes ----------------------------------------------------------------------------------------------------


def metadata(path: str, change: Callable[[Json], Any]) -> Callable[[Files], None]:
    """Change the ``zarr.json`` of an array."""

    def changed(files: Files) -> None:
        value = json.loads(data_of(files, f"{path}/zarr.json"))
        change(value)
        files[f"{path}/zarr.json"] = dump_json(value)

    return changed


def data_of(files: Files, path: str) -> bytes:
    """The bytes of a file that is not a link."""
    data = files[path]
    if isinstance(data, Link):
        raise TypeError(f"{path}: expected a file, found a link.")
    return data


def patch(path: str, change: Callable[[bytes], bytes]) -> Callable[[Files], None]:
    """Change the bytes of a file."""
    return lambda files: files.update({path: change(data_of(files, path))})


def flip(data: bytes, position: int) -> bytes:
    """The data with the lowest bit of one byte flipped."""
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def raw_root(data: bytes) -> Callable[[Files], None]:
    """Replace the root's ``zarr.json``."""
    return lambda files: files.update({"zarr.json": data})


def unsealed(manifest: Json) -> Callable[[Files], None]:
    """Replace the root's ``zarr.json`` by one with this manifest, and a digest that is none of this version."""
    return raw_root(dump_json(root(manifest)))


def around(text: bytes) -> bytes:
    """The root's ``zarr.json`` with this text in place of the manifest."""
    return sealed(dump_json(root("MANIFEST")).replace(b'"MANIFEST"', text))


def put(path: str, value: Any) -> Callable[[Json], None]:
    """Set a member of JSON by its path, such as ``fields/label/classes``; `GONE` removes it."""
    *parents, last = (int(name) if name.isdigit() else name for name in path.split("/"))

    def changed(place: Any) -> None:
        for name in parents:
            place = place[name]
        if value is GONE:
            del place[last]
        else:
            place[last] = value

    return changed


def resealed(old: bytes, new: bytes) -> Callable[[Files], None]:
    """Replace bytes of the root's ``zarr.json`` that are there once, and make its digest anew."""

    def changed(files: Files) -> None:
        data = data_of(files, "zarr.json")
        at = data.index(b'"tsds_sha256": "') + 16
        data = data[:at] + b"0" * 64 + data[at + 64 :]
        if data.count(old) != 1:
            raise ValueError(f"{old!r} is there {data.count(old)} times.")
        files["zarr.json"] = sealed(data.replace(old, new))

    return changed


def consolidated(path: str) -> Callable[[Files], None]:
    """Let the root repeat metadata that no array has."""
    copies = {"kind": "inline", "must_understand": False, "metadata": {path: {"shape": [4]}}}
    member = b'"node_type": "group", "consolidated_metadata": ' + json.dumps(copies).encode() + b","
    return resealed(b'"node_type": "group",', member)


def without_digest(files: Files) -> None:
    """Leave out the root's digest."""
    value = json.loads(data_of(files, "zarr.json"))
    del value["attributes"]["tsds_sha256"]
    files["zarr.json"] = dump_json(value)


def claim(manifest: Json) -> None:
    """Say that there are 10^9 rows."""
    manifest["splits"]["train"]["rows"] = shard_of(manifest)["rows"] = 10**9


def linked_directory(files: Files) -> None:
    """Replace a directory by a link to one with the same files."""
    for path in [path for path in files if path.startswith(f"{SHARD}/twin/")]:
        del files[path]
    files[f"{SHARD}/twin"] = Link("label")


def shard_of(manifest: Json) -> Json:
    """The first shard in the manifest."""
    shard: Json = manifest["splits"]["train"]["shards"][0]
    return shard


def listed_by_shard(change: Callable[[Json], Any]) -> Callable[[Files], None]:
    """Change the files that the first shard lists."""
    return metadata(SHARD, lambda group: change(group["attributes"]["tsds"]["files"]))


def renamed(place: str, old: str, new: str) -> Callable[[Json], None]:
    """Rename a member of an object in the manifest."""
    return lambda manifest: manifest[place].update({new: manifest[place].pop(old)})


def with_hole(files: Files) -> None:
    """Move the second chunk of a compressed array by a byte and say so in the index."""
    data = data_of(files, IMAGE)
    entries = np.frombuffer(data[-36:-4], "<u8").reshape(2, 2).copy()
    first = int(entries[0, 1])
    entries[1, 0] += 1
    files[IMAGE] = data[:first] + b"\0" + data[first:-36] + index_of(entries)


#: The two chunks of the store `chunks`: rows of 65,536 bytes.
FIRST = b"".join(bytes([value]) * 65536 for value in range(1, 8))
SECOND = bytes(7 * 65536)


def second_chunk(data: bytes) -> Callable[[Files], None]:
    """Put other bytes in the place of the second compressed chunk, with an index that agrees."""
    return lambda files: files.update({IMAGE: data_file([zstd_frame(FIRST), data])})


def unsized_frame(data: bytes) -> bytes:
    """A frame that does not tell its size; its window of 1 MiB is more than the data need."""
    return b"\x28\xb5\x2f\xfd\x00\x50" + zstd_frame(data)[9:]


def windowed_frame(data: bytes, window: int) -> bytes:
    """A frame that says its size, and has a descriptor of its window: an exponent and a mantissa."""
    return b"\x28\xb5\x2f\xfd\x80" + bytes([window]) + zstd_frame(data)[5:]


def bomb(nbytes: int) -> bytes:
    """A frame of zeros in blocks of 128 KiB, each of which takes 4 bytes."""
    blocks = nbytes // 131072
    header = (1 << 1 | 131072 << 3).to_bytes(3, "little") + b"\0"
    last = (1 | 1 << 1 | 131072 << 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\xa0" + nbytes.to_bytes(4, "little") + header * (blocks - 1) + last


def entry(offset: int, nbytes: int) -> Callable[[bytes], bytes]:
    """Change the first entry of an index of two chunks."""

    def changed(data: bytes) -> bytes:
        entries = np.frombuffer(data[-36:-4], "<u8").reshape(2, 2).copy()
        entries[0] = offset, nbytes
        return data[:-36] + index_of(entries)

    return changed


# --- the cases --------------------------------------------------------------------------------------------------
# fmt: off


def cases() -> list[Case]:
    """Every invalid store."""
    groups = (
        root_cases, manifest_cases, path_cases, file_cases, map_cases, chunk_cases, verify_cases, value_cases,
        entry_cases,
    )
    return [case for group in groups for case in group()]


def root_cases() -> list[Case]:
    """The root's ``zarr.json`` cannot be read as a manifest."""
    s, empty_group = labels_store(), {"zarr_format": 3, "node_type": "group", "attributes": {}}
    return [
        Case("not-a-store--no-root", "open", "The root has no zarr.json.", s, after=lambda f: f.pop("zarr.json")),
        Case("not-a-store--no-attribute", "open", "The root group has no attribute tsds.", s,
             after=raw_root(dump_json(empty_group))),
        Case("not-a-store--format-float", "open", "The root's Zarr format is 3.0.", s,
             after=resealed(b'"zarr_format": 3', b'"zarr_format": 3.0')),
        Case("manifest-json--cut", "open", "The root's zarr.json ends too early.", s,
             after=patch("zarr.json", lambda data: data[:-9])),
        Case("manifest-json--not-an-object", "open", "The root's zarr.json is a list.", s, after=raw_root(b"[3]\n")),
        Case("manifest-json--encoding", "open", "The root's zarr.json is UTF-16.", s,
             after=patch("zarr.json", lambda data: data.decode().encode("utf-16-le"))),
        Case("manifest-json--nested", "open", "Lists nested 20,000 deep: a recursive parser runs out of stack.", s,
             after=raw_root(around(b"[" * 20000 + b"]" * 20000))),
        Case("manifest-json--long-number", "open", "An integer of 10,000 digits.", s,
             after=raw_root(around(b"9" * 10000))),
        Case("manifest-json--mark", "open", "A byte order mark.", s,
             after=patch("zarr.json", lambda data: b"\xef\xbb\xbf" + data)),
        Case("manifest-json--twice", "open", "The member layout is there twice.", s,
             after=resealed(b'"layout": "memmap"', b'"layout": "zarr", "layout": "memmap"')),
        Case("manifest-json--surrogate", "open", "A class name is half of a pair of surrogates.", s,
             after=resealed(b'"b"', b'"\\ud800"')),
        Case("manifest-json--nan", "open", "NaN in the provenance.", s,
             after=resealed(b'"provenance": {}', b'"provenance": {"x": NaN}')),
        Case("manifest-json--infinity", "open", "-Infinity in the provenance.", s,
             after=resealed(b'"provenance": {}', b'"provenance": {"x": -Infinity}')),
        Case("manifest-json--large-number", "open", "A number that no float64 can hold, in the provenance.", s,
             after=resealed(b'"provenance": {}', b'"provenance": {"x": 1e999}')),
        Case("manifest-json--large-integer", "open", "The integer 2^53, in the provenance.", s,
             after=resealed(b'"provenance": {}', b'"provenance": {"x": 9007199254740992}')),
        Case("manifest-json--depth", "open", "65 lists within each other, in the provenance.", s,
             after=resealed(b'"provenance": {}', b'"provenance": {"x": ' + b"[" * 65 + b"]" * 65 + b"}")),
        Case("manifest--no-digest", "open", "The attribute tsds_sha256 is missing.", s, after=without_digest),
        Case("checksum--digest", "open", "The root's digest is that of another store.", s,
             after=patch("zarr.json", lambda data: data.replace(data[data.index(b"sha256") + 10 :][:64], b"5a" * 32))),
        Case("checksum--manifest", "open", "A class was renamed after the digest was made.", s,
             after=patch("zarr.json", lambda data: data.replace(b'"b"', b'"d"'))),
        Case("checksum--null", "open", "The attribute tsds_sha256 is null.", s,
             after=patch("zarr.json", lambda d: d[:d.index(b'"tsds_sha256"') + 15] + b"null"
                         + d[d.index(b'"tsds_sha256"') + 81 :])),
        Case("unknown-requirement--store", "open", "The store requires what no reader of version 1.0 knows.", s,
             manifest=lambda m: m.update(requires=["tombstones"])),
        Case("unknown-requirement--unsealed", "open", "The same, with a digest of another kind.", s,
             after=unsealed({"format_version": "1.3", "requires": ["blake3"]})),
        Case("unknown-version--unsealed", "open", "Version 2.0, with a digest of another kind.", s,
             after=unsealed({"format_version": "2.0"})),
        Case("manifest--requires", "open", "The member requires is a string.", s,
             manifest=put("requires", "tombstones")),
        Case("manifest--requires-twice", "open", "The member requires has a name twice.", s,
             manifest=put("requires", ["a", "a"])),
        Case("checksum--space", "open", "A space was added to the root's zarr.json.", s,
             after=patch("zarr.json", lambda data: data + b" ")),
    ]


def manifest_cases() -> list[Case]:
    """The manifest breaks a rule."""
    s, o, e = labels_store(), objects_store(), encoded_jpeg()
    i, k, c = minimal(), masks(), captions()
    changes: list[Any] = [  # cases, or: name, why, store, and what is put where in its manifest
        Case("unknown-version--2.0", "open", "The major version is 2.", s,
             manifest=lambda m: m.update(format_version="2.0")),
        Case("unknown-version--01.0", "open", "The major version has a zero before it.", s,
             manifest=lambda m: m.update(format_version="01.0")),
        Case("manifest--not-an-object", "open", "The attribute tsds is a string.", s,
             after=raw_root(around(b'"1.0"'))),
        ("missing-layout", "The member layout is missing.", s, "layout", GONE),
        ("missing-rows", "A shard's member rows is missing.", s, f"{LISTED}/rows", GONE),
        ("rows", "The rows of a split are not the sum of its shards'.", s, "splits/train/rows", 4),
        Case("manifest--number", "open", "Two shards of a split have the same number.", replaced_shard(),
             manifest=put("splits/train/shards/1/number", 2)),
        ("replaced", "A shard that is listed is among the replaced ones.",
         replaced_shard(), "splits/train/replaced", [1, 3]),
        Case("unlisted-file--replaced", "verify", "A folder of a shard is neither listed nor among the replaced ones.",
             replaced_shard(), manifest=lambda m: m["splits"]["train"].pop("replaced")),
        ("lengths", "The lengths of a shard do not name its tables.", o, f"{LISTED}/lengths/label", 3),
        ("ignored", "The value that a mask ignores is a class.", k, "fields/mask/ignored", 2),
        ("oriented", "Oriented boxes of four numbers.",
         o, "fields/objects/values/oriented_boxes", {"dtype": "float32", "shape": [4]}),
        ("mask", "A mask has three dimensions.", k, "fields/mask/shape", [2, 2, 6]),
        ("classes", "A class name appears twice.", s, "fields/label/classes", ["a", "b", "a"]),
        ("flip-pair", "A flip pair names a keypoint that does not exist.", o, "fields/objects/flip_pairs", [[0, 2]]),
        ("dtype", "A data type that is no string.", i, "fields/image/dtype", 8),
        ("field-requires", "A field's member requires is true.", i, "fields/image/requires", True),
        Case("manifest--unreadable-file", "map", "A shard lists a file of a field that is not in the manifest.",
             unreadable_fields(), manifest=lambda m: m["fields"].pop("depth")),
        ("unreadable-length", "A shard has the length of a field that is not in the manifest.",
         unreadable_fields(), "fields/points", GONE),
        Case("checksum--unreadable", "verify", "A file of a field that 1.0 cannot read was changed.",
             unreadable_fields(), after=patch(f"{SHARD}/depth/data", lambda data: flip(data, 3))),
        ("row-size", "A row of 2^64 + 16 bytes: 16, where 64-bit numbers wrap.",
         i, "fields/image/shape", [2**20 + 1, 2**40 - 2**20 + 1, 16]),
        Case("manifest--file-missing", "map", "A shard does not list one of its files.", s,
             shard=listed_by_shard(lambda files: files.pop("label/c/0"))),
        Case("manifest--file-added", "map", "A shard lists a file that does not belong to it.", s,
             files=lambda f: f.update({f"{SHARD}/label/c/1": b"1"})),
        Case("manifest--listing", "map", "A shard's zarr.json lists no files.", s,
             shard=metadata(SHARD, lambda group: group.update(attributes={}))),
        Case("manifest--listing-json", "map", "A shard's zarr.json is no JSON.", s,
             shard=patch(f"{SHARD}/zarr.json", lambda data: data[:-9])),
        Case("manifest--nbytes", "map", "A shard has other bytes than the manifest says.", s,
             manifest=lambda m: shard_of(m).update(nbytes=4096)),
        ("chunk-size", "Chunks of 0 bytes.", s, "chunk_size", 0),
        ("no-chunk-size", "The member chunk_size is missing.", s, "chunk_size", GONE),
        ("layout", "The store has a layout that the format does not have.", s, "layout", "tar"),
        ("field-layout", "The layout of a field is null.", s, "fields/label/layout", None),
        ("image-layout", "The bytes of images are compressed again.", e, "fields/image/values/bytes/layout", GONE),
        ("raw-sizes-layout", "The pixels of raw images of differing sizes may be compressed.",
         raw_sizes(), "fields/image/values/pixels/layout", GONE),
        ("raw-sizes-pixels", "The most pixels that a raw image may have are missing.",
         raw_sizes(), "fields/image/max_pixels", GONE),
        ("image-shape", "The shapes of encoded images are missing.", e, "fields/image/per_row", GONE),
        ("image-pixels", "The most pixels that an encoded image may have are missing.",
         e, "fields/image/max_pixels", GONE),
        ("image-bytes", "An encoded image has two values.",
         e, "fields/image/values/more", {"dtype": "uint8", "shape": []}),
        ("entries", "Entries of two numbers.", entries(), "fields/image/per_row/entries/shape", [2]),
        ("channels", "An image of one channel has two names for them.", i, "fields/image/channels", ["near", "far"]),
        ("range", "White is not above black.", i, "fields/image/range", [1.0, 1.0]),
        ("offsets", "A value is named offsets.", o, "fields/objects/values/offsets", {"dtype": "int64", "shape": []}),
        ("no-values", "A table has no values.", o, "fields/objects/values", {}),
        ("both", "A name is that of a value and of an array per row.",
         o, "fields/objects/per_row", {"labels": {"dtype": "int64", "shape": []}}),
        ("ragged", "The member ragged is 1.", c, "fields/captions/values/text/ragged", 1),
        Case("manifest--ragged-length", "open", "The number of items of a ragged value is missing.", c,
             manifest=lambda m: shard_of(m)["lengths"].pop("captions/text")),
        ("no-kind", "A field has no kind.", s, "fields/label/kind", GONE),
        Case("manifest--image-missing", "open", "Objects lie in a field of images that is not there.",
             two_images(of="photograph")),
        Case("manifest--image-kind", "open", "Objects lie in a mask.", two_images(of="mask")),
        ("image-null", "The field of images that objects lie in is null.", two_images(), "fields/objects/image", None),
        ("values-and-dtype", "A field of fixed shape has values as well.",
         s, "fields/label/values", {"x": {"dtype": "uint8", "shape": []}}),
        ("values-null", "A field of fixed shape has values that are null.", s, "fields/label/values", None),
        Case("manifest--shape-and-values", "open", "A table of an unknown kind has a shape.", o,
             manifest=lambda m: m["fields"]["objects"].update(kind="tracks", shape=[])),
        *((f"null-{member}", f"The optional member {member} is null.", store, f"{place}{member}", None)
          for store, place, members in (
              (s, "", "license provenance"),
              (s, "splits/train/", "statistics replaced"),
              (s, f"{LISTED}/", "number"),
              (i, "fields/image/", "channels range"),
              (k, "fields/mask/", "ignored"),
              (o, "fields/objects/", "skeleton per_row"),
          )
          for member in members.split()),
        ("ragged-number", "The member ragged of a value is 1.", o, "fields/objects/values/labels/ragged", 1),
        ("shape-number", "A shape is a number.", i, "fields/image/shape", 4),
        ("ignored-large", "Pixels of a mask of 8 bits with the value 256 are ignored.", k, "fields/mask/ignored", 256),
        ("lengths-list", "The lengths of a shard are a list.", s, f"{LISTED}/lengths", []),
        ("channels-65", "Images have 65 channels.", i, "fields/image/shape", [4, 4, 65]),
        ("no-arrays", "A field of an unknown kind says neither dtype and shape nor values.",
         s, "fields/graph", {"kind": "graph"}),
        ("label-dtype", "Labels of 32 bits.", s, "fields/label/dtype", "int32"),
        ("labels-shape", "Labels of two numbers for three classes.", multi_label(), "fields/labels/shape", [2]),
        ("labels-dtype", "Labels of several classes without a sign.", multi_label(), "fields/labels/dtype", "uint8"),
        ("labels-classes", "Labels of several classes that have no names.",
         multi_label(), "fields/labels/classes", GONE),
        ("keypoints", "A keypoint's name appears twice.", o, "fields/objects/keypoints", ["left", "left"]),
        ("boxes", "Boxes of five numbers.", boxes_store(1, 0, 6, 3), "fields/objects/values/boxes/shape", [5]),
        ("mask-classes", "A mask of 8 bits with 257 classes.", k, "fields/mask/classes", [f"c{i}" for i in range(257)]),
        ("key", "Keys of 16 bits.", keys_store(b"a.png"), "fields/key/values/bytes/dtype", "uint16"),
        ("text", "Texts that are not lists of bytes.", c, "fields/captions/values/text/dtype", "uint16"),
        ("size", "Original sizes of three numbers.", sizes_store(), "fields/size/shape", [3]),
        ("image-dimensions", "Images of two dimensions.", i, "fields/image/shape", [4, 4]),
        Case("manifest--digest-capital", "open", "A shard's hash has capital letters.", s,
             manifest=lambda m: shard_of(m).update(sha256=shard_of(m)["sha256"].upper().replace("1", "A"))),
        ("length", "A table has -1 values.", o, f"{LISTED}/lengths/objects", -1),
        Case("manifest--large-integer", "open", "A file of 2^53 bytes, written as a number with a point.", s,
             manifest=lambda m: m["files"]["train/zarr.json"].update(size=float(2**53))),
        ("statistics", "The statistics are a list.", s, "splits/train/statistics", []),
        ("provenance", "The provenance is a string.", s, "provenance", "here"),
        ("license", "The license is a number.", s, "license", 4),
        Case("manifest--files-root", "open", "The root's zarr.json is listed.", s,
             manifest=lambda m: m["files"].update({"zarr.json": {"size": 3, "sha256": "0" * 64}})),
        ("fraction", "The rows of a shard are 3.0.", s, f"{LISTED}/rows", 3.0),
        Case("manifest--group", "open", "The metadata of a split are not listed.", s,
             manifest=lambda m: m["files"].pop("train/zarr.json")),
        Case("manifest--folder", "open", "The root lists a file in a folder that no split has.", s,
             files=lambda f: f.update({"extra/notes": b"hello\n"}),
             manifest=lambda m: m["files"].update(
                 {"extra/notes": {"size": 6, "sha256": hashlib.sha256(b"hello\n").hexdigest()}})),
    ]
    return [
        each if isinstance(each, Case)
        else Case(f"manifest--{each[0]}", "open", each[1], each[2], manifest=put(*each[3:]))
        for each in changes
    ]


def path_cases() -> list[Case]:
    """A path leaves the store, or a link stands in a path."""
    s, entry = labels_store(), {"size": 4, "sha256": "0" * 64}
    return [
        Case("unsafe-path--split", "open", "A split's name has dots and a slash.", s,
             manifest=renamed("splits", "train", "../a")),
        Case("unsafe-path--field", "open", "A field's name is two dots.", s, manifest=renamed("fields", "label", "..")),
        Case("unsafe-path--value", "open", "A value's name has a slash.", objects_store(),
             manifest=lambda m: m["fields"]["objects"]["values"].update({"a/b": {"dtype": "int64", "shape": []}})),
        Case("unsafe-path--file", "map", "A shard lists a file outside of the store.", s,
             shard=listed_by_shard(lambda files: files.update({"../../../passwd": entry}))),
        Case("unsafe-path--absolute", "open", "The store lists a file by an absolute path.", s,
             manifest=lambda m: m["files"].update({"/etc/passwd": entry})),
        *(Case(f"unsafe-path--name-{what}", "open", why, s, manifest=renamed(place, old, new))
          for what, place, old, new, why in (
              ("dash", "splits", "train", "-rf", "A split's name begins as an option does."),
              ("device", "fields", "label", "aux", "A field's name is a device of Windows."),
              ("com", "splits", "train", "com1", "A split's name is a device of Windows."),
              ("newline", "fields", "label", "label\n", "A line break ends a field's name."),
              ("capital", "splits", "train", "Train", "A split's name has a capital letter."),
              ("long", "splits", "train", "a" * 65, "A split's name has 65 characters."),
          )),
        *(Case(f"unsafe-path--root-{what}", "open", why, s, manifest=lambda m, n=name: m["files"].update({n: entry}))
          for what, name, why in (
              ("hidden", ".hidden", "A root file's name begins with a dot."),
              ("dots", "..", "A root file's name is two dots."),
              ("end", "notes.", "A root file's name ends with a dot."),
              ("device", "NUL.txt", "A root file's name is a device of Windows."),
              ("case", "Train", "A root file and a split have the same name but for case."),
              ("newline", "notes\n", "A line break ends a root file's name."),
              ("space", "read me", "A root file's name has a space."),
              ("root", "Zarr.json", "A root file is called zarr.json but for case."),
          )),
        Case("manifest--files-signature", "open", "The signature is listed.", s,
             manifest=lambda m: m["files"].update({"zarr.json.sig": entry})),
        Case("unsafe-path--root-twice", "open", "Two root files have the same name but for case.", s,
             manifest=lambda m: m["files"].update({"notes": entry, "NOTES": entry})),
        Case("unsafe-path--listed-device", "map", "A file of a field that 1.0 cannot read is a device of Windows.",
             unreadable_fields(), shard=listed_by_shard(lambda files: files.update({"depth/nul": entry}))),
        Case("symlink--signature", "verify", "The signature is a link.", s,
             after=lambda f: f.update({"zarr.json.sig": Link("zarr.json")})),
        Case("file-size--signature", "verify", "The signature has more than 1 MiB.", s,
             after=lambda f: f.update({"zarr.json.sig": bytes(2**20 + 1)})),
        Case("missing-file--root", "map", "A listed root file is missing.", classification(),
             after=lambda f: f.pop("skipped.jsonl")),
        Case("missing-file--split", "map", "The zarr.json of a split is missing.", s,
             after=lambda f: f.pop("train/zarr.json")),
        Case("symlink--root-file", "map", "A listed root file is a link.", signed(),
             after=lambda f: f.update({"README.md": Link("LICENSE")})),
        Case("file-size--root", "map", "A listed root file is longer than it should be.", signed(),
             after=patch("README.md", lambda data: data + b"\n")),
        Case("symlink--file", "map", "A data file is a link to another of the store.", twin_store(),
             after=lambda f: f.update({f"{SHARD}/twin/c/0": Link("../../label/c/0")})),
        Case("symlink--directory", "map", "A directory is a link to another of the store.", twin_store(),
             after=linked_directory),
        Case("symlink--root", "open", "The root's zarr.json is a link that leaves the store.", minimal(),
             after=lambda f: f.update({"zarr.json": Link("../../valid/minimal.tsds/zarr.json")})),
    ]


def file_cases() -> list[Case]:
    """A file is not there, or not of the size that it must have."""
    s, o = labels_store(), objects_store()
    return [
        Case("missing-file--data", "map", "A data file is missing.", s, after=lambda f: f.pop(LABEL)),
        Case("missing-file--shard", "map", "A shard is missing.", s,
             after=lambda f: [f.pop(path) for path in list(f) if path.startswith(SHARD)]),
        Case("missing-file--metadata", "map", "The metadata of an array are missing.", s,
             after=lambda f: f.pop(f"{SHARD}/label/zarr.json")),
        Case("file-size--short", "map", "A data file is cut in half.", minimal(),
             after=patch(IMAGE, lambda data: data[: len(data) // 2])),
        Case("file-size--long", "map", "A data file is 8 bytes too long.", minimal(),
             after=patch(IMAGE, lambda data: data + bytes(8))),
        Case("file-size--listed", "map", "A data file and the manifest agree on a size that the shape denies.",
             minimal(), files=patch(IMAGE, lambda data: data[:16])),
        Case("file-size--length", "map", "A table has one value less than its length says.", o,
             manifest=lambda m: shard_of(m)["lengths"].update(objects=4)),
        Case("file-size--claim", "map", "10^9 rows in a compressed file of 61 bytes.", labels_store(layout="zarr"),
             manifest=claim),
    ]


def map_cases() -> list[Case]:
    """An array's metadata or a table's offsets are not what the manifest implies."""
    s, f, path = labels_store(), floats_store(), f"{SHARD}/label"
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    zstd = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
    changes: list[Any] = [  # cases, or: name, why, and what is put where in the metadata of an array
        ("shape", "An array has another shape.", "shape", [4]),
        ("dtype", "An array has another data type of the same size.", "data_type", "uint64"),
        ("endian", "An array is big-endian.", f"{SHARDING}/{SHARDING}/endian", "big"),
        ("codec", "An array of the layout memmap is compressed.", f"{SHARDING}/codecs", [little, zstd]),
        ("chunks", "The inner chunks have another shape.", f"{SHARDING}/chunk_shape", [1]),
        ("fill-value", "An array has the fill value 1.", "fill_value", 1),
        ("fill-value-type", "An array has the fill value false.", "fill_value", False),
        ("shape-type", "An array has the shape [3.0].", "shape", [3.0]),
        ("attributes", "The attributes of an array are a list.", "attributes", []),
        ("no-attributes", "An array has no attributes.", "attributes", GONE),
        ("member", "An array has a member that the format does not have.", "compressor", "none"),
        ("must-understand", "An array has a member that has to be understood.", "storage", {"must_understand": True}),
        ("names-count", "An array of one dimension has two names of dimensions.", "dimension_names", ["row", "column"]),
        ("names-null", "The names of dimensions are null.", "dimension_names", None),
        ("names-type", "The name of a dimension is a number.", "dimension_names", [1]),
        Case("array-metadata--fill-value-bool", "map", "The fill value of floating-point numbers is false.", f,
             files=metadata(f"{SHARD}/x", put("fill_value", False))),
        Case("array-metadata--twice", "map", "An array has a member twice.", s,
             files=patch(f"{path}/zarr.json", lambda data: data.replace(b"{", b'{"zarr_format": 3, ', 1))),
        Case("array-metadata--level", "map", "An array was compressed at level 23.",
             labels_store(layout="zarr", level=23)),
        ("format", "An array has the Zarr format 2.", "zarr_format", 2),
        ("node", "An array's zarr.json is that of a group.", "node_type", "group"),
        ("grid", "The outer grid has another shape.", "chunk_grid/configuration/chunk_shape", [6]),
        ("keys", "Chunks have keys with dots.", "chunk_key_encoding/configuration/separator", "."),
        ("index-location", "The index stands before the chunks.", f"{SHARDING}/index_location", "start"),
        ("index-codecs", "The index has no checksum.", f"{SHARDING}/index_codecs/1", GONE),
        Case("array-metadata--zstd-checksum", "map", "Frames have checksums, it says.", labels_store(layout="zarr"),
             files=metadata(path, put(f"{SHARDING}/codecs/1/configuration/checksum", True))),
        Case("array-metadata--large", "map", "An array's zarr.json has more than 1 MiB.", s,
             files=patch(f"{path}/zarr.json", lambda data: data + b" " * 2**20)),
        Case("array-metadata--json", "map", "An array's zarr.json is no JSON.", s,
             files=patch(f"{path}/zarr.json", lambda data: data[:-9])),
        Case("offsets--fall", "map", "The offsets fall.", objects_store((0, 2, 1, 3))),
        Case("offsets--negative", "map", "An offset is negative.", objects_store((0, -1, 2, 3))),
        Case("offsets--start", "map", "The offsets begin at 1.", objects_store((1, 2, 2, 3))),
        Case("offsets--beyond", "map", "The offsets end beyond the table.", objects_store((0, 2, 2, 4))),
        Case("offsets--ragged", "map", "The offsets of a ragged value fall.", captions((0, 5, 3, 14))),
        Case("offsets--short", "map", "The offsets end before the table does.", objects_store((0, 2, 2, 2))),
    ]
    return [
        each if isinstance(each, Case)
        else Case(f"array-metadata--{each[0]}", "map", each[1], s, files=metadata(path, put(*each[2:])))
        for each in changes
    ]


def chunk_cases() -> list[Case]:
    """Compressed chunks that are not one frame of their size, or are not where the index says; hashes agree."""
    s, frame = chunks("zarr"), zstd_frame(SECOND)
    cases = [
        ("bomb", "A chunk of 448 KiB says that it holds 1 GiB, and does.", bomb(2**30)),
        ("less", "A chunk holds a byte less than it should.", zstd_frame(SECOND[:-1])),
        ("more", "A chunk holds a byte more than it should.", zstd_frame(SECOND + b"\0")),
        ("cut", "A chunk ends before its frame does.", frame[:-2]),
        ("behind", "Bytes follow a chunk's frame.", frame + b"\0\0"),
        ("two-frames", "A chunk is two frames of half its size.", zstd_frame(SECOND[: 7 * 32768]) * 2),
        ("skippable", "A skippable frame comes before a chunk's frame.", b"\x50\x2a\x4d\x18\x01\0\0\0\0" + frame),
        ("no-size", "A chunk's frame does not say how much it holds.", unsized_frame(SECOND)),
        ("window", "A chunk's frame asks for a window of 144 MiB.", windowed_frame(SECOND, 17 << 3 | 1)),
        ("no-frame", "A chunk is no Zstandard frame.", b"\0" + frame[1:]),
    ]
    missing = 2**64 - 1
    return [
        *(Case(f"checksum--chunk-{name}", "map", why, s, files=second_chunk(data)) for name, why, data in cases),
        Case("shard-index--outside", "map", "A chunk begins behind the end of the file.", s,
             files=patch(IMAGE, entry(10**9, 70000))),
        Case("shard-index--wrapped", "map", "A chunk's offset and size add up to 2^64 + 5.", s,
             files=patch(IMAGE, entry(2**64 - 100, 105))),
        Case("shard-index--long", "map", "A chunk is larger than its file.", s, files=patch(IMAGE, entry(0, 10**6))),
        Case("shard-index--left-out", "map", "A chunk is left out, as Zarr allows.", s,
             files=patch(IMAGE, entry(missing, missing))),
        Case("shard-index--zarr-crc", "map", "The checksum of the index of a compressed array is wrong.", s,
             files=patch(IMAGE, lambda data: flip(data, len(data) - 1))),
    ]


def verify_cases() -> list[Case]:
    """Bytes that only a reader of every byte finds."""
    s = labels_store()
    return [
        Case("checksum--data", "verify", "A bit of a data file is flipped.", minimal(),
             after=patch(IMAGE, lambda data: flip(data, 9))),
        Case("checksum--metadata", "verify", "A group's zarr.json has other white space.", s,
             after=patch("train/zarr.json", lambda data: data.replace(b"\n", b" "))),
        Case("checksum--shard", "map", "A shard's zarr.json has other white space.", s,
             after=patch(f"{SHARD}/zarr.json", lambda data: data.replace(b"\n", b" "))),
        Case("checksum--row", "verify", "The checksum of an image file is wrong.", row_checksums(1)),
        Case("checksum--first", "verify", "A label was changed, and is no class any more: hashes are judged first.", s,
             after=patch(LABEL, lambda data: b"\x09" + data[1:])),
        Case("checksum--listed", "verify", "A shard lists a wrong hash.", s,
             shard=listed_by_shard(lambda files: files["label/c/0"].update(sha256="0" * 64))),
        Case("shard-index--chunk-crc", "verify", "The checksum of a chunk is wrong.", s,
             files=patch(LABEL, lambda data: flip(data, len(data) - 21))),
        Case("shard-index--zarr-chunk-crc", "verify", "The checksum of a compressed chunk is wrong.", chunks("zarr"),
             files=patch(IMAGE, lambda data: flip(data, len(data) - 37))),
        Case("shard-index--entry", "verify", "The index says that a chunk begins at byte 8.", s,
             files=patch(LABEL, lambda data: data[:-20] + index_of(np.array([[8, 24]])))),
        Case("shard-index--crc", "verify", "The checksum of the index is wrong.", s,
             files=patch(LABEL, lambda data: flip(data, len(data) - 1))),
        Case("shard-index--hole", "verify", "A byte lies between two compressed chunks.", chunks("zarr"),
             files=with_hole),
        Case("unlisted-file--added", "verify", "A file that the manifest does not list.", s,
             after=lambda f: f.update({f"{SHARD}/notes": b"hello\n"})),
        Case("shard-index--fill", "verify", "The last chunk is filled up with a one.", chunks("memmap"),
             files=lambda f: f.update({IMAGE: data_file([FIRST, SECOND[:-1] + b"\x01"])})),
        Case("shard-index--zarr-fill", "verify", "The last compressed chunk is filled up with a one.",
             chunks("zarr"), files=second_chunk(zstd_frame(SECOND[:-1] + b"\x01"))),
        Case("group-metadata--json", "verify", "A group's zarr.json is no JSON.", s,
             files=patch("train/zarr.json", lambda data: data[:-9])),
        Case("group-metadata--table", "verify", "The zarr.json of a table has attributes that are no object.",
             objects_store(), files=metadata(f"{SHARD}/objects", lambda group: group.update(attributes=3))),
        Case("group-metadata--shard", "verify", "A shard's zarr.json has consolidated metadata.", s,
             shard=metadata(SHARD, lambda group: group.update(consolidated_metadata=None))),
        Case("group-metadata--root", "verify", "The root has consolidated metadata.", s,
             after=resealed(b'"node_type": "group",', b'"node_type": "group", "consolidated_metadata": null,')),
        Case("group-metadata--consolidated", "verify", "The root repeats metadata of an array that differ.", s,
             after=consolidated("train/00000/label")),
        Case("group-metadata--consolidated-path", "verify", "The root repeats metadata from outside of the store.", s,
             after=consolidated("../labels")),
        Case("group-metadata--convention", "verify", "The root does not name the convention.", s,
             after=resealed(b'"name": "tsds"', b'"name": "tsd"')),
        Case("group-metadata--node", "verify", "A group's zarr.json is that of an array.", s,
             files=patch("train/zarr.json", lambda data: data.replace(b"group", b"array"))),
        Case("group-metadata--member", "verify", "A group has consolidated metadata.", s,
             files=metadata("train", lambda group: group.update(consolidated_metadata=None))),
    ]


def value_cases() -> list[Case]:
    """Values that a field of this kind cannot have."""
    invalid = [
        ("label-range--above", "The label 3 of three classes.", labels_store((0, 3, 1))),
        ("label-range--negative", "The label -2.", labels_store((0, -2, 1))),
        ("label-range--labels", "The number 2 for one of several classes.", multi_label((1, 2, 0))),
        ("label-range--labels-negative", "The number -2 for one of several classes.", multi_label((1, 0, -2))),
        ("label-range--object-negative", "An object's label -1.", objects_store(labels=(0, -1, 0))),
        ("label-range--object", "An object's label 2 of two classes.", objects_store(labels=(0, 2, 0))),
        ("box-range--outside", "A box ends half a pixel outside.", boxes_store(1, 0, 6.5, 3)),
        ("box-range--negative", "A box begins at -1.", boxes_store(-1, 0, 6, 3)),
        ("box-range--negative-y", "A box begins above the image.", boxes_store(1, -1, 6, 3)),
        ("box-range--reversed", "A box has x2 < x1.", boxes_store(4, 0, 1, 3)),
        ("box-range--empty", "A box has y1 = y2.", boxes_alone_store(1, 3, 4, 3)),
        ("box-range--nan", "A coordinate of a box is no number.", boxes_alone_store(math.nan, 0, 4, 3)),
        ("box-range--turned", "A box fits its image only before the image is turned.", encoded_source((0, 0, 16, 8))),
        ("mask-range--above", "A pixel of 3 in a mask of three classes.", masks((0, 3, 2, 255))),
        ("mask-range--not-ignored", "A pixel of 254, where 255 is ignored.", masks((0, 254, 2, 255))),
        ("box-range--other-image", "A box fits the field image, and not the one that it names.",
         two_images((0, 0, 6, 9))),
        ("mask-shape--other-image", "A mask is not as high as the image that it names.", two_images(height=4)),
        ("mask-shape--files", "A mask has the size of an image file before it is turned.", turned_mask()),
        ("rle-range--short", "The runs of an object end a pixel before its image does.", outlines((1, 2, 1, 2, 17))),
        ("rle-range--wrapped", "The runs of an object add up to its image in 32 bits, and not in 64.",
         outlines((1, 2, 2**32 - 1, 4, 18))),
        ("flag-range--visibility", "The visibility 3.", outlines(visibility=3)),
        ("size-range--zero", "An image was 0 pixels wide.", sizes_store((4, 0))),
        ("flag-range--two", "The flag 2.", flags_store(0, 2)),
        ("oriented-range--infinite", "A center at infinity.", oriented_store(math.inf, 2, 3, 4, 1)),
        ("oriented-range--half", "One number is NaN.", oriented_store(1, 2, 3, 4, math.nan)),
        ("oriented-range--width", "No width.", oriented_store(1, 2, 0, 4, 1)),
        ("oriented-range--height", "A negative height.", oriented_store(1, 2, 3, -4, 1)),
        ("oriented-range--angle", "An angle above pi.", oriented_store(1, 2, 3, 4, 3.2)),
        ("oriented-range--angle-below", "An angle below -pi.", oriented_store(1, 2, 3, 4, -3.2)),
        ("polygon-range--half", "One coordinate of a corner is no number.", corners_store(3, math.nan)),
        ("polygon-range--infinite", "A corner at infinity.", corners_store(math.inf, 1)),
        ("keypoint-range--half", "One coordinate of a keypoint is no number.", points_store(3, math.nan)),
        ("keypoint-range--infinite", "A keypoint at infinity.", points_store(math.inf, 1)),
        ("key-text--utf-8", "A key is not UTF-8.", keys_store(b"a.png", b"b\xff.png")),
        ("key-text--cut", "A character begins in one key and ends in the next.", keys_store(b"a\xc3", b"\xa9b")),
        ("text--utf-8", "A text is not UTF-8.", captions(data=b"a catdwa k\xf3\xf3ty")),
        ("text--cut", "A character begins in one text and ends in the next.",
         captions((0, 11, 11, 14), data=b"a catdwa k\xc3\xb3ty")),
        ("image-shape--height", "An image file is not as high as is said.",
         encoded_jpeg(shapes=((8, 16, 1), (9, 8, 1), (8, 16, 1)))),
        ("image-shape--channels", "A gray image file is said to have three channels.",
         encoded_jpeg(shapes=((8, 16, 3), (8, 8, 1), (8, 16, 1)))),
        ("image-shape--pixels", "An image file has more pixels than the field allows.", encoded_jpeg(max_pixels=127)),
        ("image-shape--turned", "An image of the encoding jpeg asks to be turned.",
         encoded_jpeg([turned(JPEG_8X8)], [(8, 8, 1)])),
        ("image-shape--raw", "A raw image has fewer numbers than its shape says.",
         raw_sizes(((2, 3, 1), (5, 1, 1), (3, 3, 1)))),
        ("image-shape--raw-zero", "A raw image has the negative height and width -2 and -3.",
         raw_sizes(((-2, -3, 1), (4, 1, 1), (3, 3, 1)))),
        ("image-shape--raw-pixels", "A raw image has more pixels than the field allows.", raw_sizes(max_pixels=8)),
        ("image-shape--raw-65", "A raw image has 65 channels.",
         raw_sizes(((1, 1, 65), (4, 1, 1), (3, 3, 1)), lengths=(65, 4, 9))),
        ("image-shape--raw-channels", "A raw image has one channel, and two have names.",
         raw_sizes(channels=("red", "green"))),
        ("image-shape--gray-palette", "A BMP file with a gray palette is said to have three channels.",
         gray_palettes((3, 3))),
        ("image-shape--palette", "A BMP file with a palette that is no ramp is said to have one channel.",
         gray_palettes((1, 1))),
        ("truncated-image--start", "A JPEG file ends after its first three bytes.",
         encoded_jpeg([b"\xff\xd8\xff"], [(8, 8, 1)])),
        ("truncated-image--height", "A JPEG file says a height of 0.",
         encoded_jpeg([with_frame(1, b"\0\0")], [(8, 8, 1)])),
        ("truncated-image--components", "A JPEG file has two components.",
         encoded_jpeg([with_frame(5, b"\2")], [(8, 8, 1)])),
        ("not-an-image--two-bytes", "A JPEG file ends after two of the three bytes that tell it.",
         encoded_jpeg([b"\xff\xd8"], [(8, 8, 1)])),
        ("truncated-image--smart-comment", "A PPM file of the encoding smart has a comment.",
         encoded_smart(b"P6\n#\n2 3\n255\n" + bytes(18))),
        ("truncated-image--smart-cut", "A PPM file of the encoding smart lacks a byte.",
         encoded_smart(b"P6\n2 3\n255\n" + bytes(17))),
        ("not-an-image--smart-space", "A PPM file of the encoding smart has a space behind P6.",
         encoded_smart(b"P6 2 3\n255\n" + bytes(18))),
        ("not-an-image--smart-png", "An image of the encoding smart is a PNG file.",
         encoded_smart(png(pattern((3, 2), "uint8")))),
        ("image-restarts--missing", "One of two restart markers is not listed.", two_restarts((0,))),
        ("image-restarts--comment", "A listed restart marker is in a comment.", two_restarts((-1, 0, 1))),
        ("image-restarts--scans", "A JPEG file of two scans has a list of restart markers.", two_scans()),
        ("image-restarts--place", "A restart marker is not where it is said to be.", restarts([22])),
        ("not-an-image--jpeg", "An image of the encoding jpeg is a PNG file.",
         encoded_jpeg([png(pattern((3, 5), "uint8"))], [(3, 5, 1)])),
        ("not-an-image--source", "An image of the encoding source is a text.",
         encoded_source((0, 0, 6, 1), files=[b"hello\n", JPEG_8X8], shapes=[(1, 6, 1), (8, 8, 1)])),
        ("truncated-image--header", "An image file ends in its header.", encoded_jpeg([JPEG_8X8[:100]], [(8, 8, 1)])),
        ("key-text--shards", "Samples in two shards of a split have the same key.",
         Store({"key": KEY}, {"train": [Shard(1, bytes_table("key", [b"a.png"]))] * 2})),
        ("key-text--twice", "Two samples of a split have the same key.", keys_store(b"a.png", b"a.png", name="path")),
    ]
    return [Case(name, "verify", why, store) for name, why, store in invalid]


def entry_cases() -> list[Case]:
    """JPEG files with entries that are wrong."""
    first, second, third, last = ENTRIES_COLOR
    stuffed = 8 * (JPEG_COLOR.index(b"\xff\x00", first[0] // 8) + 1)
    cases = [
        ("count", "verify", "An entry is missing.", [first, second, third]),
        ("more", "verify", "There is an entry more than the units of the file ask for.", [*ENTRIES_COLOR, last]),
        ("fall", "verify", "The positions of two entries are exchanged.", [first, third, second, last]),
        ("twice", "verify", "Two entries have the same position.", [first, second, second, last]),
        ("beyond", "verify", "The last entry is at the end of the file.",
         [first, second, third, (8 * len(JPEG_COLOR), *last[1:])]),
        ("end", "verify", "The last entry is at the first bit of EOI.",
         [first, second, third, (8 * (len(JPEG_COLOR) - 2), *last[1:])]),
        ("start", "verify", "The first entry is a bit behind the beginning of the scan.",
         [(first[0] + 1, *first[1:]), second, third, last]),
        ("stuffed", "verify", "An entry is in a zero that is stuffed behind FF.",
         [first, second, third, (stuffed, *last[1:])]),
        ("unused", "verify", "A bit that has no meaning is 1.", [first, second, (*third, 1), last]),
        ("bit", "decode", "An entry is at the wrong bit.", [first, (second[0] - 1, *second[1:]), third, last]),
        ("prediction", "decode", "A prediction is wrong.", [first, second, (*third[:3], third[3] + 1), last]),
    ]
    return [Case(f"image-entries--{name}", stage, why, entries(of_first)) for name, stage, why, of_first in cases]
