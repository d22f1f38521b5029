"""One run on this rank: its data, its model, where it is, and its checkpoints."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tensorstore_ds.annex.training import checkpoint
from tensorstore_ds.annex.training.augmentation import normalize, train_plan, train_transform
from tensorstore_ds.annex.training.data import (
    eval_split_of,
    fold_of,
    has_labels,
    image_shape,
    predicted_dtype,
    split_of,
    stored_size,
    task_of,
    train_loader,
)
from tensorstore_ds.annex.training.history import EpochRecord, dump_record, plain
from tensorstore_ds.annex.training.learner import Learner, image_dtype
from tensorstore_ds.annex.training.memory import is_out_of_memory
from tensorstore_ds.annex.training.models import model_options
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.process import Ranks, Tally
from tensorstore_ds.annex.training.recipe import completed
from tensorstore_ds.annex.training.torch_threads import choose_threads
from tensorstore_ds.durable import check_room, locked_folder, partial_of, writing
from tensorstore_ds.errors import OptionError, TrainingError, TrainingStopped
from tensorstore_ds.imaging.placement import FITS, Fit
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import check_outside_stores


@dataclass
class Position:
    """Where a run is."""

    epoch: int = 0  # that is being trained, from 0
    batch: int = 0  # batches of it that are done, each of every rank
    start: int = 0  # samples of it that another number of ranks has done before
    seconds: float = 0.0  # spent on them
    wait: float = 0.0  # of these, spent on waiting for data
    computed: float = 0.0  # of these, for which the training thread had a core
    tally: Tally = field(default_factory=Tally)  # their sums

    @property
    def wait_share(self) -> float:
        """Share of the time that was spent waiting for data."""
        return self.wait / self.seconds if self.seconds else 0.0

    def core_share(self, device: torch.device) -> float | None:
        """Share of the step time for which the training thread had a core; None unless on a CPU."""
        steps = self.seconds - self.wait
        return min(1.0, self.computed / steps) if device.type == "cpu" and steps > 0 else None


class Run:
    """State of a run on this rank. The constructor checks the options against each other and the store.

    `options` are the given ones with all choices filled in: from the checkpoint if the run resumes, else the defaults.
    """

    def __init__(self, store: Store, options: TrainOptions, ranks: Ranks, out: Path, *, resume: bool) -> None:
        self.store, self.ranks, self.out = store, ranks, out
        if out.exists() and not out.is_dir():
            raise OptionError(f"{out}: expected a folder, found a file. Choose another `out`.")
        check_outside_stores(out / "last.pt")
        self.last = out / "last.pt"  # the state after the last step before it was written, to go on with
        self.best = out / "best.pt"  # the model of the best epoch
        self.resumed = self.last.exists()
        self.nothing_to_resume = resume and not self.resumed
        if self.resumed and not resume:
            raise OptionError(
                f"{out}: expected a new folder, found a run. Go on with `resume`, or choose another `out`."
            )
        self._loaded = checkpoint.load_state(self.last) if self.resumed else None
        if self._loaded is not None:
            options = self._loaded.completed(options)
        if options.train_split == "train" and "train" not in store and "training" in store:
            options = replace(options, train_split="training")
        self.split = split_of(store, options.train_split, "train_split")
        self.task = task_of(self.split, options.task, options.model)
        self.fold = fold_of(store, options)  #: the rows of the split to train and to evaluate on, or None
        if self.fold is not None and not has_labels(self.task, self.split, self.fold.train):
            raise OptionError(f"`fold`: expected samples with a label outside of fold {options.fold}, found none.")
        self.eval_split = self.split if self.fold is not None else eval_split_of(store, options, self.task)
        height, width, channels = image_shape(self.split)
        self.vit = model_options(options, self.task, (height, width), channels)
        if self.eval_split is not None and image_shape(self.eval_split)[2] != channels:
            raise OptionError(f"{self.eval_split.name}: expected images of {channels} channels, found others.")
        given = store.manifest.conversion_options.get("fit")  # a manifest may say anything there
        fit: Fit = next((known for known in FITS if known == given), "pad")
        moments = normalize(self.split)
        stored = stored_size(store, self.split)
        dtype = predicted_dtype(store, self.split)
        self.card = checkpoint.ModelCard(self.vit, self.task, moments.mean, moments.std, stored, fit, dtype)
        rows, self._held_out = None, dict[str, Any]()
        if self.fold is not None:
            rows, held_out = self.fold.train, torch.from_numpy(self.fold.val)
            self._held_out = {"held_out": {"split": self.split.name, "samples": len(self.split), "rows": held_out}}
        self.samples = len(self.split) if rows is None else len(rows)  #: of an epoch, of all ranks
        self.options = options = completed(options, self.vit, samples=self.samples, ranks=ranks.size)
        self.dtype = image_dtype(options, ranks.device)  #: Of images for the model.
        transform = train_transform(self.split, options, self.vit, dtype=self.dtype, fields=self.task.fields)
        self.plan = train_plan(self.split, options, self.vit)
        state = None if self._loaded is None else self._loaded.state
        blocks = None if state is None else (state["block_rows"], state["window_blocks"])
        self.loader, self.order = train_loader(
            store, self.task, options, transform, ranks, plan=self.plan, rows=rows, blocks=blocks
        )
        self.loader.last_epoch = options.epochs - 1
        steps = math.ceil(len(self.loader) / options.accumulate) * options.epochs
        self.learner = Learner(
            self.vit,
            self.task,
            options,
            device=ranks.device,
            steps=steps,
            distributed=ranks.size > 1,
            resumes=self.resumed,
        )
        self.position = Position()
        on_cpu = ranks.device.type == "cpu" and ranks.size == 1 and not options.compile  # which compiles for a number
        most = torch.get_num_threads()
        kept = most if state is None else state["torch_threads"]
        self.threads = options.torch_threads or min(kept, most)  #: The number of torch's threads.
        is_free = options.torch_threads is None and "OMP_NUM_THREADS" not in os.environ and not self.resumed
        self.compares_threads = on_cpu and is_free and most > 1  #: Whether `compare_threads` is still to be called.

    @property
    def eval_samples(self) -> int:
        """Number of samples of an evaluation."""
        if self.fold is not None:
            return len(self.fold.val)
        return 0 if self.eval_split is None else len(self.eval_split)

    @property
    def batches(self) -> int:
        """Batches of this epoch on each rank; fewer if a different number of ranks has done a part of it."""
        return self._batches(self.ranks.size, self.position.start)

    @property
    def batches_left(self) -> int:
        """Batches until the end of the run on each rank."""
        epochs = self.options.epochs - self.position.epoch - 1
        return epochs * len(self.loader) + self.batches - self.position.batch

    def _batches(self, ranks: int, start: int) -> int:
        return math.ceil(math.ceil((self.samples - start) / ranks) / self.options.batch_size)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the folder on the first rank; raises `TrainingError` if another run has it."""
        with contextlib.ExitStack() as held:
            if self.ranks.first:
                with writing(self.out):
                    self.out.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):  # some file systems have no locks
                    if not held.enter_context(locked_folder(self.out)):
                        advice = "Wait until it has ended, or choose another `out`."
                        raise TrainingError(f"{self.out}: another process trains in this folder now. {advice}")
            yield

    def begin(self) -> None:
        """Load the last checkpoint, if there is one."""
        for path in (self.last, self.best):
            partial_of(path).unlink(missing_ok=True)  # what a run that was killed had half written
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            is_elastic = self.loader.is_elastic
            loaded.check(self.card, self.options, self.samples, ranks=self.ranks.size, is_elastic=is_elastic)
        self.ranks.wait()  # no rank writes before all have looked
        if loaded is None:
            return
        try:
            self._load_state(loaded.state)
        except Exception as error:  # whatever a state makes torch stumble over
            if is_out_of_memory(error):
                raise
            raise checkpoint.unusable(self.last, error) from error

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `save` wrote; an invalid state raises any error of torch."""
        self.learner.load_state_dict(state["learner"])
        ranks, start = state["ranks"], state["start"]
        seconds, wait, computed = state["seconds"], state["wait"], state["computed"]
        position = Position(state["epoch"], state["batch"], start, seconds, wait, computed)
        batches, loader = self._batches(ranks, start), state["loader"]
        place = (position.epoch + 1, 0) if position.batch == batches else (position.epoch, position.batch)
        inside = (
            0 <= position.epoch < self.options.epochs and 0 <= position.batch <= batches and 0 <= start <= self.samples
        )
        if not inside or self.learner.step < 0 or (loader["epoch"], loader["batch"]) != place:
            raise ValueError(f"batch {position.batch} of epoch {position.epoch}")
        if not all(0 <= spent < math.inf for spent in (wait, seconds, computed)):
            raise ValueError(f"{position.seconds} seconds")
        # The sums are of all ranks, and are added up over them again.
        sums = state["tally"] if self.ranks.first else {n: torch.zeros_like(v) for n, v in state["tally"].items()}
        position.tally = Tally({name: value.to(self.ranks.device) for name, value in sums.items()})
        if position.batch:
            position.tally.metrics(self.task)  # which stumbles over sums of another task
            float(position.tally.sums["samples"])
        if ranks != self.ranks.size:
            done = start + position.batch * self.options.batch_size * ranks
            position.start, position.batch = min(done, self.samples), 0
            # The learning rate goes on from the share of the run that is done: a step has another number of samples.
            share = (position.epoch + position.start / self.samples) / self.options.epochs
            self.learner.step = round(share * self.learner.steps)
        self.position = position
        self.loader.load_state_dict(loader)

    def compare_threads(self, step: Callable[[float], object], seconds: float) -> str:
        """Choose the number of torch's threads, once; returns a line if it changes. A batch takes `seconds` now."""
        self.compares_threads = False
        left = seconds * self.batches_left
        self.threads, line = choose_threads(step, self.threads, seconds=seconds, left=left)
        return line

    def share_of_step(self, batch: int) -> tuple[float, bool]:
        """The share of its step's samples that a batch has, and whether it is the step's last batch.

        A step adds up the gradients of `accumulate` batches; the last batch of an epoch may be short.
        """
        size, together = self.options.batch_size, self.options.accumulate
        samples = math.ceil((self.samples - self.position.start) / self.ranks.size)  # on this rank; some are seen twice
        first = batch // together * together
        in_batch = min(size, samples - batch * size)
        in_step = min(size * together, samples - first * size)
        return in_batch / in_step, batch + 1 in (first + together, self.batches)

    def record(self, evaluation: Tally | None) -> EpochRecord:
        """Record of the trained epoch; a collective call of all ranks."""
        position = self.position
        trained = position.tally.over_ranks(self.ranks)
        samples = float(trained.sums["samples"])
        record = EpochRecord(
            epoch=position.epoch + 1,
            seconds=position.seconds,
            learning_rate=float(self.learner.optimizer.param_groups[0]["lr"]),
            train=trained.metrics(self.task),
            eval=None if evaluation is None else evaluation.metrics(self.task),
            samples_per_second=samples / position.seconds if position.seconds else 0.0,
            wait_share=position.wait_share,
            core_share=position.core_share(self.ranks.device),
            device_memory=self.ranks.device_memory(),
        )
        self.ranks.forget_peak()
        return record

    def check_space(self) -> None:
        """Raise `TrainingError` if the disk has no room for the checkpoints of a run."""
        weights = sum(p.numel() * p.element_size() for p in self.learner.module.parameters())
        copies = 3 + (self.learner.average is not None)  # weights and two moments of each; and their average
        needed = weights * (2 * copies + 2)  # a new one is written before the old one goes; best.pt likewise
        check_room(self.out, needed, TrainingError, "Make room for checkpoints, or choose another `out`.")

    def save(self) -> None:
        """Write the checkpoint on the first rank, with the sums of all ranks."""
        position = self.position
        state = {name: getattr(position, name) for name in ("epoch", "batch", "start", "seconds", "wait", "computed")}
        state |= {"tally": position.tally.over_ranks(self.ranks).sums, "ranks": self.ranks.size}
        state |= {name: getattr(self.loader.sampler, name, 0) for name in ("block_rows", "window_blocks")}
        state["torch_threads"] = self.threads
        if self.ranks.first:
            state |= {"loader": self.loader.state_dict(), "options": plain(self.options.as_data())}
            state |= {"learner": self.learner.state_dict(), "weights": self.learner.best_weights.state_dict()}
            checkpoint.save(self.last, self.card, state | self._held_out)

    def save_best(self, record: EpochRecord, evaluation: Tally | None) -> None:
        """Write the model of an epoch, with its metrics and their sums."""
        sums = {} if evaluation is None else evaluation.sums
        content = {"weights": self.learner.best_weights.state_dict(), "record": dump_record(record), "sums": sums}
        checkpoint.save(self.best, self.card, content | self._held_out)

    def stopped(self, signal: int) -> TrainingStopped:
        """The exception for a run that a signal stopped."""
        position = self.position
        return TrainingStopped(
            f"stopped in epoch {position.epoch + 1} after {position.batch:,} of {self.batches:,} batches. "
            f"Go on with the same command and `resume`; the checkpoint is {self.last}.",
            signal,
        )
