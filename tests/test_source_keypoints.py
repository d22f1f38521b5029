"""Keypoints: order, flip partners, lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from labelling_files import blank, found, refusing, write
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources.names import (
    absent_keypoints,
    choose_keypoints,
    flip_pairs,
    order_keypoints,
    read_keypoints,
)


def pairs_by_name(names: tuple[str, ...]) -> set[tuple[str, str]]:
    return {(names[a], names[b]) for a, b in flip_pairs(names)}


def test_numbers_are_ordered_by_value_and_names_by_code_point() -> None:
    assert order_keypoints(["10", "9", "1", "09", "9"]) == ("1", "09", "9", "10")
    assert order_keypoints(["nose", "Ear", "10", "9"]) == ("10", "9", "Ear", "nose")
    assert order_keypoints([]) == ()
    assert order_keypoints(["9" * 5000, "1"])[0] == "1"  # more digits than int() takes


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("left_eye", "right_eye"),
        ("eye-left", "eye-right"),
        ("left eye", "right eye"),
        ("LeftEye", "RightEye"),
        ("eyeLeft", "eyeRight"),
        ("LEFT_EYE", "RIGHT_EYE"),
        ("lefteye_x", "righteye_x"),
        ("l_eye", "r_eye"),
        ("eye_L", "eye_R"),
        ("brow-l-1", "brow-r-1"),
        ("LShoulder", "RShoulder"),
        ("l", "r"),
        ("left_eye_right_corner", "right_eye_left_corner"),
    ],
)
def test_sides_in_names_are_partners(left: str, right: str) -> None:
    assert flip_pairs((right, "nose", left)) == ((0, 2),)


_SIDES = [f"{side}_{part}" for part in ("eye", "ear", "shoulder", "hip") for side in ("left", "right")]


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        *(
            (names, ())
            for names in (("lip", "rip"), ("eyel", "eyer"), ("left_eye", "nose"), ("left_eye", "Right_eye"), ())
        ),
        *((tuple(map(str, numbers)), ()) for numbers in (range(5), range(2, 70))),
        (("nose", *_SIDES), ((1, 2), (3, 4), (5, 6), (7, 8))),  # a person of COCO
    ],
)
def test_partners(names: tuple[str, ...], pairs: tuple[tuple[int, int], ...]) -> None:
    assert flip_pairs(names) == pairs


@pytest.mark.parametrize("first", [0, 1])
def test_68_numbers_are_ibugs(first: int) -> None:
    names = tuple(f"{i + first:02}" for i in range(68))
    partner = dict(flip_pairs(names)) | {b: a for a, b in flip_pairs(names)}
    # figure 1 of the 300-W paper: points on the middle line, and some pairs
    assert {i for i in range(68) if i not in partner} == {8, 27, 28, 29, 30, 33, 51, 57, 62, 66}
    assert [partner[i] for i in (0, 7, 17, 21, 31, 36, 39, 41, 48, 59, 60, 67)] == [
        16, 9, 26, 22, 35, 45, 42, 46, 54, 55, 64, 65,
    ]  # fmt: skip
    assert pairs_by_name(names[::-1]) == {(b, a) for a, b in pairs_by_name(names)}


@given(st.lists(st.text(alphabet="lrLR_- eftighEye", min_size=1, max_size=9), unique=True))
def test_pairs_are_disjoint_and_ordered(names: list[str]) -> None:
    pairs = flip_pairs(names)
    indices = [i for pair in pairs for i in pair]
    assert len(set(indices)) == len(indices)
    assert all(0 <= a < b < len(names) for a, b in pairs)


def test_the_users_list_decides() -> None:
    wanted = Keypoints(("b", "a", "c"), ((0, 1),))
    assert choose_keypoints({"a"}, wanted, "x") is wanted
    assert choose_keypoints({"l", "r"}, None, "x") == Keypoints(("l", "r"), ((0, 1),))
    with refusing("unknown-keypoint", r"x: expected only the 3 names of the keypoint list, found also d"):
        choose_keypoints({"d"}, wanted, "x")


def test_lists(tmp_path: Path) -> None:
    path = tmp_path / "points.txt"
    path.write_text("\ufeffright eye\tleft eye\r\nleft eye\n\n nose \nMund, 口\n口\n", "utf-8")
    assert read_keypoints(path) == Keypoints(("right eye", "left eye", "nose", "Mund", "口"), ((0, 1), (3, 4)))
    path.write_text("right_eye\nleft_eye\n")
    assert read_keypoints(path) == Keypoints(("right_eye", "left_eye"), ((0, 1),))
    path.write_text("right_eye\nleft_eye\nnose,nose\n")  # a partner in the file: nothing is derived
    assert read_keypoints(path).flip_pairs == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one keypoint name"),
        ("a\nb\na\n", "line 3: expected each keypoint once, found a twice"),
        ("a,b\n", "expected the partner of a to be in the list, found b"),
        ("a,b\nb,c\nc\n", "b and c do not"),
        ("a,c\nb,c\nc\n", "b and c do not"),
        ("a,b,c\n", "line 1: expected a name"),
        (",b\n", "line 1: expected a name"),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "points.txt"
    path.write_text(text)
    with pytest.raises(OptionError, match=message):
        read_keypoints(path)


def test_lists_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_keypoints(tmp_path / "missing.txt")
    (tmp_path / "points.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(OptionError, match="UTF-8"):
        read_keypoints(tmp_path / "points.txt")


def test_keypoints_of_a_sample_are_limited() -> None:
    assert absent_keypoints(2, 3, "x").shape == (2, 3, 2)
    with refusing("keypoint-count"):
        absent_keypoints(1 << 12, (1 << 10) + 1, "x")


_SIZE = '"original_width": 200, "original_height": 100'
_VALUE = '"x": 10, "y": 20, "width": 30, "height": 40, "rectanglelabels": ["cat"]'
#: For each format: the text of a file, of an image, and of a keypoint.
_TEXTS = {
    "imglab": (
        "<dataset><images>{}</images></dataset>",
        "<image file='{}'><box top='1' left='1' width='5' height='5'>{}</box></image>",
        "<part name='{}' x='1' y='2'/>",
    ),
    "cvat": (
        "<annotations>{}</annotations>",
        "<image id='0' name='{}'><box label='cat' xtl='0' ytl='0' xbr='9' ybr='9' group_id='1'/>{}</image>",
        "<points label='{}' points='1,1' group_id='1'/>",
    ),
    "labelme": (
        "{}",
        '{{"version": "5", "imagePath": "{}", "shapes": [{{"label": "cat", "points": [[0, 0], [9, 9]], "group_id": 1, '
        '"shape_type": "rectangle"}}{}]}}',
        ', {{"label": "{}", "points": [[1, 1]], "group_id": 1, "shape_type": "point"}}',
    ),
    "labelstudio": (
        "[{}]",
        '{{"data": {{"image": "{}"}}, "annotations": [{{"result": ['
        f'{{{{{_SIZE}, "id": "r", "type": "rectanglelabels", "value": {{{{{_VALUE}}}}}}}}}'
        "{}]}}]}}",
        f', {{{{{_SIZE}, "id": "{{0}}", "parentID": "r", "type": "keypointlabels", '
        '"value": {{"x": 12, "y": 25, "width": 1, "keypointlabels": ["{0}"]}}}}',
    ),
}


@pytest.mark.parametrize("format", _TEXTS)
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["00", "01"], ["0", "1"], ["0", "1"]),
        (["00", "01"], ["0", "00"], ["0", "00", "01"]),  # they are two in one object
        (["00", "01"], ["00", "02"], ["00", "01", "02"]),
    ],
)
def test_numbers_with_and_without_zeros(
    format: str, first: list[str], second: list[str], expected: list[str], tmp_path: Path
) -> None:
    whole, image, point = _TEXTS[format]
    images = [image.format(f"{i}.jpg", "".join(map(point.format, some))) for i, some in enumerate((first, second))]
    files = {"x.json" if format == "labelstudio" else "x.xml": whole.format((", " * ("[" in whole)).join(images))}
    if format == "labelme":
        files = {f"{i}.json": text for i, text in enumerate(images)}
    got = found(write(tmp_path, {**files, **blank("0.jpg", "1.jpg")}))
    assert (got.source.name, got.keypoints) == (format, expected)
    note = "keypoints whose numbers have zeros before them are stored without: 00 as 0."
    assert (note in got.notes) == (expected == ["0", "1"])
    present = [[name for name, xy in zip(expected, each[0], strict=True) if xy != [None, None]] for each in got.points]
    assert present == ([expected] * 2 if expected == ["0", "1"] else [first, second])
