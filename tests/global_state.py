"""What a script has set for its whole process, and must find again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def global_state() -> tuple[Any, ...]:
    """State of the random generators of Python, NumPy, torch and its GPUs, and torch's settings of computing."""
    _, keys, position, *_ = np.random.get_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return (
        random.getstate(),
        keys.tolist(),  # type: ignore[union-attr]
        position,
        torch.get_rng_state().tolist(),
        torch.initial_seed(),
        [gpu.tolist() for gpu in gpus],
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )
