"""Whole epochs of our loader and of others: large images, small ones, and images with boxes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, as_result
from benchmarks.peers import FFCV, MEMCPY, OURS, PEERS, WORKERS, Peer
from benchmarks.race import PATIENCE, Data, Entry, race
from benchmarks.samples import STORE, make_digits, make_noise, make_objects, open_arrays
from tensorstore_ds.annex.measuring.delivery import marks_of, marks_of_split

ROWS, SHAPE, BATCH = 5000, (256, 256, 3), 256
DIGITS_BATCH, SMALL_BATCH = 1000, 100
OBJECTS_BATCH = 16


def entries_of(peer: Peer, batch_size: int, modes: Sequence[str] = ()) -> list[Entry]:
    """A peer, used in all of its modes, or in some."""
    of_peer = {"module": f"peers.{peer.module}", "package": peer.package, "install": peer.install}
    return [Entry(peer.title, mode, batch_size, **of_peer) for mode in modes or peer.modes]


def tensors(batch_size: int) -> list[Entry]:
    """All in memory, in a TensorDataset: sample by sample, and a batch as one index operation."""
    title = "TensorDataset + DataLoader"
    modes = {"0 workers": 0, f"{WORKERS} workers": WORKERS, "whole batches": 0}
    return [Entry(title, mode, batch_size, group="tensors", threads=workers) for mode, workers in modes.items()]


def data_of(title: str, source: Path, raw: Path | None = None) -> Data:
    """The data in a folder that `samples` has made, with the marks that have to be delivered."""
    marks = source / "marks.npy"
    if (source / "images.npy").exists():
        images, labels = open_arrays(source)
        np.save(marks, marks_of({"image": images, "label": labels}, pixels=True))
    else:
        split = tsds.open(source / STORE)["train"]
        np.save(marks, marks_of_split(split, {"image": "image", "objects": "objects"}, pixels=True, boxes=True))
    facts = {"seconds": PATIENCE, "marks": str(marks), "pixels": True, "boxes": True}
    return Data(title, source, "verify", facts, source / STORE, raw)


# --- the three data sets ------------------------------------------------------------------------------------------


def race_large(settings: Settings, rows: int = ROWS, shape: tuple[int, int, int] = SHAPE) -> dict[str, Any]:
    """Images of 196 KB, where bytes count."""
    source = settings.scratch / "noise"
    make_noise(source, rows, shape)
    fixed = [*entries_of(OURS, BATCH), *entries_of(MEMCPY, BATCH)]
    others = [*tensors(BATCH), *(entry for peer in PEERS for entry in entries_of(peer, BATCH))]
    title = f"{rows:,} images of {'x'.join(map(str, shape))}, batch {BATCH}"
    return _raced(data_of(title, source), fixed, others, settings)


def race_digits(settings: Settings) -> dict[str, Any]:
    """Images of 784 bytes, where what is done for each image counts."""
    source, raw = settings.scratch / "digits", settings.digits / "train"
    make_digits(source, raw)
    fixed = [entry for size in (DIGITS_BATCH, SMALL_BATCH) for entry in entries_of(OURS, size)]
    fixed += entries_of(MEMCPY, DIGITS_BATCH, ["1 thread"])
    peers = [entry for peer in PEERS for entry in entries_of(peer, DIGITS_BATCH)]
    of_any = [entry for entry in peers if not entry.mode.startswith("RGB")]  # FFCV's images are of three channels
    others = [*tensors(DIGITS_BATCH), _files("ImageFolder", DIGITS_BATCH), *of_any]
    return _raced(data_of(f"{settings.digits_name}, batch {DIGITS_BATCH}", source, raw), fixed, others, settings)


def race_objects(settings: Settings, voc: Path) -> dict[str, Any]:
    """Images with boxes, from files that torchvision can read as well."""
    source = settings.scratch / "objects"
    make_objects(source, voc)
    data = data_of(f"{voc.name}: images and boxes, batch {OBJECTS_BATCH}", source, voc.absolute())
    others = [*tensors(OBJECTS_BATCH), _files("VOCDetection", OBJECTS_BATCH)]
    return _raced(data, entries_of(OURS, OBJECTS_BATCH, ["list", "padded"]), others, settings)


def _files(reader: str, batch_size: int) -> Entry:
    return Entry(f"files ({reader})", f"{WORKERS} workers", batch_size, group="files")


def _raced(data: Data, fixed: Sequence[Entry], others: Sequence[Entry], settings: Settings) -> dict[str, Any]:
    ways = race(data, fixed, others, settings.scratch / "race", settings.repeat)
    shutil.rmtree(data.source)
    return {"name": data.source.name, "title": data.title, "ways": ways}


# --- figures ------------------------------------------------------------------------------------------------------

Ways = Sequence[Mapping[str, Any]]


def measure(settings: Settings) -> dict[str, Any]:
    """All ways on three data sets, and how ours compares."""
    races = [
        race_large(settings),
        race_digits(settings),
        *([race_objects(settings, settings.voc)] if settings.voc else []),
    ]
    figures = [figure for one in races for figure in _FIGURES[one["name"]](one["ways"])]
    return as_result(figures, races=races)


def large_figures(ways: Ways) -> list[Figure]:
    """The shares of memcpy in one thread and in two, and FFCV."""
    what = "speed, 256x256x3, relative to"
    two = [way for way in ways if way["title"] == MEMCPY.title and way["mode"] == "2 threads"]
    shares = [
        against(f"{what} memcpy in one thread", ways, MEMCPY.title, 1.2),
        *(
            Figure(f"{what} memcpy in two threads", way["ratio"], 0.9, "x", at_least=True, note=_overlap(ways, way))
            for way in two
        ),
    ]
    return [*shares, against(f"{what} FFCV", ways, FFCV.title, 2)]


def digits_figures(ways: Ways) -> list[Figure]:
    """FFCV, TensorDataset, the files themselves, and a smaller batch."""
    what = "speed, digits, relative to"
    plain = [way for way in ways if way["mode"] != "whole batches"]
    small = best([way for way in ways if way["batch_size"] == SMALL_BATCH], OURS.title)
    share = 1 / small["ratio"] if small["ratio"] else None
    return [
        against(f"{what} FFCV", ways, FFCV.title, 1.7),
        against(f"{what} memcpy in one thread", ways, MEMCPY.title, 0.45),
        against(f"{what} TensorDataset + DataLoader, sample by sample", plain, "TensorDataset + DataLoader", 15),
        against(f"{what} ImageFolder + DataLoader", ways, "files (ImageFolder)", 200),
        Figure(f"speed, digits, batch {SMALL_BATCH}, relative to {DIGITS_BATCH}", share, 0.7, "x", at_least=True),
    ]


def objects_figures(ways: Ways) -> list[Figure]:
    """VOCDetection, for both forms of objects."""
    files = best(ways, "files (VOCDetection)")
    figures = []
    for ours in (way for way in ways if way["title"] == OURS.title):
        value = ours["rate"] / files["rate"] if ours["rate"] and files["rate"] else None
        what = f"speed, images with boxes, `{ours['mode']}`, relative to VOCDetection + DataLoader"
        figures.append(Figure(what, value, 10, "x", decimals=1, at_least=True, note=files["reason"]))
    return figures


_FIGURES = {"noise": large_figures, "digits": digits_figures, "objects": objects_figures}


def against(what: str, ways: Ways, title: str, limit: float) -> Figure:
    """Speedup of ours over the best use of another: the quotient of their rates."""
    theirs = best(ways, title)
    decimals = 2 if limit < 1 else 1
    note = theirs["reason"] or _overlap(ways, theirs) or ("" if title == MEMCPY.title else theirs["mode"])
    return Figure(what, theirs["ratio"], limit, "x", decimals, at_least=True, note=note)


def _overlap(ways: Ways, theirs: Mapping[str, Any]) -> str:
    """What is noted where rounds of ours and of another are as quick as each other."""
    ours = best(ways, OURS.title)["seconds"]
    first, last = (max(map(min, (ours, theirs["seconds"]))), min(map(max, (ours, theirs["seconds"]))))
    return "ranges overlap" if first <= last else ""


def best(ways: Ways, title: str) -> Mapping[str, Any]:
    """The quickest use of a loader; memcpy counts in one thread."""
    modes = [way for way in ways if way["title"] == title and (title, way["mode"]) != ("memcpy", "2 threads")]
    return max(modes, key=lambda way: way["rate"] or 0)
