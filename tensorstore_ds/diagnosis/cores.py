"""How many processor cores this process may use, and how many it gets."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tensorstore_ds.diagnosis.findings import Cores
from tensorstore_ds.machine import cpu_quotas

#: Hashed at a time, without the interpreter's lock: half a millisecond or more.
_BLOCK = bytes(1024**2)
_TURNS = 3


def examine_cores(given: int | None, *, seconds: float) -> Cores:
    """The cores that there are, by who sets the limit, and the work that they do.

    Args:
        given: a limit that stands for the system's.
        seconds: that this may take, about.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits: dict[str, float] = {"the affinity of this process": bound}
    limits.update({str(directory): quota for directory, quota in cpu_quotas().items()})
    machine = os.cpu_count() or 1
    if given is not None:
        limits = {"the option cores": given}
    limited_by = min(limits, key=lambda who: limits[who])
    allowed = limits[limited_by]
    found = Cores(machine, allowed, limited_by if allowed < machine else "", 1.0)
    return replace(found, measured=parallel_work(found.threads, seconds=seconds))


def parallel_work(threads: int, *, seconds: float) -> float:
    """How many times the work of one thread `threads` threads do, by hashing, which does not hold the GIL."""
    if threads == 1:
        return 1.0
    alone = together = 0.0
    for _ in range(_TURNS):  # in turns, so that what else the machine does disturbs both
        alone += hashed(1, seconds=seconds / _TURNS / 2)
        together += hashed(threads, seconds=seconds / _TURNS / 2)
    return together / alone


def hashed(threads: int, *, seconds: float) -> float:
    """Blocks that threads hash in a second, together."""
    with ThreadPoolExecutor(threads, thread_name_prefix="tsds-doctor") as pool:
        return sum(pool.map(_hash, [seconds] * threads))


def _hash(seconds: float) -> float:
    began, blocks = time.perf_counter(), 0
    while not blocks or time.perf_counter() < began + seconds:
        hashlib.sha256(_BLOCK)
        blocks += 1
    return blocks / (time.perf_counter() - began)
