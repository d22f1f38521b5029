"""The process in which one way is measured: ``python -m tensorstore_ds.comparison.runner ASSIGNMENT``.

It answers each line of JSON on its standard input with one on its standard output, and ends with its input. What fails
is an answer too: ``{"state": "failed", "reason": ...}``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tensorstore_ds as tsds
from tensorstore_ds.comparison.delivery import Marks, agree, marks_of
from tensorstore_ds.comparison.device import device_of, watching
from tensorstore_ds.comparison.feeds import FEEDS, Batch, Feed, Subject
from tensorstore_ds.comparison.stopwatch import Clock, Step, Timing
from tensorstore_ds.comparison.trainer_step import Trainer
from tensorstore_ds.comparison.ways import Way
from tensorstore_ds.errors import OptionError, ResidencyError, TsdsError, one_line
from tensorstore_ds.training.tasks import task_of

#: What a runner can be asked for, and its method.
VERBS = {verb: verb for verb in ("cold", "verify", "load", "train", "rest")}

Answer = dict[str, Any]


class Runner:
    """One way, asked for one measurement after the other.

    Args:
        way: what is measured.
        subject: what is loaded.
    """

    def __init__(self, way: Way, subject: Subject) -> None:
        self.feed: Feed = FEEDS[way.group](way, subject)
        self.way, self.subject = way, subject
        self._loader: tuple[int, Any] | None = None
        self._trainer: tuple[int, Trainer] | None = None

    def cold(self, batch_size: int, seconds: float) -> Answer:
        """The first epoch, from files that are not in memory; ``why`` they are not known to be out of it."""
        left, why = None, ""
        try:
            left = self.feed.evict()
        except (ResidencyError, OSError) as error:
            why = str(error)
        begun = time.perf_counter()
        self.feed.open()
        opened = time.perf_counter() - begun
        timing = self._clock(batch_size).time_first(self.feed.loader(batch_size), self._take, seconds)
        rows = self.feed.rows
        self.feed.close()  # what is mapped could not be dropped for the next way
        return {"left": left, "why": why, "opened": opened, "rows": rows, **_timed(timing)}

    def verify(self, batch_size: int, seconds: float, marks: str, pixels: bool) -> Answer:
        """Whether what is delivered is what is stored: an epoch, or what there is time for."""
        self.feed.open()
        begun, whole, found = time.perf_counter(), True, [np.zeros(0, np.uint64)]
        for item in self.feed.loader(batch_size):
            if time.perf_counter() - begun > seconds:
                whole = False
                break
            found.append(self._marks(self.feed.batch(item), pixels))
        delivered = np.concatenate(found)
        same = agree(delivered, np.load(marks), whole=whole)
        return {"rows": len(delivered), "of": self.feed.rows, "whole": whole, "same": same, "reader": self.feed.reader}

    def load(self, batch_size: int, seconds: float) -> Answer:
        """Epochs of loading alone."""
        return self._measured(batch_size, seconds, self._take)

    def train(self, batch_size: int, seconds: float) -> Answer:
        """Epochs of training."""
        if self._trainer is None or self._trainer[0] != batch_size:
            self._trainer = None
            self._trainer = (batch_size, Trainer(self.feed, self.subject, batch_size))
        return self._measured(batch_size, seconds, self._trainer[1])

    def rest(self) -> Answer:
        """Let go of loaders and models: memory of one batch size is not that of the next."""
        self._loader = self._trainer = None
        gc.collect()
        if self.subject.device.type == "cuda":
            torch.cuda.empty_cache()
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
        with watching(self.subject.device) as seen:
            timing = clock.time_epochs(self._loader[1], step, seconds, fresh=fresh)
        seen["took"] = time.perf_counter() - begun
        if timing.batches < timing.of:
            self._loader = None  # ends workers that would go on with the rest of the epoch while others are measured
            gc.collect()
        elif timing.samples != self.feed.rows:
            raise RuntimeError(f"expected an epoch of {self.feed.rows:,} samples, found {timing.samples:,}")
        return {**_timed(timing), "rows": self.feed.rows, **seen}

    def _clock(self, batch_size: int) -> Clock:
        device, batches = self.subject.device, -(-self.feed.rows // batch_size)
        if device.type != "cuda":
            return Clock(self.feed.rows, batches, self.way.workers)
        return Clock(self.feed.rows, batches, self.way.workers, partial(torch.cuda.synchronize, device))

    def _take(self, item: Any) -> int:
        """What is done with a batch when loading alone: it arrives on the device."""
        return len(self.feed.batch(item)[self.subject.fields["image"]])

    def _marks(self, batch: Batch, pixels: bool) -> Marks:
        fields = self.subject.fields
        columns: dict[str, Any] = {}
        images = batch[fields["image"]]
        columns["image"] = images.permute(0, 2, 3, 1).cpu().numpy() if pixels else np.empty(len(images))
        if "label" in fields:
            columns["label"] = batch[fields["label"]].cpu().numpy()
        if "objects" in fields:
            objects = batch[fields["objects"]]
            columns.update({n: objects[n].cpu().numpy() for n in ("offsets", "labels") if n in objects})
        return marks_of(columns, pixels=pixels)


def _timed(timing: Timing) -> Answer:
    return {"epochs": timing.epochs, "batches": timing.batches, "of": timing.of, "samples": timing.samples}


# --- the process --------------------------------------------------------------------------------------------------


def start(assignment: Mapping[str, Any]) -> tuple[Runner, Answer]:
    """What an assignment makes, and the first answer: the device, and why there is no training, if so."""
    device = device_of(assignment["device"])
    way = Way(**assignment["way"])
    if way.group == "device" and device.type != "cuda":
        raise ValueError("there is no GPU")
    store, raw = Path(assignment["store"]), assignment["raw"]
    split = tsds.open(store)[assignment["split"]]
    fields, untrainable = fields_of(split)
    subject = Subject(
        store=store,
        split=assignment["split"],
        fields=fields,
        device=device,
        raw=None if raw is None else Path(raw),
        scratch=Path(assignment["scratch"]),
        memory=assignment["memory"],
        seed=assignment["seed"],
    )
    torch.manual_seed(subject.seed)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    facts = {"device": device.type, "device_name": name, "fields": fields, "untrainable": untrainable}
    return Runner(way, subject), facts


def fields_of(split: tsds.Split) -> tuple[dict[str, str], str]:
    """Name of the field of each kind that a task needs, and why there is no task, if there is none."""
    try:
        task = task_of(split)
    except TsdsError as error:
        fields = {"image": "image"}
        for kind in ("label", "objects"):
            name = next((name for name, field in split.fields.items() if field.kind == kind), None)
            fields.update({kind: name} if name is not None and len(fields) == 1 else {})
        return fields, str(error)
    fields = {"image": "image", "label": task.label_field, "objects": task.objects_field}
    encoded = getattr(split.fields["image"], "encoding", None)
    reason = (
        "" if encoded is None else f"images are kept as {encoded}, training needs pixels. Convert with --encoding raw."
    )
    return {kind: name for kind, name in fields.items() if name}, reason


def answered(work: Callable[[], Answer]) -> Answer:
    """What a measurement found, or why it failed: one line here, all of it on stderr."""
    try:
        return {"state": "ok", **work()}
    except OptionError as error:
        return {"state": "refused", "reason": str(error)}
    except TsdsError as error:
        return {"state": "failed", "reason": str(error)}
    except Exception as error:  # told to whoever asked: one way that fails costs one row
        traceback.print_exc()
        lines = str(error).splitlines() or [""]
        return {"state": "failed", "reason": one_line(f"{type(error).__name__}: {lines[0]}")}


def main(text: str) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed goes to the log
    made: list[Runner] = []

    def begin() -> Answer:
        runner, facts = start(json.loads(text))
        made.append(runner)
        return facts

    print(json.dumps(answered(begin)), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        work = partial(getattr(made[0], VERBS[asked.pop("do")]), **asked)
        print(json.dumps(answered(work)), file=answers)


if __name__ == "__main__":
    main(sys.argv[1])
