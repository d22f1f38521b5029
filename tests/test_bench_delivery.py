from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from stores import detections, store_of
from tensorstore_ds.annex.measuring.delivery import agree, marks_of, marks_of_images, marks_of_objects, marks_of_split

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (9, 5, 3, 1), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
STORED = marks_of({"image": IMAGES, "label": LABELS}, pixels=True)


def marks(order: list[int], labels: NDArray[np.int64] = LABELS) -> NDArray[np.uint64]:
    return marks_of({"image": IMAGES[order], "label": labels[order]}, pixels=True)


def test_any_order_of_all_samples_agrees() -> None:
    assert len(set(STORED.tolist())) == 9
    assert agree(marks([3, 1, 4, 0, 5, 8, 2, 6, 7]), STORED, whole=True)


@pytest.mark.parametrize("order", [[*range(8)], [*range(9), 3], [*range(8), 3]])
def test_a_sample_that_is_missing_or_repeated_does_not(order: list[int]) -> None:
    assert not agree(marks(order), STORED, whole=True)
    assert agree(marks(order), STORED, whole=False) == (len(order) == 8)


def test_labels_that_went_to_other_images_do_not() -> None:
    moved = marks([*range(9)], np.roll(LABELS, 1))
    assert not agree(moved, STORED, whole=True) and not agree(moved[:2], STORED, whole=False)
    assert agree(
        marks_of({"image": IMAGES, "label": np.roll(LABELS, 3)}, pixels=False),
        marks_of({"image": IMAGES, "label": LABELS}, pixels=False),
        whole=True,
    )  # without pixels, labels are the same in another order


def test_nothing_is_not_among_nothing() -> None:
    none = np.zeros(0, np.uint64)
    assert agree(none, none, whole=True) and not agree(STORED[:1], none, whole=False)


@given(st.integers(1, 40), st.integers(0, 39), st.integers(1, 255))
def test_a_pixel_that_differs_changes_the_mark(width: int, place: int, change: int) -> None:
    images = np.arange(width, dtype=np.uint8).reshape(1, 1, width, 1)
    other = images.copy()
    other[0, 0, place % width, 0] ^= change
    assert marks_of_images(images) != marks_of_images(other)


def test_pixels_that_change_places_change_the_mark() -> None:
    turned = IMAGES[:, ::-1].copy()
    assert not (marks_of_images(IMAGES) == marks_of_images(turned)).any()


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
    counts = np.cumsum([0, *(len(sample["labels"]) for sample in samples)])
    batch = {
        "image": np.stack([sample["image"] for sample in samples]),
        "offsets": counts,
        "labels": np.concatenate([sample["labels"] for sample in samples]),
    }
    assert agree(marks_of(batch, pixels=pixels), found, whole=True)
