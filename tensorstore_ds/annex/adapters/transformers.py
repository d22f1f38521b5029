"""A store for the Trainer of transformers, and for its image processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils.data import DataLoader as TorchLoader

from tensorstore_ds.annex.adapters.framework import imported
from tensorstore_ds.format.kinds import LabelField, LabelsField, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import first_of_kind
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.options import refusal

with imported("transformers"):
    from transformers import Trainer, TrainerCallback

#: Versions of transformers with which the tests of this module pass.
TESTED = "~=5.23"


class ImageCollator:
    """Collate samples of a store into batches for models of transformers, with an image processor.

    The processor gets all images of a batch with their annotations, and creates the values, the padding and the boxes.
    Gray images become RGB if the processor has 3 means. Tested with transformers 5.23 (`TESTED`).

    - Labels: ``pixel_values`` (B, C, H, W) float32 and ``labels`` (B,) int64.
    - Several labels per sample: ``labels`` (B, C) float32, as ``problem_type="multi_label_classification"`` takes them.
      Unknown labels are NaN.
    - Masks: ``labels`` (B, H, W) int64, from processors that accept ``segmentation_maps``.
    - Objects with boxes, of a data set with ``return_as="torchvision"`` and ``as_pil=True``: ``labels`` is a list of
      dicts with ``class_labels`` (m,) int64, ``boxes`` (m, 4) float32, center and size relative to the image, and
      others, for DETR and related models. There is a ``pixel_mask`` (B, H, W) if the processor pads. Processors
      leave out objects that are crowds.

    >>> collator = ImageCollator(AutoImageProcessor.from_pretrained(name), dataset)           # doctest: +SKIP
    >>> StoreTrainer(model, arguments, collator, dataset).train()                             # doctest: +SKIP

    Args:
        processor: image processor, such as a `ViTImageProcessor` or a `DetrImageProcessor`.
        dataset: data set of the samples. Its `transform` and `decode` can augment them.

    Raises:
        OptionError: the data set returns samples in a different form, or has no images.
    """

    def __init__(self, processor: Any, dataset: StoreDataset) -> None:
        self.processor, self.detects = processor, dataset.return_as == "torchvision"
        if dataset.return_as == "tuple":
            raise refusal("return_as", "dict, or torchvision for objects", "tuple")
        if self.detects and not dataset._by_sample:  # images would be numbers in [0, 1], which processors scale again
            raise refusal("as_pil", 'True, with `return_as="torchvision"`', "False")
        fields = {name: dataset.schema[name] for name in dataset.fields}
        if "image" not in fields:
            raise refusal("dataset", "a field image", ", ".join(fields))
        if not self.detects and (objects := first_of_kind(fields, ObjectsField)):
            advice = 'use `return_as="torchvision"` and `as_pil=True`, or leave it out with `fields`'
            raise refusal("return_as", "torchvision for objects", f"dict, with the field {objects}: {advice}")
        self.is_rgb = len(getattr(processor, "image_mean", None) or ()) == 3
        self.label, self.mask = first_of_kind(fields, LabelField), first_of_kind(fields, MaskField)
        self.labels = first_of_kind(fields, LabelsField)

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """A batch of samples as the data set returns them: dicts, or pairs of an image and a target."""
        images = [sample[0] if self.detects else sample["image"] for sample in samples]
        given: dict[str, Any] = {"return_tensors": "pt"}
        if isinstance(images[0], torch.Tensor):
            images = [image.as_subclass(torch.Tensor) for image in images]
            if self.is_rgb:
                images = [image.expand(3, -1, -1) if len(image) == 1 else image for image in images]
            given["input_data_format"] = "channels_first"
        elif self.is_rgb:
            images = [image.convert("RGB") if image.mode == "L" else image for image in images]
        if self.detects:
            given["annotations"] = [annotation(target) for _, target in samples]
        elif self.mask:
            given["segmentation_maps"] = [sample[self.mask].as_subclass(torch.Tensor) for sample in samples]
        batch = dict(self.processor(images=images, **given))
        if self.label and "labels" not in batch:
            batch["labels"] = torch.as_tensor([int(sample[self.label]) for sample in samples])
        elif self.labels and "labels" not in batch:
            batch["labels"] = torch.stack([sample[self.labels] for sample in samples])
        elif self.mask and isinstance(batch["labels"], list):
            batch["labels"] = torch.stack(batch["labels"])
        return batch


def annotation(target: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a target of ``return_as="torchvision"`` to COCO's form, which processors accept.

    The result contains ``image_id``, and ``annotations`` with ``bbox`` (x, y, width, height), ``category_id`` from 0,
    and others.
    """
    boxes = target["boxes"].as_subclass(torch.Tensor)
    boxes = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
    columns = (boxes, target["labels"] - 1, target["area"], target["iscrowd"])
    names = ("bbox", "category_id", "area", "iscrowd")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {"image_id": target["image_id"], "annotations": [dict(zip(names, row, strict=True)) for row in rows]}


class StoreTrainerMixin:
    """Mixin that gives a `Trainer` the loaders of this library. Place it before the `Trainer` in the bases of a class.

    The `Trainer` decides the order, the ranks and where it resumes. For each `StoreDataset`, threads of this library
    read and collate the batches. ``TrainingArguments(dataloader_num_workers=...)`` starts worker processes instead. If
    a run resumes within an epoch, the rest of this epoch is read without threads.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_callback(_SetEpoch(self.train_dataset))  # type: ignore[attr-defined]

    def get_train_dataloader(self) -> Any:
        """Return a loader with batches in the order of the `Trainer`, prepared by Accelerate."""
        return _with_threads(super().get_train_dataloader(), self.data_collator)  # type: ignore[misc, attr-defined]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return a loader for evaluation, prepared by Accelerate."""
        return _with_threads(super().get_eval_dataloader(eval_dataset), self.data_collator)  # type: ignore[misc, attr-defined]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a loader for prediction, prepared by Accelerate."""
        return _with_threads(super().get_test_dataloader(test_dataset), self.data_collator)  # type: ignore[misc, attr-defined]


class StoreTrainer(StoreTrainerMixin, Trainer):
    """A `Trainer` with the loader of this library. Tested with transformers 5.23 (`TESTED`).

    Losses are identical to the `Trainer` with its own loader, because it decides the order. See `StoreTrainerMixin`.

    >>> StoreTrainer(model, arguments, train_dataset=tsds.StoreDataset("photos.tsds")).train()    # doctest: +SKIP
    """


class _SetEpoch(TrainerCallback):
    """Tells the data set the epoch that seeds `decode` and `transform`. Accelerate does so in one process only."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if isinstance(self.dataset, StoreDataset):
            self.dataset.set_epoch(int(state.epoch or 0))


class _Batches(DataLoader[Any]):
    """A loader with the epoch of its data set, so that all batches of an epoch use the same seed."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.set_epoch(cast(StoreDataset, self.dataset).epoch)
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)  # as torch's: dropout then draws the same
        return super().__iter__()


def _with_threads(prepared: Any, collate_fn: Any) -> Any:
    """Let threads of this library make the batches of a loader that Accelerate prepared."""
    plain: TorchLoader[Any] = prepared.base_dataloader
    if isinstance(plain.dataset, StoreDataset) and not plain.num_workers:
        device = prepared.device if prepared.device is not None and prepared.device.type == "cuda" else None
        prepared.base_dataloader = _Batches(
            plain.dataset, batch_sampler=plain.batch_sampler, collate_fn=collate_fn, device=device
        )
    return prepared
