"""Measure the machine: the cores and the memory that this process gets."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tensorstore_ds.annex.measuring.diagnosis_results import Cores, Memory
from tensorstore_ds.machine import core_limits
from tensorstore_ds.page_cache.residency import requirement, residency_of, total_residency
from tensorstore_ds.reading.store import Store

#: Hashed at a time, without the interpreter's lock: half a millisecond or more.
_BLOCK = bytes(1024**2)
_TURNS = 3


def measure_cores(*, seconds: float) -> Cores:
    """Number of cores, and the work that they do, by hashing."""
    machine, limits = os.cpu_count() or 1, core_limits()
    limited_by = min(limits, key=limits.__getitem__)
    allowed = limits[limited_by]
    cores = Cores(machine, allowed, limited_by if allowed < machine else "", 1.0)
    if cores.threads == 1:
        return cores
    alone = together = 0.0
    for _ in range(_TURNS):  # in turns, so that what else the machine does disturbs both
        alone += hashed(1, seconds=seconds / _TURNS / 2)
        together += hashed(cores.threads, seconds=seconds / _TURNS / 2)
    return replace(cores, measured=together / alone)


def hashed(threads: int, *, seconds: float) -> float:
    """Blocks per second that threads hash together."""
    with ThreadPoolExecutor(threads, thread_name_prefix="tsds-doctor") as pool:
        return sum(pool.map(_hash, [seconds] * threads))


def _hash(seconds: float) -> float:
    began, blocks = time.perf_counter(), 0
    while not blocks or time.perf_counter() < began + seconds:
        hashlib.sha256(_BLOCK)
        blocks += 1
    return blocks / (time.perf_counter() - began)


def measure_memory(store: Store, columns: Sequence[tuple[str, str]], limit: int | None) -> Memory:
    """Memory that these (split, field) need and may use, and their resident part; `limit` replaces the system's."""
    nbytes, limits = requirement(store, columns)
    if limit is not None:
        limits = {"the option memory": limit}
    limited_by = min(limits, key=limits.__getitem__)
    total = total_residency(residency_of(store, columns))
    return Memory(nbytes, limits[limited_by], limited_by, total.share, total.reason)
