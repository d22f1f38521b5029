"""Folds for cross validation: rows of a split to train and to validate on."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorstore_ds.annex.csv_files import csv_text
from tensorstore_ds.annex.editing.edit import row_group
from tensorstore_ds.annex.editing.expression import class_rows
from tensorstore_ds.annex.editing.fold_numbers import Ints, Members, divide_groups, divide_rows
from tensorstore_ds.conversion.crops import SOURCE_BOX
from tensorstore_ds.conversion.groups import DUPLICATES, FOLDER
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import key_hashes
from tensorstore_ds.durable import write_file, writing
from tensorstore_ds.errors import OptionError, one_line
from tensorstore_ds.format.kinds import KeyField, TextField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.options import declarations, refusal, shortened, unknown_name
from tensorstore_ds.reading.store import Split, Store, open as open_store
from tensorstore_ds.reading.store_files import check_outside_stores
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.remote.location import is_url
from tensorstore_ds.seeding import Bits, fold

_SEED = declarations(ConvertOptions)["seed"]
_K = replace(_SEED, name="k", at_least=2, at_most=None)
_REPEATS = replace(_SEED, name="repeats", at_least=1, at_most=None)
#: Classes in a table, and characters of a name in it.
_CLASSES, _NAME = 30, 24
#: Keys that are read together.
_ROWS = 10_000


@dataclass(frozen=True)
class Fold:
    """One fold of `folds`: rows to train on and rows to validate on.

    Attributes:
        train: rows of all other folds, (m,) int64, ascending.
        val: rows of this fold, (v,) int64, ascending.
        number: number of the fold, from 1.
        repeat: number of the repeat, from 1.
    """

    train: Ints
    val: Ints
    number: int
    repeat: int


@dataclass(frozen=True, repr=False, eq=False)
class Folds(Sequence[Fold]):
    """Result of `folds`: a sequence of `repeats` x `k` folds, ordered by repeat.

    >>> found = tsds.folds("photos.tsds", k=4, repeats=2)
    >>> len(found), found.numbers.shape
    (8, (2, 8))
    >>> found[1].number, found[1].repeat, len(found[1].val)
    (2, 1, 2)

    `print` shows how even the folds are.

    Attributes:
        title: name of the store and of the split.
        numbers: the fold of each row, from 1, (repeats, n) int64.
        k: number of folds.
        seed: seed as in `folds`.
        stratify: field as in `folds`.
        groups: value as in `folds`, or ``"given"`` for an array.
        warnings: lines about requirements that the division could not meet.
    """

    title: str
    numbers: Ints
    k: int
    seed: int
    stratify: str | None
    groups: str | None
    warnings: tuple[str, ...]
    _split: Split
    _rows: Ints
    _group_of: Ints | None
    _classes: _Classes | None

    def __post_init__(self) -> None:
        self.numbers.flags.writeable = False

    @property
    def repeats(self) -> int:
        """Number of repeats."""
        return len(self.numbers)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Classes by which the folds are stratified."""
        return () if self._classes is None else self._classes.names

    def __len__(self) -> int:
        return self.k * self.repeats

    @overload
    def __getitem__(self, index: int) -> Fold: ...
    @overload
    def __getitem__(self, index: slice) -> list[Fold]: ...
    def __getitem__(self, index: int | slice) -> Fold | list[Fold]:
        """Return one fold, whose rows are new arrays, or a list of folds for a slice."""
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        repeat, place = divmod(range(len(self))[index], self.k)
        is_val = self.numbers[repeat] == place + 1
        return Fold(np.flatnonzero(~is_val), np.flatnonzero(is_val), place + 1, repeat + 1)

    def fold(self, number: int, repeat: int = 1) -> Fold:
        """Return a fold by its number and repeat, both from 1.

        Raises:
            OptionError: the number or the repeat does not exist.
        """
        if not 1 <= number <= self.k:
            raise refusal("fold", f"1 to {self.k}", number)
        if not 1 <= repeat <= self.repeats:
            raise refusal("repeat", f"1 to {self.repeats}", repeat)
        return self[(repeat - 1) * self.k + number - 1]

    def rows(self, repeat: int = 1) -> Ints:
        """Return the number of rows in each fold, (k,) int64."""
        return np.bincount(self.numbers[repeat - 1] - 1, minlength=self.k)

    def group_counts(self, repeat: int = 1) -> Ints | None:
        """Return the number of groups in each fold, (k,) int64, or None without groups."""
        if self._group_of is None:
            return None
        _, first = np.unique(self._group_of, return_index=True)
        return np.bincount(self.numbers[repeat - 1][first] - 1, minlength=self.k)

    def class_counts(self, repeat: int = 1) -> Ints:
        """Return the number of samples of each class in each fold, (classes, k) int64.

        Objects are counted instead of samples if the folds are stratified by objects. Samples without a label do not
        count.
        """
        if self._classes is None:
            return np.zeros((0, self.k), np.int64)
        known, count = self._classes.labels >= 0, len(self.class_names)
        folds = self.numbers[repeat - 1]
        folds = folds if self._classes.owners is None else folds[self._classes.owners]
        slots = self._classes.labels[known] * self.k + folds[known] - 1
        return np.bincount(slots, minlength=count * self.k).reshape(count, self.k)

    def _shares(self, repeat: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Share of each class in each fold (classes, k) and in all rows (classes,), and their largest difference."""
        counts = self.class_counts(repeat)
        shares, whole = counts / np.maximum(1, counts.sum(0)), counts.sum(1) / max(1, int(counts.sum()))
        return shares, whole, np.abs(shares - whole[:, None]).max(1, initial=0)

    def as_data(self) -> dict[str, Any]:
        """Return names and counts as plain values for JSON."""
        named = {name: getattr(self, name) for name in ("k", "repeats", "seed", "stratify", "groups")}
        found = [
            {
                "rows": self.rows(repeat).tolist(),
                "groups": None if (groups := self.group_counts(repeat)) is None else groups.tolist(),
                "classes": dict(zip(self.class_names, self.class_counts(repeat).tolist(), strict=True)),
                "largest_deviation": float(self._shares(repeat)[2].max(initial=0)),
            }
            for repeat in range(1, self.repeats + 1)
        ]
        return {"of": self.title, **named, "repeat": found, "warnings": list(self.warnings)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fold of each key to a table (``.csv``) or a JSON file (``.json``). An existing file is replaced.

        The CSV file has the columns `key` and `fold`, or `fold_1`, `fold_2`, ... for each repeat. Folds are counted
        from 1. The JSON file contains the options and, in the member `folds`, the fold of each key or a list of folds.
        A store without keys gets keys of split and row, such as ``train/00007``.

        Raises:
            OptionError: the file has a different suffix, or would be inside a store. Or a key begins with ``=``, ``+``,
                ``-`` or ``@``, and a spreadsheet would run it as a formula in a CSV file.
            OutputError: the file cannot be written.
        """
        target = tidied(path)
        if target.suffix not in (".csv", ".json"):
            raise refusal("out", "a file name that ends with .csv or .json", target.name)
        check_outside_stores(target)
        pairs = zip(self._rows.tolist(), self.numbers.T.tolist(), strict=True)
        listed = [(self._split.key(row), folds) for row, folds in pairs]
        if target.suffix == ".csv":
            names = ["fold"] if self.repeats == 1 else [f"fold_{i + 1}" for i in range(self.repeats)]
            text = csv_text(
                [["key", *names], *([key, *folds] for key, folds in listed)],
                str(target),
                "Write the folds to a .json file.",
            )
        else:
            of_key = {key: folds[0] if self.repeats == 1 else folds for key, folds in listed}
            text = json.dumps({**self.as_data(), "folds": of_key}, indent=1, ensure_ascii=False) + "\n"
        with writing(target):
            write_file(target, text.encode("utf-8", "backslashreplace"))

    def __repr__(self) -> str:
        return f"<Folds of {self.title}: {self._described()}>"

    def _described(self) -> str:
        parts = [
            f"{self.numbers.shape[1]:,} rows, {self.k} folds",
            f"{self.repeats} repeats" if self.repeats > 1 else "",
            f"stratified by {self.stratify}" if self.stratify else "",
            f"grouped by {self.groups}" if self.groups else "",
            f"seed {self.seed}",
        ]
        return ", ".join(filter(None, parts))

    def __str__(self) -> str:
        lines = [f"{self.title}: {self._described()}"]
        for repeat in range(1, self.repeats + 1):
            lines += ["", *self._table(repeat)]
        return "\n".join(lines)

    def _table(self, repeat: int) -> list[str]:
        """Table of how even the folds of one repeat are."""
        rows, groups = self.rows(repeat), self.group_counts(repeat)
        head = f"repeat {repeat}" if self.repeats > 1 else "fold"
        table = [[head, *(str(i + 1) for i in range(self.k)), "all", "deviation"]]
        uneven = float(np.abs(rows * self.k / rows.sum() - 1).max())
        table.append(["rows", *(f"{n:,}" for n in rows), f"{rows.sum():,}", f"{uneven:.1%}"])
        if groups is not None:
            table.append(["groups", *(f"{n:,}" for n in groups), f"{groups.sum():,}", ""])
        shares, whole, away = self._shares(repeat)
        most = np.sort(np.argsort(-away, kind="stable")[:_CLASSES])
        for i in most.tolist():
            name = one_line(self.class_names[i])
            cells = [name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."]
            cells += [f"{share:.1%}" for share in (*shares[i], whole[i], away[i])]
            table.append(cells)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in table]
        if len(away) > len(most):
            lines.append(f"... and {len(away) - len(most):,} more classes, which deviate by less")
        return lines


@dataclass(frozen=True)
class _Classes:
    """Class of each sample or object: its row, (m,), None for one per row, and label, (m,), `UNLABELLED` for none."""

    names: tuple[str, ...]
    owners: Ints | None
    labels: Ints

    def units(self, units: Ints | None) -> Ints:
        """Group of each sample or object, given the group of each row; None makes each row its own group."""
        if units is None:
            return np.arange(len(self.labels)) if self.owners is None else self.owners
        return units if self.owners is None else units[self.owners]

    @classmethod
    def of(cls, split: Split, name: str, rows: Ints) -> _Classes:
        if name not in split.fields:
            raise unknown_name(f"`stratify`: split {split.name}", "field", name, split.fields)
        field = split.fields[name]
        if _has_classes(field):
            return cls(field.classes, *class_rows(split, name, rows))
        possible = [each for each, found in split.fields.items() if _has_classes(found)]
        advice = f"Use {' or '.join(possible)}." if possible else "Divide the split without it."
        raise OptionError(
            f"`stratify`: expected a field of labels, or of objects with classes, found {name} ({field.kind}). {advice}"
        )


def _has_classes(field: Field) -> bool:
    return field.joins_classes and (not field.class_value or field.class_value in field.arrays)


def folds(
    data: Split | Store | str | os.PathLike[str] | Any,
    k: int = 5,
    *,
    stratify: str | None = None,
    groups: str | ArrayLike | None = None,
    repeats: int = 1,
    seed: int = 0,
    split: str | None = None,
) -> Folds:
    """Divide the rows of a split into `k` folds for cross validation. Images are not decoded.

    Each row is in the `val` of exactly one fold of each repeat. Its fold follows from a hash of the seed and its key,
    and from the sizes of the classes. The order of the rows, the shards and the process do not matter. A row moves to a
    different fold only if its fold is full, so most rows keep their fold when the store grows.

    Two folds differ by at most one row, and with `stratify` by at most one row of each class. With groups, objects or
    several labels per sample, a greedy form of iterative stratification is used (Sechidis, Tsoumakas and Vlahavas, On
    the stratification of multi-label data, ECML PKDD 2011). Folds are then as even as the groups allow.

    Args:
        data: an open `Split`, a `StoreDataset`, or a store or its path. The folds of a `StoreDataset` index its
            samples, as in `StoreDataset.subset`. In a store, `split` is divided.
        k: number of folds, 2 or more.
        stratify: a field of labels, one or several per sample, or of objects with classes. Each fold gets the same
            share of each class. Samples without a label are treated as a class.
        groups: rows of a group are in the same fold. A field of labels, integers or texts, in which a row without a
            label or text is a group by itself; ``folder``, ``duplicates`` or a regular expression for keys, as in
            `split_store`; or (n,) integers or texts. With None, each row is assigned on its own, but crops of one image
            stay together.
        repeats: number of divisions, each with different folds.
        seed: seed of the division. Different seeds make different folds.
        split: name of the split of a store, by default ``train``.

    Raises:
        OptionError: `k` is larger than the number of rows or groups, a field has the wrong kind, `groups` do not have
            one entry for each row.
        UnknownNameError: the store does not contain the split, or the split does not contain the field.
        FormatError: a label is not the index of a class.

    Warns:
        UserWarning: a class has fewer samples (or groups) than there are folds, so that some folds lack it.

    Example:
        >>> found = tsds.folds("photos.tsds", k=2, stratify="label")
        >>> found[0].train.tolist(), found[0].val.tolist()
        ([0, 1, 4, 7], [2, 3, 5, 6])
        >>> for fold in found:
        ...     train = tsds.StoreDataset("photos.tsds", "train").subset(fold.train)
        ...     val = tsds.StoreDataset("photos.tsds", "train").subset(fold.val)
        >>> len(train), len(val)
        (4, 4)
    """
    title, part, rows = _rows_of(data, split)
    k, repeats, seed = _K.validated(k), _REPEATS.validated(repeats), _SEED.validated(seed)
    if stratify is not None and not isinstance(stratify, str):
        raise refusal("stratify", "the name of a field", type(stratify).__name__)
    if not len(rows):
        raise OptionError(f"{title}: expected samples to divide, found none. Choose a different split.")
    classes = None if stratify is None else _Classes.of(part, stratify, rows)
    group_of, bits, by = _groups(part, rows, groups, seed)
    if k > len(bits):
        what = "samples" if group_of is None else "groups"
        raise OptionError(f"`k`: expected at most {len(bits):,}, the {what} of {title}, found {k:,}. Use fewer folds.")
    notes = () if classes is None else tuple(_rare(classes, group_of, k, stratify))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    numbers = np.stack([_divide(fold(bits, repeat), group_of, classes, k) for repeat in range(repeats)]) + 1
    return Folds(title, numbers, k, seed, stratify, by, notes, part, rows, group_of, classes)


def _divide(bits: Bits, group_of: Ints | None, classes: _Classes | None, k: int) -> Ints:
    """Fold of each row, from 0."""
    if group_of is None and (classes is None or classes.owners is None):
        strata = np.zeros(len(bits), np.int64) if classes is None else classes.labels + 1
        return divide_rows(bits, strata, k)
    owners = np.empty(0, np.int64) if classes is None else classes.units(group_of)
    labels = np.empty(0, np.int64) if classes is None else classes.labels + 1
    units = np.arange(len(bits)) if group_of is None else group_of
    return divide_groups(bits, np.bincount(units), Members.of(owners, labels, len(bits)), k)[units]


def _rare(classes: _Classes, group_of: Ints | None, k: int, field: str | None) -> Iterator[str]:
    """A note about classes that occur in fewer rows or groups than there are folds."""
    number = len(classes.names) + 1
    if group_of is None and classes.owners is None:
        counts = np.bincount(classes.labels + 1, minlength=number)[1:]
    else:
        present = np.unique(classes.units(group_of) * number + classes.labels + 1)
        counts = np.bincount(present % number, minlength=number)[1:]
    rare = np.flatnonzero((counts > 0) & (counts < k)).tolist()
    if rare:
        in_what = "samples" if group_of is None else "groups"
        shown = ", ".join(f"{shortened(classes.names[i])} ({counts[i]})" for i in rare[:3])
        more = f" and {len(rare) - 3:,} more" if len(rare) > 3 else ""
        yield one_line(
            f"{field}: expected classes with {k} {in_what} or more, found {shown}{more}. Some folds lack them: use a "
            "smaller k, or more samples of these classes."
        )


def _rows_of(data: Any, split: str | None) -> tuple[str, Split, Ints]:
    """What to divide: a title, the split, and its rows, (n,)."""
    if isinstance(data, str | os.PathLike):
        data = open_store(data if is_url(data) else tidied(data))
    if isinstance(data, Store):
        part = data["train" if split is None else split]
        return f"{data.name}, {part.name}", part, np.arange(len(part))
    if split is not None:
        raise refusal("split", "none, because only a store has splits", split)
    if isinstance(data, Split):
        return data.name, data, np.arange(len(data))
    of, rows = getattr(data, "split", None), getattr(data, "rows", None)  # a StoreDataset, without torch
    if not isinstance(of, Split):
        raise refusal("data", "a Split, a StoreDataset or a store", f"a {type(data).__name__}")
    return str(data.title), of, np.arange(len(of)) if rows is None else np.asarray(rows, np.int64)


def _groups(split: Split, rows: Ints, groups: Any, seed: int) -> tuple[Ints | None, Bits, str | None]:
    """The group of each row from 0, (n,), or None; the hash of each group or row; and the names of the groups."""
    if groups is None:
        of_image = SOURCE_BOX in split.fields
        names = _row_names(split, rows, of_image=of_image)
        if not of_image and (np.diff(rows) > 0).all():  # no row is there twice, and so no key
            return None, key_hashes(names, seed), None
        numbers, found = _numbered(names)
        is_alone = len(found) == len(rows)
        return None if is_alone else numbers, key_hashes(found, seed), None if is_alone else "image"
    if isinstance(groups, str):
        numbers, found = _numbered(_field_groups(split, rows, groups))
        return numbers, key_hashes(found, seed), groups
    array = np.asarray(groups)
    if array.dtype.kind == "O" and all(isinstance(each, str) for each in array.ravel()):
        array = array.astype(str)
    if array.shape != (len(rows),) or array.dtype.kind not in "biuUS":
        found_array = f"{array.dtype} of shape {array.shape}"
        raise refusal("groups", f"a field, or integers or texts of shape ({len(rows)},)", found_array)
    texts = (
        each if isinstance(each, bytes) else str(each).encode("utf-8", "surrogateescape") for each in array.tolist()
    )
    numbers, found = _numbered(texts)
    return numbers, key_hashes(found, seed), "given"


def _numbered(names: Iterable[bytes]) -> tuple[Ints, list[bytes]]:
    """A number for each name, equal for equal names, and the names by number."""
    index: dict[bytes, int] = {}
    numbers = np.fromiter((index.setdefault(name, len(index)) for name in names), np.int64)
    return numbers, list(index)


def _row_names(split: Split, rows: Ints, *, of_image: bool = False) -> Iterator[bytes]:
    """Keys of rows, or of the images that crops are from; split and row in a store without keys."""
    field = split.first(KeyField)
    if field is None:
        yield from (split.key(row).encode() for row in rows.tolist())
        return
    for start in range(0, len(rows), _ROWS):
        taken = split.table(field).take(rows[start : start + _ROWS])
        data, ends = taken["bytes"].tobytes(), taken.offsets.tolist()
        for begin, end in pairwise(ends):
            key = data[begin:end]
            yield (key.rpartition(b"#")[0] or key) if of_image else key


def _field_groups(split: Split, rows: Ints, by: str) -> Iterator[bytes]:
    """Group of each row: a field's value, or the result of `row_group`."""
    field = split.fields.get(by)
    alone = (b"\0" + name for name in _row_names(split, rows))  # rows without a value
    if isinstance(field, TextField):
        split.fetch([by], rows)
        for row, own in zip(rows.tolist(), alone, strict=True):
            yield "\0\0".join(split.table(by)[row]).encode("utf-8", "surrogateescape") or own
    elif field is not None and _groups_rows(field):
        unlabelled = UNLABELLED if field.joins_classes else None
        for value, own in zip(split.column(by).take(rows).tolist(), alone, strict=True):
            yield own if value == unlabelled else str(value).encode()
    elif field is not None:
        possible = ", ".join(name for name, each in split.fields.items() if _groups_rows(each))
        advice = f"Use {possible}, or an array." if possible else "Pass an array of one group for each row."
        raise OptionError(
            f"`groups`: expected a field of labels, integers or texts, found {by} ({field.describe()}). {advice}"
        )
    elif by not in (FOLDER, DUPLICATES) and re.fullmatch(r"[\w-]+", by):
        choices = [*split.fields, FOLDER, DUPLICATES]
        raise unknown_name(f"`groups`: split {split.name}", "field", by, choices)
    else:
        find = row_group({split.name: split}, by, "groups")
        yield from (find(split.name, row).encode("utf-8", "surrogateescape") for row in rows.tolist())


def _groups_rows(field: Field) -> bool:
    return isinstance(field, TextField) or (field.is_number and np.dtype(field.arrays[""].dtype).kind in "biu")
