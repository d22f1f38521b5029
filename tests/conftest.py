"""Settings of all tests, and of the processes that they start."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # noqa: F401  # now: it looks at the platform, which some tests change
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import tensorstore_ds as tsds

# Read by torch when it is first imported. Its models are tiny here: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hypothesis would fail an example that takes more than 200 ms, as many do on a busy machine.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")

# Shells start jobs in the background with SIGINT ignored, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Of torch, so that sums are made in one order; and on a busy machine, its threads wait for each other for long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cold(tmp_path: Path) -> tsds.Store:
    """A store of several MB that is not in memory; skips the test where that cannot be had."""
    from cold_stores import make_cold, make_store

    return make_cold(make_store(tmp_path / "s.tsds"))
