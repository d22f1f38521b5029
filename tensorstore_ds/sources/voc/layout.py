"""Folders and splits of a Pascal VOC data set: formats/sources/voc.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.packed_strings import place_of
from tensorstore_ds.regular_files import TEXT_LIMIT, decode_text, entries, is_dir, is_file, os_errors, read_file
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.images import FOLDERS
from tensorstore_ds.sources.splits import SPLIT_NAMES, Splits, drop_unions, folder_splits, notes_of_renamed, split_names

ANNOTATIONS, _IMAGES = "Annotations", "JPEGImages"
#: Folders of lists. The first one with lists counts, and after them the folder of the data set.
_MAIN = "ImageSets/"
_LISTS = (f"{_MAIN}Main/", _MAIN, f"{_MAIN}Segmentation/", f"{_MAIN}Layout/", f"{_MAIN}Action/")
_SPLITS = SPLIT_NAMES | {"trainval"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths relative to the source: folders are ``""`` or end with ``/``."""

    annotations: str = ""  #: the folder that all XML files lie in or below
    images: str = ""  #: the folder that all images lie in or below
    lists: tuple[str, ...] = ()  #: the files that may list splits


def find_layout(root: Path) -> Layout:
    """Find the layout of a VOCdevkit, of one of its data sets, or of XML files anywhere."""
    with os_errors(str(root)):
        base = _base(root)
        folder = base or ""
        found = (_lists(root, f"{folder}{each}") for each in _LISTS)
        lists = next((each for each in found if each), None)
        if lists is None:
            words = {each: re.split(r"[^a-z]+", PurePosixPath(each).stem.lower()) for each in _lists(root, folder)}
            lists = [each for each in words if not _SPLITS.isdisjoint(words[each])]
        if base is None:
            return Layout(lists=tuple(lists))
        images = f"{base}{_IMAGES}/" if is_dir(root / base / _IMAGES) else base
    return Layout(f"{base}{ANNOTATIONS}/", images, tuple(lists))


def _lists(root: Path, folder: str) -> list[str]:
    if not is_dir(root / folder):
        return []
    names = sorted(name for name, is_folder in entries(root / folder) if not is_folder)
    names = [name for name in names if name.lower().endswith(".txt") and name[0] != "."]
    return [f"{folder}{name}" for name in names if is_file(root / folder / name)]


def _base(root: Path) -> str | None:
    if is_dir(root / ANNOTATIONS):
        return ""
    names, folders = list[str](), [""]
    for _ in range(2):  # in VOCdevkit, and in the folder around it
        folders = [f"{f}{name}/" for f in folders for name, is_folder in entries(root / f) if is_folder]
        names = names or sorted(f.removesuffix("/") for f in folders if is_dir(root / f / ANNOTATIONS))
    if not names or all(name.split("/")[0].lower() in SPLIT_NAMES for name in names):
        return None
    if len(names) > 1:
        message = f"expected one Pascal VOC data set, found {', '.join(names)}."
        raise SourceError(
            Problem(str(root), "several-datasets", message),
            f"Convert one, {root / names[0]}, or several by their own folders.",
        )
    return f"{names[0]}/"


def image_folders(xml: str) -> tuple[str, ...]:
    """Folders searched first for the image of an XML file: its own, and the matching JPEGImages.

    >>> image_folders("VOC2012/Annotations/a.xml")
    ('VOC2012/Annotations/', 'VOC2012/JPEGImages/')
    """
    parts = xml.split("/")[:-1]
    folders = [parts, [*parts[:-1], _IMAGES]]
    if ANNOTATIONS in parts:
        i = len(parts) - 1 - parts[::-1].index(ANNOTATIONS)
        folders.insert(1, [*parts[:i], _IMAGES, *parts[i + 1 :]])
    return tuple(dict.fromkeys("".join(f"{part}/" for part in folder) for folder in folders))


# --- splits -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class VocSplits(Splits):
    """The splits, as indices of XML files; without `lists`, all XML files are samples."""

    missing: dict[str, None] = field(default_factory=dict)  #: XML files that a list wants and that are not there

    @property
    def unlisted(self) -> str:
        """Message about a file that no list names."""
        some = ", ".join(self.lists[:3]) + (", ..." if len(self.lists) > 3 else "")
        return f"not stored: it is not listed in {some}."


@dataclass(frozen=True, slots=True)
class _List:
    """A list: the XML file of each line, and its index, or -1 if it does not exist."""

    path: str
    xmls: tuple[str, ...]
    rows: tuple[int, ...]
    has_numbers: bool  #: whether each line has whole numbers behind the id, such as -1 where a class is not in an image

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).stem

    @property
    def split(self) -> str:
        """Split after the name of a class, as in ``cat_train``; empty in ``train``."""
        before, _, last = self.name.rpartition("_")
        return last if before and last.lower() in _SPLITS else ""


def find_splits(root: Path, layout: Layout, xmls: Sequence[str]) -> VocSplits:
    """Splits of all XML files (in string order): from lists, else folders, else `train`."""
    ids = _Ids(layout.annotations, xmls)
    lists = [_read_list(root, path, ids) for path in layout.lists]
    splits = VocSplits(lists=[each.path for each in lists])
    known: list[str] = []  # lists of one class, whose images are in other lists
    of_classes: dict[str, list[_List]] = {}
    wholes: dict[str, _List] = {}
    for each in lists:
        if not each.xmls:
            splits.left_out.append(Problem(each.path, "empty-split", "not stored: it lists nothing."))
        elif _MAIN not in each.path and max(each.rows) < 0:
            splits.left_out.append(Problem(each.path, "not-listed", "not read: it lists none of the annotations here."))
        elif any(each.name.endswith(f"_{other.name}") for other in lists):
            known.append(each.path)
        elif each.split and each.has_numbers:
            of_classes.setdefault(each.split, []).append(each)
        else:
            wholes[each.name] = each
    if known:
        more = len(known) - 1
        others = f", nor {'is 1 more list' if more == 1 else f'are {more:,} more lists'} of one class" if more else ""
        message = f"not read: by its name it lists the images of one class{others}."
        splits.left_out.append(Problem(known[0], "class-list", message))
    for name, parts in of_classes.items():  # each has all images, with 1 or -1
        rows = {xml: i for part in parts for xml, i in zip(part.xmls, part.rows, strict=True)}
        splits.rows[name] = _listed(_List(parts[0].path, tuple(rows), tuple(rows.values()), has_numbers=True), splits)
        count = f"{len(parts):,} lists of one class each, such as" if len(parts) > 1 else "the list of one class"
        splits.notes += (f"the split {name} is read from {count} {parts[0].path}.",)
    splits.rows |= {name: _listed(each, splits) for name, each in wholes.items()}
    if not splits.rows:
        splits.lists = []
        inside = [xml[len(layout.annotations) :] for xml in xmls]
        folders, splits.notes = folder_splits(inside, str(root))
        splits.rows = {name: np.asarray(some, np.int64) for name, some in folders.items()}
        return splits
    drop_unions(splits, lambda name: (wholes.get(name) or of_classes[name][0]).path)
    names = split_names(splits.rows)
    splits.notes += notes_of_renamed(names)
    splits.rows = {short: splits.rows[name] for name, short in names.items()}
    return splits


def _read_list(root: Path, path: str, ids: _Ids) -> _List:
    # Names are bytes: the same way of decoding makes them agree with those of the folders.
    text = decode_text(read_file(root / path, path, TEXT_LIMIT), path, errors="surrogateescape")
    lines = [line for row in re.split(r"[\r\n]", text) if (line := row.strip())]
    found = [ids.find(line) for line in lines]
    has_numbers = all(has for *_, has in found)
    return _List(path, tuple(xml for xml, *_ in found), tuple(row for _, row, _ in found), has_numbers)


class _Ids:
    """XML files, in string order, found by the lines of lists."""

    def __init__(self, folder: str, xmls: Sequence[str]) -> None:
        self._folder, self._xmls = folder, xmls
        self._by_name: dict[str, list[int]] | None = None

    def find(self, line: str) -> tuple[str, int, bool]:
        """XML file of a line, its index or -1, and whether whole numbers follow the id.

        The last path in a line counts, such as in ``JPEGImages/a.jpg Annotations/a.xml``.
        """
        row, id, has_numbers = self._row(line), line, False
        words = line.rsplit(None, 2) if row < 0 else []
        if len(words) > 1 and _has_suffix(line):
            row = self._row(words[-1])
        while row < 0 and len(words) > 1 and _is_whole(words.pop()):
            id, has_numbers = " ".join(words), True
            row = self._row(id)
        return self._xmls[row] if row >= 0 else f"{self._folder}{_without_suffix(_id(id))}.xml", row, has_numbers

    def _row(self, line: str) -> int:
        line = _id(line)
        names = dict.fromkeys((line, _without_suffix(line)))
        paths = (f"{self._folder}{name}.{xml}" for name in names for xml in ("xml", "XML"))
        found = next((row for path in paths if (row := place_of(self._xmls, path)) >= 0), -1)
        return found if found >= 0 else self._by_end(line)

    def _by_end(self, line: str) -> int:
        """The single XML file whose path ends with the line, or vice versa, ignoring the names in `FOLDERS`."""
        if self._by_name is None:
            self._by_name = {}
            for i, xml in enumerate(self._xmls):
                self._by_name.setdefault(xml.rpartition("/")[2].rpartition(".")[0], []).append(i)
        parts = _parts(_without_suffix(line))
        found = []
        if ".." in parts:
            return -1
        for i in self._by_name.get(parts[-1], []):
            others = _parts(self._xmls[i].rpartition(".")[0])
            length = min(len(parts), len(others))
            if parts[-length:] == others[-length:]:
                found.append(i)
        return found[0] if len(found) == 1 else -1


def _id(line: str) -> str:
    """Path of a line below ``Annotations``; removes this folder, or the folder of images, which some lists include.

    >>> _id("./VOC2012/JPEGImages/a.jpg"), _id("a")
    ('a.jpg', 'a')
    """
    parts = line.replace("\\", "/").split("/")
    folders = [i for i, part in enumerate(parts[:-1]) if part in (ANNOTATIONS, _IMAGES)]
    return "/".join(parts[folders[-1] + 1 :]) if folders else "/".join(parts).removeprefix("./")


def _parts(path: str) -> list[str]:
    *folders, name = path.replace("\\", "/").split("/")
    return [*(folder for folder in folders if folder.lower() not in FOLDERS), name]


def _is_whole(word: str) -> bool:
    digits = word.removeprefix("-")
    return digits.isascii() and digits.isdigit()


def _has_suffix(line: str) -> bool:
    return f".{line.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES | {".xml"}


def _without_suffix(line: str) -> str:
    """Remove a superfluous suffix of an image or annotation from an id."""
    return line.rpartition(".")[0] if _has_suffix(line) else line


def _listed(listed: _List, splits: VocSplits) -> NDArray[np.int64]:
    """Distinct rows of one list; problems of the others go to `splits`."""
    path, kept = listed.path, dict[int, None]()
    for xml, row in zip(listed.xmls, listed.rows, strict=True):
        if row >= 0 and row not in kept:
            kept[row] = None
        elif row >= 0:
            if listed.has_numbers:  # a line for each object
                continue
            message = f"expected it once in {path}, found it again. Remove the line."
            splits.problems.append(Problem(xml, "duplicate-key", message))
        elif xml not in splits.missing:
            message = f"expected this annotation, which {path} lists, found none. Add it, or remove the line."
            splits.problems.append(Problem(xml, "no-annotation", message))
            splits.missing[xml] = None
    return np.fromiter(kept, np.int64, len(kept))
