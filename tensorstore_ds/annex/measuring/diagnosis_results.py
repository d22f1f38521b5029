"""What a diagnosis measured and says, as plain data: verdicts follow from these numbers alone. No torch is imported."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from tensorstore_ds.annex.training.options import Residency
from tensorstore_ds.version import Installation, installation


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of `DataLoader` that `diagnose` compares. None is the default of `DataLoader`."""

    num_threads: int | None = None
    prefetch_factor: int | None = None
    num_workers: int = 0
    residency: Residency = "page-cache"
    block_rows: int = 0  #: ``block_rows`` of a `BlockShuffleSampler`; 0 for a full shuffle
    window_blocks: int = 0  #: ``window_blocks`` of the `BlockShuffleSampler`

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `DataLoader` that differ from its defaults.

        >>> Settings(num_threads=4, block_rows=64).arguments()
        {'num_threads': 4}
        """
        fields = dataclasses.fields(self)[:4]
        changed = {f.name: getattr(self, f.name) for f in fields if getattr(self, f.name) != f.default}
        if self.num_workers:
            changed["persistent_workers"] = True  # or each epoch would start them anew
        return changed


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor cores of the machine, and how many this process may use."""

    machine: int  #: cores of the machine
    allowed: float  #: cores that this process may use; not always a whole number
    limited_by: str  #: what sets this limit; empty if it is the machine
    #: measured speed of `allowed` threads relative to one thread; lower than `allowed` if other processes use the
    #: machine, or if cores are hyperthreads
    measured: float

    @property
    def threads(self) -> int:
        """Number of threads for `allowed` cores, rounded, at least 1."""
        return max(1, round(self.allowed))


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that the samples need, and the memory that is available."""

    nbytes: int  #: stored bytes of the fields of the split that are used
    limit: int  #: bytes that this process may use
    limited_by: str  #: what sets this limit
    resident: float | None  #: share of `nbytes` that was in memory at the beginning, in [0, 1]; None if unknown
    reason: str = ""  #: why `resident` is unknown

    @property
    def fits(self) -> bool:
        """Whether `nbytes` is within `limit`."""
        return self.nbytes <= self.limit


@dataclass(frozen=True, slots=True)
class Run:
    """Measurement of a loader, alone or with a model."""

    settings: Settings  #: settings of the loader
    batch_size: int  #: samples per batch
    rate: float  #: samples per second
    batches: int  #: number of batches that were measured
    wait: float  #: share of the time spent waiting for the next batch, in [0, 1]
    gather: float  #: seconds of work of a thread per batch
    copy: float  #: seconds to copy a batch to a GPU; 0 on other devices
    depth: float  #: mean number of tasks that were ready when the loader asked for one
    busy: float  #: seconds of processor time of this process, per second
    major_faults: int | None  #: pages that had to be read from storage; None if the system does not report it
    cause: str = ""  #: what limited it, as `LoaderStats.cause` names it


@dataclass(frozen=True, slots=True)
class ModelRun:
    """Measurement of a model on one batch that stays on the device."""

    name: str  #: name of the model
    batch_size: int  #: samples per batch
    rate: float  #: samples per second
    threads: int = 1  #: threads that torch uses on the CPU
    fewer_threads: int = 0  #: a smaller number of threads that was also measured; 0 if not measured
    fewer_rate: float = 0.0  #: samples per second with `fewer_threads`

    @property
    def seconds(self) -> float:
        """Seconds per step."""
        return self.batch_size / self.rate


@dataclass(frozen=True, slots=True)
class TransformRun:
    """Effect of the transform of a data set on the speed of the loader."""

    without: float  #: samples per second without the transform
    one: float  #: samples per second with the transform in one thread
    several: float  #: samples per second with the transform in `threads` threads
    threads: int  #: number of threads of `several`
    gil_wait: float  #: median seconds that another thread waited for the GIL while the threads worked


@dataclass(frozen=True, slots=True)
class Decoding:
    """Time to read and decode encoded images, in one thread."""

    read: float  #: seconds to read the bytes of a sample
    decode: float  #: seconds to decode the bytes of a sample
    in_part: bool = False  #: whether the loader decodes a part or a smaller image only, by a decode plan


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements of a diagnosis."""

    device: str  #: type of the device on which the model trains
    layout: str  #: layout of the store
    encoding: str  #: encoding of its images
    sample_nbytes: float  #: stored bytes per sample, on average
    cores: Cores  #: processor cores
    memory: Memory  #: memory that the samples need
    first_epoch: Run  #: the loader from its start, whether the store is in memory or not; at most one epoch
    current: Run  #: the loader alone with the current settings, with rows in memory
    runs: tuple[Run, ...]  #: the loader alone with other settings, with rows in memory
    model: ModelRun | None = None  #: the model alone; None if no model trains
    together: Run | None = None  #: model and loader with the current settings; None if no model trains
    transform: TransformRun | None = None  #: effect of the transform; None if the data set has none
    decoding: Decoding | None = None  #: time to read and decode images; None if images are stored as pixels
    wanted: Settings | None = None  #: settings that are better than the current ones; None if there are none
    #: speed of training with `wanted` relative to the current settings, or of loading if no model trains
    gain: float = 1.0
    #: time of small operations of torch in the training thread while the loader works, relative to the time without it
    disturbance: float = 1.0

    @property
    def best(self) -> Run:
        """The fastest measurement of the loader alone."""
        return max((self.current, *self.runs), key=lambda run: run.rate)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding of `diagnose`, with a recommendation."""

    code: str  #: short identifier, such as ``model-bound``
    line: str  #: the finding, in one sentence or more
    change: str  #: what to do about it
    evidence: dict[str, float]  #: the numbers behind it, by name


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of `diagnose` for a store: what slows training down, and what to change."""

    path: str  #: path of the store
    split: str  #: split that was measured
    samples: int  #: number of samples in the data set
    batch_size: int  #: samples per step
    device: str  #: device on which the model trains, in words
    seconds: float  #: duration of the diagnosis
    measured: Measured  #: all measurements
    cause: str  #: what limits training, as `LoaderStats.cause` names it; empty if no model trains
    verdicts: tuple[Verdict, ...]  #: findings about what slows training down, the most important first
    recommended: Settings  #: recommended settings of the loader; the current ones unless others are faster
    code: str  #: Python code with the recommended settings, to paste
    #: Samples per second with `recommended` relative to the current settings, measured in turns; 1 if they are the
    #: same. Measures training, or loading if no model trains.
    gain: float
    not_measured: tuple[str, ...]  #: what could not be measured, or only in part, and why
    installation: Installation = field(default_factory=installation)  #: versions, and the compiled kernels in use
