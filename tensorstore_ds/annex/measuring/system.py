"""What the system tells: the machine's description, memory of processes, and files that it drops from memory."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tensorstore_ds.errors import ResidencyError
from tensorstore_ds.machine import memory_limit, read_system_file, usable_cores
from tensorstore_ds.page_cache.system_calls import resident_nbytes
from tensorstore_ds.version import __version__

#: Seconds; a source with more files than are dropped in that time has no first epoch from the disk.
PATIENCE = 30.0
_PACKAGES = ("torch", "torchvision", "numpy", "pillow")


def machine() -> dict[str, str]:
    """What results depend on, by name: ``cpu``, ``cores``, ``memory``, ``system``, versions, ``date``."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = read_system_file("/proc/cpuinfo").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": f"{usable_cores()} cores",
        "memory": f"{memory / 2**30:.0f} GiB, {memory_limit() / 2**30:.0f} GiB to use",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "libc": " ".join(platform.libc_ver()).strip() or "C library unknown",
        "python": f"Python {platform.python_version()}",
        "tensorstore-ds": f"tensorstore-ds {__version__}",
        **{name: f"{name} {_version(name)}" for name in _PACKAGES},
        "date": datetime.datetime.now().astimezone().date().isoformat(),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


# --- memory of processes -------------------------------------------------------------------------------------------


def tree_nbytes(process: int, shared: int = 0) -> int | None:
    """Private memory of a process and its descendants, in bytes; None if the system does not report it.

    That is resident anonymous and shared memory (``RssAnon + RssShmem``), and no page of a file: a mapped store is in
    the page cache, which all processes share. For each descendant, `shared` bytes (`shared_nbytes`) do not count.
    """
    first, *rest = [own_nbytes(one) for one in tree(process)]
    return None if first is None else first + sum(max(0, nbytes - shared) for nbytes in rest if nbytes is not None)


def own_nbytes(process: int) -> int | None:
    """Resident anonymous and shared memory of one process; None if it has ended, or without /proc."""
    sizes = _sizes(process, "status", ("RssAnon", "RssShmem"))
    return sum(sizes) if sizes else None


def shared_nbytes(process: int) -> int | None:
    """Bytes that each descendant of a process shares with the others, on average; None without descendants.

    It takes the system some 30 ms per process to count, so it must not be called while a clock runs.
    """
    processes = list(tree(process))
    mine = [own_nbytes(one) for one in processes]
    counted_once = [_sizes(one, "smaps_rollup", ("Pss_Anon", "Pss_Shmem")) for one in processes]
    if len(processes) == 1 or None in mine or not all(counted_once):
        return None
    several = sum(nbytes for nbytes in mine if nbytes is not None)
    return max(0, several - sum(map(sum, counted_once))) // (len(processes) - 1)


def _sizes(process: int, file: str, names: tuple[str, ...]) -> list[int]:
    lines = read_system_file(f"/proc/{process}/{file}").splitlines()  # none of a process that has ended
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith(tuple(f"{name}:" for name in names))]


def tree(process: int) -> Iterator[int]:
    """The process and all its running descendants."""
    yield process
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:  # ended, or no /proc
        return
    for thread in threads:
        for child in read_system_file(f"/proc/{process}/task/{thread}/children").split():
            yield from tree(int(child))


# --- files ---------------------------------------------------------------------------------------------------------


def drop_files(folder: Path) -> int:
    """Evict all files below a folder from the page cache; returns the bytes that stay, names and sizes not counted."""
    if sys.platform != "linux":
        raise ResidencyError(f"{folder}: expected Linux to drop a file's pages, found {sys.platform}.")
    begun, left = time.monotonic(), 0
    for path in (Path(where, name) for where, _, names in os.walk(folder, followlinks=True) for name in names):
        if time.monotonic() - begun > PATIENCE:
            raise ResidencyError(f"{folder}: dropping its files takes more than {PATIENCE:.0f} s")
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if resident_nbytes(file.fileno(), size):  # a new file, which is not on the disk yet
                    os.fdatasync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                left += resident_nbytes(file.fileno(), size)
    return left
