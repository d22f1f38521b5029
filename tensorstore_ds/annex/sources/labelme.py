"""labelme: a JSON file for each image, with shapes: formats/sources/labelme.md."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from tensorstore_ds.annex.sources.json_files import (
    MEMBERS,
    decoded,
    finite,
    first_members,
    members,
    read_object,
    text,
    values,
)
from tensorstore_ds.annex.sources.shapes import attach_points
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import decode_text, is_dir, read_file, read_head
from tensorstore_ds.sources.annotations import AnnotatedObject, AnnotatedSource, hull, unpack
from tensorstore_ds.sources.base import FLAGS, Contents, Reference, Sample
from tensorstore_ds.sources.files import PROBED_FILES, encoding_problem, glance
from tensorstore_ds.sources.forms import FormError, kind, placed
from tensorstore_ds.sources.images import ImageIndex, stem_of
from tensorstore_ds.sources.ledger import USED
from tensorstore_ds.sources.xml import ABSENT, PLACE_LIMIT, Place

FILE_LIMIT = 256 << 20  # bytes: an image may be in it
_HEAD = 1 << 16
#: Members that are read, or say only how shapes are shown and where the program was.
_OF_SHAPES = ("label", "points", "group_id", "shape_type", "difficult", "mask", "direction", "line_color", "fill_color")
_OF_FILES = ("version", "imagePath", "imageData", "imageHeight", "imageWidth", "lineColor", "fillColor")
_KNOWN = {
    "shapes": {**dict.fromkeys(_OF_SHAPES, USED), "flags": dict.fromkeys(FLAGS, USED)},
    **dict.fromkeys(_OF_FILES, USED),
    "flags": {},
}

Shapes = tuple[list[AnnotatedObject], Counter[str]]


class LabelmeSource(AnnotatedSource):
    """If the image is inside the JSON file, a reference has the path of that file as well."""

    name: ClassVar[str] = "labelme"

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether some JSON file of a folder has shapes."""
        files = [file for file in glance(path) if file.lower().endswith(".json")] if is_dir(path) else []
        return any(_has_shapes(path / file) for file in files[:PROBED_FILES])

    def scan(self) -> Contents:
        """Read every JSON file."""
        files, images = self._walked(".json")
        found = self._annotations
        stale: list[str] = []
        for file in files:
            try:
                image, row = self._read(file, images)
            except SourceError as error:
                found.problems += error.problems
                found.bad.update(_beside(file, images))
                continue
            if not image:
                message = "not read: it has no shapes, so it is not labelme's."
                found.left_out.append(Problem(file, "not-listed", message))
            elif image in found.images:
                message = f"expected an image of its own, found {image}, which another file has. Correct imagePath."
                found.problems.append(Problem(file, "duplicate-key", message))
            else:
                found.images[image] = row
                if stem_of(image) != stem_of(file) and _beside(file, images):
                    stale.append(f"{file}: {image}")
        example = f"{len(stale):,}, such as {stale[0]}" if stale else ""
        notes = [f"JSON files whose imagePath is not the image of their own name: {example}."] if stale else []
        self.ledger.use(*found.bad)
        missing = "expected JSON files with shapes, found none."
        return self._by_folder(images, missing, "not stored: it has no JSON file.", notes)

    def read(self, split: str, reference: Reference) -> Sample:
        sample = super().read(split, reference)
        if not (more := unpack(reference)[1].texts):
            return sample
        (file,) = more
        data = read_object(self._root / file, file, FILE_LIMIT).get("imageData")
        try:
            return dataclasses.replace(sample, image=base64.b64decode(data or "", validate=True))
        except (TypeError, ValueError, binascii.Error) as error:
            raise SourceError(Problem(file, "annotation", f"expected imageData in base64, found: {error}.")) from error

    def files(self, reference: Reference) -> tuple[str, ...]:
        more = unpack(reference)[1].texts
        return (f"{self._root}/{more[0]}",) if more else super().files(reference)

    def _read(self, file: str, images: ImageIndex) -> tuple[str, int]:
        """Path and row of a file's image; an empty path if the file is not labelme's."""
        data = read_object(self._root / file, file, FILE_LIMIT)
        if "shapes" not in data:
            return "", -1
        with placed(file, "Correct the file, or remove it with its image."):
            objects, unstored = read_shapes(values(data["shapes"], "shapes"))
            members(data.get("flags"), "flags")
            name = data.get("imagePath") or ""
            if not isinstance(name, str):
                raise FormError(f"expected imagePath, a text, found {kind(name)}")
        folder = file[: file.rfind("/") + 1]
        inside: tuple[str, ...] = ()
        try:
            image = images.paths[images.find(name, file, (folder, ""))]
        except SourceError as error:
            if error.reason != "no-image" or not data.get("imageData"):
                raise
            image, inside = folder + (name.replace("\\", "/").rpartition("/")[2] or stem_of(file)), (file,)
        if problem := encoding_problem(image):
            raise SourceError(problem)
        if "\0" in image:
            raise SourceError(Problem(file, "annotation", "expected a name in imagePath, found a zero character."))
        if unstored.pop("groups"):
            self.ledger.unread('"group_id" of several objects', file)
        self.ledger.members(data, _KNOWN, file)
        sizes = [data.get(key) for key in ("imageHeight", "imageWidth")]
        height, width = (size if isinstance(size, int) and 0 < size < 2**31 else 0 for size in sizes)
        self._annotations.leave_out(unstored, file)
        return image, self._annotations.add(image, objects, (height, width), *inside, file=file)


def _has_shapes(path: Path) -> bool:
    """Whether a JSON file has shapes at its top level."""
    head = read_head(path, _HEAD)
    names = first_members(decode_text(head, path.name, errors="replace").lstrip())
    if "shapes" in names or len(head) < _HEAD or not names:
        return "shapes" in names
    try:  # they may come after the image
        return "shapes" in decoded(read_file(path, path.name, FILE_LIMIT), path.name, MEMBERS)
    except SourceError:
        return False


def _beside(file: str, images: ImageIndex) -> list[str]:
    """Image with the JSON file's own name."""
    try:
        return [images.paths[images.find("", file, (file[: file.rfind("/") + 1],))]]
    except SourceError:
        return []


def read_shapes(shapes: Sequence[Any]) -> Shapes:
    """Objects of an image, and the number of other shapes by reason.

    Points belong to the one object with their group. Polygons of one group and label are one object.
    """
    objects: list[AnnotatedObject] = []
    groups: dict[object, list[int]] = {}  # of objects
    points: list[tuple[object, str, Place]] = []
    unstored: Counter[str] = Counter()
    for i, each in enumerate(shapes, 1):
        try:
            shape = members(each, "a shape")
            label, group, places = _parts(shape)
            form = shape.get("shape_type") or "polygon"
            if form == "point" and len(places) == 1:
                points.append((group, label, places[0]))
                continue
            found = _object(label, form, places)
            if found is None:
                unstored["shapes"] += 1
                continue
            flags = members(shape.get("flags"), "flags")
            if shape.get("difficult"):  # as X-AnyLabeling writes it
                flags = {**flags, "difficult": True}
        except FormError as error:
            raise FormError(f"shape {i}: {error}") from error
        unstored["masks"] += form == "mask"
        found = replace(found, flags={name: int(bool(value)) for name, value in flags.items() if name in FLAGS})
        other = next((j for j in groups.get(group, ()) if objects[j].label == label and objects[j].polygon), None)
        if other is not None and found.polygon:
            objects[other] = _united(objects[other], found)
        else:
            if group is not None:
                groups.setdefault(group, []).append(len(objects))
            objects.append(found)
    unstored["points"] += attach_points(points, objects, groups)
    unstored["groups"] = sum(len(some) > 1 for some in groups.values())
    return objects, unstored


def _parts(shape: Mapping[str, Any]) -> tuple[str, object, list[Place]]:
    places: list[Place] = []
    for point in values(shape.get("points"), "points"):
        if not isinstance(point, list) or len(point) != 2:
            raise FormError(f"expected points of two numbers, found {kind(point)}")
        x, y = finite(point[0], "x"), finite(point[1], "y")
        if max(abs(x), abs(y)) > PLACE_LIMIT:
            raise FormError(f"expected points within a billion pixels, found {x:g} {y:g}")
        places.append((x, y))
    group = shape.get("group_id")
    if not (group is None or isinstance(group, int | str)):
        raise FormError(f"expected group_id, a number, found {kind(group)}")
    return text(shape.get("label"), "label"), group, places


def _object(label: str, form: object, places: Sequence[Place]) -> AnnotatedObject | None:
    """Object of a shape; None without a box."""
    if form == "polygon" and len(places) > 2:
        return AnnotatedObject.around(label, polygon=places)
    if form == "circle" and len(places) == 2:
        (x, y), edge = places
        radius = math.dist((x, y), edge)
        return AnnotatedObject(label, (x - radius, y - radius, x + radius, y + radius))
    if form in ("rectangle", "mask") and len(places) in (2, 4):  # of a mask, the corners that it fills
        return AnnotatedObject(label, hull(places), is_rectangle=form == "rectangle")
    if form in ("rotation", "oriented_rectangle") and len(places) == 4:
        return AnnotatedObject.around(label, oriented=places)
    if form in ("polygon", "circle", "rectangle", "mask", "rotation", "oriented_rectangle", "point"):
        raise FormError(f"expected the points of a {form}, found {len(places)}")
    return None


def _united(first: AnnotatedObject, second: AnnotatedObject) -> AnnotatedObject:
    rings = (*first.polygon, ABSENT, *second.polygon)
    flags = {name: first.flags.get(name, 0) | second.flags.get(name, 0) for name in {**first.flags, **second.flags}}
    return AnnotatedObject(first.label, hull(rings), flags, polygon=rings)
