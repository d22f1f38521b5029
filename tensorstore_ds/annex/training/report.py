"""What the first rank of a run tells and writes: notes, progress, epochs, pictures and the report of all."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tensorstore_ds.annex.training import checkpoint
from tensorstore_ds.annex.training.data import (
    crowded_samples,
    ignored_objects,
    reason_for,
    unlabelled_samples,
    unseen_classes,
)
from tensorstore_ds.annex.training.history import (
    EpochRecord,
    History,
    Listeners,
    TrainProgress,
    best_record,
    encoded,
    parse_record,
    plain,
)
from tensorstore_ds.annex.training.options import DetectorOptions, ModelOptions
from tensorstore_ds.annex.training.plots import draw_confusion, draw_curves
from tensorstore_ds.annex.training.process import Tally
from tensorstore_ds.annex.training.run import Run
from tensorstore_ds.annex.training.tasks import Detection, MultiLabel, Task
from tensorstore_ds.durable import write_file
from tensorstore_ds.errors import TrainingError
from tensorstore_ds.loading.decoding import Plan, steps_of
from tensorstore_ds.reading.store import Split
from tensorstore_ds.version import __version__

#: Seconds between checks of the loss, each of which waits for the device.
LOOK = 0.5
#: Seconds between plots of the curves.
DRAW = 30.0
#: Seconds of training from which on its cause of waiting is worth a line.
LONG = 10.0
#: What a run reports at its end, by the cause of its loader's statistics.
_SLOWED = {
    "loading": "waited for batches that were not finished. tsds doctor {} finds what to change",
    "handover": "waited for the handing over of finished batches. tsds doctor {} measures what disturbs it",
    "script": "left the GPU idle, though batches were ready. If `nvidia-smi` shows a utilization far below 100%, try a "
    "larger `batch_size`, `compile=True` or `cuda_graphs=True`",
}


@dataclass(frozen=True)
class TrainReport:
    """Result of `train`."""

    folder: Path  #: Folder of the run.
    task: str  #: Name of the task.
    metric: str  #: Metric that selects the best epoch.
    best_epoch: int | None  #: Number of the best epoch, from 1; None if nothing was evaluated.
    best: Mapping[str, float]  #: Metrics of the evaluation after the best epoch.
    last: Mapping[str, float]  #: Metrics of the evaluation after the last epoch, or of its training if there was none.
    epochs: int  #: Number of epochs that were trained.
    seconds: float  #: Duration of the training, without evaluations.
    samples_per_second: float  #: Samples per second of training.
    wait_share: float  #: Share of the time, in [0, 1], in which steps waited for data.
    facts: Mapping[str, Any]  #: Facts about the model, the machine and the data.
    #: Results by class, in the best epoch. For classification, its name, number of samples and accuracy; for detection,
    #: its name, number of objects, average precision and average precision at IoU 0.5; for several labels, its name,
    #: number of samples, average precision and F1.
    classes: Sequence[Mapping[str, Any]]
    #: Name, number of samples and mean error of each keypoint, in the best epoch.
    keypoints: Sequence[Mapping[str, Any]]
    pictures: Sequence[str]  #: File names of the pictures that were drawn.


class Reports:
    """Reports to listeners and writes records; silent on all ranks but the first."""

    def __init__(self, run: Run, listeners: Listeners) -> None:
        self.run, self.listeners = run, listeners
        self._history: History | None = None
        if run.ranks.first:
            for line in _notes(run):
                listeners.note(line)
            self._history = History(run.out, keep_epochs=run.position.epoch)
            self._again = self._evaluated_before()
            run.check_space()
        self._looked = self._drawn = time.monotonic()

    def _evaluated_before(self) -> EpochRecord | None:
        """The record in best.pt, if its epoch is evaluated again, which another machine computes with other bits."""
        run = self.run
        if not run.resumed or run.position.batch < run.batches or not run.best.exists():
            return None
        _, content = checkpoint.load(run.best)
        try:
            record = parse_record(json.loads(content["record"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise checkpoint.unusable(run.best, error, "Remove it.") from error
        return record if record.epoch == run.position.epoch + 1 else None

    def note(self, line: str) -> None:
        """Report a line unless it is empty."""
        if line and self.run.ranks.first:
            self.listeners.note(line)

    def progress(self) -> None:
        """Check the loss twice a second, report the position, and stop the run if the loss is not finite."""
        run, position = self.run, self.run.position
        if time.monotonic() - self._looked < LOOK and position.batch < run.batches:
            return
        self._looked = time.monotonic()
        if not math.isfinite(loss := float(position.tally.sums["loss"].sum())):
            raise TrainingError(
                f"epoch {position.epoch + 1}: expected a loss that is a number, found {loss} after "
                f"{position.batch:,} batches. Try `learning_rate={run.options.learning_rate / 10:g}` or less, `clip=1` "
                'or `precision="fp32"`; the checkpoint of the epoch before is kept.'
            )
        if not run.ranks.first:
            return
        size = run.options.batch_size * run.ranks.size
        rate = (position.start / size + position.batch) / position.seconds  # the time includes that of other ranks
        self.listeners.progress(
            TrainProgress(
                epoch=position.epoch + 1,
                epochs=run.options.epochs,
                batch=position.batch,
                batches=run.batches,
                metrics=position.tally.metrics(run.task),
                samples_per_second=rate * size,
                wait_share=position.wait_share,
                core_share=position.core_share(run.ranks.device),
                seconds_left=run.batches_left / rate,
                device_memory=run.ranks.device_memory(),
            )
        )

    def epoch(self, record: EpochRecord, evaluation: Tally | None) -> None:
        """Record an epoch, and save its model if it is the best so far, or if no epoch has a finite metric."""
        if self._history is None:
            return
        task, records = self.run.task, self._history.records
        before = _best(records, task)
        if self._again is not None and self._again.epoch == record.epoch:  # best.pt has this epoch already
            record = self._again
        self._history.add(record)
        if record is not self._again and (before is None or _best(records, task) is not before):
            self.run.save_best(record, evaluation)
        self.listeners.epoch(record)
        if time.monotonic() - self._drawn > DRAW:
            _draw(self.run.out, records, task, {})
            self._drawn = time.monotonic()

    def finish(self) -> TrainReport | None:
        """Draw and write the results of the run; None on all ranks but the first."""
        if self._history is None:
            return None
        run, task, records = self.run, self.run.task, self._history.records
        best = _best(records, task)
        sums: Mapping[str, Tensor] = checkpoint.load(run.best)[1]["sums"] if run.best.exists() else {}
        if not run.best.exists():  # moved away, and no later epoch was better
            self.note(f"{run.best.name} is gone: the report has no results by class or keypoint")
        seconds = sum(record.seconds for record in records)
        report = TrainReport(
            folder=run.out,
            task=task.name,
            metric=task.metric,
            best_epoch=None if best is None else best.epoch,
            best={} if best is None or best.eval is None else dict(best.eval),
            last=dict(records[-1].eval or records[-1].train),
            epochs=len(records),
            seconds=seconds,
            samples_per_second=sum(r.samples_per_second * r.seconds for r in records) / seconds if seconds else 0.0,
            wait_share=sum(r.wait_share * r.seconds for r in records) / seconds if seconds else 0.0,
            facts=_facts(run),
            classes=_by_class(task, sums),
            keypoints=_by_keypoint(task, sums),
            pictures=_draw(run.out, records, task, sums),
        )
        slowed = _SLOWED.get(run.loader.stats().cause, "")
        if slowed and seconds >= LONG:
            self.note(f"training {slowed.format(shlex.quote(str(run.store.place)))}")
        write_report(run.out, {"tensorstore_ds": __version__, **vars(report), "options": run.options.as_data()})
        return report


def _best(records: Sequence[EpochRecord], task: Task) -> EpochRecord | None:
    return best_record(records, task.metric, higher_is_better=task.higher_is_better)


def write_report(folder: Path, data: Mapping[str, Any]) -> Path:
    """Write `report.json`, indented, in the order of `data`; `plain` converts its values."""
    path = folder / "report.json"
    text = json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False)
    write_file(path, encoded(text + "\n"))
    return path


def _draw(folder: Path, records: Sequence[EpochRecord], task: Task, sums: Mapping[str, Tensor]) -> list[str]:
    """Draw the curves of a run and the plots of an evaluation's `sums`; returns the file names."""
    name = "curves.png"
    drawn = {name: draw_curves(records, folder / name, metric=task.metric, higher_is_better=task.higher_is_better)}
    if "confusion" in sums:
        name = "confusion.png"
        drawn[name] = draw_confusion(sums["confusion"].numpy(), task.classes, folder / name)
    return [name for name, done in drawn.items() if done]


def _notes(run: Run) -> Iterator[str]:
    evaluated = f"evaluated on {run.eval_samples:,} of {run.eval_split.name}" if run.eval_split else "no evaluation"
    learned, tested = (None, None) if run.fold is None else (run.fold.train, run.fold.val)
    yield f"task: {run.task.name}, {reason_for(run.split, run.task, run.options.task)}"
    yield (
        f"{run.samples:,} samples of {run.split.name}, {run.order}, rows from the "
        f"{run.loader.residency.replace('-', ' ')}; {evaluated}"
    )
    if run.fold is not None:
        options = run.options
        how = f", stratified by {options.stratify}" if options.stratify else ""
        how += f", grouped by {options.groups}" if options.groups else ""
        yield f"fold {options.fold} of {run.split.name} is evaluated, the others are trained on{how}"
    ranks = f", {run.ranks.size} ranks" if run.ranks.size > 1 else ""
    yield f"{_model_in_words(run)}; {run.learner.precision} on {run.ranks.device.type}{ranks}"
    if run.learner.note:
        yield run.learner.note
    if run.plan is not None:
        yield f"images of {_sizes(run.split)} are {_plan_in_words(run.plan, run.vit)}; choose a size with `image_size`"
    if isinstance(run.task, Detection):
        for split, rows, what in (
            (run.split, learned, "are not learned"),
            (run.eval_split, tested, "are ignored, as COCO ignores crowds"),
        ):
            if split is not None and (ignored := ignored_objects(run.task, split, rows)):
                yield f"{ignored:,} objects of {split.name} that are difficult or iscrowd {what}"
    if crowded := crowded_samples(run.task, run.split, learned):
        yield f"{crowded:,} samples have several objects: the keypoints of the one with the largest box are learned"
    parts = (
        (run.split, learned, run.samples, "teach no class"),
        (run.eval_split, tested, run.eval_samples, "do not count"),
    )
    for split, rows, samples, what in parts:
        if split is not None and (unlabelled := unlabelled_samples(run.task, split, rows)):
            yield f"{unlabelled:,} of {samples:,} samples of {split.name} have no label: they {what}"
    if run.eval_split is None:
        labelled = " with labels" if run.task.label_field else ""
        yield (
            f"there is no split{labelled} to evaluate on (val or test): convert with `split_into=train=0.9,val=0.1`, "
            f"or divide the store: tsds split {run.store.path.name} NEW.tsds train=0.9,val=0.1"
        )
    elif unseen := unseen_classes(run.task, run.split, run.eval_split, run.fold):
        names = ", ".join(unseen[:3]) + (f" and {len(unseen) - 3} more" if len(unseen) > 3 else "")
        where, advice = f"{run.eval_split.name} has", f"{run.split.name} has none of: {names}"
        way = "convert with another `split_into`"
        if run.fold is not None:
            where, advice, way = f"fold {run.options.fold} has", f"the others lack: {names}", "use `stratify`"
        yield f"{where} samples of classes that {advice}. They count as wrong; {way}"
    if run.nothing_to_resume:
        yield f"there is no run in {run.out} to resume: a new one begins"
    if run.resumed:
        position, batches = run.position, run.batches
        if (position.epoch + 1, position.batch) == (run.options.epochs, batches):
            yield "all epochs are trained: the last one is evaluated again"
        else:
            yield f"goes on in epoch {position.epoch + 1} after {position.batch:,} of {batches:,} batches"


def _model_in_words(run: Run) -> str:
    """Description of the model and its images."""
    vit, card = run.vit, run.card
    size = "x".join(map(str, vit.image_size))
    resized = "" if vit.image_size == card.image_size else f", resized from {'x'.join(map(str, card.image_size))}"
    if isinstance(vit, DetectorOptions):
        return f"{vit.model} of {_parameters(run) / 1e6:.2f} million weights, images of {size} with borders{resized}"
    return (
        f"ViT of {_parameters(run) / 1e6:.2f} million weights, {'x'.join(map(str, vit.grid))} patches of "
        f"{vit.patch_size} pixels, images of {size}{resized}"
    )


def _sizes(split: Split) -> str:
    sizes = split.image_shapes[:, :2]
    low, high = ("x".join(map(str, size.tolist())) for size in (sizes.min(axis=0), sizes.max(axis=0)))
    return low if low == high else f"{low} to {high}"


def _plan_in_words(plan: Plan, vit: ModelOptions) -> str:
    names = " and ".join(type(step).__name__ for step in steps_of(plan))
    evaluated = "" if names in ("Resize", "Letterbox") else "; those that are evaluated by Resize"
    return f"decoded to {'x'.join(map(str, vit.image_size))} by {names}{evaluated}"


def _facts(run: Run) -> dict[str, Any]:
    device = run.ranks.device
    return {
        "store": str(run.store.place),
        "parameters": _parameters(run),
        "precision": run.learner.precision,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "ranks": run.ranks.size,
        "torch_threads": run.threads,
        "residency": run.loader.residency,
        "train_samples": run.samples,
        "fold": run.options.fold,
        "eval_split": None if run.eval_split is None else run.eval_split.name,
        "eval_samples": run.eval_samples,
    }


def _parameters(run: Run) -> int:
    return sum(weights.numel() for weights in run.learner.module.parameters())


def _by_class(task: Task, sums: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Metrics of each class; the share of 0 samples is None."""
    if "confusion" in sums:
        return _shares("class", task.classes, "accuracy", sums["confusion"].diag(), sums["confusion"].sum(1))
    if isinstance(task, Detection) and "detections" in sums:
        found = task.precision(sums)
        rows = zip(task.classes, found.objects.tolist(), found.ap.tolist(), found.ap50.tolist(), strict=True)
        return [{"class": name, "objects": n, "ap": plain(ap), "ap50": plain(ap50)} for name, n, ap, ap50 in rows]
    if isinstance(task, MultiLabel) and "decisions" in sums:
        labels = zip(task.classes, sums["present"], task.average_precisions(sums), task.f1(sums), strict=True)
        return [{"class": name, "samples": int(n), "ap": plain(ap), "f1": float(f1)} for name, n, ap, f1 in labels]
    return []


def _by_keypoint(task: Task, sums: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    if "distances" not in sums:
        return []
    return _shares("keypoint", task.keypoints, "error", sums["distances"], sums["present"])


def _shares(what: str, names: Sequence[str], measure: str, parts: Tensor, samples: Tensor) -> list[dict[str, Any]]:
    rows = zip(names, parts.tolist(), samples.tolist(), strict=True)
    return [{what: name, "samples": n, measure: part / n if n else None} for name, part, n in rows]
