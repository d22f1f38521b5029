"""The process of one way: ``python -m benchmarks.photographs.runner ASSIGNMENT``, as its lane asks."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import cpu_seconds, spent_on
from benchmarks.photographs import SIDE, Way
from tensorstore_ds.annex.comparison.delivery import Columns
from tensorstore_ds.annex.comparison.feeds import Feed
from tensorstore_ds.annex.comparison.lane import Answer, serve
from tensorstore_ds.annex.comparison.runner import Runner

#: Mean difference of two loaders' values of the same photograph, at most: they resize and encode differently. Among 100
#: photographs of ImageNet, FFCV's differ by up to 13 from torchvision's, and different photographs by 29 and more.
NEAR = 20.0


class WayFeed(Feed):
    """A module of this package as a feed."""

    def __init__(self, task: str, way: Way, source: Path, target: Path) -> None:
        self.task, self.way, self.source, self.target = task, way, source, target
        self.module: Any = importlib.import_module(f"benchmarks.photographs.{way.module}")
        self._loaders: dict[int, Counted] = {}

    def _dataset(self) -> range:
        if hasattr(self.module, "write"):
            self.module.write(self.task, self.source, self.target, self.way.mode)
        return range(len(list(self.source.rglob("*.jpg"))))

    def loader(self, batch_size: int) -> Counted:
        if batch_size not in self._loaders:
            way = self.way
            made = self.module.load(self.task, self.source, self.target, batch_size, way.mode, way.threads)
            self._loaders[batch_size] = Counted(made)
        return self._loaders[batch_size]

    @property
    def nbytes(self) -> int:
        """Of the files that are loaded."""
        folder = self.target if hasattr(self.module, "write") else self.source
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def count(self, item: Any) -> int:
        return len(self.module.columns(item)["image"])

    def columns(self, item: Any, *, pixels: bool = True, boxes: bool = True) -> Columns:
        """NumPy's arrays; whole images as a list of (H, W, C)."""
        columns = dict(self.module.columns(item))
        images = columns.pop("image")
        if isinstance(images, list):
            images = [np.asarray(image).transpose(1, 2, 0) for image in images]
        return {"image": images, **{name: np.asarray(value) for name, value in columns.items()}}


class Counted:
    """A loader that counts CPU time: `epochs` has the seconds of each one."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader, self.epochs = loader, list[float]()

    def __iter__(self) -> Iterator[Any]:
        begun = cpu_seconds()
        yield from self.loader
        self.epochs.append(cpu_seconds() - begun)


class WayRunner(Runner):
    """Measurements of `WayFeed`."""

    feed: WayFeed

    def load(self, batch_size: int, seconds: float) -> Answer:
        """Epochs of loading alone, with the CPU seconds of each one as ``cpu``, and how many bytes are loaded."""
        answer = super().load(batch_size, seconds)
        cpu = self.feed.loader(batch_size).epochs[-len(answer["epochs"]) :]
        return {**answer, "cpu": cpu, "nbytes": self.feed.nbytes}

    def verify_crops(self, batch_size: int, labels: str, images: str) -> Answer:
        """Whether batches are what the task wants: their shape and dtype, all labels, and in `validate` the pixels.

        `labels` is a file of all labels in order, `images` one of the first images (n, 3, 224, 224), or nothing.
        """
        self.feed.open()
        seen, delivered = [], []
        for item in self.feed.loader(batch_size):
            batch = self.feed.columns(item)
            found = tuple(batch["image"].shape), batch["image"].dtype
            if found != ((len(batch["label"]), 3, SIDE, SIDE), torch.uint8):
                raise ValueError(f"expected uint8 images (B, 3, {SIDE}, {SIDE}), found {found[1]} {found[0]}")
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
        """Seconds of the conversion alone, to a new folder; modules are imported, a first one warmed what there is."""
        Path(target).mkdir()
        feed = self.feed
        spent = spent_on(lambda: feed.module.write(feed.task, feed.source, Path(target), feed.way.mode))
        return {"seconds": list(spent)}


def start(assignment: Mapping[str, Any]) -> tuple[Runner, Answer]:
    """Import the loader; its data are converted when it is first asked."""
    way = Way(**assignment["way"])
    version = importlib.metadata.version(way.package) if way.package else ""
    torch.manual_seed(0)
    feed = WayFeed(assignment["task"], way, Path(assignment["source"]), Path(assignment["target"]))
    return WayRunner(feed, 0, torch.device("cpu"), parts=False), {"version": version}


if __name__ == "__main__":
    serve(sys.argv[1], start)
