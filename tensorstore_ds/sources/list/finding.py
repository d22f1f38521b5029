"""Detect which files of a folder are lists, from their first lines."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from tensorstore_ds.regular_files import decode_text, read_head
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.images import is_plain, stem_of
from tensorstore_ds.sources.list.table import ID_NAMES, LIST_SUFFIXES, PATH_NAMES, column_name, is_header
from tensorstore_ds.sources.splits import SPLIT_NAMES

#: Names of lists that may stand beside the usual ones of splits: unions of them, which are left out.
UNION_NAMES = frozenset({"all", "trainval"})

_HEAD = 1 << 16  # bytes that tell whether a file is a list
_SUFFIXES = tuple(IMAGE_SUFFIXES)
_NAMES_IMAGE = re.compile(rf"(?:{'|'.join(re.escape(s) for s in sorted(IMAGE_SUFFIXES))})[\"']?\s*(?:[\s,;|]|$)", re.I)


def find_lists(root: Path, files: Sequence[str]) -> list[str]:
    """The lists among some files of a folder, in order: at its top, else in its split folders.

    A file named as a split, or as the list of a different split, is a list even if it is damaged.
    """
    stems = {stem_of(file) for file in files if file.lower().endswith(_SUFFIXES)}
    own = [file for file in files if file.lower().endswith(tuple(LIST_SUFFIXES)) and not _is_example(file)]
    tops = [file for file in own if "/" not in file]
    if found := {file for file in tops if names_images(root / file, stems)}:
        named = {file for file in tops if _is_split(Path(file).stem)}
        suffixes = {Path(file).suffix for file in found}
        is_divided = found <= named
        return sorted(found | {file for file in named if is_divided and Path(file).suffix in suffixes})
    below = [file for file in own if file.count("/") == 1 and file.partition("/")[0].lower() in SPLIT_NAMES]
    found = {file for file in below if names_images(root / file, stems)}
    listed = {file.partition("/")[0] for file in found}
    divided = {parts[0] for file in files if len(parts := file.split("/")) > 2 and not is_plain(parts[1])}
    if any(top.lower() in SPLIT_NAMES for top in divided - listed):
        return []  # another split has class folders
    names = {file.partition("/")[2] for file in found}
    return sorted(file for file in below if file.partition("/")[2] in names)


def names_images(file: Path, stems: Collection[str] | None = None) -> bool:
    """Whether a file looks like a list: all of its first lines, except a header, contain the suffix of an image.

    Lines may also contain `stems`, names of images without suffixes. With None, a header is enough.
    """
    suffix = file.suffix.lower()
    if suffix not in LIST_SUFFIXES:
        return False
    head = decode_text(read_head(file, _HEAD), file.name, errors="replace")
    lines = [line.strip() for line in head.splitlines() if line.strip()][:6]
    if len(lines) > 1 and lines[0].isdecimal() and not lines[1].isdecimal():
        del lines[0]  # the number of images
    named = [bool(_NAMES_IMAGE.search(line)) for line in lines]
    if suffix != ".jsonl" and any(named) and all(named[1:-1]):  # a header, and a line that was perhaps cut
        return True
    if suffix == ".txt" and len(lines) > 2 and named[0] and lines[1].isdecimal():  # WIDER FACE's number of boxes
        return True
    rows = _objects(lines) if suffix == ".jsonl" else _cells(lines, suffix)
    if len(rows) < 2:
        return False
    header, *others = rows
    if not is_header(header):
        named_as = [row[0] for row in rows]
        is_told = min(map(len, rows)) > 1 or _is_split(file.stem)
        return stems is not None and is_told and all(stem_of(f"{each}.") in stems for each in named_as[:5])
    if stems is None:
        return len(header) > 1 and (suffix != ".txt" or min(map(len, others)) > 1)
    names = list(map(column_name, header))
    place = next((i for i, name in enumerate(names) if name in PATH_NAMES), -1)
    place = place if place >= 0 else next(names.index(name) for name in ID_NAMES if name in names)
    paths = [row[place].replace("\\", "/") for row in others if len(row) > place]
    return any(stem_of(f"{path}.") in stems or path.lower().endswith(_SUFFIXES) for path in paths)


def _is_example(file: str) -> bool:
    """Whether a file shows how predictions have to be submitted, as Kaggle's sample_submission.csv."""
    return re.sub("[^a-z]", "", stem_of(file.rpartition("/")[2]).lower()).startswith("samplesubmission")


def _is_split(stem: str) -> bool:
    return stem.lower() in SPLIT_NAMES | UNION_NAMES


def _cells(lines: Sequence[str], suffix: str) -> list[list[str]]:
    """Split lines into cells with the separator that divides the first line into the most cells."""
    separators = [",", ";", "\t", "|", *([None] if suffix == ".txt" else [])]
    if not lines:
        return []
    separator = max(separators, key=lambda each: len(lines[0].split(each)))
    return [[cell.strip(" \"'") for cell in line.split(separator)] for line in lines]


def _objects(lines: Sequence[str]) -> list[list[str]]:
    """Names of the members of JSON objects, and the values of each object as a row."""
    found: list[dict[str, object]] = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    if not found:
        return []
    names = list(found[0])
    return [names, *([str(each.get(name, "")) for name in names] for each in found)]
