"""XML as elements, attributes and text, and nothing more: what else XML can do is refused, not interpreted.

The parser is expat. A document type declaration is refused where it begins, and with it every entity declaration and
every reference to another file, since those need one. Size, depth and the number of elements are bounded, so that no
file, however made, costs more than some hundred megabytes or never ends. (defusedxml refuses declarations too, but
bounds nothing, gives no line numbers, and takes half as much time again for a small file.)
"""

from __future__ import annotations

import codecs
import io
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import encoding_of, is_file, open_file, os_errors, read_head
from tensorstore_ds.sources.files import glance
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.ledger import Ledger

FILE_LIMIT = 16 << 20  # bytes of one tree, and of a file read as one tree
STREAM_LIMIT = 1 << 30  # bytes of a file that is read element by element
DEPTH_LIMIT = 64  # elements within one another; the formats read here need 5
TREE_LIMIT = 500_000  # elements of one tree: about 100 MB
_TOKEN_LIMIT = 1 << 20  # bytes of a tag, comment or text; expat's time for a tag grows with the square of its length
_CHUNK = 1 << 16

_SYNTAX_ENCODING = {18, 19}  # expat: unknown encoding; declared encoding is not the one found
_INVALID_TOKEN = 4
_ROOT = re.compile(rb"<(annotations?|dataset)[\s/>]|<(images)>\s*<image\s+file\b", re.IGNORECASE)
_DECLARED = re.compile(rb"<\?xml\s[^<>]{0,200}?encoding\s{0,20}=\s{0,20}[\"'](?:x-)?([A-Za-z0-9._-]{1,40})[\"']")
#: Encodings with several bytes for a character, which expat does not know, by Python's names. Python decodes them. For
#: the smaller ones the larger ones are used, because programs declare the first and write the second.
_DECODED = {
    **dict.fromkeys(("gb2312", "gbk", "gb18030"), "gb18030"),
    **dict.fromkeys(("euc_kr", "cp949"), "cp949"),
    **dict.fromkeys(("shift_jis", "cp932"), "cp932"),
    **{name: name for name in ("big5", "big5hkscs", "cp950", "shift_jis_2004", "shift_jisx0213", "johab", "hz")},
    **{name: name for name in ("euc_jp", "euc_jis_2004", "euc_jisx0213", "iso2022_kr", "iso2022_jp", "iso2022_jp_2")},
}
_NO = frozenset({"", "0", "false", "no", "unspecified"})
_YES = frozenset({"1", "true", "yes"})
_SAMPLE = 8  # XML files of a folder that are read to detect its format
_SAMPLE_FOLDERS = 16
_HEAD = 4096
#: In pixels: larger numbers lose their meaning in the float32 of a store.
PLACE_LIMIT = 1e9

Place = tuple[float, float]  # x y; NaN NaN where a keypoint is absent
ABSENT: Place = (math.nan, math.nan)


def read_tree(path: Path, where: str) -> Element:
    """Root element of a small XML file, which errors call `where`."""
    ((_, root),) = iterate_elements(path, where, limit=FILE_LIMIT)
    return root


def iterate_elements(
    path: Path,
    where: str,
    root: str | None = None,
    *tags: str,
    limit: int = STREAM_LIMIT,
    ledger: Ledger | None = None,
    passed: Collection[str] = (),
) -> Iterator[tuple[int, Element]]:
    """Elements with one of these tags, with their line numbers, of a file too large for one tree.

    The root must be `root`, else the first tag and ``s``. Without `tags`, the root itself is the element. `ledger`
    receives the other elements outside of these, except those with a tag in `passed`.
    """
    parser, decode = _Parser(where, root, tags), None
    try:
        with os_errors(where), open_file(path, where, 0) as file:
            # one of an archive is in memory
            size = file.getbuffer().nbytes if isinstance(file, io.BytesIO) else os.fstat(file.fileno()).st_size
            if size > limit:
                raise parser.too_large(f"at most {limit >> 20} MiB", f"{size} bytes")
            left = limit
            while left > 0 and (data := file.read(min(_CHUNK, left))):
                if left == limit and (encoding := _decoded_by_python(data)):
                    decode = codecs.getincrementaldecoder(encoding)()
                    parser.is_decoded()
                left -= len(data)
                yield from parser.parse(data if decode is None else _as_utf8(decode, data, where))
        yield from parser.parse(b"" if decode is None else _as_utf8(decode, b"", where, final=True), final=True)
        for tag in parser.skipped:
            if ledger is not None and tag not in passed:
                ledger.unread(f"<{tag}>", where)
    finally:
        parser.close()


def _decoded_by_python(head: bytes) -> str | None:
    """Encoding for decoding in Python, from the first bytes of a file; None if expat supports it."""
    if (encoding := encoding_of(head)) in ("utf-32", "utf-32-be", "utf-32-le"):
        return encoding
    declared = _DECLARED.match(head)
    try:
        return _DECODED.get(codecs.lookup(declared[1].decode()).name) if declared else None
    except LookupError:  # expat reports it
        return None


def _as_utf8(decode: codecs.IncrementalDecoder, data: bytes, where: str, *, final: bool = False) -> bytes:
    try:
        return decode.decode(data, final).encode()
    except UnicodeError as error:
        name = error.encoding if isinstance(error, UnicodeDecodeError) else "an encoding"
        message = f"expected text in the encoding declared, found other bytes than of {name}. Save the file as UTF-8."
        raise SourceError(Problem(where, "xml-encoding", message)) from error


class _Parser:
    """Builds a tree of each element with one of the tags (of the root without tags), and drops the rest."""

    def __init__(self, where: str, root: str | None, tags: tuple[str, ...]) -> None:
        self.where = where
        self.skipped: dict[str, None] = {}  # tags of elements outside of the trees
        self._root, self._tags = root, tags
        self._finished: list[tuple[int, Element]] = []  # trees, each with the line of its beginning
        self._builder = TreeBuilder()
        self._depth = 0  # of the open element in the document
        self._inside = 0  # of the open element in the tree being built; 0 when none is
        self._line = self._begin = self._count = 0  # of the tree being built: first line and byte, elements so far
        self._fed = 0  # bytes given to expat before the chunk that it has now
        self._since = 0  # bytes given to it since it last reported a tag or a comment
        self._create()

    def is_decoded(self) -> None:
        """Expect UTF-8, whatever encoding the file declares."""
        self._create("utf-8")

    def _create(self, encoding: str | None = None) -> None:
        self._expat = expat.ParserCreate(encoding)
        self._expat.buffer_text = True
        self._expat.StartDoctypeDeclHandler = self._doctype
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CommentHandler = self._comment

    def close(self) -> None:
        """Release expat, which refers to methods of this object: a cycle that only the garbage collector would free."""
        del self._expat

    def parse(self, data: bytes, *, final: bool = False) -> list[tuple[int, Element]]:
        """The trees that end in this chunk."""
        self._finished = []
        self._since += len(data)
        try:
            self._expat.Parse(data, final)
        except expat.ExpatError as error:
            raise SourceError(self._problem(error, data)) from error
        except SourceError:  # also a ValueError, but ours
            raise
        except (LookupError, ValueError) as error:  # pyexpat's words for an encoding that Python does not have
            message = f"expected an encoding of XML, such as UTF-8, found {error}. Save the file as UTF-8."
            raise SourceError(Problem(self.where, "xml-encoding", message)) from error
        self._fed += len(data)
        if self._since > _TOKEN_LIMIT:
            raise self.too_large(f"tags and texts of at most {_TOKEN_LIMIT >> 20} MiB")
        if self._inside and self._fed - self._begin > FILE_LIMIT:
            raise self.too_large(f"elements of at most {FILE_LIMIT >> 20} MiB")
        return self._finished

    def too_large(self, expected: str, found: str = "more") -> SourceError:
        """Error `xml-size`."""
        return SourceError(Problem(self.where, "xml-size", f"expected {expected}, found {found}."))

    def _problem(self, error: expat.ExpatError, data: bytes) -> Problem:
        reason, message = "xml-syntax", f"expected well-formed XML, found: {expat.ErrorString(error.code)}."
        # XML that says nothing of its encoding is UTF-8; a byte that is not shows that it was written as another
        i = self._expat.ErrorByteIndex - self._fed
        if error.code in _SYNTAX_ENCODING:
            reason, message = "xml-encoding", f"{expat.ErrorString(error.code)}. Save the file as UTF-8."
        elif error.code == _INVALID_TOKEN and 0 <= i < len(data) and data[i] >= 0x80:
            expected = "expected text in the encoding declared (UTF-8 if none is), found other bytes."
            reason, message = "xml-encoding", f"{expected} Save the file as UTF-8."
        return Problem(self.where, reason, f"line {error.lineno}: {message}")

    def _doctype(self, *_: object) -> None:
        message = "expected plain XML, found a document type declaration (DOCTYPE). Remove it."
        raise SourceError(Problem(self.where, "xml-doctype", message))

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._since = 0
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise self.too_large(f"at most {DEPTH_LIMIT} elements within one another")
        if self._depth == 1 and self._root not in (None, tag) and tag != f"{self._tags[0]}s":
            message = f"expected the root element <{self._root}>, found <{tag}>."
            raise SourceError(Problem(self.where, "annotation", message))
        if not self._inside:
            if self._tags and tag not in self._tags:
                if self._depth > 1:
                    self.skipped[tag] = None
                return
            self._line, self._begin = self._expat.CurrentLineNumber, self._expat.CurrentByteIndex
            self._count = 0
            self._expat.CharacterDataHandler = self._builder.data  # C calls C: most calls are for white space
        self._inside += 1
        self._count += 1
        if self._count > TREE_LIMIT:
            raise self.too_large(f"at most {TREE_LIMIT} elements")
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
            self._finished.append((self._line, self._builder.close()))
            self._builder = TreeBuilder()

    def _comment(self, _: str) -> None:
        self._since = 0


# --- values -------------------------------------------------------------------------------------------------------


def number(text: str | None, name: str) -> float:
    """Parse a number, including ``nan`` and ``inf``; raises `FormError` for other text.

    >>> number(" 12.5\\n", "xmin")
    12.5
    """
    try:
        if text is not None and "_" not in text:  # float() accepts it
            return float(text)
    except ValueError:
        pass
    raise FormError(f"expected {name}, a number, found {shown(text)}")


def pixels(text: str | None) -> int:
    """Parse a width or height; 0 if it is missing or not positive."""
    try:
        value = number(text, "")
    except FormError:
        return 0
    return int(value) if 0 < value < 2**31 else 0


def flag(text: str | None, name: str) -> int:
    """0 or 1 for common spellings of no and yes; empty and ``Unspecified`` are 0. Raises `FormError` for the rest.

    >>> [flag(text, "difficult") for text in ("1", "true", "2", " ")]
    [1, 1, 1, 0]
    """
    word = (text or "").strip().lower()
    if word in _NO or word in _YES:
        return int(word in _YES)
    try:
        value = number(word, name)
    except FormError:
        value = math.nan
    if math.isnan(value):
        raise FormError(f"expected {name} to be 0 or 1, found {shown(text)}")
    return int(value != 0)


def parse_point(x: str | None, y: str | None, name: str) -> Place:
    """Position of a keypoint: `ABSENT` if a coordinate is ``nan``; raises `FormError` if it is too far away."""
    column, row = number(x, f"x of keypoint {name}"), number(y, f"y of keypoint {name}")
    if math.isnan(column) or math.isnan(row):
        return ABSENT
    if max(abs(column), abs(row)) > PLACE_LIMIT:
        raise FormError(f"expected keypoint {name} within a billion pixels, found {column} {row}")
    return column, row


def keypoints_of(pairs: Iterable[tuple[str, Place]]) -> dict[str, Place]:
    """Keypoints by name; raises `FormError` for a repeated name."""
    keypoints: dict[str, Place] = {}
    for name, position in pairs:
        if name in keypoints:
            raise FormError(f"expected each keypoint once, found {name} twice")
        keypoints[name] = position
    return keypoints


def shown(text: str | None) -> str:
    """Quote a text for an error message."""
    return "none" if text is None else repr(text if len(text) <= 40 else f"{text[:40]}...")


# --- what a file seems to be --------------------------------------------------------------------------------------


def has_root(path: Path, roots: Collection[str]) -> bool:
    """Whether `file_root` detects one of these roots in a file, or in some files below a folder."""
    found = [{file_root(path)}] if is_file(path) else folder_roots(path)
    return any(not each.isdisjoint(roots) for each in found)


def folder_roots(path: Path) -> list[set[str | None]]:
    """For some folders below, the set of roots that `file_root` detects in some of their XML files."""
    folders: dict[str, list[str]] = {}
    for name in sorted(name for name in glance(path) if name.lower().endswith(".xml")):
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    some = (names[:_SAMPLE] for names in islice(folders.values(), _SAMPLE_FOLDERS))
    return [{root for name in names if (root := file_root(path / name))} for names in some]


def file_root(path: Path) -> str | None:
    """``annotation``, ``annotations``, ``dataset`` or imglab's ``images``, if the first bytes contain such a tag."""
    head = read_head(path, _HEAD)
    match = _ROOT.search(head.replace(b"\0", b""))  # UTF-16 has a zero byte in each ASCII character
    return (match[1] or match[2]).decode().lower() if match else None
