"""Open a store in a process that has done nothing else, and say what that took.

A module of its own, so that nothing is loaded beforehand that opening a store would have to load.
"""

from __future__ import annotations

import time
from pathlib import Path

import tensorstore_ds as tsds


def own_nbytes() -> int:
    """Resident anonymous and shared memory of this process; the kit's function would load what opening has to load."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def open_and_read(path: Path) -> dict[str, float]:
    """Open the store, then read the last row of every split."""
    opening = tsds.open  # imported with its first use: before the clock runs
    memory, begun = own_nbytes(), time.perf_counter()
    store = opening(path)
    seconds, grown = time.perf_counter() - begun, own_nbytes() - memory
    for split in store.splits:
        for field in store[split].fields:
            store[split][field][len(store[split]) - 1]
    return {
        "seconds": seconds,
        "grown": grown,
        "read_seconds": time.perf_counter() - begun,
        "read_grown": own_nbytes() - memory,
        "nbytes": store.nbytes,
        "files": sum(path.is_file() for path in store.path.rglob("*")),
        "splits": len(store.splits),
    }
