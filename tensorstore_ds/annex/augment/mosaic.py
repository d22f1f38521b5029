"""Mosaic, which makes each image as a window of four images of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tensorstore_ds.annex.augment.mixing import Mixing, gather_objects
from tensorstore_ds.loading.augment.arguments import Range, limits, size_of, visibility
from tensorstore_ds.loading.augment.base import Params, Size
from tensorstore_ds.loading.augment.objects import place_objects
from tensorstore_ds.loading.augment.pixels import empty_like, in_one_operation, memory_format_of, span
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import BufferPool, on_device
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.seeding import Bits, fold, uniforms

#: Row and column of each of the four images in the grid.
TILES = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])


class Mosaic(Mixing):
    """Combine four images of the batch in a 2 x 2 grid and cut out a window, as in the YOLO family.

    Bochkovskiy et al., YOLOv4: Optimal Speed and Accuracy of Object Detection, 2020 (arXiv 2004.10934). The image
    itself is at the upper left. Boxes, keypoints and masks of all four images are kept where they are visible, and
    labels of images are mixed by area. With a `size` of 2x the height and width, all four images are completely
    visible. Follow it with a `RandomAffine` and a `Resize` or `RandomResizedCrop` to make one image from them, as in
    Ultralytics.

    Args:
        size: size of the window in pixels, one number or (height, width), by default the size of the images.
        start: range of the position of the window, in height and in width, as shares of the possible range, in [0, 1].
        num_classes, label: as in `CutMix`, if images have labels.
        p: probability that an image is changed. Below 1, the window must have the size of the images.
        min_visibility: smallest share of a box's area, in [0, 1], that must be visible. Objects with less are dropped.

    >>> import tensorstore_ds as tsds
    >>> boxes = tsds.loading.PackedObjects(torch.arange(5), {"boxes": torch.tensor([[2.0, 2, 6, 6]] * 4)})
    >>> batch = {"image": torch.rand(4, 3, 8, 8), "objects": boxes}
    >>> found = tsds.transforms.Mosaic(size=16)(batch)
    >>> found["image"].shape, found["objects"][0]["boxes"].tolist()[-1]
    (torch.Size([4, 3, 16, 16]), [10.0, 10.0, 14.0, 14.0])
    """

    COUNT = 4

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        *,
        start: Range = (0.25, 0.75),
        num_classes: int | None = None,
        p: float = 1.0,
        label: str = "label",
        min_visibility: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, p, label, seed)
        self.size = None if size is None else size_of(size)
        self.start = limits("start", start, least=0, most=1, expected="two shares in [0, 1], the smaller first")
        self.min_visibility = visibility(min_visibility)

    def _size_after(self, size: Size) -> Size:
        return self.size or size

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`partners` (B, 4) int64, `shares` (B, 4) float64, and `corners` (B, 2) int64.

        Partners and shares are in the order upper left, upper right, lower left, lower right. Corners are y and x where
        the window begins. Raises `ValueError` if the window is larger than four images.
        """
        sides = np.array(size)
        window = np.array(self._size_after(size))
        room = 2 * sides - window
        if room.min() < 0 or (self.p < 1 and (window != sides).any()):
            largest = "x".join(map(str, 2 * sides))
            most = "equal to the images' size, as `p` is below 1" if self.p < 1 else f"of at most {largest}"
            raise ValueError(f"Mosaic: expected a `size` {most}, found {window[0]}x{window[1]}. Choose another size.")
        low, high = self.start
        drawn = low + uniforms(fold(keys, 1), 2) * (high - low)
        corners = np.minimum((drawn * (room + 1)).astype(np.int64), room) * self._is_chosen(keys)[:, None]
        first = (sides - corners).clip(0, window)  # lines and columns of the upper left tile
        lines, columns = np.stack([first, window - first], 2).swapaxes(0, 1)
        shares = (lines[:, :, None] * columns[:, None]).reshape(-1, 4) / window.prod()
        params = {"corners": torch.from_numpy(corners), "shares": torch.from_numpy(shares)}
        return {"partners": self.partners(keys), **params}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        size = height, width = images.shape[2], images.shape[3]
        window = self._size_after(size)
        if in_one_operation(images):
            partners, corners = (on_device(params[name], images.device) for name in ("partners", "corners"))
            y, x = (torch.arange(n, device=images.device) + corners[:, i, None] for i, n in enumerate(window))
            tiles = 2 * (y >= height)[:, :, None] + 1 * (x >= width)[:, None]
            samples = partners.gather(1, tiles.flatten(1)).view(tiles.shape)
            out = images.permute(0, 2, 3, 1)[samples, (y % height)[:, :, None], (x % width)[:, None]]
            return out.permute(0, 3, 1, 2).contiguous(memory_format=memory_format_of(images))
        out = empty_like(images, None, size=(window[0], window[1]))
        for target, samples, corner in zip(out, params["partners"].tolist(), params["corners"].numpy(), strict=True):
            for sample, start in zip(samples, corner - TILES * size, strict=True):
                (lines, from_lines), (columns, from_columns) = map(span, start.tolist(), window, size)
                target[:, lines, columns] = images[sample, :, from_lines, from_columns]
        return out

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return self.transform_images(masks, params, pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        if "boxes" not in objects.values:
            raise ValueError("Mosaic: expected objects with boxes, found none. Store boxes.")
        found = gather_objects(objects, params["partners"])
        start = (params["corners"].numpy()[:, None] - TILES * np.array(size)).reshape(-1, 2)
        placements = Placements.whole([size] * len(start)).crop(start, self._size_after(size), self.min_visibility)
        found = place_objects(found, placements)
        return PackedObjects(found.offsets[::4], found.values)
