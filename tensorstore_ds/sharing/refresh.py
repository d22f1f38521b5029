"""Update the copy of an earlier state of a store: fetch what it does not have, and replace its root in one step.

New shards are fetched into the work folder of the copy, and moved into it when all are complete. Until the root is
replaced, which lists them, the copy is the earlier state, and afterwards the new one (spec.md, 8).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tensorstore_ds.conversion.history import states_of, steps_of
from tensorstore_ds.durable import locked_folder, sync, write_all, write_file
from tensorstore_ds.errors import ConversionError, FormatError, OptionError, StoreExistsError
from tensorstore_ds.format.manifest import File, Manifest, shard_path
from tensorstore_ds.format.root import parse_listing, parse_root
from tensorstore_ds.format.schema import SIGNATURE
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.reading.store_files import SKIPPED, shards_of
from tensorstore_ds.reading.verification import verify as verify_store
from tensorstore_ds.sharing.receiving import Pull
from tensorstore_ds.sharing.selection import Content
from tensorstore_ds.sharing.transfer import Transfer

#: Commands after which replaced shards are removed at once.
_REMOVING = ("erase", "drop")


def refresh(copying: Pull) -> Transfer:
    """Make the store at `copying.out` the one that is copied. Raises as `pull`."""
    out, selection = copying.out, copying.selection
    store = open_store(out)
    with copying.folder:
        copying.begin()
        content = selection.content(copying.read_lists(copying.work / "lists", out))
        content = selection.signed(content, copying.origin)
        _check_earlier(store, content, copying)
        new = {name for name in content.lists if not (out / name).is_file()}
        wanted = {name: file for name, file in content.files.items() if _is_missing(out, name, file, new)}
        there = _link(_own_files(store), wanted, copying.store)
        copying.fetch(replace(content, files={n: file for n, file in wanted.items() if n not in there}))
        with locked_folder(out) as is_ours:
            if not is_ours or open_store(out).sha256 != store.sha256:
                raise ConversionError(f"{out}: another process changes this store. Run the same command again.")
            _put(copying.store, out, content, new)
            try:
                _remove_replaced(out, parse_root(content.root)[0])
            except OSError as error:
                what = "replaced shards are gone from the store, but their old files could not all be removed"
                advice = "Run the same command again to remove them."
                raise ConversionError(f"{out}: {what} ({error.filename}: {error.strerror}). {advice}") from error
        copying.folder.end()
    if copying.verifies and (problems := verify_store(out)):
        raise FormatError(problems, f"The store at {copying.origin.url} is damaged: tell its owner.")
    return copying.transfer(content, was_there=store.sha256 == content.sha256)


def _check_earlier(store: Store, content: Content, copying: Pull) -> None:
    """Raise an error if the store is not an earlier state of what is copied, or of other splits and fields."""
    out, selection, before = store.path, copying.selection, store.manifest
    now, then = selection.whole.provenance, before.provenance
    steps, known = ([(step.get("command"), step.get("created")) for step in steps_of(each)] for each in (now, then))
    is_earlier = store.sha256 in states_of(now) or (
        selection.is_part and then.get("created") == now.get("created") and steps[: len(known)] == known
    )
    if store.sha256 != content.sha256 and not is_earlier:
        later = selection.sha256 in states_of(then)
        what = "a later state of it" if later else "another store"
        raise StoreExistsError(f"{out}: expected an earlier state of the store, found {what}. Choose another path.")
    if link := next((out / name for name in before.splits if (out / name).is_symlink()), None):
        raise OptionError(f"{link}: expected a folder of the store, found a link. Copy the store to a new path.")
    whole = selection.whole
    lost = (before.splits.keys() & whole.splits.keys()) - selection.manifest.splits.keys()
    lost |= (before.fields.keys() & whole.fields.keys()) - selection.fields.keys()
    changed = [
        name for name, data in content.lists.items() if (out / name).is_file() and not _is_equal(out / name, data)
    ]
    if lost or changed:
        advice = "Give the same as when it was copied, or choose another path."
        raise OptionError(f"{out}: expected a copy of these splits and fields, found one of others. {advice}")


def _is_equal(path: Path, data: bytes) -> bool:
    return path.stat().st_size == len(data) and path.read_bytes() == data


def _is_missing(out: Path, name: str, file: File, new: set[str]) -> bool:
    """Whether a file of the new state has to be made: of a new shard, or beside the shards."""
    if name.count("/") >= 2:
        return f"{'/'.join(name.split('/')[:2])}/zarr.json" in new
    return _size(out / name) != file.size or sha256((out / name).read_bytes()).hexdigest() != file.sha256


def _own_files(store: Store) -> dict[File, Path]:
    """The files of the shards that are there, by size and SHA-256."""
    found: dict[File, Path] = {}
    for _, _, folder, shard in shards_of(store.manifest):
        where = f"{folder}/zarr.json"
        listing = parse_listing((store.path / where).read_bytes(), where, shard)
        own = {file: store.path / folder / path for path, file in listing.items()}
        found |= {file: path for file, path in own.items() if _size(path) == file.size}
    return found


def _link(own: Mapping[File, Path], wanted: Mapping[str, File], folder: Path) -> set[str]:
    """Link or copy files that are there already; returns their new names."""
    done = set[str]()
    for name, file in wanted.items():
        if (path := own.get(file)) is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).unlink(missing_ok=True)
            try:
                os.link(path, folder / name)
            except OSError:  # a file system without links
                shutil.copyfile(path, folder / name)
                sync(folder / name)
            done.add(name)
    return done


def _put(made: Path, out: Path, content: Content, new: set[str]) -> None:
    """Move the new shards into the store, and replace its root."""
    folders = sorted(Path(name).parent for name in new)
    for folder in folders:
        name = (folder / "zarr.json").as_posix()
        (made / folder).mkdir(parents=True, exist_ok=True)
        with open(made / name, "wb", buffering=0) as file:
            write_all(file, content.lists[name])
            os.fsync(file.fileno())
        for inner, _, _ in os.walk(made / folder, topdown=False):
            sync(Path(inner))
    above = [name for name in content.files if name.count("/") < 2 and (made / name).is_file()]
    # A file may be longer than the root says, so that every state of the disk is a store.
    late = [SIGNATURE, *(name for name in above if _size(out / name) > content.files[name].size)]
    before = (out / "zarr.json").read_bytes()
    added = {folder.parent for folder in folders if not (out / folder.parent).exists()}  # splits
    try:
        for folder in folders:
            (out / folder).parent.mkdir(exist_ok=True)
            if (out / folder).exists():  # no reader uses it: it has no list
                shutil.rmtree(out / folder)
            (made / folder).rename(out / folder)
            sync((out / folder).parent)
        _take(made, out, (name for name in above if name not in late))
        write_file(out / "zarr.json", content.root)
    except BaseException:
        with suppress(OSError):  # else they belong to the store
            if (out / "zarr.json").read_bytes() == before:
                for folder in folders:
                    with suppress(OSError):
                        (out / folder).rename(made / folder)
                for folder in added:
                    shutil.rmtree(out / folder, ignore_errors=True)
        raise
    _take(made, out, (name for name in above if name in late))
    for name in {SKIPPED, SIGNATURE} - content.files.keys():
        if os.path.lexists(out / name):
            (out / name).unlink()


def _take(made: Path, out: Path, names: Iterable[str]) -> None:
    for name in names:
        (made / name).replace(out / name)
        sync((out / name).parent)


def _size(path: Path) -> int:
    """Bytes of a regular file, -1 for a link and for anything else."""
    return path.stat().st_size if path.is_file() and not path.is_symlink() else -1


def _remove_replaced(out: Path, manifest: Manifest) -> None:
    """Remove the shards that no reader may need. Their lists go first, which tells readers that they are gone."""
    removes = any(step.get("command") in _REMOVING for step in steps_of(manifest.provenance))
    for split, entry in manifest.splits.items():
        kept = {shard_path(split, n) for n in (*entry.numbers, *(() if removes else entry.replaced))}
        for found in list(os.scandir(out / split)):
            name = f"{split}/{found.name}"
            if found.is_dir(follow_symlinks=False) and found.name.isdecimal() and name not in kept:
                (out / name / "zarr.json").unlink(missing_ok=True)
                shutil.rmtree(out / name)
