"""What torch gets of each kind of field. All differences between kinds are in this module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.format.kinds import LabelsField, MaskField, ObjectsField, RaggedField, RawImageField
from tensorstore_ds.format.kinds.base import ArrayField, Field, first_of_kind, of_kind
from tensorstore_ds.format.kinds.objects import IGNORED
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.augment.values import unit, white_of
from tensorstore_ds.loading.buffers import BufferPool, torch_dtype
from tensorstore_ds.loading.collate import Collate, Deferred, PackedObjects, collate_objects, defer_objects, map_tensors
from tensorstore_ds.loading.crew import Loop, share
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import Split

ReturnAs = Literal["dict", "tuple", "torchvision"]
#: A batch's values of a field: a tensor with a row for each sample, objects, or a list of keys, texts, or
#: images of different sizes.
Value = torch.Tensor | PackedObjects | list[str] | list[list[str]] | list[torch.Tensor]


#: Bytes of rows that one thread copies, if others can copy the rest.
_SHARED_NBYTES = 4 * 1024**2


def is_decoded(field: Field) -> bool:
    """Whether rows are images of different sizes, as files or pixels. Files take long to decode."""
    return bool(field.encoding) and field.one_shape is None


def classes_of(fields: Mapping[str, Field]) -> tuple[str, ...]:
    """Return the class names of the labels, of the objects, or of the masks, or none."""
    return next((field.classes for field in fields.values() if field.classes), ())


def objects_in(names: Iterable[str], fields: Mapping[str, Field]) -> str | None:
    """Return the first of these names that is a field of objects."""
    return first_of_kind({name: fields[name] for name in names}, ObjectsField)


def images_in(names: Iterable[str], fields: Mapping[str, Field]) -> list[str]:
    """Return the names of images, `image` or its views `image_0`, `image_1` and so on."""
    return [name for name in names if name.startswith("image") and name in fields and fields[name].encoding]


def pair_of(fields: Mapping[str, Field], usual: Iterable[str]) -> tuple[str, ...]:
    """Return the fields of (image, target), or all the `usual` ones if there is no label, no mask and no image.

    Fields that are added to a store later do not change a loop over images and labels. Objects and the other fields of
    their sample are one target.
    """
    names = tuple(name for name in usual if name != "image")
    chosen = {name: fields[name] for name in sorted(names, key=lambda name: name != "label")}
    target = next((name for kind in ("label", "labels") for name, each in chosen.items() if each.kind == kind), None)
    if target is None and not of_kind(chosen, ObjectsField):
        target = next(iter(of_kind(chosen, MaskField)), None)
    return tuple(usual) if target is None or "image" not in fields else ("image", target)


# --- from columns to batches ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gatherer:
    """What torch gets of a kind of field.

    Attributes:
        gather: gathers some rows of a split's field that needs no decoding into memory of a pool.
        loaded: changes a tensor of stored rows as `gather` does.
        on_device: whether rows are numbers that a device can hold and gather, unlike keys or image files.
        has_views: whether `loaded` returns a view.
    """

    gather: Callable[[Split, str, NDArray[np.int64], BufferPool], Value]
    loaded: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows
    on_device: bool = True
    has_views: bool = False


def gatherer_of(field: Field) -> Gatherer:
    """Return the gatherer of a field's class, or of the nearest class that it derives from."""
    kind = type(field)
    if kind not in GATHERERS:
        GATHERERS[kind] = next(GATHERERS[each] for each in kind.__mro__ if each in GATHERERS)
    return GATHERERS[kind]


def view_field(split: Split, name: str, row: int) -> torch.Tensor | None:
    """Return one row as a view of the read-only map, which must not be written to, or None if no view is possible."""
    column, gatherer = split[name], gatherer_of(split.fields[name])
    if not gatherer.has_views or isinstance(column, RaggedColumn) or not column.spec.shape:
        return None
    flat = torch.frombuffer(column[row], dtype=torch_dtype(column.spec.dtype))
    return gatherer.loaded(flat.view(1, *column.spec.shape))[0]


def _list(split: Split, name: str, rows: NDArray[np.int64], pool: BufferPool) -> Value:
    """A list with the value of each sample, such as keys as str, and texts as lists of str."""
    column = split[name]
    return [column[row] for row in rows.tolist()]


def _array(split: Split, name: str, rows: NDArray[np.int64], pool: BufferPool) -> Value:
    """(B, ...) as it is stored."""
    column = split.column(name)
    tensor, array = pool.empty(len(rows), column.spec)
    if array.nbytes <= _SHARED_NBYTES:
        column.take(rows, out=array)
        return tensor
    step = max(1, _SHARED_NBYTES // max(1, column.spec.row_nbytes))

    def take(loop: Loop) -> None:
        for piece in loop:
            some = slice(piece * step, (piece + 1) * step)
            column.take(rows[some], out=array[some])

    share(-(-len(rows) // step), take)
    return tensor


def _channels_first(images: Any) -> Any:
    """(B, C, H, W) in channels-last memory."""
    return images.permute(0, 3, 1, 2)


def _labels(split: Split, name: str, rows: NDArray[np.int64], pool: BufferPool) -> Value:
    """(B, C) float32, NaN where unknown."""
    column = split.column(name)
    tensor, array = pool.empty(len(rows), ArraySpec("float32", column.spec.shape))
    array[...] = column.take(rows)
    array[array < 0] = np.nan
    return tensor


def _objects(split: Split, name: str, rows: NDArray[np.int64], pool: BufferPool) -> Value:
    ragged = split.table(name).take(rows)
    return PackedObjects(torch.from_numpy(ragged.offsets), {n: torch.from_numpy(v) for n, v in ragged.values.items()})


def _ragged(split: Split, name: str, rows: NDArray[np.int64], pool: BufferPool) -> Value:
    """A list with a tensor (m, ...) for each sample, views of one tensor."""
    found = split.table(name).take(rows)
    (values,) = found.values.values()
    tensor = torch.from_numpy(values)
    return [tensor[first:last] for first, last in pairwise(found.offsets.tolist())]


#: By class of fields. Classes that are not named have the gatherer of the nearest class that they derive from.
GATHERERS: dict[type[Field], Gatherer] = {
    Field: Gatherer(_list, on_device=False),
    ArrayField: Gatherer(_array, has_views=True),
    RawImageField: Gatherer(lambda *asked: _channels_first(_array(*asked)), _channels_first, has_views=True),
    LabelsField: Gatherer(_labels, lambda rows: torch.where(rows < 0, torch.nan, rows.to(torch.float32))),
    ObjectsField: Gatherer(_objects),
    RaggedField: Gatherer(_ragged, on_device=False),
}


# --- as a training script wants them --------------------------------------------------------------------------------


def as_sample(
    sample: dict[str, Any], fields: Mapping[str, Field], return_as: ReturnAs, row: int, *, wrap: bool, as_pil: bool
) -> Any:
    """Convert one sample, a dict of image (C, H, W), label (), objects {name: (m, ...)}, to `return_as`.

    The dict is consumed. With `wrap`, image, boxes, keypoints and masks become torchvision's tv_tensors, so that
    ``torchvision.transforms.v2`` moves them together. With `as_pil`, the image becomes a PIL image.
    """
    objects = objects_in(sample, fields)
    if wrap or (objects is not None and return_as != "dict"):
        from torchvision import tv_tensors  # imported here, because it takes seconds that the first batch does not need
    if objects is not None and return_as == "torchvision":
        sample[objects] = {**detection_values(sample[objects]), "image_id": row}
        if not wrap:
            sample[objects] |= visible_keypoints(sample[objects])
    moved = objects is not None and (wrap or return_as != "dict")
    for name, field in of_kind({name: fields[name] for name in sample}, ObjectsField).items() if moved else ():
        wrapped = sample[name] = dict(sample[name])
        canvas = tuple(sample["image"].shape[-2:]) if "image" in sample else (0, 0)
        if "boxes" in wrapped:
            wrapped["boxes"] = tv_tensors.BoundingBoxes(wrapped["boxes"], format="XYXY", canvas_size=canvas)
        if "oriented_boxes" in wrapped and (wrap or return_as == "torchvision"):
            rotated = wrapped["oriented_boxes"]
            rotated = rotated if return_as == "torchvision" else in_degrees(rotated)
            wrapped["oriented_boxes"] = tv_tensors.BoundingBoxes(rotated, format="CXCYWHR", canvas_size=canvas)
        if wrap and "keypoints" in wrapped:
            from tensorstore_ds.loading.paired_keypoints import paired

            sample[name] = paired(wrapped, field, canvas)
        elif "keypoints" in wrapped and return_as != "torchvision":
            wrapped["keypoints"] = tv_tensors.KeyPoints(wrapped["keypoints"], canvas_size=canvas)
    images = images_in(sample, fields)
    for name in images:
        if as_pil:
            sample[name] = _pil_image(sample[name])
        elif wrap:
            sample[name] = tv_tensors.Image(sample[name])
        elif return_as == "torchvision":
            sample[name] = detection_image(sample[name])
    for name in of_kind({name: fields[name] for name in sample}, MaskField) if wrap else ():
        sample[name] = tv_tensors.Mask(sample[name])
    if return_as == "dict":
        return sample
    if return_as == "torchvision":
        return sample["image"], sample[str(objects)]
    if objects is not None:
        return sample.pop("image", None), sample[objects] if len(sample) == 1 else sample
    return (*(sample.pop(name) for name in images), *sample.values())


def _pil_image(image: torch.Tensor) -> Image.Image:
    if image.shape[0] > 1 and image.dtype != torch.uint8:
        found = f"{len(image)} channels of {image.dtype}: use `as_pil=False`, with transforms of tensors"
        raise refusal("as_pil", "colors of 8 bits, because PIL has no others", found)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def detection_image(image: torch.Tensor) -> torch.Tensor:
    """Convert an image, or a batch of images, to float32 in [0, 1], for torchvision's detection models."""
    return unit(image.to(torch.float32), white_of(image.dtype)) if image.dtype in (torch.uint8, torch.uint16) else image


def in_degrees(boxes: torch.Tensor) -> torch.Tensor:
    """Convert oriented boxes (M, 5) for torchvision, whose angles are degrees, counterclockwise."""
    return torch.cat([boxes[:, :4], -torch.rad2deg(boxes[:, 4:])], dim=1)


def detection_values(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert objects for torchvision's detection models and references, in which class 0 is the background.

    It adds ``area`` (M,) of the boxes in pixels, and ``iscrowd`` (M,) int64, which is 1 for objects that are
    ``iscrowd`` or ``difficult``: pycocotools ignores both in an evaluation. Oriented boxes are `in_degrees`.
    """
    x1, y1, x2, y2 = values["boxes"].unbind(1)
    turned = {name: in_degrees(each) for name, each in values.items() if name == "oriented_boxes"}
    added = turned | {"labels": values["labels"] + 1, "area": (x2 - x1) * (y2 - y1)}
    ignored = torch.zeros_like(added["labels"])
    for flag in IGNORED:
        if flag in values:
            ignored = torch.maximum(ignored, values[flag].to(ignored.dtype))
    return {**values, **added, "iscrowd": ignored}


def visible_keypoints(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert keypoints (M, K, 2) for torchvision's Keypoint R-CNN: (M, K, 3) float32 x, y, 1, zeros where absent."""
    points = values.get("keypoints")
    if points is None or points.ndim != 3 or points.shape[2] != 2:
        return {}
    points = points.as_subclass(torch.Tensor)
    is_there = ~points.isnan().any(dim=2, keepdim=True)
    return {"keypoints": torch.cat([points.nan_to_num(0.0) * is_there, is_there], dim=2).to(torch.float32)}


def as_detection(
    columns: Mapping[str, Any], fields: Mapping[str, Field], rows: NDArray[np.int64], how: Collate, *, defers: bool
) -> Any:
    """Convert a batch to images and collated targets, as in torchvision's detection references.

    With `defers`, images stay integers, 1/4 or 1/2 of the bytes, until they are on their device.
    """
    image, packed = columns["image"], columns[str(objects_in(columns, fields))]
    scaled = functools.partial(map_tensors, change=detection_image)
    numbered = functools.partial(_numbered, rows=rows.tolist())
    values = detection_values(packed.values)
    packed = PackedObjects(packed.offsets, values | visible_keypoints(values))
    if defers:
        targets = defer_objects(packed, how)
        return Deferred(image, scaled), targets.then(numbered) if how == "list" else targets
    targets = collate_objects(packed, how)
    return scaled(image), numbered(targets) if how == "list" else targets


def _numbered(targets: list[dict[str, Any]], rows: list[int]) -> list[dict[str, Any]]:
    return [{**target, "image_id": row} for target, row in zip(targets, rows, strict=True)]


def as_tuple(columns: dict[str, Any], fields: Mapping[str, Field]) -> tuple[Any, ...]:
    """Convert a batch to (images, labels), or (images, targets) with objects. `columns` is consumed."""
    objects = objects_in(columns, fields)
    if objects is None:
        images = [columns.pop(name) for name in images_in(list(columns), fields)]
        return (*images, *columns.values())
    image = columns.pop("image", None)
    return image, columns[objects] if len(columns) == 1 else columns
