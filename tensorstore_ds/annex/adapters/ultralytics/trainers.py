"""Ultralytics' trainers and validators, whose `data` is a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from ultralytics.engine import validator as validation
from ultralytics.engine.trainer import BaseTrainer
from ultralytics.engine.validator import BaseValidator
from ultralytics.models.yolo.classify import ClassificationTrainer, ClassificationValidator
from ultralytics.models.yolo.detect import DetectionTrainer, DetectionValidator
from ultralytics.models.yolo.obb import OBBTrainer, OBBValidator
from ultralytics.models.yolo.pose import PoseTrainer, PoseValidator
from ultralytics.models.yolo.segment import SegmentationTrainer, SegmentationValidator
from ultralytics.utils import DEFAULT_CFG, colorstr

from tensorstore_ds.annex.adapters.ultralytics.dataset import Images, StoreClassificationDataset, StoreYOLODataset
from tensorstore_ds.annex.adapters.ultralytics.labels import field_of
from tensorstore_ds.annex.exporting.yolo import flip_indices
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.kinds.base import named
from tensorstore_ds.options import unknown_name
from tensorstore_ds.reading.store import Store, open as open_store

#: Between the path of a store and the splits to train and to validate on, in `data`: so they are part of checkpoints.
_MARK = "::"


def dataset_info(data: str, task: str, split: str = "val", *, training: bool = False) -> dict[str, Any]:
    """Return the content of Ultralytics' data.yaml for a store, a path or URL; ``PATH::TRAIN::VAL`` selects splits.

    With `training`, there must be a split to train on, and a different one to validate on unless `data` selects it. The
    result contains `store`, the open store; names of splits by split, `train` and `val`; `names`, `nc`, `channels`; for
    poses `kpt_shape`, `flip_idx` and `kpt_names`.

    Raises:
        OptionError: the store does not contain the field of the task, or a split.
        FormatError, RemoteError: see `tensorstore_ds.open`.
    """
    path, *chosen = data.rsplit(_MARK, 2)
    if len(chosen) < 2 or "/" in "".join(chosen):  # an IPv6 address may have the mark, too
        path, chosen = data, ["", ""]
    store = open_store(path)
    train = chosen[0] or ("train" if "train" in store else store.splits[0])
    last = next((name for name in reversed(store.splits) if name != train or not training), "")
    val = chosen[1] or ("val" if "val" in store and train != "val" else last)
    splits = {**{name: name for name in store.splits}, "train": train, "val": val}
    for name in ("train", split) if training else (split,):
        _check_split(store, name, splits)
    some = store[splits[split]]
    name = field_of(some, task, store.name)
    field, objects = some.fields[name], named(some.fields, name, ObjectsField)
    classes = dict(enumerate(field.classes or ("object",)))
    info = {**splits, "store": store, "names": classes, "nc": len(classes), "channels": Images(some).channels}
    if task == "pose" and objects is not None:
        info |= {"kpt_shape": [len(objects.keypoints), 3], "flip_idx": flip_indices(objects)}
        info["kpt_names"] = {i: list(objects.keypoints) for i in classes}
    return info


def _check_split(store: Store, name: str, splits: Mapping[str, str]) -> None:
    if name == "val" and not splits["val"]:
        message = f"expected a split to validate on, found {splits['train']} alone"
        raise OptionError(f'{store.name}: {message}. Divide it with `split_store`, or use `val_split="train"`.')
    if splits.get(name) not in store:
        raise unknown_name(store.name, "split", splits.get(name, name), store.splits)
    if not len(store[splits[name]]):
        raise OptionError(f"{store.name}: expected samples in the split {splits[name]}, found none. Use another split.")


@contextmanager
def _supplied(args: Any, data: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, a validator with these arguments uses `data` instead of a data.yaml or class folders."""

    def supply(*_: Any, **__: Any) -> Mapping[str, Any]:
        return data

    found = args.data
    with mock.patch.multiple(validation, check_det_dataset=supply, check_cls_dataset=supply):
        args.data = found if args.task == "classify" else "store.yaml"  # some versions look at the suffix
        try:
            yield
        finally:
            args.data = found


def _fraction(args: Any, augment: bool) -> float:
    """The share of a split to use; a list holds the shares for training, validation and test."""
    shares = args.fraction if isinstance(args.fraction, list) else [args.fraction]
    name = "train" if augment else args.split
    place = ("train", "val", "test").index(name) if name in ("train", "val", "test") else len(shares)
    return shares[place] if place < len(shares) else 1.0


def _objects_dataset(args: Any, split: str, data: dict[str, Any], batch: int | None, **kwargs: Any) -> StoreYOLODataset:
    """The data set of a split, with Ultralytics' settings for folders."""
    augment = kwargs["augment"]
    return StoreYOLODataset(
        split,
        imgsz=args.imgsz,
        batch_size=batch,
        hyp=args,
        cache=args.cache,
        single_cls=args.single_cls or False,
        pad=0.0 if augment else 0.5,
        prefix=colorstr(f"{'train' if augment else 'val'}: "),
        task=args.task,
        classes=args.classes,
        data=data,
        fraction=_fraction(args, augment),
        **kwargs,
    )


def _labels_dataset(
    args: Any, split: str, data: Mapping[str, Any], names: Mapping[int, str] | None, augment: bool
) -> StoreClassificationDataset:
    opened = data["store"][split]
    field = field_of(opened, "classify", data["store"].name)
    share = _fraction(args, augment)
    return StoreClassificationDataset(opened, field, args, augment=augment, names=names, fraction=share)


def _kind(kinds: Mapping[str, type[Any]], task: str) -> type[Any]:
    if task not in kinds:
        raise OptionError(f"`task`: expected one of {', '.join(kinds)}, found {task}. Use a model for one of these.")
    return kinds[task]


class StoreTrainer(BaseTrainer):
    """Train on a store: ``YOLO("yolo11n.yaml").train(trainer=StoreTrainer, data="photos.tsds")``.

    It becomes the trainer of the model's task: detect, segment, pose, obb or classify. These arguments differ from
    Ultralytics, all others are the same:

    - `data`: path or URL of the store.
    - `train_split`: split to train on. The default is ``train`` if it exists, else the first split.
    - `val_split`: split to validate on. The default is ``val`` if it exists, else the last split.
    - `cache`: ``ram`` keeps decoded images in memory if the store contains files. Pixels are always in the page cache.

    Objects with the flags `iscrowd` or `difficult` are left out, as in Ultralytics' conversions of COCO and VOC.

    Raises:
        OptionError: the store does not contain the field of the task, or a split.
    """

    def __new__(cls, cfg: Any = DEFAULT_CFG, overrides: dict[str, Any] | None = None, _callbacks: Any = None) -> Any:
        """A trainer of the task that `overrides` names."""
        task = (overrides or {}).get("task") or "detect"
        return object.__new__(_kind(TRAINERS, task) if cls is StoreTrainer else cls)

    def __init__(self, cfg: Any = DEFAULT_CFG, overrides: dict[str, Any] | None = None, _callbacks: Any = None) -> None:
        overrides = dict(overrides or {})
        chosen = [overrides.pop(name, None) or "" for name in ("train_split", "val_split")]
        if overrides.get("data") is not None:
            overrides["data"] = _MARK.join([str(overrides["data"]), *(chosen if any(chosen) else [])])
        super().__init__(cfg, overrides, _callbacks)

    def get_dataset(self) -> dict[str, Any]:
        """Return the content of Ultralytics' data.yaml."""
        data = dataset_info(str(self.args.data), self.args.task, self.args.split, training=True)
        return {**data, "names": {0: "item"}, "nc": 1} if self.args.single_cls else data

    def build_dataset(self, img_path: str, mode: str = "train", batch: int | None = None) -> Any:
        """Return the data set of the split `img_path`, with augmentations if the mode is ``train``."""
        augment, stride = mode == "train", getattr(self, "stride", 32)
        rect = self.args.rect or mode == "val"
        return _objects_dataset(self.args, img_path, self.data, batch, augment=augment, rect=rect, stride=stride)

    def final_eval(self) -> None:
        """Validate the best weights."""
        with _supplied(self.validator.args, self.data):
            super().final_eval()


class StoreValidator(BaseValidator):
    """Validate on a store: ``model.val(validator=StoreValidator, data="photos.tsds")``.

    It becomes the validator of the model's task. `split` is the split of the store, by default ``val`` if it exists,
    else the last split. All other arguments are the same as in Ultralytics.

    Raises:
        OptionError: the store does not contain the field of the task, or the split.
    """

    def __new__(cls, dataloader: Any = None, save_dir: Any = None, args: Any = None, _callbacks: Any = None) -> Any:
        """A validator of the task that `args` names."""
        task = dict(args if isinstance(args, dict) else vars(args or DEFAULT_CFG)).get("task") or "detect"
        return object.__new__(_kind(VALIDATORS, task) if cls is StoreValidator else cls)

    def __call__(self, trainer: Any = None, model: Any = None, **kwargs: Any) -> Any:
        """Validate the model that `trainer` trains, or `model`."""
        if trainer is not None:
            return super().__call__(trainer, model, **kwargs)
        data = dataset_info(str(self.args.data), self.args.task, self.args.split or "val")
        with _supplied(self.args, data):
            return super().__call__(trainer, model, **kwargs)

    def build_dataset(self, img_path: str, mode: str = "val", batch: int | None = None) -> Any:
        """Return the data set of the split `img_path`."""
        how = {"augment": mode == "train", "rect": self.args.rect, "stride": self.stride}
        return _objects_dataset(self.args, img_path, self.data, batch, **how)


class StoreDetectionTrainer(StoreTrainer, DetectionTrainer):
    """`StoreTrainer` for the task detect."""


class StoreSegmentationTrainer(StoreTrainer, SegmentationTrainer):
    """`StoreTrainer` for the task segment."""


class StorePoseTrainer(StoreTrainer, PoseTrainer):
    """`StoreTrainer` for the task pose."""


class StoreOBBTrainer(StoreTrainer, OBBTrainer):
    """`StoreTrainer` for the task obb."""


class StoreClassificationTrainer(StoreTrainer, ClassificationTrainer):
    """`StoreTrainer` for the task classify."""

    def build_dataset(self, img_path: str, mode: str = "train", batch: int | None = None) -> StoreClassificationDataset:
        """Return the data set of the split `img_path`, with augmentations if the mode is ``train``."""
        return _labels_dataset(self.args, img_path, self.data, self.data["names"], mode == "train")


class StoreDetectionValidator(StoreValidator, DetectionValidator):
    """`StoreValidator` for the task detect."""


class StoreSegmentationValidator(StoreValidator, SegmentationValidator):
    """`StoreValidator` for the task segment."""


class StorePoseValidator(StoreValidator, PoseValidator):
    """`StoreValidator` for the task pose."""


class StoreOBBValidator(StoreValidator, OBBValidator):
    """`StoreValidator` for the task obb."""


class StoreClassificationValidator(StoreValidator, ClassificationValidator):
    """`StoreValidator` for the task classify."""

    def build_dataset(self, img_path: str, mode: str = "val", batch: int | None = None) -> StoreClassificationDataset:
        """Return the data set of the split `img_path`."""
        return _labels_dataset(self.args, img_path, self.data, self.names, False)


TRAINERS: Mapping[str, type[StoreTrainer]] = {
    "detect": StoreDetectionTrainer,
    "segment": StoreSegmentationTrainer,
    "pose": StorePoseTrainer,
    "obb": StoreOBBTrainer,
    "classify": StoreClassificationTrainer,
}
VALIDATORS: Mapping[str, type[StoreValidator]] = {
    "detect": StoreDetectionValidator,
    "segment": StoreSegmentationValidator,
    "pose": StorePoseValidator,
    "obb": StoreOBBValidator,
    "classify": StoreClassificationValidator,
}
