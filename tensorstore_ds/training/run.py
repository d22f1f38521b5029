"""One training run on one rank: epochs, evaluations, and what is kept of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tensorstore_ds.errors import OptionError, TrainingError, TrainingStopped
from tensorstore_ds.imaging.placement import FITS, Fit
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.seeding import torch_seeds
from tensorstore_ds.training.augmentation import eval_transform, normalize, train_transform
from tensorstore_ds.training.batch_fit import is_out_of_memory
from tensorstore_ds.training.card import ModelCard
from tensorstore_ds.training.checkpoint import unusable
from tensorstore_ds.training.data import (
    crowded_samples,
    eval_loader,
    eval_split_of,
    image_shape,
    split_of,
    train_loader,
    unseen_classes,
)
from tensorstore_ds.training.epoch_record import EpochRecord, best_record
from tensorstore_ds.training.history import History
from tensorstore_ds.training.learner import Learner
from tensorstore_ds.training.listeners import Listeners, TrainProgress
from tensorstore_ds.training.options import TrainOptions, ViTOptions
from tensorstore_ds.training.ranks import Ranks
from tensorstore_ds.training.report import TrainReport, draw, finish
from tensorstore_ds.training.run_folder import RunFolder
from tensorstore_ds.training.stopping import StopSignals
from tensorstore_ds.training.tally import Tally
from tensorstore_ds.training.task_base import Sums, Task
from tensorstore_ds.training.tasks import task_of

#: Seconds between two looks at the loss, each of which waits for the device.
LOOK = 0.5
#: Seconds between two drawings of the curves.
DRAW = 30.0


@dataclass
class Position:
    """Where a run is.

    Attributes:
        epoch: that is being trained, from 0.
        batch: batches of it that are done.
        seconds: spent on them.
        wait: of these, spent on waiting for data.
        tally: their sums.
    """

    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    wait: float = 0.0
    tally: Tally = field(default_factory=Tally)


class Run:
    """One run on this rank. Calling it trains to the end."""

    def __init__(
        self, store: Store, options: TrainOptions, here: Ranks, out: Path, stop: StopSignals, told: Listeners
    ) -> None:
        self.options, self.here, self.stop, self.told = options, here, stop, told
        self.store = store
        self.split = split_of(store, options.train_split, "--train-split")
        self.eval_split = eval_split_of(store, options)
        self.task = task_of(self.split, options.task, eval_split=self.eval_split)
        *size, channels = image_shape(store, self.split)
        self.vit = options.vit((size[0], size[1]), channels)
        if self.eval_split is not None and image_shape(store, self.eval_split)[2] != channels:
            raise OptionError(f"{self.eval_split.name}: expected images of {channels} channels, found others.")
        self.card = _card(store, self.split, self.vit, self.task)
        self.folder = RunFolder(out, self.card, options)
        transform = train_transform(self.split, options, self.vit)
        self.loader, self.order = train_loader(store, self.task, options, transform, here)
        steps = math.ceil(len(self.loader) / options.accumulate) * options.epochs
        self.learner = Learner(self.vit, self.task, options, device=here.device, steps=steps, distributed=here.size > 1)
        self.at = Position()

    def __call__(self, *, resume: bool) -> TrainReport | None:
        """Train to the end; the report, on the first rank."""
        state = self.folder.begin(resume=resume, ranks=self.here.size)
        self.here.wait()  # no rank writes before all have looked
        if state is not None:
            try:
                self._go_on(state)
            except Exception as error:  # whatever a state makes torch stumble over
                if is_out_of_memory(error):
                    raise
                raise unusable(self.folder.last, error) from error
        if not self.here.first:
            for _ in range(self.at.epoch, self.options.epochs):
                self._epoch()
            return None
        for line in self._notes(resumed=state is not None):
            self.told.note(line)
        with History(self.folder.path, keep_epochs=self.at.epoch) as history:
            self.folder.check_space(self.learner)
            drawn = time.monotonic()
            for _ in range(self.at.epoch, self.options.epochs):
                self._keep(history, *self._epoch())
                if time.monotonic() - drawn > DRAW:
                    draw(self.folder.path, history.records, self.task)
                    drawn = time.monotonic()
            return finish(self.folder, history.records, self.task, self.options, self._facts())

    # --- an epoch

    def _epoch(self) -> tuple[EpochRecord, Sums]:
        """The rest of an epoch, and its evaluation: what it came to, and the sums of the evaluation."""
        self._train()
        self._save()
        evaluated = self._evaluate()
        record = self._record(evaluated)
        self.at = Position(self.at.epoch + 1)
        return record, {} if evaluated is None else evaluated.sums

    def _train(self) -> None:
        """Train from the batch that the epoch is at."""
        at, batches = self.at, len(self.loader)
        if at.batch >= batches:
            return  # the checkpoint was written after its last batch
        began, looked = time.perf_counter(), time.monotonic()
        first, seconds, wait, before = at.batch, at.seconds, at.wait, self.loader.stats().wait
        for batch in self.loader:
            torch.manual_seed(_seed(self.options.seed, at.epoch, at.batch, self.here.rank))
            share, last = self._share(at.batch)
            loss, sums = self.learner.backward(batch, share=share, last=last)
            if last:
                self.learner.update()
            at.tally.add(loss, len(batch["image"]), sums)
            at.batch += 1
            at.seconds = seconds + time.perf_counter() - began
            at.wait = wait + self.loader.stats().wait - before
            if last and at.batch < batches:
                self._stop_if_asked()
            if time.monotonic() - looked > LOOK or at.batch == batches:
                looked = time.monotonic()
                self._look(at.batch - first, at.seconds - seconds)

    def _share(self, batch: int) -> tuple[float, bool]:
        """The share of its step's samples that is in a batch, and whether it is the step's last."""
        step = batch // self.options.accumulate
        members = range(step * self.options.accumulate, min((step + 1) * self.options.accumulate, len(self.loader)))
        sizes = {member: self._size(member) for member in members}
        return sizes[batch] / sum(sizes.values()), batch == members[-1]

    def _size(self, batch: int) -> int:
        """Samples of a batch of this rank; the last one may be short."""
        rows = math.ceil(len(self.split) / self.here.size)
        return min(self.options.batch_size, rows - batch * self.options.batch_size)

    def _look(self, batches: int, seconds: float) -> None:
        """Tell where the run is; end it if the loss is no number."""
        at = self.at
        metrics = at.tally.metrics(self.task)
        if not math.isfinite(metrics["loss"]):
            raise TrainingError(
                f"epoch {at.epoch + 1}: expected a loss that is a number, found {metrics['loss']} after "
                f"{at.batch:,} batches. Try a smaller --lr (such as {self.options.learning_rate / 10:g}), --clip 1, or "
                "--precision fp32; the checkpoint of the epoch before is kept."
            )
        rate = batches / seconds if seconds else 0.0
        left = (self.options.epochs - at.epoch) * len(self.loader) - at.batch
        self.told.progress(
            TrainProgress(
                epoch=at.epoch + 1,
                epochs=self.options.epochs,
                batch=at.batch,
                batches=len(self.loader),
                metrics=metrics,
                samples_per_second=rate * self.options.batch_size * self.here.size,
                wait_share=at.wait / at.seconds if at.seconds else 0.0,
                seconds_left=left / rate if rate else 0.0,
                device_memory=_device_memory(self.here.device),
            )
        )

    def _evaluate(self) -> Tally | None:
        """Every sample of the evaluation split once, over all ranks."""
        if self.eval_split is None:
            return None
        transform = eval_transform(self.split, self.options, self.vit)
        tally = Tally()
        dataset = StoreDataset(self.store.path, self.eval_split.name, fields=self.task.fields)
        loader, weight = eval_loader(dataset, self.options, self.here)
        with self.learner.evaluating() as model:
            for batch in loader:
                if self.stop.received:  # the checkpoint is that of this epoch's last batch
                    raise self._stopped(self.stop.received)
                batch = transform(batch)
                targets = self.task.targets(batch)
                outputs = model(batch["image"])
                loss = self.task.loss(outputs, targets)
                tally.add(loss, len(outputs), self.task.sums(outputs, targets, detailed=True), weight=weight)
        return tally.over_ranks(self.here)

    def _record(self, evaluated: Tally | None) -> EpochRecord:
        at = self.at
        trained = at.tally.over_ranks(self.here)
        samples = float(trained.sums["samples"])
        return EpochRecord(
            epoch=at.epoch + 1,
            seconds=at.seconds,
            learning_rate=float(self.learner.optimizer.param_groups[0]["lr"]),
            train=trained.metrics(self.task),
            eval=None if evaluated is None else evaluated.metrics(self.task),
            samples_per_second=samples / at.seconds if at.seconds else 0.0,
            wait_share=at.wait / at.seconds if at.seconds else 0.0,
            device_memory=_device_memory(self.here.device),
        )

    # --- what is kept

    def _keep(self, history: History, record: EpochRecord, sums: Sums) -> None:
        """Write down an epoch, and its model if it is the best so far, or there is nothing to tell by."""
        before = self._best(history)
        history.add(record)
        if before is None or self._best(history) is not before:
            self.folder.save_best(self.learner, record, sums)
        self.told.epoch(record)

    def _best(self, history: History) -> EpochRecord | None:
        return best_record(history.records, self.task.metric, higher_is_better=self.task.higher_is_better)

    def _save(self) -> None:
        """Write all that the run goes on with: the first rank does, with the sums of all."""
        at = self.at
        sums = at.tally.over_ranks(self.here).state_dict()
        if not self.here.first:
            return
        position = {"epoch": at.epoch, "batch": at.batch, "seconds": at.seconds, "wait": at.wait, "tally": sums}
        self.folder.save_last(self.learner, {**position, "loader": self.loader.state_dict(), "ranks": self.here.size})

    def _go_on(self, state: Mapping[str, Any]) -> None:
        """Take up a checkpoint; raises whatever it makes torch stumble over."""
        self.learner.load_state_dict(state["learner"])
        at = Position(state["epoch"], state["batch"], state["seconds"], state["wait"])
        batches, loader = len(self.loader), state["loader"]
        place = (at.epoch + 1, 0) if at.batch == batches else (at.epoch, at.batch)
        if not (0 <= at.epoch < self.options.epochs and 0 <= at.batch <= batches and self.learner.step >= 0):
            raise ValueError(f"batch {at.batch} of epoch {at.epoch}")
        if (loader["epoch"], loader["batch"]) != place or not all(0 <= s < math.inf for s in (at.wait, at.seconds)):
            raise ValueError(f"not after batch {at.batch} of epoch {at.epoch}")
        if self.here.first:  # the sums are of all ranks, and are added up over them again
            at.tally.load_state_dict(state["tally"], self.here.device)
        else:
            zeros = {name: torch.zeros_like(value) for name, value in state["tally"].items()}
            at.tally.load_state_dict(zeros, self.here.device)
        if at.batch:
            at.tally.metrics(self.task)  # which stumbles over sums of another task
        self.at = at
        self.loader.load_state_dict(loader)

    def _stop_if_asked(self) -> None:
        asked = self.here.any(self.stop.received)
        if asked:
            self._save()
            raise self._stopped(asked)

    def _stopped(self, number: int) -> TrainingStopped:
        at = self.at
        return TrainingStopped(
            f"stopped in epoch {at.epoch + 1} after {at.batch:,} of {len(self.loader):,} batches. "
            f"Go on with the same command and --resume; the checkpoint is {self.folder.last}.",
            number,
        )

    # --- what is said

    def _notes(self, *, resumed: bool) -> Iterator[str]:
        learner, size = self.learner, "x".join(map(str, self.vit.image_size))
        yield (
            f"{self.task.name}: {len(self.split):,} samples of {self.split.name}, {self.order}, rows from the "
            f"{self.loader.residency.replace('-', ' ')}; "
            + (
                f"evaluated on {len(self.eval_split):,} of {self.eval_split.name}"
                if self.eval_split
                else "no evaluation"
            )
        )
        weights = sum(p.numel() for p in learner.module.parameters())
        grid = "x".join(map(str, self.vit.grid))
        yield (
            f"ViT of {weights / 1e6:.2f} million weights, {grid} patches of {self.vit.patch_size} pixels, "
            f"images of {size}; {learner.precision} on {self.here.device.type}"
            + (f", {self.here.size} ranks" if self.here.size > 1 else "")
        )
        if crowded := crowded_samples(self.task, self.split):
            yield f"{crowded:,} samples have several objects: the landmarks of the one with the largest box are learned"
        if self.eval_split is None:
            yield "there is no split to evaluate on (val or test): make one with tsds convert --split train=0.9,val=0.1"
        elif unseen := unseen_classes(self.task, self.split, self.eval_split):
            named = ", ".join(unseen[:3]) + (f" and {len(unseen) - 3} more" if len(unseen) > 3 else "")
            yield (
                f"{self.eval_split.name} has samples of classes that {self.split.name} has none of: {named}. "
                "They count as wrong; divide the data again with tsds convert --split"
            )
        if resumed:
            yield f"goes on in epoch {self.at.epoch + 1} after {self.at.batch:,} of {len(self.loader):,} batches"

    def _facts(self) -> dict[str, Any]:
        return {
            "store": str(self.store.path),
            "parameters": sum(p.numel() for p in self.learner.module.parameters()),
            "precision": self.learner.precision,
            "device": _device_name(self.here.device),
            "ranks": self.here.size,
            "residency": self.loader.residency,
            "train_samples": len(self.split),
            "eval_split": None if self.eval_split is None else self.eval_split.name,
            "eval_samples": 0 if self.eval_split is None else len(self.eval_split),
        }


def _card(store: Store, split: Split, vit: ViTOptions, task: Task) -> ModelCard:
    normalized = normalize(split)
    height, width, _ = image_shape(store, split)
    said = store.manifest.provenance.get("options")
    fit = said.get("fit") if isinstance(said, Mapping) else None
    known: list[Fit] = [known for known in FITS if known == fit]  # a manifest may say anything there
    return ModelCard(vit, task, normalized.mean, normalized.std, (height, width), *known)


def _seed(*words: int) -> int:
    """A seed for what a step draws: a function of where it is, so that a resumed run draws the same."""
    return torch_seeds(*words)[0]


def _device_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
