"""All doors, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from fuzz.checkpoint_doors import CheckpointBytes, CheckpointCard
from fuzz.command_doors import Arguments
from fuzz.conversion_doors import WorkFile
from fuzz.door import Door
from fuzz.mutations import mutate_json
from fuzz.source_doors import SOURCE_DOORS
from fuzz.store_doors import Manifest, Packed, StoreFile, mutate_lines, mutate_shard, mutate_values

_MEMMAP, _ZARR, _SOURCE = "detection.tsds", "zarr-detection.tsds", "encoded-source.tsds"
_IMAGE, _OFFSETS = "train/00000/image", "train/00000/objects/offsets"

#: For each door what makes it, in an empty folder.
DOORS: Mapping[str, Callable[[Path], Door]] = {
    "manifest": partial(Manifest, store=_MEMMAP),
    "manifest-zarr": partial(Manifest, store=_ZARR),
    "manifest-source": partial(Manifest, store=_SOURCE),
    "manifest-lists": partial(Manifest, store="unknown-kinds.tsds"),
    "listing": partial(StoreFile, store=_MEMMAP, path="train/00000/zarr.json", mutate=mutate_json),
    "array-metadata": partial(StoreFile, store=_MEMMAP, path=f"{_IMAGE}/zarr.json", mutate=mutate_json),
    "array-metadata-zarr": partial(StoreFile, store=_ZARR, path=f"{_OFFSETS}/zarr.json", mutate=mutate_json),
    "group-metadata": partial(StoreFile, store=_MEMMAP, path="train/zarr.json", mutate=mutate_json),
    "offsets": partial(StoreFile, store=_MEMMAP, path=f"{_OFFSETS}/c/0", mutate=mutate_values),
    "boxes": partial(StoreFile, store=_MEMMAP, path="train/00000/objects/boxes/c/0/0", mutate=mutate_values),
    "shard": partial(StoreFile, store=_ZARR, path=f"{_IMAGE}/c/0/0/0/0", mutate=mutate_shard),
    "shard-offsets": partial(StoreFile, store=_ZARR, path=f"{_OFFSETS}/c/0", mutate=mutate_shard),
    "skipped": partial(StoreFile, store=_MEMMAP, path="skipped.jsonl", mutate=mutate_lines),
    "packed": partial(Packed, store=_ZARR),
    **SOURCE_DOORS,
    "plan": partial(WorkFile, file="plan.json"),
    "journal": partial(WorkFile, file="journal/*.json"),
    "checkpoint": CheckpointBytes,
    "checkpoint-card": CheckpointCard,
    "arguments": Arguments,
}

#: Of the cases of a long run: more for what reaches deep and is quick, less for what takes 10 ms or more.
_SHARES = {
    **dict.fromkeys(("image",), 60),
    **dict.fromkeys(("manifest", "manifest-zarr", "manifest-source", "voc-annotation", "imglab"), 20),
    **dict.fromkeys(("array-metadata", "array-metadata-zarr", "group-metadata", "offsets", "boxes"), 2),
    **dict.fromkeys(("shard", "shard-offsets", "skipped", "packed", "file-names", "plan", "journal"), 1),
    **dict.fromkeys(("checkpoint", "checkpoint-card", "arguments"), 3),
}


def share_of(name: str) -> int:
    """How often a door is tried in a long run, compared with the others."""
    return _SHARES.get(name, 10)
