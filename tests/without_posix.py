"""Takes from a Python on Linux what it does not have on Windows or macOS, before anything else is imported.

It is run as ``python without_posix.py win32 SCRIPT``: what a system lacks that nobody has here is at least not needed.
"""

from __future__ import annotations

import errno
import os
import runpy
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
    if os.path.isdir(path):  # noqa: PTH112
        raise PermissionError(errno.EACCES, "Permission denied", path)
    found: int = real(path, flags, mode, dir_fd=dir_fd)
    return found


def take_away(system: str) -> None:
    """Make this process one of another system, as far as that goes."""
    for name in MEMBERS if system == "win32" else NOT_ON_MACOS:
        if hasattr(os, name):
            delattr(os, name)
    if system == "win32":
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, _Missing())  # type: ignore[arg-type]
        os.open = _open_no_folder


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
