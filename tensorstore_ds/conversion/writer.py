"""Write a store from samples that arrive one at a time."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self, Unpack

from tensorstore_ds.conversion.blocks import faults
from tensorstore_ds.conversion.build import Build, commit, one_line_for_failures
from tensorstore_ds.conversion.keywords import ConvertKeywords
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import in_order
from tensorstore_ds.conversion.result import Summary
from tensorstore_ds.conversion.sample_shard import WHERE, SampleFormat, SampleShard, with_key
from tensorstore_ds.conversion.values import ImageTiles
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.options import chosen, takes_options
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sources.splits import notes_of_renamed, split_names


class Writer:
    """Write a store from samples that arrive one at a time, such as from a generator, a simulator or a stream.

    >>> pixels = np.zeros((32, 32, 3), np.uint8)
    >>> with tsds.Writer("out.tsds", classes=["cat", "dog"]) as writer:
    ...     writer.append("train", image=pixels, label=1)
    ...     writer.extend("test", ({"image": pixels, "label": row % 2} for row in range(3)))
    >>> writer.summary.rows
    {'train': 1, 'test': 3}

    Detections have boxes, x1 y1 x2 y2 in pixels, and the class of each box, its name or number:

    >>> with tsds.Writer("boxes.tsds", classes=["cat", "dog"]) as writer:
    ...     writer.append("train", image=pixels, boxes=[[4, 4, 20, 28]], labels=["cat"])
    >>> tsds.open("boxes.tsds")["train"][0]["objects"]["boxes"].tolist()
    [[4.0, 4.0, 20.0, 28.0]]

    The store appears at `out` when the block ends without an exception. Otherwise, there is no store. Samples are
    written to disk as they arrive, in shards, so that memory use does not grow with their number.

    **Keys and interruptions.** If every sample has a key, an interrupted program keeps its finished shards in
    ``OUT.partial``. Run it again with the same keys in the same order: `append` then skips the samples of these shards
    without reading them, and does not call a sample that is a function. Samples without keys are always written again.

    **Several processes.** Each writes a separate store; `editing.merge_stores` joins them.

    Args:
        out: path of the new store, which must not exist.
        options: all options as one object. `format`, `images`, `seed` and `workers` have no effect. `split_into` and
            `tiles` raise an `OptionError` when the block begins.
        fields: fields that all samples must have, such as ``store["train"].fields`` of an existing store. None uses the
            fields of the first sample.
        keywords: options by name, such as ``size=224``. Each overrides `options`.

    Attributes:
        summary: `Summary` of the store, after the block has ended without an exception.
    """

    @takes_options(ConvertOptions)
    def __init__(
        self,
        out: str | os.PathLike[str],
        options: ConvertOptions | None = None,
        *,
        fields: Mapping[str, Field] | None = None,
        **keywords: Unpack[ConvertKeywords],
    ) -> None:
        self.summary: Summary | None = None
        self._out = tidied(out)
        self._options = chosen(options, ConvertOptions, keywords)
        self._fields = fields
        self._format = SampleFormat(self._options, fields)
        self._build: Build | None = None
        self._shards = Counter[str]()  # finished ones of each split that is appended to
        self._growing: dict[str, SampleShard] = {}  # the next one
        self._samples = Counter[str]()
        self._keys: dict[str, set[bytes]] = {}
        self._names: dict[str, str] = {}  # of splits, as the caller and as the store has them
        self._process = os.getpid()
        self._has_begun = False

    def __enter__(self) -> Self:
        """Create ``OUT.partial``, or find the shards of an interrupted run in it.

        Raises:
            StoreExistsError: `out` exists.
            OptionError: options contradict each other or the interrupted run.
            ConversionError: a different process writes there.
        """
        if self._has_begun:
            raise self._not_open()
        self._process = os.getpid()
        if self._options.split_into is not None:
            raise OptionError("`split_into` divides a source of known length: name the split of each sample instead.")
        if isinstance(self._options.cut, ImageTiles):
            raise OptionError("`tiles`: expected a folder, a file or a list, found a stream. Convert one of these.")
        with one_line_for_failures(self._out), contextlib.ExitStack() as stack:
            build = stack.enter_context(Build(self._out))
            build.clean([shard for shard in build.finished_names() if self._is_usable(build, *shard)])
            asked = None if self._fields is None else {name: field.dump() for name, field in self._fields.items()}
            build.begin({"source": WHERE, "fields": asked, **self._options._deciding()})
            stack.pop_all()
        build.close_in_children()
        self._build, self._has_begun = build, True
        return self

    def append(self, split: str, sample: Any = None, *, key: str | int | None = None, **values: Any) -> None:
        """Add a sample to a split.

        Args:
            split: name of the split.
            sample: ``(image, label)``, ``(image, target)``, a dict or an image alone, as described in
                ``formats/sources/sequence.md``. Or a function that returns one of these. The function is not called for
                a sample that is already stored.
            key: key of the sample, unique in the split. None uses its entry ``key``, or else its number. If only the
                result of a function contains the key, the function must be called after an interruption. A million keys
                need about 100 MB of memory until the block ends, whatever their length.
            values: values of the sample instead of `sample`, as in ``image=..., label=...``. The image is an array of
                pixels, a path, the bytes of a file, or a PIL image.

        Raises:
            SourceError: the sample is bad and ``on_error`` is ``"fail"``, or its key is already used. The sample is not
                added, and you can continue.
            OptionError: the samples that an interrupted run stored are given in a different order, the block has ended,
                or both `sample` and `values` are given.
            ConversionError: the disk or the memory is full. You cannot add more samples.
        """
        build = self._open_build()
        if sample is not None and values:
            message = f"expected a sample, or its values by their names, found a sample and {', '.join(values)}."
            raise OptionError(f"append: {message} Pass all in one: a dict, or image=... and the others by name.")
        sample, own_key = with_key(values if sample is None else sample, key)
        name = self._split_name(split)
        if name not in self._growing:
            shard_name, keys = (name, self._shards[name]), self._keys.setdefault(name, set())
            self._growing[name] = SampleShard(build, shard_name, self._format, keys, self._samples[name])
        shard = self._growing[name]
        shard.append(sample, own_key, f"{name}/{self._samples[name]:05d}")
        self._samples[name] += 1  # only now: a sample that was refused changes nothing
        self._shards.setdefault(name, 0)
        if shard.is_full:
            self._finish(name)
            del self._growing[name]

    def extend(self, split: str, samples: Iterable[Any]) -> None:
        """Add samples to a split. Each is a sample as in `append`; a dict may contain its ``key``.

        Raises:
            SourceError, OptionError, ConversionError: as in `append`.
        """
        self._open_build()
        for sample in samples:
            self.append(split, sample)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        """Commit the store. After an exception, keep only the shards that a later run can use.

        Raises:
            SourceError: there is no sample, or two have the same key.
            ConversionError: the disk is full.
        """
        if os.getpid() != self._process or self._build is None:
            return  # a forked child leaves its parent's block
        build, self._build = self._build, None
        with one_line_for_failures(self._out), contextlib.ExitStack() as stack:
            stack.push(lambda failure, *rest: build.__exit__(kind or failure, *rest))
            for shard in self._growing.values():
                stack.callback(shard.close)
            if kind is not None:
                self._clear(build)
                return
            try:
                self._commit(build)
            except SourceError:
                self._clear(build)
                raise

    def _clear(self, build: Build) -> None:
        """Remove all shards if a later run cannot use any of them."""
        if not any(self._is_usable(build, *shard) for shard in build.finished_names()):
            with contextlib.suppress(OSError):  # the next run clears it
                build.clean(())

    def _commit(self, build: Build) -> None:
        for name, shard in self._growing.items():
            if shard.samples or shard.is_broken:
                self._finish(name)
        counts = in_order(self._shards)
        every = [(name, index) for name, count in counts.items() for index in range(count)]
        shards = build.added_up(counts, every)
        for note in notes_of_renamed(self._names):
            build.note(note)
        build.clean(every)
        origin = {"source": WHERE, "source_format": "samples"}
        self.summary = commit(build, self._options, shards, origin, check_keys=True)

    def _finish(self, name: str) -> None:
        self._growing[name].finish()
        self._shards[name] += 1

    def _is_usable(self, build: Build, split: str, index: int) -> bool:
        """Whether a later run can continue from a finished shard."""
        shard = build.finished(split, index)
        return bool(shard and shard.origin and not (self._options.on_error == "fail" and faults(shard.skipped)))

    def _split_name(self, split: str) -> str:
        if not isinstance(split, str) or split not in self._names:
            self._names = split_names([*self._names, split])
        return self._names[split]

    def _open_build(self) -> Build:
        if self._build is None:
            raise self._not_open()
        if os.getpid() != self._process:
            message = "expected the process that opened the Writer, found a child of it."
            raise OptionError(f"{self._out}: {message} Let each write a store, and merge these.")
        return self._build

    def _not_open(self) -> OptionError:
        advice = "Use each Writer in one block of its own: with tsds.Writer(...) as writer."
        return OptionError(f"{self._out}: the Writer is not open. {advice}")
