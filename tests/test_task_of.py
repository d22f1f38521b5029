"""Which task a store is good for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tensorstore_ds as tsds
from small_stores import image_field, label_field, tsds as command, write_store
from stores import Samples, detections, store_of
from tensorstore_ds.annex.training.data import eval_split_of, task_of
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.tasks import TASKS
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.errors import FormatError, OptionError
from training_stores import one_line

CLASSES = ("ant", "bee", "cat")


def samples_with(*names: str, rows: int = 6) -> list[dict[str, Any]]:
    """Samples with an image and some of: label, boxes, labels, keypoints."""
    found = []
    for row, sample in enumerate(detections(rows)):
        whole = {**sample, "label": row % 3}
        found.append({name: whole[name] for name in ("image", *names)})
    return found


CASES: list[tuple[tuple[str, ...], str, list[str]]] = [
    (("label",), "classification", ["classification"]),
    (("boxes", "labels"), "detection", ["detection", "multilabel"]),
    (("boxes", "keypoints"), "keypoints", ["keypoints"]),
    (
        ("boxes", "labels", "keypoints"),
        "keypoints",
        ["keypoints", "detection", "multilabel", "classification+keypoints"],
    ),
    (("label", "boxes", "keypoints"), "classification", ["classification", "keypoints", "classification+keypoints"]),
]


@pytest.mark.parametrize(("names", "chosen", "possible"), CASES, ids=["-".join(case[0]) for case in CASES])
def test_what_a_store_is_good_for(tmp_path: Path, names: tuple[str, ...], chosen: str, possible: list[str]) -> None:
    if "label" in names and "boxes" in names:
        store = labels_and_objects(tmp_path / "s.tsds")
    else:
        store = store_of(tmp_path / "s.tsds", samples_with(*names), CLASSES)
    split = store["train"]
    assert task_of(split).name == chosen
    for name in TASKS:
        if name in possible:
            task = task_of(split, name)  # type: ignore[arg-type]
            assert task.name == name and set(task.fields) <= set(split.fields) and "image" in task.fields
            batch = next(iter(tsds.DataLoader(tsds.StoreDataset(store.path, fields=task.fields), 3, collate="packed")))
            outputs: Any = torch.zeros(3, task.outputs)
            if name == "detection":  # whose losses the model computes
                outputs = {"classification": torch.ones(()), "bbox_regression": torch.ones(())}
            assert task.loss(outputs, task.targets(batch)).isfinite()
            continue
        with pytest.raises(OptionError) as error:
            task_of(split, name)  # type: ignore[arg-type]
        assert f'for `task="{name}"`, found image' in one_line(error.value)
        assert "Use " + " or ".join(f'`task="{name}"`' for name in possible) + "." in str(error.value)


def labels_and_objects(path: Path, *, label: int | None = None) -> tsds.Store:
    """A store with a label an image (`label`, if given), and objects with boxes and points that have no classes."""
    values = {"boxes": {"dtype": "float32", "shape": [4]}, "keypoints": {"dtype": "float32", "shape": [2, 2]}}
    pixels = np.zeros((6, 8, 8, 1), np.uint8)
    fields = {
        "image": image_field(pixels),
        "label": label_field(*CLASSES),
        "objects": {"kind": "objects", "values": values, "classes": [], "keypoints": ["a", "b"], "flip_pairs": []},
    }
    arrays = {
        "image": pixels,
        "label": np.arange(6) % 3 if label is None else np.full(6, label),
        "objects/offsets": np.arange(7),
        "objects/boxes": np.tile(np.array([1, 1, 5, 5], np.float32), (6, 1)),
        "objects/keypoints": np.ones((6, 2, 2), np.float32),
    }
    return tsds.open(write_store(path, fields, ("train", 6, arrays)))


def test_objects_that_transforms_do_not_move_are_not_learned_from(tmp_path: Path) -> None:
    pixels = np.zeros((2, 8, 8, 1), np.uint8)
    values = {"keypoints": {"dtype": "float32", "shape": [1, 2]}}
    faces = {"kind": "objects", "values": values, "classes": [], "keypoints": ["eye"], "flip_pairs": []}
    arrays = {"image": pixels, "faces/offsets": np.arange(3), "faces/keypoints": np.ones((2, 1, 2), np.float32)}
    write_store(tmp_path / "s.tsds", {"image": image_field(pixels), "faces": faces}, ("train", 2, arrays))
    with pytest.raises(OptionError, match=r"to learn from, found image, faces \(objects\)\."):
        task_of(tsds.open(tmp_path / "s.tsds")["train"])


def test_a_store_without_labels_leads_to_paths_that_have_them(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for i in range(4):
        Image.new("RGB", (9, 8), (60 * i, 0, 0)).save(tmp_path / "flat" / f"{'ab'[i % 2]}_{i}.png")
    assert command("convert", tmp_path / "flat", tmp_path / "s.tsds", "--workers", 0).exit_code == 0
    result = command("train", tmp_path / "s.tsds", "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert (
        "Convert images in class folders, with annotations, or with --label-from, which finds labels" in result.output
    )
    options = ("--workers", 0, "--label-from", "^([ab])_")
    assert command("convert", tmp_path / "flat", tmp_path / "t.tsds", *options).exit_code == 0
    assert task_of(tsds.open(tmp_path / "t.tsds")["train"]).classes == ("a", "b")


@pytest.mark.parametrize(
    ("samples", "classes", "message"),
    [
        (samples_with(), (), "expected labels, keypoints or objects with classes to learn from, found image"),
        (
            [{**s, "label": 0} for s in samples_with()],
            ("ant",),
            "expected two classes or more to tell apart, found one",
        ),
        (samples_with("boxes"), (), "expected labels, keypoints or objects with classes to learn from, found image"),
    ],
)
def test_nothing_to_learn_is_one_line(tmp_path: Path, samples: Any, classes: Any, message: str) -> None:
    store = store_of(tmp_path / "s.tsds", samples, classes)
    with pytest.raises(OptionError) as error:
        task_of(store["train"])
    assert message in one_line(error.value)


def test_one_class_of_boxes(tmp_path: Path) -> None:
    """It can be found, but not told apart from another one."""
    samples = [{**s, "labels": s["labels"] * 0} for s in samples_with("boxes", "labels")]
    split = store_of(tmp_path / "s.tsds", samples, ("ant",))["train"]
    assert task_of(split).name == "detection"
    with pytest.raises(OptionError, match="expected two classes or more to tell apart, found one, 'ant'"):
        task_of(split, "multilabel")


def test_the_model_decides_where_nothing_is_asked_for(tmp_path: Path) -> None:
    boxes = store_of(tmp_path / "boxes.tsds", samples_with("boxes", "labels"), CLASSES)["train"]
    assert task_of(boxes, model="ssdlite").name == "detection" and task_of(boxes, model="tiny").name == "multilabel"
    points = store_of(tmp_path / "points.tsds", samples_with("boxes", "labels", "keypoints"), CLASSES)["train"]
    assert task_of(points, model="ssdlite").name == "detection" and task_of(points, model="tiny").name == "keypoints"


@pytest.mark.parametrize(
    ("names", "task", "model", "message"),
    [
        (
            ("boxes", "labels"),
            "detection",
            "tiny",
            "`model`: expected auto or one of ssdlite, fasterrcnn_mobilenet for",
        ),
        (("boxes", "labels"), "multilabel", "ssdlite", "`model`: expected a vision transformer for multilabel"),
        (("label",), "auto", "ssdlite", "expected objects with boxes and classes for `model=ssdlite`"),
        (("label",), "detection", "auto", 'expected objects with boxes and classes for `task="detection"`'),
        (("boxes", "keypoints"), "detection", "auto", 'expected objects with boxes and classes for `task="detection"`'),
    ],
)
def test_models_of_other_tasks_are_one_line(tmp_path: Path, names: Any, task: Any, model: Any, message: str) -> None:
    split = store_of(tmp_path / "s.tsds", samples_with(*names), () if names == ("boxes", "keypoints") else CLASSES)
    with pytest.raises(OptionError) as error:
        task_of(split["train"], task, model)
    assert message in one_line(error.value)


def test_boxes_that_no_sample_has(tmp_path: Path) -> None:
    empty = [{**s, "boxes": s["boxes"][:0], "labels": s["labels"][:0]} for s in samples_with("boxes", "labels")]
    with pytest.raises(OptionError, match="expected objects with boxes to learn from, found none in 6 samples"):
        task_of(store_of(tmp_path / "s.tsds", empty, CLASSES)["train"], "detection")


def test_one_class_and_keypoints(tmp_path: Path) -> None:
    """Its accuracy is 1 from the first epoch on, which would be kept as the best."""
    samples = [{**s, "labels": s["labels"] * 0} for s in samples_with("boxes", "labels", "keypoints")]
    split = store_of(tmp_path / "s.tsds", samples, ("face",))["train"]
    assert task_of(split).name == "keypoints"
    with pytest.raises(OptionError) as error:
        task_of(split, "classification+keypoints")
    assert one_line(error.value).endswith(
        "found one, 'face'. Also convert samples of other classes, or use `task=\"keypoints\"`."
    )


def test_labels_without_names_of_classes(tmp_path: Path) -> None:
    pixels = np.zeros((2, 8, 8, 1), np.uint8)
    fields = {"image": image_field(pixels), "label": label_field()}
    arrays = {"image": pixels, "label": np.zeros(2, np.int64)}
    write_store(tmp_path / "s.tsds", fields, ("train", 2, arrays))
    with pytest.raises(OptionError, match="expected two classes or more to tell apart, found none"):
        task_of(tsds.open(tmp_path / "s.tsds")["train"])


@pytest.mark.parametrize(
    ("name", "value"), [("label", 3), ("label", -2), ("objects/labels", 3), ("objects/labels", -1)]
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_damaged_labels_are_one_line(tmp_path: Path, name: str, value: int, split: str) -> None:
    samples = samples_with("label") if name == "label" else samples_with("boxes", "labels")
    tsds.convert(
        Samples(samples * 8, CLASSES),
        tmp_path / "s.tsds",
        ConvertOptions(workers=0, split_into={"train": 0.5, "test": 0.5}),
    )
    file = next(path for path in (tmp_path / "s.tsds" / split / "00000" / name).rglob("*") if path.name == "0")
    damaged = bytearray(file.read_bytes())
    damaged[:8] = value.to_bytes(8, "little", signed=True)
    file.write_bytes(damaged)
    store = tsds.open(tmp_path / "s.tsds")
    with pytest.raises(FormatError) as error:
        eval_split_of(store, TrainOptions(), task_of(store["train"]))
    least = -1 if name == "label" else 0
    assert f"{split}/{name}: expected labels in [{least}, 3), found" in one_line(error.value)
    if split == "test":
        assert task_of(store["train"]).classes == CLASSES


def test_a_split_without_any_label(tmp_path: Path) -> None:
    """Its labels cannot be learned; its keypoints can."""
    split = labels_and_objects(tmp_path / "s.tsds", label=-1)["train"]
    for name in ("auto", "classification", "classification+keypoints"):
        with pytest.raises(OptionError) as error:
            task_of(split, name)  # type: ignore[arg-type]
        assert one_line(error.value) == (
            f"train: expected samples with a label to learn from, found none in {len(split)}. "
            'Also convert samples with labels, or use `task="keypoints"`.'
        )
    assert task_of(split, "keypoints").name == "keypoints"
