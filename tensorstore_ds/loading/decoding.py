"""Images of a split as a decode plan places them: only what is needed is decoded, and resized into the batch.

::

    rows -> shapes (stored) -> plan, drawn by (seed, epoch, row) -> placements
    each image:  the part that is seen -> cut out of the JPEG file -> decoded, of random crops at 1/2 to 1/8
                 -> resized with antialiasing into its row of the batch

Without a plan, images are placed as they are.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.imaging.antialias import Axis, resize_part
from tensorstore_ds.imaging.jpeg import SCALES, JpegSegment
from tensorstore_ds.imaging.resizing import as_image
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.augment.geometry import Cropping, Geometry
from tensorstore_ds.loading.augment.pixels import mirror
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.crew import Loop, share
from tensorstore_ds.loading.crops import MOST_VIEWS, Crops
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.columns import Column, RaggedColumn, aligned_empty
from tensorstore_ds.reading.store import Split
from tensorstore_ds.reading.stored_images import Pixels, decode_part, netpbm_pixels, stored_shape
from tensorstore_ds.seeding import fold

#: A decode plan: a step, or several in a `Compose`.
Plan = Geometry | Compose

#: Values of `decode`: a plan, or several plans, each of which makes a view of every image.
Decode = Plan | Sequence[Plan]

#: Images of a batch: (B, C, H, W) in channels-last memory, or a list of (C, H, W).
Images = torch.Tensor | list[torch.Tensor]

#: The kernel of `interpolate(mode="bilinear", antialias=True)`. Only this form writes into existing memory.
_upsample = torch.ops.aten._upsample_bilinear2d_aa.default
_upsample_out = torch.ops.aten._upsample_bilinear2d_aa.out

#: Bytes that a thread keeps for pixels that are decoded before resizing.
_MOST_SCRATCH = 64 * 1024**2
_AROUND = 256  #: pixels around a part that are decoded, at most about
_scratch = threading.local()


def steps_of(plan: Plan) -> list[Geometry]:
    """Return the steps of a decode plan. Raises `OptionError` if it does more than place images."""
    steps = []
    for step in plan.transforms if isinstance(plan, Compose) else [plan]:
        if isinstance(step, Geometry):
            steps.append(step)
        else:
            names = "RandomResizedCrop, RandomCrop, CenterCrop, Resize, Letterbox, Pad and RandomHorizontalFlip"
            found = f"{type(step).__name__}: use `batch_transform`"
            if isinstance(step, int | tuple):
                found = f"{step!r}: use tsds.Resize({step!r})"
            if type(step).__module__.startswith("torchvision."):
                found = f"torchvision's {type(step).__name__}: use tsds.transforms.{type(step).__name__}"
                found += "" if type(step).__name__ in f"{names}, Compose" else ", if there is one, as `batch_transform`"
            raise refusal("decode", f"{names}, or a Compose of these", found)
    return steps


def plans_of(decode: Decode | None) -> tuple[Plan | None, ...]:
    """Return the plan of each view. With a single plan, or none, there is one view."""
    return tuple(decode) if isinstance(decode, Sequence) else (decode,)


def place_on(
    placements: Placements, plan: Plan | None, rows: NDArray[np.int64], epoch: int, *, view: int = 0
) -> Placements:
    """Apply a plan to images that were already placed. The result depends only on them, seed, epoch, view and rows."""
    if plan is None:
        return placements
    if view:  # the first view has the same random numbers as a single one
        rows = fold(view, rows.view(np.uint64)).view(np.int64)
    steps = steps_of(plan)
    for number, step in enumerate(steps):
        drawn_by = fold(plan.seed, number, rows.view(np.uint64)).view(np.int64) if isinstance(plan, Compose) else rows
        placements = step._place(placements, step.keys(drawn_by, epoch))
    given = [step.exact for step in steps if step.exact is not None]
    return replace(placements, is_exact=any(given) if given else not any(isinstance(each, Cropping) for each in steps))


def fixes_size(plan: Plan | None, had_one: bool) -> bool:
    """Whether all images have one size after a plan."""
    for step in steps_of(plan) if plan is not None else ():
        had_one = had_one if step._fixes_size is None else step._fixes_size
    return had_one


class Window(NamedTuple):
    """Visible part of one image, from `Placements`. Pairs are y, x."""

    origin: list[float]
    extent: list[float]
    resized: list[int]
    first: list[int]  #: first visible line and column of the resized image
    last: list[int]  #: line and column after the last visible ones
    at: list[int]  #: their position on the canvas
    low: list[int]  #: first pixel that is used
    high: list[int]  #: pixel after the last that is used
    size: list[int]  #: height and width of the whole image
    scale: int  #: largest scale, 1 pixel for this many, that has enough pixels


def windows_of(placements: Placements, sizes: NDArray[np.integer[Any]]) -> list[Window]:
    """Return the visible part of each image. `sizes` are their (B, 2) heights and widths."""
    low, high = placements.window
    origin, extent, resized = placements.origin, placements.extent, placements.resized
    first, last = low - placements.offset, high - placements.offset
    step, scale = extent / np.maximum(1, resized), _scales(placements)
    is_cut = ((resized == extent) & (origin % 1 == 0)).all(axis=1, keepdims=True)
    is_even = ((origin % scale[:, None] == 0) & (extent % scale[:, None] == 0)).all(axis=1, keepdims=True)
    reach = np.maximum(step, 1.0) + 1  # reach of the filter, and one more
    begins = np.where(is_cut, origin + first, np.where(is_even, origin, origin + (first + 0.5) * step - reach))
    ends = np.where(is_cut, origin + last, np.where(is_even, origin + extent, origin + (last - 0.5) * step + reach))
    begins = np.floor(np.maximum(begins, origin)).clip(0, sizes - 1)
    ends = np.ceil(np.minimum(ends, origin + extent)).clip(begins + 1, sizes)
    box: list[NDArray[Any]] = [origin, extent, resized, first, last, low]
    arrays = [*box, begins.astype(int), ends.astype(int), sizes, scale]
    return [Window(*each) for each in zip(*(array.tolist() for array in arrays), strict=True)]


def _scales(placements: Placements) -> NDArray[np.int64]:
    """Return the scales (B,) at which JPEG files have enough pixels: 1, 2, 4 or 8, or 1 where results must be exact."""
    if placements.is_exact:
        return np.ones(len(placements), np.int64)
    scales: NDArray[np.int64] = np.array([1, *SCALES[::-1]])
    step = placements.extent / np.maximum(1, placements.resized)
    at: NDArray[np.int64] = np.searchsorted(scales, step.min(axis=1), "right").clip(1) - 1
    return np.take(scales, at)


class DamagedImageError(SourceError):
    """An image of a batch cannot be decoded. `place` is its position in the batch."""

    place: int = 0

    @classmethod
    def at(cls, place: int, key: str, error: SourceError) -> Self:
        """Create the error for the image at a position, with its key."""
        advice = 'Check the store with tsds verify. StoreDataset(on_error="replace") loads another sample.'
        named = cls([replace(problem, where=key) for problem in error.problems], error.advice or advice)
        named.place = place
        return named


class ImageReader:
    """Read the images of the field `image` of a split."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._column = split["image"]
        self.shapes = split.image_shapes
        self._mixed = len(split._channels) > 1  # gray images among color images are read as RGB
        self._files = self._column.values.get("bytes") if isinstance(self._column, RaggedColumn) else None
        restarts = self._column.per_row.get("restarts") if isinstance(self._column, RaggedColumn) else None
        self._restarts = restarts if isinstance(restarts, RaggedColumn) else None
        self._crops = Crops.of(self._column, self.shapes)

    def read(self, row: int, part: JpegSegment, scale: int = 1, buffer: NDArray[np.uint8] | None = None) -> Pixels:
        """Read at least a part, a JPEG file at 1/`scale` (1, 2, 4 or 8). The array may be read-only or in `buffer`."""
        if self._files is None or not isinstance(self._column, RaggedColumn):
            pixels: NDArray[Any] | None = self._column[row]
        else:
            start, stop = map(int, self._column.bounds(row))
            file: Any = self._files[start:stop]
            pixels = netpbm_pixels(file)
        if pixels is not None:
            array = pixels[part.top : part.bottom, part.left : part.right]
            if self._mixed and array.shape[2] == 1:
                array = np.repeat(array, 3, axis=2)
            return Pixels(array, part.top, part.left)
        return decode_part(
            memoryview(file),
            part,
            shape=self.shapes[row].tolist(),
            restarts=None if self._restarts is None else self._restarts[row],
            scale=scale,
            channels=3 if self._mixed else None,
            buffer=buffer,
        )

    def images(
        self, rows: NDArray[np.int64], placements: Sequence[Placements], pool: BufferPool, *, stack: Sequence[bool]
    ) -> list[Images]:
        """Return the images of some rows for several views, stacked if all images of a view have one canvas size.

        A file is read once for all views, and decoded once for views whose parts are in the same pixels. Raises
        DamagedImageError if an image cannot be decoded, and SourceError if its dtype differs from the others in the
        stack. Such an image is not damaged, so ``on_error="replace"`` does not replace it.
        """
        views = [_View(each, pool if one_size else None) for each, one_size in zip(placements, stack, strict=True)]
        if self._crops is not None:
            channels = 3 if self._mixed else int(self.shapes[0, 2])
            stacked = [(view, jobs) for view in views if (jobs := view.stack(channels)) is not None]
            for first in range(0, len(stacked), MOST_VIEWS):
                some = stacked[first : first + MOST_VIEWS]
                decoded = self._crops.into([jobs for _, jobs in some], rows)
                for (view, _), done in zip(some, decoded.T, strict=True):
                    view.done = done
            if all(view.is_full for view in views):
                return [view.images() for view in views]
        windows = [windows_of(each, self.shapes[rows, :2]) for each in placements]
        wanted = list(zip(rows.tolist(), *windows, strict=True))
        # Tiles of one image that follow each other are decoded together, once.
        units = [list(each) for _, each in itertools.groupby(range(len(rows)), lambda i: wanted[i][0])]

        def add(unit: list[int]) -> None:
            pixels, asked = None, None
            for i in unit:
                row, *seen = wanted[i]
                for view, window in zip(views, seen, strict=True):
                    if view.done[i]:
                        continue
                    is_own = pixels is None or asked is None or not _has(pixels, asked, window)
                    if pixels is None or is_own:
                        try:
                            buffer = None if view.pool is None else _scratch_of(window)
                            pixels = self.read(row, JpegSegment(*window.low, *window.high), window.scale, buffer)
                        except SourceError as error:
                            raise DamagedImageError.at(i, self._split.key(row), error) from error
                        asked = window
                    view.add(i, pixels, window, functools.partial(self._split.key, row), is_own=is_own)

        def add_others(loop: Loop) -> None:
            for unit in loop:
                add(units[unit + 1])

        if units:
            add(units[0])  # decides the form of the others
            share(len(units) - 1, add_others)
        return [view.images() for view in views]


class _View:
    """A batch's images as one plan places them, stacked in `pool`, or a list. `done` (B,) bool marks finished ones."""

    def __init__(self, placements: Placements, pool: BufferPool | None) -> None:
        self.pool = pool
        self.done = np.zeros(len(placements), bool)
        self._placements, self._sizes = placements, placements.size.tolist()
        self._tensor: torch.Tensor | None = None
        self._stacked: NDArray[Any] | None = None
        self._listed: list[Any] = [None] * len(placements)

    @property
    def is_full(self) -> bool:
        """Whether all images are there."""
        return bool(self.done.all())

    def stack(self, channels: int) -> tuple[NDArray[np.uint8], Placements, NDArray[np.int64]] | None:
        """Return a stack for the images that the compiled kernels can decode, with their placements and scales."""
        placements = self._placements
        if self.pool is None or channels not in (1, 3) or not len(placements):
            return None
        low, high = placements.window
        self._tensor, stacked = self.pool.empty(len(placements), ArraySpec("uint8", (*self._sizes[0], channels)))
        self._stacked = stacked
        if (high - low != placements.size).any():
            _fill(stacked, placements.fill or 0)
        return stacked, placements, _scales(placements)

    def add(self, i: int, pixels: Pixels, window: Window, key: Callable[[], str], *, is_own: bool) -> None:
        """Put image `i` onto its canvas. Its own pixels may be the canvas."""
        size = self._sizes[i]
        if self.pool is None:
            canvas, is_placed = pixels.array, window.resized == window.extent == size
            is_placed &= is_own and size == list(canvas.shape[:2]) and _is_dense(canvas)
            if not is_placed:
                canvas = np.empty((*size, canvas.shape[2]), canvas.dtype)
            self._listed[i] = torch.from_numpy(canvas).permute(2, 0, 1)
            if is_placed:
                return
        else:
            if self._stacked is None or (not (self.done.any() or i) and self._stacked.dtype != pixels.array.dtype):
                self._tensor, self._stacked = self.pool.empty(len(self._sizes), _spec(pixels, size))
            canvas = self._stacked[i]
            if pixels.array.dtype != canvas.dtype or pixels.array.shape[2] != canvas.shape[2]:
                expected, found = (f"{a.shape[2]} x {a.dtype}" for a in (canvas, pixels.array))
                differing = f"expected {expected} like the first image of its batch, found {found}."
                advice = (
                    "Bring them to one form in a `transform` of StoreDataset, or convert all of them again, "
                    'together, with `on_error="skip"`, which leaves out those that differ from most.'
                )
                raise SourceError(Problem(key(), "shapes-differ", differing), advice)
        lay(canvas, pixels, window, self._placements.fill or 0)

    def images(self) -> Images:
        """Return all images, mirrored where the plan says so."""
        flip = self._placements.flip & ~self.done
        if self._tensor is not None and self.pool is not None:
            images = self._tensor.permute(0, 3, 1, 2)
            return mirror(images, torch.from_numpy(flip), self.pool) if flip.any() else images
        return [image.flip(2) if flips else image for image, flips in zip(self._listed, flip.tolist(), strict=True)]


def _fill(canvas: NDArray[Any], fill: float) -> None:
    try:
        canvas[...] = fill
    except OverflowError:
        raise refusal("fill", f"a value of {canvas.dtype}", fill) from None


def _has(pixels: Pixels, asked: Window, window: Window) -> bool:
    """Whether pixels that were read for the window `asked` contain another one, with equal values.

    Beyond that window, a part of a JPEG file may lack the colors of its neighbors.
    """
    is_whole = all(length * pixels.scale >= size for length, size in zip(pixels.array.shape, window.size, strict=False))
    places = zip(asked.low, window.low, window.high, asked.high, strict=True)
    return asked.scale == window.scale and (is_whole or all(a <= b and c <= d for a, b, c, d in places))


def _spec(pixels: Pixels, size: list[int]) -> ArraySpec:
    return ArraySpec(pixels.array.dtype.name, (*size, pixels.array.shape[2]))


def _scratch_of(window: Window) -> NDArray[np.uint8] | None:
    """Return memory for the pixels that are decoded for a window."""
    height, width = (high - low + _AROUND for low, high in zip(window.low, window.high, strict=True))
    nbytes = 3 * height * width // window.scale**2
    return _memory("decoded", nbytes) if nbytes <= _MOST_SCRATCH else None


def _memory(name: str, nbytes: int) -> NDArray[np.uint8]:
    """Return this thread's memory of this name, because fresh memory costs more than filling it."""
    memory: NDArray[np.uint8] | None = getattr(_scratch, name, None)
    if memory is None or len(memory) < nbytes:
        memory = aligned_empty((-(-nbytes // 8) * 8,), np.uint8)
        if nbytes <= _MOST_SCRATCH:
            setattr(_scratch, name, memory)
    return memory


def lay(canvas: NDArray[Any], pixels: Pixels, window: Window, fill: float) -> None:
    """Resize a window of an image, bilinear and antialiased, and put it onto a canvas (H, W, C).

    The pixels are those of torchvision's `resize` of the part, cut afterwards: bit-identical for uint8 if the part has
    whole pixels, else with the same filter at fractions of pixels.
    """
    (top, left), (height, width) = window.at, (b - a for a, b in zip(window.first, window.last, strict=True))
    target = canvas[top : top + height, left : left + width]
    if target.shape != canvas.shape:
        _fill(canvas, fill)
    if not target.size:
        return
    array, scale = pixels.array, pixels.scale
    # Position of scaled pixels. In a mirrored image, the one that crosses its edge comes first.
    grid = [-(-begin % scale) for begin in pixels[1:3]]
    corner = [(o - g) / scale for o, g in zip(window.origin, grid, strict=True)]
    extent = [e / scale for e in window.extent]
    shift = [(begin - g) // scale for begin, g in zip(pixels[1:3], grid, strict=True)]  # the array begins there
    if all(n.is_integer() for n in (*corner, *extent)):
        (y, x), (rows, columns) = (int(o) - n for o, n in zip(corner, shift, strict=True)), map(int, extent)
        if window.resized == extent:
            y, x = y + window.first[0], x + window.first[1]
            target[...] = array[y : y + height, x : x + width]
            return
        if y >= 0 and x >= 0 and y + rows <= array.shape[0] and x + columns <= array.shape[1]:
            _resize(target, array[y : y + rows, x : x + columns], window)
            return
    ends = [-(-length // scale) - n for length, n in zip(window.size, shift, strict=True)]
    axes = [
        Axis(o - n, *each)
        for o, n, *each in zip(corner, shift, extent, window.resized, window.first, window.last, ends, strict=True)
    ]
    target[...] = resize_part(array, *axes)


def _resize(target: NDArray[Any], part: NDArray[Any], window: Window) -> None:
    """Resize a part of an image and put the visible window onto `target`."""
    if not part.flags.writeable or min(part.strides) <= 0:  # torch supports neither
        dense = _memory("crop", part.nbytes).view(part.dtype)[: part.size].reshape(part.shape)
        dense[...] = part
        part = dense
    source, out = (torch.from_numpy(each[None].transpose(0, 3, 1, 2)) for each in (part, target))
    native = source.dtype in (torch.uint8, torch.float32, torch.float64)
    source = source if native else source.to(torch.float32)
    if native and target.flags.c_contiguous and window.resized == list(target.shape[:2]):
        _upsample_out(source, window.resized, False, None, None, out=out)
        return
    (top, left), (bottom, right) = window.first, window.last
    resized = _upsample(source, window.resized, False, None, None)[..., top:bottom, left:right]
    out.copy_(resized if native or target.dtype.kind == "f" else resized.round_())


def decode_resized(
    data: bytes, size: tuple[int, int], *, is_gray: bool, key: str, how: Geometry | None = None
) -> tuple[NDArray[Any], tuple[int, int]]:
    """Decode an image file as `how`, by default ``Resize(size)``, does in a decode plan.

    Returns (H, W, C) pixels, RGB or with `is_gray` 1 channel, and the image's own (height, width). Raises SourceError
    if the file is damaged or no image.
    """
    height, width, channels = shape = stored_shape(data, key=key)
    whole = Placements.whole((height, width))
    placed = whole.resize(size) if how is None else how._place(whole, np.zeros(1, np.uint64))
    (window,) = windows_of(placed, whole.size)
    part, wanted = JpegSegment(*window.low, *window.high), None if is_gray else 3
    pixels = decode_part(data, part, shape=shape, scale=window.scale, channels=wanted, key=key)
    canvas = np.empty((*size, pixels.array.shape[2]), pixels.array.dtype)
    lay(canvas, pixels, window, placed.fill or 0)
    if is_gray and channels == 3 and canvas.dtype == np.uint8:
        canvas = np.asarray(as_image(canvas).convert("L"))[:, :, None]
    return canvas, (height, width)


def _is_dense(array: NDArray[Any]) -> bool:
    """Whether torch can use the array without a copy."""
    return array.flags.c_contiguous and array.flags.writeable and min(array.strides) > 0


def place_masks(column: Column, rows: NDArray[np.int64], outside: int | float, placements: Placements) -> Images:
    """Move masks (h, w) with their images by nearest pixel, reading the visible part. Other pixels are `outside`."""
    sizes, laid = placements.size.tolist(), []
    sizes_of_masks = np.broadcast_to(column.spec.shape, (len(rows), 2))
    mask, last = np.empty((0, 0)), -1
    for i, (row, window) in enumerate(zip(rows.tolist(), windows_of(placements, sizes_of_masks), strict=True)):
        canvas = np.full(sizes[i], outside, column.dtype)
        if row != last:  # a compressed mask is unpacked once for its tiles
            mask, last = column[row], row
        y, x = (
            np.floor(o + (np.arange(a, b) + 0.5) * (e / max(1, r))).astype(np.intp).clip(0, n - 1)
            for o, e, r, a, b, n in zip(*window[:5], column.spec.shape, strict=True)
        )
        canvas[window.at[0] : window.at[0] + len(y), window.at[1] : window.at[1] + len(x)] = mask[np.ix_(y, x)]
        laid.append(torch.from_numpy(canvas[:, ::-1].copy() if placements.flip[i] else canvas))
    return torch.stack(laid) if len({tuple(size) for size in sizes}) == 1 else laid
