"""Training with an adapter against the library's own loader of the same samples as files: losses and seconds an epoch.

``python -m benchmarks.adapters ultralytics STORE SCRATCH`` exports the store, and trains a model of Ultralytics on both
in turn, with equal seeds.
"""

from __future__ import annotations

import argparse
import operator
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tensorstore_ds as tsds
from benchmarks.measure import alternate, ratio_of_medians, spread, table


class Run(NamedTuple):
    """One training."""

    losses: list[float]  #: The mean of each epoch, of all parts of the loss together.
    seconds: list[float]  #: For each epoch, without its validation.
    cpu: list[float]  #: CPU seconds of this process for each epoch, which other programs change little.
    setup: float  #: Seconds before the first epoch: the model, and the library's scan of the data set.


def ultralytics_run(trainer: type[Any], options: argparse.Namespace, data: Path) -> Run:
    """Train from scratch, on the CPU without workers, as Ultralytics does there."""
    settings = {"model": options.model, "imgsz": options.size, "batch": options.batch, "epochs": options.epochs}
    settings |= {"pretrained": False, "amp": False, "cache": "ram", "val": False, "plots": False, "verbose": False}
    begun = time.perf_counter()
    run = trainer(overrides={**settings, "data": str(data), "project": str(options.scratch / "runs"), "exist_ok": True})
    losses, clocks = list[float](), list[tuple[float, float]]()

    def tick(_: Any) -> None:
        clocks.append((time.perf_counter(), time.process_time()))

    def end(trainer: Any) -> None:
        tick(trainer)
        losses.append(float(sum(trainer.tloss.values())))

    def seed(_: Any) -> None:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)

    for event, callback in (("start", seed), ("epoch_start", tick), ("epoch_end", end)):
        run.add_callback(f"on_train_{event}", callback)
    run.train()
    spent = [np.subtract(after, before) for before, after in zip(clocks[::2], clocks[1::2], strict=True)]
    wall, cpu = np.transpose(spent).tolist()
    return Run(losses, wall, cpu, clocks[0][0] - begun)


def ultralytics_ways(options: argparse.Namespace) -> dict[str, Callable[[], Run]]:
    """The adapter, and Ultralytics with the exported files in its memory."""
    from ultralytics.models.yolo.detect import DetectionTrainer

    from tensorstore_ds.annex.adapters.ultralytics import StoreTrainer

    files = options.scratch / "yolo"
    if not files.exists():
        tsds.export(options.store, files, "yolo")
    return {
        "adapter": partial(ultralytics_run, StoreTrainer, options, options.store),
        "files": partial(ultralytics_run, DetectionTrainer, options, files / "data.yaml"),
    }


_WALL, _CPU = operator.attrgetter("seconds"), operator.attrgetter("cpu")


def report(names: Sequence[str], runs: Sequence[Sequence[Run]]) -> list[str]:
    """A table of both ways; the ratio is the quotient of the medians of the rounds."""
    rows = []
    for name, each in zip(names, runs, strict=True):
        losses = ", ".join(f"{loss:.4f}" for loss in each[0].losses)
        wall, cpu = ([second for run in each for second in seconds(run)] for seconds in (_WALL, _CPU))
        rows.append([name, losses, spread(wall), spread(cpu), spread([run.setup for run in each])])
    head = ["way", "loss of each epoch", "seconds an epoch", "CPU seconds an epoch", "seconds before the first"]
    ratios = []
    for what, seconds in (("seconds", _WALL), ("CPU seconds", _CPU)):
        medians = [[statistics.median(seconds(run)) for run in each] for each in runs]
        ratios.append(f"{names[0]} relative to {names[1]}, {what} an epoch: {ratio_of_medians(*medians):.2f}x")
    return [*table(head, rows, right=2), "", *ratios]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("ultralytics", help="a YOLO that detects")
    command.set_defaults(ways=ultralytics_ways)
    command.add_argument("--model", default="yolov8n.yaml")
    command.add_argument("--size", type=int, default=320, help="`imgsz` of Ultralytics")
    command.add_argument("store", type=Path)
    command.add_argument("scratch", type=Path, help="a folder for exported files and runs")
    command.add_argument("--epochs", type=int, default=2)
    command.add_argument("--batch", type=int, default=16)
    command.add_argument("--rounds", type=int, default=2, help="of both ways in turn, after one that is not counted")
    options = parser.parse_args()
    ways = options.ways(options)
    runs = alternate(list(ways.values()), options.rounds)
    print("\n".join(report(list(ways), runs)))


if __name__ == "__main__":
    main()
