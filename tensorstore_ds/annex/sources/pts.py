"""300-W and iBUG: a text file of facial points beside each image: formats/sources/pts.md."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import ClassVar

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import is_file, read_file, read_head
from tensorstore_ds.sources.annotations import NUMBER, AnnotatedObject, AnnotatedSource, hull
from tensorstore_ds.sources.base import Contents
from tensorstore_ds.sources.files import PROBED_FILES, glance
from tensorstore_ds.sources.forms import noted
from tensorstore_ds.sources.ledger import Ledger
from tensorstore_ds.sources.xml import PLACE_LIMIT, Place

FILE_LIMIT = 1 << 20  # bytes
_POINTS = re.compile(rb"n_points:\s*\d")


class PtsSource(AnnotatedSource):
    """Each image has one object."""

    name: ClassVar[str] = "pts"

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the file, or some .pts file of a folder, contains its number of points."""
        files = [path.name] if (is_one := is_file(path)) else glance(path)
        some = [file for file in files if file.lower().endswith(".pts")][:PROBED_FILES]
        return any(_POINTS.search(read_head(path if is_one else path / file, 256)) for file in some)

    def scan(self) -> Contents:
        """Read every .pts file."""
        files, images = self._walked(".pts")
        every, problems = self._annotations, self._annotations.problems
        found: dict[str, tuple[str, AnnotatedObject]] = {}  # by the image's path
        for file in files:
            with noted(problems):
                places = read_points(read_file(self._root / file, file, FILE_LIMIT), file, self.ledger)
                image = images.paths[images.find("", file, (file[: file.rfind("/") + 1], ""))]
                if image in found:
                    message = f"expected an image of its own, found {image}, which {found[image][0]} has. Remove one."
                    raise SourceError(Problem(file, "duplicate-key", message))
                names = {str(i): place for i, place in enumerate(places, 1)}
                found[image] = file, AnnotatedObject("", hull(places), {}, names)
        counts = Counter(len(each.keypoints) for _, each in found.values())
        usual = max(counts, key=lambda n: (counts[n], n), default=0)
        for image, (file, each) in found.items():
            if len(each.keypoints) == usual:
                every.images[image] = every.add(image, [each], file=file)
            else:
                every.bad.add(image)
                message = f"expected {usual} points, as most files have, found {len(each.keypoints)}. Convert it apart."
                problems.append(Problem(file, "keypoint-count", message))
        missing = "expected .pts files beside images, found none."
        return self._by_folder(images, missing, "not stored: it has no .pts file.", labelled=False)


def read_points(data: bytes, file: str, ledger: Ledger) -> list[Place]:
    """Points x y of a file in pixels, counted from 0; `ledger` receives other lines before the points.

    Raises `SourceError` `annotation`, or `keypoint-count` if the number of points differs from the file's header.
    """
    lines = [(i, line.strip()) for i, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1)]
    lines = [(i, line) for i, line in lines if line]
    header: dict[str, str] = {}
    while lines and lines[0][1] != "{":
        i, line = lines.pop(0)
        name, colon, value = line.partition(":")
        if not colon:
            raise _problem(file, i, "a name, a colon and a value, or {", line)
        header[name.strip()] = value.strip()
        if name.strip() not in ("version", "n_points"):
            ledger.unread(f'"{name.strip()[:60]}"', file)
        if name.strip() == "version" and value.strip() not in ("1", "1.0"):
            raise _problem(file, i, "version: 1", line)
    if not lines or lines[-1][1] != "}":
        raise _problem(file, lines[-1][0] if lines else 1, "points between { and } to the end", "another end")
    places = [_place(line, file, i) for i, line in lines[1:-1]]
    if not places or header.get("n_points", "").lstrip("0") != str(len(places)):
        said = header.get("n_points", "no number")[:20]
        message = f"expected as many points as n_points says, {said}, found {len(places)}. Correct the file."
        raise SourceError(Problem(file, "keypoint-count", message))
    return places


def _place(line: str, file: str, number: int) -> Place:
    parts = line.split()
    if len(parts) != 2 or not all(map(NUMBER.fullmatch, parts)):
        raise _problem(file, number, "two numbers", line)
    x, y = (float(part) - 1 for part in parts)  # MATLAB counts from 1
    if not math.hypot(x, y) <= PLACE_LIMIT:
        raise _problem(file, number, "a point within a billion pixels", line)
    return x, y


def _problem(file: str, line: int, expected: str, found: str) -> SourceError:
    message = f"line {line}: expected {expected}, found {found[:40]!r}. Correct the file, or remove it with its image."
    return SourceError(Problem(file, "annotation", message))
