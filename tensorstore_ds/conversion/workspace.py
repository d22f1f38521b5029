"""``OUT.partial``: a store grows here until it is complete, and a later run resumes an interrupted one.

::

    OUT.partial/
      tsds.lock        held while a conversion runs; it also marks the folder as ours
      plan.json        the source and all that decides the bytes of the store
      plan/            of a conversion by several processes, see planned.py
      journal/         train-00000.json: the record of a finished shard
      store/           becomes OUT, by one rename

The plan and the journal begin with a checksum, and are synced before anything relies on them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, cast

import numcodecs
import numpy as np
import PIL

from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.shard_writer import FinishedShard, FinishedSplit, check_in_file
from tensorstore_ds.conversion.skipped import skipped_lines
from tensorstore_ds.conversion.work_folder import HOLDS_FOLDERS, WorkFolder, already_exists, check_new
from tensorstore_ds.durable import partial_of, sync
from tensorstore_ds.errors import ConversionError, FormatError, OptionError, Problem, SourceError
from tensorstore_ds.format.arrays import GROUP, dump_json
from tensorstore_ds.format.kinds import KeyField
from tensorstore_ds.format.manifest import File, Manifest, shard_path
from tensorstore_ds.format.manifest_parser import parse_fields, parse_shard
from tensorstore_ds.format.root import dump_root
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.options import shortened
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.store_files import SKIPPED
from tensorstore_ds.version import __version__

#: The folder of a plan for several processes.
PLAN = "plan"


class Workspace(WorkFolder):
    """The folder next to `out` in which it grows; a context manager that holds a lock on it.

    `plans` allows or creates a plan for several processes. `notes` are for the user, and each is also passed to
    `on_note`. `run` is the digest of the shards' plan, empty in a conversion by one process. `began` is a
    ``time.monotonic()``.
    """

    def __init__(self, out: Path, on_note: Callable[[str], None] = lambda _: None, *, plans: bool = False) -> None:
        super().__init__(partial_of(out), keeps=lambda: bool(self.finished_names()) or self.is_planned)
        self.out = out
        self.store = self.path / "store"
        self.notes: list[str] = []
        self.run = ""
        self.began = time.monotonic()
        self._on_note = on_note
        self._plans = plans

    def __enter__(self) -> Self:
        """Create or find the folder."""
        self.check_free()
        try:
            if self.open().warning:
                self.note(self.warning)
            if os.path.lexists(self.out):
                raise already_exists(self.out)
            if self.is_planned and not self._plans:
                text = "a plan for several processes is here. Run its tasks and commit it, or remove this directory."
                raise OptionError(f"{self.path}: {text}")
            for name in ("journal", "store"):
                self.make_folder(name)
            return self
        except BaseException:
            self._abandon()
            raise

    def check_free(self) -> None:
        """Raise as `__enter__` if `out` exists or cannot be made, before a long computation."""
        check_new(self.out, self)

    @contextlib.contextmanager
    def visit(self, *, alone: bool = False) -> Iterator[Workspace]:
        """Open the folder together with other processes; with `alone`, none of this machine may plan or commit."""
        if os.path.lexists(self.out):
            self.remove_leftover()
            advice = "Either it was committed, or it is another store: choose another path."
            raise already_exists(self.out, "a plan that is not committed", advice=advice)
        try:
            with contextlib.suppress(FileNotFoundError):
                self.open_beside(alone=alone)
            if not self.is_planned:
                raise OptionError(f"{self.path}: there is no plan here. Make one first.")
            yield self
        finally:
            self.close()

    @property
    def is_planned(self) -> bool:
        """Whether there is a plan for several processes."""
        return (self.path / PLAN).is_dir()

    def note(self, text: str) -> None:
        """Show a note to the user now, and in the summary."""
        self.notes.append(text)
        self._on_note(text)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Record the plan and the versions of codecs, or compare it with the plan of the run that began here.

        Unreadable parts of an earlier run are removed, with a note.
        """
        plan = recorded({"versions": versions(), **plan})
        begun = self.begun()
        if begun is None:
            if self.finished_names():
                text = "what an interrupted conversion left cannot be read. The work starts anew."
                self.note(f"{self.path}: {text}")
            self.clean((), plan=False)
            self.write("plan.json", plan)
            return
        if changes := changes_between(begun, plan):
            raise OptionError(
                f"{self.path}: finished shards of another conversion are kept here: {changes}. "
                "Repeat that command to continue it, or remove this directory."
            )

    def begun(self) -> dict[str, Any] | None:
        """The plan of the run that finished shards here, or None."""
        return self.read("plan.json") if self.finished_names() else None

    def finished(self, split: str, index: int) -> FinishedShard | None:
        """The record of a finished shard, or None if there is none that can be used."""
        data = self.read(_journal_name(split, index))
        if data is None or not (self.store / shard_path(split, index)).is_dir():
            return None
        try:
            return FinishedShard(
                parse_shard(data["shard"]),
                parse_fields(data["fields"]),
                Statistics.parse(data["statistics"]),
                tuple(Problem(**item) for item in data["skipped"]),
                int(data["samples"]),
                data["origin"],
                tuple(Problem(**item) for item in data["left_out"]),
                int(data["first"]),
                str(data["run"]),
            )
        except (KeyError, TypeError, ValueError):  # of another version: the shard is made again
            return None

    def records(self, shards: Iterable[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], FinishedShard]]:
        """Yield the records of finished shards; raises `ConversionError` if one cannot be read any more."""
        for name in shards:
            finished = self.finished(*name)
            if finished is None:
                what = f"the record of the finished shard {shard_path(*name)} cannot be read any more"
                raise ConversionError(f"{self.path}: {what}. Check the disk, and run the same command again.")
            yield name, finished

    def added_up(self, splits: Iterable[str], shards: Iterable[tuple[str, int]]) -> dict[str, FinishedSplit]:
        """Sums over the finished shards of each split; raises as `records`."""
        found = {split: FinishedSplit() for split in splits}
        for (split, _), finished in self.records(shards):
            found[split].add(finished)
        return found

    def finish(self, split: str, index: int, finished: FinishedShard) -> None:
        """Record that a shard is complete, and of this run."""
        entry = {
            "shard": finished.shard.dump(),
            "fields": {name: field.dump() for name, field in finished.fields.items()},
            "statistics": finished.statistics.dump(),
            **{name: [asdict(each) for each in getattr(finished, name)] for name in ("skipped", "left_out")},
            "samples": finished.samples,
            "origin": finished.origin,
            "first": finished.first,
            "run": self.run,
        }
        self.write(_journal_name(split, index), entry)

    def forget(self, split: str, index: int) -> None:
        """Remove the record of a shard before it is written again."""
        self.remove_file(_journal_name(split, index))

    def finished_names(self) -> list[tuple[str, int]]:
        """Split and number of the shards that are in the journal and in the store."""
        try:
            names = os.listdir(self.path / "journal")
        except FileNotFoundError:
            return []
        shards = (name.removesuffix(".json").rpartition("-") for name in names if name.endswith(".json"))
        return [(split, int(i)) for split, _, i in shards if i.isdigit() and (self.store / split / i).is_dir()]

    def clean(self, shards: Iterable[tuple[str, int]], *, plan: bool = True) -> None:
        """Remove all but these finished shards, and the plan: incomplete parts, and parts of a different source."""
        names = {"journal/", "store/", PLAN}  # the first two stay, and what is in them goes
        if plan:
            names.add("plan.json")
        for split, index in shards:
            names |= {_journal_name(split, index), f"store/{shard_path(split, index)}"}
        self.remove_all_but(names)
        for name in ("journal", "store"):
            self.make_folder(name)

    # --- the end ---

    def commit(
        self, manifest: Manifest, skipped: Sequence[Problem], *, check_keys: bool = False, appears: bool = True
    ) -> Manifest:
        """Complete the store and let it appear as `out`; returns the manifest as it was written.

        The root's metadata is written last, and the directory is renamed after that, so that an incomplete `out` never
        exists. Before the rename, the store is opened as a reader would, with `check_keys` also to find equal keys in a
        split. Without `appears`, the store stays here as `store`, and a later run continues from its shards.

        Raises `StoreExistsError` if `out` has appeared meanwhile, `SourceError` for equal keys, `ResourceError` if the
        check lacks memory (a later run can complete it), and `ConversionError` if the finished store does not open, or
        is complete but may not survive a power loss.
        """
        files: dict[str, File] = {}
        for name in manifest.splits:
            (self.store / name).mkdir(exist_ok=True)
            files[f"{name}/zarr.json"] = self._add(f"{name}/zarr.json", dump_json(GROUP))
            sync(self.store / name)
        if skipped:
            files[SKIPPED] = self._add(SKIPPED, skipped_lines(skipped))
        manifest = replace(manifest, files=files)
        self._add("zarr.json", dump_root(manifest))
        sync(self.store)
        try:
            self._check(keys=check_keys)
            if not HOLDS_FOLDERS:  # what is mapped cannot be renamed
                gc.collect()
        except FormatError as error:
            if isinstance(error.__cause__, OSError):  # a disk that fails for a moment says nothing of the shards
                raise error.__cause__ from error
            self.clean(())  # none of it can be relied on
            message = f"the finished store does not open ({error.problems[0]}) and was removed."
            raise ConversionError(f"{self.out}: {message} Run the same command again.") from error
        if appears and (note := self.put_store(self.out)):
            self.note(note)
        return manifest

    def _add(self, name: str, data: bytes) -> File:
        """Write a new file of the store, and sync it."""
        with open(self.store / name, "xb") as file:
            file.write(data)
        return check_in_file(self.store / name)

    def _check(self, *, keys: bool) -> None:
        """Open the store, and look for equal keys."""
        store = open_store(self.store)
        for name in store if keys else ():
            column = cast(RaggedColumn, store[name]["key"])
            for reason, message in KeyField().check(column, lambda rows: np.empty((len(rows), 2))):
                raise SourceError(Problem(name, reason, message), "Give each sample a different key.")


def versions() -> list[str]:
    """Versions of the libraries that decide the bytes of a shard."""
    return [__version__, f"Pillow {PIL.__version__}", f"numcodecs {numcodecs.__version__}"]


def _journal_name(split: str, index: int) -> str:
    return f"journal/{split}-{index:05d}.json"


def recorded(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan as JSON returns it, for comparisons: JSON has lists for tuples."""
    found: dict[str, Any] = json.loads(json.dumps(plan))
    return found


def changes_between(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the differences of two plans for a message.

    >>> changes_between({"size": None, "seed": 0}, {"size": [64, 64], "seed": 0})
    '`size` was not given, is now (64, 64)'
    """
    if before.keys() != now.keys():
        return "it was begun by a different version of tensorstore-ds"
    changes = []
    for name in sorted(name for name in now if before.get(name) != now.get(name)):
        old, new = before.get(name), now.get(name)
        if name == "fields":
            changes.append("the fields differ")
        else:
            called = f"`{name}`" if name in ConvertOptions.__dataclass_fields__ else name
            changes.append(f"{called} was {_brief(old)}, is now {_brief(new)}")
    return "; ".join(changes)


def _brief(value: object) -> str:
    if value is None:
        return "not given"
    if isinstance(value, list) and len(value) == 2 and all(isinstance(each, int) for each in value):
        return f"({value[0]}, {value[1]})"
    return shortened(value if isinstance(value, str) else json.dumps(value))
