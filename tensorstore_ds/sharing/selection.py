"""The content of a copy: a whole store, or some splits and fields as a separate store, in whole files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorstore_ds.errors import FormatError, OptionError, Problem, RemoteError
from tensorstore_ds.format.manifest import File, Shard, SplitEntry
from tensorstore_ds.format.root import dump_listing, dump_root, parse_listing, parse_root
from tensorstore_ds.format.schema import SIGNATURE
from tensorstore_ds.options import meant
from tensorstore_ds.reading.checks import SIGNATURE_MAX_NBYTES, check_listing, check_root_files
from tensorstore_ds.reading.store_files import shards_of
from tensorstore_ds.sharing.origin import Origin


@dataclass(frozen=True, slots=True)
class Content:
    """The files of a store.

    `files` has data and metadata of the shards, followed by the files above the shards. `lists` has the bytes of the
    shards' ``zarr.json`` by name, and `root` the bytes of the root's.
    """

    sha256: str
    files: Mapping[str, File]
    lists: Mapping[str, bytes]
    root: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values()) + sum(map(len, self.lists.values())) + len(self.root)


class FileSelection:
    """The selected splits and fields of a store with this root ``zarr.json``; None selects all.

    `whole` and `sha256` are the manifest and digest of the store. `manifest` describes the selection, but its shards
    have the digests of the whole store. Raises `FormatError` if the bytes are not a root, and `OptionError` for unknown
    names.
    """

    def __init__(self, root: bytes, splits: Collection[str] | None, fields: Collection[str] | None) -> None:
        self.whole, self.sha256 = parse_root(root)
        problems = check_root_files(self.whole)
        if problems:
            raise FormatError(problems)
        self._root = root
        kept = _chosen("split", splits, self.whole.splits)
        every = {**self.whole.fields, **self.whole.unreadable}
        self.fields = _chosen("field", fields, every)
        self.is_part = len(kept) < len(self.whole.splits) or len(self.fields) < len(every)
        gone = {name for split in self.whole.splits.keys() - kept.keys() for name in (f"{split}/zarr.json",)}
        files = {name: file for name, file in self.whole.files.items() if name not in gone}
        self.manifest = replace(self.whole, splits=kept, files=files)

    def lists(self) -> dict[str, Shard]:
        """The entry of each selected shard, by the path of its list."""
        return {f"{folder}/zarr.json": shard for _, _, folder, shard in shards_of(self.manifest)}

    def content(self, lists: Mapping[str, bytes]) -> Content:
        """All files, from the shards' lists of the whole store, by name; raises `FormatError`."""
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
            statistics = {field: known for field, known in split.statistics.items() if field in self.fields}
            splits[name] = SplitEntry(tuple(shards), statistics)  # what was replaced is not copied
        files |= self.manifest.files
        if not self.is_part:
            return Content(self.sha256, files, own, self._root)
        fields = {name: field for name, field in self.whole.fields.items() if name in self.fields}
        unreadable = {name: field for name, field in self.whole.unreadable.items() if name in self.fields}
        root = dump_root(replace(self.manifest, fields=fields, unreadable=unreadable, splits=splits))
        return Content(parse_root(root)[1], files, own, root)

    def signed(self, content: Content, origin: Origin) -> Content:
        """Add the store's signature, which no list contains, if there is one; a part of a store has none."""
        if self.is_part:
            return content
        try:
            data = origin.read(SIGNATURE, SIGNATURE_MAX_NBYTES)
        except (FormatError, RemoteError) as error:
            if error.reason in ("missing-file", "missing", "refused"):  # S3 refuses what is missing, if it may not list
                return content
            raise
        return replace(content, files={**content.files, SIGNATURE: File(len(data), hashlib.sha256(data).hexdigest())})

    def _shard(self, shard: Shard, listing: bytes, files: Mapping[str, File]) -> Shard:
        lengths = {name: n for name, n in shard.lengths.items() if name.split("/")[0] in self.fields}
        nbytes = len(listing) + sum(file.size for file in files.values())
        return replace(shard, lengths=lengths, nbytes=nbytes, sha256=hashlib.sha256(listing).hexdigest())


def damaged(name: str, file: File, found: str) -> FormatError:
    """The error for a file of a store that would be published, with the SHA-256 that was found."""
    message = f"expected SHA-256 {file.sha256[:12]}..., found {found[:12]}...."
    return FormatError(Problem(name, "checksum", message), "This store is damaged: nothing was published.")


def _chosen(what: str, wanted: Collection[str] | None, there: Mapping[str, Any]) -> dict[str, Any]:
    """The wanted entries, in the order of the store."""
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
