"""What one of dlib's imglab XML files lists: formats/sources/imglab.md. dlib calls a keypoint a part."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import unreadable
from tensorstore_ds.sources.base import FLAGS
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.objects import AnnotatedObject, ObjectTable
from tensorstore_ds.sources.xml import ElementError, Place, flag, iterate_elements, number, pixels, place, shown

NAMES_LIMIT = 1 << 16  # different keypoint names of a file

_DRIVE = re.compile(r"[A-Za-z]:(/|$)")


@dataclass(slots=True)
class ImageList:
    """What a file lists.

    Attributes:
        xml: the file's path in the source.
        listed: the paths of all its images, sound or not, each once.
        entries: the sound ones, each as `pack` makes it.
        boxes, keypoints: how many of each these have.
        unlabelled: the entries of which a box has no label, and the number (from 1) of the first such box.
        table: the names that occur.
        problems: the images that are left out, and why.
    """

    xml: str
    listed: PackedStrings = field(default_factory=PackedStrings)
    entries: PackedStrings = field(default_factory=PackedStrings)
    boxes: int = 0
    keypoints: int = 0
    unlabelled: dict[int, int] = field(default_factory=dict)
    table: ObjectTable = field(default_factory=ObjectTable)
    problems: list[Problem] = field(default_factory=list)

    @property
    def richness(self) -> tuple[int, int]:
        """Of two files that list the same images, the larger one counts."""
        return self.keypoints, self.boxes

    def add(self, image: str, size: tuple[int, int], objects: list[AnnotatedObject]) -> None:
        """Add a sound image; its size is 0 where the file does not say it."""
        bare = next((i for i, each in enumerate(objects, 1) if not each.label), None)
        if bare is not None:
            self.unlabelled[len(self.entries)] = bare
        self.entries.extend([pack(image, size, objects)])
        self.boxes += len(objects)
        self.keypoints += sum(len(each.keypoints) for each in objects)
        self.table.note(objects)


def pack(image: str, size: tuple[int, int], objects: list[AnnotatedObject]) -> str:
    """An image with its objects as one string, for `unpack`: some 12 bytes a keypoint, where a tuple would take 200."""
    rows = []
    for each in objects:
        keypoints = [value for name, (x, y) in each.keypoints.items() for value in (name, _short(x), _short(y))]
        rows.append([each.label, each.flags, *map(_short, each.box), *keypoints])
    return f"{image}\0{json.dumps([size, rows], separators=(',', ':'))}"


def unpack(entry: str) -> tuple[str, tuple[int, int], list[AnnotatedObject]]:
    """The image's path, its size, and its objects."""
    image, _, text = entry.partition("\0")
    (height, width), rows = json.loads(text)
    objects = []
    for label, flags, x1, y1, x2, y2, *flat in rows:
        keypoints = {name: (x, y) for name, x, y in zip(flat[::3], flat[1::3], flat[2::3], strict=True)}
        objects.append(AnnotatedObject(label, (x1, y1, x2, y2), flags, keypoints))
    return image, (height, width), objects


def _short(value: float) -> float:
    return int(value) if value.is_integer() else value  # 201 takes two characters less than 201.0


def read_list(path: Path, xml: str, images: Path, folder: str) -> ImageList:
    """Read the file `path`, named `xml` in errors.

    Args:
        path: the file.
        xml: its path in the source.
        images: the folder that no image may lie outside of.
        folder: where in it the paths of the file begin: ``""`` or with a ``/`` at the end.

    Raises:
        SourceError: those of `xml.iterate_elements`, when the whole file cannot be used.
    """
    result = ImageList(xml)
    seen: set[str] = set()
    for line, element in iterate_elements(path, xml, "dataset", "image"):
        where = f"{xml} line {line}"
        try:
            image = _image_path(element.get("file"), folder, where)
            if image in seen:
                message = f"expected each image once in {xml}, found it again in line {line}. Merge the two."
                raise SourceError(Problem(image, "duplicate-key", message))
            seen.add(image)
            result.listed.extend([image])
            _check_image(images / image, image, where)
            objects = [_object(box, f"{where}, box {i}", image) for i, box in enumerate(element.iterfind("box"), 1)]
            known = result.table.keypoints
            new = {name for each in objects for name in each.keypoints if name not in known}
            if len(known) + len(new) > NAMES_LIMIT:
                message = f"{where}: expected at most {NAMES_LIMIT} different keypoint names in a file, found more."
                raise SourceError(Problem(image, "keypoint-count", message))
        except SourceError as error:
            result.problems.extend(error.problems)
        else:
            result.add(image, (pixels(element.get("height")), pixels(element.get("width"))), objects)
    return result


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
        exists = path.is_file()
    except OSError as error:
        raise SourceError(unreadable(image, error)) from error
    if not exists:
        message = f"expected this image, which {where} lists, found none. Add it, or remove the entry."
        raise SourceError(Problem(image, "no-image", message))


def _object(element: Element, where: str, image: str) -> AnnotatedObject:
    try:
        left, top, width, height = (number(element.get(key), key) for key in ("left", "top", "width", "height"))
        flags: dict[str, int] = {}
        for key in (*FLAGS, "ignore"):
            if (text := element.get(key)) is not None:
                name = "difficult" if key == "ignore" else key  # do not count it: neither as found nor as missed
                flags[name] = flags.get(name, 0) | flag(text, key)
        keypoints = _keypoints(element)
    except ElementError as error:
        message = f"{where}: {error}. Correct the entry, or remove it."
        raise SourceError(Problem(image, "annotation", message)) from error
    text = element.findtext("label")
    label = (element.get("label", "") if text is None else text).strip()
    return AnnotatedObject(label, (left, top, left + width, top + height), flags, keypoints)


def _keypoints(element: Element) -> dict[str, Place]:
    keypoints: dict[str, Place] = {}
    for part in element.iterfind("part"):
        name = (part.get("name") or "").strip()
        if not name:
            raise ElementError("expected the attribute name of <part>, found none")
        if name in keypoints:
            raise ElementError(f"expected each keypoint once, found {name} twice")
        keypoints[name] = place(part.get("x"), part.get("y"), name)
    return keypoints
