"""Convert a source into a store: scan, plan, convert block by block into shards, commit."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import multiprocessing
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numcodecs
import PIL

from tensorstore_ds.conversion.blocks import BlockResult, Job, faults, identities
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import Block, PlannedShard, count_blocks, plan_blocks, plan_shards
from tensorstore_ds.conversion.preparation import AnySource, Prepared, check_room, open_any, prepare, prepare_again
from tensorstore_ds.conversion.shard_writer import ShardWriter
from tensorstore_ds.conversion.survey import SHAPES_DIFFER, mixed_colors, shapes_problem, survey
from tensorstore_ds.conversion.workers import WORKER_NAME, run_blocks
from tensorstore_ds.conversion.workspace import FinishedShard, Workspace
from tensorstore_ds.errors import ConversionError, OptionError, Problem, SourceError, StoreExistsError
from tensorstore_ds.format.manifest import Manifest, SplitEntry, dump_field, shard_path
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.machine import usable_cores
from tensorstore_ds.sources.base import Reference
from tensorstore_ds.version import __version__


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion is.

    Attributes:
        stage: ``scan``, ``convert``.
        done, total: samples.
        nbytes: bytes of the store written so far, before compression.
        note: a line that the user should see now; empty but for the event that brings it.
    """

    stage: str
    done: int
    total: int
    nbytes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a conversion did.

    Attributes:
        rows: samples of each split.
        nbytes: size of the store on disk.
        seconds: wall time.
        skipped: for each reason, how many files were left out or boxes dropped.
        left_out: what the source itself does not take in.
        resumed: shards that an earlier run had finished.
        notes: what the user should know, though nothing failed; each was an event's `note`, too.
    """

    path: Path
    rows: Mapping[str, int]
    nbytes: int
    seconds: float
    skipped: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[Problem, ...] = ()
    resumed: int = 0
    notes: tuple[str, ...] = ()


#: So many references are joined at a time for their digest.
_DIGESTED = 10_000

OnProgress = Callable[[Progress], None]


def convert(
    source: AnySource,
    out: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    progress: OnProgress | None = None,
) -> Summary:
    """Convert a source into a new store at `out`. The source is never modified.

    The store grows in ``OUT.partial`` and appears as `out` in one step, when it is whole. Interrupted, the same call
    goes on from the shards that were finished.

    Args:
        source: a folder or file, or any sequence of samples: a torchvision data set, or a mapping of split names to
            such.
        out: where the store shall be; nothing may be there.
        options: all the rest.
        progress: called now and then, from this thread.

    Raises:
        SourceError: the source, or with ``on_error="fail"`` a sample of it, cannot be converted.
        OptionError: options contradict each other, the source, or the interrupted run in ``OUT.partial``.
        StoreExistsError: `out` exists.
        ConversionError: the disk or the memory is full, or a worker process died.
    """
    began = time.monotonic()
    _check_process()
    options = options or ConvertOptions()
    target = Path(out).absolute()
    opened = open_any(source, options)
    _check_paths(opened.path if isinstance(source, str | os.PathLike) else None, target)
    with one_line_for_failures(target), Workspace(target) as workspace:
        notify = progress or (lambda _: None)
        notify(Progress("scan", 0, 0))
        prepared = prepare(opened, options, room=shutil.disk_usage(workspace.path).free)
        conversion = _Conversion(prepared, options, workspace, notify)
        finished = conversion.run()
        manifest, listed = _manifest(conversion.prepared, options, finished)
        manifest = workspace.commit(manifest, listed)
        conversion.pass_on_notes()
    return Summary(
        path=target,
        rows={name: split.rows for name, split in manifest.splits.items()},
        nbytes=sum(file.size for file in manifest.all_files().values()),
        seconds=time.monotonic() - began,
        skipped=manifest.provenance["skipped"],
        left_out=prepared.contents.left_out,
        resumed=conversion.resumed,
        notes=tuple(conversion.notes),
    )


def _check_process() -> None:
    """End a worker process that runs the user's script again, from its beginning, to find what is defined there.

    Its parent notices, and does the work itself.
    """
    process = multiprocessing.current_process()
    if process.name.startswith(WORKER_NAME) and getattr(process, "_inheriting", False):
        raise SystemExit(1)


def _check_paths(source: Path | None, out: Path) -> None:
    if not out.parent.is_dir():
        raise OptionError(f"{out}: the folder {out.parent} does not exist. Make it first.")
    if source is None:
        return
    real_source, real_out = source.resolve(), out.resolve()
    if real_source.is_relative_to(real_out):
        raise OptionError(f"{out}: the source {source} lies inside it. Choose another place for the store.")
    if real_source.is_dir() and real_out.is_relative_to(real_source):
        raise OptionError(
            f"{out}: this lies inside the source {source}, which is never written to. Choose another place."
        )


# --- conversion -------------------------------------------------------------------------------------------------


class _Conversion:
    """Shards of a prepared source, converted or found finished."""

    def __init__(self, prepared: Prepared, options: ConvertOptions, workspace: Workspace, notify: OnProgress) -> None:
        self.resumed = 0
        self.notes: list[str] = []
        self.prepared = prepared
        self._options = options
        self._image = options.image
        self._workspace = workspace
        self._notify = notify
        self._common = identities(prepared.source.common_files())
        self._mixed = False  # gray and colour images, which all become RGB
        self._done = 0
        self._nbytes = 0

    def run(self) -> list[tuple[PlannedShard, FinishedShard]]:
        """Convert what is not finished yet; all anew where gray and colour images turn out to be mixed."""
        if self._options.color == "auto" and self._workspace.is_mixed() and not self._use_rgb():
            self._workspace.clean(set())  # they are mixed no longer
        try:
            return self._run()
        except SourceError as error:
            if error.reason != SHAPES_DIFFER:
                raise
            self._workspace.clean(set())  # as they were prepared for, no shard will ever be of use
            if not self._use_rgb():
                raise
        return self._run()

    def _use_rgb(self) -> bool:
        """Whether gray and colour images are mixed, and nothing else differs; they will all be RGB then."""
        before, options = self.prepared, replace(self._options, color="rgb")
        self._notify(Progress("scan", 0, 0))
        found = survey(before.source, before.splits, self._image)
        problem = shapes_problem(before.source, found, self._image)
        if problem is not None:
            raise SourceError(problem)
        note = mixed_colors(found, self._image)
        if note is None:
            return False
        self._note(note)
        self._mixed = True
        self._image = options.image
        self.prepared = prepare_again(before.source, before.contents, before.splits, options)
        self._done = self._nbytes = 0
        return True

    def _run(self) -> list[tuple[PlannedShard, FinishedShard]]:
        prepared, options = self.prepared, self._options
        self._workspace.begin(
            {
                "source": str(prepared.source.path),
                "source_format": prepared.source.name,
                "versions": [__version__, f"Pillow {PIL.__version__}", f"numcodecs {numcodecs.__version__}"],
                "fields": {name: dump_field(f) for name, f in prepared.fields.items()},
                "mixed": self._mixed,
                **options.deciding(),
            }
        )
        self.pass_on_notes()
        shards = plan_shards(prepared.splits, max(1, options.shard_nbytes // max(1, prepared.row_nbytes)))
        kept = {(shard.split, shard.index): self._find(shard) for shard in shards}
        self._workspace.clean({name for name, finished in kept.items() if finished is not None})
        missing = [shard for shard in shards if kept[shard.split, shard.index] is None]
        self.resumed = len(shards) - len(missing)
        if options.layout == "memmap":
            needed = sum(len(shard.references) for shard in missing) * prepared.row_nbytes
            check_room(needed, shutil.disk_usage(self._workspace.path).free)
        made = self._convert(missing)
        return [(shard, kept[shard.split, shard.index] or made[shard.split, shard.index]) for shard in shards]

    def _find(self, shard: PlannedShard) -> FinishedShard | None:
        """The shard, if an earlier run finished it from the very same files, none of them changed since."""
        finished = self._workspace.finished(shard.split, shard.index)
        if finished is None or finished.references != _digest(shard.references):
            return None
        source, found = self.prepared.source, hashlib.sha256(self._common)
        for reference in shard.references:
            found.update(identities(source.files(reference)))
        if finished.files != found.hexdigest() or not (self._common or source.files(shard.references[0])):
            return None  # where a sequence has its samples from is not known
        if self._options.on_error == "fail" and faults(finished.skipped):
            return None
        self._advance(finished.shard.rows)
        return finished

    def _convert(self, shards: Sequence[PlannedShard]) -> dict[tuple[str, int], FinishedShard]:
        prepared = self.prepared
        job = Job(prepared.source, prepared.fields, self._image, self._options.on_error, prepared.channels)
        workers = usable_cores() if self._options.workers is None else self._options.workers
        workers = min(workers, count_blocks(shards, prepared.row_nbytes))
        made = {}
        with contextlib.ExitStack() as stack:
            writers = [ShardWriter(self._workspace.store / shard_path(s.split, s.index), job.fields) for s in shards]
            tasks = _Tasks(shards, writers, prepared.row_nbytes, stack)
            results = stack.enter_context(contextlib.closing(run_blocks(job, tasks, workers, self._note)))
            for shard, writer in zip(shards, writers, strict=True):
                made[shard.split, shard.index] = self._collect(shard, writer, results)
        return made

    def _collect(
        self, shard: PlannedShard, writer: ShardWriter, results: Iterator[tuple[Block, BlockResult]]
    ) -> FinishedShard:
        """Take in the blocks of one shard, and finish it."""
        statistics = Statistics()
        skipped: list[Problem] = []
        files = hashlib.sha256(self._common)
        left = len(shard.references)
        while left:
            block, result = next(results)
            writer.append(block.first_row, result.rows, result.tables)
            statistics.add(result.statistics)
            skipped += result.skipped
            files.update(result.files)
            left -= len(block.references)
            self._advance(len(block.references))
        written = writer.finish(self._options.layout)
        finished = FinishedShard(written, statistics, tuple(skipped), _digest(shard.references), files.hexdigest())
        self._workspace.finish(shard.split, shard.index, finished)
        return finished

    def _advance(self, rows: int) -> None:
        self._done += rows
        self._nbytes += rows * self.prepared.row_nbytes
        self._notify(Progress("convert", self._done, self.prepared.rows, self._nbytes))

    def pass_on_notes(self) -> None:
        """Tell the user what the workspace has to say."""
        while self._workspace.notes:
            self._note(self._workspace.notes.pop(0))

    def _note(self, note: str) -> None:
        self.notes.append(note)
        self._notify(Progress("convert", self._done, self.prepared.rows, self._nbytes, note))


class _Tasks:
    """Blocks of all shards in order; a shard's files are made when its first block is asked for."""

    def __init__(
        self,
        shards: Sequence[PlannedShard],
        writers: Sequence[ShardWriter],
        row_nbytes: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self._shards = shards
        self._writers = writers
        self._row_nbytes = row_nbytes
        self._stack = stack

    def __iter__(self) -> Iterator[tuple[Block, Mapping[str, Path]]]:
        for shard, writer in zip(self._shards, self._writers, strict=True):
            paths = self._stack.enter_context(writer).row_paths()
            for block in plan_blocks(shard, self._row_nbytes):
                yield block, paths


def _digest(references: Sequence[Reference]) -> str:
    sha256 = hashlib.sha256()
    for start in range(0, len(references), _DIGESTED):
        # No file name holds a NUL: joined by it, no two lists of references have the same bytes.
        text = "\0".join(map(str, references[start : start + _DIGESTED]))
        sha256.update(f"{text}\0".encode("utf-8", "surrogateescape"))
    return sha256.hexdigest()


def _manifest(
    prepared: Prepared, options: ConvertOptions, finished: Sequence[tuple[PlannedShard, FinishedShard]]
) -> tuple[Manifest, list[Problem]]:
    """The manifest, and everything to be listed in ``skipped.jsonl``."""
    skipped = [*prepared.contents.problems, *(p for _, shard in finished for p in shard.skipped)]
    splits = {}
    for name in prepared.splits:
        shards = [done for planned, done in finished if planned.split == name]
        statistics = Statistics()
        for shard in shards:
            statistics.add(shard.statistics)
        splits[name] = SplitEntry(tuple(shard.shard for shard in shards), statistics.summary())
    if not any(split.rows for split in splits.values()):
        raise SourceError(skipped, "No sample is left to be stored.")
    provenance = {
        "tool": "tensorstore-ds",
        "tool_version": __version__,
        "source": prepared.source.path.name,
        "source_format": prepared.source.name,
        "options": options.recorded(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "skipped": dict(Counter(p.reason for p in skipped)),
        "left_out": dict(Counter(p.reason for p in prepared.contents.left_out)),
    }
    manifest = Manifest(options.layout, prepared.fields, splits, {}, provenance, options.license, options.citation)
    return manifest, [*skipped, *prepared.contents.left_out]


@contextlib.contextmanager
def one_line_for_failures(out: Path) -> Iterator[None]:
    """What the system refuses becomes a `ConversionError`; what was finished stays in ``OUT.partial``."""
    kept = "Finished shards are kept; {} and run the same command again to go on."
    try:
        yield
    except (ConversionError, StoreExistsError):
        raise
    except MemoryError as error:
        advice = kept.format("use fewer workers, or a machine with more memory,")
        raise ConversionError(f"{out}: there is not enough memory. {advice}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ConversionError(f"{out}: the disk is full. {kept.format('make room')}") from error
        raise ConversionError(f"{error.filename or out}: {error.strerror or error}.") from error
