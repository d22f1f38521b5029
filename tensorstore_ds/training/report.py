"""What a run came to: `report.json`, and pictures of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tensorstore_ds.training import checkpoint
from tensorstore_ds.training.epoch_record import EpochRecord, best_record
from tensorstore_ds.training.history import write_report
from tensorstore_ds.training.options import TrainOptions
from tensorstore_ds.training.plots import draw_confusion, draw_curves, draw_point_errors, plots_available
from tensorstore_ds.training.run_folder import RunFolder
from tensorstore_ds.training.task_base import Task
from tensorstore_ds.version import __version__


@dataclass(frozen=True)
class TrainReport:
    """What a run came to.

    Attributes:
        folder: of the run.
        task: its name.
        metric: by which the best epoch was chosen.
        best_epoch: counted from 1; None where nothing was evaluated.
        best: metrics of that epoch's evaluation.
        last: metrics of the last epoch: of its evaluation, or of training where there was none.
        epochs: trained.
        seconds: of training, without evaluations.
        samples_per_second: of training.
        wait_share: of the time, in [0, 1], in which steps waited for data.
        facts: of the model, the machine and the data.
        classes: of a classification, by class: its name, samples and share of right answers, in the best epoch.
        points: of landmarks, by point: its name and mean error, likewise.
        pictures: that were drawn, by file name.
    """

    folder: Path
    task: str
    metric: str
    best_epoch: int | None
    best: Mapping[str, float]
    last: Mapping[str, float]
    epochs: int
    seconds: float
    samples_per_second: float
    wait_share: float
    facts: Mapping[str, Any]
    classes: Sequence[Mapping[str, Any]]
    points: Sequence[Mapping[str, Any]]
    pictures: Sequence[str]


def finish(
    folder: RunFolder, records: Sequence[EpochRecord], task: Task, options: TrainOptions, facts: Mapping[str, Any]
) -> TrainReport:
    """Draw and write what a run came to."""
    _, best_state = checkpoint.load(folder.best)
    sums: Mapping[str, Tensor] = best_state["sums"]
    best = best_record(records, task.metric, higher_is_better=task.higher_is_better)
    seconds = sum(record.seconds for record in records)
    report = TrainReport(
        folder=folder.path,
        task=task.name,
        metric=task.metric,
        best_epoch=None if best is None else best.epoch,
        best={} if best is None or best.eval is None else dict(best.eval),
        last=dict(records[-1].eval or records[-1].train),
        epochs=len(records),
        seconds=seconds,
        samples_per_second=sum(r.samples_per_second * r.seconds for r in records) / seconds if seconds else 0.0,
        wait_share=sum(r.wait_share * r.seconds for r in records) / seconds if seconds else 0.0,
        facts=facts,
        classes=_classes(task, sums),
        points=_points(task, sums),
        pictures=[path.name for path in draw(folder.path, records, task, sums)],
    )
    data = {name: getattr(report, name) for name in report.__dataclass_fields__}
    write_report(folder.path, {"tensorstore_ds": __version__, **data, "options": options.as_data()})
    return report


def draw(
    folder: Path, records: Sequence[EpochRecord], task: Task, sums: Mapping[str, Tensor] | None = None
) -> list[Path]:
    """Draw the curves of a run, and of an evaluation's `sums` what there is to see; nothing without matplotlib.

    Returns:
        The files.
    """
    if not plots_available() or not records:
        return []
    drawn = [folder / "curves.png"]
    draw_curves(records, drawn[0], metric=task.metric, higher_is_better=task.higher_is_better)
    sums = sums or {}
    if "confusion" in sums:
        drawn.append(folder / "confusion.png")
        draw_confusion(sums["confusion"].numpy(), task.classes, drawn[-1])
    if "distances" in sums:
        drawn.append(folder / "points.png")
        errors = (sums["distances"] / sums["present"]).numpy()
        draw_point_errors(errors, task.points, drawn[-1])
    return drawn


def _classes(task: Task, sums: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    if "confusion" not in sums:
        return []
    right, samples = sums["confusion"].diag().tolist(), sums["confusion"].sum(1).tolist()
    return [
        {"class": name, "samples": n, "accuracy": r / n if n else None}
        for name, r, n in zip(task.classes, right, samples, strict=True)
    ]


def _points(task: Task, sums: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    if "distances" not in sums:
        return []
    distances, present = sums["distances"].tolist(), sums["present"].tolist()
    return [
        {"point": name, "samples": n, "error": d / n if n else None}
        for name, d, n in zip(task.points, distances, present, strict=True)
    ]
