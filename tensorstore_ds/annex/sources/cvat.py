"""CVAT for images 1.1: an XML file that lists images with shapes: formats/sources/cvat.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import ClassVar
from xml.etree.ElementTree import Element

from msgspec.structs import replace

from tensorstore_ds.annex.sources.shapes import attach_points, ellipse_box
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.annotations import AnnotatedObject, AnnotatedSource, hull
from tensorstore_ds.sources.base import FLAGS, Contents
from tensorstore_ds.sources.files import PackedStrings, encoding_problem
from tensorstore_ds.sources.forms import FormError, noted, placed
from tensorstore_ds.sources.images import ImageIndex
from tensorstore_ds.sources.ledger import LEAF, TEXT, USED, Known
from tensorstore_ds.sources.splits import notes_of_renamed, split_folder, split_names, split_word
from tensorstore_ds.sources.xml import (
    ABSENT,
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

_SHAPE = (
    *("label", "occluded", "outside", "rotation", "points", "xtl", "ytl", "xbr", "ybr", "cx", "cy", "rx", "ry", "rle"),
    *("left", "top", "width", "height", "group_id", "source", "z_order", "id"),
)
#: What of an image is used, counted or passed over in silence; the rest is noted by `_unread`.
_POINTS: Known = {**{f"@{name}": USED for name in _SHAPE}, "attribute": {TEXT: USED, "@name": USED}}
_IMAGE: Known = {
    **dict.fromkeys(("@id", "@name", "@width", "@height", "@subset", "@task_id", "polyline", "cuboid", "tag"), USED),
    **dict.fromkeys(("box", "polygon", "points", "ellipse", "mask"), _POINTS),
    "skeleton": {**_POINTS, "points": _POINTS},
}
#: What of the description of tasks is used or passed over in silence.
_VALUES: Known = dict.fromkeys(
    (
        *("id", "name", "size", "mode", "overlap", "bugtracker", "created", "updated", "subset", "source", "dumped"),
        *("start_frame", "stop_frame", "frame_filter", "z_order", "start", "stop", "url", "username", "email", "color"),
        *("type", "mutable", "input_type", "default_value", "values", "width", "height", "flipped", "parent", "svg"),
    ),
    LEAF,
)
_TASK: Known = {
    **_VALUES,
    **dict.fromkeys(("owner", "assignee", "original_size"), _VALUES),
    "labels": {"label": {**_VALUES, "attributes": {"attribute": _VALUES}}},
    "segments": {"segment": _VALUES},
}
_META: Known = {
    **_VALUES,
    **dict.fromkeys(("task", "job"), _TASK),
    "project": {**_TASK, "tasks": {"task": _TASK}, "subsets": LEAF},
}
#: Elements of an image that are objects.
_OBJECTS = ("box", "polygon", "ellipse", "mask", "skeleton")
#: Elements outside of images that are passed over in silence.
_OUTSIDE = frozenset({"version"})


class CvatSource(AnnotatedSource):
    """The XML file is read once, image by image."""

    name: ClassVar[str] = "cvat"
    _is_named = False  # whether something names a split

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is an XML file whose root is ``annotations``, or a folder with such files."""
        return has_root(path, {"annotations"})

    def scan(self) -> Contents:
        """Read every XML file."""
        xmls, images = self._walked(".xml")
        problems = self._annotations.problems
        used: dict[int, str] = {}  # the XML file of each image
        splits: dict[str, PackedStrings] = {}
        for xml in xmls:
            with noted(problems):
                found = list(self._entries(xml, images))
                self.ledger.use(xml)
                for image, subset, row in found:
                    if used.setdefault(image, xml) != xml:
                        message = (
                            f"expected each image in one XML file, found it in {xml} and {used[image]}. Remove one."
                        )
                        problems.append(Problem(images.paths[image], "duplicate-key", message))
                    else:
                        splits.setdefault(subset, PackedStrings()).extend([self._annotations.rows[row]])
        if not splits:
            message = "expected <image> elements, as CVAT for images 1.1 has them, found none."
            missing = Problem(str(self.path), "empty-source", message)
            advice = "The root <annotations> looks like CVAT: export as CVAT for images 1.1, or as Pascal VOC or COCO."
            raise SourceError(problems or missing, "" if problems else advice)
        names = split_names(splits)
        message = "not stored: no XML file of this source lists it."
        beside = (path for i, path in enumerate(images.paths) if i not in used)
        self._annotations.left_out += [Problem(path, "not-listed", message) for path in beside]
        references = {names[subset]: entries for subset, entries in splits.items()}
        contents = self._contents(references, notes_of_renamed(names))
        return contents if self._is_named else contents.by_folder(str(self.path))

    def _entries(self, xml: str, images: ImageIndex) -> Iterator[tuple[int, str, int]]:
        """Index in `images`, subset and row of each sound image of a file."""
        subsets: dict[str, str] = {}  # of the tasks, by their numbers
        named = split_word(PurePosixPath(xml).stem) or split_folder(xml)
        seen: set[int] = set()
        tags, path = ("meta", "image", "track"), self._root / xml
        for line, element in iterate_elements(path, xml, "annotations", *tags, ledger=self.ledger, passed=_OUTSIDE):
            if element.tag == "track":
                message = f"line {line}: expected images, found a <track>: this is CVAT for video."
                raise SourceError(Problem(xml, "annotation", f"{message} Export it as CVAT for images 1.1."))
            self.ledger.element(element, _META if element.tag == "meta" else _IMAGE, xml)
            if element.tag == "meta":
                tasks = element.iter("task")
                subsets = {task.findtext("id", ""): task.findtext("subset", "").strip() for task in tasks}
                continue
            where = f"{xml} line {line}"
            only = next(iter(subsets.values())) if len(subsets) == 1 else ""
            subset = element.get("subset") or subsets.get(element.get("task_id", ""), only) or named
            self._is_named |= bool(subset)
            subset = subset or "train"
            try:
                row = self._row(element, subset, xml, where, images)
                if row in seen:
                    message = f"expected each image once in {xml}, found it again in line {line}. Remove one."
                    raise SourceError(Problem(images.paths[row], "duplicate-key", message))
                with placed(images.paths[row], "Correct the entry, or remove it.", prefix=f"{where}: "):
                    objects, unstored = read_image(element)
            except SourceError as error:
                self._annotations.problems += error.problems
                continue
            seen.add(row)
            for unread in _unread(element):
                self.ledger.unread(unread, f"{xml}: {images.paths[row]}", "images")
            size = pixels(element.get("height")), pixels(element.get("width"))
            self._annotations.leave_out(unstored)
            yield row, subset, self._annotations.add(images.paths[row], objects, size, file="")

    def _row(self, element: Element, subset: str, xml: str, where: str, images: ImageIndex) -> int:
        """Number of an image: its name is a path that begins at one of several folders, depending on the export."""
        name = (element.get("name") or "").replace("\\", "/").lstrip("/")
        if not name:
            message = "expected the attribute name of <image>, found none. Add it, or remove the entry."
            raise SourceError(Problem(where, "annotation", message))
        folder = "" if self.options.images is not None else xml[: xml.rfind("/") + 1]
        below = (f"{folder}images/{subset}/", f"{folder}images/", f"{folder}{subset}/", folder, "")
        row = next((row for each in below if (row := images.row(each + name)) >= 0), -1)
        try:
            row = images.find(name, name, ()) if row < 0 else row
        except SourceError as error:
            raise SourceError(Problem(name, error.reason, f"{where}: {error.problems[0].message}")) from error
        if problem := encoding_problem(images.paths[row]):
            raise SourceError(problem)
        return row


def read_image(image: Element) -> tuple[list[AnnotatedObject], Counter[str]]:
    """The objects of an ``<image>``, and the number of other shapes by reason."""
    objects: list[AnnotatedObject] = []
    groups: dict[object, list[int]] = {}  # of objects
    points: list[tuple[object, str, Place]] = []
    unstored: Counter[str] = Counter()
    for i, shape in enumerate(image, 1):
        try:
            group = _group(shape)
            if shape.tag == "points":
                named = _numbered(shape)
                points += [(None if group == "0" else group, name, position) for name, position in named]
                continue
            found = _object(shape)
            if found is None:
                unstored["shapes"] += shape.tag != "tag"
                continue
            flags = _flags(shape)
        except FormError as error:
            raise FormError(f"shape {i}: {error}") from error
        unstored["masks"] += shape.tag == "mask"
        if group != "0":
            groups.setdefault(group, []).append(len(objects))
        objects.append(replace(found, flags=flags))
    unstored["points"] += attach_points(points, objects, groups)
    return objects, unstored


def _object(shape: Element) -> AnnotatedObject | None:
    """The object of a shape; None without a box."""
    if shape.tag == "box":
        x1, y1, x2, y2 = _numbers(shape, "xtl", "ytl", "xbr", "ybr")
        degrees = number(shape.get("rotation", "0"), "rotation")
        if degrees and not all(map(math.isfinite, (degrees, x1, y1, x2, y2))):
            raise FormError("expected finite numbers in a rotated box, found others")
        return AnnotatedObject.of_rectangle(_label(shape), (x1, y1, x2, y2), degrees)
    if shape.tag == "polygon":
        places = _places(shape)
        if len(places) < 3:
            raise FormError(f"expected three points of a polygon or more, found {len(places)}")
        return AnnotatedObject.around(_label(shape), polygon=places)
    if shape.tag == "ellipse":
        x, y, rx, ry = _numbers(shape, "cx", "cy", "rx", "ry")
        turn = number(text := shape.get("rotation", "0"), "rotation")
        if not math.isfinite(turn):
            raise FormError(f"expected rotation, a finite number, found {shown(text)}")
        return AnnotatedObject(_label(shape), ellipse_box((x, y), (rx, ry), turn))
    if shape.tag == "mask":
        x, y, width, height = _numbers(shape, "left", "top", "width", "height")
        return AnnotatedObject(_label(shape), (x, y, x + width, y + height))
    if shape.tag == "skeleton":
        keypoints = keypoints_of(map(_joint, shape.iterfind("points")))
        present = [position for position in keypoints.values() if position != ABSENT]
        return AnnotatedObject(_label(shape), hull(present), {}, keypoints) if present else None
    return None


def _label(shape: Element) -> str:
    label = (shape.get("label") or "").strip()
    if not label:
        raise FormError(f"expected the attribute label of <{shape.tag}>, found none")
    return label


def _numbers(shape: Element, *keys: str) -> tuple[float, ...]:
    return tuple(number(shape.get(key), key) for key in keys)


def _places(shape: Element) -> list[Place]:
    """The points of a shape, ``x,y;x,y``."""
    places: list[Place] = []
    for pair in (shape.get("points") or "").split(";"):
        x, comma, y = pair.partition(",")
        position = parse_point(x, y if comma else None, _label(shape))
        if position == ABSENT:
            raise FormError(f"expected numbers in points, found {shown(pair)}")
        places.append(position)
    return places


def _numbered(shape: Element) -> list[tuple[str, Place]]:
    """Points with their names: the label, with a number if a shape has several."""
    label, places = _label(shape), _places(shape)
    names = [label] if len(places) == 1 else [f"{label}_{i}" for i in range(1, 1 + len(places))]
    return list(zip(names, places, strict=True))


def _joint(points: Element) -> tuple[str, Place]:
    """A point of a skeleton; one that is marked outside is absent."""
    ((_, position),) = _numbered(points)[:1]
    return _label(points), ABSENT if flag(points.get("outside"), "outside") else position


def _group(shape: Element) -> str:
    return (shape.get("group_id") or "0").strip()


def _unread(image: Element) -> Iterator[str]:
    """Parts of an image's shapes that are not stored, other than whole shapes."""
    groups = Counter(_group(shape) for shape in image if shape.tag in _OBJECTS)
    for shape in image:
        if shape.tag == "tag":
            yield f"<tag> {(shape.get('label') or '').strip()}".strip()
        if shape.tag not in (*_OBJECTS, "points"):
            continue
        for attribute in shape.iter("attribute"):
            name = (attribute.get("name") or "").strip()
            if shape.tag == "points" or name.lower() not in FLAGS:
                yield f'the attribute "{name}"'
        if shape.tag != "points" and _group(shape) != "0" and groups[_group(shape)] > 1:
            yield "the attribute group_id of several objects"
        if shape.tag not in ("box", "ellipse") and _is_set(shape.get("rotation")):
            yield f"the attribute rotation of <{shape.tag}>"
        if any(_is_set(points.get("occluded")) for points in shape.iter("points")):
            yield "the attribute occluded of <points>"


def _is_set(text: str | None) -> bool:
    return (text or "").strip().lower() not in ("", "0", "0.0", "0.00", "false")


def _flags(shape: Element) -> dict[str, int]:
    """The flags of a shape, including attributes of a project with the names of flags."""
    flags = {"occluded": flag(shape.get("occluded"), "occluded")}
    for attribute in shape.iter("attribute"):
        name, text = (attribute.get("name") or "").lower(), attribute.text
        if name in FLAGS:
            flags[name] = flags.get(name, 0) | flag(text, name)
    return flags
