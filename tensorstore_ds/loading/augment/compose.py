"""Several batch transforms, applied one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tensorstore_ds.loading.augment.base import (
    BatchTransform,
    OfBatches,
    Params,
    Rows,
    Size,
    check_images,
    check_rows,
)
from tensorstore_ds.loading.augment.normalize import Normalize
from tensorstore_ds.loading.buffers import BufferPool, on_device
from tensorstore_ds.loading.collate import collate_objects, uncollated
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import draws_of, fold

#: Members of a batch that have pixels.
PIXELS = ("image", "mask", "image_mask", "image_size")


class Compose(OfBatches):
    """Apply several batch transforms one after the other.

    Each transform gets different rows, computed from (seed, position in the list, row), so that two of one kind have
    different random numbers.

    >>> import tensorstore_ds as tsds
    >>> crop, flip = tsds.RandomCrop(28, padding=2), tsds.RandomHorizontalFlip()
    >>> augment = Compose([crop, flip, tsds.Normalize([0.5], [0.25])], seed=1)
    >>> batch = {"image": torch.zeros(2, 1, 28, 28, dtype=torch.uint8)}
    >>> augment(batch, rows=torch.tensor([40, 41]), epoch=0)["image"].dtype
    torch.float32

    Args:
        transforms: modules that are called as `BatchTransform.forward`.
        seed: seed of all transforms, which is combined with their own seeds.
        compile: whether to change the pixels of all transforms in one graph of ``torch.compile(fullgraph=True)``. A
            string is the name of its backend. All transforms must be from this library. Random numbers and objects are
            computed outside of the graph, so results are the same up to rounding. Shapes are static. Each size of a
            batch or image is compiled once, which takes up to minutes, so use ``drop_last=True``. It is meant for GPUs.

    Raises:
        OptionError: `compile` is set, and a transform is not from this library.
    """

    def __init__(self, transforms: Sequence[nn.Module], *, seed: int = 0, compile: bool | str = False) -> None:
        super().__init__()
        expected = "a list of batch transforms, such as [tsds.RandomHorizontalFlip()]"
        if not isinstance(transforms, Iterable):
            raise refusal("transforms", expected, f"a {type(transforms).__name__}")
        if wrong := [each for each in transforms if not isinstance(each, nn.Module)]:
            found = f"{getattr(wrong[0], '__name__', type(wrong[0]).__name__)}: pass functions as `batch_transform`"
            raise refusal("transforms", expected, found)
        self.transforms = nn.ModuleList(transforms)
        self._check_order()
        self.seed = seed
        self._graph: Callable[..., dict[str, Any]] | None = None
        if compile:
            for step in self.steps:
                if not isinstance(step, BatchTransform | Normalize):
                    raise refusal("compile", "transforms of tensorstore_ds alone", type(step).__name__)
            backend = compile if isinstance(compile, str) else "inductor"
            self._graph = torch.compile(self._change_pixels, fullgraph=True, dynamic=False, backend=backend)

    def extra_repr(self) -> str:
        return f"seed={self.seed}" if self.seed else ""

    def _check_order(self) -> None:
        """Warn about steps after a `Normalize` that expect images in [0, 1]."""
        names = [type(step).__name__ for step in self.steps]
        first = next((place for place, step in enumerate(self.steps) if isinstance(step, Normalize)), len(names))
        for step, name in zip(self.steps[first + 1 :], names[first + 1 :], strict=True):
            if isinstance(step, Normalize):
                warnings.warn("Compose: Normalize is in it twice. Remove one of them.", stacklevel=3)
                return
            if isinstance(step, BatchTransform) and step._of_unit_images:
                wanted = f"Compose: {name} expects images in [0, 1], found Normalize before it"
                warnings.warn(f"{wanted}. Put Normalize after {name}.", stacklevel=3)
                return

    @property
    def steps(self) -> list[nn.Module]:
        """The transforms, including those inside another `Compose`."""
        return [each for step in self.transforms for each in (step.steps if isinstance(step, Compose) else [step])]

    @property
    def _has_no_state(self) -> bool:
        return super()._has_no_state and self._graph is None and all(map(_has_no_state, self.transforms))

    @property
    def _mixes_samples(self) -> bool:
        return any(isinstance(step, OfBatches) and step._mixes_samples for step in self.transforms)

    def transform_batch(
        self, batch: Mapping[str, Any], rows: Rows | None, epoch: int | None, pool: BufferPool | None = None
    ) -> dict[str, Any]:
        images = check_images(batch)
        numbers = check_rows(rows, epoch, len(images))
        if self._graph is not None:
            others, drawn, _ = self.draw(batch, numbers, epoch or 0, images.shape[-2:])
            pixels = {name: batch[name] for name in PIXELS if isinstance(batch.get(name), Tensor)}
            return {**others, **self._graph(pixels, drawn)}
        return self._transform_from(0, batch, numbers, epoch or 0, pool)

    def _transform_from(
        self, first: int, batch: Mapping[str, Any], rows: NDArray[np.int64], epoch: int, pool: BufferPool | None
    ) -> dict[str, Any]:
        """Apply the transforms from position `first` on. The earlier ones were already applied."""
        result, objects, found = dict(batch), batch.get("objects"), None
        moving = (isinstance(each, BatchTransform) and each._moves_objects for each in self.steps)
        if isinstance(objects, list | dict) and sum(moving) > 1 and all(map(_has_no_state, self.transforms)):
            found = uncollated(objects)  # once, and not in each step
            result["objects"] = objects if found is None else found[0]
        for place in range(first, len(self.transforms)):
            transform = self.transforms[place]
            keys = fold(self.seed, place, rows.view(np.uint64)).view(np.int64)
            if _has_no_state(transform):
                result = transform.transform_batch(result, keys, epoch, pool)
            else:
                result = transform(result, keys, epoch)
        if found is not None:
            result["objects"] = collate_objects(result["objects"], found[1])
        return result

    def draw(
        self, batch: Mapping[str, Any], rows: Rows, epoch: int, size: Size
    ) -> tuple[dict[str, Any], list[Params], Size]:
        """Compute the random parameters of all transforms for a batch with images of (height, width) `size`.

        Returns:
            The batch with the members without pixels transformed, the parameters of each of `steps` on the device of
            the images, and the size of the results.
        """
        device, others, drawn = batch["image"].device, dict(batch), list[Params]()
        for place, step in enumerate(self.transforms):
            keys = fold(self.seed, place, check_rows(rows, epoch, len(rows)).view(np.uint64)).view(np.int64)
            if isinstance(step, Compose):
                others, more, size = step.draw(others, keys, epoch, size)
                drawn += more
            elif isinstance(step, BatchTransform):
                params = step.make_params(step.keys(keys, epoch), size)
                others |= step._change_others(others, params, size)
                drawn.append({name: on_device(value, device) for name, value in params.items()})
                size = step._size_after(size)
            else:
                drawn.append({})
        return others, drawn, size

    def _change_pixels(self, pixels: Mapping[str, Any], drawn: Sequence[Params]) -> dict[str, Any]:
        """Apply all `steps` to the members that have pixels, with the parameters from `draw`."""
        result = dict(pixels)
        for step, params in zip(self.steps, drawn, strict=True):
            result |= step._change_pixels(result, params, None)  # type: ignore[operator]
        return result


class Views(OfBatches):
    """Apply a transform to each of several views, each with its own random numbers.

    A loader makes it of a list of transforms, and of a single one for all views. Members of view 1 are `image_1`,
    `objects_1`, `mask_1`, `image_1_mask` and `image_1_size`. Other members are passed through. View 0 has the random
    numbers of its transform alone.

    >>> crop, small = tsds.RandomResizedCrop(32), tsds.RandomResizedCrop(16)
    >>> photos = tsds.StoreDataset("photos.tsds", "train")
    >>> flip = tsds.Compose([tsds.RandomHorizontalFlip(), tsds.transforms.ColorJitter(0.4)])
    >>> loader = tsds.DataLoader(photos, 4, decode=[crop, crop, small], batch_transform=[flip, flip, flip])
    >>> [tuple(image.shape) for name, image in next(iter(loader)).items() if name.startswith("image")]
    [(4, 3, 32, 32), (4, 3, 32, 32), (4, 3, 16, 16)]

    Args:
        transforms: a transform of batches for each view. They may be the same.
    """

    def __init__(self, transforms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.transforms = nn.ModuleList(transforms)

    @property
    def _has_no_state(self) -> bool:
        return super()._has_no_state and all(map(_has_no_state, self.transforms))

    @property
    def _mixes_samples(self) -> bool:
        return any(isinstance(step, OfBatches) and step._mixes_samples for step in self.transforms)

    def forward(self, batch: Any, rows: Rows | None = None, epoch: int | None = None) -> Any:
        """Transform a batch. A tuple begins with the images of all views, which alone are transformed."""
        if not isinstance(batch, tuple):
            return self.transform_batch(batch, rows, epoch)
        each = zip(self.transforms, batch, self._rows(rows, epoch), strict=False)
        return *(transform((image,), own, epoch)[0] for transform, image, own in each), *batch[len(self.transforms) :]

    def transform_batch(
        self, batch: Mapping[str, Any], rows: Rows | None, epoch: int | None, pool: BufferPool | None = None
    ) -> dict[str, Any]:
        result = dict(batch)
        for view, (transform, own) in enumerate(zip(self.transforms, self._rows(rows, epoch), strict=True)):
            names = {name: _of_view(name, view) for name in (*PIXELS, "objects")}
            seen = {name: batch[named] for name, named in names.items() if named in batch}
            more = (pool,) if _has_no_state(transform) else ()
            change = transform.transform_batch if _has_no_state(transform) else transform
            result |= {names[name]: value for name, value in change(seen, own, epoch, *more).items()}
        return result

    def _rows(self, rows: Rows | None, epoch: int | None) -> list[NDArray[np.int64] | None]:
        """Return the rows that each view draws by."""
        if rows is None:
            return [None] * len(self.transforms)
        first = check_rows(rows, epoch, len(rows))
        return [
            fold(view, first.view(np.uint64)).view(np.int64) if view else first for view in range(len(self.transforms))
        ]


class Redrawn(OfBatches):
    """Another transform, with different random numbers for each draw of a sampler that draws rows several times."""

    def __init__(self, transform: OfBatches) -> None:
        super().__init__()
        self.transform = transform

    @property
    def _has_no_state(self) -> bool:
        return super()._has_no_state and self.transform._has_no_state

    @property
    def _mixes_samples(self) -> bool:
        return True

    def forward(self, batch: Any, rows: Rows | None = None, epoch: int | None = None) -> Any:
        """Transform a batch as the other transform does."""
        return self.transform(batch, self._draws(rows, epoch), epoch)

    def transform_batch(
        self, batch: Mapping[str, Any], rows: Rows | None, epoch: int | None, pool: BufferPool | None = None
    ) -> dict[str, Any]:
        return self.transform.transform_batch(batch, self._draws(rows, epoch), epoch, pool)

    def _draws(self, rows: Rows | None, epoch: int | None) -> NDArray[np.int64] | None:
        return None if rows is None else draws_of(check_rows(rows, epoch, len(rows)))


def _of_view(name: str, view: int) -> str:
    """Return the name of a view's member, such as ``image_1_mask``."""
    return name.replace("image", f"image_{view}", 1) if name.startswith("image") else f"{name}_{view}"


def _has_no_state(transform: Any) -> TypeGuard[OfBatches]:
    return isinstance(transform, OfBatches) and transform._has_no_state
