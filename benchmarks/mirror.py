"""Stores by URL: the first batch of a large one, a first epoch over a network, and the second one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c

import tensorstore_ds as tsds
from benchmarks.measure import ROOT, Figure, Settings, as_result, command_of, ratio_of_medians, seconds_of, spread
from benchmarks.open_large import write_sparse_store
from benchmarks.range_server import served
from benchmarks.samples import STORE, make_noise
from tensorstore_ds.format.arrays import CRC_NBYTES, ArrayGeometry
from tensorstore_ds.format.kinds import RawImageField
from tensorstore_ds.format.schema import ArraySpec

SHAPE = (224, 224, 3)
LARGE_ROWS, ROWS, BATCH = 66_000, 5_200, 128
LATENCY, BANDWIDTH = 0.020, 100_000_000


def measure(settings: Settings) -> dict[str, Any]:
    """Against servers on this machine: as fast as they are, or with a network's latency and bandwidth."""
    folder = settings.scratch
    write_sparse_store(folder / "large.tsds", {"train": LARGE_ROWS}, LARGE_ROWS, {"image": _IMAGE})
    _seal(folder / "large.tsds/train/00000/image/c/0/0/0/0")
    make_noise(folder / "noise", ROWS, SHAPE)
    figures = _requests(folder)
    with _far_server(folder) as url:
        _seconds(tsds.DataLoader(tsds.StoreDataset(folder / "noise" / STORE), batch_size=BATCH))  # all is imported
        in_order, shuffled = (_first_batch(f"{url}/large.tsds", folder / f"first-{n}", n == 1) for n in range(2))
        network = f"{LATENCY * 1e3:.0f} ms and {BANDWIDTH / 1e6:.0f} MB/s"
        size = f"{LARGE_ROWS * _IMAGE.spec.row_nbytes / 1e9:.0f} GB"
        what = f"first batch of a store of {size}, {BATCH} images in order, from {network}"
        figures.append(Figure(what, in_order, 2, "s", 1))
        what = f"first batch of a store of 10 GB, full shuffle, where each image needs {_CHUNK_NBYTES / 1e6:.1f} MB"
        figures.append(Figure(what, shuffled, 2, "s", 1))
        for name in ("full shuffle", "block shuffle"):
            figures += _epochs(folder, url, name, settings.repeat)
    return as_result(figures)


def serve(folder: Path) -> None:
    """Serve a folder until standard input ends, with a network's latency and bandwidth; prints the URL."""
    with served(folder, latency=LATENCY, bandwidth=BANDWIDTH) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


def _requests(folder: Path) -> list[Figure]:
    with served(folder) as server:
        opened = tsds.open(f"{server.url}/large.tsds", cache_dir=folder / "requests")
        counts = [len(server.requests)]
        for row in (0, LARGE_ROWS - 1):
            opened["train"]["image"][row]
            counts.append(len(server.requests) - sum(counts))
    note = "the shard's list, the checksums of its chunks, and the chunk"
    return [
        Figure("requests to open a store by URL", counts[0], 1, "", 0),
        Figure("requests for the first image of a shard, raw", counts[1], 3, "", 0, note=note),
        Figure("requests for another image of it", counts[2], 1, "", 0),
    ]


def _epochs(folder: Path, url: str, name: str, repeat: int) -> list[Figure]:
    cache = folder / name.replace(" ", "-")

    def loader(place: str | Path) -> tsds.DataLoader[Any]:
        dataset = tsds.StoreDataset(tsds.open(place, cache_dir=cache))
        if name == "full shuffle":
            return tsds.DataLoader(dataset, batch_size=BATCH, shuffle=True)
        sampler = tsds.BlockShuffleSampler(dataset, block_rows=64, window_blocks=8)
        return tsds.DataLoader(dataset, batch_size=BATCH, sampler=sampler)

    remote, local = loader(f"{url}/noise/{STORE}"), loader(folder / "noise" / STORE)
    nbytes = ROWS * _IMAGE.spec.row_nbytes
    first = _seconds(remote)
    _seconds(remote)  # the SHA-256 of the file is compared meanwhile
    time.sleep(3)
    rounds = [(_seconds(remote), _seconds(local)) for _ in range(repeat)]
    remotes, locals_ = zip(*rounds, strict=True)
    share = nbytes / first / BANDWIDTH
    note = f"{nbytes / 1e6:.0f} MB in {first:.1f} s"
    ratio = f"{spread(remotes)} s against {spread(locals_)} s"
    return [
        Figure(f"first epoch, {name}: share of the server's bandwidth", share, 0.8, at_least=True, note=note),
        Figure(
            f"later epochs, {name}: time relative to a local store", ratio_of_medians(remotes, locals_), 1.1, note=ratio
        ),
    ]


def _first_batch(url: str, cache: Path, shuffle: bool) -> float:
    """Seconds from nothing to the batch."""
    began = time.perf_counter()
    dataset = tsds.StoreDataset(tsds.open(url, cache_dir=cache))
    batches = iter(tsds.DataLoader(dataset, batch_size=BATCH, shuffle=shuffle))
    next(batches)
    seconds = time.perf_counter() - began
    del batches
    time.sleep(5)  # what was asked for ahead comes
    return seconds


def _seconds(loader: tsds.DataLoader[Any]) -> float:
    return seconds_of(lambda: [None for _ in loader])


@contextmanager
def _far_server(folder: Path) -> Iterator[str]:
    """A server in a process of its own."""
    command = command_of(serve, folder)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def _seal(path: Path) -> None:
    """Write the checksums of chunks of zeros into a data file."""
    geometry = ArrayGeometry(_IMAGE.spec, LARGE_ROWS, "memmap")
    crc = int(google_crc32c.value(bytes(geometry.chunk_nbytes))).to_bytes(CRC_NBYTES, "little")
    with path.open("r+b") as file:
        file.seek(geometry.chunks * geometry.chunk_nbytes)
        file.write(crc * geometry.chunks)


_IMAGE = RawImageField(ArraySpec("uint8", SHAPE))
_CHUNK_NBYTES = ArrayGeometry(_IMAGE.spec, LARGE_ROWS, "memmap").chunk_nbytes
