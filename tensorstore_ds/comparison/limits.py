"""What a way will take at a larger batch, by what it took at a smaller one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorstore_ds.machine import memory_limit


@dataclass(slots=True)
class Limit:
    """What was last seen of a way.

    Attributes:
        rate: samples a second; None if nothing was seen.
        grown: bytes that it needed for each sample of a batch.
    """

    rate: float | None = None
    grown: float = 0.0

    def learn(self, size: int, answer: Mapping[str, Any]) -> None:
        """From a lane's answer at a batch size."""
        self.rate = answer["rows"] / min(answer["epochs"])
        if answer["memory"] is not None and answer["before"] is not None:
            self.grown = max(0, answer["memory"] - answer["before"]) / size

    def reason(self, size: int, least: int, seconds: float) -> str:
        """Why a batch size is not measured; empty if it is.

        Args:
            size: samples a batch.
            least: samples in the least part of an epoch that can be measured.
            seconds: that it may take.
        """
        if self.rate is not None and least / self.rate > seconds:
            return f"a batch takes about {size / self.rate:.0f} s; more --seconds measure it"
        needed, limit = int(self.grown * size), memory_limit()
        if needed > limit:
            return f"it needs about {needed / 1e9:.1f} GB of memory more, {limit / 1e9:.1f} GB are left"
        return ""
