"""Erase samples from a store, and every byte of them."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.edit import chosen_splits, listed_rows
from tensorstore_ds.annex.editing.expression import Condition, NoSampleError
from tensorstore_ds.annex.editing.in_place import (
    REST,
    Changes,
    InPlace,
    Leftovers,
    changing,
    remove_leftovers,
    removed_after,
    summary_of,
)
from tensorstore_ds.annex.editing.keys import other_keys, rows_of_file, rows_of_keys
from tensorstore_ds.annex.editing.mentions import Mentions, literals_in, problems_of, texts_in
from tensorstore_ds.annex.editing.skipped import fewer_skipped
from tensorstore_ds.annex.editing.tombstones import ERASED, Tombstones
from tensorstore_ds.conversion.crops import SOURCE_BOX
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, in_notebook
from tensorstore_ds.durable import write_file, writing
from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.history import steps_of
from tensorstore_ds.format.kinds import KeyField
from tensorstore_ds.format.kinds.base import first_of_kind
from tensorstore_ds.format.manifest import Manifest
from tensorstore_ds.format.statistics import parse_summary
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import check_outside_stores
from tensorstore_ds.regular_files import tidied

_NAMED = 3  # keys and classes in a message

#: Rows of each split, in order.
SplitRows = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class ErasureSummary(Summary):
    """Result of `erase`. `rows` and `nbytes` describe the changed store.

    Attributes:
        erased: number of samples of each split that were erased, or that a dry run would erase.
        keys: keys of these samples, or split and row in a store without keys.
        removed_shards: number of shards that were removed, including shards that earlier changes had replaced.
        removed_nbytes: number of bytes of these shards.
        completed: whether an interrupted erasure was completed.
        receipt: what was done, for your records, as a JSON object that names no sample: counts, hashes of the samples,
            time, the digests of the store before and after, and the places that `erase` does not reach. It is empty
            after a dry run.
    """

    erased: Mapping[str, int] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    removed_shards: int = 0
    removed_nbytes: int = 0
    completed: bool = False
    receipt: Mapping[str, Any] = field(default_factory=dict)


def erase(
    store: str | os.PathLike[str],
    where: str | None = None,
    *,
    rows: Mapping[str, Sequence[int]] | None = None,
    keys: Collection[str] | os.PathLike[str] | None = None,
    splits: Collection[str] | None = None,
    sha256: str | None = None,
    tombstones: bool = True,
    receipt: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> ErasureSummary:
    """Erase samples from a store in place, for example because a person asks for their picture to be deleted.

    >>> tsds.erase("photos.tsds", keys=["train/cat/0.png"]).erased
    {'train': 1}
    >>> len(tsds.open("photos.tsds")["train"])
    7

    Shards with erased samples are written again without them. The manifest is replaced in one step, which changes the
    digest. Then the old shards are removed, and all shards that `append` and `update` kept for open readers. Lines
    about the samples are removed from ``skipped.jsonl``, and statistics no longer count them, except the mean color of
    image files and of images of differing sizes. The provenance records how many were erased, but not which ones.

    Tombstones remain: keyed hashes of the key and of the stored image of each sample, which do not name it. With them,
    `append`, `update` and `merge_stores` leave out samples that were erased, also renamed copies, and report how many.
    Pass ``restore_erased=True`` to these functions to store them again. If you have the store, you can test whether a
    key or image that you guess was erased.

    Rows after an erased sample move up within their split. Keys do not change. The source, copies of the store, packed
    files, stores at URLs and their caches, and backups still contain the samples.

    If you have the store open, you can still read the files that you have mapped, and open the files of all other
    shards. Opening a file of a removed shard raises a `FormatError` with the reason ``replaced``.

    If the call is interrupted before the manifest is replaced, the store does not change. If it is interrupted after
    that, the samples are erased, but their old shards may remain. The next `erase`, `append` or `update` removes them.

    Args:
        store: path of a store, a folder.
        where: condition as in `filter_store`. Samples that meet it are erased. Give one of `where`, `rows` and `keys`.
        rows: rows of the samples, by split. Rows change with every erasure.
        keys: keys of the samples, or the path (a `pathlib.Path`) of a file that lists them as in `find_keys`. A key is
            erased in all splits that contain it.
        splits: names of the splits to erase from. None is all. It cannot be combined with `rows`.
        sha256: expected digest of the store or of its content, such as `CheckFindings.sha256` for rows. None accepts
            any store.
        tombstones: if False, no tombstones are kept, for example because the hashes themselves must not be stored. Then
            `append` adds the samples again if the source still contains them.
        receipt: path of a new JSON file for `ErasureSummary.receipt`. None writes none.
        dry_run: if True, return what would be erased, and do not change the store.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: no sample meets `where`, a row or key does not exist, all samples would be erased, or the store is
            packed or given by URL. Or the file of `receipt` exists, or would be in a store.
        FormatError: the store is damaged, or has a different digest than `sha256`. It was not changed.
        ConversionError: the disk is full, a different process is changing the store, or old shards cannot be removed.
    """
    if sum(each is not None for each in (where, rows, keys)) != 1:
        raise OptionError("expected one of `where`, `rows` and `keys`. They select the samples to erase.")
    if rows is not None and splits is not None:
        raise OptionError("`rows` names the splits itself: leave out `splits`.")
    target = None if receipt is None else _free_file(receipt)
    with changing(store, "erase the samples") as opened:
        choose = partial(_chosen, None if where is None else Condition(where), rows, keys, splits)
        erasure = _Erasure(opened, tombstones, progress or in_notebook())
        summary = erasure.run(choose, sha256, by_rows=rows is not None, dry_run=dry_run)
    if target is not None and summary.receipt:
        with writing(target):
            write_file(
                target, (json.dumps(summary.receipt, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")
            )
    return summary


def _free_file(path: str | os.PathLike[str]) -> Path:
    """The path of a new file; raises an error before any change if it cannot be created."""
    target = tidied(path)
    check_outside_stores(target)
    if os.path.lexists(target):
        raise OptionError(f"{target}: expected no such file, because receipts are not replaced. Choose another name.")
    if not target.parent.is_dir():
        raise OptionError(f"{target}: expected a folder {target.parent} to write to, found none. Make it first.")
    return target


def _chosen(
    where: Condition | None,
    rows: Mapping[str, Sequence[int]] | None,
    keys: Collection[str] | os.PathLike[str] | None,
    splits: Collection[str] | None,
    store: Store,
) -> SplitRows:
    """The chosen rows of a store; raises `OptionError` if a row or key does not exist, or all samples are chosen."""
    names = chosen_splits(store, rows if splits is None else splits)
    if where is not None:
        found = {name: where.rows(store[name]) for name in names}
    elif isinstance(keys, os.PathLike):
        found = rows_of_file(store, names, keys, after=" Nothing was erased.")
    elif keys is not None:
        found = rows_of_keys(store, names, {*keys}, " Nothing was erased.")
    else:
        found = {name: np.unique(listed_rows(store[name], rows or {}, "erase")) for name in names}
    count = sum(map(len, found.values()))
    if not count and where is not None:
        raise where.no_sample_meets(store.manifest.fields)
    if not count:
        raise NoSampleError("expected samples to erase, found none.")
    if count == sum(len(store[name]) for name in store):
        what = "expected samples that stay, found none. To delete all samples, remove the folder of the store"
        raise OptionError(f"{store.path}: {what}.")
    return {name: rows for name, rows in found.items() if len(rows)}


class _Erasure:
    """One call of `erase` for a locked store."""

    def __init__(self, store: Store, tombstones: bool, notify: OnProgress) -> None:
        self._store, self._tombstones, self._notify = store, tombstones, notify
        self._began, self._notes, self._removed, self._completes = time.monotonic(), list[str](), Leftovers(), False

    def run(
        self, choose: Callable[[Store], SplitRows], sha256: str | None, *, by_rows: bool, dry_run: bool
    ) -> ErasureSummary:
        """Do the work of `erase`, for the samples that `choose` returns."""
        self._completes = not dry_run and _was_interrupted(self._store)
        if self._completes:
            self._remove()
            if by_rows or sha256 is not None:
                self._note(
                    "this call completed an erasure that was interrupted. No more samples were erased, because rows "
                    "have other numbers since. If it was the same command, its samples are erased. Otherwise, list the "
                    "rows again."
                )
                return self._summary({}, ())
        known = (self._store.sha256, self._store.content_sha256)
        if sha256 is not None and sha256.lower() not in known:
            advice = "Rows have other numbers after samples were erased: list the samples of this store."
            message = f"expected the store {sha256}, found the store {self._store.sha256}."
            raise FormatError(Problem("zarr.json", "checksum", message), advice)
        try:
            rows = choose(self._store)
        except NoSampleError:
            if not self._completes:
                raise
            return self._summary({}, ())
        keys = tuple(self._store[name].key(row) for name, some in rows.items() for row in some.tolist())
        if not dry_run:
            self._change(rows, keys)
        return self._summary(rows, keys, dry_run=dry_run)

    def _change(self, rows: SplitRows, keys: Sequence[str]) -> None:
        """Write shards without the rows, replace the manifest, and remove what it does not list."""
        self._store, before = remove_leftovers(self._store)
        self._removed += before
        store, manifest = self._store, self._store.manifest
        names = _names(store, rows, keys)
        skipped = fewer_skipped(store, partial(problems_of, names))
        changed = InPlace(store, manifest.fields, Changes(erased=dict(rows)), self._notify, skipped)
        told = names | _names_in_texts(store, rows, keys)
        mentions = Mentions(told, texts_in(manifest.provenance))
        tombstones = Tombstones(manifest.provenance)
        places = ((name, row) for name, some in rows.items() for row in some.tolist())
        count = len(tombstones.add(store, places)) if self._tombstones else 0
        step = {"command": "erase", "erased": {name: len(some) for name, some in rows.items()}, "tombstones": count}
        found = changed.run(step, lambda known: tombstones.noted(_without_mentions(mentions, known)))
        self._remove()
        for note in (*_notes_of_classes(manifest, found), *_notes_of_texts(manifest, names)):
            self._note(note)
        beside = store.path.with_name(f"{store.path.name}.append")
        if os.path.lexists(beside):
            self._note(f"{beside} holds samples of an interrupted append, perhaps also erased ones. Remove it.")

    def _remove(self) -> None:
        """Open the store again, and remove the files that its manifest does not list."""
        self._store, removed = removed_after(self._store.path, "the samples are erased from the store")
        self._removed += removed

    def _summary(self, rows: SplitRows, keys: tuple[str, ...], *, dry_run: bool = False) -> ErasureSummary:
        return summary_of(
            ErasureSummary,
            self._store.path,
            self._store.manifest,
            self._began,
            self._notes,
            erased={name: len(some) for name, some in rows.items()},
            keys=keys,
            removed_shards=self._removed.shards,
            removed_nbytes=self._removed.nbytes,
            completed=self._completes,
            receipt={} if dry_run else self._receipt(),
        )

    def _receipt(self) -> dict[str, Any]:
        """The summary, from the last erasure in the provenance, which an earlier call may have begun."""
        store, provenance = self._store, self._store.manifest.provenance
        steps = [each for each in steps_of(provenance) if each.get("command") == "erase"]
        step: Mapping[str, Any] = steps[-1] if steps else {}
        before, count = step.get("before"), step.get("tombstones")
        ids = Tombstones(provenance).last(count) if type(count) is int else []
        return {
            "erased": step.get("erased"),
            "samples": [{"key": key.hex(), "image": image.hex()} for key, image in ids],
            "store": store.path.name,
            "created": step.get("created"),
            "tool_version": step.get("tool_version"),
            "sha256_before": before[0] if isinstance(before, list) and before else None,
            "sha256_after": store.sha256,
            "content_sha256_after": store.content_sha256,
            "removed_shards": self._removed.shards,
            "removed_nbytes": self._removed.nbytes,
            "not_reached": list(_not_reached(store)),
        }

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._notify(Progress("copy", 0, 0, 0, text))


def _not_reached(store: Store) -> Iterator[str]:
    """Places that may still contain the erased samples."""
    source = store.manifest.provenance.get("source")
    yield f"the source {source}" if isinstance(source, str) else "the source"
    yield from ("copies of the store", "exports, contact sheets and dataset cards", "packed files", "stores at URLs")
    yield from ("caches of stores at URLs", "backups and snapshots", "freed blocks of the disk", "trained models")


def _was_interrupted(store: Store) -> bool:
    """Whether an interrupted call has left files of erased samples."""
    commands = [step.get("command") for step in steps_of(store.manifest.provenance)]
    last = next((each for each in reversed(commands) if each in ("append", "update", "erase", "add", "drop")), None)
    return last == "erase" and (REST in store.manifest.files or store.replaced[0] > 0)


def _names(store: Store, rows: SplitRows, keys: Sequence[str]) -> set[str]:
    """Names of the samples in texts: their keys, and images of which no crop stays."""
    if first_of_kind(store.manifest.fields, KeyField) is None:
        return set()
    names = {*keys}
    if SOURCE_BOX in store.manifest.fields:
        images = {key.rpartition("#")[0] for key in keys}
        for key in other_keys(store, store, rows):
            images.discard(key.rpartition("#")[0])
        names |= images - {""}
    return names


def _names_in_texts(store: Store, rows: SplitRows, keys: Sequence[str]) -> set[str]:
    """File names without a folder, and texts of conditions, in earlier steps that only keys of these samples have."""
    if first_of_kind(store.manifest.fields, KeyField) is None:
        return set()
    texts = texts_in({name: value for name, value in store.manifest.provenance.items() if name != ERASED})
    whole = "\n".join(texts)
    found = {last for key in keys if (last := key.rpartition("/")[2]) and last in whole}
    literals = {each for each in literals_in(texts) if len(each) > 1}
    found |= {each for key in keys for each in literals if each in key}
    for key in other_keys(store, store, rows) if found else ():
        found -= {each for each in found if each in key}
    return found


def _without_mentions(mentions: Mentions, provenance: dict[str, Any]) -> dict[str, Any]:
    """A provenance without the names of samples. The description stays, because it is the user's text."""
    kept = ("description", ERASED)
    return {name: value if name in kept else mentions.without(value) for name, value in provenance.items()}


def _notes_of_classes(before: Manifest, after: Manifest) -> Iterator[str]:
    """Notes about classes whose last sample or object was erased."""
    for name, each in before.fields.items():
        counts: list[Counter[str]] = [Counter(), Counter()]
        for count, manifest in zip(counts, (before, after), strict=True):
            for split in manifest.splits.values():
                sums = parse_summary(each.kind, split.statistics.get(name), split.rows)
                found = () if sums is None else sums.summary().get("class_counts", ())
                count.update(dict(zip(each.classes, found, strict=False)))
        gone = [one for one in each.classes if counts[0][one] and not counts[1][one]]
        if gone:
            named = ", ".join(gone[:_NAMED]) + (f" and {len(gone) - _NAMED:,} more" if len(gone) > _NAMED else "")
            yield f"these classes of {name} have no samples left, and the store keeps their names: {named}. " + (
                "tsds relabel writes a store without them."
            )


def _notes_of_texts(manifest: Manifest, names: set[str]) -> Iterator[str]:
    """Notes about texts of people, which are not changed."""
    texts = {"description": manifest.provenance.get("description"), "citation": manifest.citation}
    for name, text in texts.items():
        if isinstance(text, str) and text in Mentions(names, [text]):
            yield f"the {name} names a sample that was erased. Change it with tsds annotate."
