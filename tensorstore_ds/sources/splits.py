"""Names of splits in a store, and splits that are unions of others."""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import NAME
from tensorstore_ds.sources.names import field_name

#: Names that mean a split, in lower case, of a folder, a list or an array. Others are read as class names and the like.
SPLIT_NAMES = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


@dataclass(slots=True)
class Splits:
    """Samples of each split by their numbers, in stored order, and what was found on the way."""

    rows: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    left_out: list[Problem] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)  #: files that were read
    notes: tuple[str, ...] = ()


def split_name(text: str) -> str:
    """Name of a split as a store allows it: lower case, with ``_`` for all other characters.

    >>> split_name("Train 2012")
    'train_2012'
    """
    if not isinstance(text, str):
        message = f"expected a split's name, which is text, found {type(text).__name__}."
        raise SourceError(Problem(repr(text)[:40], "split-name", message), "Name the split, such as train.")
    name = field_name(text)
    if len(text) <= 64 and NAME.fullmatch(name) and re.search(r"[a-z0-9]", name):
        return name
    message = "expected a split's name with letters a-z or digits, 64 characters at most, and none as aux or con."
    raise SourceError(Problem(text or '""', "split-name", message), "Rename the split.")


def split_names(texts: Iterable[str]) -> dict[str, str]:
    """`split_name` of each text; raises `SourceError` `split-name` if 2 texts get the same name."""
    texts_by_name: dict[str, str] = {}
    for text in texts:
        name = split_name(text)
        other = texts_by_name.setdefault(name, text)
        if other != text:
            message = f"expected splits whose names differ, found {other} too: both would be named {name}."
            raise SourceError(Problem(text, "split-name", message), "Rename or merge one of them.")
    return {text: name for name, text in texts_by_name.items()}


def notes_of_renamed(names: Mapping[str, str]) -> tuple[str, ...]:
    """A note for each split that is renamed, except for case.

    >>> notes_of_renamed({"Train": "train", "Train set!": "train_set_"})
    ("the split 'Train set!' is named train_set_ in the store.",)
    """
    renamed = ((text, name) for text, name in names.items() if text.lower() != name)
    return tuple(f"the split {text!r} is named {name} in the store." for text, name in renamed)


def folder_splits(paths: Iterable[str], where: str) -> tuple[dict[str, array[int]], tuple[str, ...]]:
    """Indices of the paths of each split, and notes: by the first folder that means a split, such as ``val2017``.

    Without such folders there is one split, `train`. Raises `SourceError` `split-name` if only some paths have one.

    >>> folder_splits(["images/train2017/a.jpg", "images/val2017/b.jpg"], "photos")[0]
    {'train': array('q', [0]), 'val': array('q', [1])}
    """
    rows: dict[str, array[int]] = {}
    first = ""  # path without a folder that means a split
    folders: set[str] = set()
    for i, path in enumerate(paths):
        if not (folder := split_folder(path)):
            first = first or path
            folders.update(path.split("/")[:-1])
        rows.setdefault(folder, array("q")).append(i)
    if len(rows) > 1 and first:
        message = f"expected all files in split folders, found {first} beside {next(filter(None, rows))}."
        advice = "Move them into split folders, convert one folder, or name a file that lists all of them train."
        raise SourceError(Problem(where, "split-name", message), advice)
    texts = {folder: folder.rstrip("-_ 0123456789") or "train" for folder in rows}
    if len(set(texts.values())) < len(texts):  # train2014 and train2017
        texts = {folder: folder for folder in rows}
    names = split_names(texts.values())
    named = {word: folder for folder in sorted(folders) if (word := split_word(folder))}
    what = f"the folders {', '.join(named.values())} are not read as splits: for splits, name them {', '.join(named)}"
    notes = (f"{what} and convert them alone.",) if len(named) > 1 else ()
    return {names[texts[folder]]: some for folder, some in rows.items()}, (*notes_of_renamed(names), *notes)


def numbered_splits(files: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split of each file of a data set in parts, and notes: the part of its name before its number, or its folder.

    A folder counts if it means a split. A single name that means no split is `train`.

    >>> numbered_splits(["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "val/0.parquet"])[0].values()
    dict_values(['train', 'train', 'val'])
    """
    texts = {file: _before_number(file) for file in files}
    if len(set(texts.values())) == 1 and next(iter(texts.values())).lower() not in SPLIT_NAMES:
        return dict.fromkeys(files, "train"), ()
    names = split_names(texts.values())
    return {file: names[text] for file, text in texts.items()}, notes_of_renamed(names)


def no_samples(where: str) -> Problem:
    """Problem for a file or folder, perhaps a split, without samples."""
    return Problem(where, "empty-split", "not stored: it has no samples.")


def word_split(name: str, files: int) -> str:
    """Split of a file, one of `files`: the word in its name that means one, else the name, or train for a single file.

    >>> word_split("bedroom_train_lmdb", 2), word_split("photos", 2), word_split("photos", 1)
    ('train', 'photos', 'train')
    """
    return split_word(name) or (name if files > 1 else "train")


def split_word(name: str) -> str:
    """The word in a name that means a split, such as ``train`` in train_set; empty without one."""
    return next((word for word in words_of(name) if word in SPLIT_NAMES), "")


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case: ``train`` of Trainset-2, and also of trainLabels."""
    apart = re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return re.findall("[a-z]+", re.sub("set(?![a-z])", " set", apart))


def _before_number(file: str) -> str:
    *folders, name = file.split("/")
    folder = folders[-1] if folders and folders[-1].lower() in SPLIT_NAMES else "train"
    return re.sub(r"(?:[-_. ]|(?<![0-9]))[0-9]+(?:[-_]of[-_][0-9]+)?$", "", name.rpartition(".")[0]) or folder


def split_folder(path: str) -> str:
    """The first folder of a path that means a split, perhaps with a number, such as ``val2017``; empty without one."""
    return _first_split(path[: path.rfind("/") + 1])


@functools.lru_cache(maxsize=1 << 14)
def _first_split(folders: str) -> str:
    names = folders.split("/")[:-1]
    return next((f for f in names if re.sub(r"(?:[-_ ]|(?<![0-9]))[0-9]+$", "", f.lower()) in SPLIT_NAMES), "")


def find_unions(splits: Mapping[str, NDArray[np.int64]]) -> dict[str, tuple[str, ...]]:
    """Splits that are exact unions of smaller splits, such as ``trainval``, with these splits.

    `splits` has the sample numbers of each split, (n,) int64, in any order. 2 equal splits are not unions.

    >>> rows = {"trainval": [1, 2, 3], "train": [1, 2], "val": [3], "test": [4]}
    >>> find_unions({name: np.array(n) for name, n in rows.items()})
    {'trainval': ('train', 'val')}
    """
    sets = {name: np.unique(rows) for name, rows in splits.items()}
    unions: dict[str, tuple[str, ...]] = {}
    for name in sorted(sets, key=lambda n: (-len(sets[n]), n)):
        whole = sets[name]
        parts = tuple(n for n, part in sets.items() if n not in unions and _is_part(part, whole))
        if parts and np.array_equal(np.unique(np.concatenate([sets[n] for n in parts])), whole):
            unions[name] = parts
    return unions


def drop_unions(splits: Splits, where: Callable[[str], str] = str) -> None:
    """Leave out the splits that are unions of others; `where` gives the place of each in messages."""
    for name, parts in find_unions(splits.rows).items():
        message = f"not stored twice: it is the union of {', '.join(parts)}."
        splits.left_out.append(Problem(where(name), "split-union", message))
        del splits.rows[name]


def _is_part(part: NDArray[np.int64], whole: NDArray[np.int64]) -> bool:
    return 0 < len(part) < len(whole) and bool(np.isin(part, whole, assume_unique=True).all())
