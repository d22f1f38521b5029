"""Annotated objects: the names in all of them, and the arrays of one sample."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources.base import FLAGS, Objects, SourceOptions
from tensorstore_ds.sources.names import absent_keypoints, choose_keypoints, order_classes, without_padding
from tensorstore_ds.sources.xml import ABSENT, Place

Box = tuple[float, float, float, float]

#: A number in a line of text, as `float` reads it but without ``nan``, ``inf`` and ``_``.
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class AnnotatedObject:
    """One annotated object."""

    label: str  #: its class; "" where it has none
    box: Box  #: x1 y1 x2 y2 in pixels, as written
    flags: Mapping[str, int] = field(default_factory=dict)  #: those of `FLAGS` that it has, 0 or 1
    keypoints: Mapping[str, Place] = field(default_factory=dict)  #: NaN NaN where one is absent
    polygon: Sequence[Place] = ()  #: x y in pixels, rings with one `ABSENT` between; none where it has none
    oriented: Sequence[Place] = ()  #: the four corners of its oriented box in order, the first edge its w; or none
    is_rectangle: bool = False  #: whether `box` was drawn as a rectangle, and so is an oriented box at angle 0

    @classmethod
    def of_polygon(cls, label: str, polygon: Sequence[Place], flags: Mapping[str, int]) -> AnnotatedObject:
        """Create an object whose box is the hull of its polygon."""
        return cls(label, hull(polygon), flags, {}, polygon)

    @classmethod
    def of_corners(cls, label: str, corners: Sequence[Place], flags: Mapping[str, int]) -> AnnotatedObject:
        """Create an object whose box is the hull of its oriented box: 4 corners in order, the first edge is w."""
        return cls(label, hull(corners), flags, oriented=corners)

    @classmethod
    def of_rectangle(cls, label: str, box: Box, degrees: float = 0, center: Place | None = None) -> AnnotatedObject:
        """Create an object from a box rotated clockwise on screen, around its center by default."""
        if not degrees:
            return cls(label, box, is_rectangle=True)
        x1, y1, x2, y2 = box
        return cls.of_corners(label, rotated(box, degrees, center or ((x1 + x2) / 2, (y1 + y2) / 2)), {})

    @property
    def corners(self) -> Sequence[Place]:
        """Corners of the oriented box, or of the rectangle; four `ABSENT` points without either."""
        x1, y1, x2, y2 = self.box
        if self.oriented:
            return self.oriented
        if not self.is_rectangle or not (x1 < x2 and y1 < y2):  # what is no box is found, and left out, as a box
            return (ABSENT,) * 4
        return (x1, y1), (x2, y1), (x2, y2), (x1, y2)


def hull(points: Iterable[Place]) -> Box:
    """Smallest box x1 y1 x2 y2 around points, at least one of which is not `ABSENT`."""
    columns, rows = zip(*(point for point in points if not math.isnan(point[0] + point[1])), strict=True)
    return min(columns), min(rows), max(columns), max(rows)


def rotated(box: Box, degrees: float, center: Place) -> tuple[Place, ...]:
    """Corners of a box rotated clockwise on screen around a point."""
    x1, y1, x2, y2 = box
    turn = math.radians(math.fmod(degrees, 360))
    cosine, sine, (a, b) = math.cos(turn), math.sin(turn), center
    corners = ((x1, y1), (x2, y1), (x2, y2), (x1, y2))
    return tuple((a + (x - a) * cosine - (y - b) * sine, b + (x - a) * sine + (y - b) * cosine) for x, y in corners)


def ellipse_box(center: Place, radii: Place, degrees: float) -> Box:
    """Smallest box around an ellipse that is rotated around its center."""
    (x, y), (rx, ry) = center, radii
    turn = math.radians(math.fmod(degrees, 360))
    width = math.hypot(rx * math.cos(turn), ry * math.sin(turn))
    height = math.hypot(rx * math.sin(turn), ry * math.cos(turn))
    return x - width, y - height, x + width, y + height


def attach_points(
    points: Sequence[tuple[object, str, Place]], objects: list[AnnotatedObject], groups: Mapping[object, Sequence[int]]
) -> int:
    """Add points to the one object of their group; returns how many have none, or a repeated name."""
    alone = 0
    for group, name, place in points:
        owners = groups.get(group, ()) if group is not None else ()
        if len(owners) == 1 and name not in objects[owners[0]].keypoints:
            owner = objects[owners[0]]
            objects[owners[0]] = replace(owner, keypoints={**owner.keypoints, name: place})
        else:
            alone += 1
    return alone


#: Kinds of objects, by their keypoints, that are looked at for two spellings of one keypoint.
_KINDS = 1 << 12

#: What is counted and not stored, by its reason code.
_UNSTORED = {
    "points": "points that belong to no object",
    "masks": "masks of objects; their hulls are stored as boxes",
    "shapes": "shapes that are no objects, such as lines",
    "attributes": "attributes",
    "second-annotation": "annotations of images that have another one",
}


class ObjectTable:
    """Names and values that the objects of a source have: collected by the scan, then in stored order.

    `classes` and `keypoints` map names, after `field`, to their stored indices. `flags` are the `FLAGS` of some
    object. `unstored` counts other values by reason code, such as `points`; `examples` has an annotation of each.
    """

    def __init__(self) -> None:
        self.classes: dict[str, int] = {}
        self.keypoints: dict[str, int] = {}
        self.flags: set[str] = set()
        self.has_polygons = self.has_oriented = False
        self.unstored: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self._labelled = False
        self.notes: tuple[str, ...] = ()
        self._spelled: dict[str, str] = {}  # names of keypoints by which others are stored
        self._together: set[tuple[str, ...]] = set()  # keypoints that some objects have, of a few kinds of object
        self._only = ""  # the class of objects that have none, where the options name one alone

    def note(
        self, objects: Iterable[AnnotatedObject], unstored: Mapping[str, int] = MappingProxyType({}), where: str = ""
    ) -> None:
        """Collect the names in objects, and count other values in the annotation `where`."""
        for reason, count in unstored.items():
            self.unstored[reason] += count
            if count and where:
                self.examples.setdefault(reason, where)
        for each in objects:
            if each.label:
                self.classes.setdefault(each.label, len(self.classes))
            if each.keypoints and (names := tuple(each.keypoints)) not in self._together:
                for name in names:
                    self.keypoints.setdefault(name, len(self.keypoints))
                if len(self._together) < _KINDS:
                    self._together.add(names)
            self.flags.update(each.flags)
            self.has_polygons |= bool(each.polygon)
            self.has_oriented |= bool(each.oriented)

    @classmethod
    def union(cls, tables: Iterable[ObjectTable]) -> ObjectTable:
        """Merge tables."""
        union = cls()
        for table in tables:
            union.classes |= table.classes
            union.keypoints |= table.keypoints
            union._together |= table._together
            union.flags |= table.flags
            union.has_polygons |= table.has_polygons
            union.has_oriented |= table.has_oriented
            union.unstored += table.unstored
            union.examples = table.examples | union.examples
        return union

    def field(
        self,
        options: SourceOptions,
        where: str,
        *,
        labelled: bool,
        classes: tuple[str, ...] | None = None,
        keypoints: Keypoints | None = None,
    ) -> ObjectsField:
        """The field, with names ordered as the options say.

        With `labelled`, each object has a class. Otherwise all have the class in the options, if there is exactly one.
        `classes` is the source's own order, used unless the options name classes. `keypoints` are those already chosen.
        """
        if not labelled and options.classes is not None and len(options.classes) == 1:
            (self._only,), labelled = options.classes, True
        self._labelled = labelled
        if classes is None or options.classes is not None:
            classes = order_classes(self.classes, options.classes, where, options.class_map) if labelled else ()
        spelled = without_padding(self.keypoints) if options.keypoints is None else {}
        if spelled and not any(len({spelled.get(n, n) for n in each}) < len(each) for each in self._together):
            self._spelled = spelled
            self.keypoints = {spelled.get(name, name): 0 for name in self.keypoints}
            some = next(iter(spelled))
            self.notes += (
                f"keypoints whose numbers have zeros before them are stored without: {some} as {spelled[some]}.",
            )
        self._together = set()
        if keypoints is None:
            keypoints = choose_keypoints(self.keypoints, options.keypoints, where)
        self.classes = {name: i for i, name in enumerate(classes)}
        self.keypoints = {name: i for i, name in enumerate(keypoints.names)}
        names = (
            ["boxes"]
            + ["oriented_boxes"] * self.has_oriented
            + ["labels"] * labelled
            + ["keypoints"] * bool(self.keypoints)
        )
        names += [*(flag for flag in FLAGS if flag in self.flags), *(["polygons"] * self.has_polygons)]
        return ObjectsField.of(*names, classes=classes, keypoints=keypoints.names, flip_pairs=keypoints.flip_pairs)

    def left_out(self, where: str) -> list[Problem]:
        """A problem for each kind of value that is not stored."""
        examples = {reason: f", such as in {example}" for reason, example in self.examples.items()}
        return [
            Problem(where, reason, f"not stored: {n} {_UNSTORED[reason]}{examples.get(reason, '')}.")
            for reason, n in sorted(self.unstored.items())
            if n
        ]

    def check(self, objects: Iterable[AnnotatedObject], where: str) -> None:
        """Raise `SourceError` for objects, read again, with names that the scan did not see."""
        for each in objects:
            names = (
                {self._spelled.get(name, name) for name in each.keypoints} if self._spelled else each.keypoints.keys()
            )
            if (each.label or self._only) not in self.classes or not self.keypoints.keys() >= names:
                message = f"expected what the scan found, found a new class or keypoint in {each.label}."
                raise SourceError(Problem(where, "annotation", f"{message} Do not change a source while it is read."))

    def arrays(self, objects: Sequence[AnnotatedObject], where: str) -> Objects:
        """The objects of one sample; errors call it `where`."""
        keypoints = absent_keypoints(len(objects), len(self.keypoints), where)
        for row, each in zip(keypoints, objects, strict=True):
            if each.keypoints:
                names = (self._spelled.get(name, name) for name in each.keypoints)
                row[[self.keypoints[name] for name in names]] = list(each.keypoints.values())
        arrays: dict[str, Any] = {"boxes": np.array([each.box for each in objects], np.float64).reshape(-1, 4)}
        if self._labelled:
            arrays["labels"] = np.array([self.classes[each.label or self._only] for each in objects], np.int64)
        if self.keypoints:
            arrays["keypoints"] = keypoints
        if self.has_polygons:
            arrays["polygons"] = [np.array(each.polygon, np.float64).reshape(-1, 2) for each in objects]
        if self.has_oriented:
            corners = [each.corners for each in objects]
            arrays["oriented_boxes"] = np.array(corners, np.float64).reshape(-1, 4, 2)
        flags = {flag: np.array([each.flags.get(flag, 0) for each in objects], np.uint8) for flag in self.flags}
        return arrays | flags
