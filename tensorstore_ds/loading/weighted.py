"""Sampling by weight, over any number of ranks and weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorstore_ds.loading.samplers import RowSampler, at_least, generator
from tensorstore_ds.loading.weights import checked_weights


class WeightedSampler(RowSampler):
    """Rows drawn at random, each with a chance proportional to its weight; as torch's WeightedRandomSampler.

    But the draws are divided among ranks, and torch's limit of 2^24 weights does not apply. The draws do not depend on
    the number of ranks, which take them in turn::

        WeightedSampler([3, 1, 0, 6], 6)

        1 rank                   2 ranks            4 ranks
        rank 0   3 3 3 0 1 3     rank 0   3 3 1     rank 0   3 1
                                 rank 1   3 0 3     rank 1   3 3
                                                    rank 2   3(3)
                                                    rank 3   0(3)

    With replacement each draw is independent: a uniform number looked up in the cumulated weights (float64). Without,
    each row has an exponential variate divided by its weight as its key, and the rows of the smallest keys are taken,
    smallest first (Efraimidis and Spirakis, Weighted random sampling with a reservoir, Inf. Process. Lett. 97, 2006,
    whose u ** (1 / w) is this key's exp(-key)): the same as to draw one by one from those that are left.

    >>> WeightedSampler([3, 1, 0, 6], 6, rank=1, num_replicas=2).rows().tolist()
    [3, 0, 3]

    Args:
        weights: (n,) numbers, of any sum; an array is not copied and must not be changed. A row of weight 0 is never
            drawn.
        num_samples: draws in an epoch, all ranks together; by default n, or as many weights as are positive if drawn
            without replacement. (The attribute `num_samples` is this rank's share, as DistributedSampler has it.)
        replacement: whether a row can be drawn more than once in an epoch.
        seed: the same for all ranks.
        rank: this process, in [0, num_replicas).
        num_replicas: how many processes share an epoch. Neither given: as torch.distributed has them when asked.
        drop_last: leave a remainder out instead of repeating the first draws, which also happens without replacement.

    Raises:
        ValueError: a weight is negative or not finite, none is positive, or fewer are positive than rows wanted without
            replacement.
    """

    def __init__(
        self,
        weights: ArrayLike,
        num_samples: int | None = None,
        *,
        replacement: bool = True,
        seed: int = 0,
        rank: int | None = None,
        num_replicas: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self.weights = checked_weights(weights)
        self.replacement = replacement
        possible = len(self.weights) if replacement else int(np.count_nonzero(self.weights))
        size = possible if num_samples is None else at_least(1, num_samples, "num_samples")
        if not replacement and size > possible:
            raise ValueError(
                f"num_samples: expected at most {possible}, as many as weights are positive, found {size}. "
                f"Ask for fewer, or for replacement=True."
            )
        super().__init__(size, seed=seed, rank=rank, num_replicas=num_replicas, drop_last=drop_last)

    def rows(self) -> NDArray[np.int64]:
        """This rank's rows of this epoch, in order: (len(self),) int64, a new array."""
        random = generator(self.seed, self.epoch)
        return self._deal(self._with_replacement(random) if self.replacement else self._without(random))

    def _with_replacement(self, random: np.random.Generator) -> NDArray[np.int64]:
        cumulated = np.cumsum(self.weights, dtype=np.float64)
        cumulated /= cumulated[-1]  # ends at 1 exactly, above every point
        # Sorted points are looked up seven times as fast as points here and there; the draws are put into random order
        # after it, which makes them independent again.
        points = np.sort(random.random(self.size))
        rows = cumulated.searchsorted(points, "right").astype(np.int64, copy=False)
        random.shuffle(rows)
        return rows

    def _without(self, random: np.random.Generator) -> NDArray[np.int64]:
        rows = np.flatnonzero(self.weights)
        keys = random.standard_exponential(len(rows))
        with np.errstate(over="ignore"):  # a weight of 1e-310 is as good as the last
            keys /= self.weights[rows]
        if self.size < len(rows):
            smallest = np.argpartition(keys, self.size - 1)[: self.size]
            rows, keys = rows[smallest], keys[smallest]
        return rows[np.argsort(keys)].astype(np.int64, copy=False)
