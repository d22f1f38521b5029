"""``OUT.partial``: where a store grows until it is whole, and what a later run finds of an interrupted one.

::

    OUT.partial/
      lock             held while a conversion runs
      plan.json        the source and the options of the conversion
      journal/         train-00000.json: what is known of a finished shard
      store/           becomes OUT, by one rename
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorstore_ds.errors import ConversionError, FormatError, OptionError, Problem, StoreExistsError
from tensorstore_ds.layout import GROUP, dump_json
from tensorstore_ds.manifest import File, Manifest, Shard, dump_shard, parse_shard, shard_path
from tensorstore_ds.root import dump_root
from tensorstore_ds.statistics import Statistics
from tensorstore_ds.writer import check_in_file, remove_directory, sync, write_json


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A shard on disk, and what the manifest will need to know of it.

    Attributes:
        begun: when the run that made it began, seconds since the epoch: a source file changed later makes it stale.
        references: digest of the references that it was made from.
    """

    shard: Shard
    statistics: Statistics
    skipped: tuple[Problem, ...]
    begun: float
    references: str


class Workspace:
    """The directory beside `out` in which it grows; a context manager that holds a lock on it."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".partial")
        self.store = self.path / "store"
        self._journal = self.path / "journal"
        self._lock = -1

    def __enter__(self) -> Workspace:
        """Make the directory, or find it.

        Raises:
            StoreExistsError: `out` exists.
            ConversionError: another process has the lock.
        """
        if os.path.lexists(self.out):
            raise StoreExistsError(f"{self.out}: this exists already. Choose another name, or remove it first.")
        for directory in (self.path, self._journal, self.store):
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConversionError(f"{self.path}: another conversion is writing here. Wait for it to end.") from None
        return self

    def __exit__(self, *error: object) -> None:
        """Release the lock; a directory without a finished shard is of no use and is removed."""
        if self.path.exists() and not any(self._journal.glob("*.json")):
            remove_directory(self.path)
        os.close(self._lock)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Note the plan, or compare it with that of the run that began here; raises `OptionError` with what differs."""
        path = self.path / "plan.json"
        plan = json.loads(json.dumps(plan))
        if not any(self._journal.glob("*.json")):
            write_json(path, plan)
            return
        begun = json.loads(path.read_bytes())
        differ = [k for k in sorted({*begun, *plan}) if begun.get(k) != plan.get(k)]
        if differ:
            changes = "; ".join(f"{k} was {_brief(begun.get(k))}, is {_brief(plan.get(k))}" for k in differ)
            raise OptionError(
                f"{self.path}: finished shards of another conversion are kept here: {changes}. "
                f"Repeat that one to go on with it, or remove this directory."
            )

    def finished(self, split: str, index: int) -> FinishedShard | None:
        """What is known of a shard that an earlier run finished here."""
        path = self._journal_path(split, index)
        if not path.exists() or not (self.store / shard_path(split, index)).is_dir():
            return None
        try:
            data = json.loads(path.read_bytes())
            return FinishedShard(
                parse_shard(data["shard"]),
                Statistics(data["statistics"]),
                tuple(Problem(**item) for item in data["skipped"]),
                data["begun"],
                data["references"],
            )
        except (ValueError, KeyError, TypeError, FormatError):  # torn by a crash: the shard is made again
            return None

    def finish(self, split: str, index: int, finished: FinishedShard) -> None:
        """Note that a shard is whole."""
        path = self._journal_path(split, index)
        write_json(
            path,
            {
                "shard": dump_shard(finished.shard),
                "statistics": finished.statistics.sums,
                "skipped": [dump_problem(p) for p in finished.skipped],
                "begun": finished.begun,
                "references": finished.references,
            },
        )
        sync(path)
        sync(self._journal)

    def clean(self, kept: Set[tuple[str, int]]) -> None:
        """Remove all but the shards that are kept: what was half written, and what the source no longer agrees with."""
        names = {f"{split}-{index:05d}.json" for split, index in kept}
        for path in self._journal.iterdir():
            if path.name not in names:
                path.unlink()
        directories = {self.store / shard_path(split, index) for split, index in kept}
        for path in [*self.store.glob("*/*"), *self.store.glob("*")]:
            if path.is_file():
                path.unlink()
            elif path not in directories and not any(d.is_relative_to(path) for d in directories):
                remove_directory(path)

    def commit(self, manifest: Manifest, skipped: Sequence[Problem]) -> Manifest:
        """Complete the store and let it appear as `out`; returns the manifest as it was written.

        The root's metadata is written last, and the directory is renamed after that: at no moment is there an `out`
        that is not whole.
        """
        files: dict[str, File] = {}
        for name in manifest.splits:
            (self.store / name).mkdir(exist_ok=True)
            files[f"{name}/zarr.json"] = self._write(f"{name}/zarr.json", dump_json(GROUP))
            sync(self.store / name)
        if skipped:
            lines = [json.dumps(dump_problem(p), ensure_ascii=False) + "\n" for p in skipped]
            files["skipped.jsonl"] = self._write("skipped.jsonl", "".join(lines).encode("utf-8", "backslashreplace"))
        manifest = Manifest(
            manifest.layout,
            manifest.fields,
            manifest.splits,
            files,
            manifest.provenance,
            manifest.license,
            manifest.citation,
        )
        self._write("zarr.json", dump_root(manifest))
        sync(self.store)
        if os.path.lexists(self.out):
            raise StoreExistsError(
                f"{self.out}: this has appeared meanwhile. Remove it and run the same command again."
            )
        self.store.rename(self.out)
        sync(self.out.parent)
        remove_directory(self.path)
        return manifest

    def _write(self, name: str, data: bytes) -> File:
        (self.store / name).write_bytes(data)
        return check_in_file(self.store / name)

    def _journal_path(self, split: str, index: int) -> Path:
        return self._journal / f"{split}-{index:05d}.json"


def dump_problem(problem: Problem) -> dict[str, str]:
    """A line of ``skipped.jsonl``."""
    return {"where": problem.where, "reason": problem.reason, "message": problem.message}


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
