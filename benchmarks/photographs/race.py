"""Epochs of photographs: training crops, validation crops, and whole images with boxes, each loader in turn."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measure import Figure, Settings, as_result, say
from benchmarks.peers import OURS, WORKERS
from benchmarks.photographs import (
    BATCH,
    FFCV_FULL,
    FFCV_JPEG,
    MAX_SIDE,
    OBJECTS_BATCH,
    PEERS,
    SIDE,
    STORES,
    TORCHVISION,
)
from benchmarks.photographs.drawing import write_class_folders, write_voc
from benchmarks.photographs.files import columns, dataset_of
from benchmarks.race import PATIENCE, Data, Entry, race
from tensorstore_ds.annex.measuring.delivery import marks_of

#: Photographs that are drawn, or used of those that are there; and how often each of them is in an epoch.
DRAWN, TIMES = 2560, 2
ANNOTATED = 1600
_COMPARED = 64  # images of a validation epoch


def measure(settings: Settings) -> dict[str, Any]:
    """Training and validation of images with labels, detection of images with boxes."""
    files, name = folder_of_photographs(settings)
    described = describe(sorted(files.rglob("*.jpg")))
    kept, others = [STORES["jpeg"], STORES["source"]], [FFCV_JPEG, FFCV_FULL, TORCHVISION, *PEERS]
    in_one_thread = [replace(way, threads=1) for way in kept]
    crops = {"train": [*STORES.values(), *in_one_thread, *others], "validate": [*kept, *others]}
    races = [_raced(task, name, files, ways, settings) for task, ways in crops.items()]
    voc = settings.scratch / "voc"
    write_voc(voc, ANNOTATED)
    races.append(_raced("detect", "synthetic photographs with boxes", voc, [STORES["source"], TORCHVISION], settings))
    return as_result(figures_of_races(races), photographs=described, races=races)


def folder_of_photographs(settings: Settings, times: int = TIMES) -> tuple[Path, str]:
    """A folder of class folders of JPEG files, each `times` times in it, and what they are."""
    folder = settings.scratch / "photographs"
    given, name = settings.photographs, "synthetic photographs"
    if given is None:
        say(f"  drawing {DRAWN:,} photographs ...")
        given = settings.scratch / "drawn"
        write_class_folders(given, DRAWN)
    else:
        name = f"photographs of {given.name}"
    paths = sorted(given.glob("*/*.[jJ][pP]*[gG]"))
    chosen = [paths[i] for i in np.linspace(0, len(paths) - 1, min(DRAWN, len(paths))).astype(int)]
    for path in chosen:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        for copy in range(times):
            shutil.copyfile(path, folder / path.parent.name / f"{path.stem}-{copy}.jpg")
    if settings.photographs is None:
        shutil.rmtree(given)
    return folder, f"{len(chosen) * times:,} {name}"


def describe(paths: Sequence[Path]) -> str:
    """Medians of width, height and size of the files, and how many are larger than what is kept of them."""
    sizes = []
    for path in paths:
        with Image.open(path) as image:
            sizes.append(image.size)
    width, height = np.median(sizes, axis=0)
    nbytes = np.median([path.stat().st_size for path in paths])
    large = np.mean(np.max(sizes, axis=1) > MAX_SIDE)
    medians = f"{width:.0f}x{height:.0f} pixels, {nbytes / 1e3:.0f} kB"
    return f"{medians}; {large:.0%} have a side of more than {MAX_SIDE} pixels"


# --- turns ----------------------------------------------------------------------------------------------------------


def data_of(task: str, source: Path, scratch: Path, batch: int, title: str = "") -> Data:
    """The files, and what is delivered if all is right: files that torchvision has read."""
    dataset: Any = dataset_of(task, source)
    file = scratch / "expected.npy"
    if task == "detect":
        samples = ([dataset[i]] for i in range(len(dataset)))
        batches = (columns(tuple(map(list, zip(*one, strict=True)))) for one in samples)
        np.save(file, np.concatenate([marks_of(_as_stored(one), pixels=True) for one in batches]))
        return Data(title, source, "verify", {"seconds": PATIENCE, "marks": str(file), "pixels": True, "boxes": True})
    np.save(file, np.array(dataset.targets, np.int64))
    images = scratch / "images.npy"
    if task == "validate":
        np.save(images, np.stack([np.asarray(dataset[i][0]) for i in range(min(_COMPARED, batch, len(dataset)))]))
    facts = {"side": SIDE, "labels": str(file), "images": str(images) if task == "validate" else ""}
    return Data(title, source, "verify_crops", facts)


def _as_stored(batch: dict[str, Any]) -> dict[str, Any]:
    images = [np.asarray(image).transpose(1, 2, 0) for image in batch["image"]]
    return {**batch, "image": images}


def race_of(task: str, source: Path, ways: Sequence[Entry], scratch: Path, repeat: int) -> list[dict[str, Any]]:
    """Each way at one task, all in turn."""
    batch = OBJECTS_BATCH if task == "detect" else BATCH
    scratch.mkdir()
    data = data_of(task, source, scratch, batch, task)
    entries = [replace(way, task=task, batch_size=batch) for way in ways]
    found = race(data, [], entries, scratch, repeat, heat=len(ways), budget=PATIENCE)
    shutil.rmtree(scratch)
    return found


def _raced(task: str, name: str, source: Path, ways: Sequence[Entry], settings: Settings) -> dict[str, Any]:
    found = race_of(task, source, ways, settings.scratch / "race", settings.repeat)
    return {"task": task, "title": f"{_TITLES[task]}: {name}", "ways": found}


_TITLES = {
    "train": "training, `RandomResizedCrop(224)`",
    "validate": "validation, resized to 256, center of 224",
    "detect": f"whole images and boxes, batch {OBJECTS_BATCH}",
}


# --- figures --------------------------------------------------------------------------------------------------------

#: Task, our encoding, the other, and how many times its rate is the target, by the clock and by CPU time.
TARGETS = (
    ("train", "jpeg", FFCV_JPEG, 3.0),
    ("train", "jpeg", TORCHVISION, 4.5),
    ("train", "source", FFCV_JPEG, 3.0),
    ("train", "source", FFCV_FULL, 3.0),
    ("train", "source", TORCHVISION, 4.5),
    ("validate", "jpeg", FFCV_JPEG, 2.3),
    ("validate", "source", FFCV_FULL, 2.3),
    ("detect", "source", TORCHVISION, 3.0),
)
#: How many times as fast as with one thread a store of these encodings has to be.
BY_THREADS = (("train", "jpeg", 1.7), ("train", "source", 1.7))
_MEASURES = {"rate": ("speed", "images/s"), "cpu_rate": ("images per CPU second", "images per CPU second")}
_NAMES = {"train": "training crops", "validate": "validation crops", "detect": "whole images and boxes"}


def figures_of_races(races: Sequence[dict[str, Any]]) -> list[Figure]:
    """The targets; each ratio is the quotient of the two rates in the table."""
    ways = {(one["task"], way["title"], way["mode"], way["threads"]): way for one in races for way in one["ways"]}
    pairs = [
        (rate, task, encoding, other, f"relative to {', '.join(filter(None, (other.title, other.mode)))}", limit)
        for task, encoding, other, limit in TARGETS
        for rate in _MEASURES
    ]
    for task, encoding, limit in BY_THREADS:
        alone = replace(STORES[encoding], threads=1)
        pairs.append(("rate", task, encoding, alone, f"{WORKERS} threads, relative to one", limit))
    figures = []
    for rate, task, encoding, other, relative, limit in pairs:
        ours = ways.get((task, OURS.title, encoding, WORKERS))
        theirs = ways.get((task, other.title, other.mode, other.threads))
        if ours is None or theirs is None:
            continue
        measure, unit = _MEASURES[rate]
        missing = ours["reason"] or theirs["reason"]
        value = None if missing else ours[rate] / theirs[rate]
        note = missing or f"{ours[rate]:,.0f} against {theirs[rate]:,.0f} {unit}"
        what = f"{measure}, photographs, {_NAMES[task]}, encoding `{encoding}`, {relative}"
        figures.append(Figure(what, value, limit, "x", decimals=1, at_least=True, note=note))
    return figures
