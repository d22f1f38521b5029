"""Append samples to a store: new shards, and after them the manifest that lists them, in one step."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tensorstore_ds.archives import decompressing
from tensorstore_ds.conversion.convert import check_apart, convert_source
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.preparation import open_any
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, in_notebook, now, one_line_for_failures
from tensorstore_ds.conversion.work_folder import WorkFolder
from tensorstore_ds.durable import lock, partial_of, replacing, sync
from tensorstore_ds.editing.edit import Numbers, merged_fields
from tensorstore_ds.editing.rows import Piece, pixels_of, write_shard
from tensorstore_ds.errors import ConversionError, OptionError, one_line
from tensorstore_ds.format.arrays import GROUP, dump_json
from tensorstore_ds.format.kinds import EncodedImageField, ImageField, KeyField, RaggedImageField, RawImageField
from tensorstore_ds.format.kinds.base import Field, of_kind
from tensorstore_ds.format.manifest import File, Manifest, Shard, SplitEntry, dump, shard_path
from tensorstore_ds.format.root import change_root
from tensorstore_ds.format.statistics import Statistics, join_summaries
from tensorstore_ds.options import declarations, with_changes
from tensorstore_ds.reading.columns import Column, RaggedColumn
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sources.base import Contents, Source
from tensorstore_ds.version import __version__

#: A split of a store.
_Split = tuple[Store, str]
#: Options that a store's own tell nothing of, or that were for the samples of before.
_NOT_TAKEN_OVER = ("layout", "split", "split_by", "class_map", "encoding", "color")


def append(
    store: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    progress: OnProgress | None = None,
    **changes: Any,
) -> Summary:
    """Convert a source, and append its samples to a store as new shards. No file of a shard is changed.

    >>> tsds.append("photos.tsds", "photos-of-june")                                       # doctest: +SKIP

    Samples whose keys the store has already are left out: the folder that it was made of may have grown. Classes are
    matched by name, and those that are new come after the others. The manifest is replaced last, in one step: whoever
    has the store open sees it as it was, and goes on; whoever opens it then sees all. Its digest is another one then.
    Interrupted, it leaves the store as it was, and the same call goes on from the shards that were converted.

    Args:
        store: path of a store, a folder.
        source: a folder or file, as for `convert`.
        progress: as of `convert`.
        changes: options of `ConvertOptions`, by name; the others are those that the store was converted with.

    Returns:
        What the store holds then, and what was skipped of the source.

    Raises:
        OptionError: no sample is new, or the fields or images are not those of the store.
        SourceError: as of `convert`.
        FormatError: the store is damaged.
        ConversionError: the disk is full, or another process appends to the store now.
    """
    notify, path = progress or in_notebook(), tidied(store)
    with locked(path), one_line_for_failures(path, goes_on=False), decompressing():
        opened = open_store(path)
        _remove_leftovers(path, opened.manifest)
        options = with_changes(_options(opened), changes)
        for name in ("class_map", "split"):
            if opened.manifest.conversion_options.get(name) and not getattr(options, name):
                notify(Progress("copy", 0, 0, 0, f"the store was made with `{name}`, and new samples are not."))
        check_apart(tidied(source), path)
        found = _NewSamples(open_any(source, options), _keys(opened))
        image = opened.manifest.fields["image"]
        like = image if isinstance(image, RaggedImageField) else None
        work = WorkFolder(path.with_name(f"{path.name}.append"))
        with closing(work):
            try:
                work.open(os.urandom(8).hex())
                work.remove_all_but({"new.partial"})
                converted = convert_source(found, work.path / "new", options, notify, like=like)
                summary = _append(opened, open_store(work.path / "new"), converted, one_line(found.path.name), notify)
                try:
                    work.remove()
                except OSError as error:
                    note = f"{work.path}: this work folder could not be removed ({error.strerror}). Remove it."
                    notify(Progress("copy", 0, 0, 0, note))
                    summary = replace(summary, notes=(*summary.notes, note))
                return summary
            except BaseException:
                is_begun = (work.path / "new.partial").exists()  # finished shards, from which the same call goes on
                if work.is_in_place() and not is_begun:
                    with suppress(OSError):  # what stopped the call is said; the next one removes this folder
                        work.remove()
                raise


def _append(store: Store, new: Store, converted: Summary, source: str, notify: OnProgress) -> Summary:
    """Write the samples of a store, converted just now, as shards of another one, and then the manifest."""
    manifest = store.manifest
    fields, numbers = merged_fields([store, new], source)
    total, done = sum(len(new[name]) for name in new), 0
    entries, files, made = dict(manifest.splits), dict(manifest.files), list[Path]()
    before = (store.path / "zarr.json").read_bytes()

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        notify(Progress("copy", done, total))

    try:
        for name in new:
            first = len(entries[name].shards) if name in entries else 0
            files |= _split_folder(store.path, name, manifest, made)
            shards = _write_shards(store, (new, name), first, fields, numbers[1], made, advance)
            entries[name] = _joined(store, (new, name), entries.get(name), shards, fields, numbers[1])
            sync(store.path / name)
        step = {
            "command": "append",
            "source": source,
            "tool_version": __version__,
            "created": now().isoformat(timespec="seconds"),
            "rows": dict(converted.rows),
        }
        grown = replace(manifest, fields=fields, splits=entries, files=files)
        changed = change_root(before, partial(_change, grown, step))
        with replacing(store.path / "zarr.json") as file:
            file.write(changed)
    except BaseException:
        with suppress(OSError):  # what cannot be removed now is removed by the next call
            if (store.path / "zarr.json").read_bytes() == before:  # else what was made belongs to the store
                for folder in made:
                    shutil.rmtree(folder, ignore_errors=True)
        raise
    rows = {name: entry.rows for name, entry in entries.items()}
    return replace(converted, path=store.path, rows=rows, nbytes=grown.nbytes)


def _change(grown: Manifest, step: Mapping[str, Any], data: dict[str, Any]) -> None:
    """Change a manifest, as JSON has it, into one that has grown; members that this version does not know stay."""
    dumped = dump(grown)
    for name in ("fields", "splits", "files"):
        data[name] = dumped[name]
    provenance = data.setdefault("provenance", {})
    steps = provenance.get("edited")
    provenance["edited"] = [*(steps if isinstance(steps, list) else []), dict(step)]


def _write_shards(
    store: Store,
    added: _Split,
    first: int,
    fields: Mapping[str, Field],
    numbers: Numbers,
    made: list[Path],
    advance: Any,
) -> list[Shard]:
    """A shard for each of the new ones; `made` receives its folder before anything is in it."""
    (new, name), shards, start = added, [], 0
    for i, entry in enumerate(new.manifest.splits[name].shards):
        piece = Piece(new, name, np.arange(start, start + entry.rows), numbers)
        folder = store.path / shard_path(name, first + i)
        made.append(folder)
        shards.append(write_shard(folder, [piece], fields, store, Statistics(), advance, fields))
        start += entry.rows
    return shards


def _joined(
    store: Store,
    added: _Split,
    before: SplitEntry | None,
    shards: Sequence[Shard],
    fields: Mapping[str, Field],
    numbers: Numbers,
) -> SplitEntry:
    """A split with shards more, and with the statistics of all of its samples."""
    new, name = added
    statistics = dict(new.manifest.splits[name].statistics)
    for counts, field in (("class_counts", "label"), ("object_counts", "objects")):
        if counts in statistics and field in numbers:
            moved = np.zeros(len(getattr(fields[field], "classes", ())), np.int64)
            np.add.at(moved, numbers[field], statistics[counts])
            statistics[counts] = moved.tolist()
    if before is None:
        return SplitEntry(tuple(shards), statistics)
    old, more = store[name], new[name]
    joined = join_summaries((before.statistics, len(old), pixels_of(old)), (statistics, len(more), pixels_of(more)))
    return SplitEntry((*before.shards, *shards), joined)


def _options(store: Store) -> ConvertOptions:
    """The options that a store was converted with, as far as it tells them."""
    known = declarations(ConvertOptions)
    recorded = {
        name: value
        for name, value in store.manifest.conversion_options.items()
        if name in known and name not in _NOT_TAKEN_OVER and value is not None
    }
    image = store.manifest.fields["image"]
    if isinstance(image, EncodedImageField | RaggedImageField | RawImageField):
        recorded["encoding"] = image.encoding
    if not isinstance(image, ImageField) or recorded.get("encoding") not in ("raw", "jpeg", "source", "smart"):
        raise OptionError(f"{store.path}: expected images that convert writes, found others.")
    split = next(store[name] for name in store if len(store[name]))
    if recorded["encoding"] != "source":
        column = split["image"]
        shapes = column.per_row["shape"] if isinstance(column, RaggedColumn) else None
        shape = tuple(shapes[0].tolist()) if isinstance(shapes, Column) else ()
        shape = column.spec.shape if isinstance(column, Column) else shape
        recorded["color"] = {1: "gray", 3: "rgb", 4: "rgba"}.get(shape[2] if len(shape) == 3 else 0, "auto")
    return ConvertOptions(**{**recorded, "layout": store.layout})


class _NewSamples(Source):
    """The samples of a source whose keys are not known yet."""

    def __init__(self, source: Source, known: frozenset[str]) -> None:
        super().__init__(source.path, source.options)
        self.name = source.name
        self.images = source.images
        self.has_parts = source.has_parts
        self._source, self._known = source, known

    def scan(self) -> Contents:
        """Scan the source; raises `OptionError` if it has no sample that is new."""
        contents = self._source.scan()
        splits, labels, known = {}, {}, 0
        for name, listed in contents.splits.items():
            rows = [i for i, each in enumerate(listed) if self._source.key(name, each) not in self._known]
            known += len(listed) - len(rows)
            if rows:
                splits[name] = [listed[i] for i in rows]
            if rows and contents.labels is not None:
                labels[name] = contents.labels[name][rows]
        if not splits:
            raise OptionError(f"{self.path}: expected samples that are new, found {known:,} that the store has.")
        note = f"{known:,} samples have keys that are in the store already: they are left out."
        notes = (*contents.notes, *([note] if known else []))
        self._known = frozenset()  # workers need it no more
        return replace(contents, splits=splits, labels=labels if contents.labels else None, notes=notes)

    def read(self, split: str, reference: Any) -> Any:
        """As of the source."""
        return self._source.read(split, reference)

    def key(self, split: str, reference: Any) -> str:
        """As of the source."""
        return self._source.key(split, reference)

    def whole(self, split: str, reference: Any) -> str:
        """As of the source."""
        return self._source.whole(split, reference)

    def column(self, name: str) -> Callable[[str, Any], str]:
        """As of the source."""
        return self._source.column(name)

    def files(self, reference: Any) -> tuple[str, ...]:
        """As of the source."""
        return self._source.files(reference)

    def common_files(self) -> tuple[Path, ...]:
        """As of the source."""
        return self._source.common_files()


def _keys(store: Store) -> frozenset[str]:
    name = next(iter(of_kind(store.manifest.fields, KeyField)), None)
    if name is None:
        return frozenset()
    return frozenset(str(store[split][name][row]) for split in store for row in range(len(store[split])))


def _split_folder(path: Path, name: str, manifest: Manifest, made: list[Path]) -> dict[str, File]:
    """The metadata of a split's folder, which is made if it is new; `made` receives it then."""
    listed = f"{name}/zarr.json"
    if listed in manifest.files:
        return {}
    folder = path / name
    if os.path.lexists(folder):
        raise ConversionError(f"{folder}: expected no such name, found something that is not of the store. Remove it.")
    made.append(folder)
    folder.mkdir()
    data = dump_json(GROUP)
    with replacing(folder / "zarr.json") as file:
        file.write(data)
    return {listed: File(len(data), hashlib.sha256(data).hexdigest())}


def _remove_leftovers(path: Path, manifest: Manifest) -> None:
    """Remove what an interrupted call has left: shards behind the last one of a split, and splits without metadata."""
    partial_of(path / "zarr.json").unlink(missing_ok=True)
    for folder in [path / entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]:
        split = manifest.splits.get(folder.name)
        first = 0 if split is None else len(split.shards)
        entries = list(os.scandir(folder))
        shards = [entry.path for entry in entries if _is_unlisted(entry, first)]
        others = {entry.name for entry in entries} - {Path(shard).name for shard in shards}
        if split is None and others <= {"zarr.json", "zarr.json.partial"}:
            shutil.rmtree(folder)
        elif split is not None:
            for shard in shards:
                shutil.rmtree(shard)


def _is_unlisted(entry: os.DirEntry[str], first: int) -> bool:
    """Whether an entry of a split's folder is a shard from the number `first` on."""
    number = entry.name.removesuffix(".partial")
    return entry.is_dir(follow_symlinks=False) and number.isdecimal() and len(number) == 5 and int(number) >= first


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let no other process change a store meanwhile: append to it, or annotate it.

    Raises:
        OptionError: it is packed.
        ConversionError: another process changes it now.
    """
    if not path.is_dir():
        open_store(path)  # says what is wrong with it
        raise OptionError(f"{path}: expected a store that is a folder, found a packed one. Unpack it with tsds unpack.")
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
        yield
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not lock(descriptor):
            raise ConversionError(f"{path}: another process changes this store now. Wait until it has ended.")
        yield
    finally:
        os.close(descriptor)
