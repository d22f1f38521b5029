"""Read a manifest, and report all problems at once, each with its position. No input or output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.kinds import KINDS, UnknownField
from tensorstore_ds.format.kinds.base import Field, UnreadableField
from tensorstore_ds.format.manifest import FORMAT_VERSION, File, Manifest, Shard, SplitEntry
from tensorstore_ds.format.manifest_values import ManifestValues, brief
from tensorstore_ds.format.schema import LAYOUTS, NAME, ROOT_NAME, SIGNATURE, Layout

T = TypeVar("T")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")

#: Known requirements of a store or a field. Version 1.0 defines none.
KNOWN_REQUIREMENTS = frozenset[str]()


def parse(data: object) -> Manifest:
    """Read the value of the ``tsds`` attribute. Raises FormatError with all problems and their positions.

    Unknown members are ignored, so that a later minor version may add some.
    """
    return _parsed(lambda parser: parser.manifest(data))


def check_readable(data: object) -> None:
    """Raise `FormatError` for a different major version or unknown requirements, whose other rules may differ."""
    _parsed(lambda parser: parser.preface(data))


def parse_shard(data: object) -> Shard:
    """Read one shard as `dump` writes it, without its path. Raises `FormatError`."""
    return _parsed(lambda parser: parser.shard(parser.object_at("shard", data), "shard"))


def parse_files(data: object, where: str) -> dict[str, File]:
    """Read the files of a shard from the attribute ``tsds`` of its ``zarr.json``. Raises `FormatError`."""
    return _parsed(lambda parser: parser.files(f"{where}.files", parser.object_at(where, data).get("files")))


def parse_fields(data: object) -> dict[str, Field]:
    """Read fields by name, each in the form of its `dump`. Raises `FormatError`."""
    return _parsed(lambda parser: parser.fields(parser.object_at("fields", data))[0])


def _parsed(part: Callable[[_Parser], T | None]) -> T:
    parser = _Parser()
    value = part(parser)
    if parser.problems or value is None:
        raise FormatError(parser.problems)
    return value


def is_safe_path(path: str) -> bool:
    """Whether a path consists of names. The last one may be ``zarr.json``."""
    *folders, name = path.split("/")
    return all(NAME.fullmatch(each) for each in folders) and (name == "zarr.json" or NAME.fullmatch(name) is not None)


def is_image(entry: object) -> bool:
    """Whether an entry is a field of images, in any encoding."""
    return isinstance(entry, dict) and entry.get("kind") == "image"


class _Parser(ManifestValues):
    """Reads the parts of a manifest."""

    def preface(self, value: object) -> str | None:
        """Return the version, or None if this version's rules do not apply."""
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
            return None
        unknown = self.unknown_requirements("requires", data)
        if unknown and not self.problems:
            message = f"this store requires {unknown}, which this version does not know. Update tensorstore-ds."
            self.wrong("requires", message, "unknown-requirement")
        return None if self.problems else version

    def unknown_requirements(self, where: str, data: Mapping[str, Any]) -> str:
        """Return the unknown requirements as a list in one line."""
        required = self.names(where, data["requires"]) if "requires" in data else ()
        return ", ".join(brief(name) for name in required if name not in KNOWN_REQUIREMENTS)

    def manifest(self, value: object) -> Manifest | None:
        version = self.preface(value)
        if version is None:
            return None
        data = self.object_at("manifest", value)
        fields, unreadable = self.fields(self.object_at("fields", data.get("fields")))
        splits = {}
        for name, entry in self.object_at("splits", data.get("splits")).items():
            if self.is_name(f"splits.{name}", name):
                splits[name] = self.split(name, self.object_at(f"splits.{name}", entry), fields, unreadable)
        return Manifest(
            layout=cast(Layout, self.choice("layout", data.get("layout"), LAYOUTS)),
            chunk_size=self.chunk_size(data),
            fields=fields,
            splits=splits,
            files=self.root_files(data.get("files"), splits),
            provenance=self.object_at("provenance", data.get("provenance", {})),
            license=self.text("license", data["license"]) if "license" in data else None,
            citation=self.text("citation", data["citation"]) if "citation" in data else None,
            version=version,
            unreadable=unreadable,
        )

    def chunk_size(self, data: dict[str, Any]) -> int:
        size = self.integer("chunk_size", data.get("chunk_size"))
        if size == 0:
            self.wrong("chunk_size", "expected at least 1, found 0.")
        return max(1, size)

    def fields(self, data: dict[str, Any]) -> tuple[dict[str, Field], dict[str, UnreadableField]]:
        """Return the fields that this version can read, and the others."""
        fields, unreadable = dict[str, Field](), {}
        for name, value in data.items():
            where = f"fields.{name}"
            if self.is_name(where, name):
                entry = self.object_at(where, value)
                required = self.unknown_requirements(f"{where}.requires", entry)
                if reason := f"the requirement {required}" if required else UnreadableField.reason_of(entry):
                    unreadable[name] = UnreadableField(entry, reason)
                    continue
                if "values" in entry and not entry.keys().isdisjoint(("dtype", "shape")):
                    self.wrong(where, "expected either values, or dtype and shape, found both.")
                kind = KINDS.get(self.text(f"{where}.kind", entry.get("kind")), UnknownField)
                fields[name] = kind.parse(self, where, entry)
        for name, field in fields.items():
            image = getattr(field, "image", None)
            if image is not None and image not in unreadable and not is_image(data.get(image)):
                self.wrong(f"fields.{name}.image", f"expected the name of a field of images, found {brief(image)}.")
        return fields, unreadable

    def split(
        self, name: str, data: dict[str, Any], fields: Mapping[str, Field], unreadable: Mapping[str, Any]
    ) -> SplitEntry:
        where = f"splits.{name}"
        tables = {group for field_name, field in fields.items() for group in field.groups(field_name)}
        shards = []
        for i, item in enumerate(self.list_at(f"{where}.shards", data.get("shards"))):
            place = f"{where}.shards[{i}]"
            shards.append(self.shard(self.object_at(place, item), place))
            if {n for n in shards[-1].lengths if n.split("/")[0] not in unreadable} != tables:
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

    def root_files(self, value: object, splits: Iterable[str]) -> dict[str, File]:
        """Return the files above the shards."""
        files = self.files("files", value, ROOT_NAME)
        taken = dict.fromkeys((*splits, "zarr.json", SIGNATURE))
        for path in files:
            if "/" in path or path in ("zarr.json", SIGNATURE):  # the latter are never listed: check_root_files
                continue
            if path.lower() in taken:
                self.wrong(
                    "files", f"expected names that differ in more than case, found {brief(path)}.", "unsafe-path"
                )
            else:
                taken[path.lower()] = None
        return files

    def files(self, where: str, value: object, single: re.Pattern[str] = NAME) -> dict[str, File]:
        """Return files by path. `single` matches those outside of folders."""
        files = {}
        for path, item in self.object_at(where, value).items():
            if not (is_safe_path(path) if "/" in path else single.fullmatch(path)):
                self.wrong(where, f"expected a path inside the store, found {brief(path)}.", "unsafe-path")
                continue
            place = f"{where}[{path}]"
            entry = self.object_at(place, item)
            files[path] = File(self.integer(f"{place}.size", entry.get("size")), self.sha256(place, entry))
        return files
