"""What can be asked of a comparison. No torch is imported here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tensorstore_ds.errors import OptionError

Group = Literal["files", "tensors", "plain", "store", "device"]
GROUPS: tuple[Group, ...] = get_args(Group)

BATCH_SIZES = (100, 300, 500, 1000, 3000, 5000, 10000)
#: Up to so many samples an epoch is short, and less time is given to each measurement.
SMALL_ROWS = 10_000
#: Seconds for a measurement: of data sets up to `SMALL_ROWS`, and of larger ones.
SECONDS = (0.5, 1.5)
#: The first epoch and the check of what is delivered are done with about as many samples a batch.
MIDDLE_BATCH = 1000


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What is to be compared, and for how long.

    Attributes:
        raw: the folder that the store was converted from; None: loading from files is not measured.
        split: of the store.
        batch_sizes: samples a batch; larger ones than the split become one, of the whole split.
        ways: groups of ways to load: ``files``, the source through torchvision; ``tensors``, all of it in a
            TensorDataset; ``plain``, the store through torch's DataLoader; ``store``, through this library's;
            ``device``, through this library's from a copy on the GPU.
        train: measure training, too.
        seconds: for each measurement, about; None: `SECONDS`. What takes longer is measured on a part of the epoch.
        device: ``cuda``, ``cpu``; None: a GPU if there is one.
        memory: bytes that a copy of the split in memory may take; None: what this process may use.
        seed: of orders and weights.

    Raises:
        OptionError: one is out of its range.
    """

    raw: Path | None = None
    split: str = "train"
    batch_sizes: Sequence[int] = BATCH_SIZES
    ways: Sequence[Group] = GROUPS
    train: bool = True
    seconds: float | None = None
    device: str | None = None
    memory: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check(bool(self.batch_sizes), "batch_sizes", "one or more", "none")
        _check(min(self.batch_sizes) >= 1, "batch_sizes", "1 or more", min(self.batch_sizes))
        _check(bool(self.ways), "ways", f"some of {', '.join(GROUPS)}", "none")
        for way in self.ways:
            _check(way in GROUPS, "ways", f"some of {', '.join(GROUPS)}", way)
        _check(self.seconds is None or 0 < self.seconds < math.inf, "seconds", "a positive number", self.seconds)
        _check(self.memory is None or self.memory >= 0, "memory", "0 or more", self.memory)
        _check(self.seed >= 0, "seed", "0 or more", self.seed)
        _check(self.raw is None or Path(self.raw).is_dir(), "raw", "a folder", self.raw)

    def sizes(self, rows: int) -> tuple[int, ...]:
        """The batch sizes for a split of `rows` samples, each once, in rising order.

        >>> BenchOptions().sizes(1797)
        (100, 300, 500, 1000, 1797)
        """
        return tuple(sorted({min(size, rows) for size in self.batch_sizes}))

    def time_for(self, rows: int) -> float:
        """Seconds for a measurement on a split of `rows` samples."""
        return self.seconds if self.seconds is not None else SECONDS[rows > SMALL_ROWS]


def middle(sizes: Sequence[int]) -> int:
    """The largest of rising batch sizes that is no more than `MIDDLE_BATCH`, else the smallest.

    >>> middle((100, 1000, 10000)), middle((5000,))
    (1000, 5000)
    """
    return max((size for size in sizes if size <= MIDDLE_BATCH), default=sizes[0])


def _check(valid: bool, name: str, expected: str, found: object) -> None:
    if not valid:
        raise OptionError(f"{name}: expected {expected}, found {found}.")
