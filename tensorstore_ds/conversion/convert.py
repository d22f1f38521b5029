"""Convert a source into a store: scan, plan, convert block by block into shards, commit."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tensorstore_ds.conversion.blocks import SHAPES_DIFFER, BlockResult, Job, faults, identities
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import Block, PlannedShard, count_blocks, plan_blocks, plan_shards
from tensorstore_ds.conversion.preparation import AnySource, Prepared, check_room, open_any, prepare
from tensorstore_ds.conversion.result import (
    OnProgress,
    Progress,
    Summary,
    make_manifest,
    one_line_for_failures,
    summarize,
    versions,
)
from tensorstore_ds.conversion.shard_writer import FinishedShard, ShardWriter
from tensorstore_ds.conversion.survey import mixed_colors, shapes_problem, survey
from tensorstore_ds.conversion.workers import WORKER_NAME, run_blocks
from tensorstore_ds.conversion.workspace import Workspace
from tensorstore_ds.conversion.writer import Writer
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.machine import usable_cores
from tensorstore_ds.sources.sequence import Indexable

#: So many references are joined at a time for their digest.
_DIGESTED = 10_000


#: Samples of unknown number, or of each split.
Streams = Iterable[Any] | Mapping[str, Iterable[Any]]


def convert(
    source: AnySource | Streams,
    out: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    progress: OnProgress | None = None,
) -> Summary:
    """Convert a source into a new store at `out`. The source is never modified.

    The store grows in ``OUT.partial`` and appears as `out` in one step, when it is whole. Interrupted, the same call
    goes on from the shards that were finished.

    Args:
        source: a folder or file; or samples: a sequence, such as a torchvision data set, or an iterator; or a mapping
            of split names to such. One alone is the split ``train``. An iterator is read in this process, and
            `workers` has no meaning: see `Writer`, which also says when it goes on after an interruption.
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
    if streams := _streams(source):
        return _convert_streams(streams, target, options, progress)
    opened = open_any(cast(AnySource, source), options)
    _check_paths(opened.path if isinstance(source, str | os.PathLike) else None, target)
    with one_line_for_failures(target), Workspace(target) as workspace:
        notify = progress or (lambda _: None)
        notify(Progress("scan", 0, 0))
        prepared = prepare(opened, options, room=shutil.disk_usage(workspace.path).free)
        conversion = _Conversion(prepared, options, workspace, notify)
        shards = conversion.run()
        prepared = conversion.prepared
        manifest, listed = make_manifest(
            options,
            prepared.format.fields,
            shards,
            {"source": opened.path.name, "source_format": opened.name},
            prepared.contents.problems,
            prepared.contents.left_out,
        )
        manifest = workspace.commit(manifest, listed)
        conversion.pass_on_notes()
    return summarize(
        target,
        manifest,
        time.monotonic() - began,
        skipped=manifest.provenance["skipped"],
        left_out=prepared.contents.left_out,
        resumed=conversion.resumed,
        notes=tuple(conversion.notes),
    )


def _streams(source: object) -> dict[str, Iterable[Any]]:
    """The samples of each split, if any of them are an iterator's, of unknown number."""
    if isinstance(source, str | os.PathLike):
        return {}
    splits = source if isinstance(source, Mapping) else {"train": source}
    if all(isinstance(samples, Indexable) or not isinstance(samples, Iterable) for samples in splits.values()):
        return {}
    streams: dict[str, Iterable[Any]] = {}
    for name, samples in splits.items():
        if not isinstance(samples, Indexable | Iterable):
            raise OptionError(f"{name}: expected samples, found {type(samples).__name__}. Pass a list or an iterator.")
        streams[name] = _each(samples) if isinstance(samples, Indexable) else samples
    return streams


def _each(samples: Indexable) -> Iterator[Any]:
    for index in range(len(samples)):
        yield samples[index]


def _convert_streams(
    streams: Mapping[str, Iterable[Any]], out: Path, options: ConvertOptions, progress: OnProgress | None
) -> Summary:
    done = 0
    with Writer(out, options) as writer:
        for split, samples in streams.items():
            for sample in samples:
                writer.append(split, sample)
                done += 1
                if progress is not None:
                    progress(Progress("convert", done, 0))
    if writer.summary is None:
        raise RuntimeError("the block has ended without a summary")
    return writer.summary


def _check_process() -> None:
    """End a worker process that runs the user's script again, from its beginning, to find what is defined there.

    Its parent notices, and does the work itself.
    """
    process = multiprocessing.current_process()
    if process.name.startswith(WORKER_NAME) and getattr(process, "_inheriting", False):
        raise SystemExit(1)


def _check_paths(source: Path | None, out: Path) -> None:
    """Raise `OptionError` where a store cannot be made at `out`, or not of that source."""
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


class _Conversion:
    """Shards of a prepared source, converted or kept from an earlier run.

    Attributes:
        resumed: how many shards were kept.
    """

    def __init__(self, prepared: Prepared, options: ConvertOptions, workspace: Workspace, notify: OnProgress) -> None:
        self.resumed = 0
        self.notes: list[str] = []
        self.prepared = prepared
        self._options = options
        self._workspace = workspace
        self._notify = notify
        self._common = identities(prepared.source.common_files())
        self._samples = self._nbytes = 0

    def run(self) -> dict[str, list[FinishedShard]]:
        """All shards of each split; all made anew where gray and colour images turn out to be mixed."""
        begun = self._workspace.begun() or {}
        if self._options.color == "auto" and begun.get("mixed") is True and not self._use_rgb():
            self._workspace.clean(())  # they are mixed no longer
        try:
            return self._all_shards()
        except SourceError as error:
            if error.reason != SHAPES_DIFFER:
                raise
            self._workspace.clean(())  # as they were prepared for, no shard will ever be of use
            if not self._use_rgb():
                raise
        return self._all_shards()

    def _use_rgb(self) -> bool:
        """Whether gray and colour images are mixed, and nothing else differs; they will all be RGB then."""
        self._notify(Progress("scan", 0, 0))
        surveyed = survey(self.prepared)
        problem = shapes_problem(self.prepared, surveyed)
        if problem is not None:
            raise SourceError(problem)
        note = mixed_colors(surveyed, self.prepared.format.image)
        if note is None:
            return False
        self._note(note)
        self.prepared = self.prepared.in_rgb()
        self._samples = self._nbytes = 0
        return True

    def _all_shards(self) -> dict[str, list[FinishedShard]]:
        prepared, options, workspace = self.prepared, self._options, self._workspace
        workspace.begin(
            {
                "source": str(prepared.source.path),
                "source_format": prepared.source.name,
                "versions": versions(),
                "fields": {name: field.dump() for name, field in prepared.format.fields.items()},
                "mixed": prepared.format.image != options.image,
                **options.deciding(),
            }
        )
        self.pass_on_notes()
        shards = plan_shards(prepared.splits, max(1, options.shard_nbytes // max(1, prepared.row_nbytes)))
        finished = {shard.name: earlier for shard in shards if (earlier := self._find(shard)) is not None}
        workspace.clean(finished)
        missing = [shard for shard in shards if shard.name not in finished]
        self.resumed = len(finished)
        if options.layout == "memmap":
            needed = sum(len(shard.references) for shard in missing) * prepared.row_nbytes
            check_room(needed, shutil.disk_usage(workspace.path).free)
        finished |= self._convert(missing)
        return {split: [finished[s.name] for s in shards if s.split == split] for split in prepared.splits}

    def _find(self, shard: PlannedShard) -> FinishedShard | None:
        """The shard, if an earlier run finished it from the very same files, none of them changed since."""
        finished = self._workspace.finished(*shard.name)
        source = self.prepared.source
        if finished is None or not (self._common or source.files(shard.references[0])):
            return None  # where a sequence has its samples from is not known
        origin = self._begin_origin(shard)
        for reference in shard.references:
            origin.update(identities(source.files(reference)))
        is_bad = self._options.on_error == "fail" and faults(finished.skipped)
        if is_bad or finished.origin != origin.hexdigest():
            return None
        self._advance(finished.shard.rows)
        return finished

    def _begin_origin(self, shard: PlannedShard) -> hashlib._Hash:
        """The digest of a shard's references; the identities of its files follow."""
        origin = hashlib.sha256(self._common)
        for start in range(0, len(shard.references), _DIGESTED):
            # No file name holds a NUL: joined by it, no two lists of references have the same bytes.
            text = "\0".join(map(str, shard.references[start : start + _DIGESTED]))
            origin.update(f"{text}\0".encode("utf-8", "surrogateescape"))
        return origin

    def _convert(self, shards: Sequence[PlannedShard]) -> dict[tuple[str, int], FinishedShard]:
        prepared = self.prepared
        job = Job(prepared.source, prepared.format)
        workers = usable_cores() if self._options.workers is None else self._options.workers
        workers = min(workers, count_blocks(shards, prepared.row_nbytes))
        finished = {}
        with contextlib.ExitStack() as stack:
            folders = {shard.name: self._workspace.store / shard_path(*shard.name) for shard in shards}
            writers = {name: ShardWriter(folder, job.format.fields) for name, folder in folders.items()}

            def tasks() -> Iterator[tuple[Block, Mapping[str, Path]]]:
                """Blocks of all shards in order; a shard's files are made when its first block is asked for."""
                for shard in shards:
                    paths = stack.enter_context(writers[shard.name]).row_paths()
                    for block in plan_blocks(shard, prepared.row_nbytes):
                        yield block, paths

            results = stack.enter_context(contextlib.closing(run_blocks(job, tasks(), workers, self._note)))
            for shard in shards:
                finished[shard.name] = self._collect(shard, writers[shard.name], results)
        return finished

    def _collect(
        self, shard: PlannedShard, writer: ShardWriter, results: Iterator[tuple[Block, BlockResult]]
    ) -> FinishedShard:
        """Take in the blocks of one shard, and finish it."""
        origin = self._begin_origin(shard)
        remaining = len(shard.references)
        while remaining:
            block, result = next(results)
            writer.append(block.first_row, result)
            origin.update(result.files)
            remaining -= len(block.references)
            self._advance(len(block.references))
        finished = writer.finish(self._options.layout, len(shard.references), origin.hexdigest())
        self._workspace.finish(*shard.name, finished)
        return finished

    def _advance(self, rows: int) -> None:
        self._samples += rows
        self._nbytes += rows * self.prepared.row_nbytes
        self._notify(Progress("convert", self._samples, self.prepared.samples, self._nbytes))

    def pass_on_notes(self) -> None:
        """Tell the user what the workspace has to say."""
        while self._workspace.notes:
            self._note(self._workspace.notes.pop(0))

    def _note(self, note: str) -> None:
        self.notes.append(note)
        self._notify(Progress("convert", self._samples, self.prepared.samples, self._nbytes, note))
