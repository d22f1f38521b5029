"""What a run changes in its process, and puts back: signal handlers, random state, torch's threads and precision."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import numpy as np
import torch

from tensorstore_ds.training.options import Precision


class StopSignals:
    """SIGTERM (a preempted machine) and SIGINT (Ctrl-C) are kept while the block lasts: a run stops between two steps.

    A second Ctrl-C ends at once.

    Attributes:
        received: the signal's number, 0 so far.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only there can handlers be set
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Whatever is drawn or seeded meanwhile: Python's, NumPy's and torch's global generators are afterwards as before.

    Those of GPUs as well. Where CUDA was not in use before, they are seeded as torch's own is: that is how
    `torch.manual_seed` leaves them.
    """
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(tensors)
        if gpus is None:
            torch.cuda.manual_seed_all(torch.initial_seed())
        else:
            torch.cuda.set_rng_state_all(gpus)


@contextlib.contextmanager
def torch_settings(precision: Precision, threads: int | None = None) -> Iterator[None]:
    """For the time being: float32 products in TF32 where ``tf32`` was asked for, and `threads` on the CPU.

    None: as many threads as there are.
    """
    products, before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else products)
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.set_num_threads(before)
