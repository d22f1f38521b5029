"""Draw masks of objects in the pixels of a batch, after crops, resizing and mirroring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.imaging.outlines import fill_polygons, mask_of_runs
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.store import Split

#: Values of objects: their row in the split with their number there, and the corners of the stored image and of its
#: visible part. Transforms move the corners like keypoints, and clip those of the part. The image's corners determine
#: all other points, because these transforms are linear along x and y.
OUTLINE, FRAME = "outline", "frame"

#: The objects of a batch, collated as ``packed`` or ``list``.
Objects = PackedObjects | Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]


def with_frames(objects: PackedObjects, rows: NDArray[np.int64], sizes: NDArray[Any]) -> PackedObjects:
    """Objects of samples of these rows (B,), whose stored images have these (height, width) (B, 2), with both values.

    >>> packed = PackedObjects(torch.tensor([0, 2]), {"labels": torch.tensor([4, 5])})
    >>> found = with_frames(packed, np.array([7]), np.array([[30, 40]]))[0]
    >>> found["outline"].tolist(), found["frame"][1].tolist()
    ([[7, 0], [7, 1]], [[0.0, 0.0], [40.0, 30.0], [0.0, 0.0], [40.0, 30.0]])
    """
    sample = objects.image_index
    number = torch.arange(objects.total) - objects.offsets[sample]
    outline = torch.stack([torch.from_numpy(np.asarray(rows, np.int64))[sample], number], 1)
    frame = torch.zeros((objects.total, 4, 2), dtype=torch.float32)
    frame[:, 1::2] = torch.from_numpy(sizes[:, ::-1].astype(np.float32))[sample, None]
    return PackedObjects(objects.offsets, {**objects.values, OUTLINE: outline, FRAME: frame})


def draw_instance_masks(split: Split, objects: Objects, size: tuple[int, int]) -> list[Tensor]:
    """Draw the masks of a batch's objects, in pixels of the batch's images.

    Polygons are drawn with the same pixels as in pycocotools. RLE masks are transformed to the nearest pixel, like
    other masks. An object with neither has an empty mask. The CPU draws them.

    >>> dataset = tsds.StoreDataset("coco.tsds", "train", outlines=True)
    >>> loader = tsds.DataLoader(dataset, batch_size=2, collate="packed")
    >>> for batch in loader:
    ...     masks = tsds.loading.draw_instance_masks(dataset.split, batch["objects"], batch["image"].shape[-2:])
    >>> masks[0].shape, int(masks[0].sum())
    (torch.Size([1, 32, 48]), 256)

    Args:
        split: split of the batch, which is the `split` of the data set.
        objects: objects of the batch after all transforms, as ``packed`` or ``list``, such as the objects of one
            sample.
        size: (height, width) of the batch's images.

    Returns:
        For each sample the masks (m, H, W) bool of its objects, on the device of the objects.

    Raises:
        OptionError: the objects have no outlines, or another form than ``packed`` or ``list``, or pycocotools is not
            installed.
        SourceError: an RLE mask belongs to an image of another size, or the edges of polygons are many million pixels
            long.
    """
    samples = _samples(objects)
    masks = [[mask for mask, _, _ in _drawn(split, each, size)] for each in samples]
    stacked = (np.stack(each) if each else np.zeros((0, *size), np.bool_) for each in masks)
    return [torch.from_numpy(each).to(_device(samples)) for each in stacked]


def draw_class_masks(
    split: Split, objects: Objects, size: tuple[int, int], *, background: int = 0, first: int = 1, ignored: int = 255
) -> Tensor:
    """Draw the class of each pixel, from the masks of `draw_instance_masks`.

    Where objects overlap, the object with fewer pixels is visible. Pixels of crowds (`iscrowd`) are `ignored`, unless
    another object is there.

    >>> dataset = tsds.StoreDataset("coco.tsds", "train", outlines=True)
    >>> loader = tsds.DataLoader(dataset, batch_size=2, collate="packed")
    >>> for batch in loader:
    ...     classes = tsds.loading.draw_class_masks(dataset.split, batch["objects"], batch["image"].shape[-2:])
    >>> classes.shape, classes.unique().tolist()
    (torch.Size([2, 32, 48]), [0, 1])

    Args:
        split, objects, size: as in `draw_instance_masks`.
        background: value of pixels without an object, also outside of the image.
        first: value of class 0. The other classes follow. Use 0 if the classes contain a background.
        ignored: value of crowds, the `ignore_index` of a loss.

    Returns:
        (B, H, W) int64, on the device of the objects.

    Raises:
        OptionError, SourceError: as in `draw_instance_masks`.
    """
    samples = _samples(objects)
    classes: NDArray[np.int64] = np.full((len(samples), *size), background, np.int64)
    for sample, pixels in zip(samples, classes, strict=True):
        drawn = sorted(_drawn(split, sample, size), key=lambda each: (not each[2], -int(each[0].sum())))
        for mask, label, is_crowd in drawn:
            pixels[mask] = ignored if is_crowd else first + label
    return torch.from_numpy(classes).to(_device(samples))


def _samples(objects: Objects) -> list[Mapping[str, Tensor]]:
    """Return the objects of each sample."""
    if isinstance(objects, Mapping):
        values = {name: value for name, value in objects.items() if name != "offsets"}
        if "offsets" not in objects:
            raise refusal("objects", 'objects of a batch with `collate="packed"` or "list"', ", ".join(objects))
        objects = PackedObjects(objects["offsets"], values)
    samples = list(objects)
    for each in samples:
        if not {OUTLINE, FRAME} <= each.keys():
            raise refusal("outlines", "objects of a StoreDataset(outlines=True)", ", ".join(each) or "none")
    return samples


def _device(samples: Sequence[Mapping[str, Tensor]]) -> torch.device | None:
    return samples[0][FRAME].device if samples else None


def _drawn(
    split: Split, objects: Mapping[str, Tensor], size: tuple[int, int]
) -> Iterator[tuple[NDArray[np.bool_], int, bool]]:
    """Return the mask (H, W), the label in the store, and whether it is a crowd, for each object of a sample."""
    if not isinstance(split, Split):
        raise refusal("split", "the data set's split, `dataset.split`", f"a {type(split).__name__}")
    table = split[next(iter(of_kind(split.fields, ObjectsField)))]
    read = dict[int, Mapping[str, Any]]()  # by row: a mosaic has objects of several
    frames = objects[FRAME].cpu().numpy().astype(np.float64)
    for (row, i), (corner, opposite, *part) in zip(objects[OUTLINE].tolist(), frames, strict=True):
        values = read[row] if row in read else read.setdefault(row, table[row])
        height, width = split.image_shapes[row, :2].tolist()
        scale = (opposite - corner) / (width, height)  # negative along x in a mirrored image
        mask: NDArray[np.bool_] = np.zeros(size, np.bool_)
        if "rle" in values and len(values["rle"][i]):
            mask |= _placed(mask_of_runs(values["rle"][i], (height, width), "rle"), corner, scale, size)
        if "polygons" in values and len(values["polygons"][i]):
            mask |= fill_polygons(values["polygons"][i] * scale + corner, size)
        (left, top), (right, bottom) = np.ceil(np.sort(part, axis=0) - 0.5).clip(0).astype(np.int64)  # by their centers
        mask[:top], mask[bottom:], mask[:, :left], mask[:, right:] = False, False, False, False
        label, is_crowd = (values[each][i] if each in values else 0 for each in ("labels", "iscrowd"))
        yield mask, int(label), bool(is_crowd)


def _placed(
    mask: NDArray[np.bool_], corner: NDArray[np.float64], scale: NDArray[np.float64], size: tuple[int, int]
) -> NDArray[np.bool_]:
    """Resample a mask for an image of (height, width): each pixel is the one at its center."""
    inside, places = [], []
    for axis, (stop, length) in enumerate(zip(size, mask.shape, strict=True)):
        place = np.floor((np.arange(stop) + 0.5 - corner[1 - axis]) / scale[1 - axis])
        inside.append((place >= 0) & (place < length))
        places.append(place.clip(0, length - 1).astype(np.int64))
    placed: NDArray[np.bool_] = mask[np.ix_(*places)] & inside[0][:, None] & inside[1]
    return placed
