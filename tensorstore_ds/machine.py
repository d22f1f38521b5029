"""Memory and CPU cores that this process may use, within the limits of a container.

On Linux, pages of the page cache count as available if the system can drop them immediately. Locked pages do not.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tensorstore_ds.errors import Problem, ResourceError

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")

#: Smaller amounts are allocated without checking how much memory is available.
_UNASKED_NBYTES = 256 * 1024**2
DISK_SPACE = "disk blocks"
#: What a system has no more of, by the number of its error. None of these says anything of a file.
_RESOURCES = {
    errno.ENOMEM: "memory or memory maps",
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors",
    errno.ENOSPC: DISK_SPACE,
    errno.EDQUOT: DISK_SPACE,
    errno.EAGAIN: "processes",
    errno.ENOBUFS: "network buffers",
    errno.ENOLCK: "file locks",
    errno.ETIMEDOUT: "seconds before the disk or server answers",
}
#: Of a `MemoryGate`, at most: a pipe holds more bytes than these on every system.
_MOST_UNITS = 2048


def memory_limit() -> int:
    """Number of bytes that this process may use now, the smallest of `memory_limits`.

    >>> tsds.page_cache.memory_limit() == min(tsds.page_cache.memory_limits().values())
    True
    """
    return min(memory_limits().values())


def memory_limits() -> dict[str, int]:
    """Number of bytes that each limit leaves to this process now, by the name of the limit.

    The limit ``machine`` is the memory available on this machine. The others are control groups, by directory.

    >>> sorted(tsds.page_cache.memory_limits())[-1]  # control groups are named by their directories
    'machine'
    """
    import psutil  # takes longer to import than `tsds info` takes for all the rest

    limits = {"machine": psutil.virtual_memory().available}
    limits |= {str(group): left for group in _control_groups("memory") if (left := _nbytes_left(group)) is not None}
    return limits


def check_fits(where: str, nbytes: int) -> None:
    """Refuse what a store claims to hold, before memory is taken for it that this process may not use.

    Raises:
        ResourceError: `too-large`.
    """
    if nbytes > _UNASKED_NBYTES:
        limit = memory_limit()
        if nbytes > limit:
            message = f"expected what fits in the {limit:,} bytes of memory that may be used, found {nbytes:,} bytes."
            raise ResourceError(Problem(where, "too-large", message), "Read less at a time, or where there is more.")


def missing_resource(error: BaseException) -> str:
    """What the system has no more of, as an error says; empty where it says something else, such as of a file.

    >>> missing_resource(OSError(errno.EMFILE, "Too many open files")), missing_resource(FileNotFoundError(2, "None"))
    ('file descriptors', '')
    """
    if isinstance(error, MemoryError):
        return "memory"
    return _RESOURCES.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def check_resource(where: str, error: OSError) -> None:
    """Raise `ResourceError` where the system refuses a file only for want of something: the file may be good."""
    if missing := missing_resource(error):
        message = f"expected enough {missing}, found that the system has no more ({error.strerror})."
        advice = "Free some, or raise the limit, and do the same again."
        raise ResourceError(Problem(where, "no-resource", message), advice) from error


def usable_cores() -> int:
    """Cores that this process may keep busy: the least of `core_limits`, as a whole number."""
    return max(1, math.ceil(min(core_limits().values())))


def threads_for_loading() -> int:
    """Threads that gather batches, if nobody asks for another number: the ranks of a machine divide its cores."""
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun's
    return max(1, min(8, usable_cores() // max(1, int(local_ranks) if local_ranks.isdecimal() else 1)))


def core_limits() -> dict[str, float]:
    """Cores that each limit leaves to this process, by who sets it: its affinity, and control groups with a quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits: dict[str, float] = {"the affinity of this process": bound}
    limits |= {str(group): quota for group in _control_groups("cpu") if (quota := _quota(group)) is not None}
    return limits


# --- control groups ---------------------------------------------------------------------------------------------


def cgroup_directories(cgroup: str, mountinfo: str, controller: str) -> list[Path]:
    """The control groups of a process, each before those that hold it, as directories that may not exist.

    Args:
        cgroup: the text of ``/proc/self/cgroup``; lines are ``number:controllers:path``, version 2 has no controllers.
        mountinfo: the text of ``/proc/self/mountinfo``: where the hierarchies are mounted, and which part of each.
        controller: what they limit: ``memory`` or ``cpu``. In version 2 one hierarchy serves all.
    """
    groups = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            groups["cgroup" if controllers else "cgroup2"] = path
    directories = []
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        fields, (filesystem, _, options) = mount.split(" "), kind.split(" ", 2)
        wanted = filesystem == "cgroup2" or (filesystem == "cgroup" and controller in options.split(","))
        if not wanted or filesystem not in groups:
            continue
        root, top = fields[3].rstrip("/"), Path(fields[4])
        path = groups[filesystem]
        # In a container the mount may show only the part below `root`, and the path may be the host's.
        inside = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""
        directory = top / inside.strip("/")
        directories += [directory, *(p for p in directory.parents if p.is_relative_to(top))]
    return directories


def cgroup_left(limit: str, used: str, statistics: str, prefix: str = "") -> int | None:
    """Bytes that a control group may still use: its limit, less what is used and cannot be freed at once.

    >>> cgroup_left("1000\\n", "700\\n", "file 300\\nshmem 100\\n")  # of 300 cached bytes, 100 are shared memory
    500

    Args:
        limit: the text of ``memory.max`` or ``memory.limit_in_bytes``; empty, ``max`` or a number near 2^63 for none.
        used: that of ``memory.current`` or ``memory.usage_in_bytes``.
        statistics: that of ``memory.stat``; its ``unevictable`` is what is locked.
        prefix: of the names in `statistics`: ``total_`` in version 1.
    """
    if not limit or limit.strip() == "max" or int(limit) >= 2**62:
        return None
    sizes = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", statistics, re.MULTILINE)}
    names = ("cache" if prefix else "file", "shmem", "unevictable")
    cached, shared, locked = (sizes.get(f"{prefix}{name}", 0) for name in names)
    return max(0, int(limit) - int(used or 0) + max(0, cached - shared - locked))


def quota_of(text: str) -> float | None:
    """Cores, of microseconds in each period.

    >>> quota_of("150000 100000"), quota_of("max 100000"), quota_of("-1 100000"), quota_of("")
    (1.5, None, None, None)
    """
    numbers = text.split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or not int(numbers[1]):
        return None
    return int(numbers[0]) / int(numbers[1])


def read_system_file(path: str | Path) -> str:
    """The text of a system file; empty where there is none, or none for us."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _control_groups(controller: str) -> list[Path]:
    cgroup, mountinfo = (read_system_file(f"/proc/self/{name}") for name in ("cgroup", "mountinfo"))
    return cgroup_directories(cgroup, mountinfo, controller)


def _nbytes_left(group: Path) -> int | None:
    """Of version 2, or of version 1."""
    names = ("max", "current", "limit_in_bytes", "usage_in_bytes", "stat")
    limit, used, limit_1, used_1, statistics = (read_system_file(group / f"memory.{name}") for name in names)
    left = cgroup_left(limit, used, statistics)
    return cgroup_left(limit_1, used_1, statistics, "total_") if left is None else left


def _quota(group: Path) -> float | None:
    """Of version 2, or of version 1."""
    quota, period = (read_system_file(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota_of(read_system_file(group / "cpu.max") or f"{quota} {period}")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C and SIGTERM waiting while the block lasts, in this thread and the processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class MemoryGate:
    """Lets processes take large pieces of memory only while there is room for all that is taken; small ones pass.

    Room is counted in bytes that wait in a pipe, which forked processes inherit and others get by `descriptors`.

    Args:
        nbytes: that may be taken in all.
        small: pieces up to so many bytes are not counted.
        descriptors: of a gate in another process that this one opened. None makes a new gate.
    """

    def __init__(self, nbytes: int, small: int = 64 * 1024**2, descriptors: Sequence[int] | None = None) -> None:
        self._small = max(small, nbytes // _MOST_UNITS)
        self._units = max(1, nbytes // self._small)
        self._held = 0
        #: Both ends of a pipe with a byte for each free unit, and of one whose byte is the turn to gather units: two
        #: processes that each have half would wait for ever.
        self.descriptors = tuple(descriptors or _two_pipes())
        if descriptors is None:
            self._give(1, self._units)
            self._give(3, 1)

    def close(self) -> None:
        """Close the descriptors of a new gate, when no process will use it any more."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def take(self, nbytes: int) -> None:
        """Wait for room; what is more than all of it waits for all of it."""
        if nbytes <= self._small:
            return
        units = min(-(-nbytes // self._small), self._units)
        os.read(self.descriptors[2], 1)
        try:
            while self._held < units:
                self._held += len(os.read(self.descriptors[0], units - self._held))
        finally:
            self._give(3, 1)

    def release(self) -> None:
        """Give back all that this process took."""
        if self._held:
            self._give(1, self._held)
            self._held = 0

    def _give(self, end: int, count: int) -> None:
        os.write(self.descriptors[end], bytes(count))


def _two_pipes() -> tuple[int, int, int, int]:
    first = os.pipe()
    try:
        return *first, *os.pipe()
    except OSError:
        for descriptor in first:
            os.close(descriptor)
        raise


def map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """``map`` in as many threads as there are cores, in order, with few items in memory at a time."""
    from concurrent.futures import ThreadPoolExecutor  # here, because most commands never need it

    width = usable_cores()
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(width) as threads:
        try:
            for item in items:
                waiting.append(threads.submit(function, item))
                if len(waiting) > 2 * width:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
