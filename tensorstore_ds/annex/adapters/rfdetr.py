"""RF-DETR over a store: its own model, transforms, callbacks and COCO evaluation.

>>> from rfdetr import RFDETRNano                                                          # doctest: +SKIP
>>> from tensorstore_ds.annex.adapters.rfdetr import train                                       # doctest: +SKIP
>>> train(RFDETRNano(), "photos.tsds", epochs=10)                                          # doctest: +SKIP
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import rfdetr.training
from PIL import Image
from rfdetr import RFDETR
from rfdetr._namespace import _namespace_from_configs
from rfdetr.config import AugmentationBackend, ModelConfig, MultiScale, TrainConfig
from rfdetr.datasets import coco
from rfdetr.datasets.aug_configs import AUG_CONFIG
from rfdetr.datasets.kornia_transforms import is_gpu_postprocess, resolve_augmentation_backend
from rfdetr.training import RFDETRDataModule

from tensorstore_ds.annex.exporting.coco import annotations_of
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.kinds.base import Field, of_image
from tensorstore_ds.imaging.jpeg import JpegSegment
from tensorstore_ds.loading.decoding import DamagedImageError, ImageReader
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.store import Split, Store, open as open_store

#: Versions of RF-DETR that this module is for; its tests passed with 1.11.2.
TESTED = ">=1.11.2,<1.12"
#: What masks are drawn of.
_OUTLINES = ("polygons", "rle", "oriented_boxes")


def train(
    model: RFDETR,
    store: str | os.PathLike[str] | Store,
    *,
    train_split: str | None = None,
    val_split: str | None = None,
    **settings: Any,
) -> None:
    """Train an RF-DETR model on a store. It is ``RFDETR.train`` with a store instead of a folder.

    Weights, checkpoints and logs are written below `output_dir`, as by ``RFDETR.train``. If the model was made without
    `num_classes`, it gets the number of classes of the store. After training, its `class_names` are the classes of the
    store.

    Args:
        model: model such as ``RFDETRNano()``. A segmentation model needs polygons, RLE (`rle`) or oriented boxes.
        store: path, URL or open store.
        train_split: split to train on. None uses the first split.
        val_split: split to validate on. None uses `val`, or the last split if there is none.
        settings: arguments of ``RFDETR.train`` except `dataset_dir`.

    Raises:
        OptionError: the store has no images of 8 bits, no objects with boxes, or more classes than the model; or the
            model detects keypoints.
        UnknownNameError: the store does not contain a split.
        FormatError, RemoteError: see `tensorstore_ds.open`.

    Example:
        >>> model = RFDETRNano()                                                           # doctest: +SKIP
        >>> train(model, "photos.tsds", epochs=10, batch_size=8)                           # doctest: +SKIP
        >>> model.class_names                                                              # doctest: +SKIP
        ['cat', 'dog']
    """
    opened = store if isinstance(store, Store) else open_store(store)
    splits = {"train_split": train_split, "val_split": val_split}
    _splits(opened, model.model_config, **splits)
    _align_classes(model, opened)
    with _data_module(functools.partial(StoreData, store=opened, **splits)):
        model.train(dataset_dir=str(opened.place), **settings)


class StoreData(RFDETRDataModule):
    """RF-DETR's data module over a store, for your own Lightning trainer.

    The test stage reads the split `test`, or the validation split if there is none.

    Args:
        model_config: as in ``RFDETRDataModule``.
        train_config: as in ``RFDETRDataModule``. Its `dataset_dir` is not read.
        store: path, URL or open store.
        train_split: split to train on. None uses the first split.
        val_split: split to validate on. None uses `val`, or the last split if there is none.

    Raises:
        OptionError, UnknownNameError, FormatError, RemoteError: see `train`.

    Example:
        >>> data = StoreData(model_config, train_config, "photos.tsds")                    # doctest: +SKIP
        >>> trainer = build_trainer(train_config, model_config)                            # doctest: +SKIP
        >>> trainer.fit(RFDETRModelModule(model_config, train_config), data)               # doctest: +SKIP
    """

    _dataset_train: StoreDetection | None
    _dataset_val: StoreDetection | None

    def __init__(
        self,
        model_config: ModelConfig,
        train_config: TrainConfig,
        store: str | os.PathLike[str] | Store,
        *,
        train_split: str | None = None,
        val_split: str | None = None,
    ) -> None:
        super().__init__(model_config, train_config)
        self.store = store if isinstance(store, Store) else open_store(store)
        self._splits = _splits(self.store, model_config, train_split, val_split)

    def setup(self, stage: str) -> None:
        """Make the data sets of a stage, with the same transforms as RF-DETR uses for files."""
        if stage == "fit" and self._dataset_train is None:
            self._dataset_train = self._dataset("train")
        if stage != "test" and self._dataset_val is None:
            self._dataset_val = self._dataset("val")
        super().setup(stage)  # makes those that are missing, and what augments on GPUs

    def _build_test_dataset(self, ns: Any, resolution: int) -> StoreDetection:
        return self._dataset("test")

    def _dataset(self, image_set: str) -> StoreDetection:
        options = _namespace_from_configs(self.model_config, self.train_config)
        has_gpu = str(rfdetr.config.DEVICE).startswith("cuda")
        backend = resolve_augmentation_backend(self.train_config.augmentation_backend, has_cuda=has_gpu)
        augmentation = options.aug_config
        if backend == AugmentationBackend.ALBU and augmentation is None:
            augmentation = AUG_CONFIG
        scales = MultiScale.from_value(options.multi_scale)
        shared = {name: getattr(options, name) for name in ("expanded_scales", "patch_size", "num_windows")}
        shared |= {"multi_scale": scales is not MultiScale.OFF, "scale_jitter": options.scale_jitter}
        square = options.square_resize_div_64
        make = coco.make_coco_transforms_square_div_64 if square else coco.make_coco_transforms
        transforms = make(
            image_set,
            self.model_config.resolution,
            skip_random_resize=scales is not MultiScale.PER_SAMPLE,
            aug_config=augmentation,
            gpu_postprocess=is_gpu_postprocess(backend),
            **shared,
        )
        masks = options.segmentation_head
        least = coco.draft_size_for_transforms(image_set, self.model_config.resolution, include_masks=masks, **shared)
        return StoreDetection(self.store[self._splits[image_set]], transforms, masks=masks, least=least)


class StoreDetection(coco.CocoDetection):
    """RF-DETR's data set of a COCO folder, with images and annotations from a split of a store.

    Samples are equal to samples of ``CocoDetection``: an image, and a dict of boxes, labels from 0, and other values.
    Each sample is read on access. `coco` contains the classes, and the crowds, which only the evaluation uses.

    Args:
        split: split with images, and objects with boxes.
        transforms: transforms of RF-DETR, called with a PIL image and its targets, or None.
        masks: whether samples contain masks of the objects.
        least: minimum number of pixels per side of an image. Larger JPEG files are decoded at 1/2, 1/4 or 1/8. None
            decodes all files at full size.
    """

    def __init__(self, split: Split, transforms: Any, *, masks: bool = False, least: int | None = None) -> None:
        # Not the constructors of RF-DETR and torchvision, which read files.
        self.split, self.ids = split, range(len(split))
        self.root = None
        self._transforms, self._draft_size = transforms, least
        self._name, field = next(iter(_objects(split.fields).items()))
        names = field.classes or ("object",)
        self.label2cat = dict(enumerate(range(1, len(names) + 1)))
        self.cat2label = {category: label for label, category in self.label2cat.items()}
        self.include_masks, self.include_keypoints = masks, False
        self.prepare = coco.ConvertCoco(include_masks=masks, cat2label=self.cat2label)
        categories = {number: {"id": number, "name": name} for number, name in enumerate(names, 1)}
        crowds = dict(enumerate(self._crowds()))
        rows = {each["image_id"] for each in crowds.values()}
        sizes = {row: dict(zip(("height", "width"), self._size(row), strict=True)) for row in rows}
        self.coco = SimpleNamespace(cats=categories, label2cat=self.label2cat, anns=crowds, imgs=sizes)

    def _crowds(self) -> Iterator[dict[str, Any]]:
        table = self.split.table(self._name)
        if "iscrowd" in table.values:
            crowds = np.flatnonzero(table["iscrowd"][:])
            for row in np.unique(np.searchsorted(table.offsets, crowds, "right") - 1).tolist():
                yield from ({"image_id": row, **each} for each in self._load_target(row) if each["iscrowd"])

    def _size(self, row: int) -> tuple[int, int]:
        height, width = self._reader.shapes[row, :2].tolist()
        return height, width

    def _load_target(self, id: int) -> list[dict[str, Any]]:
        return list(annotations_of(self.split.table(self._name)[id], self._size(id)))

    def _decode_image(self, image_id: int) -> tuple[Image.Image, tuple[float, float]]:
        self.split.fetch(["image", self._name], np.array([image_id]))
        height, width = self._size(image_id)
        fits = [scale for scale in (2, 4, 8) if self._draft_size and scale * self._draft_size <= min(height, width)]
        try:
            array = self._reader.read(image_id, JpegSegment(0, 0, height, width), max(fits, default=1)).array
        except SourceError as error:
            raise DamagedImageError.at(0, self.split.key(image_id), error) from error
        if array.dtype != np.uint8:
            raise refusal("image", "8 bits per channel", f"{array.dtype} ({self.split.key(image_id)})")
        array = np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[:, :, :3]
        scales = array.shape[1] / width, array.shape[0] / height
        return Image.fromarray(np.ascontiguousarray(array)), scales

    @functools.cached_property
    def _reader(self) -> ImageReader:
        return ImageReader(self.split)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_reader"}

    def __repr__(self) -> str:
        return f"<StoreDetection of {self.split!r}>"


def _splits(
    store: Store, config: ModelConfig, train_split: str | None = None, val_split: str | None = None
) -> dict[str, str]:
    """The split for each of RF-DETR's splits, validated."""
    if config.use_grouppose_keypoints:
        raise refusal("model", "one that detects boxes or masks", "one that detects keypoints")
    names = store.splits
    found = {"train": train_split or names[0], "val": val_split or ("val" if "val" in names else names[-1])}
    found["test"] = "test" if "test" in names else found["val"]
    for split in found.values():
        _check_split(store[split], config)
    return found


def _check_split(split: Split, config: ModelConfig) -> None:
    """Raise `OptionError` if a model cannot be trained on a split."""
    name, field = next(iter(_objects(split.fields).items()), ("objects", None))
    values = {} if field is None else field.values
    if "image" not in split.fields or "boxes" not in values:
        found = ", ".join(split.fields) + (f"; {name} has {', '.join(values)}" if values else "")
        advice = "Use a store with boxes, such as one converted from COCO, Pascal VOC or YOLO."
        raise OptionError(f"{split.name}: expected images, and objects with boxes, found {found}. {advice}")
    if config.segmentation_head and not values.keys() & {*_OUTLINES}:
        advice = "Use a model that detects boxes, such as RFDETRNano."
        raise OptionError(f"{split.name}: expected {name} with polygons or rle, found {', '.join(values)}. {advice}")


def _objects(fields: Mapping[str, Field]) -> dict[str, ObjectsField]:
    return of_image(fields, ObjectsField)


def _align_classes(model: RFDETR, store: Store) -> None:
    """Set the model's number of classes to that of the store, unless the user chose it, as RF-DETR does for files."""
    field = next(iter(_objects(store.manifest.fields).values()), None)
    classes = 1 if field is None else len(field.classes) or 1
    config = model.model_config
    if "num_classes" not in config.model_fields_set:
        config.num_classes = model.model.args.num_classes = classes
    elif config.num_classes < classes:
        advice = f"Make the model without `num_classes`, or with num_classes={classes}."
        raise OptionError(f"{store.name}: expected at most {config.num_classes} classes, found {classes}. {advice}")


@contextmanager
def _data_module(made: Callable[..., RFDETRDataModule]) -> Iterator[None]:
    """Replace the data module until the block ends: ``RFDETR.train`` imports its class when it is called."""
    own = rfdetr.training.RFDETRDataModule
    rfdetr.training.RFDETRDataModule = made
    try:
        yield
    finally:
        rfdetr.training.RFDETRDataModule = own
