"""300-W's .pts files: points counted from 1, splits, EXIF, and every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelling_files import Has, case, check, found, reasons, write
from tensorstore_ds.annex.sources.pts import read_points
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources.ledger import Ledger

GOLDEN = b"version: 1\r\nn_points:  3\r\n{\r\n10.5 20\r\n30 40.25 \r\n21 55\r\n}\r\n"
TWO = b"version: 1\nn_points: 2\n{\n1 1\n2 2\n}"
POINTS = [[[9.5, 19], [29, 39.25], [20, 54]]]
CASES = {
    "files as 300-W has them": case(
        {"train/a_1.pts": GOLDEN, "train/a_1.png": "", "test/b.pts": GOLDEN, "test/b.jpg": "", "test/c.jpg": ""},
        keys={"test": ["test/b.jpg"], "train": ["train/a_1.png"]}, keypoints=["1", "2", "3"], points=[POINTS] * 2,
        values=["boxes", "keypoints"], boxes=[[[9.5, 19, 29, 54]]] * 2, left_out=[("test/c.jpg", "not-listed")],
    ),
    "folders that may be splits, as of iBUG": case(
        {f"{at}.{end}": GOLDEN for at in ("afw/1", "helen/testset/2", "helen/trainset/3") for end in ("pts", "jpg")},
        notes=[Has("the folders testset, trainset are not read as splits: for splits, name them test, train and")],
    ),
    "files that do not fit the others": case(
        {
            "a.pts": GOLDEN, "a.jpg": "", "b.pts": GOLDEN, "b.jpg": "", "c.pts": TWO, "c.jpg": "", "d.pts": GOLDEN,
            "e/a.pts": GOLDEN,
        },
        problems=[("d.pts", "no-image"), ("e/a.pts", "duplicate-key"), ("c.pts", "keypoint-count")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "pts")


def test_sixty_eight_points_are_mirrored_by_the_scheme_of_ibug(tmp_path: Path) -> None:
    lines = "".join(f"{i} {i}\n" for i in range(1, 69))
    pairs = found(write(tmp_path, {"a.pts": f"version: 1\nn_points: 68\n{{\n{lines}}}", "a.jpg": ""})).flip_pairs
    assert len(pairs) == 29 and (36, 45) in pairs  # the outer corners of the eyes, from 0


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (GOLDEN.replace(b"20", b"x"), "annotation", "line 4: expected two numbers"),
        (GOLDEN.replace(b"20", b"nan"), "annotation", "line 4"),
        (GOLDEN.replace(b"20", b"1e99"), "annotation", "line 4: expected a point within"),
        (GOLDEN.replace(b": 1", b": 2"), "annotation", "line 1: expected version: 1"),
        (GOLDEN.replace(b"}", b""), "annotation", "line 6"),
        (b"", "annotation", "line 1"),
        (GOLDEN.replace(b"  3", b"4"), "keypoint-count", "4, found 3"),
    ],
)
def test_bad_files(data: bytes, reason: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read_points(data, "a.pts", Ledger(Path()))
    assert reasons(caught.value.problems) == [("a.pts", reason)]
