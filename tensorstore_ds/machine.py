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
#: Exhausted resources by error number. These errors are never the fault of a file.
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
#: Most units of a `MemoryGate`: a pipe holds more bytes than this on every system.
_MOST_UNITS = 2048


def memory_limit() -> int:
    """Number of bytes that this process may use now, the smallest of `memory_limits`.

    >>> tsds.page_cache.memory_limit() > 2**20
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
    """Raise `ResourceError` (`too-large`) for a claimed size that this process may not allocate."""
    if nbytes > _UNASKED_NBYTES:
        limit = memory_limit()
        if nbytes > limit:
            message = f"expected what fits in the {limit:,} bytes of memory that may be used, found {nbytes:,} bytes."
            raise ResourceError(Problem(where, "too-large", message), "Read less at a time, or where there is more.")


def missing_resource(error: BaseException) -> str:
    """The exhausted resource that an error reports; empty for other errors, such as those about a file.

    >>> missing_resource(OSError(errno.EMFILE, "Too many open files")), missing_resource(FileNotFoundError(2, "None"))
    ('file descriptors', '')
    """
    if isinstance(error, MemoryError):
        return "memory"
    return _RESOURCES.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def check_resource(where: str, error: OSError) -> None:
    """Raise `ResourceError` if a resource for opening a file is exhausted, because the file may be good."""
    if missing := missing_resource(error):
        message = f"expected enough {missing}, found that the system has no more ({error.strerror})."
        advice = "Free some, or raise the limit, and do the same again."
        raise ResourceError(Problem(where, "no-resource", message), advice) from error


def usable_cores() -> int:
    """Cores that this process may keep busy: the smallest of `core_limits`, as a whole number."""
    return max(1, math.ceil(min(core_limits().values())))


def threads_within(nbytes: int) -> int:
    """Number of threads that take `nbytes` of memory each: one for each core, or as many as fit, but at least one."""
    cores = usable_cores()
    return cores if cores * nbytes <= _UNASKED_NBYTES else max(1, min(cores, memory_limit() // nbytes))


def threads_for_loading() -> int:
    """Default number of threads that gather batches: a rank's cores, of more than four all but one, which trains."""
    cores = usable_cores() // local_ranks()
    return max(1, cores - (cores > 4))


def local_ranks() -> int:
    """Processes that train together on this machine, as torchrun says."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(given) if given.isdecimal() else 1)


def core_limits() -> dict[str, float]:
    """Cores that each limit leaves to this process, by its source: affinity, and control groups with a quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits: dict[str, float] = {"the affinity of this process": bound}
    limits |= {str(group): quota for group in _control_groups("cpu") if (quota := _quota(group)) is not None}
    return limits


# --- control groups ---------------------------------------------------------------------------------------------


def cgroup_directories(cgroup: str, mountinfo: str, controller: str) -> list[Path]:
    """The control groups of a process, each before its parents, as directories that may not exist.

    `cgroup` is the text of ``/proc/self/cgroup`` with lines ``number:controllers:path``; version 2 has no controllers.
    `mountinfo` is the text of ``/proc/self/mountinfo``: where the hierarchies are mounted, and which part of each.
    `controller` is ``memory`` or ``cpu``. In version 2 one hierarchy serves all.
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
    """Bytes that a control group may still use: its limit, minus used memory that cannot be freed at once.

    >>> cgroup_left("1000\\n", "700\\n", "file 300\\nshmem 100\\n")  # of 300 cached bytes, 100 are shared memory
    500

    `limit`, `used` and `statistics` are the texts of ``memory.max``, ``memory.current`` and ``memory.stat``, or their
    equivalents of version 1, where names in `statistics` have the `prefix` ``total_``. An empty limit, ``max`` or a
    number near 2^63 means no limit. ``unevictable`` is locked memory.
    """
    if not limit or limit.strip() == "max" or int(limit) >= 2**62:
        return None
    sizes = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", statistics, re.MULTILINE)}
    names = ("cache" if prefix else "file", "shmem", "unevictable")
    cached, shared, locked = (sizes.get(f"{prefix}{name}", 0) for name in names)
    return max(0, int(limit) - int(used or 0) + max(0, cached - shared - locked))


def quota_of(text: str) -> float | None:
    """Cores of a quota, from microseconds in each period.

    >>> quota_of("150000 100000"), quota_of("max 100000"), quota_of("-1 100000"), quota_of("")
    (1.5, None, None, None)
    """
    numbers = text.split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or not int(numbers[1]):
        return None
    return int(numbers[0]) / int(numbers[1])


def read_system_file(path: str | Path) -> str:
    """The text of a system file; empty if it is missing or unreadable."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _control_groups(controller: str) -> list[Path]:
    cgroup, mountinfo = (read_system_file(f"/proc/self/{name}") for name in ("cgroup", "mountinfo"))
    return cgroup_directories(cgroup, mountinfo, controller)


def _nbytes_left(group: Path) -> int | None:
    """Bytes left in a control group of version 2 or 1."""
    names = ("max", "current", "limit_in_bytes", "usage_in_bytes", "stat")
    limit, used, limit_1, used_1, statistics = (read_system_file(group / f"memory.{name}") for name in names)
    left = cgroup_left(limit, used, statistics)
    return cgroup_left(limit_1, used_1, statistics, "total_") if left is None else left


def _quota(group: Path) -> float | None:
    """Cores of a control group of version 2 or 1."""
    quota, period = (read_system_file(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota_of(read_system_file(group / "cpu.max") or f"{quota} {period}")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM during the block, in this thread and the processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # raises for a signal just before it
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class MemoryGate:
    """Lets processes take large pieces of memory only while `nbytes` in total suffice; up to `small` bytes always pass.

    Room is counted in bytes that wait in a pipe, which forked processes inherit and others get by `descriptors`.
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
        """Close the descriptors of a new gate, after its last use by any process."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def take(self, nbytes: int) -> None:
        """Wait for room; a piece above the total waits for all of it."""
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
        """Return all that this process took."""
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


def map_in_threads(function: Callable[[T], R], items: Iterable[T], width: int | None = None) -> Iterator[R]:
    """``map`` in `width` threads, or one for each core, in order, with few items in memory at a time."""
    from concurrent.futures import ThreadPoolExecutor  # here, because most commands never need it

    width = width or usable_cores()
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
