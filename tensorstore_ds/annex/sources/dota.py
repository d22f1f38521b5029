"""DOTA: a text file of quadrilaterals for each image: formats/sources/dota.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import is_file, read_file, read_head
from tensorstore_ds.sources.annotations import NUMBER, AnnotatedObject, AnnotatedSource, hull
from tensorstore_ds.sources.base import Contents
from tensorstore_ds.sources.files import PROBED_FILES, encoding_problem, glance
from tensorstore_ds.sources.xml import PLACE_LIMIT, Place

FILE_LIMIT = 16 << 20  # bytes
_HEAD = 4096
_HEADER = re.compile(r"(acquisition dates|imagesource|gsd)\s*:", re.IGNORECASE)
#: Labels of DOTA 1.0 with upright boxes have these folders; the oriented ones are beside them.
_UPRIGHT = re.compile(r"hbb|horizontal|reclabeltxt", re.IGNORECASE)


class DotaSource(AnnotatedSource):
    """The text files are read once."""

    name: ClassVar[str] = "dota"

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the first line of a text file, after headers, has 8 numbers, a class and a difficulty."""
        if is_file(path):
            return path.suffix.lower() == ".txt" and _looks_like_labels(read_head(path, _HEAD))
        files = [file for file in glance(path) if file.lower().endswith(".txt")]
        files.sort(key=lambda file: "labeltxt" not in file.lower())
        return any(_looks_like_labels(read_head(path / file, _HEAD)) for file in files[:PROBED_FILES])

    def scan(self) -> Contents:
        """Read every text file with the name of an image."""
        files, images = self._walked(".txt")
        found = self._annotations
        oriented = [file for file in files if not _UPRIGHT.search(file.rpartition("/")[0])]
        for file in oriented or files:
            image = ""
            try:
                image = images.paths[images.find("", file, _folders(file))]
                if image in found.images or image in found.bad:
                    message = f"expected an image of its own, found {image}, which another file has. Remove one."
                    raise SourceError(Problem(file, "duplicate-key", message))
                if problem := encoding_problem(image):
                    raise SourceError(problem)
                objects = read_labels(read_file(self._root / file, file, FILE_LIMIT), file)
                found.images[image] = found.add(image, objects, file=file)
            except SourceError as error:
                found.bad.update([image] if image else [])
                if error.reason == "no-image" and not _looks_like_labels(read_head(self._root / file, _HEAD)):
                    message = "not read: it has neither labels nor an image."
                    found.left_out.append(Problem(file, "not-listed", message))
                else:
                    found.problems += error.problems
        notes = []
        if found.images and oriented and len(oriented) < len(files):
            self.ledger.use(*files)
            notes = ["the folders of upright boxes are not read: these follow from the oriented ones."]
        missing = "expected images with text files of labels, found none."
        return self._by_folder(images, missing, "not stored: it has no text file of labels.", notes)


def read_labels(data: bytes, file: str) -> list[AnnotatedObject]:
    """Objects of a file: oriented boxes with 4 corners, and their hulls; raises `SourceError` `annotation`."""
    objects: list[AnnotatedObject] = []
    for i, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words or (not objects and _HEADER.match(line.strip())):
            continue
        if len(words) not in (9, 10) or not all(map(NUMBER.fullmatch, words[:8])):
            raise _problem(file, i, "x1 y1 x2 y2 x3 y3 x4 y4, a class and a difficulty", line)
        corners = corners_of(words)
        if not all(abs(value) <= PLACE_LIMIT for corner in corners for value in corner):
            raise _problem(file, i, "corners within a billion pixels", line)
        if "\ufffd" in words[8] or "\0" in words[8]:
            raise _problem(file, i, "the name of a class in UTF-8", line)
        if len(words) == 10 and words[9] not in ("0", "1", "2"):
            raise _problem(file, i, "a difficulty of 0, 1 or 2", line)
        flags = {"difficult": int(words[9] != "0")} if len(words) == 10 else {}
        objects.append(AnnotatedObject(words[8], hull(corners), flags, oriented=corners))
    return objects


def corners_of(words: Sequence[str]) -> tuple[Place, Place, Place, Place]:
    """The 4 corners x y of a line, in pixels, in the order of the file: clockwise in DOTA.

    >>> corners_of("2753 2408 2861 2385 2888 2468 2805 2502 plane 0".split())[0]
    (2753.0, 2408.0)
    """
    x1, y1, x2, y2, x3, y3, x4, y4 = map(float, words[:8])
    return (x1, y1), (x2, y2), (x3, y3), (x4, y4)


def _looks_like_labels(head: bytes) -> bool:
    for line in head.decode("utf-8-sig", "replace").splitlines():
        words = line.replace(",", " ").split()
        if words and not _HEADER.match(line.strip()):
            is_class = len(words) == 10 and not NUMBER.fullmatch(words[8]) and words[9] in ("0", "1", "2")
            return is_class and all(map(NUMBER.fullmatch, words[:8]))
    return False


def _folders(file: str) -> tuple[str, ...]:
    """Folders searched first for the image of a text file: ``images`` of its split, then its own."""
    folder = file[: file.rfind("/") + 1]
    parts = folder.split("/")[:-1]
    places = []
    for i in range(len(parts), 0, -1):
        above, below = parts[: i - 1], parts[i:]
        # of labelTxt/train and train/labelTxt; also of train/labelTxt-v1.5/DOTA-v1.5_train
        places += ["/".join([*above, "images", *below, ""]), "/".join([*above, "images", ""])]
    return (*places, folder)


def _problem(file: str, line: int, expected: str, found: str) -> SourceError:
    message = f"line {line}: expected {expected}, found {found[:60]!r}. Correct the file, or remove it with its image."
    return SourceError(Problem(file, "annotation", message))
