"""What differs between two stores, sample by sample."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.keys import key_table
from tensorstore_ds.annex.editing.rows import opened_for_editing, reading_progress
from tensorstore_ds.conversion.result import OnProgress, Progress, in_notebook
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.joining import class_numbers
from tensorstore_ds.format.kinds import LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, equal
from tensorstore_ds.format.kinds.key_index import KeyIndex, key_pieces
from tensorstore_ds.reading.columns import Column, RaggedColumn, spans
from tensorstore_ds.reading.store import Split, Store, open as open_store
from tensorstore_ds.reading.stored_images import decode_stored
from tensorstore_ds.reading.verification import require_whole

#: How samples are matched.
By = Literal["key", "row"]

_ROWS = 256  # compared together
#: Number of keys listed for each difference.
NAMED = 5


@dataclass
class SampleCount:
    """Number of samples, and the keys of the first ones.

    Attributes:
        count: number of samples.
        keys: keys of the first 5 of them.
    """

    count: int = 0
    keys: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, keys: Iterable[str]) -> Self:
        """Samples with these keys."""
        made = cls()
        for key in keys:
            made.add(key)
        return made

    def add(self, *keys: str) -> None:
        """Count samples."""
        self.count += len(keys)
        self.keys += keys[: NAMED - len(self.keys)]

    def add_rows(self, rows: Sequence[int] | NDArray[np.int64], key: Callable[[int], str]) -> None:
        """Count the samples of some rows, whose keys a function knows."""
        self.keys += [key(int(row)) for row in rows[: NAMED - len(self.keys)]]
        self.count += len(rows)


@dataclass
class SplitDifference:
    """Differences of a split.

    Attributes:
        both: number of samples that are in both stores, by their keys.
        only_first: samples that are only in the first store.
        only_second: samples that are only in the second store.
        fields: samples with different values, by the name of the field. For images, ``NAME`` counts different pixels,
            and ``NAME (file)`` counts different files with equal pixels.
        may_differ: samples whose values were not read and are in files with different digests, by the name of the
            field. It is empty unless `compare_stores` was called with `quick`.
        classes: number of samples of each class among `only_first`, `only_second` and `changed`, the samples of
            `fields` with their classes in the first store. A sample counts for each class of its objects.
    """

    both: int = 0
    only_first: SampleCount = field(default_factory=SampleCount)
    only_second: SampleCount = field(default_factory=SampleCount)
    fields: dict[str, SampleCount] = field(default_factory=dict)
    may_differ: dict[str, SampleCount] = field(default_factory=dict)
    classes: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there are no differences in this split."""
        return not (self.only_first.count or self.only_second.count or self.fields or self.may_differ)

    def note_classes(self, what: str, split: Split, rows: NDArray[np.int64]) -> None:
        """Count the classes of some samples, if they have any."""
        if counts := _class_counts(split, rows):
            self.classes[what] = counts


@dataclass
class StoreDifference:
    """Result of `compare_stores`.

    Attributes:
        is_same: whether both stores have the same digest. All their bytes are then equal.
        fields: lines about fields that differ in name, type or classes.
        splits: differences of each split.
    """

    is_same: bool
    fields: list[str] = field(default_factory=list)
    splits: dict[str, SplitDifference] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether both stores contain the same samples, even if they are stored differently."""
        return not self.fields and all(split.is_empty for split in self.splits.values())


def compare_stores(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    by: By = "key",
    quick: bool = False,
    progress: OnProgress | None = None,
) -> StoreDifference:
    """Compare the fields and samples of two stores. Samples are matched by key, or by row if there are no keys.

    >>> tsds.editing.relabel_store("photos.tsds", "other.tsds", {"cat": "tiger"}).rows["train"]
    8
    >>> found = tsds.editing.compare_stores("photos.tsds", "other.tsds")
    >>> found.is_same, found.splits["train"].both, found.splits["train"].fields["label"].count
    (False, 8, 4)

    Labels are compared by the names of their classes. If the bytes of two images differ, their pixels are compared.
    Layouts, shards, statistics and provenance are not compared. Files with the same digest are read only to verify
    them.

    Args:
        first: path or URL of the first store.
        second: path or URL of the second store.
        by: ``key``, or ``row`` to match samples at the same row of the same split, whatever their keys are. Use ``row``
            to compare a store with a store that was converted from its export.
        quick: Compare the recorded digests of files instead of values, and verify nothing. Only keys, and the labels
            of differing samples, are read. A store by URL downloads just these. A digest covers a field of a whole
            shard, so `SplitDifference.may_differ` also counts equal samples.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: `by` is neither ``key`` nor ``row``.
        FormatError: a store is damaged.
        SourceError: an image cannot be decoded.
    """
    if by not in get_args(By):
        raise OptionError(f"`by`: expected key or row, found {by!r}.")
    notify = progress or in_notebook()
    if quick:
        one, other = open_store(first), open_store(second)
    else:
        one, other = opened_for_editing(first, notify), opened_for_editing(second, notify)
        for store in (one, other):
            require_whole(store, "Copy the store again.", reading_progress(notify))
    found = StoreDifference(one.sha256 == other.sha256, list(_fields(one, other)))
    total, done = sum(len(one[name]) for name in one), 0
    for name in dict.fromkeys((*one, *other)):
        found.splits[name] = split = SplitDifference()
        pairs = _pairs(one, other, name, split, by)
        unequal = _unequal((one, other), name, pairs) if len(pairs) else {}
        changed = np.zeros(len(pairs), np.bool_)
        for start in range(0, len(pairs), _ROWS):
            part = slice(start, start + _ROWS)
            unsure = {field: np.flatnonzero(rows[part]) for field, rows in unequal.items() if rows[part].any()}
            if quick:
                for field, some in unsure.items():
                    unread = split.may_differ.setdefault(field, SampleCount())
                    unread.add_rows(pairs[part][some, 0], partial(_named_row, one[name], by))
            elif unsure:
                changed[part] = _compare(one[name], other[name], pairs[part], unsure, split, by)
            done += len(pairs[part])
            notify(Progress("compare", done, total))
        if changed.any():
            split.note_classes("changed", one[name], pairs[changed, 0])
    return found


def _fields(one: Store, other: Store) -> Iterator[str]:
    """A line for each field, or value of objects, that differs."""
    first, second = one.manifest.fields, other.manifest.fields
    for name in dict.fromkeys((*first, *second)):
        if name not in first or name not in second:
            yield f"{name}: only in the {'first' if name in first else 'second'}"
            continue
        a, b = first[name], second[name]
        if a.dump()["kind"] != b.dump()["kind"]:
            yield f"{name}: {a.describe()}, and {b.describe()}"
            continue
        values, others = a.names.get("values", ()), b.names.get("values", ())
        for value in dict.fromkeys((*values, *others)):
            if value not in values or value not in others:
                yield f"{name}.{value}: only in the {'first' if value in values else 'second'}"
        points = a.names.get("keypoints", ()), b.names.get("keypoints", ())
        for what, (own, theirs) in (("classes", (a.classes, b.classes)), ("keypoints", points)):
            only = {"first": sorted(set(own) - set(theirs))[:NAMED], "second": sorted(set(theirs) - set(own))[:NAMED]}
            if parts := [f"only in the {which} {', '.join(some)}" for which, some in only.items() if some]:
                yield f"{name}: {what} {'; '.join(parts)}"
        if not a.joins_classes and a.classes != b.classes and set(a.classes) == set(b.classes):
            yield f"{name}: classes in another order, so that numbers mean others"


def _pairs(one: Store, other: Store, name: str, split: SplitDifference, by: By) -> NDArray[np.int64]:
    """(n, 2) the rows of each sample in both stores; samples of only one store are noted."""
    splits = [store[name] for store in (one, other) if name in store]
    tables = [key_table(each) if by == "key" else None for each in splits]
    pairs = np.empty((0, 2), np.int64)
    if len(splits) == 2:
        first, second = tables
        if first is not None and second is not None:
            pairs = np.concatenate([*_pairs_by_key((one, other), name, first, second)])
            pairs = pairs[pairs[:, 0].argsort()]
        elif first is second:  # neither has keys
            pairs = np.repeat(np.arange(min(map(len, splits)))[:, None], 2, 1)
    split.both = len(pairs)
    for each in splits:
        is_first = each is splits[0] and name in one
        is_alone = np.ones(len(each), np.bool_)
        is_alone[pairs[:, 0 if is_first else 1]] = False
        if is_alone.any():
            lonely, rows = (split.only_first if is_first else split.only_second), np.flatnonzero(is_alone)
            lonely.add_rows(rows, partial(_named_row, each, by))
            split.note_classes("only_first" if is_first else "only_second", each, rows)
    return pairs


def _pairs_by_key(stores: tuple[Store, Store], name: str, *tables: RaggedColumn) -> Iterator[NDArray[np.int64]]:
    """(n, 2) the rows of each key that is in both tables, in blocks. The keys of equal shards are not read."""
    splits = [store[name] for store in stores]
    places = [{shard.sha256: i for i, shard in enumerate(store.manifest.splits[name].shards)} for store in stores]
    equal = [sha256 for sha256 in places[0] if sha256 in places[1]]
    left: list[NDArray[np.int64]] = []
    found: list[NDArray[np.int64]] = []
    for split, at in zip(splits, places, strict=True):
        shards = np.array([at[sha256] for sha256 in equal], np.int64)
        found.append(spans(split.starts[shards], split.starts[shards + 1]))
        left.append(np.setdiff1d(np.arange(len(split)), found[-1], assume_unique=True))
    yield np.stack(found, 1)
    if not (len(left[0]) and len(left[1])):
        return
    first, second = (
        table if len(rows) == len(table) else table.take(rows) for table, rows in zip(tables, left, strict=True)
    )
    index = KeyIndex(second)
    for start, keys in key_pieces(first):
        rows = index.find(keys)
        known = np.flatnonzero(rows >= 0)
        yield np.stack([left[0][start + known], left[1][rows[known]]], 1)


def _unequal(stores: tuple[Store, Store], name: str, pairs: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Which pairs (n,) may have different values, by field: all except the same row of files with equal digests."""
    starts = [store[name].starts for store in stores]
    places = [each.searchsorted(rows, "right") - 1 for each, rows in zip(starts, pairs.T, strict=True)]
    moved = pairs[:, 0] - starts[0][places[0]] != pairs[:, 1] - starts[1][places[1]]
    numbers, which = np.unique(places[0] * len(starts[1]) + places[1], return_inverse=True)
    equal = [_equal_fields(stores, name, *divmod(number, len(starts[1]))) for number in numbers.tolist()]
    fields, others = (store.manifest.fields for store in stores)
    return {
        field: moved | ~np.array([field in each for each in equal])[which]
        for field in fields
        if field in others and not fields[field].is_key
    }


def _equal_fields(stores: tuple[Store, Store], name: str, *shards: int) -> set[str]:
    """Names of the fields whose values have the same bytes and meaning in a shard of each store."""
    fields, others = (store.manifest.fields for store in stores)
    alike = {each for each in fields if each in others and _have_like_numbers(fields[each], others[each])}
    entries = [store.manifest.splits[name].shards[shard] for store, shard in zip(stores, shards, strict=True)]
    if entries[0].sha256 == entries[1].sha256:
        return alike
    listings = [store.listing(name, shard) for store, shard in zip(stores, shards, strict=True)]
    first, second = ({path: file.sha256 for path, file in each.items()} for each in listings)
    differing = {path.partition("/")[0] for path in first.keys() | second.keys() if first.get(path) != second.get(path)}
    return alike - differing


def _have_like_numbers(each: Field, theirs: Field) -> bool:
    """Whether a number stands for the same class in both fields, if it is in both, and keypoints have one order."""
    if type(each) is not type(theirs) or each.names.get("keypoints") != theirs.names.get("keypoints"):
        return False
    return all(a == b for a, b in zip(each.classes, theirs.classes, strict=False))


def _class_counts(split: Split, rows: NDArray[np.int64]) -> dict[str, int]:
    """Number of these samples with each class that occurs; empty if the split has no classes."""
    name = split.first(LabelField) or split.first(LabelsField) or split.first(ObjectsField)
    if name is None or not split.fields[name].classes:
        return {}
    field = split.fields[name]
    owners, labels = field.class_rows(split[name].take(rows))
    if owners is not None:  # a sample counts once for each class
        labels = np.unique(np.stack([owners, labels], 1), axis=0)[:, 1]
    counts = np.bincount(labels[labels >= 0], minlength=len(field.classes)).tolist()
    return {one: count for one, count in zip(field.classes, counts, strict=True) if count}


def _named_row(split: Split, by: By, row: int) -> str:
    """How a difference names a sample."""
    return split.key(row) if by == "key" and key_table(split) is not None else f"row {row}"


def _compare(
    one: Split,
    other: Split,
    rows: NDArray[np.int64],
    unsure: Mapping[str, NDArray[np.int64]],
    split: SplitDifference,
    by: By,
) -> NDArray[np.bool_]:
    """Compare the rows that may differ (`unsure`, by field), count differences, and return which rows differ."""
    called, changed = partial(_named_row, one, by), np.zeros(len(rows), np.bool_)
    for name, some in unsure.items():
        pairs, each, theirs = rows[some], one.fields[name], other.fields[name]
        a, b = one[name], other[name]
        both, numbers = _united(each, theirs)
        is_like = isinstance(a, Column) and isinstance(b, Column) and a.spec.shape == b.spec.shape
        is_like |= all(each is not None for each in numbers)
        if isinstance(a, Column) and isinstance(b, Column) and a.dtype == b.dtype and is_like:
            stored = a.take(pairs[:, 0]), b.take(pairs[:, 1])
            left, right = (
                values if new is None else both.renumbered(values, new)
                for values, new in zip(stored, numbers, strict=True)
            )
            same = (left == right) | ((left != left) & (right != right))  # NaN
            wrong = np.flatnonzero(~same.reshape(len(pairs), -1).all(axis=1))
            if len(wrong):
                split.fields.setdefault(name, SampleCount()).add_rows(pairs[wrong, 0], called)
                changed[some[wrong]] = True
            continue
        for place, (first, second) in zip(some.tolist(), pairs.tolist(), strict=True):
            key = called(first)
            what = _difference(name, one, first, other, second, f"{one.name}/{key}")
            if what:
                split.fields.setdefault(what, SampleCount()).add(key)
                changed[place] = True
    return changed


def _difference(name: str, one: Split, first: int, other: Split, second: int, key: str) -> str:
    """The name under which a differing value is counted; empty if the values are equal."""
    a, b = one[name][first], other[name][second]
    field = one.fields[name]
    if field.encoding and other.fields[name].encoding:  # and neither is of an encoding of the future
        if isinstance(a, bytes) and isinstance(b, bytes) and a == b:
            return ""
        left, right = (decode_stored(each, key=key) if isinstance(each, bytes) else each for each in (a, b))
        is_same = left.shape == right.shape and np.array_equal(left, right)
        return name if not is_same else f"{name} (file)" if isinstance(a, bytes) and isinstance(b, bytes) else ""
    both, (new_a, new_b) = _united(field, other.fields[name])
    a, b = _renumbered(both, a, new_a), _renumbered(both, b, new_b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        a, b = ({value: each[value] for value in a.keys() & b.keys()} for each in (a, b))
        if isinstance(field, ObjectsField) and isinstance(theirs := other.fields[name], ObjectsField):
            a, b = _with_common_keypoints(field, a, theirs, b)
    return "" if equal(a, b) else name


def _with_common_keypoints(
    each: ObjectsField, own: Mapping[str, Any], theirs: ObjectsField, other: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Values of objects with the keypoints that both fields have, in one order."""
    names = tuple(name for name in each.keypoints if name in theirs.keypoints)
    common = ObjectsField.of("keypoints", "visibility", keypoints=names)
    for its, values in ((each, own), (theirs, other)):
        count = len(next(iter(values.values()), ()))
        yield {value: common.value_of(value, its, values, count) for value in values}


def _united(each: Field, theirs: Field) -> tuple[Field, list[NDArray[np.int64] | None]]:
    """A field with the classes of both, and the new numbers of the classes of each, None where they do not change."""
    if type(each) is not type(theirs):
        return each, [None, None]
    both = each.united(theirs)
    return both, [class_numbers({"": own}, {"": both}, {}).get("") for own in (each, theirs)]


#: A store, a split of it, a row of that, and the new numbers of the store's classes, as `JoinedFields.numbers`.
Row = tuple[Store, str, int, Mapping[str, NDArray[np.int64]]]


def differing_fields(one: Row, other: Row, joined: Mapping[str, Field]) -> list[str]:
    """Fields of the second row whose stored values differ from those of the first row.

    Both stores have the `joined` fields. Fields that the first lacks are unknown there; fields that the second lacks
    are not compared. Images are not decoded: encoders make the same bytes of the same pixels.
    """
    (store, split, a, numbers), (other_store, other_split, b, others) = one, other
    first, second = store[split], other_store[other_split]
    found = []
    for name, each in second.fields.items():
        own, value = first.fields.get(name), second[name][b]
        if each.is_key:
            continue
        if own is None:
            same = each.is_unknown(value)
        else:
            known = _renumbered(joined[name], first[name][a], numbers.get(name))
            same = each.is_known(_renumbered(joined[name], value, others.get(name)), own, known)
        if not same:
            found.append(name)
    return found


def _renumbered(field: Field, value: Any, numbers: NDArray[np.int64] | None) -> Any:
    """A value, renumbered to the classes of a joined field."""
    if numbers is None:
        return value
    is_table = isinstance(value, Mapping)
    return field.renumbered(value, numbers) if is_table else field.renumbered(np.asarray(value)[None], numbers)[0]
