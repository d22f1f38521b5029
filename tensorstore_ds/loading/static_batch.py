"""Batches that always arrive in the same tensors, as CUDA graphs require."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.collate import PackedObjects, map_tensors
from tensorstore_ds.options import refusal

#: Advice for making shapes equal.
_ADVICE = (
    "Every batch needs the same shapes: pass `drop_last=True`, and leave out objects and images of differing sizes, or "
    "give them a fixed shape in `batch_transform`."
)


class StaticBatch:
    """One set of tensors, into which each batch is copied.

    `into` are tensors in dicts, lists and tuples with the structure of a batch, or ``first`` for copies of the first
    batch. The copy is queued on the current stream of the tensors' device. A step on that stream which reads the batch
    before is done by then, and the next one waits for the copy, so no event is needed.
    """

    def __init__(self, into: Any) -> None:
        self._tensors: dict[str, Tensor] | None = None
        if not (isinstance(into, str) and into == "first"):
            self._tensors = dict(_named(into))
            if not self._tensors:
                raise refusal("into", "`first`, or tensors as a batch has them", repr(into))
            for name, tensor in self._tensors.items():
                if _overlaps(tensor):
                    found = f"{name} of shape {tuple(tensor.shape)} with strides {tensor.stride()}"
                    expected = "`into`: expected tensors in which no two elements share memory"
                    raise OptionError(f"{expected}, found {found}. Pass a copy: `tensor.clone()`.")

    def fill(self, batch: Any) -> Any:
        """Copy `batch` into the static tensors, and return it with these. Raises `OptionError` for other shapes."""
        found = dict(_named(batch))
        # Tensors created in inference mode could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            if self._tensors is None:
                self._tensors = {name: tensor.clone() for name, tensor in found.items()}
            else:
                _check(self._tensors, found)
                for name, tensor in found.items():
                    self._tensors[name].copy_(tensor)
        tensors = iter([self._tensors[name] for name in found])
        return map_tensors(batch, lambda _: next(tensors))


def _check(static: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raise an `OptionError` unless tensors have the names, shapes, types and device of a batch."""
    if static.keys() != found.keys():
        raise _differs(f"the tensors {_listed(static)}", _listed(found))
    for name, tensor in found.items():
        if _described(tensor) != _described(static[name]):
            raise _differs(f"{name} of {_described(static[name])}", _described(tensor))


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements share memory: from the smallest stride on, each dimension must reach beyond those before it."""
    reach = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def _differs(expected: str, found: str) -> OptionError:
    return OptionError(f"`into`: expected {expected}, found {found}. {_ADVICE}")


def _listed(named: Mapping[str, Tensor]) -> str:
    names = list(named)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def _named(batch: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield tensors with names such as ``objects.boxes``, in the order of `map_tensors`."""
    if isinstance(batch, Tensor):
        yield name or "batch", batch
    elif isinstance(batch, PackedObjects):
        yield from _named({"offsets": batch.offsets, **batch.values}, name)
    elif isinstance(batch, Mapping | list | tuple):
        members = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        for key, value in members:
            yield from _named(value, f"{name}.{key}" if name else str(key))
