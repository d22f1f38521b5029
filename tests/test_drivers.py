"""All ways to make a store of the same samples make the same bytes, by one process or several, at once or in turns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from stores import Samples, class_folders, contents, detections, png_bytes
from tensorstore_ds import ConvertOptions
from test_source_contract import ALL, shown

CLASSES = ("ant", "bee")
RNG = np.random.default_rng(0)


def pixels(*shape: int) -> bytes:
    return png_bytes(RNG.integers(0, 256, shape, np.uint8))


#: Options of a conversion, and the files that are others than 16 gray images of 6 x 5 pixels.
KINDS: dict[str, tuple[Mapping[str, Any], Mapping[str, bytes]]] = {
    "one shard": ({}, {}),
    "pixels": ({"shard_nbytes": 100}, {}),
    "zarr": ({"shard_nbytes": 100, "layout": "zarr"}, {}),
    "jpeg": ({"shard_nbytes": 999, "encoding": "jpeg", "size": (8, 8)}, {"test/ant/1.png": pixels(9, 4)}),
    "files": ({"shard_nbytes": 200, "encoding": "source"}, {"train/bee/2.png": pixels(30, 40)}),
    "sizes": ({"shard_nbytes": 100, "encoding": "raw"}, {f"train/ant/{i}.png": pixels(i, 9) for i in (1, 3)}),
    "skipped": ({"shard_nbytes": 100, "on_error": "skip"}, {"train/ant/1.png": b"no image", "test/bee/3.png": b""}),
    "empty split": ({"on_error": "skip"}, {f"test/{label}/{i}.png": b"" for label in CLASSES for i in range(4)}),
    "gray and color": ({"shard_nbytes": 100}, {"test/bee/1.png": pixels(6, 5, 3), "notes.doc": b""}),
    "divided": ({"split_into": {"train": 0.7, "val": 0.3}, "seed": 5, "classes": ("bee", "ant")}, {}),
    "labels of names": ({"shard_nbytes": 100, "label_from": r"(ee|nt)/\d"}, {}),
    "tiles": ({"shard_nbytes": 30, "cut": tsds.conversion.ImageTiles(4, overlap=0)}, {}),
    "files of sizes": ({"shard_nbytes": 200}, {"test/bee/1.png": pixels(6, 5, 3), "test/bee/3.png": pixels(9, 9)}),
}
#: A Writer and an iterator end shards of these by the samples so far.
IN_ONE = {f"{kind}, one shard": KINDS[kind] for kind in ("jpeg", "files", "skipped")}
KINDS |= {name: ({**options, "shard_nbytes": 2**30}, changed) for name, (options, changed) in IN_ONE.items()}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorstore_ds.conversion.plan.BLOCK_ROWS", 3)


def samples(source: Path, split: str) -> list[dict[str, Any]]:
    paths = sorted((source / split).rglob("*.png"))
    return [{"image": path, "label": path.parent.name, "key": path.relative_to(source).as_posix()} for path in paths]


def by_convert(source: Path, out: Path, options: Mapping[str, Any], workers: int = 0) -> None:
    tsds.convert(source, out, ConvertOptions(**{"workers": workers, **options}))


def by_two_workers(source: Path, out: Path, options: Mapping[str, Any]) -> None:
    by_convert(source, out, options, workers=2)


def by_iterators(source: Path, out: Path, options: Mapping[str, Any]) -> None:
    splits = {split: iter(samples(source, split)) for split in ("train", "test")}
    tsds.convert(splits, out, ConvertOptions(classes=CLASSES, **options))


def by_writer(source: Path, out: Path, options: Mapping[str, Any]) -> None:
    with tsds.Writer(out, classes=CLASSES, **options) as writer:
        for one, other in zip(samples(source, "test"), samples(source, "train"), strict=True):
            writer.append("test", **one)
            writer.append("train", lambda other=other: other)
    assert writer.summary is not None and writer.summary.nbytes == tsds.open(out).nbytes


def by_tasks(source: Path, out: Path, options: Mapping[str, Any], tasks: int = 4, workers: int = 0) -> None:
    planned = tsds.clusters.plan(source, out, ConvertOptions(workers=workers, **options))
    order = random.Random(tasks).sample(range(tasks), tasks)
    done = [tsds.clusters.convert_task(out, task, tasks, workers=workers) for task in order]
    assert planned.is_new and sum(each.shards for each in done) == len(planned.shards)
    assert planned.samples == sum(each.samples for each in done)
    tsds.clusters.commit(out)


def by_many_tasks(source: Path, out: Path, options: Mapping[str, Any]) -> None:
    by_tasks(source, out, options, tasks=100)


def by_tasks_of_workers(source: Path, out: Path, options: Mapping[str, Any]) -> None:
    by_tasks(source, out, options, tasks=1, workers=2)


CASES = [
    *((kind, way) for way in (by_tasks, by_many_tasks) for kind in KINDS),
    *((kind, way) for way in (by_iterators, by_writer) for kind in ("pixels", "zarr", "empty split", *IN_ONE)),
    *((kind, way) for way in (by_two_workers, by_tasks_of_workers) for kind in ("skipped", "gray and color")),
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """A source of a kind, and its store by one process."""
    made: dict[str, tuple[Path, Path]] = {}

    def make(kind: str) -> tuple[Path, Path]:
        if kind not in made:
            source = class_folders(tmp_path_factory.mktemp("kind") / "src")
            for name, data in KINDS[kind][1].items():
                (source / name).write_bytes(data)
            by_convert(source, source.with_name("one.tsds"), KINDS[kind][0])
            made[kind] = source, source.with_name("one.tsds")
        return made[kind]

    return make


@pytest.mark.slow
@pytest.mark.drawn(10)
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_every_way(
    kind: str, way: Callable[..., None], expected: Callable[[str], tuple[Path, Path]], tmp_path: Path, out: Path
) -> None:
    source, one = expected(kind)
    way(source, out, KINDS[kind][0])
    origin = ("source", "source_format")
    assert contents(out, *origin) == contents(one, *origin)
    assert tsds.verify(out) == [] and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("options", [{}, {"encoding": "jpeg"}, {"layout": "zarr", "shard_nbytes": 1500}])
def test_every_way_of_samples_without_keys(tmp_path: Path, options: Mapping[str, Any]) -> None:
    """With boxes and keypoints, which need no image of one size."""
    given, options = detections(9), {"classes": ("a", "b"), **options}
    tsds.convert(Samples(given), tmp_path / "one.tsds", ConvertOptions(workers=0, **options))
    tsds.convert(Samples(given), tmp_path / "two.tsds", ConvertOptions(workers=2, **options))
    tsds.convert(iter(given), tmp_path / "iterator.tsds", ConvertOptions(**options))
    with tsds.Writer(tmp_path / "writer.tsds", **options) as writer:
        for sample in given:
            writer.append("train", **sample)
    found = {path.stem: contents(path, "source", "source_format") for path in tmp_path.iterdir()}
    assert len(found) == 4 and all(each == found["one"] for each in found.values())
    assert len(tsds.open(tmp_path / "one.tsds").manifest.splits["train"].shards) == (3 if "layout" in options else 1)


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", ["tiles", "sizes", "gray and color", "files of sizes"])
def test_stopped_and_begun_again(kind: str, expected: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    """The notes are those of one run, and shards that were begun after a survey are used again."""
    source, one = expected(kind)
    options, resumed = ConvertOptions(workers=0, **KINDS[kind][0]), []
    for after in range(3, 100, 8):
        count = itertools.count(1)

        def stop(progress: tsds.conversion.Progress, after: int = after, count: Iterator[int] = count) -> None:
            if next(count) == after:
                raise KeyboardInterrupt

        out = tmp_path / f"{after}.tsds"
        try:
            notes = tsds.convert(source, out, options, progress=stop).notes
            break
        except KeyboardInterrupt:
            summary = tsds.convert(source, out, options)
        resumed.append((summary.resumed, [note for note in summary.notes if "converted again" not in note]))
        assert contents(out) == contents(one), after
    assert max(resumed)[0] >= 2
    assert all(found == list(notes) for _, found in resumed)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "more", [{}, pytest.param({"encoding": "jpeg"}, marks=[pytest.mark.slow, pytest.mark.drawn(4)])]
)
def test_every_format(name: str, more: Mapping[str, Any], tmp_path: Path, out: Path) -> None:
    """What a scan has found comes through a plan."""
    source = shown(name, tmp_path / "src")
    options = {"shard_nbytes": 1, "on_error": "skip", "fit": tsds.Fit((8, 8), "stretch"), **more}
    by_convert(source, tmp_path / "one.tsds", options)
    by_tasks(source, out, options, tasks=3)
    assert contents(out) == contents(tmp_path / "one.tsds")
