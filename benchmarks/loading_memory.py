"""Memory of loaders: eight processes on one store, and a thousand epochs in one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.loading import DIGITS_BATCH, ROWS, SHAPE
from benchmarks.measure import ROOT, Figure, Settings, own_nbytes
from benchmarks.samples import STORE, make_digits, make_noise

PROCESSES = 8
#: Small, so that an epoch of the smaller store has more batches than a loader ever holds: the buffers are all there.
BATCH = 32
#: MB that a process may hold more on the larger store: about a hundredth of the difference in size.
GROWTH_LIMIT = 10
COPIES_LIMIT = 1.05
EPOCHS, SECONDS = 1000, 60.0
_SETTLED = 50  # epochs after which memory has to stay as it is
EPOCHS_LIMIT = 5  # MB
_FEWER = 8


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of the processes on one store, in bytes: of their own, each; of the store's files, all together."""

    own: list[int]
    file_rss: int
    file_pss: int
    nbytes: int


def measure_shared(settings: Settings) -> list[Figure]:
    """Eight processes with a loader each, after an epoch, on a store and on one with an eighth of its rows."""
    small, large = (
        hold(settings.scratch / f"noise-{rows}", rows, SHAPE, BATCH, PROCESSES) for rows in (ROWS // _FEWER, ROWS)
    )
    growth = (max(large.own) - max(small.own)) / 1e6
    more = (large.nbytes - small.nbytes) / 1e6
    note = (
        f"{max(small.own) / 1e6:.0f} MB each at {small.nbytes / 1e6:.0f} MB of images, {max(large.own) / 1e6:.0f} MB "
        f"at {large.nbytes / 1e6:.0f} MB"
    )
    copies = (
        f"each has the store's {large.nbytes / 1e6:.0f} MB mapped and read: {large.file_rss / 1e6:.0f} MB added up, "
        f"{large.file_pss / 1e6:.0f} MB when what they share is counted once"
    )
    name = f"{PROCESSES} loaders in {PROCESSES} processes on one store"
    return [
        Figure(f"{name} that is {more:.0f} MB larger: own memory more", growth, GROWTH_LIMIT, "MB", 1, note=note),
        Figure(f"{name}: copies of it in memory", large.file_pss / large.nbytes, COPIES_LIMIT, note=copies),
    ]


def measure_epochs(settings: Settings) -> list[Figure]:
    """One loader over the digits, again and again."""
    source = settings.scratch / "digits"
    make_digits(source, settings.digits / "train")
    command = [sys.executable, "-m", "benchmarks.loading_memory", "epochs", str(source), str(DIGITS_BATCH)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    own, threads, seconds = (json.loads(done.stdout)[name] for name in ("own", "threads", "seconds"))
    before, after = statistics.median(own[: 2 * _SETTLED][-_SETTLED:]), statistics.median(own[-_SETTLED:])
    name = f"{len(own):,} epochs of {settings.digits_name}' train split"
    note = f"{before / 1e6:.1f} MB around epoch {_SETTLED * 3 // 2}, {after / 1e6:.1f} MB at the end; {seconds:.0f} s"
    if len(own) < EPOCHS:
        note += f"; {EPOCHS:,} were not done in {SECONDS:.0f} s"
    return [
        Figure(f"{name}: own memory more", (after - before) / 1e6, EPOCHS_LIMIT, "MB", 1, note=note),
        Figure(f"{name}: threads more", max(threads) - threads[0], 0, "", 0, note=f"{threads[0]} between epochs"),
    ]


# --- processes that hold a loader -----------------------------------------------------------------------------------


def hold(source: Path, rows: int, shape: tuple[int, int, int], batch: int, processes: int) -> Held:
    """Make a store, run an epoch in each of the processes, and look at them while all are there."""
    make_noise(source, rows, shape)
    with ExitStack() as stack:
        pids = [stack.enter_context(_holder(source, batch)) for _ in range(processes)]
        mapped = [mapped_nbytes(pid, str(source / STORE)) for pid in pids]
        own = [own_nbytes(pid) for pid in pids]
    nbytes = rows * shape[0] * shape[1] * shape[2]
    return Held(own, sum(rss for rss, _ in mapped), sum(pss for _, pss in mapped), nbytes)


@contextmanager
def _holder(source: Path, batch: int) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.loading_memory", "hold", str(source), str(batch)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise RuntimeError(f"{source}: a process with a loader ended")
            yield process.pid
        finally:
            if process.stdin is not None:
                process.stdin.close()


def mapped_nbytes(pid: int, below: str) -> tuple[int, int]:
    """Resident memory of the mapped files whose paths begin with `below`: all of it, and the process's share of it."""
    total = {"Rss": 0, "Pss": 0}
    ours = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0] and " " in name:  # a mapping's first line: addresses, rights, ..., path
            ours = f" {below}" in line
        elif ours and name in total:
            total[name] += int(value.split()[0]) * 1024
    return total["Rss"], total["Pss"]


def _run_epochs(source: Path, batch: int) -> dict[str, Any]:
    from benchmarks.peers import store

    loader = store.load(source, source, batch, "2 threads")
    own: list[int] = []
    threads: list[int] = []
    begun = time.perf_counter()
    while len(own) < EPOCHS and time.perf_counter() - begun < SECONDS:
        for _ in loader:
            pass
        own.append(own_nbytes())
        threads.append(count_threads(threads[0] if threads else 0))
    return {"own": own, "threads": threads, "seconds": time.perf_counter() - begun}


def count_threads(expected: int) -> int:
    """Threads of this process; looked at again for a fifth of a second while there are more than expected.

    A thread that was joined is still listed until the system has seen it off.
    """
    for _ in range(20):
        count = len(os.listdir("/proc/self/task"))  # names are enough
        if count <= expected:
            break
        time.sleep(0.01)
    return count


def main(what: str, source: Path, batch: int) -> None:
    """In a process of its own: run epochs and say what was seen, or run one and wait."""
    if what == "epochs":
        print(json.dumps(_run_epochs(source, batch)))
        return
    from benchmarks.peers import store

    loader = store.load(source, source, batch, "2 threads")
    for _ in loader:
        pass
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
