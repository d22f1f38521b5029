"""How many processor cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from tensorstore_ds.memory import cgroup_directories, read_system_file


def usable_cores() -> int:
    """Cores that this process may keep busy: those it is bound to, and no more than its control groups grant."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([bound, *(max(1, math.ceil(quota)) for quota in cpu_quotas().values())])


def cpu_quotas() -> dict[Path, float]:
    """Cores that control groups grant to this process, by their directories; those without a limit are left out."""
    groups = cgroup_directories(
        read_system_file("/proc/self/cgroup"), read_system_file("/proc/self/mountinfo"), controller="cpu"
    )
    quotas = {directory: _quota(directory) for directory in groups}
    return {directory: quota for directory, quota in quotas.items() if quota is not None}


def _quota(directory: Path) -> float | None:
    """Of version 2, or of version 1."""
    first = quota_of(read_system_file(directory / "cpu.max"))
    if first is not None:
        return first
    words = [read_system_file(directory / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    return quota_of(" ".join(words))


def quota_of(text: str) -> float | None:
    """Cores, of microseconds in each period.

    >>> quota_of("150000 100000"), quota_of("max 100000"), quota_of("-1 100000"), quota_of("")
    (1.5, None, None, None)
    """
    words = text.split()
    if len(words) != 2 or not words[0].isdecimal() or not words[1].isdecimal() or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])
