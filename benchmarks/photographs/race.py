"""Epochs of photographs: training crops, validation crops, and whole images with boxes, each loader in turn."""

from __future__ import annotations

import os
import shutil
import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measure import ROOT, Figure, Settings, as_result, say
from benchmarks.peers import OURS, WORKERS
from benchmarks.photographs import BATCH, FFCV_FULL, FFCV_JPEG, MAX_SIDE, OBJECTS_BATCH, PEERS, STORES, TORCHVISION, Way
from benchmarks.photographs.drawing import write_class_folders, write_voc
from benchmarks.photographs.files import columns, dataset_of
from tensorstore_ds.annex.comparison.delivery import marks_of
from tensorstore_ds.annex.comparison.lane import Answer, Lane, take_turns

#: Photographs that are drawn, or used of those that are there; and how often each of them is in an epoch.
DRAWN, TIMES = 2560, 2
ANNOTATED = 1600
_COMPARED = 64  # images of a validation epoch
_PATIENCE = 900.0
_AT_LEAST = 0.2  # seconds: see loading.py


def measure(settings: Settings) -> dict[str, Any]:
    """Training and validation of images with labels, detection of images with boxes."""
    files, name = folder_of_photographs(settings)
    described = describe(sorted(files.rglob("*.jpg")))
    kept, others = [STORES["jpeg"], STORES["source"]], [FFCV_JPEG, FFCV_FULL, TORCHVISION, *PEERS]
    in_one_thread = [way.with_threads(1) for way in kept]
    crops = {"train": [*STORES.values(), *in_one_thread, *others], "validate": [*kept, *others]}
    races = [_raced(task, name, files, ways, settings) for task, ways in crops.items()]
    shutil.rmtree(files)
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


def lane_of(way: Way, task: str, source: Path, scratch: Path) -> Lane:
    """The process of a way, begun; what it converts the files to is in `scratch`."""
    target = scratch / way.name
    target.mkdir()
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    assignment = {"way": asdict(way), "task": task, "source": str(source), "target": str(target)}
    return Lane(way.name, "benchmarks.photographs.runner", assignment, scratch, {"PYTHONPATH": paths})


def race(task: str, source: Path, ways: Sequence[Way], scratch: Path, repeat: int) -> list[dict[str, Any]]:
    """Rate, and the seconds of every round, of each way; or why there are none."""
    batch = OBJECTS_BATCH if task == "detect" else BATCH
    scratch.mkdir()
    facts = expected_of(task, source, scratch, batch)
    answers: dict[str, list[Answer]] = defaultdict(list)
    results = []
    with ExitStack() as stack:
        lanes = []
        for way in ways:
            say(f"  {task}: {way.title} {way.mode}")
            lane = stack.enter_context(lane_of(way, task, source, scratch))
            lane.begin(_PATIENCE)
            checked = lane.ask("verify" if task == "detect" else "verify_crops", _PATIENCE, batch_size=batch, **facts)
            if checked["state"] == "ok" and not (checked.get("same", True) and checked.get("whole", True)):
                lane.reason = "what it delivered is not what is in the files"
            lane.reason = lane.reason or checked.get("reason", "")
            lanes.append(lane)
        able = [lane for lane in lanes if not lane.reason]

        def ask(lane: Lane) -> Answer:
            return lane.ask("load", _PATIENCE, batch_size=batch, seconds=_AT_LEAST)

        take_turns(able, answers, rounds=repeat, seconds=_PATIENCE, ask=ask)
        for way, lane in zip(ways, lanes, strict=True):
            own = [answer for answer in answers[way.name] if answer["state"] == "ok"]
            results.append(as_data(way, lane, own))
    shutil.rmtree(scratch)
    return results


def as_data(way: Way, lane: Lane, answers: Sequence[Answer]) -> dict[str, Any]:
    """Seconds by the clock and of CPU time, per sample, of each round; and the rates that follow from their medians."""
    missing = lane.reason.startswith(("ModuleNotFoundError", "ImportError", "PackageNotFoundError"))
    own = [] if lane.reason else answers
    seconds, cpu = ([float(np.mean(one[kind])) / one["samples"] for one in own] for kind in ("epochs", "cpu"))
    return {
        **{name: getattr(way, name) for name in ("title", "mode", "threads")},
        "version": lane.ready.get("version", ""),
        **rates_of(seconds, cpu),
        "nbytes": round(own[0]["nbytes"] / own[0]["samples"]) if own else None,
        "reason": f"not installed: {way.install}" if missing and way.install else lane.reason,
    }


def rates_of(seconds: Sequence[float], cpu_seconds: Sequence[float]) -> dict[str, Any]:
    """Both kinds of seconds per sample, of each round, and the rates that follow from their medians.

    >>> rates_of([0.001, 0.003, 0.002], [])["rate"]
    500.0
    """
    found: dict[str, Any] = {}
    for rate, own in (("rate", seconds), ("cpu_rate", cpu_seconds)):
        found[rate] = round(1 / statistics.median(own), 1) if own else None
    return {
        **found,
        "seconds": [round(one, 7) for one in seconds],
        "cpu_seconds": [round(one, 7) for one in cpu_seconds],
    }


def expected_of(task: str, source: Path, scratch: Path, batch: int) -> dict[str, Any]:
    """What is delivered if all is right, for the runner to compare with: files that torchvision has read."""
    dataset: Any = dataset_of(task, source)
    file = scratch / "expected.npy"
    if task == "detect":
        samples = ([dataset[i]] for i in range(len(dataset)))
        batches = (columns(tuple(map(list, zip(*one, strict=True)))) for one in samples)
        np.save(file, np.concatenate([marks_of(_as_stored(one), pixels=True) for one in batches]))
        return {"seconds": _PATIENCE, "marks": str(file), "pixels": True, "boxes": True}
    np.save(file, np.array(dataset.targets, np.int64))
    images = scratch / "images.npy"
    if task == "validate":
        np.save(images, np.stack([np.asarray(dataset[i][0]) for i in range(min(_COMPARED, batch, len(dataset)))]))
    return {"labels": str(file), "images": str(images) if task == "validate" else ""}


def _as_stored(batch: dict[str, Any]) -> dict[str, Any]:
    images = [np.asarray(image).transpose(1, 2, 0) for image in batch["image"]]
    return {"image": images, **{name: np.asarray(batch[name]) for name in ("offsets", "labels", "boxes")}}


def _raced(task: str, name: str, source: Path, ways: Sequence[Way], settings: Settings) -> dict[str, Any]:
    found = race(task, source, ways, settings.scratch / "race", settings.repeat)
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
        alone = STORES[encoding].with_threads(1)
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
