"""Losses and metrics of an epoch, added up on the device: nobody waits for it until they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tensorstore_ds.training.ranks import Ranks
from tensorstore_ds.training.task_base import Sums, Task


class Tally:
    """Sums over batches.

    Attributes:
        sums: by name, on the device: `loss` times samples, `samples`, and what the task adds up.
    """

    def __init__(self, sums: Mapping[str, Tensor] | None = None) -> None:
        self.sums: Sums = dict(sums or {})

    def add(self, loss: Tensor, samples: int, sums: Mapping[str, Tensor], *, weight: int = 1) -> None:
        """Add a batch; with a weight of 0 only its names, so that ranks without samples have them."""
        counted = loss.new_full((), float(samples))
        for name, value in {"loss": loss.float() * counted, "samples": counted, **sums}.items():
            value = value * weight
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def loss(self) -> float:
        """The mean loss so far, of this rank; waits for the device."""
        return float(self.sums["loss"] / self.sums["samples"]) if self.sums else 0.0

    def metrics(self, task: Task) -> dict[str, float]:
        """Metrics so far, of this rank; waits for the device."""
        return {"loss": self.loss(), **task.metrics(self.sums)}

    def state_dict(self) -> dict[str, Any]:
        """The sums, on the CPU."""
        return {name: value.cpu() for name, value in self.sums.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Go on with sums of an earlier run."""
        self.sums = {name: value.to(device) for name, value in state.items()}

    def over_ranks(self, ranks: Ranks) -> Tally:
        """The sums of all ranks, on the CPU; every rank must ask, and waits for the others."""
        return Tally(ranks.add({name: value.clone() for name, value in self.sums.items()}))
