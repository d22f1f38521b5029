"""Epochs of stores that do not fit into memory: bytes that are read of the disk, and their speed by the order."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, in_fresh_process, rates, ratio_of_medians, say
from benchmarks.samples import STORE, make_noise
from tensorstore_ds.machine import cgroup_directories, read_system_file
from tensorstore_ds.page_cache.shortage import read_ahead_nbytes

#: By the size of a row: rows, shape, batch size, and memory limit of a process in bytes. torch takes 300 MB of it.
STORES = {
    "3 kB": (640_000, (32, 32, 3), 256, 600 * 1024**2),
    "150 kB": (8_000, (224, 224, 3), 64, 400 * 1024**2),
}
ORDERS = ("sequential", "shuffle", "block shuffle")
#: Bytes read for each byte that is used, and the time of a shuffled epoch relative to a sequential one.
READ_LIMIT, TIME_LIMIT = 2.0, 5.0
#: Bytes in a block of a block shuffle, and blocks in a window.
_BLOCK_NBYTES, _BLOCKS = 4 * 1024**2, 4


def measure(settings: Settings) -> dict[str, Any]:
    """Each epoch in a process of its own, in a control group, after the store was dropped from the page cache."""
    figures = []
    with contextlib.ExitStack() as stack:
        for name, (rows, shape, batch, limit) in STORES.items():
            try:
                group = stack.enter_context(control_group(limit))
            except OSError as error:
                say(f"  skipped: a control group with a limit of memory needs root ({error.strerror})")
                return {}
            source = settings.scratch / name.replace(" ", "")
            make_noise(source, rows, shape)
            os.sync()
            around = f"{read_ahead_nbytes(source) // 1024:,} KiB; {settings.repeat} rounds"

            def run(order: str, source: Path = source, batch: int = batch, group: Path = group) -> tuple[float, float]:
                found = in_fresh_process(load, order, source, batch, group)
                return found["seconds"], found["read"] / found["used"]

            found = alternate([lambda order=order: run(order) for order in ORDERS], settings.repeat)
            seconds = {order: [each[0] for each in own] for order, own in zip(ORDERS, found, strict=True)}
            where = f"rows of {name}, memory for {limit / 1024**2:.0f} of {rows * _nbytes(shape) / 1024**2:,.0f} MiB"
            for order, own in zip(ORDERS, found, strict=True):
                read = sorted(each[1] for each in own)[len(own) // 2]
                note = f"{rates(rows, seconds[order])} images per second; a disk with a read-ahead of {around}"
                figures.append(Figure(f"{where}, {order}: bytes read per byte used", read, READ_LIMIT, "x", note=note))
            ratio = ratio_of_medians(seconds["shuffle"], seconds["sequential"])
            figures.append(
                Figure(f"{where}: time of a shuffled epoch, relative to a sequential one", ratio, TIME_LIMIT, "x")
            )
    return as_result(figures)


def _nbytes(shape: tuple[int, int, int]) -> int:
    return shape[0] * shape[1] * shape[2]


@contextlib.contextmanager
def control_group(limit: int) -> Iterator[Path]:
    """Make a control group, of version 1 or 2, inside this process's own. Its processes may use this much memory.

    Raises:
        OSError: the system does not allow it.
    """
    texts = [read_system_file(f"/proc/self/{name}") for name in ("cgroup", "mountinfo")]
    own = next((each for each in cgroup_directories(*texts, "memory") if each.is_dir()), None)
    if own is None:
        raise FileNotFoundError(0, "there are no control groups")
    group = own / f"tsds-benchmark-{os.getpid()}-{limit}"
    group.mkdir()
    try:
        file = next((group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()), None)
        if file is None:
            raise FileNotFoundError(0, f"{own} has no limits of memory")
        file.write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def load(order: str, source: Path, batch: int, group: Path) -> dict[str, Any]:
    """Evict the store, go into the group, and load an epoch."""
    tsds.evict(tsds.open(source / STORE))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    dataset = tsds.StoreDataset(source / STORE, "train", fields=["image", "label"])
    options: dict[str, Any] = {"shuffle": order == "shuffle"}
    if order == "block shuffle":
        rows = max(1, int(_BLOCK_NBYTES / dataset.row_nbytes))
        options = {"sampler": tsds.BlockShuffleSampler(dataset, block_rows=rows, window_blocks=_BLOCKS)}
    begun, before = time.perf_counter(), _read_nbytes()
    loader = tsds.DataLoader(dataset, batch, num_threads=2, **options)
    used = sum(each["image"].nbytes + each["label"].nbytes for each in loader)
    return {"seconds": time.perf_counter() - begun, "read": _read_nbytes() - before, "used": used}


def _read_nbytes() -> int:
    """Bytes that this process has made the disk read."""
    return int(Path("/proc/self/io").read_text().split("\nread_bytes: ")[1].split("\n")[0])
