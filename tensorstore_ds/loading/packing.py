"""The tensors of a batch in few pieces of memory, so that few copies move it to a GPU.

::

    labels, boxes, offsets, ...     side by side in one piece, copied into it by the threads
    images (B, C, H, W)             a piece of their own: the memory that they were gathered into
    images of differing sizes       side by side in one piece
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensorstore_ds.loading.buffers import BufferPool, pinned
from tensorstore_ds.loading.collate import map_tensors

#: Tensors with fewer bytes share a piece. On the device, each of them keeps the memory of all alive: a script that
#: collects the labels of an epoch must not collect its images with them.
SMALL_NBYTES = 64 * 1024
#: Number of larger tensors with their own pieces. More of them, such as images of different sizes, share one.
MOST_ALONE = 4
#: Alignment of tensors in a piece, in bytes.
_ALIGNMENT = 64


class _View(NamedTuple):
    """Position of a tensor in a piece, or the whole piece without a `dtype`."""

    piece: int
    dtype: torch.dtype | None = None
    shape: Sequence[int] = ()
    stride: Sequence[int] = ()
    start: int = 0  # in elements


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch, and the pieces of memory that its tensors are views of.

    `pieces` are mostly tensors one after the other, (nbytes,) uint8. `views` are in the order of `map_tensors`. `batch`
    may have `Deferred` parts.
    """

    batch: Any
    pieces: Sequence[Tensor]
    views: Sequence[_View]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)

    def over(self, pieces: Sequence[Tensor]) -> Any:
        """Return the batch as views of `pieces`, which are copies of these."""
        typed: dict[tuple[int, torch.dtype], Tensor] = {}

        def tensor(view: _View) -> Tensor:
            if view.dtype is None:
                return pieces[view.piece]
            whole = typed.get((view.piece, view.dtype))
            if whole is None:
                whole = typed[view.piece, view.dtype] = pieces[view.piece].view(view.dtype)
            return whole.as_strided(view.shape, view.stride, whole.storage_offset() + view.start)

        tensors = map(tensor, self.views)
        return map_tensors(self.batch, lambda _: next(tensors))


def as_it_is(batch: Any) -> PackedBatch:
    """Return a batch whose pieces are its tensors."""
    tensors = tensors_of(batch)
    return PackedBatch(batch, tensors, [_View(piece) for piece in range(len(tensors))])


def pack(batch: Any, pool: BufferPool) -> PackedBatch:
    """Copy the tensors of a batch into few pieces of a pool's memory; what is large and pinned already stays there."""
    tensors, pieces = tensors_of(batch), list[Tensor]()
    views = [_View(0)] * len(tensors)
    small, large = list[int](), list[int]()
    for i, tensor in enumerate(tensors):
        if is_plain(tensor):
            (small if tensor.nbytes < SMALL_NBYTES else large).append(i)
        else:
            views[i] = _View(len(pieces))
            pieces.append(pinned(tensor) if pool.pinned else tensor)
    for group in [small, *([[i] for i in large] if len(large) <= MOST_ALONE else [large])]:
        if len(group) == 1 and tensors[group[0]].is_pinned():
            views[group[0]] = _View(len(pieces))
            pieces.append(tensors[group[0]])
        elif group:
            nbytes = 0
            for i in group:
                tensor = tensors[i]
                # As a copy to the device would be: without the gaps between the rows of a larger tensor.
                stride = tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
                views[i] = _View(len(pieces), tensor.dtype, tensor.shape, stride, nbytes // tensor.element_size())
                nbytes += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
            pieces.append(pool.empty_bytes(nbytes))
    packed = PackedBatch(batch, pieces, views)
    whole = packed.over(pieces)
    for view, source, target in zip(views, tensors, tensors_of(whole), strict=True):
        if view.dtype is not None:
            target.copy_(source)
    return PackedBatch(whole, pieces, views)  # does not keep the tensors that were copied


class Pinning:
    """Moves the batches of a task to pinned memory, packed if a GPU gets them.

    `nbytes` is the size of the largest task's batches so far.
    """

    def __init__(self, pool: BufferPool, *, packs: bool) -> None:
        self._pool, self._packs = pool, packs
        self.nbytes = 0

    def __call__(self, batches: list[Any]) -> list[Any]:
        """Return pinned batches."""
        packed = [pack(batch, self._pool) for batch in batches]
        self.nbytes = max(self.nbytes, sum(batch.nbytes for batch in packed))
        return packed if self._packs else [batch.batch for batch in packed]


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is plain numbers in the host's memory, not nested, sparse, or of a subclass."""
    return type(tensor) is Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"


def tensors_of(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch in the order of `map_tensors`."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(batch, note)
    return tensors
