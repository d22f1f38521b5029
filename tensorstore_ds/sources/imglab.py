"""dlib's imglab: XML files that list images, with boxes and numbered or named keypoints: formats/sources/imglab.md.

dlib calls a keypoint a part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import ClassVar
from xml.etree.ElementTree import Element

import numpy as np

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import is_file, os_errors
from tensorstore_ds.sources.annotations import AnnotatedObject, AnnotatedSource, Annotations
from tensorstore_ds.sources.base import FLAGS, IMAGE_SUFFIXES, Contents
from tensorstore_ds.sources.files import PackedStrings, walk_files
from tensorstore_ds.sources.forms import FormError, noted, placed
from tensorstore_ds.sources.images import ImageIndex, not_listed
from tensorstore_ds.sources.ledger import LEAF, USED, Known, Ledger
from tensorstore_ds.sources.paths import inside
from tensorstore_ds.sources.splits import find_unions, split_name, split_names, split_word
from tensorstore_ds.sources.xml import (
    Place,
    flag,
    has_root,
    iterate_elements,
    keypoints_of,
    number,
    parse_point,
    pixels,
    shown,
)

NAMES_LIMIT = 1 << 16  # different keypoint names of a file

_ROOTS = frozenset({"dataset", "images"})
#: Elements outside of images that are passed over in silence, and what of an image is used or passed over.
_OUTSIDE = frozenset({"images", "name", "comment"})
_BOX = ("top", "left", "width", "height", "label", "ignore", "pose", "detection_score", *FLAGS)
_IMAGE: Known = {
    **dict.fromkeys(("@file", "@width", "@height"), USED),
    "box": {**{f"@{name}": USED for name in _BOX}, "label": LEAF, "part": dict.fromkeys(("@name", "@x", "@y"), USED)},
}

_SPLITS = ("train", "test", "val")


@dataclass(slots=True)
class _ImageList:
    """Contents of a file."""

    xml: str  #: the file's path in the source
    annotations: Annotations  #: of the images that are sound
    listed: PackedStrings = field(default_factory=PackedStrings)  #: the paths of all its images, each once
    boxes: int = 0  #: how many these have
    keypoints: int = 0
    unlabelled: dict[int, int] = field(default_factory=dict)  #: rows with a box (by number, from 1) without a label
    problems: list[Problem] = field(default_factory=list)  #: the images that are left out, and why

    @property
    def richness(self) -> tuple[int, int]:
        """Key that ranks 2 files with the same images: the larger one is used."""
        return self.keypoints, self.boxes


class ImglabSource(AnnotatedSource):
    """The XML files are read once."""

    name: ClassVar[str] = "imglab"

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is an XML file whose root is ``dataset`` or ``images``, or a folder with such files."""
        return has_root(path, _ROOTS)

    def scan(self) -> Contents:
        """Read every XML file."""
        xmls = [self.path.name] if is_file(self.path) else list(walk_files(self.path, {".xml"}))
        if not xmls:
            raise SourceError(Problem(str(self.path), "empty-source", "expected XML files, found none."))
        files: list[_ImageList] = []
        problems = self._annotations.problems
        images = _Images(self._root, self.options.images)
        for xml in xmls:
            with noted(problems):
                files.append(_read_list(self._root / xml, xml, images, self.ledger))
        kept, left_out = _choose([file for file in files if file.listed or not file.problems])
        labelled = any(any(file.annotations.classes) for file in kept)
        entries = {file.xml: _labelled(file) if labelled else file.annotations.rows for file in kept}
        problems += [problem for file in files if file in kept or not file.listed for problem in file.problems]
        used = [file for file in kept if entries[file.xml]]
        self.ledger.use(*(file.xml for file in used))
        if not used:
            raise SourceError(problems or left_out)
        for file in used:
            self._annotations.include(file.annotations)
        splits = {split: entries[file.xml] for split, file in zip(_split_names(used), used, strict=True)}
        listed = {image for file in files for image in file.listed}
        folders = {image[: image.rfind("/") + 1] for image in listed}
        left_out += not_listed(self.images, folders, listed.__contains__, "XML")
        self._annotations.left_out = left_out
        contents = self._contents(splits, images.notes(), labelled=any(self._annotations.classes))
        is_named = len(used) > 1 or bool(_short_name(PurePosixPath(used[0].xml).stem))
        return contents if is_named else contents.by_folder(str(self.path))


def _choose(files: Sequence[_ImageList]) -> tuple[list[_ImageList], list[Problem]]:
    """Files that become splits, without those that repeat others."""
    kept: dict[str, _ImageList] = {}
    left_out: list[Problem] = []
    numbers: dict[str, int] = {}  # of images
    rows = {file.xml: np.sort([numbers.setdefault(i, len(numbers)) for i in file.listed]) for file in files}
    for file in sorted(files, key=lambda each: each.richness, reverse=True):
        other = next((each for each in kept.values() if np.array_equal(rows[each.xml], rows[file.xml])), None)
        if not file.listed:
            left_out.append(Problem(file.xml, "empty-split", "not stored: it lists no images."))
        elif other is None:
            kept[file.xml] = file
        else:
            counts = f"{other.boxes} boxes and {other.keypoints} keypoints"
            message = f"not stored: {other.xml} lists the same images, with {counts}."
            left_out.append(Problem(file.xml, "no-more-annotated", message))
    for xml, parts in find_unions({xml: rows[xml] for xml in kept}).items():
        richness = np.sum([kept[part].richness for part in parts], axis=0)
        if (richness >= kept[xml].richness).all():
            message = f"not stored twice: it is the union of {', '.join(parts)}."
            left_out.append(Problem(xml, "split-union", message))
            del kept[xml]
    return [kept[xml] for xml in sorted(kept)], left_out


def _labelled(file: _ImageList) -> PackedStrings:
    """Entries whose boxes all have a label; the others become problems of the file."""
    for i, box in file.unlabelled.items():
        message = f"{file.xml}: expected a label in every box, as in others of this source, found box {box} without."
        message = f"{message} Label it, or remove all labels."
        file.problems.append(Problem(file.annotations.rows[i].partition("\0")[0], "annotation", message))
    return PackedStrings(row for i, row in enumerate(file.annotations.rows) if i not in file.unlabelled)


def _split_names(files: Sequence[_ImageList]) -> list[str]:
    """Name of each file's split: a word or prefix of its stem, else its stem, else its path."""
    paths = [PurePosixPath(file.xml).with_suffix("") for file in files]
    short = [_short_name(path.name) for path in paths]
    if len(files) == 1:
        return [short[0] or "train"]
    stems = [split_name(path.name) for path in paths]
    unique = [s and short.count(s) == 1 and s not in stems[:i] + stems[i + 1 :] for i, s in enumerate(short)]
    names = [s if is_unique else stem for s, is_unique, stem in zip(short, unique, stems, strict=True)]
    count = Counter(names)
    texts = [str(path) if count[name] > 1 else name for path, name in zip(paths, names, strict=True)]
    final = split_names(texts)
    return [final[text] for text in texts]


def _short_name(stem: str) -> str:
    """The split that a word of a stem, or its beginning, means; empty without one."""
    word = split_word(stem) or stem.lower()
    return next((split for split in _SPLITS if word.startswith(split)), "")


# --- one file -----------------------------------------------------------------------------------------------------


class _Images:
    """Resolves paths in XML files. They begin in the folder `images` if given, else in the XML file's folder."""

    def __init__(self, root: Path, images: Path | None) -> None:
        self.folder = root if images is None else images
        self._is_apart = images is not None
        self._index: ImageIndex | None = None
        self._by_end: list[str] = []  # paths found by their ends

    def find(self, text: str | None, xml: str, where: str) -> str:
        """Path relative to the folder of images, without ``.`` and ``..``.

        A path that leads out of the folder may be from a different machine, so it is found by its last parts.
        """
        if not text:
            message = "expected the attribute file of <image>, found none. Add it."
            raise SourceError(Problem(where, "annotation", message))
        path = inside(text, "" if self._is_apart else xml[: xml.rfind("/") + 1])
        with os_errors(path or text):
            if path is not None and (is_file(self.folder / path) or not self._is_apart):
                return path
        if self._index is None:
            self._index = ImageIndex(walk_files(self.folder, IMAGE_SUFFIXES))
        if found := self._index.find_by_end(text, where):
            self._by_end.append(f"{text} in {xml}: {found}")
            return found
        if path is not None:
            return path
        message = f"expected the path of an image inside the source, found {shown(text)}"
        advice = "Convert the folder that contains both, or name the folder of the images with `images`."
        raise SourceError(Problem(where, "unsafe-path", f"{message}, and no image of this name. {advice}"))

    def notes(self) -> tuple[str, ...]:
        """A note with the number of paths that were found by their last parts."""
        if not self._by_end:
            return ()
        count = "1 image is" if len(self._by_end) == 1 else f"{len(self._by_end):,} images are"
        return (f"{count} found by the end of the path, such as {self._by_end[0]}.",)


def _read_list(path: Path, xml: str, images: _Images, ledger: Ledger) -> _ImageList:
    """Read the file `path`, which errors call `xml`."""
    result = _ImageList(xml, Annotations(ledger))
    seen: set[str] = set()
    for line, element in iterate_elements(path, xml, "dataset", "image", ledger=ledger, passed=_OUTSIDE):
        where = f"{xml} line {line}"
        ledger.element(element, _IMAGE, xml)
        with noted(result.problems):
            image = images.find(element.get("file"), xml, where)
            if image in seen:
                message = f"expected each image once in {xml}, found it again in line {line}. Merge the two."
                raise SourceError(Problem(image, "duplicate-key", message))
            seen.add(image)
            result.listed.extend([image])
            with os_errors(image):
                exists = is_file(images.folder / image)
            if not exists:
                message = (
                    f"expected this image, which {where} lists, found none. Add it, or name its folder with `images`."
                )
                raise SourceError(Problem(image, "no-image", message))
            objects = [_object(box, f"{where}, box {i}", image) for i, box in enumerate(element.iterfind("box"), 1)]
            known = result.annotations.keypoints
            new = {name for each in objects for name in each.keypoints if name not in known}
            if len(known) + len(new) > NAMES_LIMIT:
                message = f"{where}: expected at most {NAMES_LIMIT} different keypoint names in a file, found more."
                raise SourceError(Problem(image, "keypoint-count", message))
            size = pixels(element.get("height")), pixels(element.get("width"))
            row = result.annotations.add(image, objects, size, file="")
            bare = next((i for i, each in enumerate(objects, 1) if not each.label), None)
            if bare is not None:
                result.unlabelled[row] = bare
            result.boxes += len(objects)
            result.keypoints += sum(len(each.keypoints) for each in objects)
    return result


def _object(element: Element, where: str, image: str) -> AnnotatedObject:
    with placed(image, "Correct the entry, or remove it.", prefix=f"{where}: "):
        left, top, width, height = (number(element.get(key), key) for key in ("left", "top", "width", "height"))
        flags: dict[str, int] = {}
        for key in (*FLAGS, "ignore"):
            if (text := element.get(key)) is not None:
                name = "difficult" if key == "ignore" else key  # do not count it: neither as found nor as missed
                flags[name] = flags.get(name, 0) | flag(text, key)
        keypoints = keypoints_of(_keypoint(part) for part in element.iterfind("part"))
        texts = (element.get("label"), *(each.text for each in element.iterfind("label")))
        labels = sorted({text.strip() for text in texts if text and text.strip()})
        if len(labels) > 1:
            raise FormError(f"expected one label, found {' and '.join(map(shown, labels[:2]))}")
    return AnnotatedObject(labels[0] if labels else "", (left, top, left + width, top + height), flags, keypoints)


def _keypoint(part: Element) -> tuple[str, Place]:
    name = (part.get("name") or "").strip()
    if not name:
        raise FormError("expected the attribute name of <part>, found none")
    return name, parse_point(part.get("x"), part.get("y"), name)
