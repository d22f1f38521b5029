from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stores import detections, store_of
from tensorstore_ds.annex.measuring.delivery import agree, marks_of, marks_of_images, marks_of_objects, marks_of_split

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (9, 5, 3, 1), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
STORED = marks_of({"image": IMAGES, "label": LABELS}, pixels=True)


@pytest.mark.parametrize(
    ("order", "rolled", "whole", "among"),
    [
        ([3, 1, 4, 0, 5, 8, 2, 6, 7], 0, True, True),  # any order of all samples
        ([*range(8)], 0, False, True),
        ([*range(9), 3], 0, False, False),  # one is repeated
        ([*range(8), 3], 0, False, False),
        ([*range(9)], 1, False, False),  # labels that went to other images
        ([0, 1], 1, False, False),
        ([], 0, False, True),
    ],
)
def test_marks_tell_whether_all_samples_are_delivered_once(
    order: list[int], rolled: int, whole: bool, among: bool
) -> None:
    assert len(set(STORED.tolist())) == 9
    found = marks_of({"image": IMAGES[order], "label": np.roll(LABELS, rolled)[order]}, pixels=True)
    assert (agree(found, STORED, whole=True), agree(found, STORED, whole=False)) == (whole, among)
    assert agree(found[:0], STORED[:0], whole=True) and not agree(STORED[:1], found[:0], whole=False)


@given(st.integers(1, 40), st.integers(0, 39), st.integers(1, 255))
def test_a_pixel_that_differs_changes_the_mark(width: int, place: int, change: int) -> None:
    images = np.arange(width, dtype=np.uint8).reshape(1, 1, width, 1)
    other = images.copy()
    other[0, 0, place % width, 0] ^= change
    assert marks_of_images(images) != marks_of_images(other)
    assert not (marks_of_images(IMAGES) == marks_of_images(IMAGES[:, ::-1].copy())).any()  # in other places


def test_objects_count_in_any_order_within_their_image() -> None:
    offsets, labels = np.array([0, 2, 2, 5]), np.array([4, 1, 0, 0, 2])
    found = marks_of_objects(offsets, labels)
    assert found.tolist() == marks_of_objects(offsets, np.array([1, 4, 2, 0, 0])).tolist()
    assert found.tolist() != marks_of_objects(np.array([0, 1, 2, 5]), labels).tolist()
    assert marks_of_objects(offsets, None).tolist() != found.tolist()
    assert found[1] == 0


@pytest.mark.parametrize("pixels", [True, False])
def test_the_marks_of_a_split_are_those_of_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pixels: bool
) -> None:
    monkeypatch.setattr("tensorstore_ds.annex.measuring.delivery._PIECE_NBYTES", 1000)
    samples = detections(11)
    split = store_of(tmp_path / "s.tsds", samples, ("a", "b"))["train"]
    found = marks_of_split(split, {"image": "image", "objects": "objects"}, pixels=pixels)
    images, labels = ([sample[name] for sample in samples] for name in ("image", "labels"))
    batch = {"image": np.stack(images), "offsets": np.cumsum([0, *map(len, labels)]), "labels": np.concatenate(labels)}
    assert agree(marks_of(batch, pixels=pixels), found, whole=True)
