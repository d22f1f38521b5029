"""Update the copy of an earlier state of a store: fetch what it lacks, and let the new state take its place.

The new state is made in the work folder of the copy, of links to files that the copy has and of files that are fetched.
It is checked there, and then the two folders change places in one step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorstore_ds.durable import exchange, linked, locked_folder, sync, unsynced
from tensorstore_ds.errors import ConversionError, FormatError, OptionError, Problem, StoreExistsError
from tensorstore_ds.format.history import states_of, steps_of
from tensorstore_ds.format.manifest import File, Manifest, shard_path
from tensorstore_ds.format.root import parse_root
from tensorstore_ds.reading.checks import check_data_files
from tensorstore_ds.reading.mirror_file import sha256_of
from tensorstore_ds.reading.packed_files import find_files
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import open_file, shards_of
from tensorstore_ds.reading.verification import INTERRUPTED, listed_files, verify as verify_store
from tensorstore_ds.sharing.receiving import Pull
from tensorstore_ds.sharing.transfer import Transfer

#: Commands after which replaced shards are removed at once.
_REMOVING = ("erase", "drop")
#: What the provenance of a part has of the whole store, and a change in place keeps.
_SAME = ("created", "source", "source_format", "tool_version")


def refresh(copying: Pull) -> Transfer:
    """Make the store at `copying.out` the one that is copied. Raises as `pull`."""
    out, selection = copying.out, copying.selection
    if out.is_symlink():
        raise OptionError(f"{out}: expected the folder of a copy, found a link. Name the folder that it leads to.")
    store = _opened(out)
    with copying.folder:
        copying.begin(store.sha256)
        content = selection.content(copying.read_lists(copying.work / "lists", out))
        content = selection.signed(content, copying.origin)
        is_same = store.sha256 == content.sha256
        was_there = is_same and not (verify_store(out) if copying.verifies else check_data_files(find_files(out)))
        if not was_there:
            steps = [] if is_same else _steps_since(store, copying)
            _check_parts(store, copying)
            there = _link(store, content.files, copying.store, checks=copying.verifies)
            copying.fetch(replace(content, files={n: file for n, file in content.files.items() if n not in there}))
            if not any(step.get("command") in _REMOVING for step in steps):
                _keep_replaced(store, parse_root(content.root)[0], copying.store)
            copying.complete(content)
            _swap(store, copying.store, out)
        if note := copying.folder.end():
            what = "replaced shards are gone from the store, but their old files could not all be removed"
            raise ConversionError(f"{out}: {what}. {note}")
    return copying.transfer(content, was_there=was_there)


def _opened(out: Path) -> Store:
    """A copy, of which files may be missing or damaged."""
    return Store(find_files(out))


def _steps_since(store: Store, copying: Pull) -> list[Mapping[str, Any]]:
    """The steps from a copy to what is copied. Raises `StoreExistsError` if it is no earlier state of that."""
    now, then = copying.selection.whole.provenance, store.manifest.provenance
    steps, known = steps_of(now), steps_of(then)
    # A part of a store has a digest of its own, and the provenance of the store.
    is_part = known == steps[: len(known)] and len(known) < len(steps) and all(now.get(n) == then.get(n) for n in _SAME)
    if store.sha256 not in states_of(now) and not is_part:
        what = "a later state of it" if copying.selection.sha256 in states_of(then) else "another store"
        raise StoreExistsError(
            f"{store.path}: expected an earlier state of the store, found {what}. Choose another path."
        )
    return steps[len(known) :]


def _check_parts(store: Store, copying: Pull) -> None:
    """Raise `OptionError` if splits or fields of the copy are left out, or if there is something else in its folder."""
    out, selection, before = store.path, copying.selection, store.manifest
    whole, wanted = selection.whole, selection.manifest.splits.keys()
    lost = {*(before.splits.keys() & whole.splits.keys()) - wanted}
    lost |= (before.fields.keys() & whole.fields.keys()) - selection.fields.keys()
    more = set[str]()
    # A part of the store must not become all of it unasked.
    if store.sha256 not in states_of(whole.provenance) and not selection.is_part:
        more = (whole.fields.keys() - before.fields.keys()) or (whole.splits.keys() - before.splits.keys())
    if lost or more:
        advice = "Give the same as when it was copied, or choose another path."
        found = f"one {'with' if lost else 'without'} {min(lost or more)}"
        raise OptionError(f"{out}: expected a copy of these splits and fields, found {found}. {advice}")
    listed, problems = listed_files(find_files(out))
    shards = tuple(f"{folder}/" for _, _, folder, _ in shards_of(before))
    for name in (problem.where for problem in problems if problem.reason == "unlisted-file"):
        is_left = INTERRUPTED.match(name) and not name.startswith(shards)  # by a killed process, or for old readers
        if not is_left and name.removesuffix(".partial") not in {*listed, "zarr.json"}:
            what = "a link" if (out / name).is_symlink() else "something else"
            raise OptionError(f"{out / name}: expected files of the store, found {what}. Move it away.")


def _own_files(store: Store) -> dict[File, str]:
    """The names of the files that the copy has, by size and SHA-256."""
    found = {file: name for name, file in store.manifest.files.items()}
    for split, index, folder, _ in shards_of(store.manifest):
        with suppress(FormatError):  # then its files are fetched
            found |= {file: f"{folder}/{path}" for path, file in store.listing(split, index).items()}
    return found


def _link(store: Store, wanted: Mapping[str, File], folder: Path, *, checks: bool) -> set[str]:
    """Link or copy files that are there already; returns their new names. `checks` compares their SHA-256."""
    done, own = set[str](), _own_files(store)
    for name, file in wanted.items():
        if file in own:
            with suppress(FormatError):  # a link, of another size, or damaged: it is fetched
                _copy(store, own[file], folder / name, file.size, file.sha256 if checks else "")
                done.add(name)
    return done


def _copy(store: Store, name: str, to: Path, size: int | None = None, sha256: str = "") -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.unlink(missing_ok=True)
    with open_file(store.path, name) as file:
        status = os.fstat(file.fileno())
        if size is not None and status.st_size != size:
            raise FormatError(Problem(name, "file-size", f"expected {size} bytes, found {status.st_size}."))
        if sha256 and sha256_of(file) != sha256:
            raise FormatError(Problem(name, "checksum", "its SHA-256 differs."))
        file.seek(0)
        if not linked(store.path / name, to, status):
            with open(to, "xb") as copy:
                shutil.copyfileobj(file, copy)
            sync(to)


def _keep_replaced(store: Store, manifest: Manifest, folder: Path) -> None:
    """Keep the shards that the copy lists and the new state has replaced, for readers that have the copy open."""
    for split, index, name, _ in shards_of(store.manifest):
        entry = manifest.splits.get(split)
        if entry is not None and name in (shard_path(split, number) for number in entry.replaced):
            with suppress(FormatError):  # a damaged copy
                for path in ("zarr.json", *store.listing(split, index)):
                    _copy(store, f"{name}/{path}", folder / name / path)


def _swap(store: Store, made: Path, out: Path) -> None:
    """Let the new state take the place of the old one, unless that has changed."""
    with locked_folder(out) as is_ours:
        if not is_ours or _opened(out).sha256 != store.sha256:
            raise ConversionError(f"{out}: another process changes this store. Run the same command again.")
        exchange(made, out)
    try:
        sync(out.parent)
    except OSError as error:
        raise ConversionError(unsynced(out, error)) from error
