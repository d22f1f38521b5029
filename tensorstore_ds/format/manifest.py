"""The manifest: what a store says it holds. Parsing reports every problem at once; no input or output.

The manifest is the ``tsds`` attribute of the root group; ``formats/v1/spec.md`` section 4 and
``formats/v1/manifest.schema.json`` describe it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.format.schema import (
    DTYPES,
    ENCODINGS,
    KINDS,
    LAYOUTS,
    NAME,
    OBJECT_VALUES,
    ArrayField,
    ArraySpec,
    Field,
    Kind,
    Layout,
    TableField,
    object_value,
)

FORMAT_VERSION = "1.0"

#: The convention's entry in the root group's ``zarr_conventions`` (the Zarr conventions framework).
CONVENTION = {
    "uuid": "6f0f2d0c-3a55-4a8c-9d55-7a1d4b1f52e6",
    "name": "tsds",
    "description": "tensorstore-ds: image data sets as Zarr arrays that are also memory maps, format version 1",
}

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"([a-z0-9_-]+/)*([a-z0-9_-]+|zarr\.json|skipped\.jsonl)")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")
_MAX = 2**63


@dataclass(frozen=True, slots=True)
class File:
    """Size in bytes and SHA-256 (lower-case hexadecimal) of one file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a split.

    Attributes:
        rows: samples in it.
        lengths: for each table, the number of its values in this shard (M).
        files: every file of the shard, by its path relative to the shard's directory.
    """

    rows: int
    lengths: Mapping[str, int]
    files: Mapping[str, File]


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """A split: its shards in row order, and the statistics of its samples (`statistics.py` reads them)."""

    shards: tuple[Shard, ...]
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Samples in all shards."""
        return sum(shard.rows for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a store says of itself."""

    layout: Layout
    fields: Mapping[str, Field]
    splits: Mapping[str, SplitEntry]
    files: Mapping[str, File] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    license: str | None = None
    citation: str | None = None
    version: str = FORMAT_VERSION

    def all_files(self) -> dict[str, File]:
        """Every file but the root's ``zarr.json``, by its path relative to the store."""
        files = dict(self.files)
        for name, split in self.splits.items():
            for i, shard in enumerate(split.shards):
                files.update({f"{shard_path(name, i)}/{path}": file for path, file in shard.files.items()})
        return files


def shard_path(split: str, index: int) -> str:
    """Directory of a shard, relative to the store.

    >>> shard_path("train", 3)
    'train/00003'
    """
    return f"{split}/{index:05d}"


# --- dump -------------------------------------------------------------------------------------------------------


def dump(manifest: Manifest) -> dict[str, Any]:
    """The manifest as a JSON object: the value of the ``tsds`` attribute."""
    data: dict[str, Any] = {
        "format_version": manifest.version,
        "layout": manifest.layout,
        "fields": {name: dump_field(f) for name, f in manifest.fields.items()},
        "splits": {
            name: {
                "rows": split.rows,
                "shards": [{"path": shard_path(name, i), **dump_shard(s)} for i, s in enumerate(split.shards)],
                "statistics": dict(split.statistics),
            }
            for name, split in manifest.splits.items()
        },
        "files": _dump_files(manifest.files),
        "provenance": dict(manifest.provenance),
    }
    if manifest.license is not None:
        data["license"] = manifest.license
    if manifest.citation is not None:
        data["citation"] = manifest.citation
    return data


def dump_field(f: Field) -> dict[str, Any]:
    """A field as a JSON object."""
    if isinstance(f, ArrayField):
        data: dict[str, Any] = {"kind": f.kind, **_dump_spec(f.spec)}
        if f.kind == "image":
            data["encoding"] = "raw"
        if f.kind == "label":
            data["classes"] = list(f.classes)
        return data
    data = {"kind": f.kind, "values": {name: _dump_spec(spec) for name, spec in f.values.items()}}
    if f.encoding is not None:
        data["encoding"] = f.encoding
    if f.kind == "objects":
        data["classes"] = list(f.classes)
        data["keypoints"] = list(f.keypoints)
        data["flip_pairs"] = [list(pair) for pair in f.flip_pairs]
    return data


def dump_shard(shard: Shard) -> dict[str, Any]:
    """A shard as a JSON object, without its path."""
    return {"rows": shard.rows, "lengths": dict(shard.lengths), "files": _dump_files(shard.files)}


def _dump_spec(spec: ArraySpec) -> dict[str, Any]:
    return {"dtype": spec.dtype, "shape": list(spec.shape)}


def _dump_files(files: Mapping[str, File]) -> dict[str, Any]:
    return {path: {"size": file.size, "sha256": file.sha256} for path, file in files.items()}


# --- parse ------------------------------------------------------------------------------------------------------


def parse(data: object) -> Manifest:
    """Read the value of the ``tsds`` attribute.

    Members that this version does not know are ignored, so that a later minor version may add some.

    Raises:
        FormatError: with every problem found, each with its place in the manifest.
    """
    reader = _Reader()
    manifest = reader.manifest(data)
    if reader.problems or manifest is None:
        raise FormatError(reader.problems)
    return manifest


def parse_shard(data: object) -> Shard:
    """Read one shard as `dump_shard` writes it; raises `FormatError`."""
    reader = _Reader()
    shard = reader.shard(reader.object_at("shard", data), "shard")
    if reader.problems:
        raise FormatError(reader.problems)
    return shard


class _Reader:
    """Reads values out of JSON, collecting what is wrong; a wrong value is replaced by a harmless one."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, where: str, message: str, reason: str = "manifest") -> None:
        self.problems.append(Problem(where, reason, message))

    # values

    def object_at(self, where: str, value: object) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.wrong(where, f"expected an object, found {_brief(value)}.")
        return {}

    def list_at(self, where: str, value: object) -> list[Any]:
        if isinstance(value, list):
            return value
        self.wrong(where, f"expected a list, found {_brief(value)}.")
        return []

    def integer(self, where: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX:
            return value
        self.wrong(where, f"expected an integer in [0, 2^63), found {_brief(value)}.")
        return 0

    def text(self, where: str, value: object) -> str:
        if isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)):
            return value
        self.wrong(where, f"expected a string of Unicode, found {_brief(value)}.")
        return ""

    def choice(self, where: str, value: object, choices: tuple[str, ...]) -> str:
        if isinstance(value, str) and value in choices:
            return value
        self.wrong(where, f"expected one of {', '.join(choices)}, found {_brief(value)}.")
        return choices[0]

    def names(self, where: str, value: object) -> tuple[str, ...]:
        names = tuple(self.text(f"{where}[{i}]", v) for i, v in enumerate(self.list_at(where, value)))
        if len(set(names)) != len(names):
            self.wrong(where, "expected names that differ, found one twice.")
        return names

    def is_name(self, where: str, value: str) -> bool:
        if NAME.fullmatch(value):
            return True
        self.wrong(where, f"expected a name of a-z, 0-9, _ and -, found {_brief(value)}.", "unsafe-path")
        return False

    # parts

    def manifest(self, value: object) -> Manifest | None:
        data = self.object_at("manifest", value)
        if self.problems:
            return None
        version = self.text("format_version", data.get("format_version"))
        match = _VERSION.fullmatch(version)
        if match is None or match[1] != FORMAT_VERSION.split(".")[0]:
            self.wrong(
                "format_version",
                f"expected {FORMAT_VERSION.split('.')[0]}.x, found {_brief(data.get('format_version'))}. "
                "Read this store with a newer tensorstore-ds.",
                "unknown-version",
            )
            return None  # nothing else can be judged by this version's rules
        fields = self.fields(self.object_at("fields", data.get("fields")))
        splits = {}
        for name, entry in self.object_at("splits", data.get("splits")).items():
            if self.is_name(f"splits.{name}", name):
                splits[name] = self.split(name, self.object_at(f"splits.{name}", entry), fields)
        return Manifest(
            layout=cast(Layout, self.choice("layout", data.get("layout"), LAYOUTS)),
            fields=fields,
            splits=splits,
            files=self.files("files", data.get("files")),
            provenance=self.object_at("provenance", data.get("provenance", {})),
            license=self.text("license", data["license"]) if "license" in data else None,
            citation=self.text("citation", data["citation"]) if "citation" in data else None,
            version=version,
        )

    def fields(self, data: dict[str, Any]) -> dict[str, Field]:
        fields = {}
        for name, value in data.items():
            where = f"fields.{name}"
            if self.is_name(where, name):
                fields[name] = self.field(where, self.object_at(where, value))
        return fields

    def field(self, where: str, data: dict[str, Any]) -> Field:
        kind = cast(Kind, self.choice(f"{where}.kind", data.get("kind"), KINDS))
        encoding = None
        if kind == "image":
            encoding = self.choice(f"{where}.encoding", data.get("encoding"), ENCODINGS)
        classes = self.names(f"{where}.classes", data.get("classes")) if kind in ("label", "objects") else ()
        result: Field
        if kind in ("objects", "key") or encoding in ("jpeg", "source"):
            values = self.object_at(f"{where}.values", data.get("values"))
            specs = {}
            for name, value in values.items():
                place = f"{where}.values.{name}"
                if self.is_name(place, name):
                    specs[name] = self.spec(place, self.object_at(place, value))
            keypoints: tuple[str, ...] = ()
            pairs: tuple[tuple[int, int], ...] = ()
            if kind == "objects":
                keypoints = self.names(f"{where}.keypoints", data.get("keypoints"))
                pairs = self.flip_pairs(f"{where}.flip_pairs", data.get("flip_pairs"), len(keypoints))
            result = TableField(kind, specs, cast(Any, encoding), classes, keypoints, pairs)
        else:
            result = ArrayField(kind, self.spec(where, data), classes)
        for message in _kind_problems(result):
            self.wrong(where, message)
        return result

    def spec(self, where: str, data: dict[str, Any]) -> ArraySpec:
        shape = tuple(
            self.integer(f"{where}.shape[{i}]", n)
            for i, n in enumerate(self.list_at(f"{where}.shape", data.get("shape")))
        )
        if 0 in shape or len(shape) > 31:
            self.wrong(f"{where}.shape", f"expected at most 31 positive integers, found {list(shape)}.")
            shape = ()
        dtype = self.choice(f"{where}.dtype", data.get("dtype"), DTYPES)
        if ArraySpec(dtype, shape).row_nbytes >= _MAX:
            self.wrong(f"{where}.shape", f"expected rows of less than 2^63 bytes, found {list(shape)} of {dtype}.")
            shape = ()
        return ArraySpec(dtype, shape)

    def flip_pairs(self, where: str, value: object, keypoints: int) -> tuple[tuple[int, int], ...]:
        pairs = []
        for i, item in enumerate(self.list_at(where, value)):
            pair = [self.integer(f"{where}[{i}]", n) for n in self.list_at(f"{where}[{i}]", item)]
            if len(pair) == 2 and max(pair) < keypoints:
                pairs.append((pair[0], pair[1]))
            else:
                self.wrong(f"{where}[{i}]", f"expected two indices in [0, {keypoints}), found {_brief(item)}.")
        flat = [i for pair in pairs for i in pair]
        if len(set(flat)) != len(flat):
            self.wrong(where, "expected each keypoint in at most one pair, found one in two.")
        return tuple(pairs)

    def split(self, name: str, data: dict[str, Any], fields: Mapping[str, Field]) -> SplitEntry:
        where = f"splits.{name}"
        shards = []
        for i, item in enumerate(self.list_at(f"{where}.shards", data.get("shards"))):
            place = f"{where}.shards[{i}]"
            entry = self.object_at(place, item)
            if entry.get("path") != shard_path(name, i):
                found = _brief(entry.get("path"))
                self.wrong(f"{place}.path", f"expected {shard_path(name, i)}, found {found}.", "unsafe-path")
            shards.append(self.shard(entry, place))
            tables = {n for n, f in fields.items() if isinstance(f, TableField)}
            if set(shards[-1].lengths) != tables:
                self.wrong(f"{place}.lengths", f"expected {sorted(tables)}, found {sorted(shards[-1].lengths)}.")
        entry_ = SplitEntry(tuple(shards), self.object_at(f"{where}.statistics", data.get("statistics", {})))
        if self.integer(f"{where}.rows", data.get("rows")) != entry_.rows:
            self.wrong(f"{where}.rows", f"expected the shards' sum {entry_.rows}, found {_brief(data.get('rows'))}.")
        return entry_

    def shard(self, data: dict[str, Any], where: str) -> Shard:
        lengths = self.object_at(f"{where}.lengths", data.get("lengths"))
        return Shard(
            rows=self.integer(f"{where}.rows", data.get("rows")),
            lengths={n: self.integer(f"{where}.lengths.{n}", v) for n, v in lengths.items()},
            files=self.files(f"{where}.files", data.get("files")),
        )

    def files(self, where: str, value: object) -> dict[str, File]:
        files = {}
        for path, item in self.object_at(where, value).items():
            if not _FILE.fullmatch(path):
                self.wrong(where, f"expected a path inside the store, found {_brief(path)}.", "unsafe-path")
                continue
            entry = self.object_at(f"{where}[{path}]", item)
            sha256 = self.text(f"{where}[{path}].sha256", entry.get("sha256"))
            if not _SHA256.fullmatch(sha256):
                self.wrong(f"{where}[{path}].sha256", f"expected 64 hexadecimal digits, found {_brief(sha256)}.")
            files[path] = File(self.integer(f"{where}[{path}].size", entry.get("size")), sha256)
        return files


def _kind_problems(f: Field) -> list[str]:
    """What the kind of a field demands of its arrays and does not find."""
    problems = []
    if isinstance(f, ArrayField):
        shape, dtype = f.spec.shape, f.spec.dtype
        if f.kind == "image" and len(shape) != 3:
            problems.append(f"expected the shape [H, W, C] of an image, found {list(shape)}.")
        if f.kind == "label" and (dtype, shape) != ("int64", ()):
            problems.append(f"expected int64 and shape [] of a label, found {dtype} and {list(shape)}.")
        if f.kind == "size" and (dtype, shape) != ("int32", (2,)):
            problems.append(f"expected int32 and shape [2] of a size, found {dtype} and {list(shape)}.")
        return problems
    if "offsets" in f.values:
        problems.append("expected values beside offsets, found a value named offsets.")
    if not f.values:
        problems.append("expected at least one array of values, found none.")
    if f.kind in ("key", "image"):
        if dict(f.values) != {"bytes": ArraySpec("uint8")}:
            problems.append(f"expected the one value bytes (uint8, []), found {sorted(f.values)}.")
        return problems
    for name, spec in f.values.items():
        if name in OBJECT_VALUES:
            expected = object_value(name, len(f.keypoints))
            if spec != expected:
                problems.append(
                    f"{name}: expected {expected.dtype} {list(expected.shape)}, found {spec.dtype} {list(spec.shape)}."
                )
    return problems


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
