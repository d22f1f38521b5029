"""Convert a source into a store: scan, plan, convert block by block into shards, commit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Unpack, cast

import numpy as np

from tensorstore_ds.archives import decompressing
from tensorstore_ds.conversion.blocks import ShapesDiffer, faults, identities
from tensorstore_ds.conversion.build import Build, commit, one_line_for_failures, recorded
from tensorstore_ds.conversion.history import now
from tensorstore_ds.conversion.keywords import ConvertKeywords
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import ChosenRows, ShardName, plan_shards
from tensorstore_ds.conversion.preparation import AnySource, Prepared, open_any, prepare
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, in_notebook
from tensorstore_ds.conversion.shard_conversion import Origin, convert_shards
from tensorstore_ds.conversion.shard_writer import FinishedShard, FinishedSplit, ShardWriter
from tensorstore_ds.conversion.writer import Writer
from tensorstore_ds.errors import OptionError, SourceError, one_line
from tensorstore_ds.format.kinds import RaggedImageField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.options import chosen, refusal, takes_options
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sources.base import Source
from tensorstore_ds.sources.joined import Sources
from tensorstore_ds.sources.sequence import Indexable, item_of, own_classes
from tensorstore_ds.sources.splits import split_name

#: Any of these changes the status of a file, and some of them its content.
_STATUS_CHANGED = (
    "their files have the same sizes and modification times, but something else changed since: hard links (`cp -al`), "
    "permissions, the owner, or the content, with the old modification time. To avoid this, do not change the source "
    "until the conversion is complete"
)

#: Samples of unknown number, or of each split.
Streams = Iterable[Any] | Mapping[str, Iterable[Any]]


@takes_options(ConvertOptions)
def convert(
    source: AnySource | Streams,
    out: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    progress: OnProgress | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> Summary:
    """Convert a source into a new store at `out`. The source is never modified.

    >>> summary = tsds.convert("photos", "small.tsds", size=24, workers=0)
    >>> summary.rows, summary.skipped
    ({'train': 8, 'val': 4}, {})
    >>> tsds.open("small.tsds")["train"]["image"].shape
    (8, 24, 24, 3)

    Samples of a program are converted in the same way. Each sample is a dict, or a tuple (image, label):

    >>> rng = np.random.default_rng(0)
    >>> samples = [(rng.integers(0, 256, (28, 28), np.uint8), row % 10) for row in range(20)]
    >>> digits = [str(digit) for digit in range(10)]
    >>> tsds.convert({"train": samples}, "digits.tsds", classes=digits, workers=0).rows
    {'train': 20}

    The store is written to ``OUT.partial`` and renamed to `out` in one step when it is complete. If the conversion is
    interrupted, the same call continues after the finished shards.

    Args:
        source: path of a folder or file, or several paths as `Sources`. Or samples: a sequence, such as a data set of
            torchvision or Hugging Face, a data frame with a column of paths, or an iterator. A mapping of split names
            to samples makes several splits; without it, all samples are in ``train``. An iterator is read in this
            process, and `workers` has no effect. `Writer` describes when it resumes after an interruption.
        out: path of the new store, which must not exist.
        options: all options as one object.
        progress: function that is called with a `Progress` from this thread. None shows a bar in a notebook.
        keywords: options by name, such as ``size=224``. Each overrides `options`.

    Returns:
        A `Summary` with the rows of each split, the size, and the number of skipped samples.

    Raises:
        SourceError: the source, or with ``on_error="fail"`` one of its samples, cannot be converted.
        OptionError: options contradict each other, the source, or the interrupted conversion in ``OUT.partial``.
        StoreExistsError: `out` exists.
        ConversionError: the disk or the memory is full, or a worker process died.
    """
    options, notify = chosen(options, ConvertOptions, keywords), in_notebook() if progress is None else progress
    if not callable(notify):
        raise refusal("progress", "a function of a Progress, or None", repr(progress))
    target = tidied(out)
    if streams := _streams(source):
        classes = own_classes(_splits(source).values()) if options.classes is None else None
        with Writer(target, options if classes is None else replace(options, classes=classes)) as writer:
            samples = ((split, sample) for split, samples in streams.items() for sample in samples)
            for done, (split, sample) in enumerate(samples, 1):
                writer.append(split, sample)
                notify(Progress("convert", done, 0))
        summary = cast(Summary, writer.summary)
        total = sum(summary.rows.values())
        notify(Progress("convert", total, total, summary.nbytes))
        return summary
    with decompressing():
        opened = open_any(cast(AnySource, source), options)
        check_all_apart(cast(AnySource, source), target)
        return convert_source(opened, target, options, notify)


def convert_source(
    source: Source,
    out: Path,
    options: ConvertOptions,
    notify: OnProgress,
    *,
    like: RaggedImageField | None = None,
    check: Callable[[Field], None] | None = None,
) -> Summary:
    """Convert an open source. `check` is called with the field of the images before they are converted.

    `like` keeps images as pixels of differing sizes in the form of this field, even if all have one size. With `like`
    or `check`, the result becomes a part of another store: it stays in ``OUT.partial``, without notes on encoding and
    size.
    """
    return _Conversion(source, Build(out, notify), options, notify, like, check).run()


def _streams(source: object) -> dict[str, Iterable[Any]]:
    """The samples of each split if any split is an iterator of unknown length, otherwise an empty dict."""
    if isinstance(source, str | os.PathLike | Sources):
        return {}
    splits = _splits(source)
    if all(isinstance(samples, Indexable) or not isinstance(samples, Iterable) for samples in splits.values()):
        return {}
    streams: dict[str, Iterable[Any]] = {}
    for name, samples in splits.items():
        if isinstance(samples, Indexable):
            streams[name] = _items(samples, split_name(name))
        elif isinstance(samples, Iterable):
            streams[name] = samples
        else:
            raise OptionError(f"{name}: expected samples, found {type(samples).__name__}. Pass a list or an iterator.")
    return streams


def _splits(source: object) -> Mapping[str, object]:
    return source if isinstance(source, Mapping) else {"train": source}


def _items(samples: Indexable, split: str) -> Iterator[Any]:
    """The samples of a sequence. For one that cannot be read, a function that raises the reason."""
    for i in range(len(samples)):
        key = f"{split}/{i:05d}"
        try:
            sample = item_of(samples, i, key)
        except SourceError as error:
            sample = partial(_raise, error)
        yield sample


def _raise(error: SourceError) -> NoReturn:
    raise error


def check_all_apart(source: AnySource, out: Path) -> None:
    """Check all paths of a source with `check_apart`."""
    for path in source.paths if isinstance(source, Sources) else [source]:
        if isinstance(path, str | os.PathLike):
            check_apart(tidied(path), out)


def check_apart(source: Path, out: Path) -> None:
    """Raise `OptionError` if the source contains the store or the reverse."""
    real_source, real_out = source.resolve(), out.resolve()
    if real_source.is_relative_to(real_out):
        raise OptionError(f"{out}: the source {source} lies inside it. Choose another place for the store.")
    if real_source.is_dir() and real_out.is_relative_to(real_source):
        raise OptionError(
            f"{out}: this lies inside the source {source}, which is never written to. Choose another place."
        )


@dataclass
class _Conversion:
    """Shards of a source, converted or taken over from an earlier run, and committed."""

    _source: Source
    _build: Build
    _options: ConvertOptions
    _notify: OnProgress
    _like: RaggedImageField | None
    _check: Callable[[Field], None] | None
    _common: bytes = b""  #: `identities` of the files that all samples share, after the scan

    def run(self) -> Summary:
        """Convert, commit, and return the summary."""
        source, options = self._source, self._options
        now()  # a time that cannot be used is refused before the work
        with one_line_for_failures(self._build.out), self._build as build:
            self._notify(Progress("scan", 0, 0))
            began = time.time_ns()
            room = None if build.finished_names() else build.out  # their room is taken; `make` asks for the rest
            prepared = prepare(source, options, out=room, is_part=self._check is not None)
            for note in (*prepared.contents.notes, *prepared.notes):
                build.note(note)
            self._common = identities(source.common_files())
            times = np.frombuffer(self._common, np.int64).reshape(-1, 4)[:, 2:]
            if ((times >= began) & (times <= time.time_ns())).any():  # changed after the scan may have read it
                self._common += os.urandom(32)  # so that no later run uses the shards
            if self._like is not None:
                fields = {**prepared.format.fields, "image": self._like}  # pixels of differing sizes
                prepared = replace(prepared, format=replace(prepared.format, fields=fields))
            prepared, shards = self._shards_by_plan(prepared)
            found, origin = prepared.contents, {"source": one_line(source.path.name), "source_format": source.name}
            appears = self._check is None
            return commit(build, options, shards, origin, found.problems, found.left_out, appears=appears)

    def _shards_by_plan(self, first: Prepared) -> tuple[Prepared, dict[str, FinishedSplit]]:
        """The plan of the first image and its shards. If images differ, those of the plan of all headers."""
        begun, asked = self._build.begun() or {}, recorded(self._options._deciding())
        differ: ShapesDiffer | None = None
        if begun.get("surveyed") is not True or any(begun.get(name) != value for name, value in asked.items()):
            try:
                return first, self._shards(first)
            except ShapesDiffer as error:
                differ = error
            if self._build.resumed:
                self._build.keep((), "images of differing sizes or colors were found")
            self._build.clean(())  # as they were prepared for, no shard will ever be of use
        self._notify(Progress("scan", 0, 0))
        surveyed = first.surveyed(told_kept=self._check is None)
        if not surveyed.is_surveyed:
            if differ is not None:
                raise differ
            self._build.keep((), "the images no longer have differing sizes or colors")
        for note in (each for each in surveyed.notes if each not in first.notes):
            self._build.note(note)
        return surveyed, self._shards(surveyed)

    def _shards(self, prepared: Prepared) -> dict[str, FinishedSplit]:
        options, build = self._options, self._build
        if self._check is not None:
            self._check(prepared.format.fields["image"])
        build.total, build.done, build.row_nbytes = prepared.samples, 0, prepared.row_nbytes
        plan = {
            "source": one_line(str(self._source.path)),
            "source_format": self._source.name,
            "fields": {name: field.dump() for name, field in prepared.format.fields.items()},
            "surveyed": prepared.is_surveyed,
            **options._deciding(),
        }
        shards = plan_shards(prepared.splits, max(1, options.shard_nbytes // max(1, prepared.row_nbytes)))
        converted, unusable = partial(self._converted, prepared), partial(self._unusable, shards)
        row_nbytes = prepared.row_nbytes if options.layout == "memmap" else 0
        return build.make(plan, prepared.splits, shards, converted, unusable, row_nbytes)

    def _unusable(self, shards: Mapping[ShardName, ChosenRows], name: ShardName, finished: FinishedShard) -> str:
        """Why a finished shard of an earlier run cannot be used; empty if its files are the same, and unchanged."""
        shard, files = shards.get(name), self._source.files
        if shard is None:
            return "the source has fewer samples now"
        if len(shard) and not (self._common or files(next(iter(shard)))):
            return "samples of a program cannot be compared"
        if self._options.on_error == "fail" and faults(finished.skipped):
            return 'they lack bad samples, which `on_error="fail"` does not skip'
        origin = Origin(self._common, shard)
        origin.update(identities(file for reference in shard for file in files(reference)))
        if finished.origin == str(origin):
            return ""
        if finished.origin.partition(" ")[0] == str(origin).partition(" ")[0]:
            return _STATUS_CHANGED
        return "files were added, removed or changed"

    def _converted(
        self, prepared: Prepared, shards: Mapping[ShardName, ChosenRows]
    ) -> Generator[tuple[ShardName, FinishedShard]]:
        build, fields = self._build, prepared.format.fields
        writers = {name: ShardWriter(build.store / shard_path(*name), fields) for name in shards}
        return convert_shards(
            prepared, shards, writers, self._options, self._common, on_rows=build.advance, note=build.note
        )
