"""Memory of a process and of those that it has started, from /proc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def tree_nbytes(process: int, shared: int = 0) -> int | None:
    """Private memory of a process and of all below it, in bytes; None where the system does not tell.

    That is resident anonymous and shared memory (``RssAnon + RssShmem``), and no page of a file: a mapped store is in
    the page cache, which all processes share.

    Args:
        process: its number.
        shared: bytes that each process below it still shares with it, as `shared_nbytes` has them: counted once.
    """
    first, *rest = [own_nbytes(one) for one in tree(process)]
    return None if first is None else first + sum(max(0, nbytes - shared) for nbytes in rest if nbytes is not None)


def own_nbytes(process: int) -> int | None:
    """Resident anonymous and shared memory of one process; None if it has ended, or there is no /proc."""
    found = _sizes(process, "status", ("RssAnon", "RssShmem"))
    return sum(found) if found else None


def shared_nbytes(process: int) -> int | None:
    """Bytes that each of the processes below one shares with it and the others, on average: forked, nearly all.

    It takes the system some 30 ms a process to count, so that it must not be asked while a clock runs. None if there is
    no process below, or the system does not tell.
    """
    processes = list(tree(process))
    mine = [own_nbytes(one) for one in processes]
    counted_once = [_sizes(one, "smaps_rollup", ("Pss_Anon", "Pss_Shmem")) for one in processes]
    if len(processes) == 1 or None in mine or not all(counted_once):
        return None
    several = sum(nbytes for nbytes in mine if nbytes is not None)
    return max(0, several - sum(map(sum, counted_once))) // (len(processes) - 1)


def _sizes(process: int, file: str, names: tuple[str, ...]) -> list[int]:
    try:
        lines = Path(f"/proc/{process}/{file}").read_text().splitlines()
    except OSError:  # ended between two looks, or a system that does not tell
        return []
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith(tuple(f"{name}:" for name in names))]


def tree(process: int) -> Iterator[int]:
    """The process, and all below it that run."""
    yield process
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:  # ended, or a kernel that does not list children
        return
    for child in children:
        yield from tree(int(child))
