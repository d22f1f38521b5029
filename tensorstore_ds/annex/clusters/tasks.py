"""A conversion by several processes, on one machine or many: one plans, any number convert, one commits.

They share a directory with atomic renames, but need no locks and no file that two processes append to. `planned`
describes the plan. A shard is written in its own folder, synced and renamed; after that its record is written, with the
digest of the plan. Two processes that convert the same shard make the same bytes, and do no harm.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Unpack

from tensorstore_ds.annex.clusters.planned import Plan, read_plan, write_plan
from tensorstore_ds.conversion.blocks import SKIP
from tensorstore_ds.conversion.build import (
    PLAN,
    Build,
    changes_between,
    commit as commit_shards,
    one_line_for_failures,
    recorded,
)
from tensorstore_ds.conversion.convert import check_apart
from tensorstore_ds.conversion.keywords import ConvertKeywords
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import ShardName
from tensorstore_ds.conversion.preparation import Prepared, check_fits_disk, open_any, prepare
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, in_notebook
from tensorstore_ds.conversion.shard_conversion import convert_shards
from tensorstore_ds.conversion.shard_writer import FinishedShard, FinishedSplit, ShardWriter
from tensorstore_ds.durable import lock, sync
from tensorstore_ds.errors import ConversionError, FormatError, OptionError, SourceError, UnfinishedError, one_line
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.format.root import parse_listing
from tensorstore_ds.options import chosen, refusal, takes_options, user_path
from tensorstore_ds.regular_files import tidied

#: What the names of folders in a scratch folder begin and end with.
_SCRATCH = ("tsds-", ".scratch")


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """Result of `convert_task`.

    Attributes:
        shards: number of shards that this call converted.
        there: number of shards of the task that were already finished.
        samples: number of samples in the converted shards, including skipped ones.
        seconds: wall time.
        notes: remarks that are not errors.
    """

    shards: int
    there: int
    samples: int
    seconds: float
    notes: tuple[str, ...] = ()


@takes_options(ConvertOptions)
def plan(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    tasks: int | None = None,
    progress: OnProgress | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> Plan:
    """Plan a conversion by several processes: scan the source, and record every shard in ``OUT.partial``.

    >>> planned = tsds.clusters.plan("photos", "out.tsds", tasks=2)
    >>> planned.tasks, planned.samples
    (2, 12)
    >>> for task in range(planned.tasks):  # in any process of any machine that sees these folders
    ...     done = tsds.clusters.convert_task("out.tsds", task, workers=0)
    >>> tsds.clusters.commit("out.tsds").rows
    {'train': 8, 'val': 4}

    If a plan of the same source and options exists, it is returned unchanged. Files that are added to the source later
    are not part of the plan.

    Args:
        source: path of a folder or file that every process can see.
        out: path of the new store, in a folder that every process can see. It must not exist.
        options: all options as one object. `workers` is the number for each process.
        tasks: number of tasks into which the shards are divided. None makes one task per shard, but at most 1,000.
        progress: function that is called with a `Progress`. None shows a bar in a notebook.
        keywords: options by name. Each overrides `options`.

    Raises:
        SourceError: the source, or with ``on_error="fail"`` an annotation in it, cannot be converted.
        OptionError: options contradict each other or the source, or ``OUT.partial`` contains something else.
        StoreExistsError: `out` exists.
        ConversionError: the disk is full, or a different process is planning here now.
    """
    options, notify = chosen(options, ConvertOptions, keywords), progress or in_notebook()
    if tasks is not None and (isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1):
        raise refusal("tasks", "1 or more", tasks)
    if not isinstance(source, str | os.PathLike):
        raise OptionError("source: expected a path, which other processes can read, found Python objects.")
    source, target = user_path(source).absolute(), tidied(out)
    opened = open_any(source, options)
    check_apart(opened.path, target)
    asked = {"source": one_line(str(source)), "source_format": opened.name, **options._deciding()}
    asked |= {name: getattr(options, name) for name in ("on_error", "license", "citation")}
    with one_line_for_failures(target), Build(target, plans=True) as build:
        if build.is_planned:
            return _same_plan(build, asked)
        if build.finished_names():
            text = "finished shards of a conversion by one process are kept here. Repeat that command to continue it"
            raise OptionError(f"{build.path}: {text}, or remove this directory.")
        notify(Progress("scan", 0, 0))
        prepared = prepare(opened, options, out=target)
        is_one_size = options.size is not None or options.encoding.name == "jpeg"
        if not is_one_size or options.color == "auto":  # images might differ: no shard may find that out later
            prepared = prepared.surveyed()
        if options.layout == "memmap":
            check_fits_disk(target, prepared.samples * prepared.row_nbytes)
        build.clean((), plan=False)
        return _write(build, prepared, options, asked, tasks)


def _write(build: Build, prepared: Prepared, options: ConvertOptions, asked: dict[str, Any], tasks: int | None) -> Plan:
    """Write the plan in a temporary folder, and rename it."""
    name = f"{PLAN}.{uuid.uuid4().hex}"
    build.make_folder(name)
    data = write_plan(build.path / name, prepared, options, asked, tasks)
    data["notes"] = [*prepared.contents.notes, *prepared.notes]
    build.write(f"{name}/plan.json", data)
    sync(build.path / name)
    try:
        (build.path / name).rename(build.path / PLAN)
    except OSError as error:  # another machine was quicker
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(build.path / name)
        return _same_plan(build, asked)
    sync(build.path)
    for note in data["notes"]:
        build.note(note)
    return _read(build, is_new=True)


def _same_plan(build: Build, asked: dict[str, Any]) -> Plan:
    """The existing plan, if it is for the same source and options."""
    there = _read(build)
    if changes := changes_between(there.data["asked"], recorded(asked)):
        advice = "Repeat that command to continue it, or remove this directory."
        raise OptionError(f"{build.path}: the plan of another conversion is here: {changes}. {advice}")
    return there


def _read(build: Build, *, is_new: bool = False) -> Plan:
    plan = read_plan(build.out, build.read(f"{PLAN}/plan.json"), is_new=is_new)
    build.run = plan.sha256
    return plan


def convert_task(
    out: str | os.PathLike[str],
    task: int = 0,
    tasks: int | None = None,
    *,
    shards: Sequence[ShardName] | None = None,
    workers: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: OnProgress | None = None,
) -> TaskSummary:
    """Convert the shards of one task of a `plan`. Shards that are already finished are not converted again.

    >>> planned = tsds.clusters.plan("photos", "out.tsds", tasks=2)
    >>> tsds.clusters.convert_task("out.tsds", 0, workers=0).samples
    8
    >>> tsds.clusters.convert_task("out.tsds", 1, workers=0).samples
    4

    Args:
        out: path of the store, as in `plan`.
        task: number of the task, from 0.
        tasks: number of tasks. None uses the number of the plan.
        shards: shards to convert instead of a task, each by split and number.
        workers: number of worker processes. None uses the number in the options of the plan.
        scratch: folder on a disk of this machine for unfinished shards. None uses ``OUT.partial``.
        progress: function that is called with a `Progress` from this thread. None shows a bar in a notebook.

    Raises:
        SourceError: a sample is bad, or this process cannot see the planned source.
        OptionError: there is no plan or no such task, or the versions of the libraries differ from the plan.
        ConversionError: the disk or the memory is full, or a worker process died.
        StoreExistsError: the store is already committed.
    """
    began, target, notify = time.monotonic(), tidied(out), progress or in_notebook()
    with one_line_for_failures(target), Build(target, notify).visit() as build, contextlib.ExitStack() as stack:
        planned = _read(build)
        names = _names(planned, task, tasks, shards)
        missing = [name for name in names if (found := build.finished(*name)) is None or found.run != build.run]
        build.total = sum(planned.shards[name] for name in missing)
        build.advance(0)
        if not missing:
            return TaskSummary(0, len(names), 0, time.monotonic() - began)
        prepared, selection = planned.prepared, planned.selection(missing)
        build.row_nbytes = prepared.row_nbytes
        options = planned.options if workers is None else replace(planned.options, workers=workers)
        for path in ("store", *(f"store/{split}" for split, _ in missing)):
            build.make_folder(path)  # a link in its place would lead elsewhere
        folder = None if scratch is None else stack.enter_context(_scratch(Path(scratch)))
        writers = {name: _writer(build, name, prepared, folder) for name in missing}
        for writer in writers.values():
            stack.callback(shutil.rmtree, writer.partial, ignore_errors=True)
        converted = convert_shards(prepared, selection, writers, options, b"", on_rows=build.advance, note=build.note)
        stack.enter_context(contextlib.closing(converted))
        try:
            for name, finished in converted:
                build.finish(*name, finished)
        except SourceError as error:
            if error.advice != SKIP:
                raise
            advice = f"{SKIP} That is in the plan: remove {build.path} and plan again."
            raise SourceError(error.problems, advice) from error
        seconds, notes = time.monotonic() - began, tuple(build.notes)
        return TaskSummary(len(missing), len(names) - len(missing), build.total, seconds, notes)


def _names(planned: Plan, task: int, tasks: int | None, shards: Sequence[ShardName] | None) -> list[ShardName]:
    if shards is not None:
        names = [(str(split), int(index)) for split, index in shards]
        unknown = [name for name in names if name not in planned.shards]
        if unknown:
            raise OptionError(f"{planned.path}: the plan has no shard {shard_path(*unknown[0])}.")
        return names
    count = planned.tasks if tasks is None else tasks
    if any(isinstance(number, bool) or not isinstance(number, int) for number in (task, count)) or count < 1:
        raise refusal("tasks", "a whole number, 1 or more", count)
    if not 0 <= task < count:
        raise refusal("task", f"0 to {count - 1:,}, one of {count:,}", task)
    return planned.task(task, count)


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder in the scratch folder, removed at the end together with those that killed processes left there."""
    if not parent.is_dir():
        raise refusal("scratch", "a folder", parent)
    for left in parent.glob(f"{_SCRATCH[0]}*{_SCRATCH[1]}"):
        with _held(left) as is_held:
            if is_held:
                shutil.rmtree(left, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(_SCRATCH[1], _SCRATCH[0], parent))
        with _held(folder):
            if folder.is_dir():  # else another process saw it before it was locked, and took it for one that was left
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Whether a folder exists and only this process has its lock. False if folders cannot be locked."""
    with contextlib.ExitStack() as stack:
        is_held = False
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0))
            stack.callback(os.close, descriptor)
            is_held = lock(descriptor) and os.path.samestat(os.fstat(descriptor), folder.lstat())
        yield is_held


def _writer(build: Build, name: ShardName, prepared: Prepared, scratch: Path | None) -> ShardWriter:
    place = build.store / shard_path(*name)
    own = f"{uuid.uuid4().hex}.partial"
    partial = (
        place.with_name(f"{place.name}.{own}") if scratch is None else scratch / f"{'-'.join(map(str, name))}.{own}"
    )
    return ShardWriter(place, prepared.format.fields, partial)


def commit(out: str | os.PathLike[str]) -> Summary:
    """Complete the store of a `plan` after all its shards are converted.

    >>> _ = tsds.clusters.plan("photos", "out.tsds", tasks=1)
    >>> try:
    ...     tsds.clusters.commit("out.tsds")
    ... except tsds.errors.UnfinishedError as error:
    ...     print(error.tasks, error.of)
    0 1
    >>> _ = tsds.clusters.convert_task("out.tsds", 0, workers=0)
    >>> tsds.clusters.commit("out.tsds").rows
    {'train': 8, 'val': 4}

    Every record is compared with the plan. The files of every shard are checked: their names and sizes, the SHA-256 of
    their list, and that there are no links and no other files.

    Raises:
        UnfinishedError: shards are missing. The error lists the tasks that make them.
        ConversionError: a different process commits here now, or a shard belongs to a different plan, contains other
            files, or is behind a link.
        OptionError: there is no plan.
        SourceError: there is no sample to store.
        StoreExistsError: `out` exists, because the store is already committed or because it is a different store.
    """
    target = tidied(out)
    with one_line_for_failures(target), Build(target).visit(alone=True) as build:
        planned = _read(build)
        shards = _finished(build, planned)
        build.clean(planned.shards)
        problems, left_out = planned.problems()
        origin = {"source": planned.source, "source_format": planned.data["source_format"]}
        for note in planned.data["notes"]:
            build.note(note)
        return commit_shards(build, planned.options, shards, origin, problems, left_out)


def _finished(build: Build, planned: Plan) -> dict[str, FinishedSplit]:
    """The shards of each split; raises `UnfinishedError` if shards are missing."""
    found = {name: FinishedSplit() for name in planned.data["splits"]}
    missing = []
    for name, rows in sorted(planned.shards.items()):
        shard = build.finished(*name)
        if shard is None:
            missing.append(name)
        elif shard.run != planned.sha256 or shard.samples != rows:
            message = f"the shard {shard_path(*name)} is of another plan. Remove this directory, and plan again."
            raise ConversionError(f"{build.path}: {message}")
        elif _is_there(build, name, shard):
            found[name[0]].add(shard)
        else:
            build.forget(*name)
            missing.append(name)
    if missing:
        raise _unfinished(planned, missing)
    return found


def _is_there(build: Build, name: ShardName, finished: FinishedShard) -> bool:
    """Whether a shard has the files of its record; raises `ConversionError` if it has a link or other files."""
    folder = build.store / shard_path(*name)
    found = [build.store, folder.parent, folder, *folder.rglob("*")]
    if link := next((path for path in found if path.is_symlink()), None):
        message = f"{link}: expected a file or folder of this conversion, found a symbolic link."
        raise ConversionError(f"{message} Remove it, run the task of its shards again, and commit.")
    try:
        files = parse_listing((folder / "zarr.json").read_bytes(), shard_path(*name), finished.shard)
        if not all(os.stat(folder / path).st_size == file.size for path, file in files.items()):  # noqa: PTH116
            return False
    except (FileNotFoundError, NotADirectoryError, FormatError):
        return False
    listed = {folder / path for path in (*files, "zarr.json")}
    if other := next((path for path in found if path not in listed and not path.is_dir()), None):
        message = f"{other}: expected the files that its shard lists, found one more."
        raise ConversionError(f"{message} Remove it, and commit again.")
    return True


def _unfinished(planned: Plan, missing: Sequence[ShardName]) -> UnfinishedError:
    place = {name: i for i, name in enumerate(planned.shards)}
    tasks = ranges(sorted({place[name] % planned.tasks for name in missing}))
    counted = f"{len(missing):,} of {len(planned.shards):,} shards are missing"
    message = f"{planned.path}: {counted}. Run these of the {planned.tasks:,} tasks again: {tasks}."
    return UnfinishedError(message, tasks, planned.tasks)


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in the syntax of job arrays.

    >>> ranges([3, 7, 8, 9])
    '3,7-9'
    """
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)
