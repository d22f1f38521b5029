"""Whether a store, or a batch, has what an oracle says of its source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from journeys.data_sets import DataSet
from journeys.oracle import Facts, Sample, Thing, mode_of
from journeys.photographs import upright

#: Brings points (n, 2) x y of an image of (height, width) to where they are in the store.
Move = Callable[[np.ndarray, tuple[int, int]], np.ndarray]


def rows_of(split: tsds.Split) -> dict[str, int]:
    keys = [split["key"][row] for row in range(len(split))]
    rows = {key: row for row, key in enumerate(keys)}
    assert len(rows) == len(keys)
    return rows


def agree(store: tsds.Store, facts: Facts, data: DataSet, *, every: int = 1) -> None:
    """All annotations, keys and sizes of a store are those of its source, and so are the pixels of every n-th row."""
    assert set(store.splits) == set(facts.splits)
    for name, samples in facts.splits.items():
        split = store[name]
        rows = rows_of(split)
        assert rows.keys() == samples.keys(), name
        dataset = tsds.StoreDataset(store, name)
        for key, sample in samples.items():
            row = rows[key]
            annotations_agree(split, row, sample, facts)
            if row % every == 0:
                found = dataset[row]["image"].permute(1, 2, 0).numpy()
                assert found.shape[2] == 3 or mode_of(sample.path) == "L", key  # gray ones among others are RGB, too
                pixels = upright(sample.path, data.color or ("RGB" if found.shape[2] == 3 else "L"))
                assert tuple(split["size"][row]) == pixels.shape[:2], key
                assert np.array_equal(found, pixels), f"{key}: pixels"
                if data.encoding == "source":
                    assert split["image"][row] == sample.path.read_bytes(), key


def annotations_agree(split: tsds.Split, row: int, sample: Sample, facts: Facts, move: Move | None = None) -> None:
    """The label, the objects and the captions of a row. `move`: where its objects come to lie."""
    key = split["key"][row]
    if sample.things is None:
        label = -1 if sample.label is None else facts.classes.index(sample.label)
        assert split["label"][row] == label, key
        assert split.fields["label"].classes == tuple(facts.classes)
    else:
        height, width = upright(sample.path, "L").shape[:2]
        things_agree(
            split["objects"][row], sample.things, facts, move and (lambda points: move(points, (height, width)))
        )
    if "captions" in split.fields:
        assert list(split["captions"][row]) == sample.captions, key


def things_agree(
    objects: Mapping[str, Any],
    things: list[Thing],
    facts: Facts,
    move: Callable[[np.ndarray], np.ndarray] | None = None,
) -> None:
    """Objects of a sample, in their order."""
    stays, move = move is None, move or (lambda points: points)
    close = {"rtol": 1e-6, "atol": 2e-3}
    corners = move(np.array([thing.box for thing in things], np.float64).reshape(-1, 2)).reshape(-1, 4)
    np.testing.assert_allclose(objects["boxes"], corners, **close)
    if facts.classes:
        assert list(objects["labels"]) == [facts.classes.index(str(thing.name)) for thing in things]
    for flag in facts.flags:
        assert list(objects[flag]) == [thing.flags.get(flag, 0) for thing in things], flag
    if facts.points:
        nowhere = (np.nan, np.nan)
        points = [[thing.points.get(name, nowhere) for name in facts.points] for thing in things]
        moved = move(np.array(points, np.float64).reshape(-1, 2)).reshape(len(things), len(facts.points), 2)
        np.testing.assert_allclose(objects["keypoints"], moved, **close)
    if "visibility" in objects:
        seen = [[thing.seen.get(name, 0) for name in facts.points] for thing in things]
        assert objects["visibility"].tolist() == seen
    if "polygons" in objects:
        for found, thing in zip(objects["polygons"], things, strict=True):
            corners = [move(np.reshape(flat, (-1, 2))) for flat in thing.polygons]
            joined = [part for each in corners for part in (each, np.full((1, 2), np.nan))][:-1]
            np.testing.assert_allclose(found, np.concatenate([np.empty((0, 2)), *joined]), **close)
    if "rle" in objects and stays:
        for found, thing in zip(objects["rle"], things, strict=True):
            assert list(found) == list(thing.runs or [])
    if "area" in objects:
        # Without an outline, an area is that of the box.
        assert [float(area) for area in objects["area"]] == pytest.approx(
            [scaled(thing, move) for thing in things], rel=1e-5
        )


def scaled(thing: Thing, move: Callable[[np.ndarray], np.ndarray]) -> float:
    corners = move(np.array([[0.0, 0.0], [1.0, 1.0]]))
    width, height = corners[1] - corners[0]
    assert thing.area is not None
    return float(thing.area * width * height)


def statistics_agree(found: Mapping[str, Any], facts: Facts, data: DataSet) -> None:
    """What `tsds stats --json` says, against counts and NumPy."""
    for name, samples in facts.splits.items():
        assert found[name]["rows"] == len(samples)
        said = found[name]["statistics"]
        of_objects = any(sample.things is not None for sample in samples.values())
        if of_objects:
            counts = [len(sample.things or []) for sample in samples.values()]
            assert said["objects"]["total"] == sum(counts)
            assert (said["objects"]["min"], said["objects"]["max"]) == (min(counts), max(counts))
        if facts.classes:
            assert said["objects" if of_objects else "label"]["class_counts"] == facts.counts(name)
        modes = {data.color or mode_of(sample.path) for sample in samples.values()}
        images = [upright(sample.path, max(modes)) for sample in samples.values()]
        sizes = [image.shape[:2] for image in images]
        for axis, side in enumerate(("height", "width")):
            all_ = [size[axis] for size in sizes]
            assert (said["size"][side]["min"], said["size"][side]["max"]) == (min(all_), max(all_))
        flat = [image.reshape(-1, image.shape[2]).astype(np.float64) / 255 for image in images]
        total = sum(len(each) for each in flat)
        mean = sum(each.sum(0) for each in flat) / total
        std = np.sqrt(sum(((each - mean) ** 2).sum(0) for each in flat) / total)
        near = {"abs": 1e-9}
        assert said["image"]["mean"] == pytest.approx(mean.tolist(), **near), name
        assert said["image"]["std"] == pytest.approx(std.tolist(), **near), name


def same_pictures(samples: Mapping[str, Sample], data: DataSet) -> list[set[str]]:
    """Groups of keys whose images are equal as the store has them."""
    groups: dict[bytes, set[str]] = {}
    for key, sample in samples.items():
        pixels = upright(sample.path, data.color) if data.color else sample.path.read_bytes()
        content = pixels if isinstance(pixels, bytes) else str(pixels.shape).encode() + pixels.tobytes()
        groups.setdefault(hashlib.sha256(content).digest(), set()).add(key)
    return [group for group in groups.values() if len(group) > 1]


def content(sample: Sample, data: DataSet) -> tuple[Any, ...]:
    """Whatever a store keeps of a sample but its key."""
    pixels = (
        sample.path.read_bytes() if data.encoding == "source" else upright(sample.path, data.color or "RGB").tobytes()
    )
    return hashlib.sha256(pixels).digest(), sample.label, sample.things, sample.captions


def files_of(store: Path) -> dict[str, str]:
    """The SHA-256 of each file of a store."""
    return {
        path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }
