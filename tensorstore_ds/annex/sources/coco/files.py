"""Which JSON files of a source are COCO's, and which splits they are."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from pathlib import Path, PurePosixPath

from tensorstore_ds.annex.sources.json_files import MEMBERS, JsonPieces, decoded, first_members
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import (
    decode_text,
    encoding_of,
    is_dir,
    is_file,
    open_file,
    os_errors,
    read_file,
    read_head,
)
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import glance, walk_files
from tensorstore_ds.sources.forms import FormError, noted
from tensorstore_ds.sources.splits import SPLIT_NAMES, split_name, word_split

#: The field of captions.
CAPTIONS = "captions"
#: What the names of COCO's own files begin with: those that are read, the richest first; and those that are read only
#: if there are no others.
_PREFIXES = ("instances_", "person_keypoints_", "stuff_", "captions_", "labels_")
_OTHERS = {"image_info_": "no annotations", "panoptic_": "masks as PNG files"}
#: Generic names of files; the folder's name is used instead.
_PLAIN = frozenset({"", "_annotations", "annotations", "annotation", "coco", "labels", "result", "default"})
#: Words in the name of a file that is meant to be COCO's, even if it cannot be parsed.
_MEANT = re.compile(r"annot|coco|label|instances|captions|" + "|".join(sorted(SPLIT_NAMES)))
_HEAD = 4096
_SNIFFED = 20  # JSON files of a folder whose first bytes are read to detect its format
_AT_ONCE = 64 << 20  # bytes of a file parsed at once: faster than in pieces if it has many members
_WHOLE = 256 << 20  # bytes of a UTF-16 file that is read whole if its beginning does not identify it
#: Bytes of a JSON file; a million objects with polygons take 500 MB.
FILE_LIMIT = 8 << 30  # a position in it takes 33 bits


class Kind(Enum):
    """Type of a JSON file."""

    COCO = 0
    OTHER = 1
    BROKEN = 2  #: no JSON


def is_coco(path: Path) -> bool:
    """Whether `path` is a COCO JSON file, or a folder that contains one, up to 2 levels below.

    A folder of only images and JSON counts even if its JSON files cannot be parsed, so that the scan reports them.
    """
    if is_file(path):
        return path.suffix.lower() == ".json" and kind_of(path) != Kind.OTHER
    files = glance(path) if is_dir(path) else []
    sniffed = Counter[str]()
    broken = False
    jsons = sorted(each for each in files if each.lower().endswith(".json"))
    for file in sorted(jsons, key=lambda each: _MEANT.search(each.lower()) is None):
        folder = file.rpartition("/")[0]
        sniffed[folder] += 1
        if sniffed[folder] <= _SNIFFED:
            kind = kind_of(path / file)
            if kind == Kind.COCO:
                return True
            broken |= kind == Kind.BROKEN and _MEANT.search(file.lower()) is not None
    return broken and all(each.lower().endswith((*IMAGE_SUFFIXES, ".json", ".md")) for each in files)


def find(path: Path) -> list[str]:
    """The COCO JSON files at or below `path`, relative to it or its folder; empty if there are none.

    Raises `SourceError` `json` for a file that is not JSON, because it may have been COCO.
    """
    root, files = (path.parent, [path.name]) if is_file(path) else (path, list(walk_files(path, {".json"})))
    kinds = {file: kind_of(root / file) for file in files}
    problems: list[Problem] = []
    for file in (file for file, kind in kinds.items() if kind == Kind.BROKEN):
        with noted(problems):
            decoded(read_file(root / file, file, _WHOLE), file, MEMBERS)
    if problems:
        raise SourceError(problems, "Write the file again, or remove it.")
    return [file for file, kind in kinds.items() if kind == Kind.COCO]


def kind_of(path: Path) -> Kind:
    """Type of a JSON file, from its first bytes if possible."""
    head = read_head(path, _HEAD)
    text = decode_text(head, path.name, errors="replace").strip()
    if not text.startswith("{"):
        return Kind.OTHER if text.startswith("[") else Kind.BROKEN
    names = first_members(text)
    if "images" in names or (len(head) == _HEAD and names & {"annotations", "licenses", "type"}):
        return Kind.COCO
    if "shapes" in names:  # of labelme, perhaps with an image in it
        return Kind.OTHER
    try:
        if (encoding := encoding_of(head)).startswith("utf-8"):
            with os_errors(path.name), open_file(path, path.name, limit=FILE_LIMIT) as file:
                if file.seek(0, io.SEEK_END) > _AT_ONCE:
                    found = JsonPieces(file, 3 if encoding == "utf-8-sig" else 0).find()
                    return Kind.COCO if any(name == "images" for name, _ in found) else Kind.OTHER
        members = decoded(read_file(path, path.name, _WHOLE), path.name, MEMBERS)
    except FormError:
        return Kind.BROKEN
    except SourceError as error:
        is_large = error.reason != "json"  # not read to detect its type
        return Kind.BROKEN if not is_large else Kind.COCO if names & {"info", "categories"} else Kind.OTHER
    return Kind.COCO if "images" in members else Kind.OTHER


# --- splits -------------------------------------------------------------------------------------------------------


def short_name(json: str) -> str:
    """Stem of a file without COCO's prefixes; a generic stem is replaced by the name of its folder.

    >>> short_name("annotations/instances_train2017.json"), short_name("valid/_annotations.coco.json")
    ('train2017', 'valid')
    >>> short_name("annotations.json"), short_name("val/labels/coco.json")
    ('annotations', 'val')
    """
    stem = stem_of(json)
    folders = [folder for folder in PurePosixPath(json).parent.parts[::-1] if folder.lower() not in _PLAIN]
    return folders[0] if stem.lower() in _PLAIN and folders else stem or _name(json).partition(".")[0]


def stem_of(json: str) -> str:
    """Stem of a file without suffixes and COCO's prefixes."""
    stem = _name(json).split(".")[0]
    for prefix in (*_PREFIXES, *_OTHERS):
        stem = stem.removeprefix(prefix)
    return stem


def choose(jsons: Sequence[str]) -> tuple[dict[str, tuple[str, str]], list[Problem]]:
    """The file of each split and of its captions, perhaps the same, and a problem for each file that is not read.

    Raises `SourceError` `split-name` if 2 files are of one split, or a file's name is no split's.
    """
    left_out: list[Problem] = []
    others = {json: what for json in jsons for prefix, what in _OTHERS.items() if _name(json).startswith(prefix)}
    if len(others) < len(jsons):
        left_out += [Problem(json, "no-more-annotated", f"not stored: it has {others[json]}.") for json in others]
        jsons = [json for json in jsons if json not in others]
    shorts = _short_names(jsons)
    captions = {shorts[json]: json for json in jsons if _name(json).startswith(f"{CAPTIONS}_")}
    best: dict[str, str] = {}
    for json in sorted(jsons, key=_rank):
        short = shorts[json]
        known = best.setdefault(short, json)
        if known != json and _rank(known) == _rank(json):
            raise _two_of_one(known, json, short)
        if known != json and json != captions.get(short):
            message = f"not stored: {known} is of the same split. To convert this one, name the file."
            left_out.append(Problem(json, "no-more-annotated", message))
    texts = {short: word_split(short, len(best)) for short in best}
    if len(set(texts.values())) < len(texts):  # train2014 and train2017
        texts = {short: short for short in best}
    chosen: dict[str, tuple[str, str]] = {}
    for short, json in sorted(best.items(), key=lambda each: each[1]):
        try:
            name = split_name(texts[short])
        except SourceError as error:
            raise SourceError(Problem(json, "split-name", error.problems[0].message), "Rename the file.") from error
        if name in chosen:
            raise _two_of_one(chosen[name][0], json, name)
        chosen[name] = json, captions.get(short, json)
    return chosen, left_out


def _short_names(jsons: Sequence[str]) -> dict[str, str]:
    """Short name of each file; its own name if its folder has several files, because that is no split."""
    folders = Counter(json.rpartition("/")[0] for json in jsons)
    shorts = {json: short_name(json) for json in jsons}
    for json, short in shorts.items():
        if folders[json.rpartition("/")[0]] > 1 and short.lower() not in SPLIT_NAMES:
            shorts[json] = stem_of(json) or short
    return shorts


def _two_of_one(first: str, second: str, split: str) -> SourceError:
    message = f"expected one file for the split {split}, found {first} too."
    return SourceError(Problem(second, "split-name", message), "Rename one of them, or convert one, by its own name.")


def _name(json: str) -> str:
    return PurePosixPath(json).name


def _rank(json: str) -> int:
    return next((i for i, prefix in enumerate(_PREFIXES) if _name(json).startswith(prefix)), len(_PREFIXES))
