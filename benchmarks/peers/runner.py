"""The process in which a peer is measured: ``python -m benchmarks.peers.runner ASSIGNMENT``, as its lane asks."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tensorstore_ds as tsds
from benchmarks.peers import ALL
from benchmarks.samples import STORE
from tensorstore_ds.annex.comparison.delivery import Columns
from tensorstore_ds.annex.comparison.feeds import Feed
from tensorstore_ds.annex.comparison.lane import Answer, serve
from tensorstore_ds.annex.comparison.runner import Runner


class PeerFeed(Feed):
    """A module of this package as a feed: it has one loader, which some can make only once in a process."""

    def __init__(self, module: Any, mode: str, source: Path, target: Path) -> None:
        self.module, self.mode, self.source, self.target = module, mode, source, target
        self._loaders: dict[int, Iterable[Any]] = {}

    def _dataset(self) -> tsds.Split:
        """The split that is loaded; the peer's own copy of it is written."""
        if hasattr(self.module, "write"):
            self.module.write(self.source, self.target, self.mode)
        return tsds.open(self.source / STORE)["train"]

    def loader(self, batch_size: int) -> Iterable[Any]:
        if batch_size not in self._loaders:
            self._loaders[batch_size] = self.module.load(self.source, self.target, batch_size, self.mode)
        return self._loaders[batch_size]

    def count(self, item: Any) -> int:
        return len(item["image"] if self.module.__name__.endswith("store") else self._columns(item)["image"])

    def _columns(self, item: Any) -> dict[str, Any]:
        if hasattr(self.module, "columns"):
            return dict(self.module.columns(item))
        values = item if isinstance(item, list | tuple) else (item["image"], item["label"])
        return dict(zip(("image", "label"), values, strict=True))

    def columns(self, item: Any, *, pixels: bool, boxes: bool) -> Columns:
        """Axes in the order of the store's."""
        columns = {name: np.asarray(value) for name, value in self._columns(item).items()}
        height, width, channels = self.dataset.fields["image"].spec.shape
        if columns["image"].shape[1:] == (channels, height, width):
            columns["image"] = np.moveaxis(columns["image"], 1, -1)
        if columns["image"].shape[1:] != (height, width, channels):
            raise ValueError(f"expected images of {(height, width, channels)}, found {columns['image'].shape[1:]}")
        return columns


def start(assignment: Mapping[str, Any]) -> tuple[Runner, Answer]:
    """Import the peer, and let it convert its data."""
    peer = ALL[assignment["module"]]
    module = importlib.import_module(f"benchmarks.peers.{peer.module}")
    version = importlib.metadata.version(peer.package) if peer.package else ""
    feed = PeerFeed(module, assignment["mode"], Path(assignment["source"]), Path(assignment["target"]))
    feed.open()
    return Runner(feed, 0, torch.device("cpu"), parts=False), {"version": version}


if __name__ == "__main__":
    serve(sys.argv[1], start)
