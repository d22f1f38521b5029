"""Options that several commands share, and values with a grammar of their own: sizes, bytes, fractions, rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

#: Names of the source formats. A test holds it equal to `tensorstore_ds.sources.FORMATS`.
FORMATS = ("auto", "arrays", "folders", "idx", "imglab", "list", "masks", "voc")

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

F = TypeVar("F", bound=Callable[..., Any])


def size(value: str) -> tuple[int, int]:
    """``224`` or ``480x640``: (height, width) in pixels.

    >>> size("224"), size("480x640")
    ((224, 224), (480, 640))
    """
    match = re.fullmatch(r"([1-9]\d{0,5})(?:[xX×]([1-9]\d{0,5}))?", value)
    if match is None:
        raise click.BadParameter(f"expected pixels or HEIGHTxWIDTH, such as 224 or 480x640, found {value!r}.")
    return int(match[1]), int(match[2] or match[1])


def nbytes(value: str) -> int:
    """``4GiB``, ``500MB``, ``1.5g``, ``65536``: a number of bytes.

    >>> nbytes("500MB"), nbytes("1.5 GiB"), nbytes("65536")
    (500000000, 1610612736, 65536)
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?) ?([kmgt]i?)?b?", value, re.IGNORECASE)
    number = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if not 0 < number < 2**62:
        raise click.BadParameter(f"expected a number of bytes, such as 4GiB or 500MB, found {value!r}.")
    return number


def fractions(value: str) -> dict[str, float]:
    """``train=0.9,val=0.1``: fractions by name; the library judges both.

    >>> fractions("train=0.9, val=.1")
    {'train': 0.9, 'val': 0.1}
    """
    parts: dict[str, float] = {}
    for item in value.split(","):
        match = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(\d{0,9}\.?\d{1,9})\s*", item)
        if match is None or match[1] in parts:
            raise click.BadParameter(f"expected names and fractions, such as train=0.9,val=0.1, found {value!r}.")
        parts[match[1]] = float(match[2])
    return parts


def rows(value: str) -> tuple[int, ...]:
    """``1,5,7``: row numbers.

    >>> rows("1,5,7")
    (1, 5, 7)
    """
    if not re.fullmatch(r"\d{1,18}(,\d{1,18})*", value):
        raise click.BadParameter(f"expected row numbers, such as 1,5,7, found {value!r}.")
    return tuple(int(row) for row in value.split(","))


def path_argument(name: str) -> Callable[[F], F]:
    """A path that the library will check, so that one message serves the command and Python."""
    return click.argument(name, type=click.Path(path_type=Path))


def json_option(command: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for other programs to read.")(command)


def digest(value: str) -> str:
    """64 hexadecimal digits, by which a store is known."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise click.BadParameter(f"expected 64 hexadecimal digits, as tsds info shows them, found {value!r}.")
    return value.lower()


def sha256_option(command: F) -> F:
    """``--sha256 DIGEST``: the store that is meant."""
    return click.option(
        "--sha256",
        type=digest,
        metavar="DIGEST",
        help="Refuse any store but the one that tsds info shows with this digest.",
    )(command)
