"""Ultralytics on a store: samples, losses and metrics are those of the exported files."""

from __future__ import annotations

import csv
import io
import math
import pickle
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from pycocotools import mask as coco
from ultralytics import YOLO
from ultralytics.cfg import get_cfg
from ultralytics.data import YOLODataset, build_dataloader
from ultralytics.data.dataset import ClassificationDataset
from ultralytics.data.utils import check_det_dataset
from ultralytics.models.yolo.classify import ClassificationTrainer
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.models.yolo.obb import OBBTrainer
from ultralytics.models.yolo.pose import PoseTrainer
from ultralytics.models.yolo.segment import SegmentationTrainer

import tensorstore_ds as tsds
from clients.conftest import Example
from tensorstore_ds.annex.adapters import ultralytics as adapter
from tensorstore_ds.annex.adapters.ultralytics import StoreTrainer, StoreValidator, StoreYOLODataset, read_images
from tensorstore_ds.annex.adapters.ultralytics.trainers import dataset_info

works, limit = pytest.mark.works, pytest.mark.limit

TRAINERS = {"detect": DetectionTrainer, "segment": SegmentationTrainer, "pose": PoseTrainer, "obb": OBBTrainer}
MODELS = {"detect": "yolov8n.yaml", "segment": "yolov8n-seg.yaml", "pose": "yolov8n-pose.yaml"}
MODELS |= {"obb": "yolov8n-obb.yaml", "classify": "yolov8n-cls.yaml"}
OBJECT_TASKS = list(TRAINERS)
KEYPOINTS = ("left", "middle", "right")
SETTINGS = {"pretrained": False, "imgsz": 64, "batch": 4, "workers": 0, "amp": False, "device": "cpu"}
QUIET = {"plots": False, "verbose": False, "exist_ok": True}

Make = Callable[..., Path]


def objects_of(rng: np.random.Generator, task: str, height: int, width: int) -> dict[str, Any]:
    """Up to 3 ellipses with the values that a task needs."""
    count = int(rng.integers(0, 4))
    centers = np.stack([rng.uniform(12, width - 12, count), rng.uniform(12, height - 12, count)], 1)
    radii = rng.uniform(4, 10, (count, 2))
    values = {"boxes": np.concatenate([centers - radii, centers + radii], 1), "labels": rng.integers(0, 3, count)}
    around = np.linspace(0, 2 * math.pi, 12, endpoint=False)
    circle = np.stack([np.cos(around), np.sin(around)], 1)
    if task == "segment":
        values["polygons"] = [center + radius * circle for center, radius in zip(centers, radii, strict=True)]
    elif task == "pose":
        points = centers[:, None] + radii[:, None] * np.array([[-0.5, 0], [0, 0], [0.5, 0]])
        points[rng.random((count, 3)) < 0.2] = np.nan
        seen = np.where(np.isnan(points[..., 0]), 0, rng.integers(1, 3, (count, 3)))
        values |= {"keypoints": points, "visibility": seen}
    elif task == "obb":
        values["oriented_boxes"] = np.concatenate([centers, radii * 1.5, rng.uniform(-3, 3, (count, 1))], 1)
    return values


def image_of(rng: np.random.Generator, height: int, width: int, channels: int = 3) -> np.ndarray:
    """A blurred random image: JPEG files do not lose all of it."""
    small = rng.integers(0, 256, (height // 8, width // 8, channels), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC).reshape(height, width, channels)


def as_file(image: np.ndarray, number: int) -> bytes:
    """A file of some format; every third one is a JPEG file that EXIF turns."""
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    kind = ("PNG", "JPEG", "JPEG")[number % 3]
    Image.fromarray(image.squeeze()).save(buffer, kind, **({"exif": exif} if number % 3 == 2 else {}))
    return buffer.getvalue()


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a store for a task, with the splits `train` of 12 images and `val` of 5; each once."""
    made: dict[Any, Path] = {}

    def write(task: str, encoding: str = "raw", channels: int = 3, *, one_size: bool = False) -> Path:
        key = (task, encoding, channels, one_size)
        if key in made:
            return made[key]
        rng = np.random.default_rng(len(made))
        path = made[key] = tmp_path_factory.mktemp("store") / "photos.tsds"
        options: dict[str, Any] = {"encoding": encoding if one_size or encoding != "raw" else "auto", "workers": 0}
        options["classes"] = ("a", "b", "c")
        if task == "pose":
            options["keypoints"] = tsds.Keypoints(KEYPOINTS, ((0, 2),))
        splits: dict[str, list[dict[str, Any]]] = {"train": [], "val": []}
        for i in range(17):
            height, width = (72, 96) if one_size else (8 * rng.integers(6, 16, 2)).tolist()
            image: Any = image_of(rng, height, width, channels)
            if encoding == "source":
                image, (height, width) = as_file(image, i), (width, height) if i % 3 == 2 else (height, width)
            sample = {"image": image, "key": f"{i:03d}"}
            if task == "classify":
                sample["label"] = i * 3 // 12 if i < 12 else (i - 12) * 3 // 5
            else:
                sample["objects"] = objects_of(rng, task, height, width)
            splits["train" if i < 12 else "val"].append(sample)
        tsds.convert(splits, path, **options)
        return path

    return write


def exported(store: Path) -> Path:
    """The store as files: its data.yaml, or the folder of class folders."""
    kind = "yolo" if "objects" in tsds.open(store)["train"].fields else "folders"
    folder = store.parent / kind
    if not folder.exists():
        tsds.export(store, folder, kind)
    return folder / "data.yaml" if kind == "yolo" else folder


def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def datasets(store: Path, task: str, split: str, **options: Any) -> tuple[StoreYOLODataset, YOLODataset]:
    """The data set of the store, and that of the exported files."""
    data = check_det_dataset(str(exported(store)))
    both = {"task": task, "imgsz": 64, "augment": False, **options}
    theirs = YOLODataset(data[split], data=data, **both)
    ours = StoreYOLODataset(split, data=dataset_info(str(store), task), **both)
    assert len(ours) == len(theirs) > 0
    return ours, theirs


def assert_equal(ours: Any, theirs: Any) -> None:
    """Every sample is the same, but for the name of its file; random augmentations begin with one seed."""
    samples: list[list[dict[str, Any]]] = []
    for dataset in (ours, theirs):
        seed()
        samples.append([dataset[i] for i in range(len(dataset))])
    for mine, other in zip(*samples, strict=True):
        assert mine.keys() == other.keys()
        assert torch.equal(mine["img"], other["img"])
        for name in mine.keys() - {"img", "im_file"}:
            value, expected = mine[name], other[name]
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(value, expected, rtol=0, atol=1e-5)
            else:
                assert np.array_equal(value, expected), name


# --- samples ------------------------------------------------------------------------------------------------------


@works("Ultralytics", "detect, segment, pose, obb and classify: the same augmented samples as with files")
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("size", [64, 96, 160])
@pytest.mark.parametrize("task", OBJECT_TASKS)
def test_samples(make: Make, task: str, size: int, augment: bool) -> None:
    assert_equal(*datasets(make(task), task, "train", imgsz=size, augment=augment, cache="ram"))


@works("Ultralytics", "images stored as pixels, JPEG or other files, of differing sizes, and gray ones")
@pytest.mark.parametrize("one_size", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("encoding", ["raw", "jpeg", "source"])
def test_encodings(make: Make, encoding: str, channels: int, one_size: bool) -> None:
    store = make("detect", encoding, channels, one_size=one_size)
    for size, cache in ((64, None), (128, "ram")):
        assert_equal(*datasets(store, "detect", "val", imgsz=size, cache=cache))


@works("Ultralytics", "`rect`, `fraction`, `single_cls`, `classes`")
@pytest.mark.parametrize(
    "options",
    [
        {"rect": True, "batch_size": 4, "pad": 0.5},
        {"rect": True, "batch_size": 4, "augment": True},
        {"fraction": 0.5},
        {"single_cls": True},
        {"classes": [0, 2]},
        {"classes": [1], "single_cls": True, "fraction": 0.7},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("task", OBJECT_TASKS)
def test_options(make: Make, task: str, options: dict[str, Any]) -> None:
    assert_equal(*datasets(make(task), task, "train", cache="ram", **options))


@works("Ultralytics", "detect, segment, pose, obb and classify: the same augmented samples as with files")
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_labels(make: Make, channels: int, augment: bool) -> None:
    store, args = make("classify", channels=channels), get_cfg(overrides={"imgsz": 64, "task": "classify"})
    theirs = ClassificationDataset(str(exported(store) / "train"), args, augment=augment)
    trainer = StoreTrainer(overrides={"data": str(store), "model": MODELS["classify"], "task": "classify", **SETTINGS})
    ours = trainer.build_dataset("train", "train" if augment else "val")
    assert len(ours) == len(theirs) == 12
    assert_equal(ours, theirs)


@works("Ultralytics", "workers")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers(make: Make, context: str) -> None:
    dataset, _ = datasets(make("detect"), "detect", "train")
    loader = build_dataloader(dataset, 4, workers=2, shuffle=False)
    assert loader.num_workers > 0
    object.__setattr__(loader, "multiprocessing_context", context)
    batches, deadline = list(loader), time.monotonic() + 60
    # Workers load the next epoch already. torch may abort one that is ended while a thread of its queue sends.
    while loader.iterator._worker_result_queue.qsize() < loader.iterator._tasks_outstanding:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    loader.close()
    expected = list(build_dataloader(dataset, 4, workers=0, shuffle=False))
    assert len(batches) == len(expected) == 3
    for mine, other in zip(batches, expected, strict=True):
        assert torch.equal(mine["img"], other["img"]) and torch.equal(mine["bboxes"], other["bboxes"])


def test_the_data_set_is_small_when_it_is_pickled(make: Make) -> None:
    dataset, _ = datasets(make("pose"), "pose", "val")
    data = pickle.dumps(dataset)
    assert len(data) < 40_000 + sum(len(pickle.dumps(label)) for label in dataset.labels)
    assert torch.equal(pickle.loads(data)[2]["img"], dataset[2]["img"])  # noqa: S301


# --- objects that files of YOLO cannot hold -----------------------------------------------------------------------


def store_of(path: Path, objects: dict[str, Any], size: tuple[int, int] = (64, 64), **options: Any) -> Path:
    with tsds.Writer(path, classes=("a", "b"), encoding="raw", **options) as writer:
        for split in ("train", "val"):
            writer.append(split, {"image": np.zeros((*size, 3), np.uint8), "objects": objects})
    return path


def instance_masks(store: Path, count: int) -> torch.Tensor:
    """(count, 64, 64) as Ultralytics draws the outlines of the first sample."""
    hyp = get_cfg(overrides={"mask_ratio": 1, "overlap_mask": False})
    info = dataset_info(str(store), "segment")
    masks = StoreYOLODataset("val", data=info, task="segment", imgsz=64, augment=False, hyp=hyp)[0]["masks"]
    assert masks.shape == (count, 64, 64)
    return masks.bool()


@works("Ultralytics", "masks stored as RLE, and objects with several polygons")
def test_rle_becomes_outlines(tmp_path: Path) -> None:
    mask = Image.new("L", (64, 64))
    ImageDraw.Draw(mask).ellipse((8, 10, 50, 40), fill=1)
    ImageDraw.Draw(mask).rectangle((20, 30, 28, 58), fill=1)
    drawn = np.asarray(mask).astype(bool)
    flat = drawn.T.reshape(-1)
    edges = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1, [len(flat)]])
    objects = {"boxes": [[8, 10, 51, 59]], "labels": [1], "rle": [np.diff(edges).astype(np.uint32)]}
    found = instance_masks(store_of(tmp_path / "a.tsds", objects), 1)[0].numpy()
    assert (found != drawn).mean() < 0.01 and drawn.mean() > 0.2


@works("Ultralytics", "masks stored as RLE, and objects with several polygons")
def test_polygons_are_joined(tmp_path: Path) -> None:
    parts = [np.array([[4, 4], [24, 4], [24, 24], [4, 24]]), np.array([[40, 30], [60, 30], [60, 56], [40, 56]])]
    joined = np.concatenate([parts[0], [[np.nan, np.nan]], parts[1]])
    objects = {"boxes": [[4, 4, 60, 56], [10, 40, 30, 50]], "labels": [1, 0], "polygons": [joined, np.zeros((0, 2))]}
    first, second = instance_masks(store_of(tmp_path / "a.tsds", objects), 2).numpy()
    rings = [part.reshape(-1).astype(float).tolist() for part in parts]
    drawn = coco.decode(coco.merge(coco.frPyObjects(rings, 64, 64))).astype(bool)
    smaller, larger = sorted((first, second), key=np.sum)
    assert (larger != drawn).mean() < 0.03  # Ultralytics' polygons contain their edges, and a line joins the two
    assert smaller[40:51, 10:31].all() and smaller.sum() == 11 * 21  # the box of the object without outline


@works("Ultralytics", "crowds and difficult objects are skipped, as in Ultralytics' conversions of COCO and VOC")
def test_crowds_are_left_out(tmp_path: Path) -> None:
    boxes = [[0, 0, 10, 10], [10, 10, 20, 20], [20, 20, 40, 40], [20, 20, 40, 40]]
    objects = {"boxes": boxes, "labels": [0, 1, 1, 1], "iscrowd": [1, 0, 0, 0], "difficult": [0, 1, 0, 0]}
    info = dataset_info(str(store_of(tmp_path / "a.tsds", objects)), "detect")
    (label,) = StoreYOLODataset("val", data=info, task="detect", imgsz=64, augment=False).labels
    assert label["cls"].tolist() == [[1]]  # of two that are equal, one
    np.testing.assert_allclose(label["bboxes"], [[30 / 64, 30 / 64, 20 / 64, 20 / 64]])


def test_an_object_without_an_oriented_box_has_its_box(tmp_path: Path) -> None:
    objects = {"boxes": [[4, 4, 20, 12]], "labels": [1], "oriented_boxes": np.full((1, 5), np.nan)}
    info = dataset_info(str(store_of(tmp_path / "a.tsds", objects)), "obb")
    (label,) = StoreYOLODataset("val", data=info, task="obb", imgsz=64, augment=False).labels
    np.testing.assert_allclose(label["segments"][0] * 64, [[4, 4], [20, 4], [20, 12], [4, 12]])


# --- training -----------------------------------------------------------------------------------------------------


def trained(trainer: type, task: str, data: Path, out: Path, **settings: Any) -> Any:
    overrides = {"data": str(data), "task": task, "model": MODELS[task], "project": str(out), "name": trainer.__name__}
    overrides |= {**SETTINGS, **QUIET, "epochs": 1, "cache": "ram", "close_mosaic": 0, **settings}
    run = trainer(overrides=overrides)
    # Until here it has drawn files to measure the speed of the disk.
    run.add_callback("on_train_start", lambda _: seed())
    run.train()
    return run


@works("Ultralytics", "training and validation of each task have the same losses as with the files")
@pytest.mark.parametrize("task", MODELS)
def test_losses(make: Make, task: str, tmp_path: Path) -> None:
    store = make(task)
    theirs = TRAINERS.get(task, ClassificationTrainer)
    runs = [trained(kind, task, data, tmp_path) for kind, data in ((StoreTrainer, store), (theirs, exported(store)))]
    rows = [list(csv.DictReader((run.save_dir / "results.csv").open()))[-1] for run in runs]
    names = [name for name in rows[0] if name.strip() != "time"]  # losses of both splits, metrics, learning rates
    mine, other = ({name: float(row[name]) for name in names} for row in rows)
    assert mine == pytest.approx(other, rel=1e-3, abs=1e-4)
    assert min(sum(mine[name] for name in names if name.strip().startswith(part)) for part in ("train/", "val/")) > 0


@works("Ultralytics", "`model.val` and `model.predict` on a store")
@pytest.mark.parametrize("task", MODELS)
def test_a_model_is_validated(make: Make, task: str, tmp_path: Path) -> None:
    store, model = make(task), YOLO(MODELS[task])
    how = {"project": str(tmp_path), "imgsz": 64, **QUIET}
    model.train(trainer=StoreTrainer, data=str(store), epochs=1, batch=4, pretrained=False, amp=False, **how)
    assert model.metrics.results_dict.keys() >= {"fitness"}
    mine = model.val(validator=StoreValidator, **how)  # of the store that it was trained on
    other = model.val(data=str(exported(store)), **how)
    assert mine.results_dict == pytest.approx(other.results_dict, rel=1e-3, abs=1e-5)
    if task != "classify":
        assert mine.nt_per_class.tolist() == other.nt_per_class.tolist() and mine.nt_per_class.sum() > 0
    assert len(model.predict(read_images(store, "val", [0, 3]), imgsz=64, verbose=False)) == 2


def test_images_are_those_of_the_files(make: Make) -> None:
    for encoding, channels in (("raw", 3), ("raw", 1), ("jpeg", 3), ("jpeg", 1)):
        store = make("detect", encoding, channels)
        files = sorted((exported(store).parent / "images" / "val").iterdir())
        for image, file in zip(read_images(store), files, strict=True):
            np.testing.assert_array_equal(image, cv2.imread(str(file)))


@works("Ultralytics", "splits with any names: `train_split`, `val_split`; the checkpoint stores them")
def test_splits(tmp_path: Path) -> None:
    objects = {"boxes": np.array([[4.0, 4, 20, 20]]), "labels": [1]}
    with tsds.Writer(tmp_path / "a.tsds", classes=("a", "b")) as writer:
        for split, count in (("one", 2), ("two", 4), ("three", 6)):
            for _ in range(count):
                writer.append(split, {"image": np.zeros((64, 64, 3), np.uint8), "objects": objects})
    names = {"data": str(tmp_path / "a.tsds"), "model": MODELS["detect"], "task": "detect", "project": str(tmp_path)}
    trainer = StoreTrainer(overrides={**names, **QUIET, "device": "cpu"})
    assert (trainer.data["train"], trainer.data["val"]) == ("one", "three")
    trainer = StoreTrainer(overrides={**names, **QUIET, "device": "cpu", "train_split": "two", "val_split": "one"})
    kind = pickle.loads(pickle.dumps(type(trainer)))  # noqa: S301 - as it is sent to the ranks
    for each in (trainer, kind(overrides=vars(trainer.args))):
        assert (each.data["train"], each.data[each.args.split]) == ("two", "one")
        assert [len(each.build_dataset(each.data[name], "train", 2)) for name in ("train", "val")] == [4, 2]


def test_splits_may_change_places(make: Make) -> None:
    store = make("detect")
    info = dataset_info(f"{store}::val::train", "detect", training=True)
    assert (info["train"], info["val"]) == ("val", "train")
    info = dataset_info(f"{store}::val::", "detect", training=True)
    assert (info["train"], info["val"]) == ("val", "train")  # the last one that is not learned


# --- errors -------------------------------------------------------------------------------------------------------


def test_a_store_for_another_task(make: Make) -> None:
    words = r"photos.tsds: expected objects with boxes and polygons or rle for the task segment, found image \(.*\), "
    with pytest.raises(tsds.OptionError, match=words + r"objects \(.*\)\. Use a model for detect or pose\."):
        dataset_info(str(make("pose")), "segment")
    with pytest.raises(tsds.OptionError, match=r"expected labels for the task classify, .* Use a model for detect\."):
        YOLO(MODELS["classify"]).train(trainer=StoreTrainer, data=str(make("detect")), verbose=False)
    with pytest.raises(tsds.OptionError, match=r"`task`: expected one of detect, segment, .*, found depth\. "):
        StoreTrainer(overrides={"task": "depth", "data": str(make("detect"))})


def test_splits_that_are_not_there(make: Make, tmp_path: Path) -> None:
    store = str(make("detect"))
    with pytest.raises(tsds.OptionError, match=r"photos.tsds: expected one of the splits train, val, found 'nowhere'"):
        dataset_info(store, "detect", "nowhere")
    with pytest.raises(tsds.OptionError, match=r"photos.tsds: expected one of the splits train, val, found 'other'"):
        dataset_info(f"{store}::other::", "detect", training=True)
    with tsds.Writer(tmp_path / "one.tsds", classes=("a",)) as writer:
        writer.append("train", {"image": np.zeros((64, 64, 3), np.uint8), "boxes": [[1, 2, 3, 4]], "labels": [0]})
    words = "one.tsds: expected a split to validate on, found train alone. Divide it with `split_store`, or use"
    with pytest.raises(tsds.OptionError, match=re.escape(f'{words} `val_split="train"`.')):
        dataset_info(str(tmp_path / "one.tsds"), "detect", training=True)
    info = dataset_info(f"{tmp_path / 'one.tsds'}::::train", "detect", training=True)
    assert (info["train"], info["val"]) == ("train", "train")


def test_floating_point_images(tmp_path: Path) -> None:
    with tsds.Writer(tmp_path / "a.tsds", classes=("a",)) as writer:
        for split in ("train", "val"):
            writer.append(split, {"image": np.zeros((64, 64, 3), np.float32), "boxes": [[1, 2, 3, 4]], "labels": [0]})
    with pytest.raises(tsds.OptionError, match="val: expected images of 8 or 16 bits, found "):
        dataset_info(str(tmp_path / "a.tsds"), "detect")


def test_versions() -> None:
    with pytest.warns(UserWarning, match=r"expected a version from 8.* to 8.*, found 9.1.0. .* install ultralytics=="):
        adapter._warn_untested("9.1.0")
    with pytest.warns(UserWarning, match="found 8.0.1"):
        adapter._warn_untested("8.0.1")


# --- the example, and what does not work --------------------------------------------------------------------------


@works("Ultralytics", "training and validation of each task have the same losses as with the files")
def test_example(scenes: Path, example: Example, tmp_path: Path) -> None:
    line = example("clients/ultralytics_yolo.py", scenes, "--epochs", 1, "--out", tmp_path)
    found = re.search(r"mAP (\d\.\d+)", line)
    assert found and 0 <= float(found[1]) <= 1


@limit("Ultralytics", "the command `yolo`, which reads a data.yaml: train and validate in Python")
def test_the_command_reads_files_alone(scenes: Path) -> None:
    with pytest.raises((AssertionError, FileNotFoundError), match=r"No YAML file found|not found"):
        check_det_dataset(str(scenes))


@limit("Ultralytics", "`tsds.DataLoader`: Ultralytics' trainer calls `reset()` of its own loader when mosaics end")
def test_it_wants_its_own_loader(scenes: Path, tmp_path: Path) -> None:
    from tensorstore_ds.annex.adapters.ultralytics.trainers import StoreDetectionTrainer

    class WithOurLoader(StoreDetectionTrainer):
        def get_dataloader(self, dataset_path: str, batch_size: int = 16, rank: int = 0, mode: str = "train") -> Any:
            dataset = self.build_dataset(dataset_path, mode, batch_size)
            return tsds.DataLoader(dataset, batch_size, collate_fn=dataset.collate_fn)

    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'reset'"):
        trained(WithOurLoader, "detect", scenes, tmp_path, close_mosaic=1)
