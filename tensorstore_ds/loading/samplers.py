"""Samplers: which rows a rank visits in an epoch, and in which order.

An order is a function of (seed, epoch, rank, number of ranks) and not a state: every rank knows its rows beforehand,
all ranks have equally many, and going on in the middle of an epoch is a slice.
"""

from __future__ import annotations

import copy
import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from typing import Any, ClassVar, Self, TypedDict, Unpack

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DistributedSampler

from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import generator

#: Rows that become Python integers at a time: a list of all of them would be several times the array.
_CHUNK = 4096


class Order(TypedDict, total=False):
    """Keyword arguments of all samplers."""

    seed: int  #: the same for all ranks, not negative; 0 if missing
    rank: int | None  #: this process, in [0, num_replicas)
    num_replicas: int | None  #: sharing an epoch; without both, torch.distributed is asked whenever they matter
    drop_last: bool  #: leave a remainder out instead of repeating rows
    even_batches: bool  #: if False, rows are neither repeated nor left out, and ranks may differ by one row


class RowSampler(DistributedSampler[int], ABC):
    """Base of all samplers: an epoch of `size` rows, divided among ranks of equal length.

    If the number of ranks does not divide `size`, every rank has one row more than ``size // num_replicas``, and those
    that are missing are repeated from the beginning of the order; with `drop_last` the remainder is left out of this
    epoch instead. That is what torch's DistributedSampler does. With ``even_batches=False``, every row comes exactly
    once, and the first ranks have one row more than the others: for metrics, in code that waits for no other rank.

    It is one, too: Lightning, Fabric and others leave a DistributedSampler alone, and would divide any other sampler's
    rows among the ranks once more. Accelerate does so with every sampler: our `DataLoader` shows it an undivided one.

    `size` counts the rows of an epoch, all ranks together, or is a data set, which may grow. ValueError if a
    number is out of its range, or only one of `rank` and `num_replicas` was passed.

    Attributes:
        is_elastic: whether ranks take the rows of one order in turn, so that in the middle of an epoch another number
            of ranks can go on with the rest.
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
        # Not DistributedSampler's own constructor, which wants a data set and asks for the rank at once.
        self._data = size if isinstance(size, Sized) else at_least(0, size, "size")
        self.seed = at_least(0, seed, "seed")
        self.drop_last = drop_last
        self.even_batches = even_batches
        self._state = {"epoch": 0}
        self._start = 0  # rows of the epoch, all ranks together, that were visited before
        self._ranks = None if rank is None or num_replicas is None else (rank, num_replicas)
        if self._ranks is None and rank is not num_replicas:
            found = f"{rank} and {num_replicas}"
            raise OptionError(f"`rank`: expected with `num_replicas`, found {found}. Give both or neither.")
        if self._ranks is not None and not 0 <= self._ranks[0] < self._ranks[1]:
            raise refusal("rank", f"in [0, {num_replicas})", rank)

    @property
    def size(self) -> int:
        """Rows of an epoch, all ranks together; of a data set, as many as it has now."""
        return len(self._data) if isinstance(self._data, Sized) else self._data

    def rows(self) -> NDArray[np.int64]:
        """This rank's rows of this epoch, in order: (len(self),) int64, a new array, made in time O(size)."""
        return self._deal(self._order())

    @abstractmethod
    def _order(self) -> NDArray[np.int64]:
        """The rows of all ranks in this epoch, (size,), a new array."""

    def _deal(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every `num_replicas`-th of the rows of all ranks, from `rank`; a view of `order` if there is one rank."""
        rank, replicas = self._place()
        if replicas == 1:
            return order[self._start :]
        if not self.even_batches and not self.drop_last:
            return order[self._start + rank :: replicas]
        return order.take(np.arange(rank, len(self) * replicas, replicas) + self._start, mode="wrap")

    def __iter__(self) -> Iterator[int]:
        rows = self.rows()
        return itertools.chain.from_iterable(rows[i : i + _CHUNK].tolist() for i in range(0, len(rows), _CHUNK))

    def __len__(self) -> int:
        """Rows of this rank in an epoch, the same for all ranks if `even_batches`."""
        rows, (rank, replicas) = self.size - self._start, self._place()
        if self.drop_last:
            return rows // replicas
        return -(-(rows if self.even_batches else max(0, rows - rank)) // replicas)

    def _place(self) -> tuple[int, int]:
        # Asked again and again: a sampler is often made before the process group is. One that had settled for "alone"
        # then would show every row to every rank.
        if self._ranks is None and dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return self._ranks or (0, 1)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """As passed, else torch.distributed's as soon as it is initialized, else 0."""
        return self._place()[0]

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """As passed, else torch.distributed's world size as soon as it is initialized, else 1."""
        return self._place()[1]

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """``len(self)``, under DistributedSampler's name."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Rows that all ranks visit together, with those repeated or without those left out."""
        whole = self.size - self._start
        return len(self) * self.num_replicas if self.even_batches or self.drop_last else whole

    def undivided(self) -> Self:
        """A copy that has one rank, and so the rows of all. Both have one epoch: to set it for one sets it for both."""
        alone = copy.copy(self)
        alone._ranks = (0, 1)
        return alone

    def after(self, start: int) -> Self:
        """A copy that begins every epoch after so many rows, all ranks together. Both have one epoch, as above."""
        rest = copy.copy(self)
        rest._start = start
        return rest

    @property
    def epoch(self) -> int:
        """Not negative; 0 until `set_epoch`."""
        return self._state["epoch"]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, 0 or more, whose rows come next; an iteration that has begun does not change."""
        self._state["epoch"] = at_least(0, epoch, "epoch")

    def state_dict(self) -> dict[str, Any]:
        """``{"epoch": epoch}``: all that changes. How far an epoch has come is for the loader to count."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the epoch of a `state_dict`; raises `ValueError` if it holds none."""
        if "epoch" not in state:
            raise ValueError(f"state: expected the member epoch, found {', '.join(map(str, state)) or 'none'}.")
        self.set_epoch(state["epoch"])


class ShuffleSampler(RowSampler):
    """Every row once in an epoch, in random order.

    The order does not depend on the number of ranks, which take its rows in turn: a step sees the same rows whether one
    rank takes 256 or eight take 32 each.

    ::

        ShuffleSampler(10, seed=0)
        order    4  9  8  7  5  3  0  1  2  6

        2 ranks, 5 rows each      3 ranks, 4 rows each    3 ranks, drop_last=True
        rank 0   4  8  5  0  2    rank 0   4  7  0  6     rank 0   4  7  0
        rank 1   9  7  3  1  6    rank 1   9  5  1 (4)    rank 1   9  5  1
                                  rank 2   8  3  2 (9)    rank 2   8  3  2    without 6, this time

    >>> ShuffleSampler(10, rank=1, num_replicas=3).rows().tolist()
    [9, 5, 1, 4]

    Args:
        data: a number of rows, or a data set, whose length is asked for in every epoch.
        shuffle: if False, rows in their stored order, in every epoch.
        order: `seed`, `rank`, `num_replicas`, `drop_last` and `even_batches`: see `Order`.
    """

    def __init__(self, data: int | Sized, *, shuffle: bool = True, **order: Unpack[Order]) -> None:
        super().__init__(data, **order)
        self.shuffle = shuffle

    def _order(self) -> NDArray[np.int64]:
        order = np.arange(self.size, dtype=np.int64)
        if self.shuffle:
            generator(self.seed, self.epoch).shuffle(order)
        return order


class SubsetSampler(ShuffleSampler):
    """Some rows once in an epoch, in random order; a row that is listed twice comes twice.

    ::

        SubsetSampler([10, 11, 12, 13, 14], shuffle=False)      2 ranks
        order   10 11 12 13 14                                  rank 0   10 12 14
                                                                rank 1   11 13 (10)

    >>> sampler = SubsetSampler([10, 11, 12, 13, 14], shuffle=False, rank=1, num_replicas=2)
    >>> sampler.rows().tolist()
    [11, 13, 10]

    Args:
        rows: (m,) integers, not negative. Copied.
        shuffle: if False, rows in the order of `rows`.
        order: `seed`, `rank`, `num_replicas` and `drop_last`: see `Order`.

    Raises:
        TypeError: `rows` are no integers; a mask, for one.
        ValueError: `rows` have another shape than (m,), or one is negative.
    """

    def __init__(self, rows: ArrayLike, *, shuffle: bool = True, **order: Unpack[Order]) -> None:
        array = np.asarray(rows)
        if array.ndim != 1:
            raise ValueError(f"rows: expected shape (m,), found {array.shape}.")
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"rows: expected integers, found {array.dtype}. For a mask use numpy.flatnonzero(mask).")
        if array.size and array.min() < 0:
            raise ValueError(f"rows: expected 0 or more, found {array.min()}.")
        self._rows = array.astype(np.int64)
        super().__init__(len(array), shuffle=shuffle, **order)

    def _order(self) -> NDArray[np.int64]:
        return self._rows[super()._order()]


def at_least(low: int, value: int, name: str) -> int:
    """`value` as an int, at least `low`."""
    number = operator.index(value)
    if number < low:
        raise refusal(name, f"{low} or more", number)
    return number
