"""The splits of a run and their loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import tensorstore_ds as tsds
from small_stores import image_field, label_field, write_store
from stores import png_bytes, store_of
from tensorstore_ds.annex.training import data
from tensorstore_ds.annex.training.data import (
    balance_weights,
    eval_loader,
    eval_split_of,
    image_shape,
    split_of,
    stored_size,
    train_loader,
    unlabelled_samples,
    unseen_classes,
)
from tensorstore_ds.annex.training.options import Balance
from tensorstore_ds.annex.training.process import Ranks
from tensorstore_ds.annex.training.tasks import TASKS, Classification, MultiLabel
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.page_cache.residency import requirement
from training_stores import annotated, one_line, small

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES = ("ant", "bee", "cat")
TASK = Classification(CLASSES, label_field="label")


def numbered(path: Path, **splits: list[int]) -> tsds.Store:
    """A store whose images are filled with their row, 4 x 6 pixels, with the labels of each split."""
    arrays = {}
    for name, labels in splits.items():
        pixels = np.empty((len(labels), 4, 6, 1), np.uint8)
        pixels[...] = np.arange(len(labels))[:, None, None, None]
        arrays[name] = (name, len(labels), {"image": pixels, "label": np.array(labels, np.int64)})
    fields = {"image": image_field(np.zeros((1, 4, 6, 1), np.uint8)), "label": label_field(*CLASSES)}
    return tsds.open(write_store(path, fields, *arrays.values()))


def alone(rank: int = 0, size: int = 1) -> Ranks:
    return Ranks(rank, size, torch.device("cpu"))


def rows_of(loader: tsds.DataLoader) -> list[int]:
    return [row for batch in loader for row in batch["image"][:, 0, 0, 0].tolist()]


def refused(call: Any) -> str:
    with pytest.raises(OptionError) as error:
        call()
    return one_line(error.value)


# --- splits ------------------------------------------------------------------------------------------------------


def test_which_split_is_evaluated_on(tmp_path: Path) -> None:
    some = [0, 1]
    store = numbered(tmp_path / "s.tsds", test=some, validation=some, valid=[], train=some, other=some)

    def chosen(**options: str) -> str | None:
        found = eval_split_of(store, small(**options), TASK)
        return None if found is None else found.name

    assert chosen() == "validation"  # `valid` comes first, and has no samples
    assert chosen(train_split="validation") == "test"
    assert chosen(eval_split="other") == "other"
    assert chosen(eval_split="train") == "train"
    assert eval_split_of(numbered(tmp_path / "t.tsds", train=some, other=some), small(), TASK) is None
    both = eval_split_of(numbered(tmp_path / "v.tsds", train=some, test=some, val=some), small(), TASK)
    assert both is not None and both.name == "val"
    text = refused(lambda: chosen(eval_split="valid"))
    assert text == "`eval_split`: expected a split with samples, found valid with none."
    text = refused(lambda: split_of(store, "tset", "train_split"))
    assert text == "`train_split`: expected one of test, validation, valid, train, other, found tset."
    assert split_of(store, "train", "train_split").name == "train"


def test_a_split_without_labels_is_not_evaluated_on(tmp_path: Path) -> None:
    store = numbered(tmp_path / "s.tsds", train=[0, 1], val=[-1, -1], test=[-1, 2])
    found = eval_split_of(store, small(), TASK)
    assert found is not None and found.name == "test"
    text = refused(lambda: eval_split_of(store, small(eval_split="val"), TASK))
    expected = "`eval_split`: expected samples with a label to evaluate on, found none in val. Choose another split."
    assert text == expected
    assert unseen_classes(TASK, store["train"], store["test"]) == ["cat"]
    assert [unlabelled_samples(TASK, store[name]) for name in ("train", "val", "test")] == [0, 2, 1]


# --- images ------------------------------------------------------------------------------------------------------


def images(*shapes: tuple[int, ...], dtype: Any = np.uint8, count: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"image": rng.integers(0, 255, shapes[i % len(shapes)]).astype(dtype), "label": i % 2}
        for i in range(max(count, len(shapes)))
    ]


@pytest.mark.parametrize(
    ("samples", "options", "expected", "stored"),
    [
        (images((6, 9, 3)), {}, (6, 9, 3), True),
        (images((6, 9, 4)), {}, (6, 9, 4), True),
        (images((6, 9, 1), dtype=np.float32), {}, (6, 9, 1), True),
        (images((6, 9, 1)), {"encoding": "jpeg"}, (6, 9, 1), False),
        (images((6, 9, 3), (20, 10, 3)), {"encoding": "jpeg", "size": (8, 10)}, (8, 10, 3), True),
    ],
)
def test_the_shape_of_all_images(tmp_path: Path, samples: Any, options: Any, expected: Any, stored: bool) -> None:
    store = store_of(tmp_path / "s.tsds", samples, CLASSES, **options)
    assert image_shape(store["train"]) == expected
    assert stored_size(store, store["train"]) == (expected[:2] if stored else None)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(7, 5)] * 3, (7, 5)),
        ([(7, 5), (5, 7)], (16, 16)),
        ([(70, 50), (40, 60), (90, 80)], (48, 48)),
        ([(300, 400), (400, 300), (10, 20)], (224, 224)),
    ],
)
def test_files_of_several_sizes_become_squares(tmp_path: Path, sizes: Any, expected: tuple[int, int]) -> None:
    for i, size in enumerate(sizes):
        (tmp_path / "source" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / "ab"[i % 2] / f"{i}.png").write_bytes(png_bytes(np.full((*size, 3), i, np.uint8)))
    tsds.convert(tmp_path / "source", tmp_path / "s.tsds", tsds.ConvertOptions(encoding="source", workers=0))
    store = tsds.open(tmp_path / "s.tsds")
    assert image_shape(store["train"]) == (*expected, 3) and stored_size(store, store["train"]) is None


def test_images_that_are_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", images((4, 4, 1), dtype=np.int16), CLASSES)
    text = refused(lambda: image_shape(store["train"]))
    expected = "expected uint8, uint16, float16 or float32"
    assert text == f"train/image: {expected}, found int16. Convert such images."
    store = store_of(tmp_path / "t.tsds", images((4, 4, 1), (5, 4, 1), dtype=np.int16), CLASSES)
    assert refused(lambda: image_shape(store["train"])) == text
    for name in ("picture", "image"):
        fields = {name: {"kind": "array", "dtype": "uint8", "shape": [3]}}
        other = write_store(tmp_path / name, fields, ("train", 2, {name: np.zeros((2, 3), np.uint8)}))
        text = refused(lambda other=other: image_shape(tsds.open(other)["train"]))
        assert text == f"train: expected images in a field image, found {name} (array). Convert images."


# --- loaders -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    path = tmp_path_factory.mktemp("data") / "s.tsds"
    return numbered(path, train=[0] * 30 + [1] * 8 + [2] * 2, test=[0] * 7, few=[0, 2])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(["test", "few"]))
def test_every_sample_is_evaluated_once(store: tsds.Store, size: int, batch_size: int, split: str) -> None:
    seen: list[int] = []
    counted = 0
    dataset = tsds.StoreDataset(store.path, split, fields=TASK.fields)
    for rank in range(size):
        loader, weight = eval_loader(dataset, small(batch_size=batch_size), alone(rank, size))
        rows = rows_of(loader)
        assert rows and rows == sorted(rows)  # a rank without samples has one that does not count
        assert weight in (0, 1) and (weight == 1 or len(rows) == 1)
        seen += rows * weight
        counted += weight
    assert sorted(seen) == list(range(len(dataset)))
    assert counted == min(size, len(dataset))


def identity() -> Compose:
    return Compose([])


def loader_of(store: tsds.Store, task: Any = TASK, **options: Any) -> tuple[tsds.DataLoader, str]:
    return train_loader(store, task, small(**options), identity(), alone())


def test_every_sample_is_learned_from_once_an_epoch(store: tsds.Store) -> None:
    loader, order = loader_of(store, batch_size=16)
    first, second = rows_of(loader), rows_of(loader)
    assert order == "shuffled"
    assert sorted(first) == sorted(second) == list(range(40)) and first != second
    assert [len(batch["label"]) for batch in loader] == [16, 16, 8]
    assert rows_of(loader_of(store, seed=1)[0]) != first == rows_of(loader_of(store, num_threads=3)[0])


def test_batches_pass_through_the_transform_with_their_rows(store: tsds.Store) -> None:
    calls: list[tuple[list[int], int]] = []

    class Noted(torch.nn.Module):
        def forward(self, batch: Any, rows: Any, epoch: int) -> Any:
            assert batch["image"][:, 0, 0, 0].tolist() == list(rows)
            calls.append((list(rows), epoch))
            return batch

    loader, _ = train_loader(store, TASK, small(batch_size=16), Noted(), alone())  # type: ignore[arg-type]
    assert rows_of(loader) + rows_of(loader) == [row for rows, _ in calls for row in rows]
    assert [epoch for _, epoch in calls] == [0, 0, 0, 1, 1, 1]


def test_a_batch_that_is_larger_than_the_split(store: tsds.Store) -> None:
    assert len(loader_of(store, batch_size=40)[0]) == 1
    text = refused(lambda: loader_of(store, batch_size=41))
    expected = "`batch_size`: expected at most 40, the samples of the split train, found 41."
    assert text == f"{expected} Use `batch_size=40` or less."
    text = refused(lambda: train_loader(store, TASK, small(batch_size=14), identity(), alone(1, 3)))
    assert "expected at most 13, the samples of the split train for each of 3 ranks, found 14." in text
    text = refused(lambda: train_loader(store, TASK, small(batch_size=1, train_split="few"), identity(), alone(2, 3)))
    assert "expected at most 0" in text and "`batch_size=1` or less" in text


@pytest.mark.parametrize("rows", [4, 2])
def test_what_does_not_fit_in_memory_is_shuffled_by_blocks(
    store: tsds.Store, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    asked: list[Any] = []

    def fits(found: tsds.Store, *, splits: str, fields: tuple[str, ...]) -> bool:
        asked.append((found.path, splits, fields))
        return False

    monkeypatch.setattr(data, "fits", fits)
    nbytes, _ = requirement(store, [("train", "image"), ("train", "label")])
    block = -(-rows * nbytes // 40)
    monkeypatch.setattr(data, "memory_limit", lambda: 2 * 8 * 4 * block)  # windows of four blocks for each of two ranks
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(data, "BLOCK_NBYTES", block)
    loader, order = loader_of(store, residency="auto")
    assert order == "shuffled by blocks, since they do not fit in memory"
    assert asked == [(store.path, "train", ("image", "label"))]
    found = rows_of(loader)
    assert sorted(found) == list(range(40)) and found != sorted(found)
    for start in range(0, 40, 4 * rows):
        window = sorted(found[start : start + 4 * rows])
        assert all(row // rows * rows + i in window for row in window for i in range(rows)), "whole blocks"
    assert found != rows_of(loader)
    asked.clear()
    assert loader_of(store, residency="page-cache")[1] == "shuffled" and not asked


def test_a_split_without_keypoints_teaches_nothing(tmp_path: Path) -> None:
    none: dict[str, Any] = {"boxes": np.zeros((0, 4)), "keypoints": np.zeros((0, 2, 2))}
    some = {"boxes": np.array([[0.0, 0, 4, 4]]), "keypoints": np.ones((1, 2, 2))}
    with tsds.Writer(tmp_path / "s.tsds") as writer:
        for split, values in (("train", none), ("val", none), ("test", some)):
            writer.append(split, image=np.zeros((8, 8, 1), np.uint8), **values)
    store = tsds.open(tmp_path / "s.tsds")
    with pytest.raises(tsds.OptionError, match="train: expected objects with keypoints to learn from, found none in 1"):
        data.task_of(store["train"])
    chosen = eval_split_of(store, small(), data.task_of(store["test"]))
    assert chosen is not None and chosen.name == "test"


# --- balance -----------------------------------------------------------------------------------------------------


def test_classes_are_drawn_equally_often(store: tsds.Store) -> None:
    inverse = balance_weights(store["train"], TASK, "inverse")
    np.testing.assert_allclose(inverse, [1 / 30] * 30 + [1 / 8] * 8 + [1 / 2] * 2)
    effective = balance_weights(store["train"], TASK, "effective")
    np.testing.assert_allclose(effective, [(1 - 0.999) / (1 - 0.999**n) for n in (30, 8, 2) for _ in range(n)])
    loader, order = loader_of(store, balance="inverse")
    assert order == "drawn by weight (inverse)"
    labels = torch.cat([batch["label"] for _ in range(20) for batch in loader])
    share = torch.bincount(labels, minlength=3) / len(labels)
    assert len(labels) == 800 and (share - 1 / 3).abs().max() < 0.06  # the standard deviation is 0.017


def test_images_with_rare_classes_are_drawn_more_often(tmp_path: Path) -> None:
    sample = {"image": np.zeros((4, 4, 1), np.uint8), "boxes": [[0, 0, 2, 2]]}
    samples = [{**sample, "labels": np.array([int(row == 7)])} for row in range(40)]
    store = store_of(tmp_path / "s.tsds", samples, ("common", "rare"))
    task = MultiLabel(("common", "rare"), objects_field="objects")
    expected = np.ones(40)
    expected[7] = np.sqrt(0.1 / (1 / 40))
    np.testing.assert_allclose(balance_weights(store["train"], task, "repeat"), expected)
    assert loader_of(store, task, balance="repeat")[1] == "drawn by weight (repeat)"


@pytest.mark.parametrize(
    ("name", "labels", "balance", "possible"),
    [
        ("classification", "label", "repeat", "inverse or effective"),
        ("multilabel", "", "inverse", "repeat or repeat-instance"),
        ("keypoints", "", "effective", "none"),
        ("keypoints", "", "repeat", "none"),
        ("classification+keypoints", "", "inverse", "repeat or repeat-instance"),
        ("classification+keypoints", "label", "repeat", "inverse or effective"),
    ],
)
def test_a_balance_that_is_not_for_the_task(
    tmp_path: Path, name: str, labels: str, balance: Balance, possible: str
) -> None:
    store = tsds.open(annotated(tmp_path / "s.tsds"))
    classes = () if name == "keypoints" else ("small", "large")
    task = TASKS[name](classes, ("a", "b"), labels, "objects")
    text = refused(lambda: balance_weights(store["train"], task, balance))
    assert text == f"`balance`: expected {possible} for {name}, found {balance}."


# --- classes -----------------------------------------------------------------------------------------------------


def test_classes_that_nothing_is_learned_about(tmp_path: Path, store: tsds.Store) -> None:
    found = numbered(tmp_path / "s.tsds", train=[1, 1], test=[0, 1, 2], val=[1])
    assert list(unseen_classes(TASK, found["train"], found["test"])) == ["ant", "cat"]
    assert list(unseen_classes(TASK, found["train"], found["val"])) == []
    assert list(unseen_classes(TASK, found["test"], found["train"])) == []
    keypoints = TASKS["keypoints"]((), ("a",), "", "objects")
    assert list(unseen_classes(keypoints, found["train"], found["test"])) == []
