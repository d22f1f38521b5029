"""Append samples to a store, and update those that it has, from a source that has changed."""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import words
from tensorstore_ds.annex.editing.chosen import ChosenSource
from tensorstore_ds.annex.editing.compare import NAMED, SampleCount, differing_fields
from tensorstore_ds.annex.editing.edit import joined_stores
from tensorstore_ds.annex.editing.in_place import Changes, InPlace, Replaced, changing, remove_leftovers, summary_of
from tensorstore_ds.annex.editing.keys import StoreKeys
from tensorstore_ds.annex.editing.mentions import problems_of
from tensorstore_ds.annex.editing.rows import Piece
from tensorstore_ds.annex.editing.skipped import MoreSkipped, more_skipped, skipped_in
from tensorstore_ds.annex.editing.tombstones import Tombstones, image_bytes
from tensorstore_ds.archives import decompressing
from tensorstore_ds.conversion.blocks import NOTHING_LEFT
from tensorstore_ds.conversion.convert import check_all_apart, convert_source
from tensorstore_ds.conversion.crops import SOURCE_BOX
from tensorstore_ds.conversion.keywords import ConvertKeywords
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.partial import Partial
from tensorstore_ds.conversion.preparation import AnySource, open_any
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, in_notebook
from tensorstore_ds.durable import partial_of
from tensorstore_ds.errors import FormatError, OptionError, OutputError, Problem, SourceError, one_line
from tensorstore_ds.format.history import steps_of
from tensorstore_ds.format.joining import Numbers
from tensorstore_ds.format.kinds import ImageField, KeyField, LabelField, LabelsField, RaggedImageField
from tensorstore_ds.format.kinds.base import Field, first_of_kind, named
from tensorstore_ds.options import flags, from_flat, takes_options, with_changes
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sources.base import Source

#: New samples of a source that `update` converts to see whether they were moved, or twice as many as are gone.
_MOVED = 1000
#: Keys that are looked up together.
_KEYS = 8192
#: Kinds of samples of a source.
_NEW, _KNOWN, _ERASED = range(3)
_SEPARATE = "Convert the source to a separate store."
#: Options that a store's own tell nothing of, or that were for the samples of before.
_NOT_TAKEN_OVER = ("layout", "split_into", "split_by", "class_map", "encoding", "color")


@dataclass(frozen=True, slots=True)
class GrowthSummary(Summary):
    """Result of `append` or `update`. `rows` and `nbytes` describe the changed store.

    Attributes:
        left_out: skipped samples and boxes, and parts that are not samples, such as a file that is not an image.
        added: samples that were appended.
        updated: samples that were changed from the source.
        updated_fields: number of updated samples, by field.
        already_there: samples that are in the store with the same content.
        not_compared: samples that are in the store, and that `append` did not compare.
        not_added: samples of the source that are not in the store, and that `update` did not add.
        only_in_store: number of samples that are not in the source. They are kept.
        kept: keys of the first of these samples, at most 5.
        erased: samples of the source that were not stored, because they were erased from the store before.
        other_split: samples that are in another split of the source than of the store, which keeps them in theirs.
        moved: new samples with the image of a stored sample that is no longer in the source. The file was moved or
            renamed.
        moved_from: by the key of the first of these samples, the keys of the stored ones.
    """

    added: SampleCount = field(default_factory=SampleCount)
    updated: SampleCount = field(default_factory=SampleCount)
    updated_fields: Mapping[str, int] = field(default_factory=dict)
    already_there: SampleCount = field(default_factory=SampleCount)
    not_compared: SampleCount = field(default_factory=SampleCount)
    not_added: SampleCount = field(default_factory=SampleCount)
    only_in_store: int = 0
    kept: tuple[str, ...] = ()
    erased: SampleCount = field(default_factory=SampleCount)
    other_split: SampleCount = field(default_factory=SampleCount)
    moved: SampleCount = field(default_factory=SampleCount)
    moved_from: Mapping[str, str] = field(default_factory=dict)


@takes_options(ConvertOptions, default=...)
def append(
    store: str | os.PathLike[str],
    source: AnySource,
    *,
    update: bool = False,
    compare: bool = True,
    restore_erased: bool = False,
    dry_run: bool = False,
    progress: OnProgress | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> GrowthSummary:
    """Convert a source, and append its samples to a store as new shards. Files of existing shards do not change.

    >>> _ = Path("june/train/cat").mkdir(parents=True)
    >>> _ = Path("photos/train/cat/0.png").rename("june/train/cat/june.png")
    >>> summary = tsds.append("photos.tsds", "june")
    >>> summary.added, summary.rows
    (SampleCount(count=1, keys=['train/cat/june.png']), {'train': 9, 'val': 4})

    Samples whose keys are already in the store are compared with it. If the content is equal, the sample is skipped.
    Otherwise, an error is raised. The source may therefore be the folder that the store was made from, with new files.

    The fields, values of objects, classes and keypoints of both are combined. Missing values are unknown, and new
    classes follow the existing ones. Samples that were erased from the store are not appended, also under other keys.
    If the store gets a new field or value, all its shards are written again.

    The manifest is replaced last, in one step, which changes the digest. If you have the store open, you continue to
    see the old state. If you open it afterwards, you see the new samples. If the call is interrupted, the store does
    not change, and the same call continues after the shards that were already converted.

    Args:
        store: path of a store, a folder.
        source: path of a folder or file, a sequence or a data frame, as in `convert`.
        update: whether to update samples with the same keys but different content from the source, as `update` does.
        compare: if False, samples whose keys are in the store are skipped whatever their content is. They are not
            converted, which takes less time.
        restore_erased: whether to store samples that were erased with `erase` before. Their tombstones are removed.
        dry_run: if True, return what would be done, and do not change the store. The samples are converted
            nevertheless.
        progress: function that is called with the progress, as in `convert`.
        keywords: options of `ConvertOptions` by name, such as `key_prefix`, which changes the keys of the samples. All
            others are the options that the store was converted with.

    Returns:
        The changes, and the new size of the store.

    Raises:
        OptionError: a sample has the key of a different sample in the store, the fields or images cannot be combined,
            or the store is packed.
        SourceError: as in `convert`.
        FormatError: the store is damaged.
        ConversionError: the disk is full, or a different process is changing the store.
    """
    if update and not compare:
        raise OptionError("`update` compares the samples: leave out `compare`.")
    asked = progress or in_notebook(), keywords, restore_erased, dry_run
    return _Growing(store, source, *asked, adds=True, updates=update, compares=compare).run()


@takes_options(ConvertOptions, default=...)
def update(
    store: str | os.PathLike[str],
    source: AnySource,
    *,
    restore_erased: bool = False,
    dry_run: bool = False,
    progress: OnProgress | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> GrowthSummary:
    """Update the annotations and images of a store from a source, for the samples that have the same keys.

    >>> _ = Path("photos/train/cat/0.png").write_bytes(Path("photos/train/dog/3.png").read_bytes())
    >>> summary = tsds.update("photos.tsds", "photos")
    >>> summary.updated, summary.updated_fields
    (SampleCount(count=1, keys=['train/cat/0.png']), {'image': 1})

    The samples of the source are converted with the options of the store, and compared with the stored bytes. Fields,
    values of objects and samples that are missing in the source are kept. Samples that are missing in the store are
    counted, but not added. To do both, use `append` with ``update=True``. Samples that have moved to a different split,
    and files that were moved or renamed, are reported, and the store keeps them as they are.

    Only shards with changed samples are written again. In them, the files of unchanged fields are copied. The manifest
    is replaced last, in one step. If you have the store open, you continue to see the old state: replaced shards remain
    until the next `append`, `update`, `erase` or `drop_fields`.

    Args:
        store: path of a store, a folder.
        source: path of a folder or file, a sequence or a data frame, as in `convert`.
        restore_erased: whether a sample may get an image that was erased with `erase` before.
        dry_run: if True, return what would be done, and do not change the store. The samples are converted
            nevertheless.
        progress: function that is called with the progress, as in `convert`.
        keywords: options of `ConvertOptions` by name, as in `append`.

    Returns:
        The changes, and the new size of the store.

    Raises:
        OptionError, SourceError, FormatError, ConversionError: as in `append`.
    """
    asked = progress or in_notebook(), keywords, restore_erased, dry_run
    return _Growing(store, source, *asked, adds=False, updates=True, compares=True).run()


@dataclass
class _Growing:
    """One call of `append` or `update`."""

    store: str | os.PathLike[str]
    source: AnySource
    notify: OnProgress
    options: Mapping[str, Any]
    restores: bool
    dry_run: bool
    adds: bool  #: new samples; known ones are updated if `updates`, and compared if `compares`
    updates: bool
    compares: bool
    _unreadable: list[Problem] = field(default_factory=list)
    _notes: dict[str, None] = field(default_factory=dict)
    _goes_on: bool = True  # from what is all converted, if the call is interrupted or the machine refuses something
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> GrowthSummary:
        """Do the work of `append` and `update`."""
        source = self.source
        if isinstance(source, str | os.PathLike):
            _check_order(tidied(self.store), tidied(source))
        command = "append" if self.adds else "update"
        with changing(self.store, f"{command} the samples") as opened, decompressing():
            path = opened.path
            if not self.dry_run:
                opened, _ = remove_leftovers(opened)
            options = with_changes(_options(opened), self.options)
            options = replace(options, **self._of_format(opened, options))
            check_all_apart(source, path)
            if first_of_kind(opened.manifest.fields, KeyField) is None:
                raise OptionError(f"{path}: expected samples with keys, found none. Convert the source anew.")
            known = StoreKeys(opened)
            erased = Tombstones() if self.restores else Tombstones(opened.manifest.provenance)
            listed = _Listed(open_any(source, options), opened, known, erased)
            like = named(opened.manifest.fields, "image", RaggedImageField)
            called = one_line(listed.source.path.name)
            converting = partial(
                convert_source, notify=self.notify, like=like, check=partial(_check_images, opened, called)
            )
            wanted = {"known": listed.known if self.compares else {}, "new": listed.new}
            if not self.adds:  # they are looked at to see which of them were moved, unless they are too many
                are_few = listed.counted(listed.new).count <= max(_MOVED, 2 * listed.only_in_store)
                wanted["new"] = listed.new if are_few and listed.only_in_store and listed.known else {}
            folder = path.with_name(f"{path.name}.append")
            # finished shards, from which the same call goes on
            converted: dict[str, Summary] = {}
            work = Partial(
                folder,
                keeps=lambda: any(
                    partial_of(folder / name).exists() for name in wanted if self._goes_on or name not in converted
                ),
            )
            if not any(wanted.values()):
                work.remove_leftover()  # of a call that compared, and was interrupted
                return self._summary(opened, listed, _Found())
            for note in self._notes_of_options(opened, options, listed):
                self.notify(Progress("copy", 0, 0, 0, note))
            with work:
                work.remove_all_but({f"{name}.partial" for name in wanted})
                for name in [name for name in wanted if wanted[name]]:
                    is_new = name == "new" and self.adds
                    own = options if is_new else replace(options, split_into=None, split_by=None)
                    chosen = listed.chosen(wanted[name])
                    try:
                        if name == "new" and not self.adds:
                            own = replace(own, on_error="skip")
                        converted[name] = converting(chosen, folder / name, own)
                    except (SourceError, OptionError) as error:
                        if name == "new" and not self.adds:
                            continue  # `update` stores none of these
                        if not isinstance(error, SourceError) or error.advice != NOTHING_LEFT:
                            self._goes_on = False
                            raise
                        self._unreadable += error.problems  # all of these are bad, and are to be left out
                try:
                    summary = self._change(opened, converted, listed, known, called)
                except (OptionError, SourceError, FormatError, OutputError) as error:
                    is_full = isinstance(error, OutputError) and open_store(path).sha256 == opened.sha256
                    self._goes_on = is_full  # else the store has changed, or the same call would fail again
                    raise
                if note := work.end():
                    self.notify(Progress("copy", 0, 0, 0, note))
                    summary = replace(summary, notes=(*summary.notes, note))
                return summary

    def _of_format(self, store: Store, options: ConvertOptions) -> dict[str, Any]:
        """Options that only some formats read, as far as the caller did not give them."""
        opened = open_any(self.source, ConvertOptions(format=options.format, images=options.images, via=options.via))
        is_same = opened.name == store.manifest.provenance.get("source_format")
        fields = store.manifest.fields
        are_several = named(fields, "labels", LabelsField) and not named(fields, "label", LabelField)
        found = {
            "label_from": options.label_from if is_same else None,
            "multi_label": bool(are_several) and "multi_label" in opened.takes,
        }
        return {name: value for name, value in found.items() if name not in self.options}

    def _change(
        self, store: Store, converted: Mapping[str, Summary], listed: _Listed, known: StoreKeys, source: str
    ) -> GrowthSummary:
        """Compare newly converted samples with the samples of a store, and change the store."""
        others = {name: open_store(each.path) for name, each in converted.items()}
        looked_at = others.get("new")
        if not self.adds:
            others.pop("new", None)
            converted = {name: each for name, each in converted.items() if name != "new"}
        unused = {} if self.adds else _unused_classes(store, others.values())
        # a class that the store or the source has not met applies to none of its samples: both have the same classes
        joined = joined_stores([store, *others.values()], [store.name, *[source] * len(others)], unused, absent=0)
        numbers = dict(zip(others, joined.numbers[1:], strict=True))
        sources = {name: (others[name], numbers[name]) for name in others}
        tombstones = Tombstones(store.manifest.provenance)
        refused = Tombstones() if self.restores else tombstones
        found = _found((store, joined.numbers[0]), sources, known, joined.fields, refused)
        if found.differing.count and not self.updates:
            raise _taken(source, found)
        self._notes |= dict.fromkeys(note for summary in converted.values() for note in summary.notes)
        found.moved, found.moved_from = _moved(listed, looked_at, store)
        for note in _notes_of_moves(store, listed, found, adds=self.adds):
            self._keep(note)
        own = store.manifest.fields
        reshapes = any(name not in own or own[name].arrays != each.arrays for name, each in joined.fields.items())
        if found.changes.is_empty and not (self.updates and reshapes):
            return self._summary(store, listed, found, converted)
        for note in joined.notes:
            self._keep(note)
        if self.dry_run:
            return self._summary(store, listed, found, converted)
        step = {
            "command": "append" if self.adds else "update",
            "source": source,
            "rows": {name: len(rows) for name, rows in found.changes.added.items()},
            **({"updated": dict(found.counts)} if self.updates else {}),
        }
        skipped = self._skipped(store, others, listed, found, known, refused)
        changed = InPlace(store, joined.fields, found.changes, self.notify, skipped, joined.numbers[0])
        if self.restores and len(tombstones):
            new = ((name, row) for name, added in found.changes.added.items() for row in added.rows.tolist())
            images = (place for each in found.changes.replaced.values() for place in each.places("image"))
            for name, places in (("new", new), ("known", images)):
                if name in others:
                    tombstones.remove(others[name], places)
        summary = self._summary(store, listed, found, converted)  # it reads files, which may fail until the change
        manifest = changed.run(step, tombstones.noted)
        with suppress(OSError, FormatError):  # a disk that fails now undoes nothing
            if replaced := open_store(store.path).replaced[1]:
                note = f"the shards that were replaced ({words.size(replaced)}) stay for readers that have the store "
                self._keep(f"{note}open. The next append, update, erase or drop removes them.")
        done = summary_of(GrowthSummary, store.path, manifest, self._began, self._notes)
        return replace(summary, rows=done.rows, nbytes=done.nbytes, seconds=done.seconds, notes=done.notes)

    def _skipped(
        self,
        store: Store,
        others: Mapping[str, Store],
        listed: _Listed,
        found: _Found,
        known: StoreKeys,
        refused: Tombstones,
    ) -> MoreSkipped:
        """Changes of the list of skipped samples, which contains no sample that the store keeps or has erased."""
        skipped, left_out = list(self._unreadable), list[Problem]()
        for other in others.values():
            reasons = other.manifest.provenance["skipped"]
            for problem in skipped_in(other):
                (skipped if problem.reason in reasons else left_out).append(problem)
        told = [*dict.fromkeys(problem.where for problem in (*skipped, *left_out))]
        are_of_step = {
            where
            for where, (split, row) in zip(told, known.find(told), strict=True)
            if (found.differs(split, row) if split else self.adds and not refused.has_key(where.partition(":")[0]))
        }
        skipped, left_out = ([each for each in some if each.where in are_of_step] for some in (skipped, left_out))
        names = {*listed.keys(listed.erased), *found.erased}
        if SOURCE_BOX in store.manifest.fields:  # images without a stored crop
            images = {key.rpartition("#")[0] for key in names} - {""}
            for other in others.values() if images else ():
                keys = (other[name].key(row) for name in other for row in range(len(other[name])))
                images -= {key.rpartition("#")[0] for key in keys if key not in names}
            names |= images
        secret = problems_of(names, {*skipped, *left_out})
        skipped, left_out = ([each for each in some if each not in secret] for some in (skipped, left_out))
        before = [*dict.fromkeys(problem.where for problem in skipped_in(store))]
        stored = {key for key, place in zip(before, known.find(before), strict=True) if found.differs(*place)}
        if before and "new" in others:
            places = zip(before, StoreKeys(others["new"]).find(before), strict=True)
            added = found.changes.added
            stored |= {key for key, (split, row) in places if split in added and row in added[split].rows}
        return more_skipped(store, skipped, left_out, stored)

    def _summary(
        self, store: Store, listed: _Listed, found: _Found, converted: Mapping[str, Summary] = MappingProxyType({})
    ) -> GrowthSummary:
        skipped = Counter(problem.reason for problem in self._unreadable)
        for each in converted.values():
            skipped.update(each.skipped)
        listed_there = (problem for each in converted.values() for problem in skipped_in(open_store(each.path)))
        return summary_of(
            GrowthSummary,
            store.path,
            store.manifest,
            self._began,
            self._notes,
            skipped=dict(skipped),
            left_out=tuple(dict.fromkeys((*self._unreadable, *listed_there))),
            resumed=sum(each.resumed for each in converted.values()),
            added=found.added,
            updated=found.differing,
            updated_fields=dict(found.counts),
            already_there=found.same,
            not_compared=SampleCount() if self.compares else listed.counted(listed.known),
            not_added=SampleCount() if self.adds else listed.counted(listed.new),
            only_in_store=listed.only_in_store,
            kept=tuple(islice((store[name].key(int(row)) for name in store for row in listed.gone_in(name)), NAMED)),
            erased=SampleCount.of(chain(listed.keys(listed.erased), found.erased)),
            other_split=listed.other_split,
            moved=found.moved,
            moved_from=found.moved_from,
        )

    def _notes_of_options(self, store: Store, options: ConvertOptions, listed: _Listed) -> Iterator[str]:
        """Notes about options of the first conversion that this call does not repeat."""
        if not self.adds or not listed.new:
            return
        made = store.manifest.conversion_options
        if made.get("class_map") and not options.class_map:
            yield "the store was made with `class_map`, which new samples are not. Give it again to map their classes."
        shares = made.get("split_into")
        if shares and not options.split_into:
            went = ", ".join(f"{len(rows):,} to {name}" for name, rows in listed.new.items())
            given = ",".join(f"{name}={share}" for name, share in shares.items()) if isinstance(shares, Mapping) else ""
            yield (
                f"the store was made with `split_into`, and new samples are not divided: {went}. To divide them, give "
                f"`split_into` {given}."
            )

    def _keep(self, note: str) -> None:
        """Show a note now, and in the summary."""
        self._notes[note] = None
        self.notify(Progress("copy", 0, 0, 0, note))


@dataclass
class _Found:
    """Result of the comparison of a source with a store."""

    changes: Changes = field(default_factory=Changes)
    added: SampleCount = field(default_factory=SampleCount)
    same: SampleCount = field(default_factory=SampleCount)
    differing: SampleCount = field(default_factory=SampleCount)
    named: dict[str, list[str]] = field(default_factory=dict)  #: differing fields of the first of these, by key
    counts: Counter[str] = field(default_factory=Counter)  #: samples in which each field differs
    erased: list[str] = field(default_factory=list)
    moved: SampleCount = field(default_factory=SampleCount)
    moved_from: dict[str, str] = field(default_factory=dict)

    def note_differing(self, key: str, fields: list[str]) -> None:
        """Note a sample with fields that differ."""
        self.differing.add(key)
        self.counts.update(fields)
        if len(self.named) < NAMED:
            self.named[key] = fields

    def differs(self, split: str, row: int) -> bool:
        """Whether a sample of the store differs from the source."""
        return split in self.changes.replaced and bool(self.changes.replaced[split].owners[row] >= 0)


#: Places of samples in a source, in order, for each split that has some.
_Places = dict[str, NDArray[np.int64]]


class _Listed:
    """The samples of a source, each as its split and its position there."""

    def __init__(self, source: Source, store: Store, known: StoreKeys, tombstones: Tombstones) -> None:
        self.source = source
        self._contents = source.contents()
        self.new, self.known = _Places(), _Places()
        self.erased = _Places()  # new samples whose keys were erased from the store
        self.other_split = SampleCount()
        self.first_other = ("", "")  # splits of the first of these, in the store and in the source
        self._seen = {name: np.zeros(len(store[name]), np.bool_) for name in store}
        for name, listed in self._contents.splits.items():
            kinds, keys = bytearray(), (source.key(name, each) for each in listed)
            while some := list(islice(keys, _KEYS)):
                owners, rows = known.places(name, some)
                some_kinds = np.where(rows >= 0, _KNOWN, _NEW).astype(np.uint8)
                for i in np.flatnonzero(rows < 0).tolist() if len(tombstones) else ():
                    some_kinds[i] = _ERASED if tombstones.has_key(some[i]) else _NEW
                kinds += some_kinds.tobytes()
                for owner in np.unique(owners[rows >= 0]).tolist():
                    self._note_known(name, known.splits[owner], rows, owners == owner, some)
            found = np.frombuffer(bytes(kinds), np.uint8)
            for kind, places in ((_NEW, self.new), (_KNOWN, self.known), (_ERASED, self.erased)):
                if (found == kind).any():
                    places[name] = np.flatnonzero(found == kind)
        self.only_in_store = sum(int((~seen).sum()) for seen in self._seen.values())

    def _note_known(
        self, name: str, split: str, rows: NDArray[np.int64], own: NDArray[np.bool_], keys: Sequence[str]
    ) -> None:
        """Note the samples of one split of the source that one split of the store contains."""
        self._seen[split][rows[own]] = True
        # If the samples of the store were divided anew, its splits tell nothing about the splits of the source.
        if split != name and name in self._seen and split in self._contents.splits:
            self.first_other = self.first_other if self.other_split.count else (split, name)
            self.other_split.add_rows(np.flatnonzero(own), keys.__getitem__)

    def gone_in(self, split: str) -> NDArray[np.int64]:
        """The rows of a split of the store that the source lacks."""
        return np.flatnonzero(~self._seen[split])

    def keys(self, places: _Places) -> Iterator[str]:
        """The keys of some samples."""
        splits = self._contents.splits
        return (self.source.key(name, splits[name][i]) for name, some in places.items() for i in some.tolist())

    def counted(self, places: _Places) -> SampleCount:
        """Number of samples, and the first one."""
        return SampleCount(sum(map(len, places.values())), list(islice(self.keys(places), NAMED)))

    def chosen(self, places: _Places) -> Source:
        """A source of some of the samples."""
        return ChosenSource(self.source, self._contents, places)


def _found(
    own: tuple[Store, Numbers],
    sources: Mapping[str, tuple[Store, Numbers]],
    known: StoreKeys,
    fields: Mapping[str, Field],
    tombstones: Tombstones,
) -> _Found:
    """Compare new samples, and those that another store has, with a store."""
    found, (store, numbers) = _Found(), own
    if "new" in sources:
        _note_new(found, *sources["new"], tombstones)
    if "known" not in sources:
        return found
    other, others = sources["known"]
    splits = [Piece(other, name, np.empty(0, np.int64), others) for name in other]
    for owner, name in enumerate(other):
        for start in range(0, len(other[name]), _KEYS):
            keys = [other[name].key(row) for row in range(start, min(start + _KEYS, len(other[name])))]
            for row, (key, place) in enumerate(zip(keys, known.find(keys, name), strict=True), start):
                differing = differing_fields((store, *place, numbers), (other, name, row, others), fields)
                if not differing:
                    found.same.add(key)
                elif "image" in differing and tombstones.has_image(other, name, row):
                    found.erased.append(key)
                else:
                    if not found.differs(*place):  # two splits of the source may have one sample of the store
                        found.note_differing(key, differing)
                    replaced = found.changes.replaced
                    if place[0] not in replaced:
                        replaced[place[0]] = Replaced(len(store[place[0]]), splits)
                    replaced[place[0]].put(place[1], (owner, row), differing)
    return found


def _note_new(found: _Found, new: Store, numbers: Numbers, tombstones: Tombstones) -> None:
    """Note the samples of a store as new, except those whose image was erased before."""
    for name in new:
        is_new = np.ones(len(new[name]), np.bool_)
        for row in range(len(is_new)) if len(tombstones) else ():
            if tombstones.has_image(new, name, row):
                found.erased.append(new[name].key(row))
                is_new[row] = False
        if is_new.any():
            found.changes.added[name] = Piece(new, name, np.flatnonzero(is_new), numbers)
            found.added.add_rows(found.changes.added[name].rows, new[name].key)


def _moved(listed: _Listed, new: Store | None, store: Store) -> tuple[SampleCount, dict[str, str]]:
    """Count new samples with the image of a sample that the source lacks, and map the first keys to the old keys."""
    found, pairs = SampleCount(), dict[str, str]()
    if not listed.known or not listed.only_in_store or new is None:  # in an unrelated source, each could be one
        return found, pairs
    sizes = np.unique(np.concatenate([_sizes(new, name) for name in new]))
    prints = {name: np.array([_print(new, name, row) for row in range(len(new[name]))], np.uint64) for name in new}
    gone, places = array("Q"), array("q")
    splits = [*store]
    for i, split in enumerate(splits):
        rows = listed.gone_in(split)
        for row in rows[np.isin(_sizes(store, split)[rows], sizes)].tolist():
            gone.append(_print(store, split, row))
            places.extend((i, row))
    gone_prints = np.frombuffer(gone, np.uint64)
    for name in new:
        moved = np.flatnonzero(np.isin(prints[name], gone_prints))
        for row in moved[: NAMED - len(pairs)].tolist():
            key, olds = new[name].key(row), dict[str, str]()
            for place in np.flatnonzero(gone_prints == prints[name][row]).tolist():
                old = store[splits[places[2 * place]]].key(places[2 * place + 1])
                olds.setdefault(PurePosixPath(old).name, old)
            pairs[key] = olds.get(PurePosixPath(key).name) or next(iter(olds.values()))
        found.add_rows(moved, new[name].key)
    return found, pairs


def _print(store: Store, split: str, row: int) -> int:
    """Hash of the stored image of a row. Stores that can grow have images."""
    return int.from_bytes(hashlib.blake2b(image_bytes(store, split, row) or b"", digest_size=8).digest())


def _sizes(store: Store, split: str) -> NDArray[np.int64]:
    """(n,) bytes of the stored images of a split, known without reading them; 0 if all have one size."""
    name = first_of_kind(store.manifest.fields, ImageField)
    column = store[split][name] if name else None
    return np.diff(column.offsets) if isinstance(column, RaggedColumn) else np.zeros(len(store[split]), np.int64)


def _notes_of_moves(store: Store, listed: _Listed, found: _Found, *, adds: bool) -> Iterator[str]:
    """Notes about samples that seem to have been moved to a different split, folder or name."""
    options = store.manifest.conversion_options
    divided = options.get("split_into") or any(
        each.get("command") == "split" for each in steps_of(store.manifest.provenance)
    )
    if divided:
        listed.other_split = SampleCount()
    if count := listed.other_split.count:
        key, (before, now) = listed.other_split.keys[0], listed.first_other
        yield (
            f"{count:,} {'samples are' if count > 1 else 'sample is'} in a different split in the source, such as "
            f"{key} ({before} in the store, {now} in the source). The store keeps its splits: convert the source "
            "again to change them."
        )
    if count := found.moved.count:
        key, old = next(iter(found.moved_from.items()))
        some = "samples have the images of stored samples" if count > 1 else "sample has the image of a stored sample"
        what = f"{count:,} new {some} that the source no longer contains, such as {key} (stored as {old})"
        advice = "convert the source again to drop the old samples"
        if adds and count <= NAMED:
            advice = f"drop the old samples with tsds filter, condition: key not in {[*found.moved_from.values()]}"
        stays = "The store keeps both" if adds else "The store keeps the old ones"
        yield f"{what}. {stays}. If you moved or renamed the files, {advice}."


def _taken(source: str, found: _Found) -> OptionError:
    """The error for samples whose keys belong to other samples."""
    named = [f"{key} ({', '.join(differing)})" for key, differing in found.named.items()]
    count = found.differing.count
    more = f" and {count - NAMED:,} more" if count > NAMED else ""
    return OptionError(
        f"{source}: expected new samples, or samples as the store has them, found {count:,} that differ from the "
        f"stored {'sample' if count == 1 else 'samples'} with the same {'key' if count == 1 else 'keys'}: "
        f"{', '.join(named)}{more}. Pass `update` to replace the stored samples, or `key_prefix` to append all samples "
        "under other keys."
    )


def _unused_classes(store: Store, others: Iterable[Store]) -> dict[str, str]:
    """A class map that removes the classes that the store lacks and no sample of the others uses."""
    used = {each for field in store.manifest.fields.values() for each in field.classes}
    unused = set[str]()
    for other in others:
        for name, each in other.manifest.fields.items():
            unused |= set(each.classes)
            for split in other:
                used |= {found for found, count in other[split].class_counts.get(name, {}).items() if count}
    return dict.fromkeys(unused - used, "")


def _check_images(store: Store, source: str, found: Field) -> None:
    """Raise an error if the store has pixels of one size, and the source would add other sizes."""
    image = store.manifest.fields["image"]
    if image.one_shape is None or found.encoding != "raw" or found == image:
        return
    height, width, channels = image.one_shape
    color = {1: "gray", 3: "rgb", 4: "rgba"}.get(channels)
    what = "images of several sizes" if found.one_shape is None else found.describe()
    if found.dtype != image.dtype:
        raise OptionError(f"{source}: expected {image.describe()} as in {store.name}, found {what}. {_SEPARATE}")
    advice = f"Pass `size=({height}, {width})`" + (f' and `color="{color}"`' if color else "")
    message = f"expected images of {height}x{width} (height x width) as in {store.name}, found {what}."
    raise OptionError(f"{source}: {message} {advice}.")


def _check_order(path: Path, source: Path) -> None:
    """Raise an error if the arguments are swapped, or both are stores."""
    is_store, is_other = ((each / "zarr.json").is_file() for each in (path, source))
    if is_other and not is_store:
        message = (
            f"expected the store first and the source second, found them in the other order ({source} is a store)."
        )
        raise OptionError(f"{path}: {message} Swap them.")
    if is_other:
        raise OptionError(
            f"{source}: expected a data set to convert, found a store. Put stores together with tsds merge."
        )


def _options(store: Store) -> ConvertOptions:
    """The options that a store was converted with, as far as its provenance records them."""
    known = flags(ConvertOptions)
    recorded = {
        name: value
        for name, value in store.manifest.conversion_options.items()
        if name in known and name not in _NOT_TAKEN_OVER and value is not None
    }
    if recorded.get("check") not in known["check"].choices:  # a word of an earlier version
        recorded.pop("check", None)
    image = store.manifest.fields.get("image")
    if image is None or not image.encoding:
        found = "no field image" if image is None else image.describe()
        raise OptionError(f"{store.path}: expected images, found {found}. {_SEPARATE}")
    if image.encoding == "smart":
        advice = 'Repack it with `encoding="jpeg"` or `encoding="raw"` first.'
        raise OptionError(f"{store.path}: expected another encoding of images, found smart. {advice}")
    recorded["encoding"] = image.encoding
    if image.encoding != "source":
        split = next(store[name] for name in store if len(store[name]))
        recorded["color"] = {1: "gray", 3: "rgb", 4: "rgba"}.get(int(split.image_shapes[0, 2]), "auto")
    return ConvertOptions(**from_flat(ConvertOptions, {**recorded, "layout": store.layout}, strict=set()))
