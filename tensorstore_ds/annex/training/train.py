"""Train on a store: the loop over epochs, each with its steps, its checkpoint and its evaluation."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Unpack

import torch

from tensorstore_ds.annex.keywords import TrainKeywords
from tensorstore_ds.annex.training.augmentation import eval_plan, eval_transform, placed
from tensorstore_ds.annex.training.data import eval_loader
from tensorstore_ds.annex.training.detections import in_stored_pixels
from tensorstore_ds.annex.training.history import Listeners
from tensorstore_ds.annex.training.memory import is_out_of_memory, memory_advice
from tensorstore_ds.annex.training.options import DetectorOptions, TrainOptions
from tensorstore_ds.annex.training.process import (
    Stop,
    StopVote,
    Tally,
    random_state_kept,
    ranks,
    stop_signals,
    torch_settings,
)
from tensorstore_ds.annex.training.report import Reports, TrainReport
from tensorstore_ds.annex.training.run import Position, Run
from tensorstore_ds.annex.training.torch_threads import FIRST_BATCHES
from tensorstore_ds.errors import TrainingError
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.options import chosen, takes_options, user_path
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.seeding import torch_seeds


@random_state_kept()
@takes_options(TrainOptions)
def train(
    store: str | os.PathLike[str],
    options: TrainOptions | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    listeners: Listeners | None = None,
    **keywords: Unpack[TrainKeywords],
) -> TrainReport | None:
    """Train a vision transformer or a detector on a store.

    >>> report = tsds.train("photos.tsds", out="run", epochs=1, model="seed", device="cpu", torch_threads=1)
    >>> report.task, report.metric, report.epochs
    ('classification', 'accuracy', 1)
    >>> sorted(path.name for path in Path("run").glob("*.pt"))
    ['best.pt', 'last.pt']

    The folder `out` will contain `last.pt`, the state to resume from; `best.pt`, the model of the best epoch;
    `history.jsonl` and `report.json`; with matplotlib, `curves.png` and `confusion.png`.

    Under torchrun, each process is a rank. Samples are divided among the ranks, gradients are averaged, and the first
    rank writes the files.

    SIGTERM and Ctrl-C end the run with a checkpoint after the current step. The run seeds torch's global generators,
    and restores the state of all random generators at the end.

    Args:
        store: path of the store.
        options: all options as one object.
        out: path of the folder of the run, which is created if it does not exist.
        resume: continue the run in `out` at the next batch, or begin a new run if there is none.
        listeners: functions that are called during the run.
        keywords: options by name. Each overrides `options`.

    Returns:
        The results, which are also written to `report.json`. None on ranks other than the first.

    Raises:
        OptionError: options contradict each other, the store or the machine.
        FormatError: the store is damaged.
        TrainingError: the run cannot continue, because the loss is NaN or infinite, memory is full, or the checkpoint
            does not belong to this run.
        OutputError: a file cannot be written, for example because the disk is full.
        TrainingStopped: a signal ended the run.
    """
    given = chosen(options, TrainOptions, keywords)
    opened = open_store(store)
    resident = is_detector = False
    with ranks(given.device) as group, stop_signals() as stop:
        try:
            run = Run(opened, given, group, user_path(out), resume=resume)
            given, resident = run.options, run.loader.residency == "device"
            is_detector = isinstance(run.vit, DetectorOptions)
            with run.alone(), torch_settings(run.learner.precision, run.threads):
                run.begin()
                reports = Reports(run, listeners or Listeners())
                run_epochs(run, stop, reports)
                return reports.finish()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            advice = memory_advice(group.device, given, resident=resident, is_detector=is_detector)
            raise TrainingError(advice) from error


def run_epochs(run: Run, stop: Stop, reports: Reports) -> None:
    """Train to the end of the run. Every rank runs this loop; only the first one reports."""
    options, learner, loader = run.options, run.learner, run.loader
    seen, seconds = 0, 0.0  # batches of this process, and the time of the last one without waiting
    vote = StopVote(run.ranks)
    while run.position.epoch < options.epochs:
        position = run.position
        began = _begun(run)
        for batch in loader if position.batch < run.batches else ():  # it may go on after the last batch
            place = position.start + position.batch
            share, last = run.share_of_step(position.batch)
            if run.compares_threads and seen >= FIRST_BATCHES and position.batch % options.accumulate == 0:
                reports.note(run.compare_threads(partial(learner.rehearse, batch), seconds))
                began = _begun(run)  # excluded from the time
            torch.manual_seed(torch_seeds(options.seed, position.epoch, place, run.ranks.rank)[0])
            _, sums = learner.backward(batch, share=share, last=last)
            if last:
                learner.update()
            position.tally.add(len(batch["image"]), sums)
            position.batch += 1
            before = position.seconds - position.wait
            now = zip(_clocks(run), began, strict=True)
            position.seconds, position.computed, position.wait = (clock - zero for clock, zero in now)
            seen, seconds = seen + 1, position.seconds - position.wait - before
            if last and position.batch < run.batches and (signal := vote.after_step(stop.received)):
                run.save()
                raise run.stopped(signal)
            reports.progress()
        run.save()  # before the evaluation: a run that goes on evaluates again, and no write waits for another
        if signal := run.ranks.any(stop.received):
            raise run.stopped(signal)
        evaluation = evaluate(run, stop)
        reports.epoch(run.record(evaluation), evaluation)
        run.position = Position(position.epoch + 1)


def _clocks(run: Run) -> tuple[float, float, float]:
    """Seconds of wall time, of the training thread on a core, and of waiting for data."""
    return time.perf_counter(), time.thread_time(), run.loader.starved(run.loader.stats())


def _begun(run: Run) -> list[float]:
    """The clock values at which the position's times were 0."""
    spent = run.position.seconds, run.position.computed, run.position.wait
    return [clock - since for clock, since in zip(_clocks(run), spent, strict=True)]


def evaluate(run: Run, stop: Stop) -> Tally | None:
    """Every sample of the evaluation split once: its losses and metrics, summed over all ranks."""
    if run.eval_split is None:
        return None
    tally = Tally()
    dataset = StoreDataset(run.store, run.eval_split.name, fields=run.task.fields, decode=eval_plan(run.split, run.vit))
    if run.fold is not None:
        dataset = dataset.subset(run.fold.val)
    transform = placed(eval_transform(run.split, run.options, run.vit, dtype=run.dtype), run.eval_split)
    loader, weight = eval_loader(dataset, run.options, run.ranks, transform=transform)
    run.ranks.share(run.learner.best_weights.buffers())  # after a step, each rank has its own of batch norm
    with run.learner.evaluating() as model:
        for batch in loader:
            if stop.received:  # the checkpoint has all batches of this epoch
                raise run.stopped(stop.received)
            targets = run.task.targets(batch)
            outputs = run.task.run(model, batch["image"], targets)
            terms = run.task.terms(outputs, targets) if run.task.has_eval_loss else {}
            tally.add(len(outputs), terms | run.task.sums(outputs, targets, detailed=True), weight=weight)
    sums = tally.over_ranks(run.ranks).sums
    boxes = ("detections", "objects") if isinstance(run.vit, DetectorOptions) else ()
    for name in boxes:  # in the letterbox, whose borders are no part of an image
        sums[name] = torch.from_numpy(in_stored_pixels(sums[name].numpy(), run.eval_split, run.vit.image_size))
    return Tally(run.task.evaluated(sums))
