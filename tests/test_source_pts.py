"""300-W's .pts files: points counted from 1, splits, EXIF, and every refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import field, keys, objects, reasons, scan, write
from tensorstore_ds.annex.sources.pts import read_points
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources.ledger import Ledger

GOLDEN = b"version: 1\r\nn_points:  3\r\n{\r\n10.5 20\r\n30 40.25 \r\n21 55\r\n}\r\n"


def test_a_file_as_300w_has_it(tmp_path: Path) -> None:
    files = {"train/a_1.pts": GOLDEN, "train/a_1.png": "", "test/b.pts": GOLDEN, "test/b.jpg": "", "test/c.jpg": ""}
    source, contents = scan(write(tmp_path, files), "pts")
    assert keys(source, contents) == {"train": ["train/a_1.png"], "test": ["test/b.jpg"]}
    assert (field(contents).classes, field(contents).keypoints) == ((), ("1", "2", "3"))
    found = objects(source, contents)
    np.testing.assert_array_equal(found["keypoints"], [[[9.5, 19], [29, 39.25], [20, 54]]])
    np.testing.assert_array_equal(found["boxes"], [[9.5, 19, 29, 54]])
    assert reasons(contents.left_out) == [("test/c.jpg", "not-listed")]


def test_sixty_eight_points_are_mirrored_by_the_scheme_of_ibug(tmp_path: Path) -> None:
    lines = "".join(f"{i} {i}\n" for i in range(1, 69))
    write(tmp_path, {"a.pts": f"version: 1\nn_points: 68\n{{\n{lines}}}", "a.jpg": ""})
    pairs = field(scan(tmp_path, "pts")[1]).flip_pairs
    assert len(pairs) == 29
    assert (36, 45) in pairs  # the outer corners of the eyes, from 0


def test_points_are_those_of_the_image_as_it_is_shown(tmp_path: Path) -> None:
    write(tmp_path, {"in/a.pts": GOLDEN})
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (60, 40)).save(tmp_path / "in/a.jpg", exif=exif)
    tsds.convert(tmp_path / "in", tmp_path / "out.tsds", tsds.ConvertOptions(workers=0))
    train = tsds.open(tmp_path / "out.tsds")["train"]
    assert train["image"][0].shape == (60, 40, 3)
    np.testing.assert_array_equal(train[0]["objects"]["keypoints"], [[[9.5, 19], [29, 39.25], [20, 54]]])


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


def test_files_that_do_not_fit_the_others(tmp_path: Path) -> None:
    two = b"version: 1\nn_points: 2\n{\n1 1\n2 2\n}"
    files = {"a.pts": GOLDEN, "a.jpg": "", "b.pts": GOLDEN, "b.jpg": "", "c.pts": two, "c.jpg": "", "d.pts": GOLDEN}
    files["e/a.pts"] = GOLDEN
    _, contents = scan(write(tmp_path, files), "pts")
    refused = [("d.pts", "no-image"), ("e/a.pts", "duplicate-key"), ("c.pts", "keypoint-count")]
    assert reasons(contents.problems) == refused


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1))
def test_any_points_are_read_less_one(points: list[tuple[float, float]]) -> None:
    lines = "".join(f"{x!r} {y!r}\n" for x, y in points)
    data = f"version: 1\nn_points: {len(points)}\n{{\n{lines}}}\n".encode()
    assert read_points(data, "a.pts", Ledger(Path())) == [(x - 1, y - 1) for x, y in points]
