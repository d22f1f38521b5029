"""Takes from a Python on Linux what it does not have on Windows or macOS, before anything else is imported.

It is run as ``python without_posix.py win32 SCRIPT``: what a system lacks that nobody has here is at least not needed.
"""

from __future__ import annotations

import errno
import os
import runpy
import shutil
import sys
import types
from collections.abc import Sequence
from typing import Any

#: Modules and members of `os` that Windows does not have.
MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "posix_ipc")
MEMBERS = (
    *("pwrite", "pread", "fork", "forkpty", "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "geteuid"),
    *("posix_fallocate", "fdatasync", "sysconf", "statvfs", "waitid", "killpg", "setsid", "O_NOFOLLOW", "O_CLOEXEC"),
    *("O_DIRECTORY", "O_DIRECT", "O_NONBLOCK", "POSIX_FADV_WILLNEED", "POSIX_FADV_DONTNEED", "register_at_fork"),
)
#: Those of them that macOS does not have either; the modules are there.
NOT_ON_MACOS = ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "fdatasync", "O_DIRECT")


class _Missing:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _open_no_folder(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None, real: Any = os.open) -> int:
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):  # noqa: PTH112
        raise PermissionError(errno.EACCES, "Permission denied", path)
    found: int = real(path, flags, mode)
    return found


def _in_use(path: str) -> bool:
    """Whether a file at a path, or below it, is open or mapped in this process."""
    path = os.path.realpath(path)
    used = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    with open("/proc/self/maps", encoding="utf-8") as maps:
        used += [line.split(None, 5)[5].rstrip("\n") for line in maps if line.count("/")]
    return any(each == path or each.startswith(f"{path}/") for each in used)


def _refusing(real: Any, *, replaces: bool = True) -> Any:
    """A function of `os` that refuses names of open files, as Windows does, and `dir_fd`."""

    def refuse(path: Any, *others: Any, **options: Any) -> None:
        if any(value is not None for value in options.values()):
            raise NotImplementedError("dir_fd unavailable on this platform")
        names = [os.fspath(each) for each in (path, *others)]
        if not replaces and os.path.lexists(names[1]):
            raise FileExistsError(errno.EEXIST, "Cannot create a file when that file already exists", *names)
        for name in names:
            if _in_use(name):
                raise PermissionError(errno.EACCES, "The process cannot access the file", name)
        real(path, *others)

    return refuse


def take_away(system: str) -> None:
    """Make this process one of another system, as far as that goes."""
    statvfs = os.statvfs

    def disk_usage(path: Any) -> types.SimpleNamespace:
        found = statvfs(path)
        return types.SimpleNamespace(free=found.f_bavail * found.f_frsize)

    shutil.disk_usage = disk_usage  # type: ignore[assignment]  # Windows has its own way
    for name in MEMBERS if system == "win32" else NOT_ON_MACOS:
        if hasattr(os, name):
            delattr(os, name)
    if system == "win32":
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, _Missing())  # type: ignore[arg-type]
        os.open = _open_no_folder
        for name in ("unlink", "remove", "rmdir", "replace"):
            setattr(os, name, _refusing(getattr(os, name)))
        os.rename = _refusing(os.rename, replaces=False)
        for listed in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            listed.clear()
        shutil._use_fd_functions = False  # type: ignore[attr-defined]  # as it finds them there


def main(arguments: Sequence[str]) -> None:
    """Run a script after that."""
    system, script, *rest = arguments
    # What Python's own modules and others choose by the system they choose now, as Linux.
    import multiprocessing.connection  # noqa: F401
    import tempfile  # noqa: F401

    for name in filter(None, os.environ.get("BEFORE", "").split(",")):
        __import__(name)
    if "threadpoolctl" in sys.modules:  # it asks for the system at every call, and looks for libraries of that system
        sys.modules["threadpoolctl"].sys = types.SimpleNamespace(**vars(sys))  # type: ignore[attr-defined]
    take_away(system)
    sys.platform = system
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
