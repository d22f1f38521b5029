"""How a Pascal VOC data set lies in its folders, and which splits it has: formats/sources/voc.md."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import TEXT_LIMIT, entries, is_dir, is_file, os_errors, read_file
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.splits import SPLIT_NAMES, find_unions, notes_of_renamed, split_names

ANNOTATIONS, _IMAGES = "Annotations", "JPEGImages"
_CLASS_LINE = re.compile(r"\S.*?\s+(-1|0|1)")  # of aeroplane_train.txt: an id, and whether the class is in the image


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are, relative to the source: folders are ``""`` or end with ``/``."""

    annotations: str = ""  #: the folder that all XML files lie in or below
    images: str = ""  #: the folder that all images lie in or below
    lists: tuple[str, ...] = ()  #: the files that may list splits


def find_layout(root: Path) -> Layout:
    """Find the parts of a data set: a VOCdevkit, one of the data sets in it, or XML files anywhere."""
    with os_errors(str(root)):
        base = _base(root)
        if base is None:
            return Layout()
        images = f"{base}{_IMAGES}/" if is_dir(root / base / _IMAGES) else base
        folder = next((f for f in (f"{base}ImageSets/Main/", f"{base}ImageSets/") if is_dir(root / f)), None)
        names = sorted(name for name, is_folder in entries(root / folder) if not is_folder) if folder else []
        lists = [n for n in names if n.lower().endswith(".txt") and n[0] != "." and is_file(root / str(folder) / n)]
    return Layout(f"{base}{ANNOTATIONS}/", images, tuple(f"{folder}{name}" for name in lists))


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
    """Where the image of an XML file is looked for first: beside it, and in the JPEGImages that belongs to its folder.

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
class Splits:
    """The splits, as numbers of XML files, and what was noticed on the way."""

    rows: dict[str, NDArray[np.int64]] = field(default_factory=dict)  #: of each split (n,), in stored order
    listed: bool = False  #: lists name the samples; otherwise all XML files are samples
    missing: dict[str, None] = field(default_factory=dict)  #: XML files that a list wants and that are not there
    problems: list[Problem] = field(default_factory=list)
    left_out: list[Problem] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)  #: files that were read
    notes: tuple[str, ...] = ()


def find_splits(root: Path, layout: Layout, xmls: Sequence[str]) -> Splits:
    """The splits of all XML files (in string order) that the lists say, or else the folders, or else `train`."""
    lists = {PurePosixPath(path).stem: (path, _lines(root, path)) for path in layout.lists}
    splits = Splits()
    for name, (path, lines) in lists.items():
        rows = [_row(line, layout.annotations, xmls) for line in lines]
        if lines and all(row < 0 and _CLASS_LINE.fullmatch(line) for row, line in zip(rows, lines, strict=True)):
            continue
        whole = next((other for other in lists if name.endswith(f"_{other}")), None)
        if whole is not None:
            message = f"not stored: by its name it lists the images of one class in {whole}."
            splits.left_out.append(Problem(path, "class-list", message))
        elif lines:
            splits.lists.append(path)
            missing = (f"{layout.annotations}{_without_suffix(_id(line))}.xml" for line in lines)
            wanted = [xmls[row] if row >= 0 else xml for row, xml in zip(rows, missing, strict=True)]
            splits.rows[name] = _listed(path, wanted, rows, splits)
        else:
            splits.left_out.append(Problem(path, "empty-split", "not stored: it lists nothing."))
    if not splits.rows:
        splits.rows = _folder_splits(layout.annotations, xmls, str(root))
        return splits
    splits.listed = True
    unions = find_unions(splits.rows)
    for name, parts in unions.items():
        message = f"not stored twice: it is the union of {', '.join(parts)}."
        splits.left_out.append(Problem(lists[name][0], "split-union", message))
    names = split_names(name for name in splits.rows if name not in unions)
    splits.notes = notes_of_renamed(names)
    splits.rows = {short: splits.rows[name] for name, short in names.items()}
    return splits


def _lines(root: Path, path: str) -> list[str]:
    # Names are bytes: the same way of decoding makes them agree with those of the folders.
    text = read_file(root / path, path, TEXT_LIMIT).decode("utf-8-sig", "surrogateescape")
    return [line for row in re.split(r"[\r\n]", text) if (line := row.strip())]


def _id(line: str) -> str:
    """A line of a list as a path below ``Annotations``: some lists have this folder, or that of the images, before it.

    >>> _id("./VOC2012/JPEGImages/a.jpg"), _id("a")
    ('a.jpg', 'a')
    """
    parts = line.split("/")
    folders = [i for i, part in enumerate(parts[:-1]) if part in (ANNOTATIONS, _IMAGES)]
    return "/".join(parts[folders[-1] + 1 :]) if folders else line.removeprefix("./")


def _row(line: str, folder: str, xmls: Sequence[str]) -> int:
    """The number of the XML file of an id, which may have a suffix that it should not have; -1 if there is none."""
    line = _id(line)
    ids = dict.fromkeys((line, _without_suffix(line)))
    for path in (f"{folder}{name}.{xml}" for name in ids for xml in ("xml", "XML")):
        i = bisect_left(xmls, path)
        if i < len(xmls) and xmls[i] == path:
            return i
    return -1


def _without_suffix(line: str) -> str:
    """An id without the suffix of an image or annotation, which it may have and should not."""
    stem, _, suffix = line.rpartition(".")
    return stem if f".{suffix.lower()}" in IMAGE_SUFFIXES | {".xml"} else line


def _listed(path: str, wanted: Sequence[str], rows: Sequence[int], splits: Splits) -> NDArray[np.int64]:
    """The rows of one list, each once; what is wrong with the others goes to `splits`."""
    kept: dict[int, None] = {}
    for xml, row in zip(wanted, rows, strict=True):
        if row >= 0 and row not in kept:
            kept[row] = None
        elif row >= 0:
            message = f"expected it once in {path}, found it again. Remove the line."
            splits.problems.append(Problem(xml, "duplicate-key", message))
        elif xml not in splits.missing:
            message = f"expected this annotation, which {path} lists, found none. Add it, or remove the line."
            splits.problems.append(Problem(xml, "no-annotation", message))
            splits.missing[xml] = None
    return np.fromiter(kept, np.int64, len(kept))


def _folder_splits(folder: str, xmls: Sequence[str], where: str) -> dict[str, NDArray[np.int64]]:
    """A split for each top folder, where all of these mean splits; otherwise one split, `train`."""
    rows: dict[str, array[int]] = {}
    for i, xml in enumerate(xmls):
        top, slash, _ = xml[len(folder) :].partition("/")
        rows.setdefault(top if slash else "", array("q")).append(i)
    tops = [top for top in rows if top.lower() in SPLIT_NAMES]
    if not tops:
        return {"train": np.arange(len(xmls))}
    if len(tops) < len(rows):
        other = next(top for top in rows if top not in tops)
        message = f"expected all XML files in split folders, found {tops[0]} and, beside it, {other or 'XML files'}."
        raise SourceError(Problem(where, "split-name", message), "Move them into split folders, or convert one folder.")
    return {name: np.asarray(rows[top], np.int64) for top, name in split_names(tops).items()}
