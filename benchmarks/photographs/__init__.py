"""Loaders of photographs: what each does for the same batches, as ways with a lane each
(`tensorstore_ds.annex.comparison`).

A **task** is what a loader is asked for:

- ``train``: shuffled epochs, `RandomResizedCrop` to 224x224 with its usual ranges;
- ``validate``: epochs in order, the shorter side resized to 256, of that the center, 224x224;
- ``detect``: shuffled epochs of whole images of all sizes, with their boxes.

Batches of the first two are uint8 (B, C, 224, 224), with labels. Each loader has a module here with these functions,
which only a process of its own imports (`benchmarks.photographs.runner`):

- ``write(task, source, target, mode)``: convert the files in the folder `source` into the folder `target`; none where
  files are loaded as they are;
- ``load(task, source, target, batch, mode)``: a loader, each iteration of which is one epoch; workers stay;
- ``columns(batch)``: what a batch holds: ``image`` and ``label``, or ``image``, ``offsets``, ``labels`` and ``boxes``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.peers import FFCV, OURS, WORKERS

SIDE, RESIZED = 224, 256
#: Photographs are kept with this many pixels on the longer side, as FFCV's example for ImageNet does.
MAX_SIDE = 500
QUALITY = 90
BATCH, OBJECTS_BATCH = 256, 16

FILES = "files (torchvision)"


@dataclass(frozen=True, slots=True)
class Way:
    """One loader, in one use."""

    title: str  #: In the tables.
    module: str  #: In this package.
    mode: str  #: What its module knows: our encodings, FFCV's, nothing for files.
    package: str = ""  #: The distribution whose version is named.
    install: str = ""  #: How to get it.
    threads: int = WORKERS  #: Or worker processes.

    @property
    def name(self) -> str:
        """Unique, and the name of a file."""
        return f"{self.module}-{self.mode}-{self.threads}"

    def with_threads(self, threads: int) -> Way:
        """The same with another number of threads."""
        return replace(self, threads=threads)


STORES = {mode: Way(OURS.title, "store", mode) for mode in ("jpeg", "source", "raw")}
FFCV_JPEG = Way(FFCV.title, "ffcv", "jpg", FFCV.package, FFCV.install)
#: Without a limit of the side, as `source`.
FFCV_FULL = replace(FFCV_JPEG, mode="jpg, full size")
TORCHVISION = Way(FILES, "files", "")
#: Those that read the files as they are, and are not dependencies. One that is not installed costs one row.
PEERS = (
    Way("files (torchcodec)", "files", "decode_jpeg", "torchcodec", "pip install torchcodec"),
    Way("files (DALI)", "dali", "", "nvidia-dali-cuda120", "pip install nvidia-dali-cuda120"),
    Way("files (SPDL)", "spdl", "", "spdl", "apt-get install libavdevice59; pip install spdl"),
)
