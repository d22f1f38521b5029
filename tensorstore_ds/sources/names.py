"""Names of classes and keypoints: their order, partners of keypoints, and the files in which a user gives them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.regular_files import read_lines

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

#: Names of fields that a source gives a meaning of its own.
RESERVED = frozenset({"image", "key", "size", "objects", "label"})

_SHOWN = 60  # characters of a name in a message
KEYPOINTS_LIMIT = 1 << 22  # of a sample: 64 MB

_SIDES = {"left": "right", "l": "r"}
_SIDES.update({right: left for left, right in _SIDES.items()})
_SIDE = re.compile(
    r"(?i:left|right)"  # left_eye, EyeLeft, lefteye_x
    r"|(?<![^_\- ])[LRlr](?![^_\- ])"  # l_eye, eye-r, brow_l_1
    r"|^[LR](?=[A-Z])"  # LShoulder
)


def field_name(text: str) -> str:
    """Name of a field as a store allows it: lower case, 64 characters at most, ``_`` for all other characters.

    >>> field_name("Patient ID")
    'patient_id'
    """
    return re.sub(r"^-|[^a-z0-9_-]", "_", text.lower())[:64]


def order_classes(
    names: Iterable[str], wanted: tuple[str, ...] | None, where: str, class_map: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Class names in stored order: the user's list as it is, else those that occur, by code point.

    `class_map` has later names of classes, which must not differ in case alone either.

    >>> order_classes(["dog", "cat", "dog"], None, "photos")
    ('cat', 'dog')

    Raises `SourceError` `class-case` for 2 names that differ only in case or Unicode form, unless `wanted` contains
    both, and `unknown-class` for a name that is not in `wanted`; raises `OptionError` if `wanted` is empty or has a
    duplicate.
    """
    ordered = tuple(sorted(set(names)))
    listed = _checked(wanted, "classes") if wanted is not None else ()
    _check_case([(class_map or {}).get(name, name) for name in ordered], listed, "classe", where)
    if wanted is None:
        return ordered
    check_listed(ordered, wanted, "class", where)
    return wanted


def _check_case(names: Iterable[str], listed: Sequence[str], what: str, where: str) -> None:
    """Raise for names of classes or keypoints that differ only in case or Unicode form, unless the user lists both.

    macOS decomposes characters in names of files: `ü` is `u` and two dots.
    """
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name and not {name, other} <= set(listed):
            differ, both = "case", (other, name)
            if other.casefold() != name.casefold():
                differ, both = "case and Unicode form", (ascii(other), ascii(name))
            message = f"expected {what}s that differ in more than {differ}, found {both[0]} and {both[1]}."
            advice = "Make them one with `class_map`, or name all classes with `classes` to keep both."
            if what == "keypoint":
                advice = "Rename one in the source, or name all keypoints with `keypoints` to keep both."
            raise SourceError(Problem(where, "class-case", message), advice)


def check_listed(names: Iterable[str], wanted: tuple[str, ...], what: str, where: str) -> None:
    """Raise for names that are not in the user's list of classes or keypoints (`what`: ``class``, ``keypoint``)."""
    unknown = sorted(set(names).difference(wanted))
    if unknown:
        some = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        one = len(wanted) == 1
        message = f"expected only the {len(wanted)} name{'' if one else 's'} of the {what} list, found also {some}."
        advice = "Add it to the list, or correct the source."
        if one and re.search(r"[\s,;]", wanted[0]):
            advice = f"The list has one name, {shown_name(wanted[0])}: write one name per line."
        elif one and wanted[0] not in names:
            advice = f"{advice} The list has one name, {shown_name(wanted[0])}: if that is a file, correct its path."
        raise SourceError(Problem(where, f"unknown-{what}", message), advice)


def told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Class names; those that repeat get their number, such as the two cranes of ImageNet.

    >>> told_apart(["crane", "kite", "crane"])
    ('crane (0)', 'kite', 'crane (2)')
    """
    counts = Counter(names)
    return tuple(f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(names))


def some_names(classes: Collection[object]) -> str:
    """The number of classes and the first names, for an error message.

    >>> some_names(["cat", "dog"]), some_names(range(9))
    ('2 classes (cat, dog)', '9 classes (0, 1, 2, 3, 4, ...)')
    """
    first = [str(each)[:_SHOWN] for each in islice(classes, 5)]
    shown = ", ".join([*first, "..."] if len(classes) > 5 else first)
    return f"{len(classes)} class{'' if len(classes) == 1 else 'es'} ({shown})"


def shown_name(name: str) -> str:
    """Quote a name for an error message."""
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")


def number_classes(
    labels: Sequence[int] | NDArray[np.int64], wanted: tuple[str, ...] | None, where: str
) -> tuple[str, ...]:
    """Class names of numeric labels: `wanted`, indexed by label, else the numbers 0 to n - 1, which must have no gap.

    `UNLABELLED` is the label of no class.

    >>> number_classes([1, 0, 2, -1, 1], None, "labels.npy")
    ('0', '1', '2')

    Raises:
        SourceError: `unknown-class` for a different negative number, a gap, a number without a name in `wanted`, or
            only `UNLABELLED` without names.
        OptionError: `wanted` is empty or has a duplicate.
    """
    numbers = [number for number in np.unique(np.asarray(labels, np.int64)).tolist() if number != UNLABELLED]
    if wanted is None and len(labels) and not numbers:
        message = f"expected labels from 0 up, found {UNLABELLED} alone, which stands for no label."
        raise SourceError(Problem(where, "unknown-class", message), "Name all classes with `classes`, label 0 first.")
    n = len(numbers) if wanted is None else len(_checked(wanted, "classes"))
    wrong = next((number for number in numbers if not 0 <= number < n), None)
    if wrong is None:
        return tuple(map(str, range(n))) if wanted is None else wanted
    if wanted is not None:
        message = f"expected labels from 0 to {n - 1}, one for each name in the class list, found {wrong}."
        raise SourceError(Problem(where, "unknown-class", message), "Correct the list: its first name is label 0.")
    gap = f"but never {next(i for i in range(n) if i not in numbers)}" if numbers[0] >= 0 else "some of them negative"
    message = f"expected labels from 0 up without a gap, found labels from {numbers[0]} to {numbers[-1]}, {gap}."
    raise SourceError(Problem(where, "unknown-class", message), "Name all classes with `classes`, label 0 first.")


def read_classes(path: Path) -> tuple[str, ...]:
    """Read class names from a text file, one per line, in this order.

    Blank lines and surrounding white space are ignored.

    >>> _ = Path("classes.txt").write_text("cat\\ndog\\n")
    >>> tsds.conversion.read_classes(Path("classes.txt"))
    ('cat', 'dog')
    >>> _ = tsds.convert("photos", "out.tsds", classes=tsds.conversion.read_classes(Path("classes.txt")), workers=0)

    Raises:
        OptionError: the file cannot be read, is not UTF-8, contains no class, or contains one twice.
    """
    return _checked(tuple(line.strip() for line in read_lines(path, "class list").values()), str(path))


def read_class_map(path: Path) -> dict[str, str]:
    """Read a class map from a text file, with a line ``old = new`` for each class.

    An empty new name removes the class.

    >>> _ = Path("map.txt").write_text("kitten = cat\\nunclear =\\n")
    >>> tsds.conversion.read_class_map(Path("map.txt"))
    {'kitten': 'cat', 'unclear': ''}

    Raises:
        OptionError: the file cannot be read, a line has a different form, or a class occurs twice.
    """
    names: dict[str, str] = {}
    for i, line in read_lines(path, "class map").items():
        old, equals, new = line.partition("=")
        if not equals or not old.strip():
            raise OptionError(f"{path}: line {i}: expected old = new, found {line!r}.")
        if old.strip() in names:
            raise OptionError(f"{path}: line {i}: expected each class once, found {old.strip()} twice.")
        names[old.strip()] = new.strip()
    return names


def _checked(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    if not names:
        raise OptionError(f"{where}: expected at least one class name, found none. Write one per line.")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise OptionError(f"{where}: expected each class once, found {name} twice. Remove one.")
    return names


# --- keypoints ------------------------------------------------------------------------------------------------------


def absent_keypoints(objects: int, names: int, where: str) -> NDArray[np.float64]:
    """New array (objects, names, 2) of NaN, to be filled with keypoints; raises above `KEYPOINTS_LIMIT`."""
    if objects * names > KEYPOINTS_LIMIT:
        message = f"expected at most {KEYPOINTS_LIMIT} keypoints in a sample, found {objects} objects of {names}."
        raise SourceError(Problem(where, "keypoint-count", message))
    return np.full((objects, names, 2), np.nan)


def without_padding(names: Iterable[str]) -> dict[str, str]:
    """Replacements of names without leading zeros, for names that differ only in these.

    >>> without_padding(["00", "0", "1"]), without_padding(["00", "01"]), without_padding(["0", "00", "nose"])
    ({'00': '0'}, {}, {'00': '0'})
    """
    each = [name for name in names if _is_number(name)]
    plain = {name: name.lstrip("0") or "0" for name in each}
    if len(set(plain.values())) == len(plain):
        return {}
    return {name: short for name, short in plain.items() if name != short}


def order_keypoints(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct keypoint names, by number if all are whole numbers, else by code point.

    >>> order_keypoints(["10", "9", "10"]), order_keypoints(["nose", "10", "9"])
    (('9', '10'), ('10', '9', 'nose'))
    """
    each = set(names)
    return tuple(sorted(each, key=_magnitude if all(map(_is_number, each)) else None))


def choose_keypoints(names: Iterable[str], wanted: Keypoints | None, where: str) -> Keypoints:
    """Keypoints as the user lists them, else those that occur, ordered, with pairs from their names."""
    ordered = order_keypoints(names)
    _check_case(ordered, wanted.names if wanted is not None else (), "keypoint", where)
    if wanted is None or not ordered:
        return Keypoints(ordered, flip_pairs(ordered))
    check_listed(ordered, wanted.names, "keypoint", where)
    return wanted


def numbered_keypoints(count: int, chosen: Keypoints | None, where: str) -> Keypoints:
    """The chosen keypoints, which must be `count`; without any, numbers from 0."""
    if chosen is None:
        return Keypoints(names := tuple(map(str, range(count))), flip_pairs(names))
    if len(chosen.names) != count:
        message = f"expected {len(chosen.names)} keypoints, found {count}."
        raise SourceError(Problem(where, "keypoint-count", message), "Correct the list of keypoints.")
    return chosen


def flip_pairs(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Pairs of indices that are swapped when an image is mirrored left to right.

    They follow from left and right in names (``left_eye``, ``eye-r``, ``EarLeft``, ``LShoulder``), and, for 68 points
    numbered from 0 or 1, from the iBUG scheme.

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
    """Read keypoint names from a text file, one per line, in this order.

    A line may also contain the name of the keypoint to swap with when an image is mirrored, after a tab or a comma. One
    keypoint of each pair is enough. If the file contains no pairs, they follow from the names, such as left and right.

    >>> _ = Path("keypoints.txt").write_text("nose\\nleft eye,right eye\\nright eye\\n")
    >>> tsds.conversion.read_keypoints(Path("keypoints.txt"))
    Keypoints(names=('nose', 'left eye', 'right eye'), flip_pairs=((1, 2),))

    Raises:
        OptionError: the file cannot be read, is not UTF-8, contains no keypoint or one twice, or has pairs that do not
            match.
    """
    partners: dict[str, str] = {}
    for i, line in read_lines(path, "keypoint list").items():
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
