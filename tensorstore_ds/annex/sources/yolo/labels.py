"""The rows of one label file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorstore_ds.annex.sources.yolo.config import CLASSES_LIMIT, Config
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.annotations import AnnotatedObject, hull
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.xml import ABSENT, Place

FILE_LIMIT = 16 << 20  # bytes
_TOLERANCE = 0.01  # of the image: what Ultralytics accepts beyond it; boxes are cut at its edge afterwards
_NUMBERS = re.compile(r"[-+.0-9eE\s]*")
_BOX = 5  # numbers of a row: class, center x and y, width, height
ORIENTED = 9  #: numbers of a row with an oriented box: class, and x and y of four corners in order


@dataclass(frozen=True, slots=True)
class Labels:
    """One file: objects in fractions of the image, numbers of repeated lines, and lengths of rows."""

    objects: Sequence[AnnotatedObject] = ()
    repeated: Sequence[int] = ()
    lengths: frozenset[int] = frozenset()


def parse_labels(data: bytes, where: str, config: Config) -> Labels:
    """Objects of a label file, which errors call `where`; raises `SourceError` `annotation` or `unknown-class`."""
    objects: list[AnnotatedObject] = []
    repeated: list[int] = []
    seen: set[str] = set()
    lengths: set[int] = set()
    for i, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        row = " ".join(words)
        if row in seen:
            repeated.append(i)
            continue
        seen.add(row)
        lengths.add(len(words))
        try:
            objects.append(_object(words, config))
        except FormError as error:
            message = f"line {i}: {error}. Correct the line, or remove it."
            raise SourceError(Problem(where, error.reason or "annotation", message)) from error
    return Labels(objects, repeated, frozenset(lengths))


def looks_like_labels(head: bytes) -> bool:
    """Whether the first bytes of a file are a row: a class and 4 or more numbers within the image."""
    line = head.decode("utf-8-sig", "replace").strip().partition("\n")[0].split()
    if len(line) < _BOX or not _NUMBERS.fullmatch(" ".join(line)) or not line[0].isdigit():
        return False
    try:
        return all(-_TOLERANCE <= float(word) <= 1 + _TOLERANCE for word in line[1:_BOX])
    except ValueError:
        return False


def _object(words: Sequence[str], config: Config) -> AnnotatedObject:
    label = _label(words[0], config.names)
    try:
        if not _NUMBERS.fullmatch(" ".join(words[1:])):  # float() takes nan, and 1_0
            raise ValueError
        values = list(map(float, words[1:]))
    except ValueError:
        wrong = next((word for word in words[1:] if not _is_number(word)), "")
        raise FormError(f"expected numbers, found {wrong[:40]!r}") from None
    if config.task == "obb" and len(words) != ORIENTED:
        raise FormError(f"expected a class and 4 corners, x and y, as task: obb says, found {len(words)} numbers")
    if config.keypoints is not None and config.task != "obb":
        return _pose(label, values, config.keypoints.names, config.dimensions)
    if len(words) == _BOX:
        return AnnotatedObject(label, _box(values))
    if len(words) < _BOX or len(words) % 2 == 0:
        hint = " (keypoints need kpt_shape in data.yaml)" if len(words) > _BOX + 1 else ""
        hint = " (a sixth number is the confidence of a prediction)" if len(words) == _BOX + 1 else hint
        message = "expected a class and 4 numbers for a box, or pairs for the corners of a polygon"
        raise FormError(f"{message}, found {len(words)} numbers in all{hint}")
    corners = list(zip(values[::2], values[1::2], strict=True))
    if len(words) == ORIENTED:
        x1, y1, x2, y2 = hull(corners)
        _check(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1))  # of a box at the edge, corners may lie outside
    else:
        _check(values)
    return AnnotatedObject.around(label, **{"oriented" if config.task == "obb" else "polygon": corners})


def _label(word: str, names: Mapping[int, str] | None) -> str:
    digits = word.removesuffix(".0").removesuffix(".")  # 0.0 is written by what keeps all numbers as floats
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise FormError(f"expected the number of a class, found {word[:40]!r}")
    number = int(digits)
    if names is None and number < CLASSES_LIMIT:
        return str(number)
    if names is None or number not in names:
        known = f"{min(names)} to {max(names)}" if names else f"0 to {CLASSES_LIMIT - 1}"
        raise FormError(f"expected a class from {known}, found {number}", "unknown-class")
    return names[number]


def _is_number(word: str) -> bool:
    try:
        return bool(_NUMBERS.fullmatch(word)) and math.isfinite(float(word))
    except ValueError:
        return False


def _check(values: Sequence[float]) -> None:
    if wrong := next((value for value in values if not -_TOLERANCE <= value <= 1 + _TOLERANCE), None):
        raise FormError(f"expected fractions of the image from 0 to 1, found {wrong:g}")


def _box(values: Sequence[float]) -> tuple[float, float, float, float]:
    _check(values)
    x, y, width, height = values
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _pose(label: str, values: Sequence[float], names: Sequence[str], dimensions: int) -> AnnotatedObject:
    length = 4 + len(names) * dimensions
    if len(values) != length:
        expected = f"{_BOX} + {len(names)} * {dimensions} = {1 + length} numbers, as kpt_shape says"
        raise FormError(f"expected {expected}, found {1 + len(values)}")
    keypoints: dict[str, Place] = {}
    for name, i in zip(names, range(4, length, dimensions), strict=True):
        x, y, *visible = values[i : i + dimensions]
        absent = visible == [0] or (x == 0 and y == 0) or x < 0 or y < 0
        if not absent:
            _check((x, y))
        keypoints[name] = ABSENT if absent else (x, y)
    return AnnotatedObject(label, _box(values[:4]), {}, keypoints)
