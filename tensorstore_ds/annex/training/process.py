"""The processes of a run, alone or started by torchrun; sums over them; and process state that a run changes.

Signal handlers, random state, torch's threads and precision are restored.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from tensorstore_ds.annex.training.options import Precision
from tensorstore_ds.annex.training.tasks import ROWS, Sums, Task
from tensorstore_ds.errors import OptionError, TrainingError, one_line
from tensorstore_ds.loading.device import checked_device

#: Steps after which ranks ask each other for a signal, at most.
MOST_UNASKED = 100


@dataclass
class Ranks:
    """This process among the processes of the run."""

    rank: int  #: In [0, size).
    size: int  #: Number of processes.
    device: torch.device  #: Of this one.
    _host_group: Any = None

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def any(self, number: int) -> int:
        """Maximum of the ranks' numbers, without waiting for a GPU."""
        if self.size == 1:
            return number
        largest = torch.tensor(number)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._host_group)
        return int(largest)

    def device_memory(self) -> int | None:
        """Peak bytes of GPU memory that torch reserved since `forget_peak`; None on other devices."""
        return torch.cuda.max_memory_reserved(self.device) if self.device.type == "cuda" else None

    def forget_peak(self) -> None:
        """Reset `device_memory` to what torch holds now."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def share(self, buffers: Iterable[Tensor]) -> None:
        """Give all ranks the buffers of the first one; a collective call of all ranks."""
        for buffer in buffers if self.size > 1 else ():
            dist.broadcast(buffer, 0)

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier(group=self._host_group)


@contextlib.contextmanager
def ranks(device: str | None) -> Iterator[Ranks]:
    """The ranks of torchrun or of an existing process group, else one rank; see `device_of` for the device."""
    chosen = device_of(device, int(os.environ.get("LOCAL_RANK", "0")))
    with torch.cuda.device(chosen) if chosen.type == "cuda" else contextlib.nullcontext(), _ranks_on(chosen) as group:
        yield group


@contextlib.contextmanager
def _ranks_on(chosen: torch.device) -> Iterator[Ranks]:
    own = dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized()
    group = Ranks(0, 1, chosen)
    try:
        if own:
            with _ended_by_signals():
                store, rank, size = next(rendezvous("env://"))
                if chosen.type == "cuda":
                    shared = PrefixStore("gpus", store)
                    shared.set(str(rank), _gpu(chosen))
                    _check_gpus([shared.get(str(each)) for each in range(size)])
                backend = "nccl" if chosen.type == "cuda" else "gloo"
                dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        if dist.is_available() and dist.is_initialized():
            with _ended_by_signals():
                host = dist.new_group(backend="gloo")  # small questions, which shall not wait for a GPU
            group = Ranks(dist.get_rank(), dist.get_world_size(), chosen, host)
            del host
            if not own and chosen.type == "cuda" and "nccl" in dist.get_backend():
                gpu = torch.tensor(list(_gpu(chosen).encode()))
                every = [torch.empty_like(gpu) for _ in range(group.size)]
                dist.all_gather(every, gpu, group=group._host_group)
                _check_gpus([bytes(each.tolist()) for each in every])
        yield group
    except RuntimeError as error:
        if not dist.is_available() or not (isinstance(error, dist.DistError) or "gloo" in str(error).lower()):
            raise
        message = f"the connection to another rank is lost: {one_line(str(error))[:200]}."
        raise TrainingError(f"{message} See what that rank printed. Go on with `resume`.") from error
    finally:
        if (own or group._host_group is not None) and dist.is_initialized():
            dist.destroy_process_group(None if own else group._host_group)
        # A group that the script kept until Python ends would be destroyed while its threads run, which aborts.
        group._host_group = None


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the process: torch waits for other ranks in C++, where Python handles no signal."""
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [each for each in (signal.SIGTERM, signal.SIGINT) if in_main and callable(signal.getsignal(each))]
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _gpu(device: torch.device) -> str:
    """What tells a GPU from others; each rank may see a different first one."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _check_gpus(found: Sequence[bytes]) -> None:
    """Raise an error if ranks share a GPU, which NCCL does unclearly."""
    if (gpus := len(set(found))) < len(found):
        raise OptionError(
            f"`device`: expected a GPU for each of {len(found)} ranks, found {gpus}. Start {gpus} with torchrun, leave "
            'out `device` if it names one GPU, or use `device="cpu"`.'
        )


def device_of(name: str | None, rank: int = 0) -> torch.device:
    """A device by name; None chooses a GPU if available, a different one for each rank of this machine."""
    if name is None:
        name = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    device = checked_device(name)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", rank % torch.cuda.device_count())
    return device


class Tally:
    """Losses and metrics of an epoch, summed on the device without waiting until they are read.

    The sums are by name: `samples`, and the sums of the task, with its `terms`. Rows of a task are joined instead.
    """

    def __init__(self, sums: Mapping[str, Tensor] | None = None) -> None:
        self.sums: Sums = dict(sums or {})
        self._rows: dict[str, list[Tensor]] = {}

    def add(self, samples: int, sums: Mapping[str, Tensor], *, weight: int = 1) -> None:
        """Add a batch; weight 0 adds only its names, so that ranks without samples have them."""
        counted = next(iter(sums.values())).new_full((), float(samples), dtype=torch.float32)
        for name, value in {"samples": counted, **sums}.items():
            if name in ROWS:
                self._rows.setdefault(name, []).append(value[: len(value) * weight])
                continue
            value = value * weight
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def metrics(self, task: Task) -> dict[str, float]:
        """The mean loss and the task's metrics of this rank so far, NaN without data; waits for the device."""
        losses = {}
        if "loss" in self.sums:
            terms = zip(*(self.sums[name].tolist() for name in ("loss", "learned")), strict=True)
            means = [loss / images for loss, images in terms if images]
            losses = {"loss": sum(means) if means else math.nan}
        return {**losses, **task.metrics(self.sums)}

    def over_ranks(self, ranks: Ranks) -> Tally:
        """The sums of all ranks, on the CPU; a collective call of all ranks."""
        sums = {name: value.clone() for name, value in self.sums.items()}
        if ranks.size > 1:
            for value in sums.values():
                dist.all_reduce(value)
        joined = {name: _gathered(torch.cat(rows), ranks) for name, rows in self._rows.items()}
        return Tally({name: value.cpu() for name, value in (sums | joined).items()})


def _gathered(rows: Tensor, ranks: Ranks) -> Tensor:
    """The rows (M, n) of all ranks, sorted by their first column, as one rank would have them."""
    if ranks.size > 1:
        count = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.empty_like(count) for _ in range(ranks.size)]
        dist.all_gather(counts, count)
        lengths = [int(each) for each in counts]
        padded = rows.new_zeros((max(lengths), rows.shape[1]))
        padded[: len(rows)] = rows
        every = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(every, padded)
        rows = torch.cat([each[:length] for each, length in zip(every, lengths, strict=True)])
    return rows[rows[:, 0].argsort(stable=True)]


@dataclass
class Stop:
    """The number of the last signal that asked the run to stop; 0 at first."""

    received: int = 0


class StopVote:
    """Asks all ranks about once a second whether one received a signal, because asking waits for the slowest rank.

    All ranks ask after the same step, because all know how long the slowest rank takes for one.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._every = self._left = 1
        self._since = time.perf_counter()

    def after_step(self, received: int) -> int:
        """The number of a signal to stop for, or 0; a collective call of all ranks after each step."""
        if self._ranks.size == 1:
            return received
        self._left -= 1
        if self._left:
            return 0
        now = time.perf_counter()
        slowest = self._ranks.any(max(1, round(1000 * (now - self._since) / self._every)))  # milliseconds of a step
        self._every = self._left = max(1, min(MOST_UNASKED, 1000 // slowest))
        self._since = now
        return self._ranks.any(received)


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Record SIGTERM (a preempted machine) and SIGINT (Ctrl-C) for the run to check; a second Ctrl-C ends at once."""
    stop = Stop()

    def receive(number: int, frame: FrameType | None) -> None:
        if stop.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.received = number

    in_main = threading.current_thread() is threading.main_thread()  # only there can handlers be set
    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT) if in_main}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch after the block.

    This includes GPUs. If CUDA was not in use before, they are seeded like torch's CPU generator, as
    `torch.manual_seed` leaves them.
    """
    python, arrays = random.getstate(), np.random.get_state()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        if not gpus:
            torch.cuda.manual_seed_all(torch.initial_seed())


@contextlib.contextmanager
def torch_settings(precision: Precision, threads: int | None = None) -> Iterator[None]:
    """Within the block, use TF32 for float32 products if asked for, and `threads` on the CPU, or all by default."""
    products, before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else products)
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.set_num_threads(before)
