"""One of each call by which Python changes, reads or looks at files: all of them must pass through the shim."""

# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH116, PTH211
# The calls themselves are meant.

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence


def every_call(argv: Sequence[str]) -> None:
    """Make all of them in a folder."""
    os.chdir(argv[0])
    with open("a", "wb", buffering=0) as a:
        a.write(b"0123456789")
        os.pwrite(a.fileno(), b"x", 3)
        os.fsync(a.fileno())
        os.fdatasync(a.fileno())
        os.ftruncate(a.fileno(), 8)
        os.truncate("a", 7)
        os.posix_fallocate(a.fileno(), 0, 20)
        os.writev(a.fileno(), [b"ab", b"cd"])
        os.pwritev(a.fileno(), [b"ef"], 2)
        fcntl.flock(a, fcntl.LOCK_EX)
    with open("a", "rb", buffering=0) as a, open("b", "wb", buffering=0) as b:
        os.sendfile(b.fileno(), a.fileno(), 0, 5)
        os.copy_file_range(a.fileno(), b.fileno(), 5)
        a.read(3)
        os.pread(a.fileno(), 3, 0)
        mmap.mmap(a.fileno(), 0, prot=mmap.PROT_READ).close()
        os.fstat(a.fileno())
    os.utime("a")
    os.chmod("a", 0o600)
    os.close(os.open("c", os.O_CREAT | os.O_WRONLY))
    os.mkdir("d")
    d = os.open("d", os.O_RDONLY)
    e = os.open("e", os.O_CREAT | os.O_WRONLY, dir_fd=d)
    os.write(e, b"1")
    os.close(e)
    os.rename("e", "f", src_dir_fd=d, dst_dir_fd=d)
    os.link("f", "g", src_dir_fd=d, dst_dir_fd=d)
    os.mkdir("h", dir_fd=d)
    os.rmdir("h", dir_fd=d)
    os.unlink("d/g")
    os.rename("f", f"{argv[0]}/i", src_dir_fd=d)
    os.unlink("i")
    os.listdir("d")
    os.stat("c", dir_fd=None)
    os.stat("d", follow_symlinks=False)
    os.rename("d", "j")
    os.fsync(d)
    os.close(d)
    os.rmdir("j")
    os.symlink("a", "k")
