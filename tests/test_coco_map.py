"""Average precision by pycocotools, compared with an implementation in a few lines of NumPy."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorstore_ds.annex.training.coco_map import coco_map, need_pycocotools
from tensorstore_ds.errors import OptionError

pytest.importorskip("pycocotools")
THRESHOLDS = np.linspace(0.5, 0.95, 10)


def overlap(a: NDArray[Any], b: NDArray[Any], *, crowd: bool) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    area = (a[2] - a[0]) * (a[3] - a[1])
    whole = area if crowd else area + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return float(width * height / whole)


def of_a_class(found: NDArray[Any], truth: NDArray[Any], threshold: float) -> tuple[float, float]:
    """Average precision of one class, with 101 points of recall, as COCO has it; and its recall."""
    total = int((truth[:, 2] == 0).sum())
    taken: set[int] = set()
    hits = []
    # COCO sorts within an image, and keeps 100 of each.
    for row in found[np.argsort(-found[:, 2], kind="stable")]:
        best, chosen = threshold, -1
        for i in np.flatnonzero(truth[:, 0] == row[0]):
            if truth[i, 2] == 0 and i not in taken:
                iou = overlap(row[3:], truth[i, 3:], crowd=False)
                if iou >= best:
                    best, chosen = iou, int(i)
        if chosen >= 0:
            taken.add(chosen)
            hits.append(1)
        elif not any(
            truth[i, 2] and overlap(row[3:], truth[i, 3:], crowd=True) >= threshold
            for i in np.flatnonzero(truth[:, 0] == row[0])
        ):
            hits.append(0)
    right = np.cumsum(hits)
    recall, precision = right / total, right / np.arange(1, len(hits) + 1)
    points = [precision[recall >= r].max(initial=0.0) for r in np.linspace(0, 1, 101)]
    return float(np.mean(points)), float(recall[-1])


def drawn(seed: int, classes: int = 3) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Objects, some of them ignored, and detections near them and elsewhere, with scores that all differ."""
    rng = np.random.default_rng(seed)

    def boxes(count: int) -> NDArray[Any]:
        corner = rng.uniform(0, 80, (count, 2))
        return np.hstack([corner, corner + rng.uniform(5, 40, (count, 2))])

    count = 40
    rows, labels = rng.integers(0, 6, count), rng.integers(0, classes, count)
    ignored = rng.random(count) < 0.2
    objects = np.column_stack([rows, labels, ignored, boxes(count)])
    near = objects[rng.integers(0, count, 50)].copy()
    near[:, 3:] += rng.normal(0, 2, (50, 4))
    near[:, 1] = np.where(rng.random(50) < 0.15, rng.integers(0, classes, 50), near[:, 1])
    far = np.column_stack([rng.integers(0, 7, 20), rng.integers(0, classes, 20), np.zeros(20), boxes(20)])
    detections = np.vstack([near, far])
    detections[:, 2] = rng.permutation(len(detections)) / len(detections)
    good = (detections[:, 3:5] < detections[:, 5:]).all(1)
    return detections[good].astype(np.float32), objects.astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_precision_of_the_definition(seed: int) -> None:
    detections, objects = drawn(seed)
    found = coco_map(detections, objects, 3)
    own = [[each[each[:, 1] == c] for each in (detections, objects)] for c in range(3)]
    table, recall = np.moveaxis([[of_a_class(*each, t) for t in THRESHOLDS] for each in own], -1, 0)
    np.testing.assert_allclose(found.ap, table.mean(1), atol=1e-6)
    np.testing.assert_allclose(found.ap50, table[:, 0], atol=1e-6)
    expected = {"map": table.mean(), "map50": table[:, 0].mean(), "map75": table[:, 5].mean(), "mar": recall.mean()}
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert found.objects.tolist() == [int(((objects[:, 1] == c) & (objects[:, 2] == 0)).sum()) for c in range(3)]
    assert 0 < found.metrics["map"] < found.metrics["map50"] < 1


def test_an_ignored_object_need_not_be_found_and_hides_detections() -> None:
    one = np.array([[0, 0, 0, 10, 10, 30, 30]], np.float32)
    ignored = np.array([[0, 0, 1, 50, 50, 90, 90]], np.float32)
    right = np.array([[0, 0, 0.5, 10, 10, 30, 30]], np.float32)
    inside = np.array([[0, 0, 0.9, 55, 55, 70, 70]], np.float32)
    both = np.concatenate([one, ignored])
    assert coco_map(right, both, 1).metrics["map"] == pytest.approx(1)
    assert coco_map(np.concatenate([inside, right]), both, 1).metrics["map"] == pytest.approx(1)
    assert coco_map(np.concatenate([inside, right]), one, 1).metrics["map"] == pytest.approx(0.5)


def test_nothing_found_nothing_to_find_and_a_class_without_objects(capsys: pytest.CaptureFixture[str]) -> None:
    _, objects = drawn(2, classes=2)
    none = np.zeros((0, 7), np.float32)
    assert set(coco_map(none, objects, 3).metrics.values()) == {0.0}
    assert all(map(math.isnan, coco_map(objects, none, 3).metrics.values()))
    assert all(map(math.isnan, coco_map(none, none, 3).metrics.values()))
    detections = objects[objects[:, 2] == 0].copy()
    detections[:, 2] = 0.5
    detections = np.concatenate([detections, [[0, 3, 0.9, 0, 0, 9, 9]]]).astype(np.float32)
    found = coco_map(detections, objects, 4)
    assert found.metrics == pytest.approx({"map": 1, "map50": 1, "map75": 1, "mar": 1})
    assert np.isnan(found.ap).tolist() == [False, False, True, True]
    assert capsys.readouterr().out == ""  # nothing is printed


def test_without_pycocotools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.cocoeval", None)
    with pytest.raises(OptionError, match=r"expected pycocotools .* `task=\"multilabel\"`"):
        need_pycocotools()
