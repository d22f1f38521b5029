"""The processes of a run, one or those that torchrun started, and sums over their batches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tensorstore_ds.errors import OptionError
from tensorstore_ds.training.tasks.base import Sums, Task


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run.

    Attributes:
        rank: in [0, size).
        size: number of processes.
        device: of this one.
    """

    rank: int
    size: int
    device: torch.device
    _host_group: Any = None

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def add(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors added over the ranks, on the CPU; waits for the device."""
        if self.size > 1:
            for value in sums.values():
                dist.all_reduce(value)
        return {name: value.cpu() for name, value in sums.items()}

    def any(self, number: int) -> int:
        """The largest of the ranks' numbers, without waiting for a GPU."""
        if self.size == 1:
            return number
        largest = torch.tensor(number)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._host_group)
        return int(largest)

    def device_memory(self) -> int | None:
        """Bytes of a GPU's memory that were taken at most; None elsewhere."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier(group=self._host_group)


@contextlib.contextmanager
def ranks(device: str | None) -> Iterator[Ranks]:
    """The ranks of a run: those that torchrun, or a process group that is there already, tells of; else one.

    Args:
        device: of the run; None: a GPU of its own for each rank, if there is one.

    Raises:
        OptionError: this machine does not have the device.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = device_of(device, local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    own = dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized()
    if own:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        if dist.is_available() and dist.is_initialized():
            host = dist.new_group(backend="gloo")  # small questions, which shall not wait for a GPU
            yield Ranks(dist.get_rank(), dist.get_world_size(), chosen, host)
        else:
            yield Ranks(0, 1, chosen)
    finally:
        if own:
            dist.destroy_process_group()


def device_of(name: str | None, rank: int = 0) -> torch.device:
    """A device by its name; None: a GPU if there is one, of its own for each rank of this machine.

    Raises:
        OptionError: this machine does not have it.
    """
    if name is None:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        name = f"cuda:{rank % torch.cuda.device_count()}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise OptionError(
            f"`device`: expected one that this machine has, found {name} ({reason}). Use `device=cpu`."
        ) from error
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", rank % torch.cuda.device_count())
    return device


class Tally:
    """Losses and metrics of an epoch, added up on the device: nobody waits for it until they are asked for.

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

    def metrics(self, task: Task) -> dict[str, float]:
        """The mean loss and the task's metrics so far, of this rank; waits for the device."""
        return {"loss": float(self.sums["loss"] / self.sums["samples"]), **task.metrics(self.sums)}

    def over_ranks(self, ranks: Ranks) -> Tally:
        """The sums of all ranks, on the CPU; every rank must ask, and waits for the others."""
        return Tally(ranks.add({name: value.clone() for name, value in self.sums.items()}))
