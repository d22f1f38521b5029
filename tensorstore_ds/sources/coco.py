"""COCO's JSON: boxes, keypoints, segmentations and captions of the images of a split: formats/sources/coco.md."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError, one_line
from tensorstore_ds.format.kinds import OBJECT_VALUES, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.imaging.outlines import joined_polygons, parse_counts
from tensorstore_ds.regular_files import entries, is_dir, is_file, open_file, os_errors, read_file, read_head
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Objects, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import LITTER, PackedStrings, encoding_problem, glance
from tensorstore_ds.sources.names import absent_keypoints, check_listed, flip_pairs, order_classes
from tensorstore_ds.sources.objects import AnnotatedObject, Box
from tensorstore_ds.sources.paths import inside
from tensorstore_ds.sources.splits import SPLIT_NAMES, split_names
from tensorstore_ds.sources.xml import ABSENT, Place

#: Bytes of a JSON file; a million objects with polygons take 500 MB.
FILE_LIMIT = 8 << 30
_HEAD = 4096
_BEGINNING = re.compile(rb'\s*\{\s*"(info|licenses|images|annotations|categories|type)"\s*:')
_SNIFFED = 20  # JSON files of a folder whose beginning is looked at
#: What the names of COCO's own files begin with: those that are read, the richest first; and those that are not.
_PREFIXES = ("instances_", "person_keypoints_", "stuff_", "captions_")
#: The field of captions.
_CAPTIONS = "captions"
_OTHERS = {"image_info_": "no annotations", "panoptic_": "masks as PNG files"}
#: Names of files that say nothing; the folder may.
_PLAIN = frozenset({"", "_annotations", "annotations", "annotation", "coco", "labels", "result", "default"})
#: Folders of images that are tried, beside that of the file; {} is the name of the split, in several ways.
_FOLDERS = ("", "images/", "{}/", "images/{}/", "{}/images/", "JPEGImages/")
_TRIED = 20  # images of a file that are looked for in each of them
_CORNERS = 3  # of a polygon, at least
_LARGEST_ANGLE = 10**6  # degrees
_SEEN = (0, 1, 2)  # what a keypoint may say of its visibility
#: What msgspec raises about JSON that is none, or another one.
_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Category(msgspec.Struct):
    id: int | str
    name: str
    keypoints: list[str] = []
    skeleton: list[tuple[int, int]] = []


class _Image(msgspec.Struct):
    id: int | str
    file_name: str
    height: int | None = None
    width: int | None = None


class _Annotation(msgspec.Struct):
    """What the scan looks at."""

    image_id: int | str
    category_id: int | str | None = None
    bbox: tuple[float, float, float, float] | None = None
    iscrowd: int = 0
    area: float | None = None
    segmentation: msgspec.Raw = msgspec.Raw()
    keypoints: msgspec.Raw = msgspec.Raw()
    attributes: msgspec.Raw = msgspec.Raw()
    caption: msgspec.Raw = msgspec.Raw()
    id: int | str | None = None


class _File(msgspec.Struct):
    images: list[msgspec.Raw]
    annotations: list[msgspec.Raw] = []
    categories: list[_Category] = []


class _Attributes(msgspec.Struct):
    """What CVAT writes of an object besides COCO's own."""

    rotation: Any = 0  #: degrees clockwise around the center of the box; or whatever a user calls so


class _Runs(msgspec.Struct):
    counts: str | list[int]
    size: tuple[int, int]


@dataclass(slots=True)
class _Split:
    """What one file says.

    Attributes:
        json: its path in the source.
        names: class names by the ids of categories, in the order of the ids.
        keypoints: the keypoints of each category that has some.
        skeleton: pairs of their names.
        paths: of the images, in the order of the file.
        numbers: the images by their ids.
        bad: what is wrong with an image, by its number.
        references: of the images that are sound.
        values: those of `OBJECT_VALUES` that some object has.
        captions: the path of the file that has the captions, which may be the same.
        has_objects, has_captions: whether there are some.
    """

    json: str
    captions: str
    names: dict[int | str, str] = field(default_factory=dict)
    keypoints: dict[int | str, list[str]] = field(default_factory=dict)
    skeleton: dict[tuple[str, str], None] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    numbers: dict[int | str, int] = field(default_factory=dict)
    bad: dict[int, list[Problem]] = field(default_factory=dict)
    references: PackedStrings = field(default_factory=PackedStrings)
    values: set[str] = field(default_factory=lambda: {"boxes", "labels"})
    has_objects: bool = False
    has_captions: bool = False
    problems: list[Problem] = field(default_factory=list)
    left_out: list[Problem] = field(default_factory=list)


class CocoSource(Source):
    """A reference is an image's path, its height and width, and begin and end of each of its objects and captions.

    `read` reads these alone, so that no process keeps the annotations of all images.
    """

    name: ClassVar[str] = "coco"
    scanned: ClassVar[tuple[str, ...] | None] = ("_jsons", "_labels", "_points", "_keypoints", "_values")

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._root = path.parent if is_file(path) else path  # what the paths of JSON files are relative to
        above = is_file(path) and self._root.name == "annotations"
        self.images = options.images or (self._root.parent if above else self._root)
        self._jsons: dict[str, tuple[str, str]] = {}  # by split, those of the objects and of the captions
        self._labels: dict[str, dict[int | str, int]] = {}  # by split, those of the ids of categories
        self._points: dict[str, dict[int | str, tuple[int, ...]]] = {}  # the places of a category's keypoints
        self._keypoints = 0
        self._values: tuple[str, ...] = ()

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is a JSON file that begins as COCO's do, or a folder with such files in it or one level below."""
        return bool(find(path))

    def scan(self) -> Contents:
        """Read every file once: its images, and of its annotations all but segmentations and captions."""
        jsons = find(self.path)
        if not jsons:
            message = "expected JSON files of COCO in this folder or one level below, found none."
            raise SourceError(Problem(str(self.path), "empty-source", message))
        chosen, left_out = _choose(jsons)
        splits = {split: self._read_file(split, *each) for split, each in chosen.items()}
        problems = [problem for each in splits.values() for problem in each.problems]
        left_out += [problem for each in splits.values() for problem in each.left_out]
        used = {name: each for name, each in splits.items() if len(each.references)}
        if not used:
            raise SourceError(problems or Problem(str(self.path), "empty-source", "no image is listed."))
        left_out += _not_listed(self.images, {path for each in splits.values() for path in each.paths})
        self._jsons = {name: (each.json, each.captions) for name, each in used.items()}
        fields: dict[str, Field] = {}
        has_captions = any(each.has_captions for each in used.values())
        if not has_captions or any(each.has_objects for each in used.values()):
            fields["objects"] = self._field(used)
        if has_captions:
            fields[_CAPTIONS] = TextField()
        references = {name: each.references for name, each in used.items()}
        return Contents(fields, references, None, tuple(problems), tuple(left_out))

    def common_files(self) -> tuple[Path, ...]:
        return tuple(self._root / json for json in dict.fromkeys(chain.from_iterable(self._jsons.values())))

    def read(self, split: str, reference: Reference) -> Sample:
        image, size, places, captions = str(reference).split("\0")
        json, captions_json = self._jsons[split]
        left_out = dict[Problem, None]()
        objects = None
        if self._values:
            rows = [_object(text, json, self._labels[split], left_out) for text in self._read_at(json, places)]
            objects = self._arrays(rows, split, json)
        texts = [_caption(text, captions_json) for text in self._read_at(captions_json, captions)]
        height, width = map(int, size.split("x"))
        annotated = (height, width) if height and width else None
        return Sample(
            image,
            f"{self.images}/{image}",
            objects=objects,
            texts={_CAPTIONS: texts} if texts else {},
            annotated_size=annotated,
            annotation=json,
            left_out=tuple(left_out),
        )

    def _read_at(self, json: str, places: str) -> Iterator[bytes]:
        """The annotations at some places of a file."""
        if not places:
            return
        with open_file(self._root / json, json) as file:
            for place in places.split(","):
                begin, end = map(int, place.split(":"))
                file.seek(begin)
                yield file.read(end - begin)

    def _field(self, splits: Mapping[str, _Split]) -> ObjectsField:
        """The field of the objects of all splits; notes what `read` needs for it."""
        names = tuple(dict.fromkeys(name for each in splits.values() for name in each.names.values()))
        where, classes = str(self.path), self.options.classes
        order_classes(names, classes, where, self.options.class_map)
        classes = names if classes is None else classes  # in the order of the ids, as all who read COCO have them
        labels = {name: i for i, name in enumerate(classes)}
        points = tuple(dict.fromkeys(n for each in splits.values() for some in each.keypoints.values() for n in some))
        keypoints = Keypoints(points, flip_pairs(points))
        if points and self.options.keypoints is not None:
            keypoints = self.options.keypoints
            check_listed(points, keypoints.names, "keypoint", where)
        places = {name: i for i, name in enumerate(keypoints.names)}
        for name, each in splits.items():
            self._labels[name] = {id: labels[text] for id, text in each.names.items()}
            self._points[name] = {id: tuple(places[n] for n in some) for id, some in each.keypoints.items()}
        found = set[str]().union(*(each.values for each in splits.values()))
        self._values = tuple(value for value in OBJECT_VALUES if value in found)
        self._keypoints = len(keypoints.names)
        lines = dict.fromkeys((places[a], places[b]) for each in splits.values() for a, b in each.skeleton)
        if "keypoints" not in found:
            return ObjectsField.of(*self._values, classes=classes)
        return ObjectsField.of(
            *self._values,
            classes=classes,
            keypoints=keypoints.names,
            flip_pairs=keypoints.flip_pairs,
            skeleton=tuple(lines),
        )

    def _arrays(self, rows: Sequence[_Object], split: str, json: str) -> Objects:
        found: dict[str, Any] = {"boxes": np.array([each.box for each in rows], np.float64).reshape(-1, 4)}
        found["oriented_boxes"] = np.array([each.corners for each in rows], np.float64).reshape(-1, 4, 2)
        for name in ("label", "iscrowd", "area"):
            dtype = np.float64 if name == "area" else np.int64 if name == "label" else np.uint8
            found["labels" if name == "label" else name] = np.array([getattr(each, name) for each in rows], dtype)
        found["polygons"] = [each.polygons for each in rows]
        found["rle"] = [each.runs for each in rows]
        if "keypoints" in self._values:
            points = absent_keypoints(len(rows), self._keypoints, json)
            visibility = np.zeros(points.shape[:2], np.uint8)
            for i, each in enumerate(rows):
                places = list(self._points[split].get(each.category, ()))
                if each.keypoints is None:
                    continue
                if each.keypoints.shape != (len(places), 3):
                    message = f"{each.where}: expected 3 numbers for each of {len(places)} keypoints, found others."
                    raise SourceError(Problem(json, "keypoint-count", message))
                seen = each.keypoints[:, 2]
                points[i, places] = np.where(seen[:, None] > 0, each.keypoints[:, :2], np.nan)
                visibility[i, places] = seen
            found |= {"keypoints": points, "visibility": visibility}
        return {name: found[name] for name in self._values}

    # --- one file ---

    def _read_file(self, split: str, json: str, captions: str) -> _Split:
        """What a file says, and of its images the captions in another one, where there is another one."""
        data, file = self._parse(json)
        found = _Split(json, captions)
        _note_categories(file.categories, found)
        images = list(_parsed(file.images, json, found.problems))
        prefix = self._find_images(split, json, images)
        self._note_images(images, prefix, found)
        objects, texts = _places(data, file.annotations, found)
        if captions != json:
            texts = self._read_captions(captions, prefix, found)
        found.has_objects, found.has_captions = len(objects) > 0, len(texts) > 0
        places, quoted = (_of_images(table, len(images)) for table in (objects, texts))
        found.references.extend(
            f"{path}\0{image.height or 0}x{image.width or 0}\0{places(i)}\0{quoted(i)}"
            for i, (path, image) in enumerate(zip(found.paths, images, strict=True))
            if i not in found.bad
        )
        found.problems += [problem for i in sorted(found.bad) for problem in found.bad[i]]
        return found

    def _parse(self, json: str) -> tuple[bytes, _File]:
        data = read_file(self._root / json, json, FILE_LIMIT)
        try:
            return data, msgspec.json.decode(data, type=_File)
        except _ERRORS as error:
            message = f"expected COCO's JSON, found another one: {_said(error)}."
            raise SourceError(Problem(json, "annotation", message)) from error

    def _read_captions(self, json: str, prefix: str, found: _Split) -> NDArray[np.int64]:
        """The captions in a file of the same images, which need not have the same ids: as of `_places`."""
        data, file = self._parse(json)
        numbers = {path: i for i, path in enumerate(found.paths)}
        own = _Split(json, json, paths=found.paths, problems=found.problems, left_out=found.left_out)
        for image in _parsed(file.images, json, found.problems):
            path = inside(image.file_name, prefix)
            if path in numbers:
                own.numbers[image.id] = numbers[path]
        return _places(data, file.annotations, own)[1]

    def _find_images(self, split: str, json: str, images: Sequence[_Image]) -> str:
        """The folder, with ``/`` at its end, in which most of the first images are."""
        own = "" if self.options.images is not None else json[: json.rfind("/") + 1]
        names = dict.fromkeys((_stem(json), short_name(json), split, own[:-1]))
        folders = dict.fromkeys([own, *(folder.format(name) for folder in _FOLDERS for name in names if name)])

        def hits(folder: str) -> int:
            paths = (inside(image.file_name, folder) for image in images[:_TRIED])
            return sum(path is not None and is_file(self.images / path) for path in paths)

        with os_errors(str(self.images)):
            return max(folders, key=hits)

    def _note_images(self, images: Sequence[_Image], prefix: str, found: _Split) -> None:
        """The path of each image; what is wrong with an entry, or where there is no such file."""
        names = _Names(self.images)
        known = set[str]()
        for i, image in enumerate(images):
            path = inside(image.file_name, prefix)
            found.paths.append(image.file_name if path is None else path)
            problem = None if path is None else encoding_problem(path)
            if path is None:
                message = f"expected the path of an image inside the source, found {image.file_name[:80]!r}."
                problem = Problem(f"{found.json}: image {i + 1}", "unsafe-path", message)
            elif path in known or image.id in found.numbers:
                message = f"expected each image, and each id, once in {found.json}, found {path} or {image.id} again."
                problem = Problem(path, "duplicate-key", message)
            elif not names.has(path):
                message = f"expected this image, which {found.json} lists, found none."
                problem = Problem(path, "no-image", f"{message} Add it, or name the folder with `images`.")
            if problem is not None:
                found.bad[i] = [problem]
            known.add(found.paths[-1])
            found.numbers.setdefault(image.id, i)


def _of_images(table: NDArray[np.int64], images: int) -> Callable[[int], str]:
    """Of the rows begin, end and image, (n, 3), those of an image as a text."""
    table = table[np.argsort(table[:, 2], kind="stable")]
    edges = np.searchsorted(table[:, 2], np.arange(images + 1)).tolist()
    places = [f"{a}:{b}" for a, b in table[:, :2].tolist()]
    return lambda i: ",".join(places[edges[i] : edges[i + 1]])


def _parsed(images: Sequence[msgspec.Raw], json: str, problems: list[Problem]) -> Iterator[_Image]:
    for i, raw in enumerate(images, 1):
        try:
            yield msgspec.json.decode(raw, type=_Image)
        except _ERRORS as error:
            message = f"expected an image with id and file_name, found {_said(error)}. Correct it, or remove it."
            problems.append(Problem(f"{json}: image {i}", "annotation", message))


def _note_categories(categories: Sequence[_Category], found: _Split) -> None:
    for category in sorted(categories, key=lambda each: (isinstance(each.id, str), each.id)):
        if category.id in found.names:
            message = f"expected categories with ids that differ, found {category.id} twice. Correct one."
            raise SourceError(Problem(found.json, "annotation", message))
        found.names[category.id] = category.name
        points = category.keypoints
        if not points:
            continue
        if len(set(points)) < len(points):
            message = f"expected keypoints with names that differ in {category.name}, found one twice. Rename it."
            raise SourceError(Problem(found.json, "annotation", message))
        found.keypoints[category.id] = points
        for a, b in category.skeleton:  # counted from 1
            if 0 < a <= len(points) and 0 < b <= len(points):
                found.skeleton[points[a - 1], points[b - 1]] = None


def _places(
    data: bytes, annotations: Sequence[msgspec.Raw], found: _Split
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of objects and of captions begin and end in the file and number of the image, (n, 3); notes what they have."""
    rows, texts = array("q"), array("q")
    start = _address(data)
    decode = msgspec.json.Decoder(_Annotation).decode
    others = 0
    for i, raw in enumerate(annotations, 1):
        where = f"{found.json}: annotation {i}"
        try:
            each = decode(raw)
        except _ERRORS as error:
            message = f"expected an annotation of COCO, found {_said(error)}. Correct it, or remove it."
            found.problems.append(Problem(where, "annotation", message))
            continue
        owner = found.numbers.get(each.image_id)
        is_other = each.bbox is None and each.category_id is None
        if is_other and not memoryview(each.caption):
            others += 1
        elif owner is None:
            message = f"expected the id of an image, found {each.image_id!r}. Add the image, or remove this."
            found.problems.append(Problem(where, "no-image", message))
        elif is_other:
            begin, end = _extent(raw, start)
            texts.extend((begin, end, owner))
        elif each.bbox is None or each.category_id not in found.names:
            what, got = ("a box", "none") if each.bbox is None else ("the id of a category", repr(each.category_id))
            reason = "annotation" if each.bbox is None else "unknown-class"
            problem = Problem(found.paths[owner], reason, f"{where}: expected {what}, found {got}.")
            found.bad.setdefault(owner, []).append(problem)
        else:
            begin, end = _extent(raw, start)
            rows.extend((begin, end, owner))
            _note_values(each, found.values)
    if others:
        message = f"not stored: {others:,} annotations without a box or a caption."
        found.left_out.append(Problem(found.json, "not-listed", message))
    return np.array(rows, np.int64).reshape(-1, 3), np.array(texts, np.int64).reshape(-1, 3)


def _extent(raw: msgspec.Raw, start: int) -> tuple[int, int]:
    """Begin and end of a part of the file that was decoded, which begins at an address."""
    view = memoryview(raw)
    begin = _address(view) - start
    return begin, begin + len(view)


def _address(buffer: bytes | memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def _note_values(each: _Annotation, values: set[str]) -> None:
    if each.iscrowd:
        values.add("iscrowd")
    if _begins(each.keypoints, b"["):
        values.update(("keypoints", "visibility"))
    value = "rle" if _begins(each.segmentation, b"{") else "polygons" if _begins(each.segmentation, b"[") else None
    if value is not None:
        values.update((value, "area"))
    elif _rotation(each):
        values.add("oriented_boxes")


def _rotation(each: _Annotation) -> float:
    """Degrees by which the box of an annotation is turned, as CVAT has them; 0 of one with an outline."""
    if not _begins(each.attributes, b"{") or _begins(each.segmentation, b"[") or _begins(each.segmentation, b"{"):
        return 0.0
    degrees = msgspec.json.decode(each.attributes, type=_Attributes).rotation
    is_angle = isinstance(degrees, int | float) and not isinstance(degrees, bool) and abs(degrees) < _LARGEST_ANGLE
    return float(degrees) if is_angle else 0.0  # else an attribute that a user calls so


def _begins(raw: msgspec.Raw, bracket: bytes) -> bool:
    """Whether it is an object or a list that holds something."""
    return bytes(memoryview(raw)[:1]) == bracket and bytes(memoryview(raw)[:2]) not in (b"[]", b"{}")


# --- one object ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Object:
    """An annotation as it is stored."""

    where: str  #: names it in errors
    category: int | str
    label: int
    box: Box  #: x1 y1 x2 y2; of a turned one the hull
    corners: Sequence[Place]  #: those of its oriented box, if it has no outline
    iscrowd: bool
    area: float
    polygons: NDArray[np.float64]  #: (n, 2)
    runs: NDArray[np.uint32]  #: (n,)
    keypoints: NDArray[np.float64] | None  #: (k, 3)


def _object(text: bytes, json: str, labels: Mapping[int | str, int], left_out: dict[Problem, None]) -> _Object:
    """An annotation of its JSON; what of it is not stored is noted in `left_out`."""
    try:
        each = msgspec.json.decode(text, type=_Annotation)
        if each.bbox is None or each.category_id is None:
            raise ValueError("expected a box and a category")
        where = f"{json}: annotation {each.id}" if each.id is not None else json
        polygons, runs = np.empty((0, 2)), np.empty(0, np.uint32)
        if _begins(each.segmentation, b"{"):
            runs = _runs(msgspec.json.decode(each.segmentation, type=_Runs))
        elif _begins(each.segmentation, b"["):
            polygons, short = _polygons(msgspec.json.decode(each.segmentation, type=list[list[float]]))
            if short:
                message = "not stored: polygons of fewer than 3 corners."
                left_out[Problem(json, "polygon-short", message)] = None
        keypoints = None
        if _begins(each.keypoints, b"["):
            keypoints = np.array(msgspec.json.decode(each.keypoints, type=list[float])).reshape(-1, 3)
            if not np.isin(keypoints[:, 2], _SEEN).all():
                raise ValueError("a keypoint whose third number is none of 0, 1 and 2")
        degrees = _rotation(each)
        if degrees and not all(map(math.isfinite, each.bbox)):
            raise ValueError("expected finite numbers in a turned box")
    except (*_ERRORS, ValueError) as error:
        message = f"expected an annotation of COCO, found {_said(error)}: {text[:80].decode(errors='replace')}."
        raise SourceError(Problem(json, "annotation", message)) from error
    x, y, width, height = each.bbox
    area = width * height if each.area is None else each.area
    label = labels[each.category_id]
    box = AnnotatedObject.of_rectangle("", (x, y, x + width, y + height), degrees)
    corners = (ABSENT,) * 4 if len(polygons) or len(runs) else box.corners
    return _Object(where, each.category_id, label, box.box, corners, each.iscrowd != 0, area, polygons, runs, keypoints)


def _caption(text: bytes, json: str) -> str:
    """The caption in an annotation of its JSON."""
    try:
        caption: str = msgspec.json.decode(msgspec.json.decode(text, type=_Annotation).caption, type=str)
    except _ERRORS as error:
        message = f"expected a caption, found {_said(error)}: {text[:80].decode(errors='replace')}."
        raise SourceError(Problem(json, "annotation", message)) from error
    return caption


def _runs(given: _Runs) -> NDArray[np.uint32]:
    """(n,) runs, which must add up to the size that is given with them."""
    if isinstance(given.counts, str):
        runs = parse_counts(given.counts)
    else:
        if not all(0 <= count < 1 << 32 for count in given.counts):
            raise ValueError("expected lengths of runs, found a negative one")
        runs = np.array(given.counts, np.uint32)
    if int(runs.sum(dtype=np.uint64)) != given.size[0] * given.size[1]:
        raise ValueError(f"runs of {int(runs.sum(dtype=np.uint64))} pixels, where the size says {given.size}")
    return runs


def _polygons(rings: Sequence[Sequence[float]]) -> tuple[NDArray[np.float64], bool]:
    """(n, 2) corners of all polygons, with a row of NaN between two; and whether some have too few to be one."""
    if any(len(ring) % 2 for ring in rings):
        raise ValueError("a polygon with an odd number of coordinates")
    kept = [np.array(ring).reshape(-1, 2) for ring in rings if len(ring) >= 2 * _CORNERS]
    return joined_polygons(kept), len(kept) < len(rings)


def _said(error: BaseException) -> str:
    return one_line(str(error))[:200]


# --- which files --------------------------------------------------------------------------------------------------


def find(path: Path) -> list[str]:
    """The JSON files of COCO at `path`, relative to it, or to its folder; none if there are none."""
    if is_file(path):
        return [path.name] if _is_coco(path) else []
    sniffed = Counter[str]()
    found = []
    for file in sorted(glance(path) if is_dir(path) else ()):
        folder = file.rpartition("/")[0]
        if file.lower().endswith(".json") and "/" not in folder and sniffed[folder] < _SNIFFED:
            sniffed[folder] += 1
            found += [file] if _is_coco(path / file) else []
    return found


def _is_coco(path: Path) -> bool:
    if path.suffix.lower() != ".json" or path.name.startswith("."):
        return False
    try:
        head = read_head(path, _HEAD) if is_file(path) else b""
        is_whole = len(head) < _HEAD  # such as Label Studio's notes of the classes, beside files of YOLO
        return _BEGINNING.match(head) is not None and not (is_whole and b'"images"' not in head)
    except (OSError, SourceError):
        return False


def short_name(json: str) -> str:
    """The name of a file without what COCO's own begin with.

    >>> short_name("annotations/instances_train2017.json"), short_name("valid/_annotations.coco.json")
    ('train2017', 'valid')
    """
    stem = _stem(json)
    return PurePosixPath(json).parent.name if stem.lower() in _PLAIN else stem


def _stem(json: str) -> str:
    stem = PurePosixPath(json).name.split(".")[0]
    for prefix in (*_PREFIXES, *_OTHERS):
        stem = stem.removeprefix(prefix)
    return stem


def _choose(jsons: Sequence[str]) -> tuple[dict[str, tuple[str, str]], list[Problem]]:
    """The file of each split, and that of its captions, which may be the same; and those that are not read."""
    left_out: list[Problem] = []
    captions = {short_name(json): json for json in jsons if PurePosixPath(json).name.startswith(f"{_CAPTIONS}_")}
    best: dict[str, tuple[int, str]] = {}
    for json in jsons:
        name = PurePosixPath(json).name
        other = next((what for prefix, what in _OTHERS.items() if name.startswith(prefix)), None)
        rank = next((i for i, prefix in enumerate(_PREFIXES) if name.startswith(prefix)), len(_PREFIXES))
        if other is not None and len(jsons) > 1:
            left_out.append(Problem(json, "no-more-annotated", f"not stored: it has {other}."))
        elif (known := best.get(short_name(json))) is None or rank < known[0]:
            if known is not None and known[1] != captions.get(short_name(json)):
                left_out.append(_poorer(known[1], json))
            best[short_name(json)] = rank, json
        elif json != captions.get(short_name(json)):
            left_out.append(_poorer(json, known[1]))
    texts = {short: _split_of(short, len(best)) for short in best}
    if len(set(texts.values())) < len(texts):  # train2014 and train2017
        texts = {short: short for short in best}
    names = split_names(texts.values())
    chosen = {names[texts[short]]: (json, captions.get(short, json)) for short, (_, json) in best.items()}
    return chosen, left_out


def _poorer(json: str, other: str) -> Problem:
    message = f"not stored: {other} is of the same images. To convert this one, name the file."
    return Problem(json, "no-more-annotated", message)


def _split_of(short: str, files: int) -> str:
    """The split that a name tells of, or the name."""
    words = re.split(r"[^a-z]+", short.lower())
    known = next((word for word in words if word in SPLIT_NAMES), "")
    return known or ("train" if files == 1 else short)


class _Names:
    """The files of folders, each of which is listed once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, set[str]] = {}

    def has(self, path: str) -> bool:
        """Whether there is a file at `path` below the root."""
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            with os_errors(folder or str(self._root)):
                place = self._root / folder
                self._folders[folder] = {each for each, _ in entries(place)} if is_dir(place) else set()
        return name in self._folders[folder]


def _not_listed(root: Path, listed: set[str]) -> list[Problem]:
    """The images that lie in the same folders as listed ones, and that no file lists."""
    left_out = []
    for folder in sorted({path[: path.rfind("/") + 1] for path in listed}):
        place = root / folder
        with os_errors(folder or str(root)):
            names = sorted(name for name, _ in entries(place)) if is_dir(place) else []
        for path in (folder + name for name in names if name[0] != "." and name.lower() not in LITTER):
            if PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES and path not in listed:
                left_out.append(Problem(path, "not-listed", "not stored: no JSON file lists it."))
    return left_out
