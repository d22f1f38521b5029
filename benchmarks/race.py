"""Epochs of this project's loader and of others in turn, each in a process of its own (``python -m benchmarks.race``).

A loader is a module of `benchmarks.peers` or `benchmarks.photographs`, or a way of ``tsds bench``. Before anything is
timed, one epoch of each must be what is stored.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tensorstore_ds as tsds
from benchmarks.measure import ROOT, say, spent_on
from benchmarks.peers import WORKERS
from benchmarks.samples import STORE
from tensorstore_ds.annex.measuring.bench import RUNNER
from tensorstore_ds.annex.measuring.bench_results import Way
from tensorstore_ds.annex.measuring.delivery import Columns
from tensorstore_ds.annex.measuring.feeds import Feed
from tensorstore_ds.annex.measuring.lane import Answer, Lane, serve, take_turns
from tensorstore_ds.annex.measuring.runner import Runner

#: Loaders that are compared at a time, besides those that run in every heat: memory has room for all their data.
HEAT = 4
#: Seconds of epochs after which a slow loader leaves the rest of the rounds out.
BUDGET = 15.0
#: Short epochs are repeated for so many seconds, so that one timing is never a few milliseconds.
AT_LEAST = 0.2
#: Seconds for an answer; the first includes converting the data.
PATIENCE = 900.0
#: Mean difference of two loaders' values of the same photograph, at most: they resize and encode differently. Among 100
#: photographs of ImageNet, FFCV's differ by up to 13 from torchvision's, and different photographs by 29 and more.
NEAR = 20.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One loader, in one use."""

    title: str  #: In the tables.
    mode: str  #: What its module knows.
    batch_size: int
    module: str = ""  #: In this package, such as ``peers.ffcv``; empty for a way of ``tsds bench``.
    package: str = ""  #: The distribution whose version is named; empty if there is nothing to install.
    install: str = ""  #: How to get it.
    task: str = ""  #: Of photographs; see `benchmarks.photographs`.
    threads: int = WORKERS  #: Or worker processes.
    group: str = ""  #: Of a way of ``tsds bench``.

    @property
    def name(self) -> str:
        """Unique, and the name of a file."""
        words = f"{self.module or self.group} {self.mode} {self.batch_size} {self.threads}"
        return "-".join(words.replace(",", "").split())


@dataclass(frozen=True, slots=True)
class Data:
    """What is loaded."""

    title: str  #: Of the column in the tables.
    source: Path  #: The folder of arrays or files.
    verb: str  #: How a runner verifies an epoch: ``verify`` or ``verify_crops``.
    facts: Mapping[str, Any]  #: What it is told to verify with.
    store: Path | None = None  #: For ways of ``tsds bench``.
    raw: Path | None = None  #: Its files, if there are some.


def race(
    data: Data,
    fixed: Sequence[Entry],
    others: Sequence[Entry],
    scratch: Path,
    repeat: int,
    *,
    heat: int = HEAT,
    budget: float = BUDGET,
) -> list[dict[str, Any]]:
    """A result for each: `fixed` run in every heat, and all are compared to the first.

    What they convert the data to is in `scratch`, of one heat at a time.
    """
    answers: dict[str, list[Answer]] = defaultdict(list)
    reasons, versions = dict[str, str](), dict[str, str]()
    for start in range(0, max(1, len(others)), heat):
        folder = scratch / f"heat-{start}"
        folder.mkdir(parents=True)
        with ExitStack() as stack:
            lanes = []
            for entry in (*fixed, *others[start : start + heat]):
                say(f"  {data.title}: {entry.title}, {entry.mode}")
                lane = stack.enter_context(lane_of(entry, data, folder))
                reasons[entry.name] = reasons.get(entry.name) or _check(lane, entry, data)
                versions[entry.name] = lane.ready.get("version", "")
                lanes += [] if reasons[entry.name] else [lane]
            sizes = {entry.name: entry.batch_size for entry in (*fixed, *others)}
            own: dict[str, list[Answer]] = defaultdict(list)

            def ask(lane: Lane, sizes: Mapping[str, int] = sizes) -> Answer:
                return lane.ask("load", PATIENCE, batch_size=sizes[lane.name], seconds=AT_LEAST)

            take_turns(lanes, own, rounds=repeat, seconds=budget, ask=ask)
        for name, found in own.items():
            reasons[name] = reasons[name] or next((one["reason"] for one in found if one["state"] != "ok"), "")
            answers[name] += found
        shutil.rmtree(folder)
    found = ((entry, answers[entry.name], reasons[entry.name], versions[entry.name]) for entry in (*fixed, *others))
    return with_ratios([as_data(*each) for each in found])


def lane_of(entry: Entry, data: Data, folder: Path) -> Lane:
    """The process of an entry; what it converts the data to is in `folder`."""
    target, temporary = folder / entry.name, folder / "tmp"
    target.mkdir()
    temporary.mkdir(exist_ok=True)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    if (
        entry.package
    ):  # peers write, lock and delete files of fixed names in the system's temporary folder: they get one
        environment["TMPDIR"] = str(temporary)
    if entry.module:
        assignment = {"entry": asdict(entry), "source": str(data.source), "target": str(target)}
        return Lane(entry.name, "benchmarks.race", assignment, folder, environment)
    name = "tensors-whole" if entry.mode == "whole batches" else entry.group
    way = asdict(Way(name, entry.title, entry.group, entry.threads))
    folders = {"store": str(data.store), "raw": data.raw and str(data.raw), "scratch": str(target)}
    fixed = {"split": "train", "whole": True, "device": "cpu", "memory": None, "seed": 0}
    return Lane(entry.name, RUNNER, {"way": way, **folders, **fixed}, folder, environment)


def _check(lane: Lane, entry: Entry, data: Data) -> str:
    """Why it is not measured, or nothing."""
    lane.begin(PATIENCE)
    answer = lane.ask(data.verb, PATIENCE, batch_size=entry.batch_size, **data.facts)
    if answer["state"] != "ok":
        return str(answer["reason"])
    right = answer.get("whole", True) and answer.get("same", True)
    return "" if right else "what it delivered is not what is stored"


def as_data(entry: Entry, answers: Sequence[Answer], reason: str = "", version: str = "") -> dict[str, Any]:
    """Seconds per sample of each round, by the clock and of CPU time; and the rates that follow from their medians."""
    missing = reason.startswith(("ModuleNotFoundError", "ImportError", "PackageNotFoundError"))
    own = [] if reason else answers
    nbytes = [answer["nbytes"] / answer["of"] for answer in own if "nbytes" in answer]
    return {
        **{name: getattr(entry, name) for name in ("title", "mode", "batch_size", "threads")},
        "version": version,
        **rates_of(*([one[kind] / one["samples"] for one in own] for kind in ("seconds", "cpu"))),
        "nbytes": round(nbytes[0]) if nbytes else None,
        "reason": f"not installed: {entry.install}" if missing and entry.install else reason,
    }


def rates_of(seconds: Sequence[float], cpu_seconds: Sequence[float]) -> dict[str, Any]:
    """Both kinds of seconds per sample, of each round, and the rates that follow from their medians.

    >>> rates_of([0.001, 0.003, 0.002], [])["rate"]
    500.0
    """
    kinds = {"": seconds, "cpu_": cpu_seconds}
    rates = {f"{kind}rate": round(1 / statistics.median(own), 1) if own else None for kind, own in kinds.items()}
    return {**rates, **{f"{kind}seconds": [round(one, 12) for one in own] for kind, own in kinds.items()}}


def with_ratios(ways: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with `ratio`: the rate of the first way divided by the rate of each.

    >>> [way["ratio"] for way in with_ratios([{"rate": 6.0}, {"rate": 4.0}, {"rate": None}])]
    [1.0, 1.5, None]
    """
    ours = ways[0]["rate"]
    return [{**way, "ratio": round(ours / way["rate"], 4) if ours and way["rate"] else None} for way in ways]


# --- in the process of an entry -----------------------------------------------------------------------------------


class ModuleFeed(Feed):
    """A module of this package as a feed: it has one loader, which some can make only once in a process."""

    def __init__(self, entry: Entry, source: Path, target: Path) -> None:
        self.entry, self.source, self.target = entry, source, target
        self.module: Any = importlib.import_module(f"benchmarks.{entry.module}")
        self._loaders: dict[int, Iterable[Any]] = {}

    def write(self, target: Path) -> None:
        """Convert the source to the loader's own format."""
        self.module.write(*filter(None, [self.entry.task]), self.source, target, self.entry.mode)

    def _dataset(self) -> Any:
        if hasattr(self.module, "write"):
            self.write(self.target)
        files = range(len(list(self.source.rglob("*.jpg"))))
        return files if self.entry.task else tsds.open(self.source / STORE)["train"]

    def loader(self, batch_size: int) -> Iterable[Any]:
        """Whole epochs."""
        if batch_size not in self._loaders:
            given = (self.source, self.target, batch_size, self.entry.mode)
            task = self.entry.task
            self._loaders[batch_size] = self.module.load(*((task, *given, self.entry.threads) if task else given))
        return self._loaders[batch_size]

    @property
    def nbytes(self) -> int:
        """Of the files that are loaded."""
        folder = self.target if hasattr(self.module, "write") else self.source
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def count(self, item: Any) -> int:
        """Samples of a batch."""
        return len(self._columns(item)["image"])

    def _columns(self, item: Any) -> dict[str, Any]:
        if hasattr(self.module, "columns"):
            return dict(self.module.columns(item))
        values = item if isinstance(item, list | tuple) else (item["image"], item["label"])
        return dict(zip(("image", "label"), values, strict=True))

    def columns(self, item: Any, *, pixels: bool = True, boxes: bool = True) -> Columns:
        """NumPy's arrays; images (B, H, W, C), or of differing sizes as a list; crops (B, C, H, W)."""
        columns = self._columns(item)
        images = columns.pop("image")
        if isinstance(images, list):
            images = [np.asarray(image).transpose(1, 2, 0) for image in images]
        elif not self.entry.task:
            height, width, channels = self.dataset.fields["image"].spec.shape
            images = np.asarray(images)
            images = np.moveaxis(images, 1, -1) if images.shape[1:] == (channels, height, width) else images
            if images.shape[1:] != (height, width, channels):
                raise ValueError(f"expected images of {(height, width, channels)}, found {images.shape[1:]}")
        return {"image": images, **{name: np.asarray(value) for name, value in columns.items()}}


class ModuleRunner(Runner):
    """Measurements of a `ModuleFeed`: whole epochs."""

    feed: ModuleFeed

    def load(self, batch_size: int, seconds: float) -> Answer:
        """Epochs of loading alone, and the bytes that an epoch of so many samples reads."""
        return {**super().load(batch_size, seconds), "nbytes": self.feed.nbytes, "of": self.feed.samples}

    def verify_crops(self, batch_size: int, side: int, labels: str, images: str) -> Answer:
        """Check the shape and dtype of batches, all labels, and the pixels of the first images.

        `labels` is a file of all labels in order, `images` one of the first images (n, 3, side, side), or nothing.
        """
        self.feed.open()
        seen, delivered = [], []
        for item in self.feed.loader(batch_size):
            batch = self.feed.columns(item)
            found = tuple(batch["image"].shape), batch["image"].dtype
            if found != ((len(batch["label"]), 3, side, side), torch.uint8):
                raise ValueError(f"expected uint8 images (B, 3, {side}, {side}), found {found[1]} {found[0]}")
            seen.append(batch["label"].copy())
            delivered += [np.asarray(batch["image"]).copy()] if images and not delivered else []
        expected = np.load(labels)
        if not np.array_equal(np.bincount(np.concatenate(seen)), np.bincount(expected)):
            raise ValueError("it did not deliver every label as often as there is one")
        if not images:
            return {}
        wanted = np.load(images)
        differences = np.abs(delivered[0][: len(wanted)].astype(np.float32) - wanted).mean(axis=(1, 2, 3))
        if not (np.array_equal(np.concatenate(seen), expected) and differences.max() < NEAR):
            raise ValueError(f"its images differ by {differences.max():.1f} from the files'")
        return {"difference": round(float(differences.mean()), 2)}

    def convert(self, target: str) -> Answer:
        """Seconds of a conversion to a new folder; one before has imported all modules."""
        Path(target).mkdir()
        return {"spent": list(spent_on(lambda: self.feed.write(Path(target))))}


def start(assignment: Mapping[str, Any]) -> tuple[Runner, Answer]:
    """Import the loader; its data are converted when it is first asked."""
    entry = Entry(**assignment["entry"])
    version = importlib.metadata.version(entry.package) if entry.package else ""
    torch.manual_seed(0)
    feed = ModuleFeed(entry, Path(assignment["source"]), Path(assignment["target"]))
    return ModuleRunner(feed, 0, torch.device("cpu"), whole=True), {"version": version}


if __name__ == "__main__":
    serve(sys.argv[1], start)
