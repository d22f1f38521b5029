"""Read a manifest: every problem is reported at once, each with its place. No input or output."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.kinds import KINDS, UnknownField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.manifest import FORMAT_VERSION, File, Manifest, Shard, SplitEntry
from tensorstore_ds.format.manifest_values import ManifestValues, brief
from tensorstore_ds.format.schema import LAYOUTS, Layout

T = TypeVar("T")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"([a-z0-9_-]+/)*([a-z0-9_-]+|zarr\.json|skipped\.jsonl)")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")


def parse(data: object) -> Manifest:
    """Read the value of the ``tsds`` attribute.

    Members that this version does not know are ignored, so that a later minor version may add some.

    Raises:
        FormatError: with every problem found, each with its place in the manifest.
    """
    return _parsed(lambda parser: parser.manifest(data))


def parse_shard(data: object) -> Shard:
    """Read one shard as `dump` writes it, its path aside; raises `FormatError`."""
    return _parsed(lambda parser: parser.shard(parser.object_at("shard", data), "shard"))


def parse_files(data: object, where: str) -> dict[str, File]:
    """Read the files of a shard from the attribute ``tsds`` of its ``zarr.json``; raises `FormatError`."""
    return _parsed(lambda parser: parser.files(f"{where}.files", parser.object_at(where, data).get("files")))


def parse_fields(data: object) -> dict[str, Field]:
    """Read fields, each as its `dump` gives it, by name; raises `FormatError`."""
    return _parsed(lambda parser: parser.fields(parser.object_at("fields", data)))


def _parsed(part: Callable[[_Parser], T | None]) -> T:
    parser = _Parser()
    value = part(parser)
    if parser.problems or value is None:
        raise FormatError(parser.problems)
    return value


class _Parser(ManifestValues):
    """The parts of a manifest."""

    def manifest(self, value: object) -> Manifest | None:
        data = self.object_at("manifest", value)
        if self.problems:
            return None
        version = self.text("format_version", data.get("format_version"))
        match = _VERSION.fullmatch(version)
        if match is None or match[1] != FORMAT_VERSION.split(".")[0]:
            self.wrong(
                "format_version",
                f"expected {FORMAT_VERSION.split('.')[0]}.x, found {brief(data.get('format_version'))}. "
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
            chunk_size=self.chunk_size(data),
            fields=fields,
            splits=splits,
            files=self.files("files", data.get("files")),
            provenance=self.object_at("provenance", data.get("provenance", {})),
            license=self.text("license", data["license"]) if "license" in data else None,
            citation=self.text("citation", data["citation"]) if "citation" in data else None,
            version=version,
        )

    def chunk_size(self, data: dict[str, Any]) -> int:
        size = self.integer("chunk_size", data.get("chunk_size"))
        if size == 0:
            self.wrong("chunk_size", "expected at least 1, found 0.")
        return max(1, size)

    def fields(self, data: dict[str, Any]) -> dict[str, Field]:
        fields = {}
        for name, value in data.items():
            where = f"fields.{name}"
            if self.is_name(where, name):
                entry = self.object_at(where, value)
                kind = KINDS.get(self.text(f"{where}.kind", entry.get("kind")), UnknownField)
                fields[name] = kind.parse(self, where, entry)
        return fields

    def split(self, name: str, data: dict[str, Any], fields: Mapping[str, Field]) -> SplitEntry:
        where = f"splits.{name}"
        tables = {group for field_name, field in fields.items() for group in field.groups(field_name)}
        shards = []
        for i, item in enumerate(self.list_at(f"{where}.shards", data.get("shards"))):
            place = f"{where}.shards[{i}]"
            shards.append(self.shard(self.object_at(place, item), place))
            if shards[-1].lengths.keys() != tables:
                self.wrong(f"{place}.lengths", f"expected {sorted(tables)}, found {sorted(shards[-1].lengths)}.")
        replaced = [self.integer(f"{where}.replaced", n) for n in self.list_at(where, data.get("replaced", []))]
        statistics = self.object_at(f"{where}.statistics", data.get("statistics", {}))
        entry_ = SplitEntry(tuple(shards), statistics, tuple(replaced))
        if len({*entry_.numbers, *replaced}) != len(shards) + len(replaced):
            self.wrong(f"{where}.shards", "expected numbers of shards that differ, found one twice.")
        if self.integer(f"{where}.rows", data.get("rows")) != entry_.rows:
            self.wrong(f"{where}.rows", f"expected the shards' sum {entry_.rows}, found {brief(data.get('rows'))}.")
        return entry_

    def shard(self, data: dict[str, Any], where: str) -> Shard:
        lengths = self.object_at(f"{where}.lengths", data.get("lengths"))
        return Shard(
            rows=self.integer(f"{where}.rows", data.get("rows")),
            lengths={n: self.integer(f"{where}.lengths.{n}", v) for n, v in lengths.items()},
            nbytes=self.integer(f"{where}.nbytes", data.get("nbytes")),
            sha256=self.sha256(where, data),
            number=self.integer(f"{where}.number", data["number"]) if "number" in data else None,
        )

    def sha256(self, where: str, data: dict[str, Any]) -> str:
        sha256 = self.text(f"{where}.sha256", data.get("sha256"))
        if not _SHA256.fullmatch(sha256):
            self.wrong(f"{where}.sha256", f"expected 64 hexadecimal digits, found {brief(sha256)}.")
        return sha256

    def files(self, where: str, value: object) -> dict[str, File]:
        files = {}
        for path, item in self.object_at(where, value).items():
            if not _FILE.fullmatch(path):
                self.wrong(where, f"expected a path inside the store, found {brief(path)}.", "unsafe-path")
                continue
            place = f"{where}[{path}]"
            entry = self.object_at(place, item)
            files[path] = File(self.integer(f"{place}.size", entry.get("size")), self.sha256(place, entry))
        return files
