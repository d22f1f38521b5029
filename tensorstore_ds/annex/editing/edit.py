"""Filter, divide, sample, relabel and merge stores."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.compare import SampleCount, differing_fields
from tensorstore_ds.annex.editing.expression import Condition
from tensorstore_ds.annex.editing.keys import first_found, key_table
from tensorstore_ds.annex.editing.rows import Piece, opened_for_editing, write_store
from tensorstore_ds.annex.editing.tombstones import Tombstones
from tensorstore_ds.conversion.crops import SOURCE_BOX
from tensorstore_ds.conversion.groups import DUPLICATES, check_finds, key_group
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import in_order, share_rows
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, in_notebook
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.joining import FieldsDifferError, JoinedFields, Side, join_fields
from tensorstore_ds.format.kinds import ImageField, LabelField, LabelsField
from tensorstore_ds.format.kinds.base import first_of_kind
from tensorstore_ds.format.kinds.key_index import KeyIndex, key_pieces
from tensorstore_ds.format.kinds.labels import NOT_KNOWN
from tensorstore_ds.options import declarations, refusal
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.reading.store_files import check_outside_stores
from tensorstore_ds.reading.stored_images import check_depths
from tensorstore_ds.regular_files import tidied

PathLike = str | os.PathLike[str]

#: Recorded in the provenance, so it must be an integer that metadata can hold.
_SEED = declarations(ConvertOptions)["seed"]
#: Rows whose labels are read together.
_STRATA_ROWS = 4096
_PER_CLASS = replace(_SEED, name="per_class", at_least=1)


def filter_store(
    store: PathLike,
    out: PathLike,
    where: str | None = None,
    *,
    splits: Collection[str] | None = None,
    rows: Mapping[str, Sequence[int]] | None = None,
    drop: Mapping[str, Sequence[int]] | None = None,
    sha256: str | None = None,
    progress: OnProgress | None = None,
) -> Summary:
    """Write a new store with the samples that meet a condition. Images are not decoded.

    >>> tsds.editing.filter_store("photos.tsds", "cats.tsds", "label == 'cat' and width > 20").rows
    {'train': 4, 'val': 2}

    Args:
        store: path or URL of the store.
        out: path of the new store, which must not exist.
        where: condition in a subset of Python's syntax. It can use ``key``, ``label``, ``width``, ``height``,
            ``objects`` (their number), ``classes`` (of the objects) and every field with one number per sample. None
            keeps all.
        splits: names of the splits to keep. None keeps all.
        rows: rows to keep, by split, such as the result of `find_keys`. None keeps all.
        drop: rows to remove, by split.
        sha256: expected digest of the store or of its content, such as `CheckFindings.sha256` for the rows of `drop`.
            None accepts any store.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: `where` is not a valid condition, a column, split or row does not exist, or no sample meets the
            condition.
        FormatError: the store is damaged, or has a different digest than `sha256`.
        StoreExistsError: `out` exists.
        ConversionError: the disk is full.
    """
    notify = progress or in_notebook()
    opened, target = opened_for_editing(store, notify, sha256), tidied(out)
    condition, names = None if where is None else Condition(where), chosen_splits(opened, splits)
    chosen_splits(opened, drop)
    chosen_splits(opened, rows)
    pieces = {}
    for name in names:
        kept = np.arange(len(opened[name])) if condition is None else condition.rows(opened[name])
        if rows is not None:
            kept = np.intersect1d(kept, listed_rows(opened[name], rows, "keep"))
        pieces[name] = [Piece(opened, name, np.setdiff1d(kept, listed_rows(opened[name], drop or {}, "leave out")))]
    if condition is not None and not any(len(piece.rows) for each in pieces.values() for piece in each):
        raise condition.no_sample_meets(opened.manifest.fields)
    step = {"command": "filter", "where": where, "splits": list(names), "dropped": sum(map(len, (drop or {}).values()))}
    step |= {} if rows is None else {"listed": sum(map(len, rows.values()))}
    return write_store(target, pieces, opened.manifest.fields, step, notify)


def split_store(
    store: PathLike,
    out: PathLike,
    shares: Mapping[str, float],
    *,
    seed: int = 0,
    group_by: str | None = None,
    progress: OnProgress | None = None,
) -> Summary:
    """Write a new store with all samples divided into new splits, with each class in these proportions.

    >>> tsds.editing.split_store("photos.tsds", "divided.tsds", {"train": 0.5, "test": 0.5}).rows
    {'train': 6, 'test': 6}

    Images are not decoded. If samples have several labels, the rarest label of each counts. Samples are assigned by a
    hash of the seed and their key, as in `convert`, so the same samples always get the same splits. If splits have keys
    in common, each key is prefixed with the name of its old split, and a note reports this.

    Args:
        store: path or URL of the store.
        out: path of the new store, which must not exist.
        shares: fractions of the new splits by name, such as ``{"train": 0.9, "val": 0.1}``.
        seed: seed of the division.
        group_by: keeps related samples in one split, so that splits do not leak into each other: ``folder``, images of
            one folder; ``duplicates``, images with equal pixels or bytes; the name of a field with one number per
            sample; or a regular expression, samples in whose keys it finds the same text, in its first group if it has
            one. Groups are not divided, whatever their classes. With None, each sample is assigned on its own, but
            crops of one image stay together.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: the fractions do not add up to 1, a split would be empty, `group_by` is not valid, or `seed` is not
            an integer from 0 to 2^53 - 1.
        FormatError, StoreExistsError, ConversionError: as in `filter_store`.
    """
    seed, notify = _SEED.validated(seed), progress or in_notebook()
    opened, target = opened_for_editing(store, notify), tidied(out)
    splits = {name: opened[name] for name in opened}
    every = [(name, len(split)) for name, split in splits.items()]
    labels = _strata(opened, [name for name, _ in every])
    are_groups = group_by is not None or SOURCE_BOX in opened.manifest.fields
    group = _of_image(opened) if group_by is None else row_group(splits, group_by, "group_by")
    keys = (group(name, row) for name, count in every for row in range(count))
    total = sum(count for _, count in every)
    parts = share_rows(shares, keys, total, labels, seed, are_groups=are_groups, option="shares")
    starts = np.cumsum([0, *(count for _, count in every)])
    notes = ("splits have keys in common: keys begin with the names of their old splits.",) * _repeats_keys(splits)
    for note in notes:
        notify(Progress("copy", 0, 0, 0, note))
    pieces = {
        new: [
            Piece(opened, name, rows[(rows >= start) & (rows < start + count)] - start, prefix=f"{name}/" * len(notes))
            for (name, count), start in zip(every, starts.tolist(), strict=False)
        ]
        for new, rows in parts.items()
    }
    recorded = {name: float(share) for name, share in shares.items()}
    step = {"command": "split", "shares": recorded, "seed": seed, "group_by": group_by}
    summary = write_store(target, in_order(pieces), opened.manifest.fields, step, notify)
    return replace(summary, notes=(*notes, *summary.notes))


def _repeats_keys(splits: Mapping[str, Split]) -> bool:
    """Whether several splits have the same key."""
    indexes: dict[int, KeyIndex] = {}
    for i, table in enumerate(map(key_table, splits.values())):
        if table is None or any((first_found(indexes, keys)[0] >= 0).any() for _, keys in key_pieces(table)):
            return table is not None
        indexes[i] = KeyIndex(table)
    return False


def sample_store(
    store: PathLike,
    out: PathLike,
    per_class: int,
    *,
    seed: int = 0,
    splits: Collection[str] | None = None,
    progress: OnProgress | None = None,
) -> Summary:
    """Write a new store with a random selection of at most `per_class` samples of each class in each split.

    >>> tsds.editing.sample_store("photos.tsds", "few.tsds", per_class=1).rows
    {'train': 2, 'val': 2}

    The samples keep their order.

    Args:
        store: path or URL of the store.
        out: path of the new store, which must not exist.
        per_class: number of samples of each class in each split, or of each split if there are no labels. If samples
            have several labels, a class can get more, from samples that were selected for others.
        seed: seed of the selection. The same seed selects the same samples.
        splits: names of the splits to keep. None keeps all.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: `per_class` is not an integer of at least 1, or `seed` is not an integer from 0 to 2^53 - 1.
        FormatError, StoreExistsError, ConversionError: as in `filter_store`.
    """
    per_class, seed = _PER_CLASS.validated(per_class), _SEED.validated(seed)
    notify = progress or in_notebook()
    opened, target = opened_for_editing(store, notify), tidied(out)
    label = first_of_kind(opened.manifest.fields, LabelField)
    several = first_of_kind(opened.manifest.fields, LabelsField)
    pieces = {}
    for name in chosen_splits(opened, splits):
        rng = np.random.default_rng([seed, *name.encode()])
        order = rng.permutation(len(opened[name]))
        if label is None and several is not None:
            applies = np.asarray(opened[name][several][:]) > 0
            taken = [order[some[order]][:per_class] for some in (*applies.T, ~applies.any(axis=1))]
        else:
            labels = np.zeros(len(order), np.int64) if label is None else np.asarray(opened[name][label][:])[order]
            taken = [order[first_of_each(labels, per_class)]]
        pieces[name] = [Piece(opened, name, np.unique(np.concatenate([np.empty(0, np.int64), *taken])))]
    step = {"command": "sample", "per_class": per_class, "seed": seed}
    return write_store(target, pieces, opened.manifest.fields, step, notify)


def first_of_each(labels: NDArray[np.integer[Any]], count: int) -> NDArray[np.int64]:
    """Positions of the first `count` samples of each class, given the class of each sample (n,).

    >>> first_of_each(np.array([7, 2, 7, 7, 2]), 2).tolist()
    [1, 4, 0, 2]
    """
    _, counts = np.unique(labels, return_counts=True)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its class
    by_class: NDArray[np.int64] = np.argsort(labels, kind="stable")[place < count]
    return by_class


def _strata(store: Store, splits: Sequence[str]) -> NDArray[np.int64] | None:
    """Class of each sample, for division within classes; the rarest one if there are several. None without classes."""
    fields = store.manifest.fields
    name = first_of_kind(fields, LabelField) or first_of_kind(fields, LabelsField)
    if name is None:
        return None
    columns = [store[split].column(name) for split in splits]
    field = fields[name]
    if isinstance(field, LabelField):
        return np.concatenate([np.asarray(column[:]) for column in columns])

    def pieces() -> Iterator[NDArray[np.bool_]]:  # in small blocks: as larger numbers, all would take 8x the memory
        for column in columns:
            for first in range(0, len(column), _STRATA_ROWS):
                yield np.asarray(column[first : first + _STRATA_ROWS]) > 0

    counts = sum((applies.sum(axis=0) for applies in pieces()), np.zeros(len(field.classes), np.int64))
    by_count = np.argsort(counts, kind="stable")  # the rarest first, of equal ones the first
    rarest = [
        np.where(applies.any(axis=1), by_count[applies[:, by_count].argmax(axis=1)], len(by_count))
        for applies in pieces()
    ]
    return np.concatenate([np.empty(0, np.int64), *rarest])


def relabel_store(
    store: PathLike, out: PathLike, class_map: Mapping[str, str], *, progress: OnProgress | None = None
) -> Summary:
    """Write a new store with renamed classes. Classes with the same new name are merged.

    >>> tsds.editing.relabel_store("photos.tsds", "animals.tsds", {"cat": "animal", "dog": "animal"}).rows
    {'train': 8, 'val': 4}
    >>> tsds.open("animals.tsds")["train"].fields["label"].classes
    ('animal',)

    Args:
        store: path or URL of the store.
        out: path of the new store, which must not exist.
        class_map: new names of classes by their old names. Other classes keep their names. A class with an empty new
            name is removed with its objects, and its samples become unlabeled. If samples have several labels, a
            removed class loses its column.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: a class does not exist, or no class would remain.
        FormatError, StoreExistsError, ConversionError: as in `filter_store`.
    """
    notify = progress or in_notebook()
    opened, target = opened_for_editing(store, notify), tidied(out)
    joined = joined_stores([opened], class_map=class_map)
    (numbers,) = joined.numbers
    for name in numbers:
        if not joined.fields[name].classes:
            raise OptionError(f"`class_map`: expected classes that stay in {name}, found none.")
    known = {each for name in numbers for each in opened.manifest.fields[name].classes}
    if unknown := [old for old in class_map if old not in known]:
        raise refusal("class_map", "classes of the store", repr(unknown[0]), known)
    pieces = {name: [Piece(opened, name, np.arange(len(opened[name])), numbers)] for name in opened}
    return write_store(target, pieces, joined.fields, {"command": "relabel", "class_map": dict(class_map)}, notify)


def merge_stores(
    stores: Sequence[PathLike], out: PathLike, *, restore_erased: bool = False, progress: OnProgress | None = None
) -> Summary:
    """Write a new store with the samples of several stores. Splits with the same name are concatenated.

    >>> for name in ("cat", "dog"):
    ...     _ = tsds.editing.filter_store("photos.tsds", f"{name}.tsds", f"label == '{name}'")
    >>> tsds.editing.merge_stores(["cat.tsds", "dog.tsds"], "both.tsds").rows
    {'train': 8, 'val': 4}

    The fields and values of objects of all stores are combined. Values that a store lacks are unknown in its samples.
    Classes and keypoints are matched by name. New ones follow the ones of the first store. If stores have keys in
    common, each key is prefixed with the name of its store, and a note reports how many.

    Samples that were erased from one of the stores are not taken from the others. A note reports how many.

    Args:
        stores: paths or URLs of the stores, at least two.
        out: path of the new store, which must not exist.
        restore_erased: whether to take samples that were erased from one of the stores from the others.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: fields with the same name cannot be combined, such as images of different shapes.
        FormatError, StoreExistsError, ConversionError: as in `filter_store`.
    """
    notify = progress or in_notebook()
    if len(stores) < 2:
        raise OptionError(f"expected two stores or more to merge, found {len(stores)}.")
    target = tidied(out)
    check_outside_stores(target)
    opened = [opened_for_editing(store, notify) for store in stores]
    joined = joined_stores(opened)
    repeated, equal = _repeated(opened, joined)
    erased = _erased_elsewhere(opened)
    left = {} if restore_erased else erased
    if sum(map(len, left.values())) == sum(len(store[name]) for store in opened for name in store):
        raise OptionError(f"{target}: expected samples that were not erased, found none.")
    notes = (*joined.notes, *_note_of_repeated(repeated, equal), *_note_of_erased(opened, left))
    for note in notes:
        notify(Progress("copy", 0, 0, 0, note))
    prefixes = _prefixes(opened) if repeated.count else [""] * len(opened)
    pieces: dict[str, list[Piece]] = {}
    for i, (store, classes, prefix) in enumerate(zip(opened, joined.numbers, prefixes, strict=True)):
        for name in store:
            rows = np.delete(np.arange(len(store[name])), left.get((i, name), np.empty(0, np.int64)))
            pieces.setdefault(name, []).append(Piece(store, name, rows, classes, prefix))
    step = {"command": "merge", "stores": [store.path.name for store in opened]}
    tombstones = Tombstones(*(store.manifest.provenance for store in opened))
    for (i, name), again in erased.items() if restore_erased else ():
        tombstones.remove(opened[i], zip(repeat(name), again, strict=False))
    summary = write_store(target, in_order(pieces), joined.fields, step, notify, tombstones)
    return replace(summary, notes=(*notes, *summary.notes))


def joined_stores(
    stores: Sequence[Store],
    names: Sequence[str] | None = None,
    class_map: Mapping[str, str] | None = None,
    absent: int = NOT_KNOWN,
) -> JoinedFields:
    """Join the fields of stores; errors and notes call them by `names`, or by their paths if it is None."""
    names = [store.name for store in stores] if names is None else names
    sides = [
        Side(name, store.manifest.fields, sum(len(store[split]) for split in store))
        for name, store in zip(names, stores, strict=True)
    ]
    try:
        joined = join_fields(sides, class_map, absent)
    except FieldsDifferError as error:
        raise OptionError(f"{names[error.side]}: {error.message} {error.advice}") from error
    if len(stores) > 1:
        firsts = (next((store[split] for split in store if len(store[split])), None) for store in stores)
        own = [(name, split) for name, split in zip(names, firsts, strict=True) if split is not None]
        check_depths((name, split.fields["image"], split["image"]) for name, split in own if "image" in split.fields)
    return joined


def _repeated(stores: Sequence[Store], joined: JoinedFields) -> tuple[SampleCount, int]:
    """Keys that a split has in several stores, and how many of them have equal samples everywhere."""
    found = SampleCount()
    indexes: dict[str, dict[int, KeyIndex]] = {}  # of each split, by the place of the store
    differs: dict[tuple[int, str], NDArray[np.uint8]] = {}  # of the first row of a key: 1 if repeated, 2 if otherwise
    for i, store in enumerate(stores):
        for name in store:
            if (table := key_table(store[name])) is None:
                continue
            before = indexes.setdefault(name, {})
            for start, keys in key_pieces(table) if before else ():
                owners, places = first_found(before, keys)
                for row in np.flatnonzero(owners >= 0).tolist():
                    first, place = int(owners[row]), int(places[row])
                    pair = store, name, start + row, joined.numbers[i]
                    known = stores[first], name, place, joined.numbers[first]
                    noted = differs.setdefault((first, name), np.zeros(len(stores[first][name]), np.uint8))
                    if not noted[place]:
                        found.add(f"{name}/{store[name].key(start + row)}")
                    noted[place] = max(noted[place], 2 if differing_fields(known, pair, joined.fields) else 1)
            before[i] = KeyIndex(table)
    return found, sum(int((noted == 1).sum()) for noted in differs.values())


def _note_of_repeated(repeated: SampleCount, equal: int) -> Iterator[str]:
    if repeated.count:
        keys = f"{repeated.count:,} key{'s are' if repeated.count > 1 else ' is'} in several stores"
        yield (
            f"{keys}, such as {', '.join(repeated.keys)}: {equal:,} of them with equal samples. All are stored, and "
            "keys begin with the name of their store. tsds check finds copies."
        )


def _erased_elsewhere(stores: Sequence[Store]) -> dict[tuple[int, str], list[int]]:
    """The rows of samples that were erased from another of the stores, by the number of their store and their split."""
    found: dict[tuple[int, str], list[int]] = {}
    for i, store in enumerate(stores):
        own = Tombstones(store.manifest.provenance)  # other tombstones were not erased from this store
        others = Tombstones(*(other.manifest.provenance for other in stores if other is not store))
        for name, row in others.without(own).rows_of(store):
            found.setdefault((i, name), []).append(row)
    return found


def _note_of_erased(stores: Sequence[Store], left: Mapping[tuple[int, str], Sequence[int]]) -> Iterator[str]:
    if left:
        count = sum(map(len, left.values()))
        (i, name), rows = next(iter(left.items()))
        samples, it = (f"{count:,} samples that were", "them") if count > 1 else ("1 sample that was", "it")
        yield (
            f"not merged: {samples} erased from a different store, such as {stores[i][name].key(rows[0])} of "
            f"{stores[i].name}. Pass `restore_erased` to keep {it}."
        )


def _prefixes(stores: Sequence[Store]) -> list[str]:
    """The prefixes of keys, which are the names of the stores."""
    names = [store.path.name.split(".")[0] for store in stores]
    return [f"{i}-{name}/" if names.count(name) > 1 else f"{name}/" for i, name in enumerate(names)]


def chosen_splits(store: Store, splits: Collection[str] | None) -> list[str]:
    """The chosen splits of a store, all for None; raises `OptionError` for an unknown name."""
    splits = (splits,) if isinstance(splits, str) else splits
    if unknown := [name for name in splits or () if name not in store]:
        raise OptionError(f"{store.path}: expected splits of {', '.join(store)}, found {unknown[0]!r}.")
    return [name for name in store if splits is None or name in splits]


def listed_rows(split: Split, listed: Mapping[str, Sequence[int]], purpose: str) -> NDArray[np.int64]:
    """The listed rows of a split; raises `OptionError` for a missing row, with a `purpose` such as "leave out"."""
    given: Any = listed.get(split.name, ())
    rows = given.tolist() if hasattr(given, "tolist") else list(given)
    if wrong := [row for row in rows if isinstance(row, bool | float | np.bool_ | np.floating)]:
        found = f"{wrong[0]}. For a mask use numpy.flatnonzero(mask)."
        raise OptionError(f"expected whole numbers, the rows of {split.name} to {purpose}, found {found}")
    if beyond := [row for row in rows if not 0 <= row < len(split)]:
        raise OptionError(
            f"expected rows of {split.name} from 0 to {len(split) - 1:,} to {purpose}, found {beyond[0]:,}. "
            "Are they of another store?"
        )
    return np.array(rows, np.int64)


def _of_image(store: Store) -> Callable[[str, int], str]:
    """A function that returns the key of a row, or of the image that a crop is from."""
    if SOURCE_BOX not in store.manifest.fields:
        return lambda split, row: store[split].key(row)
    return lambda split, row: store[split].key(row).rpartition("#")[0] or store[split].key(row)


def row_group(splits: Mapping[str, Split], by: str, option: str) -> Callable[[str, int], str]:
    """A function that returns the group of a row of a split, which all have the same fields."""
    fields = next(iter(splits.values())).fields
    if by == DUPLICATES:
        if (image := first_of_kind(fields, ImageField)) is None:
            raise OptionError(f"`{option}`: expected images to find {DUPLICATES} of, found none. Choose other groups.")

        def digest(split: str, row: int) -> str:
            stored = splits[split][image][row]
            return hashlib.sha256(stored if isinstance(stored, bytes) else stored.tobytes()).hexdigest()

        return digest
    numbers = [name for name, each in fields.items() if each.is_number]
    if by in numbers:
        return lambda split, row: str(splits[split][by][row])
    of_key = key_group(by, option)
    keys = (each.key(row) for each in splits.values() for row in range(len(each)))
    check_finds(by, option, keys, numbers)
    return lambda split, row: of_key(splits[split].key(row))
