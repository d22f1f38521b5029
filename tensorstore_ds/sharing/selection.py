"""What is copied of a store: all of it, or some splits and fields as a store of its own, in whole files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorstore_ds.errors import FormatError, OptionError
from tensorstore_ds.format.kinds import ImageField, LabelField, ObjectsField, SizeField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.manifest import File, Shard, SplitEntry
from tensorstore_ds.format.root import dump_listing, dump_root, parse_listing, parse_root
from tensorstore_ds.options import meant
from tensorstore_ds.reading.checks import check_listing, check_root_files


@dataclass(frozen=True, slots=True)
class Content:
    """The files of a store.

    Attributes:
        sha256: the store's digest.
        files: those that are copied, by name: data and metadata of the shards, then what lies above the shards.
        lists: bytes of the shards' ``zarr.json``, by name.
        root: bytes of the root's ``zarr.json``.
    """

    sha256: str
    files: Mapping[str, File]
    lists: Mapping[str, bytes]
    root: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values()) + sum(map(len, self.lists.values())) + len(self.root)


class Selection:
    """The splits and fields of a store that are asked for.

    Args:
        root: bytes of the store's ``zarr.json``.
        splits, fields: names; None for all.

    Attributes:
        whole: the manifest of the store.
        sha256: its digest.
        manifest: of what is asked for; the digests of its shards are those of the whole store.
        fields: that are asked for, by name.
        is_part: whether that is not all of it.

    Raises:
        FormatError: the bytes are not the root of a store.
        OptionError: the store has no such split or field.
    """

    def __init__(self, root: bytes, splits: Collection[str] | None, fields: Collection[str] | None) -> None:
        self.whole, self.sha256 = parse_root(root)
        problems = check_root_files(self.whole)
        if problems:
            raise FormatError(problems)
        self._root = root
        kept = _chosen("split", splits, self.whole.splits)
        self.fields = _chosen("field", fields, self.whole.fields)
        self.is_part = len(kept) < len(self.whole.splits) or len(self.fields) < len(self.whole.fields)
        gone = {name for split in self.whole.splits.keys() - kept.keys() for name in (f"{split}/zarr.json",)}
        files = {name: file for name, file in self.whole.files.items() if name not in gone}
        self.manifest = replace(self.whole, splits=kept, files=files)

    def shards(self) -> list[tuple[str, int, Shard]]:
        """Split, number and entry of each shard that is asked for."""
        return [(name, i, s) for name, split in self.manifest.splits.items() for i, s in enumerate(split.shards)]

    def content(self, lists: Mapping[str, bytes]) -> Content:
        """All files, from the shards' lists as the whole store has them, by name; raises `FormatError`."""
        files: dict[str, File] = {}
        own: dict[str, bytes] = {}
        splits = {}
        for name, split in self.manifest.splits.items():
            shards = []
            for index, shard in enumerate(split.shards):
                directory = self.manifest.shard_path(name, index)
                where = f"{directory}/zarr.json"
                listing = parse_listing(lists[where], where, shard)
                problems = check_listing(self.whole, name, index, listing)
                if problems:
                    raise FormatError(problems)
                kept = {path: file for path, file in listing.items() if path.split("/")[0] in self.fields}
                files |= {f"{directory}/{path}": file for path, file in kept.items()}
                own[where] = lists[where] if len(kept) == len(listing) else dump_listing(kept)
                shards.append(self._shard(shard, own[where], kept))
            statistics = _statistics(split.statistics, self.whole.fields, self.fields)
            splits[name] = SplitEntry(tuple(shards), statistics)  # what was replaced is not copied
        files |= self.manifest.files
        if not self.is_part:
            return Content(self.sha256, files, own, self._root)
        root = dump_root(replace(self.manifest, fields=self.fields, splits=splits))
        return Content(parse_root(root)[1], files, own, root)

    def _shard(self, shard: Shard, listing: bytes, files: Mapping[str, File]) -> Shard:
        lengths = {name: n for name, n in shard.lengths.items() if name.split("/")[0] in self.fields}
        nbytes = len(listing) + sum(file.size for file in files.values())
        return replace(shard, lengths=lengths, nbytes=nbytes, sha256=hashlib.sha256(listing).hexdigest())


def _chosen(what: str, wanted: Collection[str] | None, there: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are wanted, in the order of the store."""
    if wanted is None:
        return dict(there)
    wanted = (wanted,) if isinstance(wanted, str) else wanted
    for name in wanted:
        if name not in there:
            expected = f"some of its {what}s {', '.join(there)}"
            raise OptionError(f"`{what}s`: expected {expected}, found {name}.{meant(name, there)}")
    if not wanted:
        raise OptionError(f"`{what}s`: expected at least one of {', '.join(there)}, found none.")
    return {name: value for name, value in there.items() if name in wanted}


def _statistics(
    statistics: Mapping[str, Any], before: Mapping[str, Field], fields: Mapping[str, Field]
) -> dict[str, Any]:
    """The statistics of a split without those of fields that are left out."""
    gone = [field for name, field in before.items() if name not in fields]
    left_out: set[str] = set()
    for kind, members in _MEMBERS.items():
        if any(isinstance(field, kind) for field in gone):
            left_out.update(members)
    if not any(isinstance(field, ImageField | SizeField) for field in fields.values()):
        left_out.add("sizes")
    kept = {name: value for name, value in statistics.items() if name not in left_out}
    masks = kept.get("masks")
    if isinstance(masks, Mapping):
        kept["masks"] = {name: value for name, value in masks.items() if name in fields}
        if not kept["masks"]:
            del kept["masks"]
    return kept


#: Statistics that are of one field, by its class.
_MEMBERS: Mapping[Any, tuple[str, ...]] = {
    LabelField: ("class_counts",),
    ObjectsField: ("object_counts", "objects"),
    ImageField: ("channels",),
}
