"""The process in which one way is measured, asked by its lane: ``python -m tensorstore_ds.annex.comparison.runner``."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

import tensorstore_ds as tsds
from tensorstore_ds.annex.comparison.delivery import agree, marks_of
from tensorstore_ds.annex.comparison.feeds import FEEDS, Batch, Feed, SplitFeed, Subject
from tensorstore_ds.annex.comparison.lane import Answer, serve
from tensorstore_ds.annex.comparison.results import Way
from tensorstore_ds.annex.comparison.stopwatch import Clock, Step
from tensorstore_ds.annex.diagnosis.measure_loading import finish
from tensorstore_ds.annex.diagnosis.measure_training import student_of
from tensorstore_ds.annex.training.crops import image_size_of
from tensorstore_ds.annex.training.data import task_of
from tensorstore_ds.annex.training.memory import let_go
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.process import device_of
from tensorstore_ds.errors import ResidencyError, TsdsError, one_line
from tensorstore_ds.format.kinds import EncodedImageField, LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.loading.device import move
from tensorstore_ds.loading.fields import is_decoded

#: Why there is no training here, although `tsds train` learns from such images.
_NEEDS = (
    "and the ways are compared in training with pixels of one size only. tsds doctor measures tsds train with them."
)


class Runner:
    """One way, asked for one measurement after the other; `parts`: an epoch may be reckoned from a part of it."""

    def __init__(self, feed: Feed, workers: int, device: torch.device, *, parts: bool = True) -> None:
        self.feed, self.workers, self.device, self.parts = feed, workers, device, parts
        self._loader: tuple[int, Any] | None = None
        self._trainer: tuple[int, Step] | None = None

    def cold(self, batch_size: int, seconds: float) -> Answer:
        """The first epoch, from files that are not in memory; ``why`` they are not known to be out of it."""
        feed, left, why = self._split_feed(), None, ""
        try:
            left = feed.evict()
        except (ResidencyError, OSError) as error:
            why = str(error)
        begun = time.perf_counter()
        feed.open()
        opened = time.perf_counter() - begun
        timing = self._clock(batch_size).time_first(feed.loader(batch_size), feed.count, seconds)
        samples = feed.samples
        feed.close()  # what is mapped could not be dropped for the next way
        return {**asdict(timing), "left": left, "why": why, "opened": opened, "samples": samples}

    def verify(self, batch_size: int, seconds: float, marks: str, pixels: bool, boxes: bool = False) -> Answer:
        """Whether what is delivered is what is stored: an epoch, or what there is time for."""
        self.feed.open()
        begun, whole, seen = time.perf_counter(), True, [np.zeros(0, np.uint64)]
        for item in self.feed.loader(batch_size):
            if time.perf_counter() - begun > seconds:
                whole = False
                break
            seen.append(marks_of(self.feed.columns(item, pixels=pixels, boxes=boxes), pixels=pixels))
        delivered = np.concatenate(seen)
        facts = {"samples": len(delivered), "of": self.feed.samples, "reader": self.feed.reader, "whole": whole}
        return {**facts, "same": agree(delivered, np.load(marks), whole=whole)}

    def load(self, batch_size: int, seconds: float) -> Answer:
        """Epochs of loading alone."""
        return self._measured(batch_size, seconds, self.feed.count)

    def train(self, batch_size: int, seconds: float) -> Answer:
        """Epochs of training."""
        if self._trainer is None or self._trainer[0] != batch_size:
            self._trainer = None
            self._trainer = (batch_size, training_step(self._split_feed(), batch_size))
        return self._measured(batch_size, seconds, self._trainer[1])

    def rest(self) -> Answer:
        """Let go of loaders and models: memory of one batch size is not that of the next."""
        self._loader = self._trainer = None
        let_go(self.device)
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
        return {}

    def _measured(self, batch_size: int, seconds: float, step: Step) -> Answer:
        self.feed.open()
        fresh = self._loader is None or self._loader[0] != batch_size
        if self._loader is None or fresh:
            self._loader = None  # before the next one is made
            self._loader = (batch_size, self.feed.loader(batch_size))
        clock = self._clock(batch_size)
        begun = time.perf_counter()
        with watching(self.device) as seen:
            timing = clock.time_epochs(self._loader[1], step, seconds, fresh=fresh)
        seen["took"] = time.perf_counter() - begun
        if timing.batches < timing.of:
            self._loader = None  # ends workers that would go on with the rest of the epoch while others are measured
            gc.collect()
        elif timing.samples != self.feed.samples:
            raise RuntimeError(f"expected an epoch of {self.feed.samples:,} samples, found {timing.samples:,}")
        return {**asdict(timing), "samples": self.feed.samples, **seen}

    def _clock(self, batch_size: int) -> Clock:
        samples, settle = self.feed.samples, partial(finish, self.device)
        return Clock(samples, -(-samples // batch_size), self.workers, settle, self.parts)

    def _split_feed(self) -> SplitFeed:
        if not isinstance(self.feed, SplitFeed):
            raise TypeError(f"expected a way to load a split, found {type(self.feed).__name__}")
        return self.feed


def training_step(feed: SplitFeed, batch_size: int) -> Step:
    """Steps of the `seed` ViT on whatever a feed hands out, which return the number of its samples.

    One step is done here, for all that a model does once in its life: on a processor, memory that was never touched
    makes the first one of 1000 digits take 1.6 s instead of 0.6.
    """
    subject = feed.subject
    options = TrainOptions(model="seed", augment="none", device=str(subject.device), seed=subject.seed)
    student = student_of(tsds.open(subject.store)[subject.split], options, subject.device)

    def step(batch: Batch) -> int:
        samples = len(batch["image"])
        student.whole_step(batch, samples, 0)
        return samples

    dataset = tsds.StoreDataset(subject.store, subject.split, fields=list(subject.fields.values()))
    loader = tsds.DataLoader(dataset, min(batch_size, len(dataset)), collate="packed", num_threads=1)
    step(move(next(iter(loader)), subject.device))
    return lambda item: step(feed.batch(item))


# --- the device ----------------------------------------------------------------------------------------------------


@contextmanager
def watching(device: torch.device) -> Iterator[dict[str, Any]]:
    """A dict that has, after the block, the device's peak of ``device_memory`` in bytes, and its ``utilisation``.

    That is the mean share of the time in which it computed, as its driver tells ten times a second, or None and
    ``utilisation_reason``.
    """
    seen: dict[str, Any] = {}
    if device.type != "cuda":
        yield seen
        return
    torch.cuda.reset_peak_memory_stats(device)
    over, shares = threading.Event(), []

    def look() -> None:
        while not over.wait(0.1):
            try:
                shares.append(torch.cuda.utilization(device) / 100)
            except Exception as error:  # without pynvml; and its own, where a driver, a MIG or a vGPU does not tell
                seen["utilisation_reason"] = one_line(str(error))
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    seen["utilisation"] = statistics.mean(shares) if shares else None
    seen["device_memory"] = torch.cuda.max_memory_allocated(device)


# --- the process ---------------------------------------------------------------------------------------------------


def start(assignment: Mapping[str, Any]) -> tuple[Runner, Answer]:
    """What an assignment makes, and the first answer: the device, and why there is no training, if so."""
    device = device_of(assignment["device"])
    way = Way(**assignment["way"])
    if way.group == "device" and device.type != "cuda":
        raise ResidencyError("there is no GPU")
    split = tsds.open(assignment["store"])[assignment["split"]]
    fields, untrainable = fields_of(split)
    asked = assignment.get("image_size")
    size = image_size_of(split, None if asked is None else tuple(asked))
    if size is not None and not untrainable:
        untrainable = "images are cropped, training needs them whole. Leave out `image_size`."
    crop = assignment.get("crop", "random")
    given = {name: assignment[name] for name in ("store", "split", "raw", "scratch", "memory", "seed")}
    subject = Subject(fields=fields, device=device, image_size=size, crop=crop, **given)
    torch.manual_seed(subject.seed)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    facts: dict[str, Any] = {"device": device.type, "device_name": name, "fields": fields, "untrainable": untrainable}
    facts["image_size"] = size
    runner = Runner(FEEDS[way.group](way, subject), way.workers, device, parts=assignment.get("parts", True))
    return runner, facts


def fields_of(split: tsds.Split) -> tuple[dict[str, str], str]:
    """Name of the field of each kind that a task needs, and why there is no task, if there is none."""
    try:
        task = task_of(split)
    except TsdsError as error:
        for kind in (LabelField, ObjectsField):
            for name in of_kind(split.fields, kind):
                return {"image": "image", kind.kind: name}, str(error)
        return {"image": "image"}, str(error)
    if isinstance(split.fields.get(task.label_field), LabelsField):
        return {"image": "image"}, "images with several labels are loaded alone: training needs one label per image."
    fields = {"image": "image", "label": task.label_field, "objects": task.objects_field}
    image, reason = split.fields["image"], ""
    if isinstance(image, EncodedImageField):
        reason = f'images are kept as {image.encoding}, {_NEEDS} Or convert with `encoding="raw"`.'
    elif is_decoded(image):
        reason = f"images differ in size, {_NEEDS} Or convert with `size`."
    return {kind: name for kind, name in fields.items() if name}, reason


if __name__ == "__main__":
    serve(sys.argv[1], start)
