"""The process in which one way is measured, asked by its lane: ``python -m tensorstore_ds.annex.measuring.runner``."""

from __future__ import annotations

import ctypes
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

import tensorstore_ds as tsds
from tensorstore_ds.annex.measuring.bench_results import Way
from tensorstore_ds.annex.measuring.delivery import agree, marks_of
from tensorstore_ds.annex.measuring.feeds import FEEDS, Batch, Feed, SplitFeed, Subject
from tensorstore_ds.annex.measuring.lane import WEIGH, Answer, serve
from tensorstore_ds.annex.measuring.measure import Step, endless, measure, ready
from tensorstore_ds.annex.measuring.measure_training import student_of
from tensorstore_ds.annex.training.crops import image_size_of
from tensorstore_ds.annex.training.data import task_of
from tensorstore_ds.annex.training.memory import let_go
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.process import device_of
from tensorstore_ds.errors import ResidencyError, TsdsError
from tensorstore_ds.format.kinds import LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.loading.device import move
from tensorstore_ds.loading.fields import is_decoded

#: Why there is no training here, although `tsds train` learns from such images.
_NEEDS = (
    "and the ways are compared in training with pixels of one size only. tsds doctor measures tsds train with them."
)


class Runner:
    """One way, asked for one measurement at a time; with `whole`, an epoch is timed from its beginning to its end."""

    def __init__(self, feed: Feed, workers: int, device: torch.device, *, whole: bool = False) -> None:
        self.feed, self.workers, self.device, self.whole = feed, workers, device, whole
        self._batches: tuple[int, Any, Iterator[Any]] | None = None
        self._trainer: tuple[int, Step] | None = None

    def cold(self, batch_size: int, seconds: float) -> Answer:
        """Measure the first epoch with evicted files; ``why`` tells if the eviction is not certain."""
        feed, left, why = self._split_feed(), None, ""
        try:
            left = feed.evict()
        except (ResidencyError, OSError) as error:
            why = str(error)
        begun = time.perf_counter()
        feed.open()
        opened = time.perf_counter() - begun
        timing = measure(feed.loader(batch_size), seconds, feed.count, wave=self.workers, device=self.device)
        answer = {**asdict(timing), "left": left, "why": why, "opened": opened}
        feed.close()  # what is mapped could not be dropped for the next way
        return answer

    def verify(self, batch_size: int, seconds: float, marks: str, pixels: bool, boxes: bool = False) -> Answer:
        """Compare an epoch, or what there is time for, with the store."""
        self.feed.open()
        begun, whole, seen = time.perf_counter(), True, [np.zeros(0, np.uint64)]
        loader = self.feed.loader(batch_size)
        for item in loader:
            if time.perf_counter() - begun > seconds:
                whole = False
                break
            seen.append(marks_of(self.feed.columns(item, pixels=pixels, boxes=boxes), pixels=pixels))
        if self.workers:  # which are weighed while they live, however short the epoch was
            time.sleep(max(0.0, begun + 2 * WEIGH - time.perf_counter()))
        del loader
        delivered = np.concatenate(seen)
        facts = {"samples": len(delivered), "of": self.feed.samples, "reader": self.feed.reader, "whole": whole}
        return {**facts, "same": agree(delivered, np.load(marks), whole=whole)}

    def load(self, batch_size: int, seconds: float) -> Answer:
        """Measure loading alone."""
        return self._measured(batch_size, seconds, self.feed.count)

    def train(self, batch_size: int, seconds: float) -> Answer:
        """Measure training."""
        if self._trainer is None or self._trainer[0] != batch_size:
            self._trainer = None
            self._trainer = (batch_size, training_step(self._split_feed(), batch_size))
        return self._measured(batch_size, seconds, self._trainer[1])

    def rest(self) -> Answer:
        """Free loaders and models, so that memory of one batch size does not count for the next."""
        self._batches = self._trainer = None
        let_go(self.device)
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
        return {}

    def _measured(self, batch_size: int, seconds: float, step: Step) -> Answer:
        """Continue epochs from one call to the next; the first batch, before which workers start, does not count."""
        self.feed.open()
        if self._batches is None or self._batches[0] != batch_size:
            self._batches = None  # before the next one is made
            loader = self.feed.loader(batch_size)
            self._batches = batch_size, loader, itertools.repeat(loader) if self.whole else endless(loader)
            if not self.whole:
                step(next(self._batches[2]))
        _, loader, batches = self._batches
        for _ in range(0 if self.whole else ready(loader)):  # made while others were measured
            self.feed.count(next(batches))
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        done = partial(self._epoch, step) if self.whole else step
        timing = measure(batches, seconds, done, wave=self.workers, device=self.device)
        return {**asdict(timing), "device_memory": torch.cuda.max_memory_allocated(self.device) if on_gpu else None}

    def _epoch(self, step: Step, loader: Iterable[Any]) -> int:
        found = sum(map(step, loader))
        if found != self.feed.samples:
            raise RuntimeError(f"expected an epoch of {self.feed.samples:,} samples, found {found:,}")
        return found

    def _split_feed(self) -> SplitFeed:
        if not isinstance(self.feed, SplitFeed):
            raise TypeError(f"expected a way to load a split, found {type(self.feed).__name__}")
        return self.feed


def training_step(feed: SplitFeed, batch_size: int) -> Step:
    """A training step of the `seed` ViT on batches of a feed, which returns the number of samples.

    One step is done here for one-time costs: on a CPU, memory that was never touched makes the first one of 1000 digits
    take 1.6 s instead of 0.6.
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


# --- the process ---------------------------------------------------------------------------------------------------


def start(assignment: Mapping[str, Any]) -> tuple[Runner, Answer]:
    """Create the runner of an assignment, and its first answer: the device, and the reason if there is no training."""
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
    runner = Runner(FEEDS[way.group](way, subject), way.workers, device, whole=assignment.get("whole", False))
    return runner, facts


def fields_of(split: tsds.Split) -> tuple[dict[str, str], str]:
    """Field names by kind that a task needs, and the reason if there is no task."""
    try:
        task = task_of(split)
    except TsdsError as error:
        for kind in (LabelField, ObjectsField):
            for name in of_kind(split.fields, kind):
                return {"image": "image", kind.kind: name}, str(error)
        return {"image": "image"}, str(error)
    if task.label_field in of_kind(split.fields, LabelsField):
        return {"image": "image"}, "images with several labels are loaded alone: training needs one label per image."
    fields = {"image": "image", "label": task.label_field, "objects": task.objects_field}
    image, reason = split.fields["image"], ""
    if image.encoding not in ("", "raw"):
        reason = f'images are kept as {image.encoding}, {_NEEDS} Or convert with `encoding="raw"`.'
    elif is_decoded(image):
        reason = f"images differ in size, {_NEEDS} Or convert with `size`."
    return {kind: name for kind, name in fields.items() if name}, reason


if __name__ == "__main__":
    serve(sys.argv[1], start)
