"""Loaders of photographs: what each does for the same batches, each in a process of its own (`benchmarks.race`).

A **task** is what a loader is asked for:

- ``train``: shuffled epochs, `RandomResizedCrop` to 224x224 with its usual ranges;
- ``validate``: epochs in order, the shorter side resized to 256, of that the center, 224x224;
- ``detect``: shuffled epochs of whole images of all sizes, with their boxes.

Batches of the first two are uint8 (B, C, 224, 224), with labels. Each loader has a module here with these functions,
which only a process of its own imports (`benchmarks.race`):

- ``write(task, source, target, mode)``: convert the files in the folder `source` into the folder `target`; none where
  files are loaded as they are;
- ``load(task, source, target, batch, mode)``: a loader, each iteration of which is one epoch; workers stay;
- ``columns(batch)``: what a batch holds: ``image`` and ``label``, or ``image``, ``offsets``, ``labels`` and ``boxes``.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.peers import FFCV, OURS
from benchmarks.race import Entry

SIDE, RESIZED = 224, 256
#: Photographs are kept with this many pixels on the longer side, as FFCV's example for ImageNet does.
MAX_SIDE = 500
QUALITY = 90
BATCH, OBJECTS_BATCH = 256, 16

#: Each as it is used in training.
STORES = {mode: Entry(OURS.title, mode, BATCH, "photographs.store") for mode in ("jpeg", "source", "raw")}
FFCV_JPEG = Entry(FFCV.title, "jpg", BATCH, "photographs.ffcv", FFCV.package, FFCV.install)
#: Without a limit of the side, as `source`.
FFCV_FULL = replace(FFCV_JPEG, mode="jpg, full size")
TORCHVISION = Entry("files (torchvision)", "", BATCH, "photographs.files")
#: Those that read the files as they are, and are not dependencies. One that is not installed costs one row.
PEERS = (
    Entry(
        *("files (torchcodec)", "decode_jpeg", BATCH, "photographs.files", "torchcodec", "pip install torchcodec"),
    ),
    Entry(
        *("files (DALI)", "", BATCH, "photographs.dali", "nvidia-dali-cuda120", "pip install nvidia-dali-cuda120"),
    ),
    Entry(
        *("files (SPDL)", "", BATCH, "photographs.spdl", "spdl", "apt-get install libavdevice59; pip install spdl"),
    ),
)
