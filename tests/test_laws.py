"""The work of commands grows no faster than n log n with rows, shards and classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from laws import TIMES, assert_not_quadratic
from tensorstore_ds.annex.checking.search import near_pairs
from tensorstore_ds.annex.editing import edit, in_place, rows
from tensorstore_ds.annex.editing.in_place import Changes, InPlace, Replaced
from tensorstore_ds.format.arrays import CHUNK_SIZE
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.manifest import Manifest, Shard, SplitEntry
from tensorstore_ds.reading.store import Store
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.images import ImageIndex
from tensorstore_ds.sources.voc import source as voc
from tensorstore_ds.sources.voc.annotation import Annotation
from tensorstore_ds.sources.voc.layout import Layout, VocSplits
from tsds_cli import info

_ROWS = 8  # of a shard


def store_of_shards(count: int) -> Store:
    """A store of many shards of which no file is read."""
    fields = {"label": LabelField(classes=("a",))}
    split = SplitEntry(tuple(Shard(_ROWS, {}, 0, "") for _ in range(count)))
    manifest = Manifest("memmap", CHUNK_SIZE, fields, {"train": split})
    names = ("sha256", "meant", "origin")
    return Store(cast(Any, SimpleNamespace(path=Path("s"), manifest=manifest, **dict.fromkeys(names))))


@pytest.mark.slow
def test_statistics_of_many_classes(capsys: pytest.CaptureFixture[str]) -> None:
    def prepared(classes: int) -> Callable[[], object]:
        counts = {f"class {i}": i for i in range(classes)}
        return lambda: info._show_class_shares("label", "label", counts, classes, every=True)

    assert_not_quadratic(prepared, 1000)
    assert capsys.readouterr().out.count("█") > 0


def test_rows_of_whole_shards() -> None:
    def prepared(shards: int) -> Callable[[], object]:
        store = store_of_shards(shards)
        every = rows.Piece(store, "train", np.arange(shards * _ROWS))

        def work() -> None:
            groups = [*rows.shards_of([every], _ROWS)]
            assert len(groups) == shards
            assert all(group.kept(store.manifest.fields, "memmap").names for group in groups)

        return work

    assert_not_quadratic(prepared, 200)


def test_rows_of_a_split() -> None:
    """`len` is asked for with each sample that is read."""

    def prepared(shards: int) -> Callable[[], object]:
        split = store_of_shards(shards)["train"]
        return lambda: [len(split) for _ in range(shards)]

    assert_not_quadratic(prepared, 500)


def changed(shards: int, changes: Changes) -> InPlace:
    store = store_of_shards(shards)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(in_place, "require_whole_shards", lambda *_: None)  # there are no files
        return InPlace(store, store.manifest.fields, changes, lambda event: None)


def test_update_of_rows_in_many_shards() -> None:
    def prepared(shards: int) -> Callable[[], object]:
        replaced = Replaced(shards * _ROWS, [rows.Piece(store_of_shards(shards), "train", np.arange(0))])
        for row in range(0, shards * _ROWS, 2):
            replaced.put(row, (0, row), ["label"])

        def work() -> None:
            made = changed(shards, Changes(replaced={"train": replaced}))
            pieces = [cast(Any, each).changed["label"].pieces() for each in made._shards("train")]
            assert all(len([*each]) == _ROWS for each in pieces)

        return work

    assert_not_quadratic(prepared, 200)


def test_erasure_of_rows_in_many_shards() -> None:
    def prepared(shards: int) -> Callable[[], object]:
        made = changed(shards, Changes(erased={"train": np.arange(0, shards * _ROWS, 2)}))
        return lambda: [*made._shards("train")]

    assert_not_quadratic(prepared, 500)


def test_leftovers_among_many_shards() -> None:
    def prepared(shards: int) -> Callable[[], object]:
        listed = {*store_of_shards(shards).manifest.splits["train"].numbers}
        entries = [SimpleNamespace(name=f"{i:05d}", is_dir=lambda follow_symlinks: True) for i in range(shards)]
        return lambda: [in_place._is_unlisted(cast(Any, each), listed) for each in entries]

    assert_not_quadratic(prepared, 500)


def test_a_sample_of_many_classes() -> None:
    def prepared(count: int) -> Callable[[], object]:
        labels, order = np.arange(count), np.random.default_rng(0).permutation(count)
        return lambda: edit.first_of_each(labels[order], 1)

    assert_not_quadratic(prepared, 4000)


def test_voc_annotations_of_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, xml: str, ledger: object) -> Annotation:
        return Annotation(f"{int(xml[:-4]) % half:07d}.jpg", None, ())

    half = 0
    monkeypatch.setattr(voc, "read_annotation", read)

    def prepared(count: int) -> Callable[[], object]:
        xmls = [f"{i:07d}.xml" for i in range(count)]
        images = ImageIndex(f"{i:07d}.jpg" for i in range(count // 2))

        def work() -> None:
            nonlocal half
            half = count // 2
            splits = VocSplits({"train": np.arange(count)})
            voc.VocSource(tmp_path, SourceOptions())._match(xmls, images, Layout(), splits)
            assert len(splits.problems) == half

        return work

    assert_not_quadratic(prepared, 250)


def test_pairs_of_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the pairs that are compared, with the largest distance, for which most are."""
    compared = 0

    def counted(values: Any) -> Any:
        nonlocal compared
        compared += len(values)
        return original(values)

    original = np.bitwise_count
    monkeypatch.setattr("tensorstore_ds.annex.checking.search.np.bitwise_count", counted)
    each = []
    for count in (4000, 4000 * TIMES):
        compared = 0
        near_pairs(np.random.default_rng(0).integers(0, 2**63, count, np.uint64), 7)
        each.append(compared / count)
    assert each[1] < 4 * each[0]
