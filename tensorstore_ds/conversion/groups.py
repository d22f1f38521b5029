"""Groups of samples that stay together when a data set is divided: by folder, key pattern, equal bytes, or column."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import meant
from tensorstore_ds.regular_files import open_file, os_errors
from tensorstore_ds.sources.base import Reference, Source
from tensorstore_ds.sources.folders import compiled

FOLDER, DUPLICATES, COLUMN = "folder", "duplicates", "column:"


def key_group(by: str, name: str) -> Callable[[str], str]:
    """Return the function from a key to its group. A key without a match is a group of its own.

    >>> key_group("folder", "split_by")("cats/1/a.jpg"), key_group(r"patient(\\d+)", "split_by")("x/patient07_b.png")
    ('cats/1', '07')

    `by` is ``folder`` or a regular expression. Raises `OptionError`, with the option's `name`, for anything else, such
    as a column, which only sources have.
    """
    if by.startswith(COLUMN):
        raise OptionError(f"`{name}`: expected {FOLDER}, {DUPLICATES} or a regular expression, found {by[:80]!r}.")
    if by == FOLDER:
        return lambda key: key.rpartition("/")[0]
    pattern = compiled(by, name, f"{FOLDER}, {DUPLICATES} or ")

    def found(key: str) -> str:
        match = pattern.search(key)
        return key if match is None else match[1 if pattern.groups else 0] or ""

    return found


def check_finds(by: str, name: str, keys: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raise `OptionError` if a regular expression matches no key; `others` are suggested instead."""
    if by in (FOLDER, DUPLICATES) or by.startswith(COLUMN):
        return
    pattern, first = re.compile(by), ""
    for key in keys:
        if pattern.search(key):
            return
        first = first or key
    message = f"expected an expression that finds something in the keys, such as {first!r}, found {by[:80]!r}."
    raise OptionError(f"`{name}`: {message}{meant(by, (FOLDER, DUPLICATES, *others))}")


def source_group(source: Source, by: str | None) -> Callable[[str, Reference], str] | None:
    """Return the function from a sample to its group; None if each is its own, as one without a value in its column."""
    if by is None:
        return source.whole if source.has_parts else None
    if by == DUPLICATES:
        return lambda split, reference: _digest(source, split, reference)
    if by.startswith(COLUMN):
        value = source.column(by.removeprefix(COLUMN))
        return lambda split, reference: value(split, reference) or f"\0{source.whole(split, reference)}"
    of_key = key_group(by, "split_by")
    return lambda split, reference: of_key(source.whole(split, reference))


def _digest(source: Source, split: str, reference: Reference) -> str:
    files = source.files(reference)
    if not files:
        raise OptionError(
            f"`split_by`: {DUPLICATES} are files of equal bytes; samples of {source.path.name} share all files."
        )
    with open_file(files[0], source.key(split, reference), 0) as file, os_errors(files[0]):
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
