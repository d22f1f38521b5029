"""Lock a store in memory: the system then never drops its pages, whatever else needs memory."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from tensorstore_ds.errors import ResidencyError
from tensorstore_ds.page_cache.residency import (
    DataFile,
    data_files,
    last_error,
    map_file,
    requirement,
    select_columns,
    unmap_file,
)
from tensorstore_ds.page_cache.warming import warm
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import open_file

_CAP_IPC_LOCK = 14  # linux/capability.h: who has it may lock without a limit
_TOO_MUCH = (errno.ENOMEM, errno.EPERM, errno.EAGAIN)  # as mlock(2) says it
_WINDOW = 256 * 1024**2  # bytes locked by one call, so that Ctrl-C is heard in between


class Lock:
    """Files that are locked in memory, as long as it is open. A context manager.

    Children of a fork have no part in it. It is also released when nobody refers to it any more.

    Attributes:
        nbytes: bytes that are locked, in whole pages.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:  # (address, nbytes) of maps
        self.nbytes = sum(_whole_pages(nbytes) for _, nbytes in ranges)
        self._release = weakref.finalize(self, _unmap, ranges)

    @property
    def closed(self) -> bool:
        """Whether it was released."""
        return not self._release.alive

    def close(self) -> None:
        """Release what is locked. It stays in the page cache until memory is needed."""
        self._release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def lock(
    store: Store,
    *,
    splits: str | Sequence[str] | None = None,
    fields: str | Sequence[str] | None = None,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Lock:
    """Read a store into memory and lock it there. One process of a machine is enough, as all share the pages.

    Args:
        store: to be locked.
        splits: only these; all if None.
        fields: only these; all if None.
        threads: that read.
        progress: as in `warm`.

    Returns:
        The lock: keep it, and close it in the end.

    Raises:
        OptionError: no such split or field.
        FormatError: a file is gone, shorter than the manifest says, or cannot be read.
        ResidencyError: this process may not lock so much, it does not fit into memory, or this is not Linux. Nothing
            was read or locked.
    """
    columns = select_columns(store, splits, fields)
    if sys.platform != "linux":
        raise ResidencyError(f"{store.path}: expected Linux to lock files in memory, found {sys.platform}.")
    files = [file for split, field in columns for file in data_files(store, split, field)]
    nbytes = sum(_whole_pages(file.nbytes) for file in files)
    allowance = lock_allowance(_status(), _limits()[0])
    if allowance is not None and nbytes > allowance:
        raise _refused(store.path, nbytes)
    _check_memory(store, columns)
    warm(store, splits=splits, fields=fields, budget=nbytes, threads=threads, progress=progress)
    ranges: list[tuple[int, int]] = []
    try:
        for file in files:
            _lock_file(store.path, file, ranges)
    except BaseException as error:
        _unmap(ranges)
        if isinstance(error, OSError) and error.errno in _TOO_MUCH:
            raise _refused(store.path, nbytes, error) from error
        raise
    return Lock(ranges)


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


def _lock_file(root: Path, data_file: DataFile, ranges: list[tuple[int, int]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    with open_file(root, data_file.path) as file:
        address = map_file(file.fileno(), data_file.nbytes)
    ranges.append((address, data_file.nbytes))
    for start in range(0, data_file.nbytes, _WINDOW):
        if libc.mlock(address + start, min(_WINDOW, data_file.nbytes - start)):
            raise last_error()


def _unmap(ranges: Sequence[tuple[int, int]]) -> None:
    for address, nbytes in ranges:
        unmap_file(address, nbytes)


def _check_memory(store: Store, columns: Sequence[tuple[str, str]]) -> None:
    nbytes, limits = requirement(store, columns)
    who = min(limits, key=limits.__getitem__)
    if nbytes > limits[who]:
        where = "on this machine" if who == "machine" else f"in the control group {who}"
        raise ResidencyError(
            f"{store.path}: expected {nbytes:,} bytes of memory to lock it in, found {limits[who]:,} available "
            f"{where}. Choose fewer splits or fields, or do not lock."
        )


def _refused(path: Path, nbytes: int, error: OSError | None = None) -> ResidencyError:
    soft, hard = _limits()
    if soft == -1 and error is not None:
        reason = error.strerror
        return ResidencyError(f"{path}: expected to lock {nbytes:,} bytes, found that the system refuses ({reason}).")
    used = locked_nbytes(_status())
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


def _status() -> str:
    return Path("/proc/self/status").read_text("utf-8", "replace")


def _whole_pages(nbytes: int) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-nbytes // page) * page
