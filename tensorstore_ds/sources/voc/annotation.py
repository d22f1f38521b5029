"""What one Pascal VOC annotation says: formats/sources/voc.md."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.imaging.oriented import oriented_to_corners
from tensorstore_ds.sources.base import FLAGS
from tensorstore_ds.sources.objects import AnnotatedObject
from tensorstore_ds.sources.xml import ABSENT, ElementError, Place, flag, keypoints_of, number, pixels, place, read_tree

#: Tags that programs give to any keypoint; another tag is the keypoint's name.
_KEYPOINT_TAGS = frozenset({"keypoint", "landmark", "part", "point"})
_NUMBERED = re.compile(r"([xy])([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Annotation:
    """One file: the image's name ("" where the file has none), its (height, width) if positive, and the objects."""

    filename: str
    size: tuple[int, int] | None
    objects: tuple[AnnotatedObject, ...]


def read_annotation(path: Path, where: str) -> Annotation:
    """Read one file, named `where` in errors."""
    root = read_tree(path, where)
    try:
        if root.tag != "annotation":
            raise ElementError(f"expected the root element <annotation>, found <{root.tag}>")
        objects = tuple(_object(element, i) for i, element in enumerate(root.iterfind("object"), 1))
    except ElementError as error:
        message = f"{error}. Correct the file, or remove it with its image."
        raise SourceError(Problem(where, "annotation", message)) from error
    height, width = pixels(root.findtext("size/height")), pixels(root.findtext("size/width"))
    return Annotation(root.findtext("filename") or "", (height, width) if height and width else None, objects)


def _object(element: Element, i: int) -> AnnotatedObject:
    try:
        name = (element.findtext("name") or "").strip()
        if not name:
            raise ElementError("expected <name>, the class, found none")
        box, turned = _only(element, "bndbox"), _only(element, "robndbox")
        if turned is not None:
            found = _turned(turned, name)
            found = found if box is None else replace(found, box=_upright(box, name).box)
        elif box is not None:
            found = _upright(box, name)
        else:
            raise ElementError("expected <bndbox>, found none")
        # Occluded, with a capital, is written by some programs
        flags = {tag: flag(child.text, tag) for child in element if (tag := child.tag.lower()) in FLAGS}
        keypoints = keypoints_of(_keypoints(element))
    except ElementError as error:
        raise ElementError(f"object {i}: {error}") from error
    return replace(found, flags=flags, keypoints=keypoints)


def _only(element: Element, tag: str) -> Element | None:
    found = element.findall(tag)
    if len(found) > 1:
        raise ElementError(f"expected one <{tag}>, found {len(found)}")
    return found[0] if found else None


def _upright(box: Element, name: str) -> AnnotatedObject:
    x1, y1, x2, y2 = (number(box.findtext(tag), tag) for tag in ("xmin", "ymin", "xmax", "ymax"))
    return AnnotatedObject.of_rectangle(name, (x1, y1, x2, y2))


def _turned(box: Element, name: str) -> AnnotatedObject:
    """The object of a ``<robndbox>`` of roLabelImg: center, sides, and radians clockwise."""
    values = [number(box.findtext(tag), tag) for tag in ("cx", "cy", "w", "h", "angle")]
    if not all(map(math.isfinite, values)) or min(values[2:4]) < 0:
        found = " ".join(f"{value:g}" for value in values)
        raise ElementError(
            f"expected cx, cy, w, h and angle of <robndbox>, finite numbers, w and h not below 0, found {found}"
        )
    corners = oriented_to_corners(np.array([values])).tolist()[0]
    return AnnotatedObject.of_corners(name, [(x, y) for x, y in corners], {})


def _keypoints(element: Element) -> Iterator[tuple[str, Place]]:
    for child in element:
        if child.tag in ("keypoints", "landmarks", "lm"):
            if child.tag == "lm" or child.find("x1") is not None:
                yield from _numbered_keypoints(child, present=bool(flag(element.findtext("has_lm", "1"), "has_lm")))
            else:
                yield from map(_named_keypoint, child)
        # VOC's person layout has parts that are boxes, and its action pictures a point without a name
        elif (child.tag == "part" and child.find("bndbox") is None) or (child.tag == "point" and _value(child, "name")):
            yield _named_keypoint(child)


def _named_keypoint(element: Element) -> tuple[str, Place]:
    name = (_value(element, "name") or ("" if element.tag in _KEYPOINT_TAGS else element.tag)).strip()
    if not name:
        raise ElementError(f"expected a keypoint's name in <{element.tag}>, found none")
    visible = _value(element, "visible")
    if visible is not None and visible.strip() and not flag(visible, "visible"):
        return name, ABSENT
    return name, place(_value(element, "x"), _value(element, "y"), name)


def _numbered_keypoints(element: Element, *, present: bool) -> Iterator[tuple[str, Place]]:
    """WIDER FACE's ``<x1> <y1> ... <xK> <yK>``, where -1 -1 means that there is none."""
    names = dict.fromkeys(match[2] for child in element if (match := _NUMBERED.fullmatch(child.tag)))
    for name in names:
        position = place(element.findtext(f"x{name}"), element.findtext(f"y{name}"), name) if present else ABSENT
        yield name, ABSENT if position == (-1, -1) else position


def _value(element: Element, key: str) -> str | None:
    """An attribute, or else the text of a child."""
    text = element.get(key)
    return element.findtext(key) if text is None else text
