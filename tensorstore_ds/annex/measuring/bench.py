"""All ways at all batch sizes, in turn, each in a process of its own."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from tensorstore_ds import words
from tensorstore_ds.annex.keywords import BenchKeywords
from tensorstore_ds.annex.measuring.bench_options import BenchOptions, middle
from tensorstore_ds.annex.measuring.bench_results import (
    Cell,
    Comparison,
    First,
    Phase,
    Way,
    make_cell,
    ways_of,
    with_ratios,
)
from tensorstore_ds.annex.measuring.delivery import marks_of_split
from tensorstore_ds.annex.measuring.lane import Answer, Lane, take_turns
from tensorstore_ds.annex.measuring.system import machine
from tensorstore_ds.errors import OptionError
from tensorstore_ds.machine import memory_limit, usable_cores
from tensorstore_ds.options import chosen, takes_options
from tensorstore_ds.page_cache.residency import requirement
from tensorstore_ds.progress import notebook_bar
from tensorstore_ds.reading.store import Store, open as open_store

#: Each cell is measured in so many rounds, forwards and backwards, so that other programs disturb all ways.
ROUNDS = 3
#: The least part of an epoch may take so many times the seconds of a measurement, but not less than the second number.
LIMIT, LIMIT_SECONDS = 20, 30.0
#: Seconds in which a process must answer, at least; for listing files, copying into memory, a first epoch.
PATIENCE, LONG_PATIENCE = 120.0, 900.0
#: Of the bytes that were dropped from the page cache, at most this share may still be there.
WARM = 0.02
#: Pixels of splits up to so many bytes are compared.
COMPARED_NBYTES = 4 * 1024**3

RUNNER = "tensorstore_ds.annex.measuring.runner"
_DOING = {"load": "loading", "train": "training"}


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """Progress of a comparison, counted in measurements."""

    doing: str  #: The measurement that begins, in words.
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.done}/{self.total} · {self.doing}"


@takes_options(BenchOptions)
def bench(
    store: str | os.PathLike[str],
    options: BenchOptions | None = None,
    *,
    progress: Callable[[BenchProgress], None] | None = None,
    **keywords: Unpack[BenchKeywords],
) -> Comparison:
    """Measure how fast a store's split loads on this machine, compared with its source files and torch's DataLoader.

    >>> found = tsds.bench("photos.tsds", device="cpu", train=False, batch_sizes=[4], ways=["store"], seconds=0.1)
    >>> found.samples, [way.name for way in found.ways]
    (8, ['store'])

    The page cache of the split and of the source files is dropped first, and they are read again. Measurements run in
    separate processes, so the random generators and threads of this process do not change. Only links and logs are
    written, to the system's temporary folder, and removed afterwards.

    Args:
        store: path or URL of the store.
        options: all options as one object.
        progress: function that is called with a `BenchProgress` before each measurement. None shows a bar in a
            notebook.
        keywords: options by name. Each overrides `options`.

    Returns:
        The measurements. After Ctrl-C, `interrupted` is true, and the result contains the measurements made so far.

    Raises:
        FormatError: the store is damaged.
        OptionError: the split does not exist, is empty or has no images, or the device is not available.
        RemoteError, OutputError: a store given by URL cannot be fetched. It is fetched completely before measuring, see
            `tensorstore_ds.open`.
    """
    options = chosen(options, BenchOptions, keywords)
    opened = open_store(store)
    if options.split not in opened:
        raise OptionError(f"`split`: expected one of {', '.join(opened.splits)}, found {options.split}.")
    if not len(opened[options.split]) or "image" not in opened.manifest.fields:
        raise OptionError(f"{opened.name}, {options.split}: expected samples with a field image, found none.")
    opened.fetch()
    draw = notebook_bar()
    run = _Run(opened, options, progress or (lambda event: draw(f"Measuring {event}", event.done, event.total)))
    try:
        with tempfile.TemporaryDirectory(prefix="tsds-bench-") as scratch, ExitStack() as stack:
            run.measure(stack, Path(scratch))
    except KeyboardInterrupt:
        run.interrupted = True
    return run.comparison()


def reason_against(size: int, samples: int, seconds: float, before: Answer) -> str:
    """Why a batch size is skipped, judged by the answer `before` at a smaller one; empty if it is measured.

    At least `samples` have to be loaded within `seconds`. `before` has the ``size`` of its batches if it is of this
    phase.
    """
    rate = before["samples"] / before["seconds"]
    if samples / rate > seconds:
        return f"a batch takes about {size / rate:.0f} s; a larger value of `seconds` measures it"
    if before.get("size") and before["memory"] is not None and before["before"] is not None:
        needed, limit = size * max(0, before["memory"] - before["before"]) // before["size"], memory_limit()
        if needed > limit:
            return f"it needs about {needed / 1e9:.1f} GB of memory more, {limit / 1e9:.1f} GB are left"
    return ""


class _Run:
    """The measurements so far."""

    def __init__(self, store: Store, options: BenchOptions, progress: Callable[[BenchProgress], None]) -> None:
        self.options, self.progress = options, progress
        self.store, self.split = store, store[options.split]
        self.samples = len(self.split)
        self.fields: Mapping[str, str] = {}  # that are loaded, by kind
        self.sizes, self.seconds = options.sizes(self.samples), options.time_for(self.samples)
        self.ways = {way.name: way for way in ways_of(options.ways, usable_cores())}
        for way in self.ways.values():
            if way.group == "files" and options.raw is None:
                self._note(way.name, reason="`raw` was not given")
        self.interrupted = False
        self._begun = time.monotonic()
        self._answers: dict[tuple[Phase, int], dict[str, list[Answer]]] = {}
        self._ended: dict[str, str] = {}  # of ways that were measured until their process ended
        self._baselines: list[int] = []
        self._device = ""
        self._image_size: tuple[int, int] | None = None
        self._untrainable = "" if options.train else "it was left out"
        self._done = 0

    @property
    def _phases(self) -> tuple[Phase, ...]:
        return ("load",) if self._untrainable else ("load", "train")

    def measure(self, stack: ExitStack, scratch: Path) -> None:
        """Do all measurements in order."""
        lanes = [stack.enter_context(self._lane(way, scratch)) for way in self.ways.values() if not way.reason]
        for lane in lanes:  # most of a start is importing torch, which they do side by side
            self._begin(lane)
        first = self._first_epochs(self._able(lanes))
        self._verify(self._able(lanes), scratch)
        for phase in self._phases:
            before = dict(first)
            for size in self.sizes:
                self._compare(self._able(lanes), phase, size, before)

    def _note(self, name: str, **changes: Any) -> None:
        self.ways[name] = replace(self.ways[name], **changes)

    def _say(self, doing: str) -> None:
        total = len(self.ways) * (3 + len(self.sizes) * ROUNDS * len(self._phases))
        self.progress(BenchProgress(doing, min(self._done, total), total))
        self._done += 1

    def _lane(self, way: Way, scratch: Path) -> Lane:
        options = self.options
        assignment = {
            name: getattr(options, name) for name in ("split", "device", "memory", "seed", "image_size", "crop")
        }
        raw = None if options.raw is None else str(Path(options.raw).absolute())
        paths = {"store": str(self.store.path), "raw": raw, "scratch": str(scratch)}
        return Lane(way.name, RUNNER, {"way": asdict(way), **assignment, **paths}, scratch)

    def _begin(self, lane: Lane) -> None:
        self._say(f"starting {self.ways[lane.name].title}")
        lane.begin(PATIENCE)
        if lane.refused:
            raise OptionError(lane.reason)
        self._note(lane.name, reason=lane.reason)
        if not lane.reason:
            self.fields = lane.ready["fields"]
            size = lane.ready["image_size"]
            self._image_size = None if size is None else tuple(size)
            self._device = lane.ready["device_name"] or lane.ready["device"]
            self._untrainable = self._untrainable or lane.ready["untrainable"]
            self._baselines += [lane.ready["memory"]] if lane.ready["memory"] is not None else []

    def _able(self, lanes: Sequence[Lane]) -> list[Lane]:
        return [lane for lane in lanes if not lane.reason and not self.ways[lane.name].reason]

    # --- what is done once

    @property
    def _nbytes(self) -> int:
        """Bytes of the loaded columns."""
        return requirement(self.store, [(self.split.name, name) for name in self.fields.values()])[0]

    def _first_epochs(self, lanes: Sequence[Lane]) -> dict[str, Answer]:
        """Measure first epochs before anything is read: pages that a process has mapped cannot be dropped."""
        size, answers = middle(self.sizes), {}
        for lane in lanes:
            self._say(f"first epoch, {self.ways[lane.name].title}")
            answer = lane.ask("cold", LONG_PATIENCE, batch_size=size, seconds=4 * self.seconds)
            if answer["state"] != "ok":
                self._note(lane.name, reason=answer["reason"])
                continue
            answers[lane.name] = answer
            left = answer["left"]
            if left is None:
                first = First(size, reason=answer["why"] or "the system does not tell what is in memory")
            elif left > WARM * self._nbytes:
                first = First(size, reason=f"{words.size(left)} of its files could not be dropped from the page cache")
            else:
                seconds = self.samples * answer["seconds"] / answer["samples"]
                first = First(size, answer["opened"], seconds, not answer["ended"])
            self._note(lane.name, first=first)
        return answers

    def _verify(self, lanes: Sequence[Lane], scratch: Path) -> None:
        """Compare what each way delivers with the store."""
        marks: dict[bool, Path] = {}
        # Backwards: if there is memory for one copy of all only, the quicker use of a TensorDataset gets it.
        for lane in reversed(lanes):
            way = self.ways[lane.name]
            pixels = self._pixels_agree(way.group)
            if pixels not in marks:
                self._say("reading what is stored")
                marks[pixels] = scratch / f"marks-{pixels}.npy"
                np.save(marks[pixels], marks_of_split(self.split, self.fields, pixels=pixels))
            self._say(f"checking {way.title}")
            details = {"seconds": max(5.0, 8 * self.seconds), "marks": str(marks[pixels]), "pixels": pixels}
            answer = lane.ask("verify", LONG_PATIENCE, weigh=True, batch_size=middle(self.sizes), **details)
            if answer["state"] != "ok":
                self._note(way.name, reason=answer["reason"])
                continue
            correct = answer["same"] and answer["of"] == self.samples
            delivered = in_words(answer, self.samples, pixels=pixels, labels=len(self.fields) > 1)
            self._note(way.name, reader=answer["reader"], correct=correct, delivered=delivered)

    def _pixels_agree(self, group: str) -> bool:
        """Whether pixels can be compared, and equal those of the files if the way reads files."""
        field = self.split.fields[self.fields["image"]]
        is_stored = field.one_shape is not None and field.dtype == "uint8"
        if self._image_size is not None or not is_stored or self._nbytes > COMPARED_NBYTES:
            return False
        options = self.store.manifest.conversion_options
        return group != "files" or (options.get("size") is None and options.get("encoding", "raw") != "jpeg")

    # --- the cells

    def _compare(self, lanes: Sequence[Lane], phase: Phase, size: int, before: dict[str, Answer]) -> None:
        """Measure all ways at one batch size, in turns; `before` has the last answer of each."""
        answers = self._answers[phase, size] = defaultdict(list)

        def ask(lane: Lane) -> Answer:
            way = self.ways[lane.name]
            self._say(f"{_DOING[phase]}, batch {size:,}, {way.title}")
            least = size * (1 + max(1, way.workers))  # the first batch, which does not count, and one of each worker
            limit = max(LIMIT_SECONDS, LIMIT * self.seconds)
            if not answers[lane.name] and (reason := reason_against(size, least, limit, before[lane.name])):
                return {"state": "failed", "reason": reason}
            patience = max(PATIENCE, 4 * LIMIT * self.seconds)
            answer = lane.ask(phase, patience, batch_size=size, seconds=self.seconds / ROUNDS)
            if lane.reason:
                self._ended[lane.name] = lane.reason
            if answer["state"] == "ok":
                before[lane.name] = {**answer, "size": size}
            return answer

        take_turns(lanes, answers, rounds=ROUNDS, seconds=self.seconds, ask=ask)
        for lane in lanes:
            lane.ask("rest", PATIENCE)

    def _cell(self, name: str, phase: Phase, size: int) -> Cell:
        answers = self._answers.get((phase, size), {}).get(name, [])
        reason = self.ways[name].reason or self._ended.get(name)
        if reason and not answers:
            return Cell(name, phase, size, reason=reason)
        return make_cell(name, phase, size, answers, self.samples)

    def comparison(self) -> Comparison:
        """All results, also after an early stop."""
        cells = [self._cell(name, phase, size) for phase in self._phases for size in self.sizes for name in self.ways]
        spec = getattr(self.split.fields["image"], "spec", None)
        return Comparison(
            store=str(self.store.place),
            split=self.split.name,
            samples=self.samples,
            shape=None if spec is None else spec.shape,
            device=self._device,
            machine=machine(),
            batch_sizes=self.sizes,
            seconds=self.seconds,
            took=time.monotonic() - self._begun,
            interrupted=self.interrupted,
            baseline=int(statistics.median(self._baselines)) if self._baselines else None,
            ways=list(self.ways.values()),
            cells=with_ratios(cells),
            notes=list(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if self.fields:  # masks, texts and others are not among them
            yield f"fields that are loaded: {', '.join(self.fields.values())}"
        if self._image_size is not None:
            from tensorstore_ds.annex.training.crops import crops_in_words, how_of  # imports torch

            what = crops_in_words(self._image_size, how_of(self.options.crop, objects="objects" in self.fields))
            why = "" if self.options.image_size is not None else ", because they differ in size"
            yield f"images are decoded to {what}{why}; choose a size with `image_size`"
        if self._untrainable:
            yield f"training was not measured: {self._untrainable}"


def in_words(answer: Mapping[str, Any], stored: int, *, pixels: bool, labels: bool) -> str:
    """What a way delivered, in words.

    >>> in_words({"of": 9, "samples": 9, "whole": True, "same": True}, 9, pixels=False, labels=True)
    'all 9 samples: labels as stored'
    """
    what = " and ".join([*(["pixels"] if pixels else []), *(["labels"] if labels else [])]) or "number"
    if answer["of"] != stored:
        return f"{answer['of']:,} samples, the store has {stored:,}"
    looked = f"all {stored:,} samples" if answer["whole"] else f"{answer['samples']:,} of {stored:,} samples"
    return f"{looked}: {what} {'as stored' if answer['same'] else 'differ from the store'}"
