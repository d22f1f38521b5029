"""What one Pascal VOC annotation says: formats/sources/voc.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.keypoints import ABSENT, Place, as_place
from tensorstore_ds.sources.xml import flag, number, pixels, read_tree, shown

FLAGS = ("difficult", "truncated", "occluded")

_POINT_TAGS = frozenset({"keypoint", "landmark", "part", "point"})
_NUMBERED = re.compile(r"([xy])([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class AnnotatedObject:
    """One object as the file has it.

    Attributes:
        name: its class.
        box: x1 y1 x2 y2 in pixels, as written.
        flags: those of `FLAGS` that it has, 0 or 1.
        points: x and y of each of its landmarks by name; NaN where it is absent.
    """

    name: str
    box: tuple[float, float, float, float]
    flags: Mapping[str, int]
    points: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Annotation:
    """One file: the image's name ("" where none is given), its (height, width) if positive, and the objects."""

    filename: str
    size: tuple[int, int] | None
    objects: tuple[AnnotatedObject, ...]


def read_annotation(path: Path, where: str) -> Annotation:
    """Read one file, named `where` in errors.

    Raises:
        SourceError: those of `xml.read_tree`, and `annotation` for an element that is missing or no number.
    """
    root = read_tree(path, where)
    if root.tag != "annotation":
        _refuse(where, f"expected the root element <annotation>, found <{root.tag}>")
    height, width = pixels(root.findtext("size/height")), pixels(root.findtext("size/width"))
    objects = tuple(_object(element, f"object {i}", where) for i, element in enumerate(root.iterfind("object"), 1))
    return Annotation(root.findtext("filename") or "", (height, width) if height and width else None, objects)


def _object(element: Element, which: str, where: str) -> AnnotatedObject:
    name = (element.findtext("name") or "").strip()
    if not name:
        _refuse(where, f"{which}: expected <name>, the class, found none")
    box = element.find("bndbox")
    if box is None:
        _refuse(where, f"{which}: expected <bndbox>, found none")
    x1, y1, x2, y2 = (_number(box.findtext(tag), tag, which, where) for tag in ("xmin", "ymin", "xmax", "ymax"))
    flags = {}
    for child in element:
        tag = child.tag.lower()  # Occluded is written by some programs
        if tag in FLAGS:
            flags[tag] = _flag(child.text, tag, which, where)
    points: dict[str, Place] = {}
    for point, place in _points(element, which, where):
        if point in points:
            _refuse(where, f"{which}: expected each landmark once, found {point} twice")
        points[point] = place
    return AnnotatedObject(name, (x1, y1, x2, y2), flags, points)


def _points(element: Element, which: str, where: str) -> Iterator[tuple[str, Place]]:
    for child in element:
        if child.tag in ("keypoints", "landmarks", "lm"):
            if child.tag == "lm" or child.find("x1") is not None:
                present = bool(_flag(element.findtext("has_lm", "1"), "has_lm", which, where))
                yield from _numbered_points(child, which, where, present=present)
            else:
                yield from (_named_point(point, which, where) for point in child)
        # VOC's person layout has parts that are boxes, and its action pictures a point without a name
        elif (child.tag == "part" and child.find("bndbox") is None) or (child.tag == "point" and _value(child, "name")):
            yield _named_point(child, which, where)


def _named_point(point: Element, which: str, where: str) -> tuple[str, Place]:
    name = (_value(point, "name") or ("" if point.tag in _POINT_TAGS else point.tag)).strip()
    if not name:
        _refuse(where, f"{which}: expected a landmark's name in <{point.tag}>, found none")
    visible = _value(point, "visible")
    if visible is not None and visible.strip() and not _flag(visible, "visible", which, where):
        return name, ABSENT
    x, y = (_number(_value(point, axis), f"{axis} of landmark {name}", which, where) for axis in "xy")
    return name, _place(x, y, name, which, where)


def _numbered_points(element: Element, which: str, where: str, *, present: bool) -> Iterator[tuple[str, Place]]:
    """WIDER FACE's ``<x1> <y1> ... <xK> <yK>``, where -1 -1 means that there is none."""
    numbers: dict[str, None] = {}
    for child in element:
        if match := _NUMBERED.fullmatch(child.tag):
            numbers[match[2]] = None
    for n in numbers:
        if not present:
            yield n, ABSENT
            continue
        x, y = (_number(element.findtext(f"{axis}{n}"), f"{axis}{n}", which, where) for axis in "xy")
        yield n, ABSENT if x == y == -1 else _place(x, y, n, which, where)


def _place(x: float, y: float, name: str, which: str, where: str) -> Place:
    place = as_place(x, y)
    if place is None:
        _refuse(where, f"{which}: expected landmark {name} within a billion pixels, found {x} {y}")
    return place


def _value(element: Element, key: str) -> str | None:
    """An attribute, or else the text of a child."""
    text = element.get(key)
    return element.findtext(key) if text is None else text


def _flag(text: str | None, name: str, which: str, where: str) -> int:
    value = flag(text)
    if value is None:
        _refuse(where, f"{which}: expected {name} to be 0 or 1, found {shown(text)}")
    return value


def _number(text: str | None, name: str, which: str, where: str) -> float:
    value = number(text)
    if value is None:
        _refuse(where, f"{which}: expected {name}, a number, found {shown(text)}")
    return value


def _refuse(where: str, message: str) -> NoReturn:
    raise SourceError(Problem(where, "annotation", f"{message}. Correct the file, or remove it with its image."))
