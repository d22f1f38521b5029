"""The objects of images: a scan packs them into the reference of their image, from which they are read as arrays."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, ObjectsField
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.packed_strings import PackedStrings
from tensorstore_ds.regular_files import is_file
from tensorstore_ds.sources.base import (
    FLAGS,
    IMAGE_SUFFIXES,
    Contents,
    Objects,
    Reference,
    Sample,
    Source,
    SourceOptions,
)
from tensorstore_ds.sources.files import walk_files
from tensorstore_ds.sources.images import ImageIndex
from tensorstore_ds.sources.ledger import Ledger
from tensorstore_ds.sources.names import absent_keypoints, choose_keypoints, order_classes, without_padding
from tensorstore_ds.sources.xml import ABSENT, Place

Box = tuple[float, float, float, float]
Size = tuple[int, int]  #: (height, width) as annotated; 0 if unknown

#: A number in a line of text, as `float` reads it but without ``nan``, ``inf`` and ``_``.
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class AnnotatedObject(msgspec.Struct, frozen=True):
    """One annotated object."""

    label: str  #: its class; "" where it has none
    box: Box  #: x1 y1 x2 y2 in pixels, as written
    flags: Mapping[str, int] = {}  #: those of `FLAGS` that it has, 0 or 1
    keypoints: Mapping[str, Place] = {}  #: NaN NaN where one is absent
    polygon: Sequence[Place] = ()  #: x y in pixels, rings with one `ABSENT` between; none where it has none
    oriented: Sequence[Place] = ()  #: the four corners of its oriented box in order, the first edge its w; or none
    is_rectangle: bool = False  #: whether `box` was drawn as a rectangle, and so is an oriented box at angle 0

    @classmethod
    def around(cls, label: str, polygon: Sequence[Place] = (), oriented: Sequence[Place] = ()) -> AnnotatedObject:
        """Create an object whose box is the hull of its polygon or of its oriented box."""
        return cls(label, hull(polygon or oriented), polygon=polygon, oriented=oriented)

    @classmethod
    def of_rectangle(cls, label: str, box: Box, degrees: float = 0, center: Place | None = None) -> AnnotatedObject:
        """Create an object from a box rotated clockwise on screen, around its center by default."""
        if not degrees:
            return cls(label, box, is_rectangle=True)
        x1, y1, x2, y2 = box
        return cls.around(label, oriented=rotated(box, degrees, center or ((x1 + x2) / 2, (y1 + y2) / 2)))


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


#: Kinds of objects, by their keypoints, that are looked at for two spellings of one keypoint.
_KINDS = 1 << 12

_SPELLED = "keypoints whose numbers have zeros before them are stored without"

#: What is counted and not stored, by its reason code.
_UNSTORED = {
    "points": "points that belong to no object",
    "masks": "masks of objects; their hulls are stored as boxes",
    "shapes": "shapes that are no objects, such as lines",
    "attributes": "attributes",
    "second-annotation": "annotations of images that have another one",
}


class Row(msgspec.Struct, array_like=True):
    """The M objects of an image as columns. Numbers are back to back, float32 if that is exact, else float64."""

    size: Size
    more: list[bytes]  #: what else the source keeps of the image: texts, such as paths in any encoding
    labels: list[str]
    boxes: bytes
    flags: dict[str, bytes] = {}  #: a byte for each object; without those that are 0 in all
    rectangles: bytes = b""  #: a byte for each object, or none if no box is a rectangle
    oriented: bytes = b""  #: 4 corners of each object, NaN without an oriented box; or none
    lengths: list[int] = []  #: points of each object's polygon, or none
    polygons: bytes = b""
    names: list[tuple[str, ...]] = []  #: of keypoints that some object has
    named: list[int] = []  #: which of `names` each object has
    keypoints: bytes = b""

    @classmethod
    def of(cls, objects: Sequence[AnnotatedObject], size: Size = (0, 0), more: Sequence[str] = ()) -> Row:
        """Create the row of an image."""
        boxes = _packed([*chain.from_iterable([each.box for each in objects])])
        row = cls(
            size, [text.encode("utf-8", "surrogateescape") for text in more], [each.label for each in objects], boxes
        )
        flags = [each.flags for each in objects]
        for flag in dict.fromkeys(name for each in flags if 1 in each.values() for name in each):  # in one order
            row.flags[flag] = bytes([each.get(flag, 0) for each in flags])
        if any(rectangles := [each.is_rectangle for each in objects]):
            row.rectangles = bytes(rectangles)
        if any(oriented := [each.oriented for each in objects]):
            row.oriented = _packed(_flat(each or _NO_CORNERS for each in oriented))
        if any(polygons := [each.polygon for each in objects]):
            row.lengths, row.polygons = [*map(len, polygons)], _packed(_flat(polygons))
        if any(keypoints := [each.keypoints for each in objects]):
            names: dict[tuple[str, ...], int] = {}
            row.named = [names.setdefault((*each,), len(names)) for each in keypoints]
            row.names, row.keypoints = [*names], _packed(_flat(each.values() for each in keypoints))
        return row

    @property
    def texts(self) -> list[str]:
        """What else the source keeps of the image."""
        return [text.decode("utf-8", "surrogateescape") for text in self.more]


_NO_CORNERS = (ABSENT,) * 4
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Row).decode


def unpack(reference: Reference) -> tuple[str, Row]:
    """An image's path, and its objects."""
    image, _, row = str(reference).partition("\0")
    return image, _decode(row.encode("utf-8", "surrogateescape"))


def _flat(places: Iterable[Iterable[Place]]) -> list[float]:
    return [value for some in places for place in some for value in place]


def _packed(values: list[float]) -> bytes:
    short = array("f", values)
    return (short if short.tolist() == values else array("d", values)).tobytes()


def _unpacked(data: bytes, *shape: int) -> NDArray[np.float64]:
    """Numbers of a `Row`, as an array of this shape."""
    dtype = np.float32 if len(data) == 4 * math.prod(shape) else np.float64
    return np.frombuffer(data, dtype).reshape(shape).astype(np.float64)


def changed(where: str, new: str) -> Problem:
    """Problem for a name, read again, that the scan did not see."""
    message = f"expected what the scan found, found a new {new}. Do not change a source while it is read."
    return Problem(where, "annotation", message)


@dataclass(frozen=True)
class ObjectReader:
    """Makes arrays of the objects of an image, with the numbers of their classes and keypoints.

    `values` are the names of the arrays. `classes` and `keypoints` are the stored indices by name; `count` is the
    number of keypoints.
    """

    values: tuple[str, ...] = ()
    classes: Mapping[str, int] = field(default_factory=dict)
    keypoints: Mapping[str, int] = field(default_factory=dict)
    count: int = 0

    def arrays(self, row: Row, where: str) -> Objects:
        """The objects of one image; errors call it `where`.

        Raises `SourceError` for objects, read again, with names that the scan did not see.
        """
        count = len(row.labels)
        boxes = _unpacked(row.boxes, count, 4)
        arrays: dict[str, Any] = {"boxes": boxes}
        try:
            if "labels" in self.values:
                arrays["labels"] = np.array([self.classes[label] for label in row.labels], np.int64)
            if "keypoints" in self.values or row.names:
                arrays["keypoints"] = self._keypoints(row, where)
        except KeyError as error:
            raise SourceError(changed(where, f"class or keypoint, {error.args[0]}")) from None
        if "polygons" in self.values:
            lengths = row.lengths or [0] * count
            points = _unpacked(row.polygons, sum(lengths), 2)
            arrays["polygons"] = [points[a:b] for a, b in pairwise(accumulate(lengths, initial=0))]
        if "oriented_boxes" in self.values:
            arrays["oriented_boxes"] = _corners(row, boxes)
        for flag in FLAGS:
            if flag in self.values:
                arrays[flag] = np.frombuffer(row.flags.get(flag) or bytes(count), np.uint8)
        return arrays

    def _keypoints(self, row: Row, where: str) -> NDArray[np.float64]:
        keypoints = absent_keypoints(len(row.labels), self.count, where)
        columns = [[self.keypoints[name] for name in names] for names in row.names]
        lengths = [len(columns[i]) for i in row.named]
        points = _unpacked(row.keypoints, sum(lengths), 2)
        for i, (start, end) in enumerate(pairwise(accumulate(lengths, initial=0))):
            keypoints[i, columns[row.named[i]]] = points[start:end]
        return keypoints


def _corners(row: Row, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(M, 4, 2) corners of the oriented boxes, or of the rectangles; NaN without either."""
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    # what is no box is found, and left out, as a box
    is_box = np.frombuffer(row.rectangles or bytes(len(boxes)), np.bool_) & (boxes[:, :2] < boxes[:, 2:]).all(axis=1)
    corners[~is_box] = np.nan
    if row.oriented:
        oriented = _unpacked(row.oriented, len(boxes), 4, 2)
        corners = np.where(np.isnan(oriented), corners, oriented)
    return corners


class Annotations:
    """The objects that the scan of a source finds, and all their names.

    `classes` and `keypoints` are names as they occur; `values` are names of other arrays. `images`, `bad`, `problems`
    and `left_out` are for the scan: rows of the images that it stores, images that it does not, and why.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.rows = PackedStrings()  #: references of images, in the order in which they were added
        self.images: dict[str, int] = {}
        self.bad: set[str] = set()
        self.problems: list[Problem] = []
        self.left_out: list[Problem] = []
        self.classes: dict[str, None] = {}  #: "" is of objects without a class
        self.keypoints: dict[str, None] = {}
        self.values: set[str] = {"boxes"}
        self._unstored: Counter[str] = Counter()  # values by reason code, such as `points`
        self._examples: dict[str, str] = {}  # an annotation with some
        self._together: set[tuple[str, ...]] = set()  # keypoints that some objects have, of a few kinds of object

    def add(self, image: str, objects: Sequence[AnnotatedObject], size: Size = (0, 0), *more: str, file: str) -> int:
        """Add the objects of an image with its `Row.size` and `Row.more`; returns the index in `rows`.

        `file` is the path of the file that they are from, if it is of this image alone, else empty.
        """
        if file:
            self._ledger.use(file)
        self.note(objects)
        row = _encode(Row.of(objects, size, more))
        self.rows.append(f"{image}\0".encode("utf-8", "surrogateescape") + row)
        return len(self.rows) - 1

    def leave_out(self, unstored: Mapping[str, int], where: str = "") -> None:
        """Count values that are not stored, by reason code; the annotation `where` is their example."""
        for reason, count in unstored.items():
            self._unstored[reason] += count
            if count and where:
                self._examples.setdefault(reason, where)

    def note(self, objects: Sequence[AnnotatedObject]) -> None:
        """Note the names in objects."""
        self.classes.update(dict.fromkeys([each.label for each in objects]))
        self.values.update(*[each.flags for each in objects])
        for name, value in (("polygons", "polygon"), ("oriented_boxes", "oriented")):
            if name not in self.values and any(map(attrgetter(value), objects)):
                self.values.add(name)
        for names in dict.fromkeys([(*each.keypoints,) for each in objects]):
            if names not in self._together:
                self.keypoints.update(dict.fromkeys(names))
                if len(self._together) < _KINDS:
                    self._together.add(names)

    def include(self, other: Annotations) -> None:
        """Add the names of others."""
        self.classes |= other.classes
        self.keypoints |= other.keypoints
        self._together |= other._together
        self.values |= other.values

    def field(
        self,
        options: SourceOptions,
        where: str,
        *,
        labelled: bool = True,
        classes: tuple[str, ...] | None = None,
        keypoints: Keypoints | None = None,
    ) -> tuple[ObjectsField, ObjectReader, tuple[str, ...]]:
        """The field, with names ordered as the options say, what reads its objects, and notes.

        With `labelled`, each object has a class. Otherwise all have the class in the options, if there is exactly one.
        `classes` is the source's own order, used unless the options name classes. `keypoints` are those already chosen.
        """
        only = not labelled and options.classes is not None and len(options.classes) == 1
        if not labelled and not only:
            classes = ()
        elif classes is None or options.classes is not None:
            classes = order_classes(filter(None, self.classes), options.classes, where, options.class_map)
        spelled = without_padding(self.keypoints) if options.keypoints is None else {}
        if any(len({spelled.get(name, name) for name in names}) < len(names) for names in self._together):
            spelled = {}  # an object has both
        notes = [f"{_SPELLED}: {name} as {short}." for name, short in spelled.items()][:1]
        if keypoints is None:
            keypoints = choose_keypoints({spelled.get(n, n): 0 for n in self.keypoints}, options.keypoints, where)
        has = {*self.values, *["labels"] * (labelled or only), *["keypoints"] * bool(keypoints.names)}
        values = tuple(name for name in OBJECT_VALUES if name in has)
        field = ObjectsField.of(*values, classes=classes, keypoints=keypoints.names, flip_pairs=keypoints.flip_pairs)
        numbers = {name: i for i, name in enumerate(classes)} | ({"": 0} if only else {})
        places = {name: i for i, name in enumerate(keypoints.names)}
        places |= {name: places[short] for name, short in spelled.items()}
        return field, ObjectReader(values, numbers, places, len(keypoints.names)), (*notes,)

    def unstored(self, where: str) -> list[Problem]:
        """A problem for each kind of value that is not stored."""
        examples = {reason: f", such as in {example}" for reason, example in self._examples.items()}
        return [
            Problem(where, reason, f"not stored: {n} {_UNSTORED[reason]}{examples.get(reason, '')}.")
            for reason, n in sorted(self._unstored.items())
            if n
        ]


class AnnotatedSource(Source):
    """A source whose references are images with their objects: workers need no annotation."""

    scanned: ClassVar[tuple[str, ...] | None] = ("_reader",)

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._root = path.parent if is_file(path) else path  # what the paths of annotations are relative to
        self.images = options.images or self._root
        self._annotations = Annotations(self.ledger)  # of the scan
        self._reader = ObjectReader()

    def contents(self) -> Contents:
        contents = super().contents()
        self._annotations = Annotations(self.ledger)  # there is a copy for each worker
        return contents

    def _walked(self, suffix: str) -> tuple[list[str], ImageIndex]:
        """Annotation files with a suffix, and all images."""
        files = [self.path.name] if is_file(self.path) else list(walk_files(self.path, {suffix}))
        return files, ImageIndex(walk_files(self.images, IMAGE_SUFFIXES))

    def _by_folder(
        self,
        images: ImageIndex,
        missing: str,
        beside: str,
        notes: Sequence[str] = (),
        *,
        labelled: bool = True,
        named: Mapping[str, str] | None = None,
    ) -> Contents:
        """What the scan found, with splits of folders, unless `named` has one for some image, by its path.

        Without any image, the message `missing` is raised. Other images are left out with the message `beside`.
        """
        found = self._annotations
        if not found.images:
            raise SourceError(found.problems or Problem(str(self.path), "empty-source", missing))
        known = {*found.images, *found.bad, *(problem.where for problem in found.left_out)}
        found.left_out += [Problem(path, "not-listed", beside) for path in images.paths if path not in known]
        named, splits = named or {}, dict[str, PackedStrings]()
        for key in sorted(found.images):
            splits.setdefault(named.get(key) or "train", PackedStrings()).extend([found.rows[found.images[key]]])
        contents = self._contents(splits, notes, labelled=labelled)
        return contents if any(named.values()) else contents.by_folder(str(self.path))

    def _contents(self, splits: Mapping[str, PackedStrings], notes: Iterable[str], **how: Any) -> Contents:
        """What the scan found, with what its annotations know; `how` is for `Annotations.field`."""
        found, where = self._annotations, str(self.path)
        left_out = (*found.left_out, *found.unstored(where))
        field, self._reader, more = found.field(self.options, where, **how)
        return Contents({"objects": field}, splits, None, tuple(found.problems), left_out, (*more, *notes))

    def read(self, split: str, reference: Reference) -> Sample:
        return self._sample(*unpack(reference))

    def _sample(self, image: str, row: Row) -> Sample:
        arrays = self._reader.arrays(row, image)
        return Sample(
            image, f"{self.images}/{image}", objects=arrays, annotated_size=row.size if all(row.size) else None
        )
