"""The ledger of a scan: which parts of a source were used, and which were not.

A reader notes what it uses. Everything else in the source is reported once for each kind, with a count and an example,
so that a reader that forgets a file, an element or a column reports it instead of losing it in silence.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem
from tensorstore_ds.regular_files import entries, is_dir
from tensorstore_ds.sources.files import find_file, glance, walk_files
from tensorstore_ds.sources.forms import noted

#: The reason code of everything that the ledger reports.
NOT_READ = "not-read"
#: The reason codes of parts of a source that are not in the store, though they may belong there.
UNUSED = frozenset({NOT_READ, "not-listed", "class-list", "empty-split"})
#: Files that are passed over in silence, by their names up to the first dot, in lower case. `walk_files` also passes
#: over hidden names and `LITTER`.
DOCUMENTS = frozenset(
    {"authors", "changelog", "citation", "contributing", "copying", "licence", "license", "notice", "readme"}
)
#: Suffixes of files that only say how others are shown, such as dlib's style sheets; also passed over.
STYLES = frozenset({"css", "xsl", "xslt"})
#: The members of a mapping in `Known` whose values are used, whatever they are.
USED: None = None
#: In a mapping in `Known`: any other member.
ANY = "*"
#: In a mapping in `Known`: the text of the element itself.
TEXT = "#text"
#: In a mapping in `Known`: an element whose text is used, and nothing in it.
LEAF: Mapping[str, Any] = {TEXT: USED}

#: Which members a reader uses: by their names, `USED` or the same for the members within. The members of a list are
#: elements of one kind. An XML attribute is named ``@name``.
Known = Mapping[str, Any]

_AT_ONCE = 1 << 16  # paths that are looked up together
_FOLDERS = 20  # top folders with unused files of one suffix that are reported one by one


@dataclass(slots=True)
class _Kind:
    example: str
    count: int = 0  # of files, or of their parts
    last: str = ""

    def add(self, where: str) -> None:
        self.count += self.last != where
        self.last = where


class Ledger:
    """What a scan of the source at `root` used, and what it did not.

    >>> ledger = Ledger(Path("photos"))
    >>> ledger.members({"label": "cat", "score": 0.9, "note": None}, {"label": USED}, "a.json")
    >>> print(*ledger.problems())
    a.json: not read: "score".
    """

    def __init__(self, root: Path) -> None:
        self._root = _canonical(str(root))
        self._used = array("q")  # hashes of absolute paths
        self._kinds: dict[tuple[str, str], _Kind] = {}  # by name, and by what is counted
        self._files: dict[str, dict[str, _Kind]] = {}  # by suffix and top folder
        self._failed: list[Problem] = []

    def use(self, *paths: str | Path) -> None:
        """Note files that the scan used, relative to the source or absolute; ``""`` is none."""
        named = (os.path.normpath(os.path.join(self._root, path)) for path in paths if path)  # noqa: PTH118
        self._used.extend(hash(_canonical(path)) for path in named)

    def unread(self, kind: str, where: str, of: str = "files") -> None:
        """Note data of a kind in the file `where` that is not used; several in one file count once.

        Args:
            kind: what it is, such as ``<pose>`` or ``the column X3``.
            where: path of the file, relative to the source; with `of`, a part of it, such as ``a.json: task 1``.
            of: what such parts are called.
        """
        self._kinds.setdefault((kind, of), _Kind(where)).add(where)

    def element(self, element: Element, known: Known, where: str) -> None:
        """Note attributes, texts and elements below an element that contain data and are not `known`."""
        if element.attrib:
            for name, value in element.attrib.items():
                if f"@{name}" not in known and value.strip():
                    self.unread(f"the attribute {name} of <{element.tag}>", where)
        if element.text and TEXT not in known and element.text.strip():
            self.unread(f"the text of <{element.tag}>", where)
        other = known.get(ANY, known)
        for child in element:
            inner = known.get(child.tag, other)
            if inner is known:
                if _holds_data(child):
                    self.unread(f"<{child.tag}>", where)
            elif inner is not None and (len(child) or child.attrib or (inner is not LEAF and child.text)):
                self.element(child, inner, where)

    def members(self, value: object, known: Known, where: str, of: str = "files") -> None:
        """Note members of a JSON value, or of the objects in a list, that contain data and are not `known`."""
        if isinstance(value, list):
            for each in value:
                self.members(each, known, where, of)
        elif isinstance(value, dict):
            for name, member in value.items():
                inner = known.get(name, known.get(ANY, known))
                if inner is known:
                    if member:  # neither nothing nor false or 0
                        self.unread(f'"{name}"', where, of)
                elif inner is not None:
                    self.members(member, inner, where, of)

    def problems(self) -> list[Problem]:
        """Return what was not used, one problem `not-read` for each kind, or suffix of files in a top folder."""
        found = list(self._failed)
        for suffix, by_folder in self._files.items():
            if len(by_folder) > _FOLDERS:
                first = next(iter(by_folder.values()))
                by_folder = {"": _Kind(first.example, sum(each.count for each in by_folder.values()))}
            for folder, kind in by_folder.items():
                more = f"not read: {kind.count:,} {suffix} files{folder and f' in {folder}'}."
                found.append(Problem(kind.example, NOT_READ, more if kind.count > 1 else "not read."))
        for (name, of), kind in self._kinds.items():
            many = f", in {kind.count:,} {of}" if kind.count > 1 else ""
            found.append(Problem(kind.example, NOT_READ, f"not read: {name}{many}."))
        return found

    def check_files(self, used: Iterable[str]) -> None:
        """Note all files of the source that are neither in `used`, as absolute paths, nor noted by `use`."""
        self._used.extend(map(hash, map(_canonical, used) if os.sep != "/" else used))
        if hash(self._root) in self._used or not is_dir(self._root):  # an archive may be one file of a format
            return
        known = np.unique(np.frombuffer(self._used, np.int64)) if self._used else np.empty(0, np.int64)
        others: list[str] = []
        paths = walk_files(Path(self._root), ("",), others=others)
        with noted(self._failed):  # of a folder that no reader came to
            while some := list(islice(paths, _AT_ONCE)):
                for path in _unknown(some, self._root, known):
                    self._unread_file(path)
        for path in others:
            self.unread("no regular file", path)

    def _unread_file(self, path: str) -> None:
        folder, _, name = path.lower().rpartition("/")
        stem, dot, suffix = name.rpartition(".")
        if not is_about(name):
            by_folder = self._files.setdefault(dot + suffix if stem else name, {})
            by_folder.setdefault(path.partition("/")[0] if folder else "", _Kind(path)).add(path)


def note_of_beside(root: Path, inner: Path) -> str:
    """Advice about the content of a source outside of its folder `inner`, after the advice to convert that folder."""
    parts = inner.relative_to(root).parts
    within = "".join(f"{part}/" for part in parts)
    beside = (  # also deeper than a glance
        "/".join([*parts[:i], name, file])
        for i, own in enumerate(parts)
        for name, is_folder in sorted(entries(root.joinpath(*parts[:i])))
        if is_folder
        and name != own
        and name[0] != "."
        and (file := find_file(root.joinpath(*parts[:i], name), ("",))[0])
    )
    files = (file for file in chain(glance(root), beside) if not file.startswith(within))
    other = next((file for file in files if not is_about(file.rpartition("/")[2])), None)
    return f" That does not read the files beside it, such as {other}." if other else ""


def is_about(name: str) -> bool:
    """Whether a file, by its name, documents a data set for readers."""
    name = name.lower()
    return name.partition(".")[0] in DOCUMENTS or name.rpartition(".")[2] in STYLES


def _canonical(path: str) -> str:
    return path.replace(os.sep, "/")


def _unknown(paths: list[str], root: str, known: NDArray[np.int64]) -> Iterator[str]:
    """Paths whose hashes are not in the sorted array `known`."""
    hashes = np.fromiter((hash(f"{root}/{path}") for path in paths), np.int64, len(paths))
    at = np.searchsorted(known, hashes)
    there = np.zeros(len(paths), np.bool_)
    inside = at < len(known)
    there[inside] = known[at[inside]] == hashes[inside]
    return (paths[i] for i in np.flatnonzero(~there))


def _holds_data(element: Element) -> bool:
    """Whether an element, or one within it, has a text or an attribute."""
    return any((each.text or "").strip() or any(map(str.strip, each.attrib.values())) for each in element.iter())
