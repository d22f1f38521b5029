"""Whole epochs of our loader and of others: large images, small ones, and images with boxes.

They take turns in heats: as many as memory has room for with all their data, beside those that run in every heat.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tensorstore_ds as tsds
from benchmarks.measure import ROOT, Figure, Settings, as_result, say
from benchmarks.peers import FFCV, MEMCPY, OURS, PEERS, WORKERS, Peer
from benchmarks.samples import STORE, make_digits, make_noise, make_objects, open_arrays
from tensorstore_ds.annex.comparison.bench import RUNNER
from tensorstore_ds.annex.comparison.delivery import marks_of, marks_of_split
from tensorstore_ds.annex.comparison.lane import Answer, Lane, take_turns
from tensorstore_ds.annex.comparison.results import Way, make_cell

ROWS, SHAPE, BATCH = 5000, (256, 256, 3), 256
DIGITS_BATCH, SMALL_BATCH = 1000, 100
OBJECTS_BATCH = 16

#: Loaders of a heat beside those that run in all heats.
HEAT = 4
#: Seconds of epochs after which a slow loader leaves the rest of the rounds out.
BUDGET = 15.0
#: Short epochs are repeated for as long, in seconds, so that one timing is never a few milliseconds.
_AT_LEAST = 0.2
#: Seconds for an answer; the first includes converting the data.
_PATIENCE = 900.0


@dataclass(frozen=True, slots=True)
class Entry:
    """Who takes part."""

    title: str  #: In the tables.
    mode: str  #: How it is used.
    batch_size: int
    peer: Peer | None = None  #: None for a way of ``tsds bench``.
    group: str = ""  #: Of that way.
    workers: int = 0  #: Of that way.

    @property
    def name(self) -> str:
        """Unique, and the name of a file."""
        words = f"{self.peer.module if self.peer else self.group} {self.mode} {self.batch_size}"
        return "-".join(words.replace(",", "").split())


def entries_of(peer: Peer, batch_size: int, modes: Sequence[str] = ()) -> list[Entry]:
    """A peer, used in all of its modes, or in some."""
    return [Entry(peer.title, mode, batch_size, peer) for mode in modes or peer.modes]


def tensors(batch_size: int) -> list[Entry]:
    """All in memory, in a TensorDataset: sample by sample, and a batch as one index operation."""
    title = "TensorDataset + DataLoader"
    modes = {"0 workers": 0, f"{WORKERS} workers": WORKERS, "whole batches": 0}
    return [Entry(title, mode, batch_size, None, "tensors", workers) for mode, workers in modes.items()]


@dataclass(slots=True)
class Data:
    """What is loaded."""

    title: str  #: Of the column in the tables.
    source: Path  #: The folder that `samples` has made.
    raw: Path | None = None  #: The files, if there are some.
    marks: Path = field(init=False)  #: Of what has to be delivered.
    samples: int = field(init=False)  #: Of an epoch.

    def __post_init__(self) -> None:
        self.marks = self.source / "marks.npy"
        if (self.source / "images.npy").exists():
            images, labels = open_arrays(self.source)
            marks = marks_of({"image": images, "label": labels}, pixels=True)
        else:
            split = tsds.open(self.source / STORE)["train"]
            marks = marks_of_split(split, {"image": "image", "objects": "objects"}, pixels=True, boxes=True)
        np.save(self.marks, marks)
        self.samples = len(marks)


@dataclass(slots=True)
class Result:
    """What came of an entry."""

    entry: Entry
    version: str = ""  #: Of the peer's package.
    reason: str = ""  #: Why there is no result.
    answers: list[Answer] = field(default_factory=list)  #: Of every round of every heat.

    @property
    def missing(self) -> bool:
        """Whether it is not installed."""
        return self.reason.startswith(("ModuleNotFoundError", "ImportError"))

    def as_data(self, samples: int) -> dict[str, Any]:
        """Rate in samples per second, and the seconds per sample of each round."""
        cell = make_cell(self.entry.name, "load", self.entry.batch_size, self.answers, samples)
        install = self.entry.peer.install if self.missing and self.entry.peer else ""
        return {
            **{name: getattr(self.entry, name) for name in ("title", "mode", "batch_size")},
            "version": self.version,
            "rate": None if self.reason or cell.rate is None else round(cell.rate, 1),
            "seconds": [] if self.reason else [round(np.mean(one["epochs"]) / samples, 12) for one in self.answers],
            "reason": f"not installed: {install}" if install else self.reason,
        }


# --- heats --------------------------------------------------------------------------------------------------------


def race(
    data: Data, fixed: Sequence[Entry], others: Sequence[Entry], scratch: Path, repeat: int
) -> list[dict[str, Any]]:
    """Let all take turns: `fixed` run in every heat, and all are compared to the first; `HEAT` others at a time.

    What they convert the data to lies in `scratch`, of one heat at a time; each heat has `repeat` rounds.
    """
    results = {entry.name: Result(entry) for entry in (*fixed, *others)}
    for start in range(0, max(1, len(others)), HEAT):
        folder = scratch / f"heat-{start}"
        folder.mkdir()
        _heat(data, [*fixed, *others[start : start + HEAT]], folder, repeat, results)
        shutil.rmtree(folder)
    return with_ratios([result.as_data(data.samples) for result in results.values()])


def with_ratios(ways: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with `ratio`: the rate of the first way divided by the rate of each.

    >>> [way["ratio"] for way in with_ratios([{"rate": 6.0}, {"rate": 4.0}, {"rate": None}])]
    [1.0, 1.5, None]
    """
    ours = ways[0]["rate"]
    return [{**way, "ratio": round(ours / way["rate"], 4) if ours and way["rate"] else None} for way in ways]


def _heat(data: Data, entries: Sequence[Entry], folder: Path, repeat: int, results: Mapping[str, Result]) -> None:
    answers: dict[str, list[Answer]] = defaultdict(list)
    with ExitStack() as stack:
        able = []
        for entry in entries:
            say(f"  {data.title}: {entry.title}, {entry.mode}")
            lane = stack.enter_context(_lane(entry, data, folder))
            results[entry.name].reason = results[entry.name].reason or _check(lane, entry, data)
            results[entry.name].version = lane.ready.get("version", "")
            able += [] if results[entry.name].reason else [lane]
        sizes = {entry.name: entry.batch_size for entry in entries}

        def ask(lane: Lane) -> Answer:
            return lane.ask("load", _PATIENCE, batch_size=sizes[lane.name], seconds=_AT_LEAST)

        take_turns(able, answers, rounds=repeat, seconds=BUDGET, ask=ask)
    for name, own in answers.items():
        failed = next((answer["reason"] for answer in own if answer["state"] != "ok"), "")
        results[name].reason = results[name].reason or failed
        results[name].answers += own


def _lane(entry: Entry, data: Data, folder: Path) -> Lane:
    target, temporary = folder / entry.name, folder / "tmp"
    target.mkdir()
    temporary.mkdir(exist_ok=True)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Peers write, lock and delete files of fixed names in the system's temporary folder: they get one.
    environment = {"PYTHONPATH": paths, "TMPDIR": str(temporary), "HF_HUB_OFFLINE": "1"}
    if entry.peer is not None:
        folders = {"source": str(data.source), "target": str(target)}
        assignment = {"module": entry.peer.module, "mode": entry.mode, **folders}
        return Lane(entry.name, "benchmarks.peers.runner", assignment, folder, environment)
    name = "tensors-whole" if entry.mode == "whole batches" else entry.group
    way = asdict(Way(name, entry.title, entry.group, entry.workers))
    folders = {"store": str(data.source / STORE), "raw": data.raw and str(data.raw), "scratch": str(target)}
    fixed = {"split": "train", "parts": False, "device": "cpu", "memory": None, "seed": 0}
    return Lane(entry.name, RUNNER, {"way": way, **folders, **fixed}, folder, environment)


def _check(lane: Lane, entry: Entry, data: Data) -> str:
    """One epoch, of which every sample has to be what is stored: why it is not measured, or nothing."""
    lane.begin(_PATIENCE)
    details = {"marks": str(data.marks), "pixels": True, "boxes": True}
    answer = lane.ask("verify", _PATIENCE, batch_size=entry.batch_size, seconds=_PATIENCE, **details)
    if answer["state"] != "ok":
        return str(answer["reason"])
    return "" if answer["whole"] and answer["same"] else "what it delivered is not what is stored"


# --- the three data sets ------------------------------------------------------------------------------------------


def race_large(settings: Settings, rows: int = ROWS, shape: tuple[int, int, int] = SHAPE) -> dict[str, Any]:
    """Images of 196 KB, where bytes count."""
    source = settings.scratch / "noise"
    make_noise(source, rows, shape)
    fixed = [*entries_of(OURS, BATCH), *entries_of(MEMCPY, BATCH)]
    others = [*tensors(BATCH), *(entry for peer in PEERS for entry in entries_of(peer, BATCH))]
    data = Data(f"{rows:,} images of {'x'.join(map(str, shape))}, batch {BATCH}", source)
    return _raced(data, fixed, others, settings)


def race_digits(settings: Settings) -> dict[str, Any]:
    """Images of 784 bytes, where what is done for each image counts."""
    source, raw = settings.scratch / "digits", settings.digits / "train"
    make_digits(source, raw)
    fixed = [entry for size in (DIGITS_BATCH, SMALL_BATCH) for entry in entries_of(OURS, size)]
    fixed += entries_of(MEMCPY, DIGITS_BATCH, ["1 thread"])
    peers = [entry for peer in PEERS for entry in entries_of(peer, DIGITS_BATCH)]
    of_any = [entry for entry in peers if not entry.mode.startswith("RGB")]  # FFCV's images are of three channels
    data = Data(f"{settings.digits_name}, batch {DIGITS_BATCH}", source, raw)
    others = [*tensors(DIGITS_BATCH), _files("ImageFolder", DIGITS_BATCH), *of_any]
    return _raced(data, fixed, others, settings)


def race_objects(settings: Settings, voc: Path) -> dict[str, Any]:
    """Images with boxes, from files that torchvision can read as well."""
    source = settings.scratch / "objects"
    make_objects(source, voc)
    data = Data(f"{voc.name}: images and boxes, batch {OBJECTS_BATCH}", source, voc.absolute())
    others = [*tensors(OBJECTS_BATCH), _files("VOCDetection", OBJECTS_BATCH)]
    return _raced(data, entries_of(OURS, OBJECTS_BATCH, ["list", "padded"]), others, settings)


def _files(reader: str, batch_size: int) -> Entry:
    return Entry(f"files ({reader})", f"{WORKERS} workers", batch_size, None, "files", WORKERS)


def _raced(data: Data, fixed: Sequence[Entry], others: Sequence[Entry], settings: Settings) -> dict[str, Any]:
    scratch = settings.scratch / "race"
    scratch.mkdir()
    ways = race(data, fixed, others, scratch, settings.repeat)
    shutil.rmtree(scratch)
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
        *(Figure(f"{what} memcpy in two threads", way["ratio"], 0.9, "x", at_least=True) for way in two),
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
    note = theirs["reason"] or theirs["mode"]
    return Figure(what, theirs["ratio"], limit, "x", decimals, at_least=True, note=note)


def best(ways: Ways, title: str) -> Mapping[str, Any]:
    """The quickest use of a loader; memcpy counts in one thread."""
    modes = [way for way in ways if way["title"] == title and (title, way["mode"]) != ("memcpy", "2 threads")]
    return max(modes, key=lambda way: way["rate"] or 0)
