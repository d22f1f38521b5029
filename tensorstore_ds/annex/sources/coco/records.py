"""The entries of COCO's JSON: how they are decoded, and which of their members are not read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.json_files import JSON_ERRORS, JsonPieces, Piece, finite, unlike
from tensorstore_ds.imaging.outlines import joined_polygons, parse_counts
from tensorstore_ds.sources.annotations import AnnotatedObject, hull
from tensorstore_ds.sources.forms import FormError, kind
from tensorstore_ds.sources.ledger import Ledger
from tensorstore_ds.sources.xml import Place

Id = int | float | str

_CORNERS = 3  # minimum of a polygon
_FLAT = re.compile(rb"\[\s*[-0-9]")  # the begin of a polygon without a list around
_LARGEST_ANGLE = 10**6  # degrees
_SEEN = (0, 1, 2)  # values of a keypoint's visibility
#: Values of `iscrowd`. A boolean or a float equals its integer.
_CROWD: Mapping[Any, bool] = {0: False, 1: True, None: False, "0": False, "1": True}
#: JSON of an empty or default value.
_NOTHING = frozenset({b"", b"null", b'""', b"[]", b"{}", b"0", b"0.0", b"false"})
_SHORT = max(map(len, _NOTHING))
_NONE = msgspec.Raw()


class Category(msgspec.Struct):
    """Entry of the list of categories."""

    id: Id
    name: str
    keypoints: list[str] | None = None
    skeleton: list[Any] | None = None
    supercategory: msgspec.Raw = _NONE  # passed over


class Image(msgspec.Struct):
    """Entry of the list of images."""

    id: Id
    file_name: str | None = None
    height: Any = None
    width: Any = None
    coco_url: Any = None  #: names the image in LVIS, which has no file_name
    license: msgspec.Raw = _NONE  # passed over, as those below
    flickr_url: msgspec.Raw = _NONE
    date_captured: msgspec.Raw = _NONE

    def path(self) -> str:
        """Path as written in the file."""
        if self.file_name is not None:
            return self.file_name
        if isinstance(self.coco_url, str):  # http://images.cocodataset.org/train2017/000000391895.jpg
            return "/".join(self.coco_url.partition("?")[0].split("/")[-2:])
        raise FormError("expected the member file_name, found none")

    def size(self) -> tuple[int, int]:
        """(height, width); zeros if unknown, because tools write this in several ways."""
        height, width = _side(self.height, "height"), _side(self.width, "width")
        return (height, width) if height and width else (0, 0)


class Annotation(msgspec.Struct):
    """Members of an annotation that the scan reads."""

    image_id: Id
    category_id: Id | None = None
    bbox: list[float] | None = None
    iscrowd: Any = 0
    area: Any = None
    segmentation: msgspec.Raw = _NONE
    keypoints: msgspec.Raw = _NONE
    attributes: msgspec.Raw = _NONE
    caption: msgspec.Raw = _NONE
    id: Any = None
    num_keypoints: msgspec.Raw = _NONE  # passed over: it follows from the keypoints


class Owner(msgspec.Struct):
    """The ids in an entry whose other members are invalid."""

    id: Id | None = None
    image_id: Id | None = None


#: Members of a file: lists of entries, and what is passed over, but for members that COCO does not have.
LISTS, _PASSED = ("images", "annotations", "categories"), ("info", "licenses", "type")
#: Members of `info`, and of each of `licenses`.
_ABOUT = frozenset({"year", "version", "description", "contributor", "url", "date_created"})
_LICENSE = frozenset({"id", "name", "url"})


class _Runs(msgspec.Struct):
    counts: str | list[int]
    size: tuple[int, int]


_Entry = TypeVar("_Entry", bound=msgspec.Struct)


def note_members(file: JsonPieces, ledger: Ledger, where: str) -> None:
    """Note members of a file, of `info` and of `licenses` that are not COCO's; raises `FormError` for other JSON."""
    if "images" not in file.members:
        raise FormError("expected the member images, found none")
    for name, (begin, end) in file.members.items():
        if name in LISTS:
            file.pieces(name)
        elif name not in _PASSED and (end - begin > _SHORT or file.read(name).strip() not in _NOTHING):
            ledger.unread(f'"{name}"', where)
    for what, known in (("info", _ABOUT), ("licenses", _LICENSE)):
        found = _decoded(file.read(what) or b"null", Any, what)
        for each in found if isinstance(found, list) else [found]:
            for name, value in each.items() if isinstance(each, dict) else ():
                if value and name not in known:
                    ledger.unread(f'"{what}.{name}"', where)


class Decoder(Generic[_Entry]):
    """Decodes entries, and notes members with data that the class does not have. Fast if there are none.

    Messages call the entries `what`.
    """

    def __init__(self, what: str, entry: type[_Entry], ledger: Ledger) -> None:
        strict = msgspec.defstruct(entry.__name__, [], bases=(entry,), forbid_unknown_fields=True)
        self._what, self._entry, self._ledger = what, entry, ledger
        self._all: Any = msgspec.json.Decoder(list[strict]).decode  # type: ignore[valid-type]
        self._strict: Any = msgspec.json.Decoder(strict).decode
        self._lenient = msgspec.json.Decoder(entry).decode
        self._members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def pieces(self, file: JsonPieces) -> Iterator[tuple[int, Piece, list[_Entry | FormError]]]:
        """For each piece, the number of its first entry, from 1, and its entries, which `checked` takes."""
        first = 1
        for piece in file.pieces(self._what):
            try:
                entries: list[_Entry | FormError] = self._all(piece.text)
            except JSON_ERRORS:
                entries = list(map(self._decoded, piece.values))
            yield first, piece, entries
            first += len(entries)

    def checked(self, entry: _Entry | FormError, raw: msgspec.Raw, where: str) -> _Entry:
        """Note the entry's unknown members and return it; raises the `FormError` if it is one."""
        if isinstance(entry, FormError):
            raise entry
        if type(entry) is self._entry:
            for name, value in self._members(raw).items():
                if name not in self._entry.__struct_fields__ and holds_data(value):
                    self._ledger.unread(f'"{name}"', where, self._what)
        return entry

    def _decoded(self, raw: msgspec.Raw) -> _Entry | FormError:
        try:
            try:
                found: _Entry = self._strict(raw)
            except msgspec.ValidationError:
                found = self._lenient(raw)
        except JSON_ERRORS as error:
            return FormError(unlike(error))
        return found


def holds_data(raw: msgspec.Raw) -> bool:
    """Whether a JSON value is not empty, zero or false."""
    if raw is _NONE:
        return False
    view = memoryview(raw)
    return len(view) > _SHORT or bytes(view) not in _NOTHING


def is_given(raw: msgspec.Raw) -> bool:
    """Whether a member is present and not null."""
    return raw is not _NONE and bytes(memoryview(raw)[:5]) not in (b"", b"null")


def begins(raw: msgspec.Raw, bracket: bytes) -> bool:
    """Whether JSON is an object or a list that is not empty."""
    if raw is _NONE:
        return False
    head = bytes(memoryview(raw)[:2])
    return head[:1] == bracket and head not in (b"[]", b"{}")


def is_crowd(each: Annotation) -> bool:
    """Whether an annotation is a crowd; raises `FormError`."""
    try:
        return _CROWD[each.iscrowd]
    except (KeyError, TypeError) as error:
        raise FormError(f"iscrowd: expected 0 or 1, found {kind(each.iscrowd)}") from error


def box_of(each: Annotation) -> list[float] | None:
    """The bbox, or else the box around the polygons or keypoints; None if there are none; raises `FormError`."""
    if not each.bbox:
        return _box_around(each)
    if len(each.bbox) != 4:
        raise FormError(f"bbox: expected 4 numbers, found {len(each.bbox)}")
    return each.bbox


def _box_around(each: Annotation) -> list[float] | None:
    points: list[Place] = []
    if outline_of(each) == "polygons":
        rings = _rings(each)
        points = [point for ring in rings for point in zip(ring[::2], ring[1::2], strict=False)]
    elif outline_of(each) is None and has_keypoints(each):
        points = [(x, y) for x, y, seen in _keypoints(each.keypoints).tolist() if seen]
    if not points:
        return None
    x1, y1, x2, y2 = hull(points)
    return [x1, y1, x2 - x1, y2 - y1]


def outline_of(each: Annotation) -> str | None:
    """Form of the outline, ``rle`` or ``polygons``; None without an outline; raises `FormError`."""
    if begins(each.segmentation, b"["):
        return "polygons"
    if begins(each.segmentation, b"{"):
        return "rle"
    if holds_data(each.segmentation):
        raise FormError("segmentation: expected polygons or runs, found " + _shown(each.segmentation))
    return None


def has_keypoints(each: Annotation) -> bool:
    """Whether an annotation has keypoints; raises `FormError`."""
    if begins(each.keypoints, b"["):
        return True
    if holds_data(each.keypoints):
        raise FormError("keypoints: expected a list of numbers, found " + _shown(each.keypoints))
    return False


def note_attributes(each: Annotation, ledger: Ledger, where: str) -> None:
    """Note the attributes of an object that are not read."""
    if begins(each.attributes, b"{"):
        for name, value in _decoded(each.attributes, dict[str, msgspec.Raw], "attributes").items():
            if name != "rotation" and holds_data(value):
                ledger.unread(f'"attributes.{name}"', where, "annotations")
    elif holds_data(each.attributes):
        ledger.unread('"attributes"', where, "annotations")


def rotation_of(each: Annotation) -> float:
    """Rotation of the box in degrees, as CVAT writes it; 0 for an object with an outline."""
    if not begins(each.attributes, b"{") or begins(each.segmentation, b"[") or begins(each.segmentation, b"{"):
        return 0.0
    degrees = _decoded(each.attributes, _Attributes, "attributes").rotation
    is_angle = isinstance(degrees, int | float) and not isinstance(degrees, bool) and abs(degrees) < _LARGEST_ANGLE
    return float(degrees) if is_angle else 0.0  # otherwise a user's attribute of this name


class _Attributes(msgspec.Struct):
    """Attributes that CVAT adds to COCO's."""

    rotation: Any = 0  #: degrees clockwise around the center of the box, or a user's attribute of this name


def _side(value: object, name: str) -> int:
    try:
        number = finite(value if not isinstance(value, str) else float(value), name) if value is not None else 0
    except ValueError as error:
        raise FormError(f"{name}: expected a whole number, found {kind(value)}") from error
    if number <= 0:  # such as -1, which VIA writes
        return 0
    if number != int(number) or number >= 1 << 31:
        raise FormError(f"{name}: expected a whole number, found {kind(value)}")
    return int(number)


def _area(value: object, box: Sequence[float]) -> float:
    """Area of an object, by default the area of its box; some tools write it as text."""
    if value is None:
        return box[2] * box[3]
    try:
        return finite(float(value) if isinstance(value, str) else value, "area")
    except ValueError as error:
        raise FormError(f"area: expected a number, found {kind(value)}") from error


def _shown(raw: msgspec.Raw) -> str:
    return bytes(memoryview(raw)[:40]).decode(errors="replace")


# --- one object ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CocoObject:
    """An annotation in its stored form."""

    where: str  #: name in errors
    category: Id
    object: AnnotatedObject  #: without class, keypoints and outline; with an outline, it has no oriented box
    area: float
    polygons: NDArray[np.float64]  #: (n, 2)
    runs: NDArray[np.uint32]  #: (n,)
    size: tuple[int, int] | None  #: (height, width) that is given with `runs`
    keypoints: NDArray[np.float64] | None  #: (k, 3)
    has_short: bool  #: whether a polygon was left out, because it has fewer than 3 corners


def read_object(text: bytes, json: str) -> CocoObject:
    """Decode an annotation from JSON; raises `FormError`, which says where the value is."""
    where = f"{json}: an annotation"
    try:
        each = msgspec.json.decode(text, type=Annotation)
        if each.id is not None:
            where = f"{json}: annotation with the id {kind(each.id)}"
        bbox = box_of(each)
        if bbox is None or each.category_id is None:
            raise FormError("expected a box and a category")
        polygons, runs, size, has_short = np.empty((0, 2)), np.empty(0, np.uint32), None, False
        outline = outline_of(each)
        if outline == "rle":
            given: _Runs = _decoded(each.segmentation, _Runs, "segmentation")
            runs, size = _runs(given), given.size
        elif outline == "polygons":
            polygons, has_short = _polygons(_rings(each))
        degrees = rotation_of(each)
        if degrees and not all(map(math.isfinite, bbox)):
            raise FormError("bbox: expected finite numbers in a turned box")
        area = _area(each.area, bbox)
        keypoints = _keypoints(each.keypoints) if has_keypoints(each) else None
        crowd = is_crowd(each)
    except (*JSON_ERRORS, FormError, ValueError) as error:
        said = unlike(error) if isinstance(error, JSON_ERRORS) else str(error)
        raise FormError(f"{where}: {said}") from error
    x, y, width, height = bbox
    box = x, y, x + width, y + height
    found = AnnotatedObject("", box, {"iscrowd": int(crowd)}, is_rectangle=not outline)
    if degrees:
        found = replace(AnnotatedObject.of_rectangle("", box, degrees), flags=found.flags)
    return CocoObject(where, each.category_id, found, area, polygons, runs, size, keypoints, has_short)


def read_category(text: bytes, json: str) -> Id | None:
    """Decode the category of an annotation; raises `FormError`."""
    category: Id | None = _read(text, json, attrgetter("category_id"))
    return category


def read_caption(text: bytes, json: str) -> str:
    """Decode the caption of an annotation; raises `FormError`."""
    caption: str = _read(text, json, lambda each: _decoded(each.caption, str, "caption"))
    return caption


def _read(text: bytes, json: str, member: Callable[[Annotation], Any]) -> Any:
    try:
        return member(msgspec.json.decode(text, type=Annotation))
    except (*JSON_ERRORS, FormError) as error:
        said = error if isinstance(error, FormError) else unlike(error)
        raise FormError(f"{json}: {said}: {text[:80].decode(errors='replace')}") from error


def _decoded(raw: msgspec.Raw | bytes, type: Any, name: str) -> Any:
    """Decode a member of an annotation."""
    try:
        return msgspec.json.decode(raw, type=type)
    except JSON_ERRORS as error:
        raise FormError(unlike(error, name)) from error


def _keypoints(raw: msgspec.Raw) -> NDArray[np.float64]:
    numbers = _decoded(raw, list[float], "keypoints")
    if len(numbers) % 3:
        raise FormError(f"keypoints: expected 3 numbers for each, found {len(numbers)} numbers")
    points = np.array(numbers).reshape(-1, 3)
    if not np.isin(points[:, 2], _SEEN).all():
        raise FormError(
            "keypoints: expected 0, 1 or 2 as the third number of each, found one that is none of 0, 1 and 2"
        )
    return points


def _runs(given: _Runs) -> NDArray[np.uint32]:
    """(n,) run lengths; they must add up to the size that is given with them."""
    if isinstance(given.counts, str):
        runs = parse_counts(given.counts)
    else:
        if not all(0 <= count < 1 << 32 for count in given.counts):
            raise FormError("segmentation: expected lengths of runs, found a negative one, or one beyond 32 bits")
        runs = np.array(given.counts, np.uint32)
    if (total := int(runs.sum(dtype=np.uint64))) != given.size[0] * given.size[1]:
        raise FormError(f"segmentation: found runs of {total} pixels, where the size says {given.size}")
    return runs


def _rings(each: Annotation) -> list[list[float]]:
    """Coordinates of each polygon. VIA writes a single polygon without the outer list."""
    is_flat = _FLAT.match(memoryview(each.segmentation)) is not None
    raw = b"[%b]" % bytes(each.segmentation) if is_flat else each.segmentation
    rings: list[list[float]] = _decoded(raw, list[list[float]], "segmentation")
    return rings


def _polygons(rings: Sequence[Sequence[float]]) -> tuple[NDArray[np.float64], bool]:
    """(n, 2) corners of all polygons, with a row of NaN between two; and whether some have fewer than 3 corners."""
    if any(len(ring) % 2 for ring in rings):
        raise FormError("segmentation: expected polygons of x and y, found one with an odd number of coordinates")
    kept = [np.array(ring).reshape(-1, 2) for ring in rings if len(ring) >= 2 * _CORNERS]
    return joined_polygons(kept), len(kept) < len(rings)
