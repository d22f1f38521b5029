"""Base classes for the augmentation of whole batches, on the batch's device.

Results, and most names, are the same as in `torchvision.transforms.v2`. In contrast to torchvision, every sample has
its own parameters. They depend on (seed, epoch, row), and a few batched operations apply them all.
"""

from __future__ import annotations

import warnings
import zlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import Collate, PackedObjects, collate_objects, uncollated
from tensorstore_ds.loading.padding import PackedPatches, PaddedImages
from tensorstore_ds.seeding import Bits, fold

Params = dict[str, Tensor]
Size = tuple[int, int] | torch.Size  # (height, width)
Sizes = Size | NDArray[np.int64]  # of all images; or (B, 2), of each
Rows = Tensor | NDArray[np.int64]


#: Values of images in [0, 1] may exceed the range by this much, because resizing overshoots at edges.
_TOLERANCE = 0.25


class OfBatches(nn.Module):
    """Base class of transforms of a batch, which is a dict by field, or a tuple as with ``return_as="tuple"``."""

    @property
    def _has_no_state(self) -> bool:
        """Whether results depend on the arguments alone, so that threads may transform several batches at once.

        False for subclasses of the user and for modules with hooks, which get one batch at a time.
        """
        own = type(self).__module__.startswith("tensorstore_ds.")
        return own and not (self._forward_hooks or self._forward_pre_hooks)

    @property
    def _mixes_samples(self) -> bool:
        """Whether the result for a sample depends on other samples, so that batches must be transformed separately."""
        return False

    def forward(self, batch: Any, rows: Rows | None = None, epoch: int | None = None) -> Any:
        """Transform a batch. Members that are not listed here are passed through.

        Args:
            batch: a dict with

                - ``image``: (B, C, H, W) uint8, uint16, or floating-point in [0, 1], in any memory format, which is
                  kept.
                - ``objects`` (optional): `PackedObjects`, or what `collate_objects` makes of them. Their tensors do not
                  change. On a GPU, lists and padded objects synchronize.
                - ``mask`` (optional): integers (B, H, W), transformed with the images.
                - ``image_mask`` and ``image_size`` (optional), for padded images: transformed with the images. The size
                  becomes the size of the remaining part of the image. Padding stays zero.

                or a tuple that begins with the images, or with `PaddedImages`, followed by labels, masks, objects, or a
                dict of these; or a tensor of the images alone.
            rows: (B,) integers that identify the samples, such as their rows in the split. A tensor on a GPU
                synchronizes. If None, parameters are from torch's global generator, as in torchvision.
            epoch: number of the epoch. Pass it with `rows`.

        Returns:
            A new batch of the same form.

        Raises:
            ValueError: the batch has another form, or only one of `rows` and `epoch` was passed.
        """
        if isinstance(batch, Tensor):
            return self.transform_batch({"image": batch}, rows, epoch)["image"]
        if not isinstance(batch, tuple):
            return self.transform_batch(batch, rows, epoch)
        image, *others = batch or (None,)
        images = image._asdict() if isinstance(image, PaddedImages | PackedPatches) else {"image": image}
        if len(others) == 1 and isinstance(others[0], Mapping) and _name_of(others[0]) is None:
            result = self.transform_batch({**images, **others[0]}, rows, epoch)
            return _first_member(result, image), result
        named = {**images, **{_name_of(value) or f"value {i}": value for i, value in enumerate(others)}}
        if len(named) != len(images) + len(others):
            raise ValueError("batch: expected one mask and one member with objects, found several. Pass a dict.")
        result = self.transform_batch(named, rows, epoch)
        return _first_member(result, image), *result.values()

    @abstractmethod
    def transform_batch(
        self, batch: Mapping[str, Any], rows: Rows | None, epoch: int | None, pool: BufferPool | None = None
    ) -> dict[str, Any]:
        """Transform a batch that is a dict, like `forward`.

        With a `pool`, results are in its memory, or in the memory of the batch, which is overwritten.
        """


def _first_member(result: dict[str, Any], image: Any) -> Any:
    """Return the first member of a tuple's result, in the form that `image` had."""
    if isinstance(image, PaddedImages | PackedPatches):
        return type(image)(*(result.pop(name) for name in image._fields))
    return result.pop("image")


def _name_of(value: Any) -> str | None:
    """Name of the field of a tuple's member, or None if it does not move with the images."""
    first = value[0] if isinstance(value, list) and value else value
    moving = isinstance(first, Mapping) and {"offsets", "boxes", "oriented_boxes", "keypoints"} & first.keys()
    if isinstance(value, PackedObjects) or moving:
        return "objects"
    return "mask" if _is_mask(value) else None


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and not value.is_floating_point()


class BatchTransform(OfBatches):
    """Base class of random transforms of a whole batch, with separate parameters for every sample.

    The parameters depend on (seed, kind of transform, epoch, row). They do not depend on the batch, the device, or
    earlier random numbers, so a resumed run has the same augmentation. They are computed on the CPU, because devices
    round differently, and copied to the batch's device without waiting for it.

    Args:
        seed: seed of the random numbers. Two transforms of one kind with the same seed have the same random numbers,
            except inside a `Compose`.
    """

    #: Whether floating-point images must have values in [0, 1], as before `Normalize`; others are clamped or distorted.
    _of_unit_images: ClassVar[bool] = False

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._has_looked = False  # whether the values of the first batch were checked

    def transform_batch(
        self, batch: Mapping[str, Any], rows: Rows | None, epoch: int | None, pool: BufferPool | None = None
    ) -> dict[str, Any]:
        images = check_images(batch)
        if self._of_unit_images and not self._has_looked:
            self._has_looked = True
            if images.is_floating_point() and images.numel():
                low, high = (float(value) for value in images.detach().aminmax())
                if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):
                    wanted = f"{type(self).__name__}: expected floating-point images in [0, 1]"
                    advice = "Put Normalize after it, and divide values of 0 to 255 by 255."
                    warnings.warn(f"{wanted}, found {low:.3g} to {high:.3g}. {advice}", stacklevel=2)
        params = self.make_params(self.keys(check_rows(rows, epoch, len(images)), epoch or 0), images.shape[-2:])
        others = self._change_others(batch, params, images.shape[-2:])
        return {**batch, **self._change_pixels(batch, params, pool), **others}

    @property
    def _moves_objects(self) -> bool:
        """Whether the transform moves objects with the images. Transforms of colors do not."""
        return type(self).transform_objects is not BatchTransform.transform_objects

    def _size_after(self, size: Size) -> Size:
        """Return the (height, width) of transformed images that had `size` before."""
        return size

    def _change_others(self, batch: Mapping[str, Any], params: Params, size: Size) -> dict[str, Any]:
        """Return the transformed members without pixels, for images of `size`, which are the objects, if any."""
        objects = batch.get("objects")
        if objects is None or not self._moves_objects:
            return {}
        packed, how = _packed(objects, len(batch["image"]))
        moved = self.transform_objects(packed, params, size)
        return {} if moved is packed else {"objects": moved if how is None else collate_objects(moved, how)}

    def _change_pixels(self, batch: Mapping[str, Any], params: Params, pool: BufferPool | None) -> dict[str, Any]:
        """Return the transformed members with pixels, which are `image`, `mask`, `image_mask` and `image_size`."""
        images, masks = check_images(batch), batch.get("mask")
        size = images.shape[-2:]
        # torch lacks many operations on uint16, on devices more than on a CPU.
        wide = images.dtype == torch.uint16 and (images.device.type != "cpu" or torch.compiler.is_compiling())
        changed = self.transform_images(images.to(torch.int32) if wide else images, params, pool)
        result = {"image": changed.to(images.dtype) if wide and not changed.is_floating_point() else changed}
        if isinstance(masks, Tensor) and _is_mask(masks):
            expected, found = (len(images), *size), tuple(masks.shape)
            if found != expected:
                raise ValueError(f"batch['mask']: expected a mask for each image, {expected}, found {found}.")
            layers = masks.view(torch.int16) if masks.dtype == torch.uint16 else masks  # torch lacks uint16 ops
            result["mask"] = self.transform_masks(layers[:, None], params, pool)[:, 0].view(masks.dtype)
        if has_padding(batch):
            outside = self.transform_masks((~batch["image_mask"]).view(torch.uint8)[:, None], params, pool) != 0
            layers = result["image"].view(torch.int16) if result["image"].dtype == torch.uint16 else result["image"]
            layers.masked_fill_(outside, 0)
            result["image_mask"] = inside = ~outside[:, 0]
            result["image_size"] = torch.stack([inside.any(2).sum(1), inside.any(1).sum(1)], 1)
        return result

    def keys(self, rows: Rows, epoch: int) -> Bits:
        """Return 64 random bits for each of `rows`, (B,), from which the parameters are computed."""
        kind = zlib.crc32(type(self).__name__.encode())
        return fold(self.seed, kind, epoch, check_rows(rows, epoch, len(rows)).view(np.uint64))

    @abstractmethod
    def make_params(self, keys: Bits, size: Size) -> Params:
        """Return the parameters by name, each (B, ...) on the CPU, for images of (height, width) `size`."""

    @abstractmethod
    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        """Return the transformed images (B, C, H, W), in new memory. With a `pool`, in its memory or in place."""

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        """Return the transformed objects, for images of (height, width) `size`, or the same object if nothing moves."""
        return objects

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        """Return the transformed masks (B, 1, H, W), or the same tensor if only colors change."""
        return masks

    def extra_repr(self) -> str:
        shown = self.__dict__.items()
        return ", ".join(f"{k}={v!r}" for k, v in shown if not k.startswith("_") and k != "training")


def check_images(batch: Mapping[str, Any], *, whole: bool = True) -> Tensor:
    """Return the batch's images. Raises `ValueError` if a batch transform cannot use them, or they are not `whole`."""
    images = batch.get("image")
    if whole and "image_offsets" in batch:
        raise ValueError(
            "batch['image']: expected whole images, found patches, which a Normalize alone can change. Crop and mirror "
            "in `decode`, and change colors in a `transform` of StoreDataset."
        )
    if not isinstance(images, Tensor) or images.ndim != 4:
        if images is None and "image_0" in batch:
            raise ValueError(
                "batch['image']: expected one image a sample, found the views image_0, ... of several decode plans. "
                "Pass a list with a transform for each view as `batch_transform`, or use `Views`."
            )
        found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        expected = "expected a tensor (B, C, H, W)"
        raise ValueError(
            f"batch['image']: {expected}, found {found}. Bring images to one size: pass a crop or Resize to the loader "
            'as `decode`, use `collate_images="padded"`, or convert with `size`.'
        )
    if not images.is_floating_point() and images.dtype not in (torch.uint8, torch.uint16):
        expected = "expected uint8, uint16 or floating-point"
        raise ValueError(f"batch['image']: {expected}, found {images.dtype}. Convert it first.")
    return images


def has_padding(batch: Mapping[str, Any]) -> bool:
    """Whether the images are padded, with a mask of the padding."""
    inside = batch.get("image_mask")
    return isinstance(inside, Tensor) and inside.dtype == torch.bool


def check_rows(rows: Rows | None, epoch: int | None, samples: int) -> NDArray[np.int64]:
    """Return `rows` as an array, or random rows if there are neither rows nor an epoch."""
    if (rows is None) != (epoch is None):
        raise ValueError(
            "rows and epoch: expected both, or neither, found one. Rows alone would get the same augmentation in every "
            "epoch; pass `epoch` too."
        )
    if rows is None:
        return torch.randint(-(2**63), 2**63 - 1, (samples,)).numpy()
    array = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    if array.shape != (samples,) or array.dtype.kind not in "iu":
        found = f"{array.shape} {array.dtype}"
        raise ValueError(f"rows: expected ({samples},) integers, found {found}. Pass one for each sample.")
    return array.astype(np.int64, copy=False)


def _packed(objects: Any, samples: int) -> tuple[PackedObjects, Collate | None]:
    """Return the table of a batch's objects, and the form in which they were collated, if any."""
    found = (objects, None) if isinstance(objects, PackedObjects) else uncollated(objects)
    if found is None:
        raise ValueError(
            f"batch['objects']: expected tensors, as a loader collates them, found others in a "
            f'{type(objects).__name__}. Load with `return_as="dict"`.'
        )
    if len(found[0]) != samples:
        expected = f"expected objects of {samples} samples, as of images"
        raise ValueError(f"batch['objects']: {expected}, found {len(found[0])}.")
    return found
