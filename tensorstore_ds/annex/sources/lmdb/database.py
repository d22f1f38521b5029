"""The entries of an LMDB data file, in the order of their keys.

LMDB's own library trusts its file: it ends the process where one is cut short. Here every place is compared with the
file before it is read. The layout is that of LMDB 0.9, ``mdb.c``: ``MDB_page``, ``MDB_meta``, ``MDB_db``, ``MDB_node``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import open_file, os_errors

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META = 0x01, 0x02, 0x04, 0x08  # flags of a page
_BIG = 0x01  # flag of a node: its data are on pages of their own
_NO_PAGE = 2**64 - 1
_HEAD = 16  # bytes of a page before its nodes
_DEPTH_LIMIT = 32
_PAGE_SIZES = frozenset(256 << i for i in range(9))

_page_head = struct.Struct("<QHHHH")  # number, padding, flags, end of the places of nodes, begin of the nodes
_meta = struct.Struct("<IIQQ48s48sQQ")  # magic, version, address, map, two databases, last page, transaction
_tree = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, pages of three kinds, entries, page of the root
_node = struct.Struct("<HHHH")  # size of the data, or number of the page; flags; size of the key
_number = struct.Struct("<Q")


class Entry(NamedTuple):
    """A key, and the position of its value in the file."""

    key: bytes
    start: int
    nbytes: int


def is_database(head: bytes) -> bool:
    """Whether a file begins like an LMDB data file."""
    return head[_HEAD : _HEAD + 4] == _MAGIC.to_bytes(4, "little")


def map_file(path: Path, where: str) -> NDArray[np.uint8]:
    """(n,) bytes of a file, mapped read-only."""
    with os_errors(where), open_file(path, where) as file:
        try:
            return np.memmap(file, np.uint8, "r")
        except ValueError as error:  # it is empty
            raise damaged(where, "expected a database, found an empty file.") from error


def read_entries(data: memoryview, where: str) -> Iterator[Entry]:
    """Entries of the main database in the order of their keys.

    Raises `SourceError` `packed-file` for a damaged or cut file, duplicate keys, and named databases.
    """
    page_size, root = _root(data, where)
    if root == _NO_PAGE:
        return
    seen: set[int] = set()
    pending = [(root, 0)]
    while pending:
        number, depth = pending.pop()
        if number in seen or depth > _DEPTH_LIMIT:
            raise damaged(where, f"expected each page once in the tree, found page {number} again.")
        seen.add(number)
        start = number * page_size
        if start + page_size > len(data):
            raise damaged(where, f"expected page {number} in the file, found {len(data):,} bytes: it is cut short.")
        page = data[start : start + page_size]
        _, _, flags, lower, _ = _page_head.unpack_from(page)
        if flags & ~0x10 not in (_BRANCH, _LEAF) or not _HEAD <= lower <= page_size or lower % 2:
            raise damaged(where, f"expected a page of a tree, found flags {flags:#x} of page {number}.")
        places = struct.unpack_from(f"<{(lower - _HEAD) // 2}H", page, _HEAD)
        if flags & _BRANCH:
            pending += [(_child(page, place, where), depth + 1) for place in reversed(places)]
        else:
            for place in places:
                yield _entry(data, page, start, place, page_size, where)


def damaged(where: str, message: str) -> SourceError:
    """Error `packed-file`."""
    return SourceError(Problem(where, "packed-file", message), "Write the database again, or download it again.")


def _root(data: memoryview, where: str) -> tuple[int, int]:
    """Size of a page, and number of the root page, from the newer of the first 2 pages."""
    found: list[tuple[int, int, int]] = []
    place = 0
    for _ in range(2):
        if place + _HEAD + _meta.size > len(data):
            break
        magic, version, _, _, free, main, _, transaction = _meta.unpack_from(data, place + _HEAD)
        page_size = _tree.unpack(free)[0]
        if magic == _MAGIC and version != _VERSION:
            message = f"expected a database of version {_VERSION}, found version {version}."
            advice = "Copy it into a database of LMDB 0.9, on a 64-bit machine."
            raise SourceError(Problem(where, "packed-file", message), advice)
        if magic == _MAGIC and page_size in _PAGE_SIZES and _page_head.unpack_from(data, place)[2] & _META:
            found.append((transaction, page_size, place))
        place = page_size if page_size in _PAGE_SIZES else 4096
    if len(found) < 2 or len(data) < 2 * found[0][1]:
        raise damaged(where, "expected LMDB's data file of a 64-bit machine, found something else, or its beginning.")
    _, page_size, place = max(found)
    main = _meta.unpack_from(data, place + _HEAD)[5]
    _, flags, _, _, _, _, _, root = _tree.unpack(main)
    if flags & 0x04:  # MDB_DUPSORT
        message = "expected one value for each key, found a database of several."
        raise SourceError(Problem(where, "packed-file", message), "Give each image a different key.")
    return page_size, root


def _child(page: memoryview, place: int, where: str) -> int:
    """Number of the page that a node of a branch points to."""
    if place + _node.size > len(page):
        raise damaged(where, "expected nodes inside of their page, found one outside.")
    low, high, highest, _ = _node.unpack_from(page, place)
    return int(low | high << 16 | highest << 32)


def _entry(data: memoryview, page: memoryview, start: int, place: int, page_size: int, where: str) -> Entry:
    if place + _node.size > page_size:
        raise damaged(where, "expected nodes inside of their page, found one outside.")
    low, high, flags, key_size = _node.unpack_from(page, place)
    nbytes, begin = low | high << 16, place + _node.size + key_size
    end = begin + (_number.size if flags & _BIG else nbytes)
    if end > page_size:
        raise damaged(where, "expected a key and its value inside of their page, found them outside.")
    if flags & ~_BIG:
        message = "expected keys and values, found a database in the database."
        raise SourceError(Problem(where, "packed-file", message), "Copy the inner database into a separate file.")
    key = bytes(page[begin - key_size : begin])
    if not flags & _BIG:
        return Entry(key, start + begin, nbytes)
    own = _number.unpack_from(page, begin)[0] * page_size
    if own + _HEAD + nbytes > len(data):
        raise damaged(where, f"expected a value of {nbytes:,} bytes in the file, found its end: it is cut short.")
    if not _page_head.unpack_from(data, own)[2] & _OVERFLOW:
        raise damaged(where, "expected a value on pages of its own, found another page.")
    return Entry(key, own + _HEAD, nbytes)
