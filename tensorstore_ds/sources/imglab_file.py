"""One of dlib's imglab XML files, as columns: formats/sources/imglab.md."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import unreadable
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.keypoints import Place, as_place
from tensorstore_ds.sources.xml import flag, iterate_elements, number, pixels, shown

FLAGS = ("difficult", "truncated", "occluded")
NO_LABEL = -1
NAMES_LIMIT = 1 << 16  # different landmark names: what the columns have room for

_DRIVE = re.compile(r"[A-Za-z]:(/|$)")
_BATCH = 4096  # paths that are packed at a time


@dataclass(slots=True)
class Names:
    """Numbers for class and landmark names, in the order in which they were met, over all files of a source."""

    labels: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Columns:
    """What a file holds, a row an image, a box or a part: 10 bytes a part, where Python objects would take 200.

    Attributes:
        xml: the file's path in the source.
        listed: the paths of all its images, sound or not, each once.
        images: the paths of the sound ones: a row each.
        sizes: height and width of each image, 0 where they are not given.
        starts: (images + 1) where the boxes of each image begin.
        boxes: x1 y1 x2 y2 of each box.
        labels: the number in `Names.labels` of each box's class, or `NO_LABEL`.
        flags: for each of `FLAGS`, 0 or 1 for each box.
        part_starts: (boxes + 1) where the parts of each box begin.
        part_names: the number in `Names.parts` of each part's name.
        part_places: x y of each part.
        seen: those of `FLAGS` that some box has.
        problems: the images that are left out, and why.
    """

    xml: str
    listed: PackedStrings = field(default_factory=PackedStrings)
    images: PackedStrings = field(default_factory=PackedStrings)
    sizes: array[int] = field(default_factory=lambda: array("i"))
    starts: array[int] = field(default_factory=lambda: array("q", [0]))
    boxes: array[float] = field(default_factory=lambda: array("d"))
    labels: array[int] = field(default_factory=lambda: array("i"))
    flags: dict[str, bytearray] = field(default_factory=lambda: {name: bytearray() for name in FLAGS})
    part_starts: array[int] = field(default_factory=lambda: array("q", [0]))
    part_names: array[int] = field(default_factory=lambda: array("H"))
    part_places: array[float] = field(default_factory=lambda: array("f"))
    seen: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    @property
    def richness(self) -> tuple[int, int]:
        """Numbers of parts and boxes: of two files that list the same images, the larger one counts."""
        return len(self.part_names), len(self.labels)


@dataclass(frozen=True, slots=True)
class _Box:
    """One box; its parts by the numbers of their names."""

    corners: tuple[float, float, float, float]
    label: int
    flags: dict[str, int]
    parts: dict[int, Place]


def read_columns(path: Path, xml: str, images: Path, folder: str, names: Names) -> Columns:
    """Read the file `path`, named `xml` in errors.

    Args:
        path: the file.
        xml: its path in the source.
        images: the folder that no image may lie outside of.
        folder: where in it the paths of the file begin: ``""`` or with a ``/`` at the end.
        names: receives the class and landmark names that are new.

    Raises:
        SourceError: those of `xml.iterate_elements`, when the whole file cannot be used.
    """
    columns = Columns(xml)
    seen: set[str] = set()
    for line, element in iterate_elements(path, xml, "dataset", "image"):
        where = f"{xml} line {line}"
        try:
            image = _image_path(element.get("file"), folder, where)
            if image in seen:
                message = f"expected each image once in {xml}, found it again in line {line}. Merge the two."
                raise SourceError(Problem(image, "duplicate-key", message))
            seen.add(image)
            columns.listed.extend([image])
            _check_image(images / image, image, where)
            boxes = [_box(box, f"{where}, box {i}", image, names) for i, box in enumerate(element.iterfind("box"), 1)]
        except SourceError as error:
            columns.problems.extend(error.problems)
        else:
            _append(columns, image, element, boxes)
    return columns


def _image_path(text: str | None, folder: str, where: str) -> str:
    """The image's path relative to the folder of images, without ``.`` and ``..``."""
    if not text:
        raise SourceError(Problem(where, "annotation", "expected the attribute file of <image>, found none. Add it."))
    path = text.replace("\\", "/")
    parts: list[str] = []
    inside = not path.startswith("/") and not _DRIVE.match(path)
    for part in f"{folder}{path}".split("/"):
        if part == "..":
            inside = inside and bool(parts)
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    if not inside or not parts:
        message = f"expected the path of an image inside the source, found {shown(text)}. Make it relative to the XML."
        raise SourceError(Problem(where, "unsafe-path", message))
    return "/".join(parts)


def _check_image(path: Path, image: str, where: str) -> None:
    try:
        found = path.is_file()
    except OSError as error:
        raise SourceError(unreadable(image, error)) from error
    if not found:
        message = f"expected this image, which {where} lists, found none. Add it, or remove the entry."
        raise SourceError(Problem(image, "no-image", message))


def _box(element: Element, where: str, image: str, names: Names) -> _Box:
    left, top, width, height = (
        _number(element.get(key), key, where, image) for key in ("left", "top", "width", "height")
    )
    text = element.findtext("label")
    label = (element.get("label", "") if text is None else text).strip()
    flags: dict[str, int] = {}
    for key in (*FLAGS, "ignore"):
        if (value := element.get(key)) is not None:
            number_ = flag(value)
            if number_ is None:
                _refuse(image, f"{where}: expected {key} to be 0 or 1, found {shown(value)}")
            name = "difficult" if key == "ignore" else key  # do not count it: neither as found nor as missed
            flags[name] = flags.get(name, 0) | number_
    parts = dict(_parts(element, where, image, names))
    number_of = names.labels.setdefault(label, len(names.labels)) if label else NO_LABEL
    return _Box((left, top, left + width, top + height), number_of, flags, parts)


def _parts(element: Element, where: str, image: str, names: Names) -> Iterator[tuple[int, Place]]:
    met: set[str] = set()
    for part in element.iterfind("part"):
        name = (part.get("name") or "").strip()
        if not name:
            _refuse(image, f"{where}: expected the attribute name of <part>, found none")
        if name in met:
            _refuse(image, f"{where}: expected each part once, found {name} twice")
        met.add(name)
        x, y = (_number(part.get(axis), f"{axis} of part {name}", where, image) for axis in "xy")
        place = as_place(x, y)
        if place is None:
            _refuse(image, f"{where}: expected part {name} within a billion pixels, found {x} {y}")
        n = names.parts.setdefault(name, len(names.parts))
        if n >= NAMES_LIMIT:
            message = f"{where}: expected at most {NAMES_LIMIT} different part names in a source, found more."
            raise SourceError(Problem(image, "keypoint-count", message))
        yield n, place


def _append(columns: Columns, image: str, element: Element, boxes: list[_Box]) -> None:
    columns.images.extend([image])
    columns.sizes.extend((pixels(element.get("height")), pixels(element.get("width"))))
    for box in boxes:
        columns.boxes.extend(box.corners)
        columns.labels.append(box.label)
        columns.seen.update(box.flags)
        for name, values in columns.flags.items():
            values.append(box.flags.get(name, 0))
        for n, place in box.parts.items():
            columns.part_names.append(n)
            columns.part_places.extend(place)
        columns.part_starts.append(len(columns.part_names))
    columns.starts.append(len(columns.labels))


def _number(text: str | None, name: str, where: str, image: str) -> float:
    value = number(text)
    if value is None:
        _refuse(image, f"{where}: expected {name}, a number, found {shown(text)}")
    return value


def _refuse(image: str, message: str) -> NoReturn:
    raise SourceError(Problem(image, "annotation", f"{message}. Correct the entry, or remove it."))
