"""The random state of the process, which belongs to the script that calls us."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


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
