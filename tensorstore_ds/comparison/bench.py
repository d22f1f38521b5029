"""All ways at all batch sizes, in turn, each in a process of its own."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorstore_ds.comparison.lane import Answer, Lane
from tensorstore_ds.comparison.limits import Limit
from tensorstore_ds.comparison.machine import machine
from tensorstore_ds.comparison.once import Found, Split, first_epochs, verify
from tensorstore_ds.comparison.options import BenchOptions
from tensorstore_ds.comparison.results import Cell, Comparison, Phase, Row, make_cell, with_ratios
from tensorstore_ds.comparison.stopwatch import least_batches
from tensorstore_ds.comparison.ways import Way, ways_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.machine import usable_cores
from tensorstore_ds.reading.store import Store, open as open_store

#: Each cell is measured in so many rounds, forwards and backwards: what else the machine does falls on all ways.
ROUNDS = 3
#: Times the seconds of a measurement that the least part of an epoch may take.
LIMIT = 20
#: It is not less than this, seconds.
LIMIT_SECONDS = 30.0
#: Seconds in which a process must answer, at least.
PATIENCE = 120.0

_DOING = {"load": "loading", "train": "training"}


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """How far a comparison is.

    Attributes:
        doing: in words.
        done, total: measurements.
    """

    doing: str
    done: int
    total: int


def bench(
    store: str | os.PathLike[str],
    options: BenchOptions | None = None,
    *,
    progress: Callable[[BenchProgress], None] | None = None,
) -> Comparison:
    """Compare ways to load a store's split, and the files that it was made of, on this machine.

    Nothing is written, but for links and logs in the system's temporary folder while it runs. The split and the source
    are dropped from the page cache and read again. All of it happens in processes of their own: this one's random
    generators and threads stay as they are.

    Args:
        store: its path.
        options: what to compare; None for all that there is.
        progress: called before each measurement.

    Returns:
        What was measured. After Ctrl-C, what was measured until then: `interrupted` is true.

    Raises:
        FormatError: the store is damaged.
        OptionError: there is no such split, it is empty, has no images; or the device is not here.
    """
    options = options or BenchOptions()
    opened = open_store(store)
    if options.split not in opened:
        raise OptionError(f"split: expected one of {', '.join(opened.splits)}, found {options.split}.")
    if not len(opened[options.split]) or "image" not in opened.manifest.fields:
        raise OptionError(f"{opened.path.name}, {options.split}: expected samples with a field image, found none.")
    run = _Run(opened, options, progress or (lambda _: None))
    try:
        with tempfile.TemporaryDirectory(prefix="tsds-bench-") as scratch, ExitStack() as stack:
            run.measure(stack, Path(scratch))
    except KeyboardInterrupt:
        run.interrupted = True
    return run.comparison()


class _Run:
    """What has been measured so far."""

    def __init__(self, store: Store, options: BenchOptions, progress: Callable[[BenchProgress], None]) -> None:
        self.options, self.progress = options, progress
        rows = len(store[options.split])
        self.split = Split(store, options.split, {}, options.sizes(rows), options.time_for(rows))
        self.ways = ways_of(options.ways, usable_cores())
        self.interrupted = False
        self._begun = time.monotonic()
        self._found: Found = {way.name: {} for way in self.ways}
        self._answers: dict[tuple[str, Phase, int], list[Answer]] = {}
        self._ended: dict[str, str] = {}  # of ways that were measured until their process ended
        self._baselines: list[int] = []
        self._device = ""
        self._untrainable = "" if options.train else "it was left out"
        self._done = 0

    @property
    def _phases(self) -> tuple[Phase, ...]:
        return ("load",) if self._untrainable else ("load", "train")

    def measure(self, stack: ExitStack, scratch: Path) -> None:
        """Everything, one after the other."""
        lanes = self._start(stack, scratch)
        seen: dict[str, Limit] = {}
        first_epochs(self.split, self._able(lanes), self._found, seen, self._say)
        verify(self.split, self._able(lanes), self._found, scratch, self._say)
        for phase in self._phases:
            limits = {name: replace(limit) for name, limit in seen.items()}
            for size in self.split.sizes:
                self._compare(self._able(lanes), phase, size, limits)

    # --- the processes

    def _start(self, stack: ExitStack, scratch: Path) -> list[Lane]:
        """Start all, and wait for each: most of it is importing torch, which they do side by side."""
        lanes: list[Lane] = []
        for way in self.ways:
            if way.group == "files" and self.options.raw is None:
                self._found[way.name]["reason"] = "--raw DIR was not given"
            elif way.group != "device":
                lanes.append(stack.enter_context(Lane(way, self._assignment(scratch), scratch)))
        for lane in lanes:
            self._begin(lane)
        for way in self.ways:  # last, since the others know whether there is a GPU
            if way.group == "device" and self._device == "cpu":
                self._found[way.name]["reason"] = "there is no GPU"
            elif way.group == "device":
                lanes.append(stack.enter_context(Lane(way, self._assignment(scratch), scratch)))
                self._begin(lanes[-1])
        return lanes

    def _assignment(self, scratch: Path) -> dict[str, Any]:
        raw, options = self.options.raw, self.options
        return {
            "store": str(self.split.store.path),
            "split": options.split,
            "raw": None if raw is None else str(Path(raw).absolute()),
            "scratch": str(scratch),
            "device": options.device,
            "memory": options.memory,
            "seed": options.seed,
        }

    def _begin(self, lane: Lane) -> None:
        self._say(f"starting {lane.way.title}")
        lane.begin(PATIENCE)
        if lane.refused:
            raise OptionError(lane.reason)
        self._found[lane.way.name]["reason"] = lane.reason
        if not lane.reason:
            self.split = replace(self.split, fields=lane.ready["fields"])
            self._device = lane.ready["device_name"] or lane.ready["device"]
            self._untrainable = self._untrainable or lane.ready["untrainable"]
            self._baselines += [lane.ready["memory"]] if lane.ready["memory"] is not None else []

    def _able(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Those that still measure something."""
        return [lane for lane in lanes if not lane.reason and not self._found[lane.way.name].get("reason")]

    # --- the cells

    def _compare(self, lanes: Sequence[Lane], phase: Phase, size: int, limits: dict[str, Limit]) -> None:
        """All ways at one batch size, in turn."""
        spent = {lane.way.name: 0.0 for lane in lanes}
        for round_ in range(ROUNDS):
            for lane in lanes if round_ % 2 == 0 else reversed(lanes):
                name = lane.way.name
                self._say(f"{_DOING[phase]}, batch {size:,}, {lane.way.title}")
                answers = self._answers.setdefault((name, phase, size), [])
                if not answers:
                    batches = 1 + least_batches(lane.way.workers)  # one comes before
                    least = min(self.split.rows, batches * size)
                    reason = limits[name].reason(size, least, max(LIMIT_SECONDS, LIMIT * self.split.seconds))
                    answers += [{"state": "failed", "reason": reason}] if reason else []
                if spent[name] >= self.split.seconds or any(answer["state"] != "ok" for answer in answers):
                    continue
                patience = max(PATIENCE, 4 * LIMIT * self.split.seconds)
                answer = lane.ask(phase, patience, batch_size=size, seconds=self.split.seconds / ROUNDS)
                answers.append(answer)
                if lane.reason:
                    self._ended[name] = lane.reason
                if answer["state"] == "ok":
                    spent[name] += answer["took"]
                    limits[name].learn(size, answer)
        for lane in lanes:
            lane.ask("rest", PATIENCE)

    # --- what was found

    def comparison(self) -> Comparison:
        """All of it, also when it was stopped early."""
        split = self.split
        cells = [self._cell(way, p, size) for p in self._phases for size in split.sizes for way in self.ways]
        spec = getattr(split.store.manifest.fields["image"], "spec", None)
        return Comparison(
            store=str(split.store.path),
            split=split.name,
            rows=split.rows,
            shape=None if spec is None else spec.shape,
            device=self._device,
            machine=machine(),
            batch_sizes=split.sizes,
            seconds=split.seconds,
            took=time.monotonic() - self._begun,
            interrupted=self.interrupted,
            baseline=int(statistics.median(self._baselines)) if self._baselines else None,
            ways=[
                Row(way.name, way.title, way.group, way.workers, way.ours, **self._found[way.name]) for way in self.ways
            ],
            cells=with_ratios(cells),
            notes=[f"training was not measured: {self._untrainable}"] if self._untrainable else [],
        )

    def _cell(self, way: Way, phase: Phase, size: int) -> Cell:
        answers = self._answers.get((way.name, phase, size), [])
        reason = self._found[way.name].get("reason") or self._ended.get(way.name)
        if reason and not answers:
            return Cell(way.name, phase, size, reason=reason)
        return make_cell(way.name, phase, size, answers, self.split.rows)

    def _say(self, doing: str) -> None:
        total = len(self.ways) * (3 + len(self.split.sizes) * ROUNDS * len(self._phases))
        self.progress(BenchProgress(doing, min(self._done, total), total))
        self._done += 1
