"""Images of differing sizes as one tensor. Each is in the upper left corner, so boxes and keypoints do not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.format.kinds.base import Field, of_kind
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.options import refusal

CollateImages = Literal["list", "padded", "patches"]
COLLATES_IMAGES: tuple[CollateImages, ...] = get_args(CollateImages)


class PaddedImages(NamedTuple):
    """Images of a batch, with zeros on the right and below if an image is smaller than the largest one.

    >>> voc = tsds.StoreDataset("voc.tsds", "train", fields=["image"], return_as="tuple")
    >>> (padded,) = next(iter(tsds.DataLoader(voc, batch_size=4, collate_images="padded")))
    >>> padded.image.shape, padded.image_mask.shape, padded.image_size[0].tolist()
    (torch.Size([4, 3, 80, 80]), torch.Size([4, 80, 80]), [60, 80])
    """

    image: Tensor  #: (B, C, H, W), in channels-last memory
    image_mask: Tensor  #: (B, H, W) bool, true inside the image
    image_size: Tensor  #: (B, 2) int64, height and width of every image


class PackedPatches(NamedTuple):
    """Patches of all images of a batch, one after the other, without padding, as models such as NaViT take them.

    With convolution weights (D, C, P, P), ``image.flatten(1) @ weights.flatten(1).T`` embeds all patches:

    >>> packed = tsds.loading.pack_patches([torch.zeros(3, 32, 16), torch.ones(3, 16, 48)], 16)
    >>> (packed.image.flatten(1) @ torch.ones(8, 3, 16, 16).flatten(1).T).shape
    torch.Size([5, 8])
    """

    image: Tensor  #: (T, C, P, P), in channels-last memory, the patches of each image line by line
    image_position: Tensor  #: (T, 2) int64, row and column of each patch in its image
    image_offsets: Tensor  #: (B + 1,) int64, where the patches of each image begin, and their number


#: Pads the columns of a batch that are these images, and the masks with them, by the fields.
Pad = Callable[[Mapping[str, Any], Mapping[str, Field], Sequence[str]], dict[str, Any]]


def pad_columns(
    columns: Mapping[str, Any], fields: Mapping[str, Field], images: Sequence[str], size_divisor: int, pool: BufferPool
) -> dict[str, Any]:
    """Return the columns of a batch, with `images` as `PaddedImages`, and masks padded with their ignored value."""
    padded = {name: pad_images(columns[name], size_divisor, pool=pool) for name in images}
    result: dict[str, Any] = {**columns, **padded}
    for name, mask in of_kind({name: fields[name] for name in columns if name in fields}, MaskField).items():
        masks = list(columns[name])
        own = next(image for image in images if name.endswith(image.removeprefix("image")))
        sizes = padded[own].image_size.tolist()
        found = [list(each.shape) if isinstance(each, Tensor) else type(each).__name__ for each in masks]
        if found != sizes:
            raise ValueError(f"{name}: expected masks of the sizes of their images, {sizes}, found {found}.")
        ignored = np.iinfo(mask.spec.dtype).max if mask.ignored is None else mask.ignored
        result[name] = _padded(masks, padded[own].image.shape[-2:], ignored, pool)
    return result


def patch_columns(
    columns: Mapping[str, Any], fields: Mapping[str, Field], images: Sequence[str], size_divisor: int, pool: BufferPool
) -> dict[str, Any]:
    """Return the columns of a batch, with `images` as `PackedPatches`, and masks as patches (T, P, P)."""
    packed: dict[str, Any] = {name: pack_patches(columns[name], size_divisor, pool=pool) for name in images}
    for name in of_kind({name: fields[name] for name in columns if name in fields}, MaskField):
        layers = [mask[None] for mask in columns[name]]
        packed[name] = pack_patches(layers, size_divisor, pool=pool).image[:, 0]
    return {**columns, **packed}


def pack_patches(
    images: Tensor | Sequence[Tensor], patch_size: int, *, pool: BufferPool | None = None
) -> PackedPatches:
    """Cut images of differing sizes into patches, line by line, one image after the other.

    >>> images = [torch.zeros(3, 32, 16), torch.ones(3, 16, 48)]
    >>> packed = tsds.loading.pack_patches(images, 16)
    >>> packed.image.shape, packed.image_offsets.tolist(), packed.image_position.tolist()
    (torch.Size([5, 3, 16, 16]), [0, 2, 5], [[0, 0], [1, 0], [0, 0], [0, 1], [0, 2]])

    Args:
        images: one or more tensors (C, H, W) of one C and dtype, or one tensor (B, C, H, W).
        patch_size: height and width of a patch, which divide the height and width of each image.
        pool: buffers to reuse. None allocates new memory.

    Raises:
        ValueError: images differ in their channels or dtype, or `patch_size` does not divide a height or width.
    """
    each = _alike(images)
    sizes = torch.tensor([image.shape[1:] for image in each])
    if (sizes % patch_size).any():
        height, width = sizes[(sizes % patch_size).any(1)][0].tolist()
        raise ValueError(
            f"images: expected heights and widths that are multiples of {patch_size}, found {height}x{width}. Use "
            f"ResizeToPatches({patch_size}, ...) as `decode`, or a Resize to such a size."
        )
    grids = sizes // patch_size
    offsets = torch.nn.functional.pad(grids.prod(1).cumsum(0), (1, 0))
    shape = (int(offsets[-1]), patch_size, patch_size, len(each[0]))
    patches, positions = _empty(each[0], shape, pool or BufferPool()), list[Tensor]()
    parts = torch.split(patches, grids.prod(1).tolist())
    for image, (rows, columns), part in zip(each, grids.tolist(), parts, strict=True):
        cut = image.permute(1, 2, 0).view(rows, patch_size, columns, patch_size, -1)
        part.view(rows, columns, patch_size, patch_size, -1).copy_(cut.transpose(1, 2))
        positions.append(torch.cartesian_prod(torch.arange(rows), torch.arange(columns)))
    position, device = torch.cat(positions), patches.device
    return PackedPatches(patches.permute(0, 3, 1, 2), position.to(device), offsets.to(device))


def _alike(images: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return images as a list. Raises `ValueError` unless all are (C, H, W) of one C and one dtype."""
    each = list(images)
    kinds = {(image.ndim, len(image), image.dtype) if isinstance(image, Tensor) else type(image) for image in each}
    if len(kinds) != 1 or not isinstance(each[0], Tensor) or each[0].ndim != 3:
        found = ", ".join(
            f"{tuple(image.shape)} {image.dtype}" if isinstance(image, Tensor) else type(image).__name__
            for image in each[:10]
        )
        raise ValueError(
            "images: expected tensors (C, H, W), of one C and one dtype in all of a batch, found "
            f'{found or "none"}. Convert them in the `transform`, or the data set with `color="rgb"`.'
        )
    return each


def pad_images(
    images: Tensor | Sequence[Tensor], size_divisor: int = 1, *, pool: BufferPool | None = None
) -> PaddedImages:
    """Copy images of differing sizes into one tensor, with zeros on the right and below.

    >>> images = [torch.ones(3, 20, 30, dtype=torch.uint8), torch.ones(3, 30, 20, dtype=torch.uint8)]
    >>> padded = tsds.loading.pad_images(images, size_divisor=16)
    >>> padded.image.shape, padded.image_mask.shape, padded.image_size.tolist()
    (torch.Size([2, 3, 32, 32]), torch.Size([2, 32, 32]), [[20, 30], [30, 20]])

    Args:
        images: one or more tensors (C, H, W), or one tensor (B, C, H, W), which is not copied if no padding is needed.
        size_divisor: the height and width of the batch are multiples of this number, as a network with a stride needs.
        pool: buffers to reuse. None allocates new memory.

    Raises:
        OptionError: `size_divisor` is below 1. It is a `ValueError`.
        ValueError: images differ in their channels or their dtype, or are not (C, H, W).
    """
    if size_divisor < 1:
        raise refusal("size_divisor", "at least 1", size_divisor)
    each = _alike(images)
    sizes = torch.tensor([image.shape[1:] for image in each])
    height, width = (-(-side // size_divisor) * size_divisor for side in sizes.amax(0).tolist())
    if isinstance(images, Tensor) and images.shape[-2:] == (height, width):
        whole = images
    else:
        rows = [image.permute(1, 2, 0) for image in each]
        whole = _padded(rows, (height, width), 0, pool or BufferPool()).permute(0, 3, 1, 2)
    sizes = sizes.to(whole.device)
    inside = [torch.arange(n, device=whole.device) < sizes[:, axis, None] for axis, n in enumerate((height, width))]
    mask = _empty(inside[0], (len(each), height, width), pool or BufferPool())
    torch.logical_and(inside[0][:, :, None], inside[1][:, None], out=mask)
    return PaddedImages(whole, mask, sizes)


def _padded(values: Sequence[Tensor], size: Sequence[int], fill: int, pool: BufferPool) -> Tensor:
    """Put values (h, w, ...) into one tensor (B, H, W, ...), with `fill` on the right and below."""
    whole = _empty(values[0], (len(values), *size, *values[0].shape[2:]), pool)
    for target, value in zip(whole, values, strict=True):
        height, width = value.shape[:2]
        target[:height, :width].copy_(value)
        target[:height, width:].fill_(fill)
        target[height:].fill_(fill)
    return whole


def _empty(like: Tensor, shape: tuple[int, ...], pool: BufferPool) -> Tensor:
    """Allocate memory of the pool, if NumPy supports the tensor."""
    if like.device.type != "cpu" or like.dtype == torch.bfloat16:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    return pool.empty(shape[0], ArraySpec(str(like.dtype).removeprefix("torch."), shape[1:]))[0]
