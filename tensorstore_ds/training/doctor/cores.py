"""How many processor cores this process may use, and how many it gets."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tensorstore_ds.memory import cgroup_directories
from tensorstore_ds.training.doctor.findings import Cores
from tensorstore_ds.workers import default_workers

#: Hashed at a time, without the interpreter's lock: half a millisecond or more.
_BLOCK = bytes(1024**2)
_TURNS = 3


def examine_cores(given: int | None, *, seconds: float) -> Cores:
    """The cores that there are, by who sets the limit, and the work that they do.

    Args:
        given: a limit that stands for the system's.
        seconds: that this may take, about.
    """
    limits: dict[str, float] = {"the affinity of this process": default_workers()}
    limits.update({str(directory): quota for directory, quota in cpu_quotas().items()})
    machine = os.cpu_count() or 1
    if given is not None:
        limits = {"the option cores": given}
    limited_by = min(limits, key=lambda who: limits[who])
    allowed = limits[limited_by]
    found = Cores(machine, allowed, limited_by if allowed < machine else "", 1.0)
    return replace(found, measured=parallel_work(found.threads, seconds=seconds))


def cpu_quotas() -> dict[Path, float]:
    """Cores that control groups grant to this process, by their directories; those without a limit are left out."""
    groups = cpu_directories(_read("/proc/self/cgroup"), _read("/proc/self/mountinfo"))
    quotas = {
        directory: quota_of(_read(directory / "cpu.max"))
        or quota_of(f"{_read(directory / 'cpu.cfs_quota_us')} {_read(directory / 'cpu.cfs_period_us')}")
        for directory in groups
    }
    return {directory: quota for directory, quota in quotas.items() if quota is not None}


def cpu_directories(cgroup: str, mountinfo: str) -> list[Path]:
    """The control groups for processor time of a process, as `memory.cgroup_directories` has them for memory.

    Args:
        cgroup: the text of ``/proc/self/cgroup``.
        mountinfo: the text of ``/proc/self/mountinfo``.
    """
    # In version 2 one hierarchy serves all; in version 1 each controller has its own, and is told from the others by
    # the second word of a line, and by the last option of its mount.
    named = "\n".join(
        ":".join((number, "memory" if "cpu" in controllers.split(",") else "-" if controllers else "", path))
        for number, controllers, path in (line.split(":", 2) for line in cgroup.splitlines())
    )
    mounts = (line.rpartition(" ") for line in mountinfo.splitlines())
    options = ((rest, last.split(",")) for rest, _, last in mounts)
    mounted = "\n".join(f"{rest} {'memory' if 'cpu' in last else 'rw'}" for rest, last in options)
    return cgroup_directories(named, mounted)


def quota_of(text: str) -> float | None:
    """Cores, of microseconds in each period.

    >>> quota_of("150000 100000"), quota_of("max 100000"), quota_of("-1 100000"), quota_of("")
    (1.5, None, None, None)
    """
    words = text.split()
    if len(words) != 2 or not words[0].isdecimal() or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


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


def _read(path: str | Path) -> str:
    """The text of a system file; empty where there is none, or none for us."""
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""
