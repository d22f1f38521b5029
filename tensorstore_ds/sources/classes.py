"""Class names: in which order, and from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.regular_files import read_lines


def order_classes(names: Iterable[str], wanted: tuple[str, ...] | None, where: str) -> tuple[str, ...]:
    """The class names in their stored order: the user's list as it is, else those that occur, by code point.

    >>> order_classes(["dog", "cat", "dog"], None, "photos")
    ('cat', 'dog')

    Raises:
        SourceError: `class-case` for two names that differ only in case, unless `wanted` has both; `unknown-class` for
            a name that `wanted` has not.
        OptionError: `wanted` is empty or names a class twice.
    """
    ordered = tuple(sorted(set(names)))
    listed = set(_checked(wanted, "classes")) if wanted is not None else set()
    folded: dict[str, str] = {}
    for name in ordered:
        other = folded.setdefault(name.casefold(), name)
        if other != name and not {name, other} <= listed:
            message = f"expected classes that differ in more than case, found {other} and {name}."
            raise SourceError(Problem(where, "class-case", message), "Rename one, or name both with `classes`.")
    if wanted is None:
        return ordered
    check_listed(ordered, wanted, "class", where)
    return wanted


def check_listed(names: Iterable[str], wanted: tuple[str, ...], what: str, where: str) -> None:
    """Refuse names that the user's list of classes or keypoints (`what`: ``class``, ``keypoint``) has not.

    Raises:
        SourceError: `unknown-class` or `unknown-keypoint`.
    """
    unknown = sorted(set(names).difference(wanted))
    if unknown:
        some = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        message = f"expected only the {len(wanted)} names of the {what} list, found also {some}."
        raise SourceError(Problem(where, f"unknown-{what}", message), "Add it to the list, or correct the source.")


def number_classes(
    labels: Sequence[int] | NDArray[np.int64], wanted: tuple[str, ...] | None, where: str
) -> tuple[str, ...]:
    """The class names of labels that are numbers already: `wanted`, whose n-th name (from 0) is that of label n, else
    the numbers themselves, which must then be 0 to n - 1 without a gap.

    >>> number_classes([1, 0, 2, 1], None, "labels.npy")
    ('0', '1', '2')

    Raises:
        SourceError: `unknown-class` for a negative number, a gap, or a number that has no name in `wanted`.
        OptionError: `wanted` is empty or names a class twice.
    """
    numbers = np.unique(np.asarray(labels, np.int64)).tolist()
    n = len(numbers) if wanted is None else len(_checked(wanted, "classes"))
    wrong = next((number for number in numbers if not 0 <= number < n), None)
    if wrong is None:
        return tuple(map(str, range(n))) if wanted is None else wanted
    if wanted is not None:
        message = f"expected labels from 0 to {n - 1}, one for each name in the class list, found {wrong}."
        raise SourceError(Problem(where, "unknown-class", message), "Correct the list: its first name is label 0.")
    gap = f"but never {next(i for i in range(n) if i not in numbers)}" if numbers[0] >= 0 else "some of them negative"
    message = f"expected labels from 0 up without a gap, found labels from {numbers[0]} to {numbers[-1]}, {gap}."
    raise SourceError(Problem(where, "unknown-class", message), "Name all classes with `classes`, label 0 first.")


def read_classes(path: Path) -> tuple[str, ...]:
    """The class names in a text file, one per line, in this order; blank lines and white space around do not count.

    Raises:
        OptionError: the file cannot be read, is not UTF-8, names no class, or names one twice.
    """
    lines = read_lines(path, "class list")
    return _checked(tuple(name for line in lines if (name := line.strip())), str(path))


def _checked(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    if not names:
        raise OptionError(f"{where}: expected at least one class name, found none. Write one per line.")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise OptionError(f"{where}: expected each class once, found {name} twice. Remove one.")
    return names
