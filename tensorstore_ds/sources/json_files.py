"""JSON files of labelling tools: read strictly, and what is looked for in them."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.strict_json import MAX_VALUES, load_object
from tensorstore_ds.regular_files import as_utf8, read_file

#: What msgspec raises about JSON that is none, or another one.
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_PATH = re.compile(r" - at `(?:key in )?\$(?:\[\.\.\.\])?\.?([^`]*)`$")
_TYPES = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_LENGTHS = re.compile(r"Expected `array` of length ([0-9]+), got ([0-9]+)")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
#: Types of JSON as a user calls them.
_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


#: The parts of an object at the top of a text: strings, brackets, and what tells names from values.
_PART = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{}:,]', re.DOTALL)


class MemberError(Exception):
    """A value that is not what it must be; the message says what was expected and found, but not where."""


def read_object(path: Path, where: str, limit: int) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes, which errors name `where`."""
    return parse_object(read_file(path, where, limit), where)


def read_list(path: Path, where: str, limit: int, max_values: int) -> list[Any]:
    """The list in a JSON file, likewise, of at most so many values in all its depth."""
    data = as_utf8(read_file(path, where, limit), where, "json")
    found = parse_object(b'{"list":' + data + b"}", where, max_values)
    values = found["list"]
    if len(found) > 1 or not isinstance(values, list):
        raise SourceError(Problem(where, "json", "expected a list, found another value."), "Export the data set again.")
    return values


def parse_object(data: bytes, where: str, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """The object that JSON in any encoding of Unicode says, or a `SourceError` of reason `json`."""
    _check_empty(data, where)
    try:
        return load_object(as_utf8(data, where, "json"), max_values)
    except SourceError:
        raise
    except (ValueError, RecursionError) as error:
        message = f"expected JSON in UTF-8, found: {' '.join(str(error).split())[:200]}."
        raise SourceError(Problem(where, "json", message), "Write the file again.") from error


def check_json(data: bytes, where: str) -> None:
    """Raise `SourceError` `json` if the bytes of a file are no JSON."""
    _check_empty(data, where)
    try:
        msgspec.json.decode(as_utf8(data, where, "json"), type=msgspec.Raw)
    except JSON_ERRORS as error:
        raise SourceError(Problem(where, "json", f"{unlike(error)}."), "Write the file again.") from error


def _check_empty(data: bytes, where: str) -> None:
    if not data[:64].strip(b"\0 \t\r\n") and not data.strip(b"\0 \t\r\n"):
        raise SourceError(Problem(where, "json", "expected JSON, found an empty file."), "Write the file again.")


def raw_members(data: bytes, where: str) -> dict[str, msgspec.Raw]:
    """The members of the object in a JSON file; the values are checked to be JSON, and not read.

    Raises:
        SourceError: `json`.
    """
    _check_empty(data, where)
    try:
        return msgspec.json.decode(as_utf8(data, where, "json"), type=dict[str, msgspec.Raw])
    except JSON_ERRORS as error:
        raise SourceError(Problem(where, "json", f"{unlike(error)}."), "Write the file again.") from error


def first_members(text: str) -> set[str]:
    """The names of the members of the object that a text begins with, as far as it goes.

    >>> sorted(first_members('{"info": {"year": 1}, "images": [{"id'))
    ['images', 'info']
    """
    depth, last, names = 0, "", set()
    for match in _PART.finditer(text):
        part = match[0]
        if part in "{[":
            depth += 1
        elif part in "]}":
            depth -= 1
        elif part == ":" and depth == 1:
            names.add(last[1:-1])
        last = part
    return names


def unlike(error: BaseException, name: str = "") -> str:
    """What msgspec found in the member `name`, in the words of this project, as the middle of a sentence.

    >>> unlike(msgspec.ValidationError("Expected `float`, got `str` - at `$.bbox[0]`"))
    'bbox[0]: expected a number, found a text'
    """
    said = " ".join(str(error).split())[:200]
    path, what = _PATH.search(said), _PATH.sub("", said)
    place = name + (path[1] if path else "")
    place += ": " if place else ""
    if match := _TYPES.fullmatch(what):
        return f"{place}expected {_types(match[1])}, found {_types(match[2])}"
    if match := _LENGTHS.fullmatch(what):
        return f"{place}expected {match[1]} values, found {match[2]}"
    if match := _MISSING.fullmatch(what):
        return f"{place}expected the member {match[1]}, found none"
    if "truncated" in what:
        return "expected JSON, found its end too early: it was cut short"
    if isinstance(error, RecursionError):
        return "expected JSON, found it nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"expected JSON in UTF-8, found other bytes at {error.start:,}"
    return f"{place}expected JSON, found: {what.removeprefix('JSON is malformed: ')}"


def _types(said: str) -> str:
    types = said.split(" | ")
    names = (_NAMES.get(each, each) for each in types if not (each == "int" and "float" in types))
    return " or ".join(names)


def finite(value: object, name: str) -> float:
    """A number; anything else is a `MemberError`, a truth value and NaN too."""
    with contextlib.suppress(OverflowError):  # of a whole number beyond all floats
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise MemberError(f"expected {name}, a number, found {kind(value)}")


def text(value: object, name: str) -> str:
    """A text that is not empty, without white space around it."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise MemberError(f"expected {name}, a text, found {kind(value)}")


def members(value: object, name: str) -> Mapping[str, Any]:
    """An object; nothing is an empty one."""
    if value is None or isinstance(value, dict):
        return value or {}
    raise MemberError(f"expected {name}, an object, found {kind(value)}")


def values(value: object, name: str) -> list[Any]:
    """A list; nothing is an empty one."""
    if value is None or isinstance(value, list):
        return value or []
    raise MemberError(f"expected {name}, a list, found {kind(value)}")


def kind(value: object) -> str:
    """A value as an error message calls it."""
    if isinstance(value, str):
        return repr(value[:40])
    return "none" if value is None else str(value)[:40] if isinstance(value, int | float) else type(value).__name__
