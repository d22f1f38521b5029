"""Read one Pascal VOC annotation: formats/sources/voc.md."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
from msgspec.structs import replace

from tensorstore_ds.imaging.oriented import oriented_to_corners
from tensorstore_ds.sources.annotations import NUMBER, AnnotatedObject
from tensorstore_ds.sources.base import FLAGS
from tensorstore_ds.sources.forms import FormError, placed
from tensorstore_ds.sources.ledger import ANY, LEAF, TEXT, USED, Known, Ledger
from tensorstore_ds.sources.xml import ABSENT, Place, flag, keypoints_of, number, parse_point, pixels, read_tree

#: Tags that programs give to any keypoint; another tag is the keypoint's name.
_KEYPOINT_TAGS = frozenset({"keypoint", "landmark", "part", "point"})
_CONTAINERS = frozenset({"keypoints", "landmarks", "keypoint", "landmark", "parts", "points"})
_NUMBERED = re.compile(r"([xy])([0-9]{1,5})")
_VALUES = ("name", "x", "y", "visible")
_SIDES = ("xmin", "ymin", "xmax", "ymax")

#: Elements of an object that are used or, like ``pose``, passed over in silence. Those of keypoints are in neither.
_OBJECT: Known = {
    **dict.fromkeys(("name", "pose", "type", "coordinate", "has_lm", *FLAGS), LEAF),
    "bndbox": dict.fromkeys(_SIDES, LEAF),
    "robndbox": dict.fromkeys(("cx", "cy", "w", "h", "angle"), LEAF),
    "possibleresult": {"name": LEAF},
    "lm": {ANY: LEAF},
}
_PLAIN = _OBJECT.keys() - {"lm"}
#: The same of keypoints, and of the elements around them.
_POINT: Known = {TEXT: USED, **dict.fromkeys(_VALUES, LEAF), **{f"@{key}": USED for key in _VALUES}}
_POINTS: Known = {**_POINT, ANY: _POINT}
#: The same of the whole file, with what says where it is from.
_ROOT: Known = {
    **dict.fromkeys(("object", "@verified", "@xmlns", "@version"), USED),
    **dict.fromkeys(("filename", "folder", "path", "segmented"), LEAF),
    "source": dict.fromkeys(("database", "annotation", "image", "flickrid", "filename", "origin"), LEAF),
    "owner": dict.fromkeys(("flickrid", "name"), LEAF),
    "size": dict.fromkeys(("width", "height", "depth"), LEAF),
}
#: Tags that are read in any case.
_TAGS = frozenset(
    {"annotation", "objects", *_SIDES, *_OBJECT, *_ROOT, *_CONTAINERS, *_ROOT["size"], *_OBJECT["robndbox"]}
)


@dataclass(frozen=True, slots=True)
class Annotation:
    """One file: the image's name ("" where the file has none), its (height, width) or zeros, and the objects."""

    filename: str
    size: tuple[int, int]
    objects: tuple[AnnotatedObject, ...]


def read_annotation(path: Path, where: str, ledger: Ledger) -> Annotation:
    """Read one file, which errors call `where`, and note unused parts in `ledger`."""
    root = read_tree(path, where)
    for element in root.iter():
        if element.tag not in _TAGS and (tag := element.tag.lower()) in _TAGS:
            element.tag = tag
    elements: list[Element] = []
    with placed(where, "Correct the file, or remove it with its image."):
        if root.tag != "annotation":
            raise FormError(f"expected the root element <annotation>, found <{root.tag}>")
        wrappers = _find_objects(root, elements)
        points = _beside(root, elements)
        objects = tuple(_object(element, i, points) for i, element in enumerate(elements, 1))
        name = _text(root, "filename") or root.findtext("source/filename") or ""
    known = {tag: {**dict.fromkeys(("object", *wrappers), USED)} for tag in wrappers}
    ledger.element(root, {**_ROOT, **known, **({points.tag: _POINTS} if points is not None else {})}, where)
    for element in elements:
        _note(element, ledger, where)
    height, width = pixels(root.findtext("size/height")), pixels(root.findtext("size/width"))
    return Annotation(name, (height, width), objects)


def _find_objects(element: Element, objects: list[Element]) -> set[str]:
    """Append all objects, including nested ones; returns the tags of the elements around these."""
    wrappers: set[str] = set()
    for child in element:
        if child.tag == "object":
            objects.append(child)
        elif len(child):
            count = len(objects)
            inner = _find_objects(child, objects)
            wrappers |= {child.tag, *inner} if len(objects) > count else set()
    return wrappers


def _beside(root: Element, objects: Sequence[Element]) -> Element | None:
    """Keypoints next to the only object, if it has none of its own."""
    found = [child for child in root if child.tag in _CONTAINERS]
    if len(found) != 1 or len(objects) != 1 or _keypoints(found[0], root) is None:
        return None
    others = (child for child in objects[0] if child.tag not in _PLAIN)
    return found[0] if all(_keypoints(child, objects[0]) is None for child in others) else None


def _object(element: Element, i: int, points: Element | None) -> AnnotatedObject:
    try:
        name = _text(element, "name")
        if not name and (result := _only(element, "possibleresult")) is not None:
            name = result.findtext("name") or ""
        name = name.strip()
        if not name:
            raise FormError("expected <name>, the class, found none")
        box, turned = _only(element, "bndbox"), _only(element, "robndbox")
        if turned is not None:
            found = _turned(turned, name)
            found = found if box is None else replace(found, box=_upright(box, name).box)
        elif box is not None:
            found = _upright(box, name)
        elif (corners := element.find("points")) is not None:
            found = _cornered(corners, name)
        else:
            raise FormError("expected <bndbox>, found none")
        # Occluded, with a capital, is written by some programs
        flags = {tag: flag(child.text, tag) for child in element if (tag := child.tag.lower()) in FLAGS}
        others = [child for child in element if child.tag not in _PLAIN]
        others += [points] if points is not None else []
        places = (_keypoints(child, element) or () for child in others)
        keypoints = keypoints_of(itertools.chain.from_iterable(places)) if others else {}
    except FormError as error:
        raise FormError(f"object {i}: {error}") from error
    return replace(found, flags=flags, keypoints=keypoints)


def _note(element: Element, ledger: Ledger, where: str) -> None:
    """Note unused parts of an object."""
    for child in element:
        text = (child.text or "").strip()
        if child.tag.lower() in FLAGS and NUMBER.fullmatch(text) and float(text) not in (0, 1):
            ledger.unread(f"a number in <{child.tag}>, stored as 1", f"{where}: {text[:40]}", "values")
    if all(child.tag in _OBJECT for child in element):
        ledger.element(element, _OBJECT, where)
        return
    is_cornered = element.find("bndbox") is None and element.find("robndbox") is None
    others = [child for child in element if not (is_cornered and child.tag == "points")]
    points = [child for child in others if child.tag not in _OBJECT and _keypoints(child, element) is not None]
    for child in points:
        ledger.element(child, _POINTS, where)
    if len(others) < len(element) or points:
        others = [child for child in others if child not in points]
        kept = Element(element.tag, element.attrib)
        kept.extend(others)
        element = kept
    ledger.element(element, _OBJECT, where)


def _only(element: Element, tag: str) -> Element | None:
    found = element.findall(tag)
    if len(found) > 1:
        raise FormError(f"expected one <{tag}>, found {len(found)}")
    return found[0] if found else None


def _text(element: Element, tag: str) -> str:
    """Text of a child. Several children with this tag must have the same text."""
    texts = {(each.text or "").strip() for each in element.findall(tag)} - {""}
    if len(texts) > 1:
        raise FormError(f"expected one <{tag}>, found {' and '.join(map(repr, sorted(texts)))}")
    return texts.pop() if texts else ""


def _upright(box: Element, name: str) -> AnnotatedObject:
    if len(box) > len(_SIDES):
        for tag in _SIDES:
            _text(box, tag)
    x1, y1, x2, y2 = (number(box.findtext(tag), tag) for tag in _SIDES)
    return AnnotatedObject.of_rectangle(name, (x1, y1, x2, y2))


def _turned(box: Element, name: str) -> AnnotatedObject:
    """Object from roLabelImg's ``<robndbox>``: center, sides, and radians clockwise."""
    values = [number(box.findtext(tag), tag) for tag in ("cx", "cy", "w", "h", "angle")]
    if not all(map(math.isfinite, values)) or min(values[2:4]) < 0:
        found = " ".join(f"{value:g}" for value in values)
        raise FormError(
            f"expected cx, cy, w, h and angle of <robndbox>, finite numbers, w and h not below 0, found {found}"
        )
    corners = oriented_to_corners(np.array([values])).tolist()[0]
    return AnnotatedObject.around(name, oriented=[(x, y) for x, y in corners])


def _cornered(points: Element, name: str) -> AnnotatedObject:
    """Object from FAIR1M's ``<points><point>x,y</point>``: an oriented box of 4 corners, or a polygon."""
    corners = []
    for point in points.iterfind("point"):
        x, comma, y = (point.text or "").partition(",")
        position = parse_point(x, y if comma else None, "in points")
        if position == ABSENT:
            raise FormError("expected numbers in <points>, found nan")
        corners.append(position)
    if len(corners) > 3 and corners[0] == corners[-1]:
        corners.pop()  # some outlines end where they begin
    if len(corners) == 4:
        return AnnotatedObject.around(name, oriented=corners)
    if len(corners) < 3:
        raise FormError(f"expected <bndbox>, or <points> with 3 corners or more, found {len(corners)} corners")
    return AnnotatedObject.around(name, polygon=corners)


def _keypoints(child: Element, element: Element) -> Sequence[tuple[str, Place]] | None:
    """Keypoints of an element within an object; None if it has none that can be read."""
    tag = child.tag
    if tag == "lm" or (tag in _CONTAINERS and child.find("x1") is not None):
        return list(_numbered_keypoints(child, present=bool(flag(element.findtext("has_lm", "1"), "has_lm"))))
    if tag in ("keypoints", "landmarks"):
        return _listed_keypoints(child.text or "") if not len(child) else [_named_keypoint(each) for each in child]
    # VOC's person layout has parts that are boxes, and its action pictures a point without a name
    if tag in _KEYPOINT_TAGS and not any(map(len, child)) and _has_place(child):
        is_named = tag == "part" or _value(child, "name")
        return [_named_keypoint(child)] if is_named else None
    if tag == "part" and child.find("bndbox") is None and not any(map(len, child)):
        return [_named_keypoint(child)]
    if len(child) and all(_value(each, "name") and _has_place(each) for each in child):
        return [_named_keypoint(each) for each in child]
    return None


def _has_place(element: Element) -> bool:
    return _value(element, "x") is not None and _value(element, "y") is not None


def _listed_keypoints(text: str) -> Sequence[tuple[str, Place]] | None:
    """Numbers ``x,y,visible,...`` as in COCO, or ``x,y,...`` if no third number can be a visibility."""
    words = text.replace(",", " ").split()
    if not words:
        return []
    values = [number(word, "keypoints") for word in words]
    with_third = len(values) % 3 == 0 and set(values[2::3]) <= {0, 1, 2}
    if not with_third and len(values) % 2:
        raise FormError(f"expected x y or x y visible of each keypoint, found {len(values)} numbers")
    size = 3 if with_third else 2
    places = [parse_point(words[i], words[i + 1], str(i // size + 1)) for i in range(0, len(words), size)]
    seen = values[2::3] if with_third else [1] * len(places)
    return [
        (str(i), each if is_seen else ABSENT) for i, (each, is_seen) in enumerate(zip(places, seen, strict=True), 1)
    ]


def _named_keypoint(element: Element) -> tuple[str, Place]:
    name = (_value(element, "name") or ("" if element.tag in _KEYPOINT_TAGS else element.tag)).strip()
    if not name:
        raise FormError(f"expected a keypoint's name in <{element.tag}>, found none")
    visible = _value(element, "visible")
    if visible is not None and visible.strip() and not flag(visible, "visible"):
        return name, ABSENT
    return name, parse_point(_value(element, "x"), _value(element, "y"), name)


def _numbered_keypoints(element: Element, *, present: bool) -> Iterator[tuple[str, Place]]:
    """WIDER FACE's ``<x1> <y1> ... <xK> <yK>``; -1 -1 is an absent point."""
    names = dict.fromkeys(match[2] for child in element if (match := _NUMBERED.fullmatch(child.tag)))
    for name in names:
        position = parse_point(element.findtext(f"x{name}"), element.findtext(f"y{name}"), name) if present else ABSENT
        yield name, ABSENT if position == (-1, -1) else position


def _value(element: Element, key: str) -> str | None:
    """An attribute, or else the text of a child."""
    text = element.get(key)
    return element.findtext(key) if text is None else text
