"""XML as elements, attributes and text, and nothing more: what else XML can do is refused, not interpreted.

The parser is expat. A document type declaration is refused where it begins, and with it every entity declaration and
every reference to another file, since those need one. Size, depth and the number of elements are bounded, so that no
file, however made, costs more than some hundred megabytes or never ends.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import check_machine, open_file, unreadable
from tensorstore_ds.sources.files import glance

FILE_LIMIT = 16 << 20  # bytes of one tree, and so of a file that is read as one
STREAM_LIMIT = 1 << 30  # bytes of a file that is read element by element
DEPTH_LIMIT = 64  # elements within one another; the formats read here need 5
TREE_LIMIT = 500_000  # elements of one tree: about 100 MB
_TOKEN_LIMIT = 1 << 20  # bytes of a tag, comment or text; expat's time for a tag grows with the square of its length
_CHUNK = 1 << 16

_SYNTAX_ENCODING = {18, 19}  # expat: unknown encoding; declared encoding is not the one found
_INVALID_TOKEN = 4
_ROOT = re.compile(rb"<(annotation|dataset)[\s/>]")
_NO = frozenset({"", "0", "false", "no", "unspecified"})
_YES = frozenset({"1", "true", "yes"})
_SAMPLE = 8  # XML files whose beginning tells the format of a folder
_HEAD = 4096


def read_tree(path: Path, where: str) -> Element:
    """The root element of a small XML file.

    Args:
        path: the file.
        where: its name in errors.

    Raises:
        SourceError: `unreadable-file`, `xml-size`, `xml-doctype`, `xml-encoding`, `xml-syntax`.
    """
    parser = _Parser(where, None)
    for _ in parser.run(_chunks(path, where, FILE_LIMIT)):
        pass
    return parser.elements[0][1]


def iterate_elements(path: Path, where: str, root: str, tag: str) -> Iterator[tuple[int, Element]]:
    """The elements named `tag`, each with the number of its line, of a file that may be too large for one tree.

    Raises:
        SourceError: as `read_tree` does; `annotation` when the file's root is not `root`.
    """
    parser = _Parser(where, tag, root)
    for _ in parser.run(_chunks(path, where, STREAM_LIMIT)):
        yield from parser.elements
        parser.elements.clear()


def number(text: str | None) -> float | None:
    """The number that a text is; None when it is none. ``nan`` and ``inf`` are numbers.

    >>> number(" 12.5\\n"), number("1_000"), number(None)
    (12.5, None, None)
    """
    if text is None or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def pixels(text: str | None) -> int:
    """A width or height as a whole number of pixels; 0 when it is missing or no positive number."""
    value = number(text)
    return int(value) if value is not None and 0 < value < 2**31 else 0


def flag(text: str | None) -> int | None:
    """0 or 1 for what programs write for no and yes; None for anything else. Nothing, or ``Unspecified``, is no.

    >>> flag("1"), flag("true"), flag("2"), flag(" "), flag("maybe")
    (1, 1, 1, 0, None)
    """
    word = (text or "").strip().lower()
    if word in _NO:
        return 0
    value = 1.0 if word in _YES else number(word)
    return None if value is None or math.isnan(value) else int(value != 0)


def shown(text: str | None) -> str:
    """A text as an error message quotes it."""
    return "none" if text is None else repr(text if len(text) <= 40 else f"{text[:40]}...")


def folder_roots(path: Path) -> set[str]:
    """Which of the roots ``annotation`` and ``dataset`` some of the XML files below a folder seem to have."""
    names = sorted(name for name in glance(path) if name.lower().endswith(".xml"))
    return {root for name in names[:_SAMPLE] if (root := file_root(path / name))}


def file_root(path: Path) -> str | None:
    """``annotation`` or ``dataset`` where the file's first bytes, in any encoding, have such a tag."""
    try:
        with open_file(path, path.name, 0) as file:
            head = file.read(_HEAD)
    except SourceError:
        return None  # a scan reports it
    except OSError as error:
        check_machine(path.name, error)
        return None
    match = _ROOT.search(head.replace(b"\0", b""))  # UTF-16 has a zero byte in each ASCII character
    return match[1].decode() if match else None


def _chunks(path: Path, where: str, limit: int) -> Iterator[bytes]:
    try:
        with open_file(path, where, 0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                _refuse(where, f"expected at most {limit >> 20} MiB, found {size} bytes.")
            left = limit
            while left > 0 and (data := file.read(min(_CHUNK, left))):
                left -= len(data)
                yield data
    except OSError as error:
        raise SourceError(unreadable(where, error)) from error


def _refuse(where: str, message: str) -> NoReturn:
    raise SourceError(Problem(where, "xml-size", message))


class _Parser:
    """Builds a tree of each element named `tag` (of the root where that is None), and keeps nothing else."""

    def __init__(self, where: str, tag: str | None, root: str | None = None) -> None:
        self.elements: list[tuple[int, Element]] = []  # finished trees, each with the line of its beginning
        self._where, self._tag, self._root = where, tag, root
        self._builder = TreeBuilder()
        self._depth = 0  # of the open element in the document
        self._inside = 0  # of the open element in the tree being built; 0 when none is
        self._line = self._begin = self._count = 0  # of the tree being built: first line and byte, elements so far
        self._fed = 0  # bytes given to expat before the chunk that it has now
        self._since = 0  # bytes given to it since it last reported a tag or a comment
        self._expat = expat.ParserCreate()
        self._expat.buffer_text = True
        self._expat.StartDoctypeDeclHandler = self._doctype
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CommentHandler = self._comment

    def run(self, chunks: Iterable[bytes]) -> Iterator[None]:
        """Parse the chunks; stops after each, for the caller to take `elements`."""
        try:
            for chunk in chunks:
                self._since += len(chunk)
                self._parse(chunk, False)
                self._fed += len(chunk)
                if self._since > _TOKEN_LIMIT:
                    _refuse(self._where, f"expected tags and texts of at most {_TOKEN_LIMIT >> 20} MiB, found more.")
                if self._inside and self._fed - self._begin > FILE_LIMIT:
                    _refuse(self._where, f"expected elements of at most {FILE_LIMIT >> 20} MiB, found more.")
                yield
            self._parse(b"", True)
            yield
        finally:
            del self._expat  # it holds methods of this object: a cycle, which would live on until a garbage collection

    def _parse(self, data: bytes, final: bool) -> None:
        try:
            self._expat.Parse(data, final)
        except expat.ExpatError as error:
            raise SourceError(self._problem(error, data)) from error
        except SourceError:  # a ValueError too, but ours
            raise
        except (LookupError, ValueError) as error:  # pyexpat's words for an encoding that Python does not have
            message = f"expected an encoding of XML, such as UTF-8, found {error}. Save the file as UTF-8."
            raise SourceError(Problem(self._where, "xml-encoding", message)) from error

    def _problem(self, error: expat.ExpatError, data: bytes) -> Problem:
        place = f"line {error.lineno}"
        if error.code in _SYNTAX_ENCODING:
            message = f"{place}: {expat.ErrorString(error.code)}. Save the file as UTF-8."
            return Problem(self._where, "xml-encoding", message)
        # XML that says nothing of its encoding is UTF-8; a byte that is not shows that it was written as another
        at = self._expat.ErrorByteIndex - self._fed
        if error.code == _INVALID_TOKEN and 0 <= at < len(data) and data[at] >= 0x80:
            message = f"{place}: expected text in the encoding declared (UTF-8 if none is), found other bytes."
            return Problem(self._where, "xml-encoding", f"{message} Save the file as UTF-8.")
        message = f"{place}: expected well-formed XML, found: {expat.ErrorString(error.code)}."
        return Problem(self._where, "xml-syntax", message)

    def _doctype(self, *_: object) -> None:
        message = "expected plain XML, found a document type declaration (DOCTYPE). Remove it."
        raise SourceError(Problem(self._where, "xml-doctype", message))

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._since = 0
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            _refuse(self._where, f"expected at most {DEPTH_LIMIT} elements within one another, found more.")
        if self._depth == 1 and self._root not in (None, tag):
            message = f"expected the root element <{self._root}>, found <{tag}>."
            raise SourceError(Problem(self._where, "annotation", message))
        if not self._inside:
            if self._tag not in (None, tag):
                return
            self._line, self._begin = self._expat.CurrentLineNumber, self._expat.CurrentByteIndex
            self._count = 0
            self._expat.CharacterDataHandler = self._builder.data  # C calls C: most calls are for white space
        self._inside += 1
        self._count += 1
        if self._count > TREE_LIMIT:
            _refuse(self._where, f"expected at most {TREE_LIMIT} elements, found more.")
        self._builder.start(tag, attributes)

    def _end(self, tag: str) -> None:
        self._since = 0
        self._depth -= 1
        if not self._inside:
            return
        self._builder.end(tag)
        self._inside -= 1
        if not self._inside:
            self._expat.CharacterDataHandler = None
            self.elements.append((self._line, self._builder.close()))
            self._builder = TreeBuilder()

    def _comment(self, _: str) -> None:
        self._since = 0
