"""Strict reading of JSON files of labelling tools."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import as_utf8, read_file
from tensorstore_ds.sources.forms import FormError, kind
from tensorstore_ds.sources.json_objects import check_not_empty, parse_object

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


#: Bytes of a list that are parsed at a time, and of other values at first.
_PIECE, _FIRST = 1 << 20, 1 << 12
_WHITE = b" \t\n\r"
_GAP = re.compile(rb"[ \t\n\r,]*")
#: Where one element may end and the next one begin. The parser tells whether they do; the last few places are tried.
_CUT, _CUTS, _CUT_NBYTES = re.compile(rb"\}[ \t\n\r]*,[ \t\n\r]*\{"), 8, 1 << 16
_TRAILING = re.compile(r"trailing characters \(byte ([0-9]+)\)")
_BYTE = re.compile(r"\(byte ([0-9]+)\)")
_CUT_SHORT = "expected JSON, found its end too early: it was cut short"

#: The parts of an object at the top of a text: strings, brackets, and what tells names from values.
_PART = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{}:,]', re.DOTALL)


def read_object(path: Path, where: str, limit: int) -> dict[str, Any]:
    """Read the object in a JSON file of at most `limit` bytes, which errors call `where`."""
    return parse_object(read_file(path, where, limit), where)


def read_list(path: Path, where: str, limit: int, max_values: int) -> list[Any]:
    """Read the list in a JSON file, with at most `max_values` values at all depths."""
    data = as_utf8(read_file(path, where, limit), where, "json")
    found = parse_object(b'{"list":' + data + b"}", where, max_values)
    values = found["list"]
    if len(found) > 1 or not isinstance(values, list):
        raise SourceError(Problem(where, "json", "expected a list, found another value."), "Export the data set again.")
    return values


def decoded(data: bytes, where: str, type: Any) -> Any:
    """JSON in any Unicode encoding as a type that msgspec decodes; raises `SourceError` `json`.

    A `msgspec.Raw` in it is validated, not decoded.
    """
    check_not_empty(data, where)
    try:
        return msgspec.json.decode(as_utf8(data, where, "json"), type=type)
    except JSON_ERRORS as error:
        raise SourceError(Problem(where, "json", f"{unlike(error)}."), "Write the file again.") from error


#: The members of an object, for `decoded`.
MEMBERS = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some elements of a list: `text` is a JSON list of these alone, `start` the file position of its first byte."""

    text: bytes
    start: int
    values: list[msgspec.Raw]

    def begins(self) -> Iterator[int]:
        """File position of each element."""
        at = 1
        for value in self.values:
            at = _GAP.match(self.text, at).end()  # type: ignore[union-attr]  # it also matches nothing
            yield self.start + at
            at += len(memoryview(value))


class JsonPieces:
    """The object in a JSON file. Its lists are parsed in pieces, so only a part of the file is in memory.

    `start` is the number of bytes of the byte order mark.
    """

    def __init__(self, file: BinaryIO, start: int = 0) -> None:
        self._file, self._start, self._nbytes = file, start, file.seek(0, io.SEEK_END)

    @cached_property
    def members(self) -> dict[str, tuple[int, int]]:
        """Begin and end of each member's value; raises as `find`, and for a repeated name."""
        found: dict[str, tuple[int, int]] = {}
        for name, place in self.find():
            if name in found:
                raise FormError(f"expected each member once, found {name[:200]!r} again")
            found[name] = place
        return found

    def find(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The members, parsed as far as iterated. Raises `FormError` if the file is not JSON, or has no object."""
        at = self._after(self._start, b"{")
        is_open = self._read(at, 1) != b"}"
        while is_open:
            self._expect(at, b'"')
            end = self._end(at)
            try:
                name = msgspec.json.decode(self._read(at, end - at), type=str)
            except JSON_ERRORS as error:
                raise _moved(error, at) from error
            begin = self._after(end, b":")
            end = self._end(begin)
            yield name, (begin, end)
            at = self._gap(end)
            if is_open := self._read(at, 1) != b"}":
                at = self._after(at, b",")
        if (end := self._after(at, b"}")) < self._nbytes:
            raise FormError(f"expected JSON, found: trailing characters (byte {end})")

    def read(self, name: str) -> bytes:
        """JSON of a member; empty if it is missing."""
        begin, end = self.members.get(name, (0, 0))
        return self._read(begin, end - begin)

    def pieces(self, name: str) -> Iterator[Piece]:
        """Elements of a list; none if it is null or missing. Raises `FormError` for other values."""
        begin, end = self.members.get(name, (0, 0))
        head = self._read(begin, min(1, end))
        if head not in (b"", b"n", b"["):
            raise FormError(f"{name}: expected a list, found {'an object' if head == b'{' else 'another value'}")
        return (piece for piece, _ in self._pieces(begin, _elements)) if head == b"[" else iter(())

    def _end(self, at: int) -> int:
        """End of a value. Only long lists are parsed in pieces."""
        nbytes = _FIRST
        while True:
            data = self._read(at, nbytes)
            try:
                _, end = _leading(_skip, data)
            except JSON_ERRORS as error:
                self._check(error, at, data, nbytes)
                if nbytes >= _PIECE and data[:1] == b"[":
                    return max(end for _, end in self._pieces(at, _skip))
            else:
                if end < len(data) or self._is_last(at, data, nbytes):
                    return at + end
            nbytes *= 4

    def _pieces(self, at: int, decode: Callable[[bytes], Any]) -> Iterator[tuple[Piece, int]]:
        """Elements of a list, and the position of the following ones, or after the list."""
        nbytes, is_last = _PIECE, False
        while not is_last:
            data = b"[" + self._read(at + 1, nbytes)
            cuts = [(cut.start() + 1, cut.end() - 2) for cut in _CUT.finditer(data, max(1, len(data) - _CUT_NBYTES))]
            for cut, following in cuts[: -_CUTS - 1 : -1]:
                text = data[:cut] + b"]"
                with contextlib.suppress(*JSON_ERRORS):
                    values, end = _leading(decode, text)
                    is_last = end < len(text)
                    step = end if is_last else following
                    break
            else:
                try:
                    values, end = _leading(decode, data)
                except JSON_ERRORS as error:
                    self._check(error, at, data, nbytes)
                    nbytes *= 4
                    continue
                text, is_last, step = data, True, end
            piece = Piece(text[:end], at, values)
            at += step
            yield piece, at
            nbytes = _PIECE

    def _check(self, error: Exception, at: int, data: bytes, nbytes: int) -> None:
        """Raise `FormError` unless more bytes after `data`, which begins at `at`, could make it JSON."""
        found = _BYTE.search(str(error))
        is_early = isinstance(error, RecursionError) or (found is not None and int(found[1]) < len(data) - 1)
        if is_early or self._is_last(at, data, nbytes):
            raise _moved(error, at) from error

    def _is_last(self, at: int, data: bytes, nbytes: int) -> bool:
        return len(data) < nbytes or at + len(data) >= self._nbytes

    def _after(self, at: int, mark: bytes) -> int:
        """Position after a mark and the white space around it."""
        at = self._gap(at)
        self._expect(at, mark)
        return self._gap(at + 1)

    def _expect(self, at: int, mark: bytes) -> None:
        if (found := self._read(at, 1)) != mark:
            raise FormError(f"expected JSON, found: invalid character (byte {at})" if found else _CUT_SHORT)

    def _gap(self, at: int) -> int:
        """Position after white space."""
        while (data := self._read(at, _FIRST)) and not data.lstrip(_WHITE):
            at += len(data)
        return at + len(data) - len(data.lstrip(_WHITE))

    def _read(self, at: int, nbytes: int) -> bytes:
        self._file.seek(at)
        return self._file.read(nbytes)


_skip = msgspec.json.Decoder(msgspec.Raw).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _leading(decode: Callable[[bytes], Any], text: bytes) -> tuple[Any, int]:
    """The value at the start of a text, and its end."""
    while True:
        try:
            return decode(text), len(text.rstrip(_WHITE))
        except msgspec.DecodeError as error:
            if (found := _TRAILING.search(str(error))) is None:
                raise
            text = text[: min(int(found[1]), len(text) - 1)].rstrip(_WHITE)


def _moved(error: BaseException, start: int) -> FormError:
    """The error with the position in the file, for a text that begins at `start`."""
    return FormError(_BYTE.sub(lambda found: f"(byte {int(found[1]) + start})", unlike(error)))


def first_members(text: str) -> set[str]:
    """Names of the members of the object at the start of a text, which may be cut.

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
    """msgspec's error for the member `name` in this project's words, for the middle of a sentence.

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
        return _CUT_SHORT
    if isinstance(error, RecursionError):
        return "expected JSON, found it nested too deeply"
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in what:  # of msgspec before 0.23, and since
        return "expected JSON in UTF-8, found other bytes"
    return f"{place}expected JSON, found: {what.removeprefix('JSON is malformed: ')}"


def _types(said: str) -> str:
    types = said.split(" | ")
    names = (_NAMES.get(each, each) for each in types if not (each == "int" and "float" in types))
    return " or ".join(names)


def finite(value: object, name: str) -> float:
    """A number; raises `FormError` for anything else, including booleans and NaN."""
    with contextlib.suppress(OverflowError):  # of a whole number beyond all floats
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise FormError(f"expected {name}, a number, found {kind(value)}")


def text(value: object, name: str) -> str:
    """A text that is not empty, stripped."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise FormError(f"expected {name}, a text, found {kind(value)}")


def members(value: object, name: str) -> Mapping[str, Any]:
    """An object; null is an empty one."""
    if value is None or isinstance(value, dict):
        return value or {}
    raise FormError(f"expected {name}, an object, found {kind(value)}")


def values(value: object, name: str) -> list[Any]:
    """A list; null is an empty one."""
    if value is None or isinstance(value, list):
        return value or []
    raise FormError(f"expected {name}, a list, found {kind(value)}")
