"""Who is told how a run goes, and what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tensorstore_ds.training.epoch_record import EpochRecord


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Where a run is.

    Attributes:
        epoch, epochs: counted from 1.
        batch, batches: of this epoch and rank, counted from 1.
        metrics: `loss` and the task's, of the epoch so far, of this rank.
        samples_per_second: over all ranks, since the epoch began here.
        wait_share: of the time, in [0, 1], in which steps waited for data.
        seconds_left: of training, to the end of the run.
        device_memory: bytes of a GPU's memory that were taken at most; None elsewhere.
    """

    epoch: int
    epochs: int
    batch: int
    batches: int
    metrics: Mapping[str, float]
    samples_per_second: float
    wait_share: float
    seconds_left: float
    device_memory: int | None


@dataclass(frozen=True)
class Listeners:
    """Who is told how a run goes: functions of one argument, called on the first rank only.

    Attributes:
        note: a line, before the first epoch.
        progress: a `TrainProgress`, about twice a second.
        epoch: an `EpochRecord`, after each epoch.
    """

    note: Callable[[str], None] = lambda _: None
    progress: Callable[[TrainProgress], None] = lambda _: None
    epoch: Callable[[EpochRecord], None] = lambda _: None
