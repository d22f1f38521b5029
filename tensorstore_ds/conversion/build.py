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
import errno
import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numcodecs
import numpy as np
import PIL

from tensorstore_ds.conversion.blocks import NOTHING_LEFT
from tensorstore_ds.conversion.history import now
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.partial import HOLDS_FOLDERS, Partial, already_exists, check_new
from tensorstore_ds.conversion.plan import ShardName
from tensorstore_ds.conversion.preparation import check_fits_disk
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, notes_of_store
from tensorstore_ds.conversion.shard_writer import FinishedShard, FinishedSplit, check_in_file
from tensorstore_ds.conversion.values import ObjectCrops
from tensorstore_ds.durable import partial_of, sync
from tensorstore_ds.errors import (
    ConversionError,
    FormatError,
    OptionError,
    Problem,
    ResourceError,
    SourceError,
    StoreExistsError,
)
from tensorstore_ds.format.arrays import CHUNK_SIZE, GROUP, dump_json
from tensorstore_ds.format.kinds import ImageField, KeyField
from tensorstore_ds.format.manifest import File, Manifest, SplitEntry, shard_path
from tensorstore_ds.format.manifest_parser import parse_fields, parse_shard
from tensorstore_ds.format.root import dump_root
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.imaging.objects import BOX_CROPPED
from tensorstore_ds.machine import DISK_SPACE, missing_resource
from tensorstore_ds.options import flags, shortened
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.store_files import SKIPPED
from tensorstore_ds.version import __version__

#: The folder of a plan for several processes.
PLAN = "plan"

#: What a shard is made of; its length is a number of samples.
S = TypeVar("S", bound=Sized)


class Build(Partial):
    """A store that grows in the folder next to `out`; a context manager that holds a lock on the folder.

    `notify` gets the notes for the user, and the progress, as events of a `stage`. `plans` allows or creates a plan for
    several processes. `run` is the digest of the shards' plan, empty in a conversion by one process.
    """

    def __init__(
        self, out: Path, notify: OnProgress = lambda event: None, stage: str = "convert", *, plans: bool = False
    ) -> None:
        super().__init__(partial_of(out), keeps=lambda: bool(self.finished_names()) or self.is_planned)
        self.out = out
        self.store = self.path / "store"
        self.notes: list[str] = []
        self.run = ""
        self.resumed = 0  #: number of shards that an earlier run finished
        self.total = self.done = 0  #: samples
        self.row_nbytes = 0  #: of a sample, for the progress
        self._began = time.monotonic()
        self._notify, self._stage = notify, stage
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
    def visit(self, *, alone: bool = False) -> Iterator[Build]:
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
        self._tell(text)

    def advance(self, samples: int) -> None:
        """Show that more samples are done."""
        self.done += samples
        self._tell()

    def _tell(self, note: str = "") -> None:
        self._notify(Progress(self._stage, self.done, self.total, self.done * self.row_nbytes, note))

    # --- shards ---

    def make(
        self,
        plan: Mapping[str, Any],
        splits: Iterable[str],
        shards: Mapping[ShardName, S],
        write: Callable[[Mapping[ShardName, S]], Generator[tuple[ShardName, FinishedShard]]],
        unusable: Callable[[ShardName, FinishedShard], str] = lambda name, finished: "",
        row_nbytes: int = 0,
    ) -> dict[str, FinishedSplit]:
        """Make the shards that no earlier run has finished, and add up all shards of each split.

        `plan` is compared with the plan of the earlier run, as in `begin`. `write` writes some shards, and yields their
        records. `unusable` says why a finished shard cannot be used; empty if it can. `row_nbytes` of a sample must fit
        on the disk.
        """
        self.begin(plan)
        why = {}
        for name in self.finished_names():
            finished = self.finished(*name)
            why[name] = "their records cannot be read" if finished is None else unusable(name, finished)
            why[name] = why[name] or ("" if name in shards else "they are not planned any more")
        kept = [name for name, reason in why.items() if not reason]
        self.keep(kept, *filter(None, why.values()))
        self.resumed = len(kept)
        self.advance(sum(len(shards[name]) for name in kept))
        missing = {name: shards[name] for name in shards if why.get(name, "missing")}
        check_fits_disk(self.out, sum(map(len, missing.values())) * row_nbytes)
        with contextlib.closing(write(missing)) as records:
            for name, finished in records:
                self.finish(*name, finished)
        return self.added_up(splits, shards)

    def keep(self, shards: Iterable[ShardName], *why: str) -> None:
        """Remove all finished shards but these, and note how many are removed, and the most frequent reason."""
        shards = set(shards)
        if count := len(set(self.finished_names()) - shards):
            what = f"{count:,} finished shard{'s are' if count > 1 else ' is'} not used, but converted again"
            self.note(f"{self.path}: {what}: {Counter(why).most_common(1)[0][0]}.")
        self.clean(shards)

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

    def added_up(self, splits: Iterable[str], shards: Iterable[ShardName]) -> dict[str, FinishedSplit]:
        """Sums over the finished shards of each split; raises `ConversionError` if a record cannot be read any more."""
        found = {split: FinishedSplit() for split in splits}
        for name in shards:
            finished = self.finished(*name)
            if finished is None:
                what = f"the record of the finished shard {shard_path(*name)} cannot be read any more"
                raise ConversionError(f"{self.path}: {what}. Check the disk, and run the same command again.")
            found[name[0]].add(finished)
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

    def finished_names(self) -> list[ShardName]:
        """Split and number of the shards that are in the journal and in the store."""
        try:
            names = os.listdir(self.path / "journal")
        except FileNotFoundError:
            return []
        shards = (name.removesuffix(".json").rpartition("-") for name in names if name.endswith(".json"))
        return [(split, int(i)) for split, _, i in shards if i.isdigit() and (self.store / split / i).is_dir()]

    def clean(self, shards: Iterable[ShardName], *, plan: bool = True) -> None:
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
        self,
        manifest: Manifest,
        problems: Sequence[Problem] = (),
        *,
        check_keys: bool = False,
        appears: bool = True,
        **details: Any,
    ) -> Summary:
        """Complete the store and let it appear as `out`; returns the summary, with these `details`.

        `problems` are the lines of ``skipped.jsonl``. The root's metadata is written last, and the directory is renamed
        after that, so that an incomplete `out` never exists. Before the rename, the store is opened as a reader would,
        with `check_keys` also to find equal keys in a split. Without `appears`, the store stays here as `store`, and a
        later run continues from its shards.

        Raises `StoreExistsError` if `out` has appeared meanwhile, `SourceError` for equal keys, `ResourceError` if the
        check lacks memory (a later run can complete it), and `ConversionError` if the finished store does not open, or
        is complete but may not survive a power loss.
        """
        files: dict[str, File] = {}
        for name in manifest.splits:
            (self.store / name).mkdir(exist_ok=True)
            files[f"{name}/zarr.json"] = self._add(f"{name}/zarr.json", dump_json(GROUP))
            sync(self.store / name)
        if problems:
            files[SKIPPED] = self._add(SKIPPED, skipped_lines(problems))
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
        rows = {name: split.rows for name, split in manifest.splits.items()}
        out, seconds = self.out if appears else self.store, time.monotonic() - self._began
        return Summary(out, rows, manifest.nbytes, seconds, resumed=self.resumed, notes=tuple(self.notes), **details)

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


def commit(
    build: Build,
    options: ConvertOptions,
    shards: Mapping[str, FinishedSplit],
    origin: Mapping[str, str],
    problems: Sequence[Problem] = (),
    left_out: Iterable[Problem] = (),
    *,
    check_keys: bool = False,
    appears: bool = True,
) -> Summary:
    """Complete a store of converted shards and let it appear, with all skipped samples in ``skipped.jsonl``.

    `origin` has ``source`` and ``source_format``. `problems` and `left_out` are of the whole source, and each shard
    adds its own. Without `appears`, this becomes a part of another store, and stays in ``OUT.partial``.
    """
    skipped = [*problems, *(problem for split in shards.values() for problem in split.skipped)]
    left_out = tuple(dict.fromkeys((*left_out, *(problem for split in shards.values() for problem in split.left_out))))
    splits = {name: SplitEntry(tuple(made.shards), made.statistics.summary()) for name, made in shards.items()}
    if not any(split.rows for split in splits.values()):
        nothing = Problem(origin["source"], "empty-source", "expected samples, found none.")
        raise SourceError(skipped or nothing, NOTHING_LEFT)
    fields = next(made.fields for made in shards.values() if made.fields)
    filled = {name: (split.rows, shards[name].statistics) for name, split in splits.items()}
    nbytes = sum(shard.nbytes for split in splits.values() for shard in split.shards) if appears else 0
    for note in notes_of_store(options, fields, filled, left_out, nbytes):
        build.note(note)
    counts = dict(Counter(problem.reason for problem in skipped))
    provenance = {
        "tool": "tensorstore-ds",
        "tool_version": __version__,
        **origin,
        "options": {**options._recorded(), "encoding": cast(ImageField, fields["image"]).encoding},
        "created": now().isoformat(timespec="seconds"),
        "skipped": counts,
        "left_out": dict(Counter(problem.reason for problem in left_out)),
    }
    manifest = Manifest(options.layout, CHUNK_SIZE, fields, splits, {}, provenance, options.license, options.citation)
    of_boxes = [problem for problem in skipped if _is_of_box(problem, options)]
    return build.commit(
        manifest,
        [*skipped, *left_out],
        check_keys=check_keys,
        appears=appears,
        skipped=counts,
        left_out=left_out,
        skipped_images=len({problem.where for problem in skipped if not _is_of_box(problem, options)}),
        skipped_boxes=len(of_boxes),
    )


def _is_of_box(problem: Problem, options: ConvertOptions) -> bool:
    """Whether it is the problem of a dropped box, from a stored image or as a crop."""
    is_dropped = options.on_error == "skip" or problem.reason == BOX_CROPPED
    return problem.reason.startswith("box-") and (is_dropped or isinstance(options.cut, ObjectCrops))


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
            called = f"`{name}`" if name in flags(ConvertOptions) else name
            changes.append(f"{called} was {_brief(old)}, is now {_brief(new)}")
    return "; ".join(changes)


def _brief(value: object) -> str:
    if value is None:
        return "not given"
    if isinstance(value, list) and len(value) == 2 and all(isinstance(each, int) for each in value):
        return f"({value[0]}, {value[1]})"
    return shortened(value if isinstance(value, str) else json.dumps(value))


@contextlib.contextmanager
def one_line_for_failures(out: Path, *, is_unchanged: Callable[[], bool] | None = None) -> Iterator[None]:
    """Turn errors of the system into `ConversionError`, which says what ``OUT.partial`` keeps.

    With `is_unchanged`, `out` is changed in place, and the error says that nothing was changed if this returns True.
    """

    def go_on(what: str) -> str:
        again = f"{what} and run the same command again"
        if is_unchanged is not None:
            return f"Nothing was changed; {again}." if is_unchanged() else f"{again[0].upper()}{again[1:]}."
        build = Build(out)
        try:
            is_kept = bool(build.finished_names())
        except OSError:  # such as too many open files
            is_kept = build.path.is_dir()
        return (
            f"Finished shards are kept in {build.path}; {again} to go on." if is_kept else f"Nothing was kept; {again}."
        )

    try:
        yield
    except (ConversionError, StoreExistsError):
        raise
    except ResourceError as error:
        advice = go_on("free some, raise the limit, or take a machine with more,")
        raise ConversionError(f"{out}: {error.problems[0]} {advice}") from error
    except MemoryError as error:
        advice = go_on("use fewer workers, or a machine with more memory,")
        raise ConversionError(f"{out}: there is not enough memory. {advice}") from error
    except OSError as error:
        if (missing := missing_resource(error)) == DISK_SPACE:
            raise ConversionError(f"{out}: the disk is full. {go_on('make room')}") from error
        if missing:
            advice = go_on("free some, or raise the limit,")
            raise ConversionError(f"{out}: there are not enough {missing} ({error.strerror}). {advice}") from error
        name = error.filename if isinstance(error.filename, str) else ""  # or a descriptor
        # A bare name is relative to an open folder, such as the name of a removed file.
        where = name if os.path.dirname(name) else f"{out}: {name}" if name else out  # noqa: PTH120
        advice = f" {go_on('check the disk')}" if error.errno in (errno.EIO, errno.ESTALE) else ""
        raise ConversionError(f"{where}: {error.strerror or error}.{advice}") from error


def skipped_lines(problems: Iterable[Problem]) -> bytes:
    """Problems as lines of the file."""
    lines = [json.dumps(asdict(problem), ensure_ascii=False) + "\n" for problem in problems]
    return "".join(lines).encode("utf-8", "backslashreplace")
