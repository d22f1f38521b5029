"""Samplers, which determine the rows that a rank visits in an epoch, and their order.

An order is a function of (seed, epoch, rank, number of ranks), not a state. Every rank knows its rows beforehand, all
ranks have the same number of rows, and continuing in the middle of an epoch is a slice.
"""

from __future__ import annotations

import copy
import itertools
import operator
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sized
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, get_args

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DistributedSampler

from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import check_choice, refusal
from tensorstore_ds.seeding import IndexShuffle, generator, shuffled

#: Number of rows converted to Python integers at a time, because a list of all takes several times the array's memory.
_CHUNK = 4096
#: Number of rows whose order is computed at a time, if it is a function of the position. They fit into a core's cache.
PIECE = 4 * _CHUNK

#: How `ShuffleSampler` shuffles.
Algorithm = Literal["fisher-yates", "feistel"]


class Order(TypedDict, total=False):
    """Keyword arguments of all samplers."""

    seed: int  #: seed of the order, the same for all ranks, not negative. The default is 0
    rank: int | None  #: number of this process, in [0, num_replicas)
    num_replicas: int | None  #: number of ranks. The default of both is the current value in torch.distributed
    drop_last: bool  #: whether to leave out a remainder instead of repeating rows
    even_batches: bool  #: if False, rows are neither repeated nor left out, and ranks may differ by one row


class Ranked:
    """Seed, rank and epoch of a sampler. Raises `OptionError` if a number is out of range."""

    def __init__(self, seed: int, rank: int | None, num_replicas: int | None) -> None:
        self.seed = at_least(0, seed, "seed")
        self._state = {"epoch": 0}
        self._ranks = None if rank is None or num_replicas is None else (rank, num_replicas)
        if self._ranks is None and rank is not num_replicas:
            found = f"{rank} and {num_replicas}"
            raise OptionError(f"`rank`: expected with `num_replicas`, found {found}. Give both or neither.")
        if self._ranks is not None and not 0 <= self._ranks[0] < self._ranks[1]:
            raise refusal("rank", f"in [0, {num_replicas})", rank)

    def _place(self) -> tuple[int, int]:
        # Read this each time: a sampler is often created before the process group. If it had settled for a single rank
        # then, it would show every row to every rank.
        if self._ranks is None and dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return self._ranks or (0, 1)

    @property
    def rank(self) -> int:
        """The rank that was passed, or the rank in torch.distributed once it is initialized, or 0."""
        return self._place()[0]

    @property
    def num_replicas(self) -> int:
        """The number that was passed, or the world size of torch.distributed once it is initialized, or 1."""
        return self._place()[1]

    @property
    def epoch(self) -> int:
        """Number of the epoch, 0 until `set_epoch` is called."""
        return self._state["epoch"]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next rows, 0 or more. An iteration that has begun does not change."""
        self._state["epoch"] = at_least(0, epoch, "epoch")

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"epoch": epoch}``. The loader counts the position within an epoch."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the epoch from a `state_dict`. Raises `ValueError` if it contains none."""
        if "epoch" not in state:
            raise ValueError(f"state: expected the member epoch, found {', '.join(map(str, state)) or 'none'}.")
        self.set_epoch(state["epoch"])


class RowSampler(Ranked, DistributedSampler[int], ABC):  # type: ignore[override]
    """Base class of all samplers. An epoch has `size` rows, which are divided evenly among ranks.

    If the number of ranks does not divide `size`, the first rows of the order are repeated, so that every rank has
    ``size // num_replicas + 1`` rows. With `drop_last`, the remainder is left out of this epoch instead. Both are as in
    torch's DistributedSampler. With ``even_batches=False``, every row occurs exactly once, and the first ranks have one
    row more than the others. Use it for metrics, in code that does not wait for other ranks.

    This class derives from DistributedSampler, because Lightning, Fabric and other frameworks divide the rows of any
    other sampler among the ranks once more. Accelerate does this with every sampler, so `DataLoader` passes an
    undivided sampler to it.

    `size` is the number of rows of an epoch, all ranks together, or a data set, which may grow. ValueError is raised if
    a number is out of range, or if only one of `rank` and `num_replicas` was passed.

    Attributes:
        is_elastic: whether ranks take the rows of one order in turn, so that a different number of ranks can continue
            in the middle of an epoch.
    """

    is_elastic: ClassVar[bool] = True

    def __init__(
        self,
        size: int | Sized,
        *,
        seed: int = 0,
        rank: int | None = None,
        num_replicas: int | None = None,
        drop_last: bool = False,
        even_batches: bool = True,
    ) -> None:
        # DistributedSampler's own constructor wants a data set and asks for the rank at once.
        self._data = size if isinstance(size, Sized) else at_least(0, size, "size")
        self.drop_last = drop_last
        self.even_batches = even_batches
        self._start = 0  # rows of the epoch, all ranks together, that were visited before
        super().__init__(seed, rank, num_replicas)

    @property
    def size(self) -> int:
        """Number of rows of an epoch, all ranks together. For a data set, its current length."""
        return len(self._data) if isinstance(self._data, Sized) else self._data

    def rows(self) -> NDArray[np.int64]:
        """Return this rank's rows of this epoch in order, a new array (len(self),) int64."""
        pieces = [*self.pieces()]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.int64), *pieces])

    def pieces(self, first: int = 0, nrows: int = PIECE) -> Iterator[NDArray[np.int64]]:
        """Iterate over this rank's rows of this epoch in order, from its row number `first` on, as new arrays.

        Each has `nrows` rows, except the last one, if the order is a function of the position. Otherwise the whole
        order is computed at once, and there is one array.
        """
        function = self._function()
        if function is None:
            return iter([self._deal(self._order())[first:]])
        (rank, replicas), stop, size, skipped = self._place(), len(self), self.size, self._start

        def piece(begin: int) -> NDArray[np.int64]:
            positions = np.arange(begin, min(begin + nrows, stop)) * replicas + (skipped + rank)
            return function(positions % size if positions[-1] >= size else positions)

        return map(piece, range(first, stop, nrows))

    def _function(self) -> Callable[[NDArray[np.int64]], NDArray[np.int64]] | None:
        """Return a function from positions in the order of all ranks to rows, or None if only `_order` has them."""
        return None

    @abstractmethod
    def _order(self) -> NDArray[np.int64]:
        """Return the rows of all ranks in this epoch, (size,), a new array."""

    def _deal(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return every `num_replicas`-th row of all ranks, from `rank`: a view of `order` for a single rank."""
        rank, replicas = self._place()
        if replicas == 1:
            return order[self._start :]
        if not self.even_batches and not self.drop_last:
            return order[self._start + rank :: replicas]
        return order.take(np.arange(rank, len(self) * replicas, replicas) + self._start, mode="wrap")

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(
            rows[i : i + _CHUNK].tolist() for rows in self.pieces() for i in range(0, len(rows), _CHUNK)
        )

    def __len__(self) -> int:
        """Number of rows of this rank in an epoch. With `even_batches`, it is the same for all ranks."""
        rows, (rank, replicas) = self.size - self._start, self._place()
        if self.drop_last:
            return rows // replicas
        return -(-(rows if self.even_batches else max(0, rows - rank)) // replicas)

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """``len(self)``, the name in DistributedSampler."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Number of rows that all ranks visit together, including repeated rows and without dropped ones."""
        whole = self.size - self._start
        return len(self) * self.num_replicas if self.even_batches or self.drop_last else whole

    def _undivided(self) -> Self:
        """Return a copy with one rank, which has the rows of all ranks. Setting the epoch of one sets it for both."""
        alone = copy.copy(self)
        alone._ranks = (0, 1)
        return alone

    def after(self, start: int) -> Self:
        """Return a copy that skips the first `start` rows of every epoch, all ranks together. Both share the epoch."""
        rest = copy.copy(self)
        rest._start = start
        return rest

    def _at(self, epoch: int) -> Self:
        """Return a copy that has its own epoch."""
        other = copy.copy(self)
        other._state = {"epoch": epoch}
        return other

    def signature(self) -> Hashable | None:
        """Return what the order depends on beside the epoch, or None if that is not known.

        A loader prepares the first batches of the next epoch if this is the same then. A sampler of your own that
        returns a value promises that its rows are a function of this value and the epoch.

        >>> ShuffleSampler(10, seed=3).signature() == ShuffleSampler(10, seed=3).signature()
        True
        """
        own = self._own()
        if own is None or not type(self).__module__.startswith("tensorstore_ds."):  # a derived class
            return None
        order = (self.seed, self.size, self._start, self._place(), self.drop_last, self.even_batches)
        return (type(self), *order, *own)

    def _own(self) -> list[Any] | None:
        """Plain values that the order of all ranks depends on beside size, seed and epoch, or None if unknown."""
        return None


class ShuffleSampler(RowSampler):
    """Visit every row once per epoch, in random order.

    The order does not depend on the number of ranks, which take its rows in turn. A training step therefore sees the
    same rows with one rank and 256 rows, or with 8 ranks and 32 rows each.

    ::

        ShuffleSampler(10, seed=0)
        order    4  9  8  7  5  3  0  1  2  6

        2 ranks, 5 rows each      3 ranks, 4 rows each    3 ranks, drop_last=True
        rank 0   4  8  5  0  2    rank 0   4  7  0  6     rank 0   4  7  0
        rank 1   9  7  3  1  6    rank 1   9  5  1 (4)    rank 1   9  5  1
                                  rank 2   8  3  2 (9)    rank 2   8  3  2    without 6 in this epoch

    >>> ShuffleSampler(10, rank=1, num_replicas=3).rows().tolist()
    [9, 5, 1, 4]

    Args:
        data: number of rows, or a data set, whose length is read again in every epoch.
        shuffle: whether to shuffle. If False, rows are in their stored order in every epoch.
        algorithm: how to shuffle. ``fisher-yates`` shuffles an array of all rows (8 bytes per row) before the first
            batch. ``feistel`` computes the row at each position when it is needed. An epoch then begins at once, also
            in its middle, and needs no such array. The orders differ, but are equally random. Use it for millions of
            rows.
        order: `seed`, `rank`, `num_replicas`, `drop_last` and `even_batches`, see `Order`.
    """

    def __init__(
        self, data: int | Sized, *, shuffle: bool = True, algorithm: Algorithm = "fisher-yates", **order: Unpack[Order]
    ) -> None:
        super().__init__(data, **order)
        self.shuffle = shuffle
        check_choice("algorithm", algorithm, get_args(Algorithm))
        self.algorithm = algorithm

    def _own(self) -> list[Any] | None:
        return [bool(self.shuffle), self.algorithm]

    def _function(self) -> Callable[[NDArray[np.int64]], NDArray[np.int64]] | None:
        if not self.shuffle:
            return lambda positions: positions
        if self.algorithm == "feistel":
            return IndexShuffle(self.size, generator(self.seed, self.epoch))
        return None

    def _order(self) -> NDArray[np.int64]:
        return shuffled(self.size, self.seed, self.epoch)


class SubsetSampler(ShuffleSampler):
    """Visit some rows once per epoch, in random order. A row that is listed twice is visited twice.

    ::

        SubsetSampler([10, 11, 12, 13, 14], shuffle=False)      2 ranks
        order   10 11 12 13 14                                  rank 0   10 12 14
                                                                rank 1   11 13 (10)

    >>> sampler = SubsetSampler([10, 11, 12, 13, 14], shuffle=False, rank=1, num_replicas=2)
    >>> sampler.rows().tolist()
    [11, 13, 10]

    Args:
        rows: (m,) integers, not negative. They are copied.
        shuffle: whether to shuffle. If False, rows are in the order of `rows`.
        algorithm: as in `ShuffleSampler`.
        order: `seed`, `rank`, `num_replicas`, `drop_last` and `even_batches`, see `Order`.

    Raises:
        TypeError: `rows` are not integers, for example if they are a mask.
        ValueError: `rows` does not have the shape (m,), or contains a negative number.
    """

    def __init__(
        self, rows: ArrayLike, *, shuffle: bool = True, algorithm: Algorithm = "fisher-yates", **order: Unpack[Order]
    ) -> None:
        array = np.asarray(rows)
        if array.ndim != 1:
            raise ValueError(f"rows: expected shape (m,), found {array.shape}.")
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"rows: expected integers, found {array.dtype}. For a mask use numpy.flatnonzero(mask).")
        if array.size and array.min() < 0:
            raise ValueError(f"rows: expected 0 or more, found {array.min()}.")
        self._rows = array.astype(np.int64)
        super().__init__(len(array), shuffle=shuffle, algorithm=algorithm, **order)

    def _own(self) -> list[Any] | None:
        return [bool(self.shuffle), self.algorithm, zlib.crc32(self._rows.view(np.uint8).data)]

    @property
    def subset(self) -> NDArray[np.int64]:
        """(m,) the rows to visit, as they were given."""
        return self._rows

    def _function(self) -> Callable[[NDArray[np.int64]], NDArray[np.int64]] | None:
        function = super()._function()
        return None if function is None else lambda positions: self._rows[function(positions)]

    def _order(self) -> NDArray[np.int64]:
        return self._rows[super()._order()]


def at_least(low: int, value: int, name: str) -> int:
    """Return `value` as an int, at least `low`."""
    number = operator.index(value)
    if number < low:
        raise refusal(name, f"{low} or more", number)
    return number
