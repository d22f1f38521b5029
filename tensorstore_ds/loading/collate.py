"""Collate the objects of a batch, whose number varies from sample to sample, into the form that a model needs.

All operations work on whole tensors. Nothing is done for each object separately.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tensorstore_ds.loading.buffers import on_device
from tensorstore_ds.options import refusal

Collate = Literal["list", "padded", "packed"]
COLLATES: tuple[Collate, ...] = get_args(Collate)

#: Labels of the rows that `padded` fills up: the default `ignore_index` of torch's `cross_entropy` and `nll_loss`,
#: so that a loss without the mask ignores them. 0 would be trained as the first class.
PADDED_LABEL = -100


@dataclass(frozen=True, slots=True, eq=False)
class PackedObjects:
    """The objects of B samples in one table. Sample i has the rows ``[offsets[i], offsets[i + 1])``.

    >>> boxes = torch.tensor([[0.0, 0, 8, 8], [4, 4, 12, 12], [2, 2, 6, 6]])
    >>> packed = tsds.loading.PackedObjects(torch.tensor([0, 2, 2, 3]), {"boxes": boxes})  # of 2, 0 and 1 objects
    >>> len(packed), packed[0]["boxes"].shape, packed[1]["boxes"].shape
    (3, torch.Size([2, 4]), torch.Size([0, 4]))

    Attributes:
        offsets: (B + 1,) int64, from 0 to M, in ascending order.
        values: tensors of M rows by name, on the device of `offsets`. `boxes` is (M, 4) float32, x1 y1 x2 y2 in pixels.
            `oriented_boxes` is (M, 5) float32, cx, cy, w, h in pixels and the angle in radians, clockwise on the
            screen, NaN where absent. `labels` is (M,) int64. `keypoints` is (M, K, 2) float32, x y in pixels, NaN where
            absent. `difficult`, `truncated` and `occluded` are (M,) uint8. All of these are optional, and there may be
            others.

    Raises:
        ValueError: `offsets` is not (B + 1,) int64, or the tensors have different numbers of rows. The values of the
            offsets are not checked, because on a GPU this would synchronize.
    """

    offsets: Tensor
    values: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if self.offsets.ndim != 1 or not len(self.offsets) or self.offsets.dtype != torch.int64:
            found = f"{tuple(self.offsets.shape)} {self.offsets.dtype}"
            raise ValueError(f"offsets: expected (samples + 1,) torch.int64, found {found}.")
        rows = {name: value.shape[0] if value.ndim else None for name, value in self.values.items()}
        if None in rows.values() or len(set(rows.values())) > 1:
            raise ValueError(f"values: expected tensors of equally many rows, found {rows}.")

    def __len__(self) -> int:
        """Number of samples, B."""
        return len(self.offsets) - 1

    def __getitem__(self, sample: int) -> dict[str, Tensor]:
        """Return the values of one sample, as views."""
        if not -len(self) <= sample < len(self):
            raise IndexError(f"sample {sample} is outside of a batch of {len(self)}")
        sample %= len(self)
        start, stop = self.offsets[sample : sample + 2].tolist()
        return {name: value[start:stop] for name, value in self.values.items()}

    def part(self, start: int, stop: int) -> PackedObjects:
        """Return the objects of the samples ``[start, stop)``. The values are views, the offsets a copy."""
        first, last = self.offsets[[start, stop]].tolist()
        values = {name: value[first:last] for name, value in self.values.items()}
        return PackedObjects(self.offsets[start : stop + 1] - first, values)

    def take(self, samples: Tensor, total: int | None = None) -> PackedObjects:
        """Copy the objects of some samples, (n,) int64, into a new table.

        On a GPU this synchronizes, unless you pass `total`, the number of objects of these samples.
        """
        starts, lengths = self.offsets[samples], self.lengths[samples]
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        total = int(offsets[-1]) if total is None else total
        flat = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)
        flat += torch.arange(total, device=flat.device)
        return PackedObjects(offsets, {name: value[flat] for name, value in self.values.items()})

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(collate_objects(self, "list"))

    @property
    def total(self) -> int:
        """Number of objects, M."""
        value = next(iter(self.values.values()), None)
        return int(self.offsets[-1]) if value is None else len(value)

    @property
    def lengths(self) -> Tensor:
        """(B,) int64, the number of objects of each sample."""
        return self.offsets.diff()

    @property
    def image_index(self) -> Tensor:
        """(M,) int64, the sample in the batch that each object belongs to."""
        samples = torch.arange(len(self), device=self.offsets.device)
        return torch.repeat_interleave(samples, self.lengths, output_size=self.total)  # the size avoids a wait on GPUs

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedObjects:
        """Move the objects to a device. Tensors that are already there are not copied."""
        moved: PackedObjects = map_tensors(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))
        return moved

    def pin_memory(self) -> PackedObjects:
        """Copy the objects to pinned memory. torch's own `DataLoader` calls this for ``pin_memory=True``."""
        pinned: PackedObjects = map_tensors(self, Tensor.pin_memory)
        return pinned

    def select(self, keep: Tensor) -> PackedObjects:
        """Copy the objects for which `keep`, (M,) bool, is true. All samples remain. On a GPU this synchronizes."""
        before = torch.nn.functional.pad(keep.cumsum(0), (1, 0))  # (M + 1,): how many are kept before each object
        kept = keep.nonzero()[:, 0]  # once, because it waits for a GPU
        return PackedObjects(before[self.offsets], {name: value[kept] for name, value in self.values.items()})


def pack_objects(samples: Sequence[Mapping[str, Tensor]]) -> PackedObjects:
    """Concatenate samples: the inverse of ``collate_objects(packed, "list")``. ValueError if they do not match."""
    names = list(samples[0]) if samples else []
    for i, sample in enumerate(samples):
        if set(sample) != set(names):
            raise ValueError(f"sample {i}: expected objects with {sorted(names)}, found {sorted(sample)}.")
        lengths = {name: len(sample[name]) for name in names}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"sample {i}: expected values of equally many objects, found {lengths}.")
    values = {name: torch.cat([sample[name] for sample in samples]) for name in names}
    counts = [len(next(iter(sample.values()))) for sample in samples] if names else [0] * len(samples)
    device = next(iter(values.values())).device if values else None
    offsets = torch.tensor([0, *counts], dtype=torch.int64).cumsum(0)
    return PackedObjects(offsets if device is None else on_device(offsets, device), values)


def collate_objects(packed: PackedObjects, how: Collate) -> Any:
    """Collate the objects of a batch into the form that a model needs.

    ``list`` and ``padded`` need the lengths on the host. On a GPU this synchronizes, so collate before the copy.

    >>> boxes = torch.tensor([[0.0, 0, 8, 8], [4, 4, 12, 12], [2, 2, 6, 6]])
    >>> packed = tsds.loading.PackedObjects(torch.tensor([0, 2, 3]), {"boxes": boxes})
    >>> [objects["boxes"].shape for objects in tsds.loading.collate_objects(packed, "list")]
    [torch.Size([2, 4]), torch.Size([1, 4])]
    >>> padded = tsds.loading.collate_objects(packed, "padded")
    >>> padded["boxes"].shape, padded["mask"].tolist()
    (torch.Size([2, 2, 4]), [[True, True], [True, False]])

    Args:
        packed: M objects of B samples.
        how: form of the result.

            - ``list``: B dicts of (m, ...) tensors, views of `packed`, as torchvision's detection models take them.
            - ``padded``: a dict of (B, N, ...) tensors, where N is the largest number of objects of a sample (0 if
              there are none), and ``mask`` (B, N) bool, true where there is an object. Elsewhere `labels` is
              `PADDED_LABEL`, which torch's cross entropy ignores, and all other values are 0. Keypoints are also 0 and
              not NaN, because 0 times NaN would make a masked loss NaN.
            - ``packed``: a dict of the (M, ...) tensors themselves and ``offsets`` (B + 1,) int64.

    Raises:
        ValueError: `how` is not one of these, or a value has the name of an added one.
    """
    values = packed.values
    added = {"padded": "mask", "packed": "offsets"}.get(how)
    if added in values:
        raise ValueError(f"{how}: expected no value called {added}, which is added. Rename it.")
    if how == "list":
        return _cut(values, packed.lengths.tolist())
    if how == "packed":
        return {"offsets": packed.offsets, **values}
    if how != "padded":
        raise refusal("collate", f"one of {', '.join(COLLATES)}", repr(how))
    longest = int(packed.lengths.max()) if len(packed) else 0
    mask = torch.arange(longest, device=packed.offsets.device) < packed.lengths[:, None]
    sample, place = mask.nonzero(as_tuple=True)
    padded = {"mask": mask}
    for name, value in values.items():
        padded[name] = value.new_full((*mask.shape, *value.shape[1:]), PADDED_LABEL if name == "labels" else 0)
        padded[name][sample, place] = value
    return padded


def uncollated(objects: Any) -> tuple[PackedObjects, Collate] | None:
    """Return the table of objects that `collate_objects` has collated, and their form; None if they are none.

    On a GPU the form ``padded`` synchronizes.
    """
    if isinstance(objects, Mapping) and "offsets" in objects:
        return PackedObjects(
            objects["offsets"], {name: v for name, v in objects.items() if name != "offsets"}
        ), "packed"
    if isinstance(objects, Mapping) and "mask" in objects:
        mask = objects["mask"]
        offsets, at = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)), mask.nonzero(as_tuple=True)
        return PackedObjects(offsets, {name: v[at] for name, v in objects.items() if name != "mask"}), "padded"
    if isinstance(objects, list) and all(isinstance(each, Mapping) for each in objects):
        is_of_tensors = all(isinstance(value, Tensor) for each in objects for value in each.values())
        return (pack_objects(objects), "list") if is_of_tensors else None
    return None


def _cut(values: Mapping[str, Tensor], lengths: list[int]) -> list[dict[str, Tensor]]:
    """Split the values into views for each sample."""
    columns = {name: torch.split(value, lengths) for name, value in values.items()}
    return [{name: views[i] for name, views in columns.items()} for i in range(len(lengths))]


@dataclass(frozen=True, slots=True)
class Deferred:
    """A part of a batch that `make` computes from `parts` once these are on the batch's device."""

    parts: Any
    make: Callable[[Any], Any]

    def then(self, change: Callable[[Any], Any]) -> Deferred:
        """Return a copy whose result is also passed through `change`."""
        return Deferred(self.parts, lambda parts: change(self.make(parts)))


def defer_objects(packed: PackedObjects, how: Collate) -> Any:
    """Return the result of `collate_objects` as a `Deferred` of few tensors, views of a batch on its device.

    The host knows the lengths of lists, so nothing waits for the device. Values that need computing are computed now.
    """
    if how == "list":
        return Deferred(packed.values, functools.partial(_cut, lengths=packed.lengths.tolist()))
    return collate_objects(packed, how)


def settle(batch: Any) -> Any:
    """Compute all deferred parts of a batch, in dicts and tuples."""
    if isinstance(batch, Deferred):
        return batch.make(batch.parts)
    if type(batch) is dict:
        return {name: settle(value) for name, value in batch.items()}
    return tuple(map(settle, batch)) if type(batch) is tuple else batch


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to each tensor of a batch, in dicts, lists, tuples, `PackedObjects` and `Deferred`."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, PackedObjects):
        return PackedObjects(change(batch.offsets), map_tensors(batch.values, change))
    if isinstance(batch, Deferred):
        return Deferred(map_tensors(batch.parts, change), batch.make)
    if isinstance(batch, Mapping):
        return {name: map_tensors(value, change) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, change) for value in batch)
    return batch
