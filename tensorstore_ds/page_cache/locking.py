"""Lock a store in memory, so that the system never drops its pages."""

from __future__ import annotations

import contextlib
import errno
import mmap
import re
import sys
from pathlib import Path

from tensorstore_ds.errors import ResidencyError
from tensorstore_ds.machine import read_system_file
from tensorstore_ds.page_cache.residency import Names, data_files, requirement, select_columns
from tensorstore_ds.page_cache.system_calls import lock_pages, map_file
from tensorstore_ds.page_cache.warming import Progress, warm
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import start_of

_STATUS = "/proc/self/status"
_CAP_IPC_LOCK = 14  # linux/capability.h: who has it may lock without a limit
_TOO_MUCH = (errno.ENOMEM, errno.EPERM, errno.EAGAIN)  # as mlock(2) says it


class Lock:
    """A context manager that keeps files locked in memory until it is closed.

    A child process made by a fork does not inherit the lock. The lock is also released when its last reference is gone.

    Attributes:
        nbytes: number of locked bytes, in whole pages.
        closed: whether the lock was released.
    """

    def __init__(self, nbytes: int, maps: contextlib.ExitStack) -> None:
        self.nbytes = nbytes
        self.closed = False
        self._maps = maps

    def close(self) -> None:
        """Release the lock. The data stay in the page cache until the system needs the memory."""
        self._maps.close()
        self.closed = True

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def lock(
    store: Store,
    *,
    splits: Names = None,
    fields: Names = None,
    threads: int = 2,
    progress: Progress | None = None,
) -> Lock:
    """Read a store into memory and lock it there until the returned `Lock` is closed.

    One process for each machine is enough, because all processes share the pages. The arguments are as in `warm`.

    >>> with tsds.lock(tsds.open("photos.tsds"), splits="val") as lock:
    ...     lock.nbytes >= 4 * 32 * 32 * 3
    True
    >>> lock.closed
    True

    Raises:
        OptionError: the store has no such split or field.
        FormatError: a file is missing, shorter than in the manifest, or cannot be read.
        ResidencyError: this process may not lock that many bytes, they do not fit into memory, or this is not Linux.
            Nothing stays locked.
    """
    columns = select_columns(store, splits, fields)
    if sys.platform != "linux":
        raise ResidencyError(f"{store.path}: expected Linux to lock files in memory, found {sys.platform}.")
    files = [file for column in columns for file in data_files(store, *column)]
    nbytes = sum(-(-file.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE for file in files)
    allowance = lock_allowance(read_system_file(_STATUS), _limits()[0])
    if allowance is not None and nbytes > allowance:
        raise _refused(store.path, nbytes)
    needed, limits = requirement(store, columns)
    who = min(limits, key=limits.__getitem__)
    if needed > limits[who]:
        where = "on this machine" if who == "machine" else f"in the control group {who}"
        raise ResidencyError(
            f"{store.path}: expected {needed:,} bytes of memory to lock it in, found {limits[who]:,} available "
            f"{where}. Choose fewer splits or fields, or do not lock."
        )
    warm(store, splits=splits, fields=fields, budget=nbytes, threads=threads, progress=progress)
    with contextlib.ExitStack() as maps:
        for path, size in files:
            with store.open_file(path) as file:
                before = start_of(file) % mmap.ALLOCATIONGRANULARITY  # 0 where pages have 4096 bytes
                try:
                    lock_pages(maps.enter_context(map_file(file.fileno(), before + size, start_of(file) - before)))
                except OSError as error:
                    raise _refused(store.path, nbytes, error) from error
        return Lock(nbytes, maps.pop_all())


def lock_allowance(status: str, limit: int) -> int | None:
    """Bytes that a process may still lock; None if there is no limit.

    >>> lock_allowance("VmLck:\\t      64 kB\\nCapEff:\\t0000000000000000\\n", 8 * 1024**2)
    8323072

    Args:
        status: the text of ``/proc/self/status``.
        limit: its soft limit RLIMIT_MEMLOCK in bytes, -1 for none.
    """
    capabilities = re.search(r"^CapEff:\s+([0-9a-f]+)$", status, re.MULTILINE)
    if limit == -1 or (capabilities and int(capabilities[1], 16) >> _CAP_IPC_LOCK & 1):
        return None
    return max(0, limit - locked_nbytes(status))


def locked_nbytes(status: str) -> int:
    """``VmLck`` in the text of ``/proc/self/status``, in bytes: what a process has locked."""
    locked = re.search(r"^VmLck:\s+(\d+) kB$", status, re.MULTILINE)
    return int(locked[1]) * 1024 if locked else 0


def _refused(path: Path, nbytes: int, error: OSError | None = None) -> ResidencyError:
    soft, hard = _limits()
    if error is not None and (soft == -1 or error.errno not in _TOO_MUCH):
        reason = error.strerror
        return ResidencyError(f"{path}: expected to lock {nbytes:,} bytes, found that the system refuses ({reason}).")
    used = locked_nbytes(read_system_file(_STATUS))
    needed = used + nbytes
    root = "" if hard == -1 or needed <= hard else ", as root in /etc/security/limits.conf"
    return ResidencyError(
        f"{path}: expected to lock {nbytes:,} bytes, found that this process may lock {soft:,} (RLIMIT_MEMLOCK) and "
        f"has locked {used:,}. Raise it with ulimit -l {-(-needed // 1024)}{root}, with docker run --ulimit memlock=-1 "
        "or with systemd's LimitMEMLOCK=infinity; or do not lock."
    )


def _limits() -> tuple[int, int]:
    import resource  # there is none on Windows

    return resource.getrlimit(resource.RLIMIT_MEMLOCK)
