"""One of dlib's imglab XML files, as columns: formats/sources/imglab.md. dlib calls a keypoint a part."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import unreadable
from tensorstore_ds.sources.base import FLAGS
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.xml import ElementError, Place, flag, iterate_elements, number, pixels, place, shown

NO_LABEL = -1
NAMES_LIMIT = 1 << 16  # different keypoint names: what the columns have room for

_DRIVE = re.compile(r"[A-Za-z]:(/|$)")


@dataclass(slots=True)
class Names:
    """Numbers for class and keypoint names, in the order in which they were met, over all files of a source."""

    labels: dict[str, int] = field(default_factory=dict)
    keypoints: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Columns:
    """What a file holds, a row an image, a box or a keypoint: 10 bytes a keypoint, where Python objects would take 200.

    Attributes:
        xml: the file's path in the source.
        listed: the paths of all its images, sound or not, each once.
        images: the paths of the sound ones: a row each.
        sizes: height and width of each image, 0 where the file does not say them.
        starts: (images + 1) where the boxes of each image begin.
        boxes: x1 y1 x2 y2 of each box.
        labels: the number in `Names.labels` of each box's class, or `NO_LABEL`.
        flags: for each of `FLAGS`, 0 or 1 for each box.
        keypoint_starts: (boxes + 1) where the keypoints of each box begin.
        keypoint_names: the number in `Names.keypoints` of each keypoint's name.
        keypoint_places: x y of each keypoint.
        seen: those of `FLAGS` that some box has.
        problems: the images that are left out, and why.
    """

    xml: str
    listed: PackedStrings = field(default_factory=PackedStrings)
    images: PackedStrings = field(default_factory=PackedStrings)
    sizes: array[int] = field(default_factory=lambda: array("i"))
    starts: array[int] = field(default_factory=lambda: array("q", [0]))
    boxes: array[float] = field(default_factory=lambda: array("d"))
    labels: array[int] = field(default_factory=lambda: array("i"))
    flags: dict[str, bytearray] = field(default_factory=lambda: {name: bytearray() for name in FLAGS})
    keypoint_starts: array[int] = field(default_factory=lambda: array("q", [0]))
    keypoint_names: array[int] = field(default_factory=lambda: array("H"))
    keypoint_places: array[float] = field(default_factory=lambda: array("f"))
    seen: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    @property
    def richness(self) -> tuple[int, int]:
        """Numbers of keypoints and boxes: of two files that list the same images, the larger one counts."""
        return len(self.keypoint_names), len(self.labels)

    def append(self, image: str, size: tuple[int, int], boxes: list[_Box]) -> None:
        """Add an image (its size is 0 where the file does not say it) and its boxes."""
        self.images.extend([image])
        self.sizes.extend(size)
        for box in boxes:
            self.boxes.extend(box.corners)
            self.labels.append(box.label)
            self.seen.update(box.flags)
            for name, values in self.flags.items():
                values.append(box.flags.get(name, 0))
            for name_number, position in box.keypoints.items():
                self.keypoint_names.append(name_number)
                self.keypoint_places.extend(position)
            self.keypoint_starts.append(len(self.keypoint_names))
        self.starts.append(len(self.labels))


@dataclass(frozen=True, slots=True)
class _Box:
    """One box; its keypoints by the numbers of their names."""

    corners: tuple[float, float, float, float]
    label: int
    flags: dict[str, int]
    keypoints: dict[int, Place]


def read_columns(path: Path, xml: str, images: Path, folder: str, names: Names) -> Columns:
    """Read the file `path`, named `xml` in errors.

    Args:
        path: the file.
        xml: its path in the source.
        images: the folder that no image may lie outside of.
        folder: where in it the paths of the file begin: ``""`` or with a ``/`` at the end.
        names: receives the class and keypoint names that are new.

    Raises:
        SourceError: those of `xml.iterate_elements`, when the whole file cannot be used.
    """
    columns = Columns(xml)
    seen: set[str] = set()
    for line, element in iterate_elements(path, xml, "dataset", "image"):
        where = f"{xml} line {line}"
        try:
            image = _image_path(element.get("file"), folder, where)
            if image in seen:
                message = f"expected each image once in {xml}, found it again in line {line}. Merge the two."
                raise SourceError(Problem(image, "duplicate-key", message))
            seen.add(image)
            columns.listed.extend([image])
            _check_image(images / image, image, where)
            boxes = [_box(box, f"{where}, box {i}", image, names) for i, box in enumerate(element.iterfind("box"), 1)]
        except SourceError as error:
            columns.problems.extend(error.problems)
        else:
            columns.append(image, (pixels(element.get("height")), pixels(element.get("width"))), boxes)
    return columns


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


def _box(element: Element, where: str, image: str, names: Names) -> _Box:
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
    numbered = {names.keypoints.setdefault(name, len(names.keypoints)): xy for name, xy in keypoints.items()}
    if max(numbered, default=0) >= NAMES_LIMIT:
        message = f"{where}: expected at most {NAMES_LIMIT} different keypoint names in a source, found more."
        raise SourceError(Problem(image, "keypoint-count", message))
    text = element.findtext("label")
    label = (element.get("label", "") if text is None else text).strip()
    label_number = names.labels.setdefault(label, len(names.labels)) if label else NO_LABEL
    return _Box((left, top, left + width, top + height), label_number, flags, numbered)


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
