"""Batches of images with similar height and width, which need little padding."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Sampler

from tensorstore_ds.loading.samplers import Ranked, at_least
from tensorstore_ds.loading.samples import Samples
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import generator, shuffled

#: Smallest mean number of batches in a bucket. With fewer, the same images would be in one batch in every epoch.
BATCHES_PER_BUCKET = 4


class SizeBucketSampler(Ranked, Sampler[list[int]]):
    """A batch sampler that puts images of similar height and width into one batch.

    When you create the sampler, it divides the images into buckets of similar size. No image is decoded for this. Each
    epoch shuffles the images of each bucket, cuts them into batches, and shuffles the batches. The result depends only
    on (seed, epoch). All ranks have the same number of batches, and their batches in one step have similar sizes.

    With `batch_size`, every image is used once per epoch, in batches of that many images. A batch at the border of two
    buckets contains images of both. The remaining images form a smaller last step, in which some images are repeated if
    the number of ranks does not divide it. With `drop_last`, they are left out instead, different images in every
    epoch.

    With `pixels`, no batch is larger than that, and images are neither repeated nor left out. Some batches are made
    smaller, so that the number of ranks divides the number of batches.

    `padding_waste` is the share of padding in the padded batches. ``buckets=1`` makes random batches. For 1,281,167
    images in batches of 64, 60 % of them with 500x375, 375x500 or 500x333 pixels and the others of any size::

        buckets               1      8      32     128
        padding_waste         0.77  0.28  0.12  0.06

    >>> dataset = tsds.StoreDataset("voc.tsds", "train")
    >>> sampler = tsds.SizeBucketSampler(dataset, batch_size=2)
    >>> loader = tsds.DataLoader(dataset, batch_sampler=sampler, collate_images="padded")
    >>> sorted(tuple(batch["image"].shape) for batch in loader)
    [(2, 3, 80, 80), (2, 3, 80, 80)]
    >>> sampler.padding_waste
    0.25
    >>> tsds.SizeBucketSampler(dataset, batch_size=2, buckets=1).padding_waste < 0.5
    True

    Args:
        dataset: a `StoreDataset`, whose image sizes are used, as its decode plan places them. For other data sets, and
            for transforms that change sizes, pass the height and width of every sample, (n, 2) integers.
        batch_size: number of images in a batch.
        pixels: largest number of pixels in a batch, instead of `batch_size`. Each image counts with the batch's padded
            height and width. A larger image is alone in its batch.
        buckets: largest number of buckets. With fewer buckets, more images are mixed with each other. With more
            buckets, there is less padding.
        shuffle: whether to shuffle. If False, batches and images have the same order in every epoch, the smaller images
            first.
        seed: seed of the order, the same for all ranks.
        drop_last: whether to leave out the images that do not fill a batch on every rank.
        rank, num_replicas: as in all samplers, see `Order`.
        size_divisor: the `size_divisor` of the loader.

    Raises:
        OptionError: a number is out of range, there are no sizes, or not exactly one of `batch_size` and `pixels` was
            passed.
    """

    def __init__(
        self,
        dataset: Samples | ArrayLike,
        batch_size: int | None = None,
        *,
        pixels: int | None = None,
        buckets: int = 32,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        num_replicas: int | None = None,
        size_divisor: int = 1,
    ) -> None:
        if (batch_size is None) == (pixels is None):
            raise refusal("batch_size", "this or `pixels`", "neither" if pixels is None else "both")
        self.batch_size = None if batch_size is None else at_least(1, batch_size, "batch_size")
        self.pixels = None if pixels is None else at_least(1, pixels, "pixels")
        self.size_divisor = at_least(1, size_divisor, "size_divisor")
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._sizes = _sizes_of(dataset)
        super().__init__(seed, rank, num_replicas)
        most = at_least(1, buckets, "buckets")
        self._bucket = _divide(self._padded(), most, self.batch_size, self.pixels or 1)
        self.buckets = int(self._bucket.max(initial=0)) + 1
        self._counts = np.bincount(self._bucket, minlength=self.buckets)
        largest = np.ones((self.buckets, 2), np.int64)
        np.maximum.at(largest, self._bucket, self._padded())
        self._fitting = np.maximum(1, (self.pixels or 0) // largest.prod(1))  # images per batch of each bucket

    @property
    def num_images(self) -> int:
        """Number of images in the data set."""
        return len(self._sizes)

    def _setting(self) -> dict[str, Any]:
        """Return the options that determine the order."""
        names = ("batch_size", "pixels", "buckets", "size_divisor", "shuffle", "drop_last")
        own = {f"sampler_{name}": getattr(self, name) for name in names}
        order = zlib.crc32(np.ascontiguousarray(self._sizes).data)
        return {"sampler_seed": self.seed, "num_replicas": self.num_replicas, "order": order, **own}

    # --- batches

    def __len__(self) -> int:
        """Number of batches of this rank in an epoch, the same for all ranks and epochs."""
        batches, replicas = len(self._bounds()) - 1, self.num_replicas
        return batches // replicas if self.drop_last else -(-batches // replicas)

    def __iter__(self) -> Iterator[list[int]]:
        rows, bounds = self._rows(), self._bounds()
        steps = np.arange(len(self))
        if self.shuffle:
            generator(self.seed, self.epoch, 1).shuffle(steps)
        for batch in (steps * self.num_replicas + self.rank).tolist():
            place = batch % (len(bounds) - 1)  # there may be fewer batches than ranks
            yield rows[bounds[place] : bounds[place + 1]].tolist()

    @property
    def padding_waste(self) -> float:
        """Share of padding among the pixels of this epoch's batches, of all ranks and with `size_divisor`."""
        rows, bounds = self._rows(), self._bounds()
        if len(bounds) < 2:
            return 0.0
        largest = np.maximum.reduceat(self._padded()[rows], bounds[:-1])
        padded = (largest.prod(1) * np.diff(bounds)).sum()
        return float(1 - self._sizes[rows].astype(np.int64).prod(1).sum() / padded)

    def __repr__(self) -> str:
        """Batches, buckets, and the share of padding."""
        each = f"{self.pixels:,} pixels" if self.batch_size is None else f"{self.batch_size} images"
        waste = f"{100 * self.padding_waste:.1f} % padding"
        return f"<SizeBucketSampler, {len(self):,} batches of {each}, {self.buckets} buckets, {waste}>"

    def _padded(self) -> NDArray[np.int64]:
        """Heights and widths (n, 2) as multiples of `size_divisor`."""
        return -(-self._sizes.astype(np.int64) // self.size_divisor) * self.size_divisor

    def _rows(self) -> NDArray[np.int64]:
        """Return the images of all ranks' batches in this epoch by bucket, in random order within each."""
        images = len(self._sizes)
        rows = shuffled(images, self.seed, self.epoch) if self.shuffle else np.arange(images)
        if self.batch_size is not None:
            rows = np.resize(rows, self._bounds()[-1])
        return rows[self._bucket[rows].argsort(kind="stable")]

    def _bounds(self) -> NDArray[np.int64]:
        """Return where each batch of `_rows` begins, and the end, (batches + 1,)."""
        images, replicas = len(self._sizes), self.num_replicas
        if self.batch_size is not None:
            step = self.batch_size * replicas
            whole, rest = divmod(images, step)
            last = 0 if self.drop_last else -(-rest // replicas)
            inside = np.arange(whole * replicas + 1) * self.batch_size
            return np.append(inside, inside[-1] + last * np.arange(1, replicas + 1)) if last else inside
        counts, batches = self._counts, -(-self._counts // self._fitting)
        for _ in range(min(-int(batches.sum()) % replicas, images - int(batches.sum()))):
            batches[(counts / batches).argmax()] += 1  # so that the ranks divide them
        place = np.arange(batches.sum()) - np.repeat(batches.cumsum() - batches, batches)
        begin, count, among = (np.repeat(each, batches) for each in (counts.cumsum() - counts, counts, batches))
        return np.append(begin + place * count // among, images)


def _sizes_of(dataset: Samples | ArrayLike) -> NDArray[np.int32]:
    """Return heights and widths (n, 2) of the images of a data set."""
    if isinstance(dataset, Samples):
        if "image" not in dataset.schema:
            raise refusal("dataset", "images", ", ".join(dataset.schema))
        return dataset._placed_sizes
    sizes = np.asarray(dataset)
    if sizes.ndim != 2 or sizes.shape[1] != 2 or sizes.dtype.kind not in "iu" or (sizes.size and sizes.min() < 1):
        found = f"a {type(dataset).__name__}" if sizes.dtype == object else f"{sizes.dtype} of shape {sizes.shape}"
        raise refusal("dataset", "a StoreDataset, or heights and widths (n, 2) of 1 or more", found)
    return sizes.astype(np.int32)


def _divide(sizes: NDArray[np.int64], most: int, batch_size: int | None, pixels: int) -> NDArray[np.uint16]:
    """Return the bucket of each image, (n,). Images in a bucket have similar sizes.

    Starting from one bucket, each step cuts a bucket in two, between two heights or two widths, where this saves the
    most padding, if every image is padded to the largest height and width of its bucket.
    """
    unique, which, counts = np.unique(sizes[:, 0] << 32 | sizes[:, 1], return_inverse=True, return_counts=True)
    sizes = np.stack([unique >> 32, unique & 0xFFFFFFFF], 1)
    total = counts.sum() / batch_size if batch_size else (sizes.prod(1) * counts).sum() / pixels
    most = min(most, max(1, int(total / BATCHES_PER_BUCKET)), 2**16)

    def cut(rows: NDArray[np.int64]) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Return the savings of the best cut of a bucket, and its two sides."""
        best = (0, rows, rows[:0])
        whole = int(sizes[rows].max(0).prod() * counts[rows].sum())
        for axis in (0, 1):
            order = rows[sizes[rows, axis].argsort(kind="stable")]
            below = np.maximum.accumulate(sizes[order])[:-1].prod(1)
            above = np.maximum.accumulate(sizes[order[::-1]])[-2::-1].prod(1)
            before = counts[order].cumsum()
            number = np.stack([before[:-1], before[-1] - before[:-1]])
            cost = number * np.stack([below, above])
            enough = (number >= batch_size if batch_size else cost >= pixels).all(0)
            saved = np.where(enough, whole - cost.sum(0), 0)
            if saved.size and saved.max() > best[0]:
                at = int(saved.argmax()) + 1
                best = (int(saved.max()), order[:at], order[at:])
        return best

    buckets = [cut(np.arange(len(sizes)))] if len(sizes) else []
    while buckets and len(buckets) < most:
        place = max(range(len(buckets)), key=lambda i: buckets[i][0])
        saved, first, second = buckets[place]
        if not saved:
            break
        buckets[place : place + 1] = [cut(first), cut(second)]
    of_size = np.zeros(len(sizes), np.uint16)
    for number, (_, first, second) in enumerate(buckets):
        of_size[first] = of_size[second] = number
    return of_size[which]
