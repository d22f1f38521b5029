"""Loaders of others, this project's own, and `memcpy`, the limit of all of them, as ways that have a lane each.

Each has a module here with these functions, which only a process of its own imports (`benchmarks.race`), so
that one that is missing or fails costs one row, and none meets another's threads, signal handlers or versions:

- ``write(source, target, mode)``: convert the arrays of `source` into the peer's own format in the folder `target`;
  none where `source` is loaded as it is;
- ``load(source, target, batch, mode)``: a loader, each iteration of which is one shuffled epoch; workers stay;
- ``columns(batch)``: what a batch holds: ``image``, B images with axes in any order, and ``label`` (B,), or of objects
  ``offsets``, ``labels`` and ``boxes``; none where a batch is a mapping or a sequence of these two.

Each is used as its own documentation advises; the module's docstring says how. All store and hand out uint8 pixels
without loss, in whatever order of axes costs them least. TensorDataset and the files are ways of ``tsds bench``.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Threads or worker processes that everyone may use.
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """One loader."""

    title: str  #: Its name in the tables.
    module: str  #: In this package.
    package: str = ""  #: The distribution whose version is named; empty if there is nothing to install.
    modes: tuple[str, ...] = ("",)  #: Ways to use it; what they mean is its module's to say.
    install: str = ""  #: How to get it.


OURS = Peer("tensorstore-ds", "store", modes=("2 threads",))
MEMCPY = Peer("memcpy", "memcpy", modes=("1 thread", "2 threads"))
FFCV = Peer(
    "FFCV",
    "ffcv",
    "ffcv",
    ("RGBImageField raw, 2 threads", "NDArrayField, 2 threads"),
    "apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev; pip install ffcv opencv-python-headless numba",
)
#: Those that load any arrays.
PEERS = (
    FFCV,
    Peer("TensorDict", "tensordict", "tensordict", ("memmap",), "pip install tensordict"),
    Peer("LMDB + DataLoader", "lmdb", "lmdb", ("0 workers", "2 workers"), "pip install lmdb"),
    Peer("LitData", "litdata", "litdata", ("2 workers",), "pip install litdata"),
    Peer("MosaicML Streaming", "streaming", "mosaicml-streaming", ("2 workers",), "pip install mosaicml-streaming"),
    Peer("WebDataset", "webdataset", "webdataset", ("2 workers",), "pip install webdataset"),
    Peer("Hugging Face datasets", "datasets", "datasets", ("2 workers",), "pip install datasets"),
)


def workers(mode: str) -> int:
    """The number of workers that a mode names.

    >>> workers("whole batches, 2 workers")
    2
    """
    return int(mode.rpartition(", ")[2].split()[0])
