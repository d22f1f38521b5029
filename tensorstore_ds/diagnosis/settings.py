"""Settings of a loader, to be compared and recommended. No torch is imported here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tensorstore_ds.training.options import Residency


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of `DataLoader` that are compared with each other; None: its default.

    Attributes:
        num_threads, prefetch_factor, num_workers, pin_memory, residency: as `DataLoader` has them.
        block_rows, window_blocks: of a `BlockShuffleSampler`; 0: a full shuffle.
    """

    num_threads: int | None = None
    prefetch_factor: int | None = None
    num_workers: int = 0
    pin_memory: bool | None = None
    residency: Residency = "page-cache"
    block_rows: int = 0
    window_blocks: int = 0

    def arguments(self) -> dict[str, Any]:
        """Those of `DataLoader` that are not its defaults.

        >>> Settings(num_threads=4, block_rows=64).arguments()
        {'num_threads': 4}
        """
        found = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self)[:5] if getattr(self, f.name) != f.default
        }
        if self.num_workers:
            found["persistent_workers"] = True  # or each epoch would start them anew
        return found
