"""Tiles that are cut out of large stored images while loading, and merging of their predictions."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tensorstore_ds import native
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField, Field, image_of, of_kind
from tensorstore_ds.format.kinds.image import PixelField
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.augment.arguments import number, visibility
from tensorstore_ds.loading.augment.objects import place_objects
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import plans_of, steps_of
from tensorstore_ds.loading.fields import gatherer_of
from tensorstore_ds.loading.samples import Batch
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.options import check_choice, refusal
from tensorstore_ds.page_cache.shortage import Loaded
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import Split
from tensorstore_ds.seeding import generator
from tensorstore_ds.tiling import count_tiles, size_of, tile_corners, tile_overlap

Match = Literal["iou", "ios"]

#: Field of a sample or batch with the position of its tile.
TILE = "tile"
#: Number of objects that are transformed at a time to count them.
_COUNTED = 1 << 20
_BELOW_1 = math.nextafter(1, 0)
#: A warning is shown for an image that is decoded whole for each tile, with this many times the pixels of a tile.
_WORTH_A_WARNING = 4


class Tiles(StoreDataset):
    """The tiles of a data set's images as separate samples, cut out while loading. No copies are stored.

    >>> dataset = tsds.StoreDataset("voc.tsds", "train")  # 4 images of 60 x 80 and 80 x 60 pixels
    >>> tiles = tsds.Tiles(dataset, size=40, overlap=0.25)
    >>> len(tiles), tiles.positions[:3].tolist()  # row of the image, y, x
    (24, [[0, 0, 0], [0, 0, 30], [0, 0, 40]])
    >>> batch = next(iter(tsds.DataLoader(tiles, batch_size=16, shuffle=True)))
    >>> batch["image"].shape, batch["tile"].shape
    (torch.Size([16, 3, 40, 40]), torch.Size([16, 3]))

    Tiles form rows, ``round(size * (1 - overlap))`` pixels apart, from the upper left corner of each image. The last
    tile of a row and the last row are moved inwards so that they end with the image. If an image is smaller than a
    tile, the rest of the tile, on the right and at the bottom, contains `fill`. All tiles therefore have the same size.

    A tile is an ordinary sample for all loaders, samplers and transforms. Samples are numbered through the tiles of the
    first image, row by row, then through the tiles of the second image, and so on. Boxes, keypoints, masks and outlines
    are in pixels of the tile. Fields of the whole image, such as labels and keys, have the values of the image. Samples
    and batches that are dicts also contain `tile`, the (3,) or (B, 3) int64 of `positions`.

    The arguments of the data set (`fields`, `decode`, `transform`, `return_as`, `on_error`, a subset) apply to its
    tiles. A decode plan transforms each tile like an image. For example, ``decode=tsds.RandomCrop(512)`` decodes a part
    of 512 x 512 of each tile. Random steps depend on (seed, epoch, number of the tile). The number of a tile, as in
    `image_id` and `Batch.rows`, also counts the tiles that `empty` and subsets leave out. Convert it with
    `position_of`.

    Args:
        dataset: `StoreDataset` with any fields and rows, whose images are cut.
        size: size of a tile in pixels, one number or (height, width).
        overlap: overlap of neighboring tiles as a share of a tile, in [0, 1). One number or (down, across).
        pad: whether to allow a tile that is higher and wider than every image, which is usually a mistake.
        fill: value of pixels of a tile outside of its image. Masks have their ignored value there.
        min_visibility: smallest share of a box's area, in [0, 1], that must be inside a tile. Objects with less are
            dropped from the tile. The default is the same as in SAHI.
        empty: share of tiles without objects among all tiles, in [0, 1). A random choice of them is kept to reach it.
            If there are too few, all are kept. None keeps all.
        seed: seed of the choice of empty tiles.

    Raises:
        OptionError: an argument is invalid, or the samples of `dataset` are not whole images of one store, or it has
            objects that belong to a field of images other than `image`, a field with the name `tile`, or `zero_copy`.
    """

    whole_images = False

    def __init__(
        self,
        dataset: StoreDataset,
        size: int | Sequence[int] = 640,
        overlap: float | Sequence[float] = 0.2,
        *,
        pad: bool = False,
        fill: float = 0,
        min_visibility: float = 0.1,
        empty: float | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(dataset, StoreDataset) or not dataset.whole_images:
            advice = ": mix tiles instead, MixedDataset([Tiles(a), Tiles(b)])" if hasattr(dataset, "parts") else ""
            raise refusal("dataset", "a StoreDataset of whole images", f"a {type(dataset).__name__}{advice}")
        if "image" not in dataset.split.fields:
            raise refusal("dataset", "a field image", ", ".join(dataset.split.fields))
        if TILE in dataset.fields:
            raise refusal("fields", f"no field {TILE}, which tiles have of their own", ", ".join(dataset.fields))
        if dataset.zero_copy:
            raise refusal("zero_copy", "False for tiles, which are always copied", True)
        self.__setstate__(dataset.__getstate__() | {"_replaced": [], "_is_judged": False, "_random": ()})
        self._check_moved()
        self.size, self.overlap = size_of(size), tile_overlap(overlap)
        self.min_visibility, self.fill = visibility(min_visibility), fill
        sizes = dataset.image_sizes
        _check_sizes(sizes, self.size, pad=pad)
        check_count(sizes, self.size, self.overlap)
        self._positions = tile_corners(sizes, self.size, self.overlap)
        self._positions[:, 0] = dataset._store_rows(self._positions[:, 0])
        self.rows = None
        self._is_padded = bool((sizes < self.size).any())
        self._check_fill()
        self._warn_of_whole(dataset._store_rows(np.arange(len(dataset))))
        if empty is not None:
            share = number("empty", empty, most=_BELOW_1, expected="a share in [0, 1), such as 0.1, or None")
            self.rows = _with_empty(self.object_counts, share, seed)

    # --- where tiles are

    @property
    def positions(self) -> NDArray[np.int64]:
        """(n, 3) int64, for each sample its image's row in the split, and y and x of the tile's upper left corner."""
        return self.position_of(self._store_rows(np.arange(len(self))))

    @property
    def image_rows(self) -> NDArray[np.int64]:
        """(n,) int64, the row of each sample's image in the split. Use it to group tiles for folds or weights."""
        return self.positions[:, 0]

    @property
    def image_sizes(self) -> NDArray[np.int32]:
        """(n, 2) int32, height and width of every sample, which is the size of a tile."""
        return np.broadcast_to(np.array(self.size, np.int32), (len(self), 2))

    @property
    def object_counts(self) -> NDArray[np.int64]:
        """(n,) int64, the number of objects in each tile, from all fields of objects, before any decode plan.

        Raises:
            OptionError: the split has no objects.
        """
        fields = of_kind(self.split.fields, ObjectsField)
        names = [name for name, field in fields.items() if image_of(field) == "image"]
        if not names:
            raise refusal("empty", "a field of objects", ", ".join(self.split.fields))
        rows, pool = self._store_rows(np.arange(len(self))), BufferPool()
        counts: NDArray[np.int64] = np.zeros(len(rows), np.int64)
        for name in names:
            of_images = np.diff(self.split.table(name).offsets)[self._rows_of_images(rows)]
            for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(of_images.cumsum() // _COUNTED)) + 1):
                images = self._rows_of_images(rows[part])
                self.split.fetch([name], images)
                objects: Any = gatherer_of(self.split.fields[name]).gather(self.split, name, images, pool)
                counts[part] += place_objects(objects, self.placed(rows[part])).lengths.numpy()
        return counts

    def position_of(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Return image, y and x, (n, 3) int64 as in `positions`, of tiles by their `Batch.rows` or `image_id`."""
        found: NDArray[np.int64] = self._positions[np.asarray(rows, np.int64)]
        return found

    def _rows_of_images(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the split with the images of tiles, from the `rows` of a batch."""
        images: NDArray[np.int64] = self._positions[rows, 0]
        return images

    @property
    def loaded(self) -> Sequence[Loaded]:
        """Rows of the images, and fields that are loaded. A tile reads only a part of each line of pixels."""
        (loaded,) = super().loaded
        pixels = [*of_kind(self.split.fields, PixelField), *of_kind(self.split.fields, MaskField)]
        pixels = [name for name in loaded.fields if name in pixels]
        return (loaded._replace(rows=self._image_rows, partly=pixels),)

    def placed(self, rows: NDArray[np.int64]) -> Placements:
        """Return the part of its image that each tile covers."""
        image, corner = self._positions[rows, 0], self._positions[rows, 1:]
        whole = Placements.whole(self._reader.shapes[image, :2])
        beyond = (np.array(self.size) - whole.size).clip(0)
        return whole.pad(np.zeros_like(beyond), beyond, self.fill).crop(corner, self.size, self.min_visibility)

    # --- as a data set

    @property
    def schema(self) -> Mapping[str, Field]:
        """Fields of the split by name, including the views of its images and `tile`."""
        return {**super().schema, TILE: ArrayField(ArraySpec("int64", (3,)))}

    @property
    def row_nbytes(self) -> float:
        """Mean number of bytes of the loaded fields in a tile, if bytes are spread evenly over an image."""
        pixels = int(self.split.image_shapes[:, :2].astype(np.int64).prod(axis=1).sum())
        return self.nbytes * min(1.0, self.size[0] * self.size[1] / max(1, pixels))

    def __len__(self) -> int:
        return len(self._positions) if self.rows is None else len(self.rows)

    def key(self, row: int) -> str:
        """Return the name of a tile, with the key of its image and its position, such as ``photo.jpg (y 512, x 0)``."""
        image, y, x = self._positions[row].tolist()
        return f"{self.split.key(image)} (y {y}, x {x})"

    def gather(
        self,
        indices: ArrayLike,
        pool: BufferPool | None = None,
        draw: tuple[int, int] | None = None,
        *,
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """Gather a batch as in `StoreDataset`, with `tile` if all fields are requested as a dict."""
        batch = super().gather(indices, pool, draw, fields=fields)
        if fields is not None or self.return_as != "dict":
            return batch
        return batch.with_columns({**batch.columns, TILE: torch.from_numpy(self.position_of(batch.rows))})

    def with_decode(self, decode: Any) -> Self:
        """Return the same tiles with a different decode plan, or with a list of plans for several views."""
        changed = super().with_decode(decode)
        changed._check_fill()
        return changed

    def _check_fill(self) -> None:
        """Raise an `OptionError` if the images of a tile would be padded with two values."""
        if not self._is_padded:
            return
        steps = [step for plan in plans_of(self.decode) if plan is not None for step in steps_of(plan)]
        others = {step.fill for step in steps if getattr(step, "fill", self.fill) != self.fill}
        if others:
            expected = f"the {self.fill:g} of tiles beyond their image, in all steps of `decode`"
            raise refusal("fill", expected, f"{others.pop():g}: use Tiles(fill=...)")

    def _warn_of_whole(self, rows: NDArray[np.int64]) -> None:
        """Warn once about images that are decoded whole for each of their tiles."""
        whole = rows[_decoded_whole(self.split, rows)]
        pixels = self.split.image_shapes[whole, :2].astype(np.int64).prod(axis=1)
        count = int((pixels > _WORTH_A_WARNING * self.size[0] * self.size[1]).sum())
        if count:
            only = "only baseline JPEG files can be decoded in parts"
            only += ", and those without restart markers not without the compiled kernels" * (native.core is None)
            warnings.warn(
                f"{self.title}: {count} large image{'s' * (count > 1)} must be decoded whole for each batch of tiles, "
                f'because {only}. Convert with `encoding="jpeg"`, or with `encoding="raw"`.',
                stacklevel=3,
            )

    def __repr__(self) -> str:
        height, width = self.size
        return f"<Tiles of {height}x{width} of {self.path!s} {self.split_name!r}, {len(self)} samples>"


def _check_sizes(sizes: NDArray[np.int32], size: tuple[int, int], *, pad: bool) -> None:
    if len(sizes) and not pad and (sizes < size).all():
        height, width = sizes[sizes.astype(np.int64).prod(axis=1).argmax()].tolist()
        found = f"{height} x {width} as the largest image: choose a smaller `size`, or pad=True"
        raise refusal("size", f"a tile of {size[0]} x {size[1]} to be smaller than some image", found)


def check_count(sizes: NDArray[np.int32], size: tuple[int, int], overlap: tuple[float, float]) -> None:
    """Raise an error for more tiles than fit into memory."""
    grids = count_tiles(sizes, size, overlap).astype(np.float64)
    count, most = grids.prod(axis=1).sum(), memory_limit() // (10 * 24)  # positions, and what is computed on the way
    if count > most:
        raise refusal("overlap", f"at most {most:,} tiles, which fit in memory", f"{count:,.0f}: make it smaller")


def _with_empty(counts: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Return which tiles to keep, so that this share of them has no objects."""
    full, empty = np.flatnonzero(counts), np.flatnonzero(counts == 0)
    wanted = min(len(empty), round(len(full) * share / (1 - share)))
    return np.sort(np.concatenate([full, generator(seed, 0).permutation(empty)[:wanted]]))


def _decoded_whole(split: Split, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which images cannot be decoded in parts, (n,)."""
    field, column = split.fields["image"], split["image"]
    if field.encoding != "source" or not isinstance(column, RaggedColumn):
        return np.zeros(len(rows), bool)
    usable = ["restarts", "entries"] if native.core is not None else ["restarts"]
    whole: NDArray[np.bool_] = np.ones(len(rows), bool)
    for name in usable:
        marks = column.per_row.get(name)
        if isinstance(marks, RaggedColumn):
            whole &= marks.offsets[rows + 1] == marks.offsets[rows]
    return whole


# --- predictions ----------------------------------------------------------------------------------------------------


def merge_tiles(
    predictions: Sequence[Mapping[str, Tensor]],
    tiles: Tiles | ArrayLike | Tensor,
    iou_threshold: float = 0.5,
    *,
    match: Match = "iou",
    class_agnostic: bool = False,
    max_detections: int | None = None,
) -> dict[int, dict[str, Tensor]]:
    """Merge predictions for tiles into predictions for their images.

    Coordinates are shifted to the image, and duplicates from overlapping tiles are removed. If the overlap of two boxes
    is larger than `iou_threshold`, the box with the higher score is kept. With ``match="iou"``, this is torchvision's
    `batched_nms`.

    >>> tiles = tsds.Tiles(tsds.StoreDataset("voc.tsds", "val"), 40)
    >>> def model(images):  # finds the same box in every tile
    ...     box = {"boxes": torch.tensor([[5.0, 5, 15, 15]]), "scores": torch.tensor([0.9])}
    ...     return [box for image in images]
    >>> found, where = [], []
    >>> for batch in tsds.DataLoader(tiles, batch_size=16):
    ...     found += model(batch["image"] / 255)
    ...     where += batch["tile"]
    >>> images = tsds.merge_tiles(found, torch.stack(where))
    >>> sorted(images), images[0]["boxes"].shape
    ([0, 1], torch.Size([6, 4]))

    Args:
        predictions: for each tile a dict with `boxes` (m, 4), x1 y1 x2 y2 in pixels of the tile, `scores` (m,), and
            `labels` (m,) int64 if there are classes, as torchvision's models return it. It may contain other tensors of
            m rows. `keypoints` (m, K, 2 or more) and `oriented_boxes` (m, 5) are shifted.
        tiles: position of each tile, as the (n, 3) of the batches' `tile`. You can pass the `Tiles` instead if there is
            a prediction for each of its samples, in their order.
        iou_threshold: largest overlap of two boxes that are both kept, in [0, 1].
        match: measure of the overlap. ``iou`` is the intersection over union. ``ios`` is the intersection over the
            smaller area, as in SAHI. It also removes a part of an object at the edge of a tile, if a larger box with a
            higher score contains it.
        class_agnostic: whether boxes of different labels remove each other.
        max_detections: largest number of objects of an image. None keeps all.

    Returns:
        A dict by the row of each image with a tile, in ascending order. It contains the same values, by descending
        score, and `tile` (m, 3) int64, the tile of each object. Values without coordinates to shift, such as masks,
        still refer to the tile.

    Raises:
        OptionError: a prediction has no boxes or scores, or its values have different numbers of rows. Or the numbers
            of predictions and tiles differ, or the tiles have a decode plan, which changes the coordinates.
    """
    threshold = number("iou_threshold", iou_threshold, most=1, expected="a share in [0, 1]")
    check_choice("match", match, get_args(Match))
    if isinstance(tiles, Tiles) and tiles.decode is not None:
        raise refusal("tiles", "tiles without a decode plan, which moves what is predicted", "one")
    given = tiles.positions if isinstance(tiles, Tiles) else tiles
    where = np.asarray(given.cpu() if isinstance(given, Tensor) else given, np.int64)
    if where.ndim != 2 or where.shape[1] != 3 or len(where) != len(predictions):
        raise refusal("tiles", f"the positions ({len(predictions)}, 3) of the predictions", f"{where.shape}")
    _check_predictions(predictions)
    keep = functools.partial(_suppressed, threshold=threshold, match=match, class_agnostic=class_agnostic)
    merged = dict[int, dict[str, Tensor]]()
    numbers: dict[int, list[int]] = {}
    for i, image in enumerate(where[:, 0].tolist()):
        numbers.setdefault(image, []).append(i)
    for image, of_tiles in sorted(numbers.items()):
        shifted = [_shifted(predictions[i], torch.from_numpy(where[i])) for i in of_tiles]
        joined = {name: torch.cat([each[name] for each in shifted]) for name in shifted[0]}
        kept = keep(joined)[:max_detections]
        merged[image] = {name: value[kept] for name, value in joined.items()}
    return merged


def _check_predictions(predictions: Sequence[Mapping[str, Tensor]]) -> None:
    for i, each in enumerate(predictions):
        if not {"boxes", "scores"} <= each.keys() or each.keys() != predictions[0].keys():
            expected = ", ".join(predictions[0]) if {"boxes", "scores"} <= predictions[0].keys() else "boxes and scores"
            raise OptionError(f"prediction {i}: expected {expected}, found {', '.join(each) or 'nothing'}.")
        rows = {name: value.shape[0] if value.ndim else None for name, value in each.items()}
        if len({*rows.values()}) > 1 or each["boxes"].shape[1:] != (4,) or each["scores"].ndim != 1:
            shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in each.items())
            raise OptionError(f"prediction {i}: expected boxes (m, 4) and all values of m rows, found {shapes}.")


def _shifted(prediction: Mapping[str, Tensor], tile: Tensor) -> dict[str, Tensor]:
    """Move a tile's objects to pixels of the image."""
    values = dict(prediction)
    count, device = len(values["boxes"]), values["boxes"].device
    x_y = tile[[2, 1]].to(device)
    values["boxes"] = values["boxes"] + x_y.repeat(2)
    for name in values.keys() & {"keypoints", "oriented_boxes"}:
        values[name] = torch.cat([values[name][..., :2] + x_y, values[name][..., 2:]], -1)
    return {**values, TILE: tile.to(device).expand(count, 3)}


def _suppressed(objects: Mapping[str, Tensor], *, threshold: float, match: Match, class_agnostic: bool) -> Tensor:
    """Return which objects remain, by falling score."""
    from torchvision import ops  # imported here, because it takes seconds

    boxes, scores = objects["boxes"].float(), objects["scores"].float()
    labels = objects.get("labels", torch.zeros_like(scores, dtype=torch.int64))
    labels = torch.zeros_like(labels) if class_agnostic else labels
    if match == "iou":
        kept: Tensor = ops.batched_nms(boxes, scores, labels, threshold)
        return kept
    order, chosen = scores.argsort(descending=True, stable=True), list[Tensor]()
    while len(order):
        best, order = order[0], order[1:]
        chosen.append(best)
        corner = torch.maximum(boxes[best, :2], boxes[order, :2])
        inner = (torch.minimum(boxes[best, 2:], boxes[order, 2:]) - corner).clamp(min=0).prod(1)
        smaller = torch.minimum(ops.box_area(boxes[best, None]), ops.box_area(boxes[order]))
        order = order[(inner <= threshold * smaller) | (labels[order] != labels[best])]
    return torch.stack(chosen) if chosen else order
