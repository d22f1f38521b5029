"""Measure a loader of any library, and a training step, alone and together."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tensorstore_ds.annex.measuring.diagnosis_results import Verdict
from tensorstore_ds.annex.measuring.measure import endless, finish, in_turns, measure, ready
from tensorstore_ds.annex.measuring.verdicts import SLOWER, launch_bound
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.epoch import LoaderStats
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.words import percent, rate

#: Rounds of the three measurements, in which the loader, both, and the step take turns.
ROUNDS = 3
#: What a loader of this library knows of its cause.
_WHY = {
    "loading": " Its threads do not finish batches in time.",
    "handover": " Its batches are finished in time, but it takes long to hand them over.",
    **dict.fromkeys(
        ("script", "training"), " Its batches are handed over in time, but its threads slow the step down."
    ),
}


@dataclass(frozen=True, slots=True)
class LoaderDiagnosis:
    """Result of `diagnose` for a `loader`: rates of the loader and of a training step.

    Rates are in samples per second. Each is the median over 3 rounds, in which the measurements alternate.
    """

    batch_size: int  #: Number of samples per batch.
    first_batch: float  #: Seconds from the start of the iteration to its first batch.
    load_rate: float  #: Rate of the loader alone.
    step_rate: float | None  #: Rate of the step alone, on one batch that stays on the device, or None without a step.
    together_rate: float | None  #: Rate of the step on batches of the loader, or None without a step.
    verdicts: tuple[Verdict, ...]  #: Findings about what slows training down.
    seconds: float  #: Duration of the measurement.
    #: What limits the step with a loader of this library, as `LoaderStats.cause` names it; empty for other loaders.
    cause: str = ""

    @property
    def wait(self) -> float | None:
        """Share of a training step that is spent on loading, in [0, 1]; None without a step."""
        if self.step_rate is None or self.together_rate is None:
            return None
        return max(0.0, 1 - self.together_rate / self.step_rate)


def diagnose_loader(
    loader: Iterable[Any], step: Callable[[Any], Any] | None, *, device: torch.device, seconds: float
) -> LoaderDiagnosis:
    """Measure a repeatedly iterable loader; raises `OptionError` if it has no batch, or a batch without tensors."""
    began = time.perf_counter()
    batches = endless(loader)
    first = next(batches)
    first_batch = time.perf_counter() - began
    size, share = _samples_of(first), seconds / ROUNDS / (1 if step is None else 3)
    if step is not None:
        step(first)  # what a model does once in its life
        finish(device)
    stats = loader.stats if isinstance(loader, DataLoader) else LoaderStats
    skipped = max(ready(loader), isinstance(loader, DataLoader))  # made, or begun, while the step was measured

    def rate(feed: Iterator[Any], step: Callable[[Any], Any] = lambda batch: None) -> tuple[float, str]:
        for _ in range(skipped if feed is batches else 0):
            next(batches)

        def counted(batch: Any) -> int:
            step(batch)
            return _samples_of(batch)

        before = stats()
        found = measure(feed, share, counted, device=device).rate
        return found, (stats() - before).cause

    works = {"load": partial(rate, batches)}
    if step is not None:
        works |= {"together": partial(rate, batches, step), "step": partial(rate, itertools.repeat(first), step)}
    found = in_turns(works, ROUNDS)
    medians = {name: statistics.median(rate for rate, _ in turns) for name, turns in found.items()}
    cause = statistics.mode(cause for _, cause in found["together"]) if step is not None else ""
    load, alone, together = medians["load"], medians.get("step"), medians.get("together")
    verdicts = (_verdict(load, alone, together, size, cause),)
    return LoaderDiagnosis(size, first_batch, load, alone, together, verdicts, time.perf_counter() - began, cause)


def _samples_of(batch: Any) -> int:
    """Samples of a batch: the length of its first field, or of the batch if it is a list of dicts."""
    found = _length(batch, is_batch=True)
    if found is None:
        message = f"expected batches of tensors, found {type(batch).__name__}"
        raise OptionError(f"`loader`: {message}. Pass a loader whose batches are tensors, or lists or dicts of them.")
    return found


def _length(value: Any, *, is_batch: bool) -> int | None:
    if isinstance(value, Mapping):
        if not is_batch and (ends := _length(value.get("offsets"), is_batch=False)):  # objects, one after the other
            return ends - 1
        fields = sorted(value.values(), key=lambda each: isinstance(each, Mapping))
        return next((n for n in (_length(each, is_batch=False) for each in fields) if n is not None), None)
    if hasattr(value, "shape") and len(value.shape):
        return int(value.shape[0])
    if not isinstance(value, list | tuple) or not value:
        return None
    if is_batch and not isinstance(value[0], Mapping):
        return _length(value[0], is_batch=False)
    return len(value)


def _verdict(load: float, alone: float | None, together: float | None, size: int, cause: str = "") -> Verdict:
    evidence = {"load_rate": load, "step_rate": alone or 0.0, "together_rate": together or 0.0}
    if alone is None or together is None:
        line = f"The loader gives {rate(load)} in batches of {size}."
        return Verdict("loading-alone", line, "Pass `step` to learn whether training waits for it.", evidence)
    if together >= SLOWER * alone and cause == "script":
        return launch_bound(size / alone, evidence)
    if together >= SLOWER * alone:
        line = f"The step is the limit: {rate(alone)}, and {rate(together)} with this loader."
        change = "A faster model trains faster: lower precision, torch.compile, smaller images."
        return Verdict("model-bound", line, change, evidence)
    wait = percent(1 - together / alone)
    line = (
        f"Training waits for the loader {wait} of the time: the step alone takes {rate(alone)}, the loader alone gives "
        f"{rate(load)}, and both together come to {rate(together)}."
    )
    line += _WHY.get(cause, "")
    then = "tsds doctor STORE finds what to change." if cause else "tsds doctor SRC measures a store."
    change = f"A loader that keeps up makes training {alone / together:.1f}x as fast. {then}"
    return Verdict("loader-bound", line, change, evidence)
