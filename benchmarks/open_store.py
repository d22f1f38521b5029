"""Open a store in a process that has done nothing else, and say what that took.

A module of its own, so that nothing is loaded beforehand that opening a store would have to load.
"""

from __future__ import annotations

import json
import sys
import time

import tensorstore_ds as tsds
from benchmarks.measure import own_nbytes


def main(path: str) -> None:
    """Open the store, then read the last row of every split."""
    memory, begun = own_nbytes(), time.perf_counter()
    store = tsds.open(path)
    seconds, grown = time.perf_counter() - begun, own_nbytes() - memory
    for split in store.splits:
        for field in store[split].fields:
            store[split][field][len(store[split]) - 1]
    result = {
        "seconds": seconds,
        "grown": grown,
        "read_seconds": time.perf_counter() - begun,
        "read_grown": own_nbytes() - memory,
        "nbytes": store.nbytes,
        "files": len(store.manifest.all_files()),
        "splits": len(store.splits),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
