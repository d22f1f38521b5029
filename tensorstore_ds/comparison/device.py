"""The device that is trained on: which one, and what it does meanwhile."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tensorstore_ds.errors import OptionError, one_line


def device_of(name: str | None) -> torch.device:
    """The device that was asked for; None: a GPU if there is one.

    Raises:
        OptionError: it is not here.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"device: expected cuda or cpu, found {name}.") from error
    here = torch.cuda.device_count() if device.type == "cuda" else int(device.type == "cpu")
    if (device.index or 0) >= here:
        raise OptionError(f"device: expected one that is here, found {name}. Choose cpu.")
    return device


@contextmanager
def watching(device: torch.device) -> Iterator[dict[str, Any]]:
    """While the block runs, see to the device: a dict that has its peak memory and its use afterwards.

    ``device_memory``: bytes of tensors; ``utilisation``: mean share of the time in which it computed, as its driver
    tells ten times a second, or None and ``utilisation_reason``.
    """
    seen: dict[str, Any] = {}
    if device.type != "cuda":
        yield seen
        return
    torch.cuda.reset_peak_memory_stats(device)
    over, shares = threading.Event(), []

    def look() -> None:
        while not over.wait(0.1):
            try:
                shares.append(torch.cuda.utilization(device) / 100)
            except (ImportError, RuntimeError) as error:  # without pynvml, or a driver that does not tell
                seen["utilisation_reason"] = one_line(str(error))
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    seen["utilisation"] = statistics.mean(shares) if shares else None
    seen["device_memory"] = torch.cuda.max_memory_allocated(device)
