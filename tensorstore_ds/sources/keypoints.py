"""Keypoint names: their order, their left-right partners, and the file in which a user gives both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.regular_files import read_lines
from tensorstore_ds.sources.classes import check_listed

#: Partners in the 68-point scheme of iBUG, numbered from 0; the nine points not named lie on the middle line. The
#: scheme: Sagonas, Tzimiropoulos, Zafeiriou, Pantic: "300 Faces in-the-Wild Challenge: The first facial landmark
#: localization Challenge", ICCV workshops 2013, figure 1; https://ibug.doc.ic.ac.uk/resources/facial-point-annotations/
IBUG_68 = (
    *((i, 16 - i) for i in range(8)),  # the jaw, ear to ear; 8 is the chin
    *((i, 43 - i) for i in range(17, 22)),  # the brows
    *((31, 35), (32, 34)),  # below the nose; 27 to 30 are its bridge, 33 its middle
    *((36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46)),  # the eyes
    *((48, 54), (49, 53), (50, 52), (55, 59), (56, 58)),  # the lips, outside; 51 and 57 are their middle
    *((60, 64), (61, 63), (65, 67)),  # the lips, inside; 62 and 66 are their middle
)

KEYPOINTS_LIMIT = 1 << 22  # of a sample: 64 MB

_SIDES = {"left": "right", "l": "r"}
_SIDES.update({right: left for left, right in _SIDES.items()})
_SIDE = re.compile(
    r"(?i:left|right)"  # left_eye, EyeLeft, lefteye_x
    r"|(?<![^_\- ])[LRlr](?![^_\- ])"  # l_eye, eye-r, brow_l_1
    r"|^[LR](?=[A-Z])"  # LShoulder
)


def absent_keypoints(objects: int, names: int, where: str) -> NDArray[np.float64]:
    """A new array (objects, names, 2) of NaN, to be filled with the keypoints that there are.

    Raises:
        SourceError: `keypoint-count` for more than `KEYPOINTS_LIMIT` keypoints in one sample.
    """
    if objects * names > KEYPOINTS_LIMIT:
        message = f"expected at most {KEYPOINTS_LIMIT} keypoints in a sample, found {objects} objects of {names}."
        raise SourceError(Problem(where, "keypoint-count", message))
    return np.full((objects, names, 2), np.nan)


def order_keypoints(names: Iterable[str]) -> tuple[str, ...]:
    """Keypoint names, each once: by number when all are whole numbers, else by code point.

    >>> order_keypoints(["10", "9", "10"]), order_keypoints(["nose", "10", "9"])
    (('9', '10'), ('10', '9', 'nose'))
    """
    each = set(names)
    return tuple(sorted(each, key=_magnitude if all(map(_is_number, each)) else None))


def choose_keypoints(names: Iterable[str], wanted: Keypoints | None, where: str) -> Keypoints:
    """The keypoints as the user lists them, else those that occur, in order and with the partners that the names tell.

    Raises:
        SourceError: `unknown-keypoint` for one that occurs and that the user's list has not.
    """
    ordered = order_keypoints(names)
    if wanted is None or not ordered:
        return Keypoints(ordered, flip_pairs(ordered))
    check_listed(ordered, wanted.names, "keypoint", where)
    return wanted


def flip_pairs(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """The pairs of indices that change places when an image is mirrored left to right.

    They follow from names that differ in left and right (``left_eye``, ``eye-r``, ``EarLeft``, ``LShoulder``), and, for
    68 points numbered from 0 or 1, from the iBUG scheme.

    >>> flip_pairs(("left_eye", "nose", "right_eye"))
    ((0, 2),)
    """
    index = {name: i for i, name in enumerate(names)}
    numbers = sorted(int(name) for name in index if _is_number(name) and len(name) < 10)
    if len(names) == len(numbers) == 68 and numbers in (list(range(68)), list(range(1, 69))):
        places = {int(name) - numbers[0]: i for name, i in index.items()}
        pairs = [(places[a], places[b]) for a, b in IBUG_68]
    else:
        partners = ((i, index.get(_mirrored(name), i), name) for name, i in index.items())
        pairs = [(i, j) for i, j, name in partners if i < j and _mirrored(names[j]) == name]
    return tuple(sorted((min(pair), max(pair)) for pair in pairs))


def read_keypoints(path: Path) -> Keypoints:
    """The keypoints in a text file: a name per line, in this order, and after a tab or comma that of its flip partner.

    One of two partners may leave the other out. Without any partner in the file they follow from the names.

    Raises:
        OptionError: the file cannot be read, is not UTF-8, names no keypoint, one twice, or partners that do not match.
    """
    lines = read_lines(path, "keypoint list")
    partners: dict[str, str] = {}
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, *others = (part.strip() for part in re.split(r"[\t,]", line))
        where = f"{path}: line {i}"
        if not name or len(others) > 1:
            raise OptionError(f"{where}: expected a name, or a name, a tab and its partner's name, found {line!r}.")
        if name in partners:
            raise OptionError(f"{where}: expected each keypoint once, found {name} twice. Remove one.")
        partners[name] = others[0] if others else ""
    if not partners:
        raise OptionError(f"{path}: expected at least one keypoint name, found none. Write one per line.")
    names = tuple(partners)
    return Keypoints(names, _listed_pairs(partners, str(path)) if any(partners.values()) else flip_pairs(names))


def _listed_pairs(partners: dict[str, str], where: str) -> tuple[tuple[int, int], ...]:
    index = {name: i for i, name in enumerate(partners)}
    pairs: dict[int, int] = {}
    for name, partner in partners.items():
        if not partner or partner == name:
            continue
        if partner not in index:
            raise OptionError(f"{where}: expected the partner of {name} to be in the list, found {partner}. Add it.")
        a, b = index[name], index[partner]
        if pairs.setdefault(a, b) != b or pairs.setdefault(b, a) != a:
            message = f"expected partners to name each other, {name} and {partner} do not. Correct it."
            raise OptionError(f"{where}: {message}")
    return tuple(sorted((a, b) for a, b in pairs.items() if a < b))


def _mirrored(name: str) -> str:
    return _SIDE.sub(_other_side, name)


def _other_side(match: re.Match[str]) -> str:
    side = match[0]
    other = _SIDES[side.lower()]
    return other.upper() if side.isupper() else other.capitalize() if side[0].isupper() else other


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _magnitude(name: str) -> tuple[int, str, str]:
    digits = name.lstrip("0")  # compared as text: int() refuses more than some thousand digits
    return len(digits), digits, name
