"""What a diagnosis measured and says, as plain data: verdicts follow from these numbers alone. No torch is imported."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from tensorstore_ds.training.options import Residency
from tensorstore_ds.version import Installation, installation


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of `DataLoader` that are compared with each other; None: its default."""

    num_threads: int | None = None
    prefetch_factor: int | None = None
    num_workers: int = 0
    pin_memory: bool | None = None
    residency: Residency = "page-cache"
    block_rows: int = 0  #: of a `BlockShuffleSampler`; 0 for a full shuffle
    window_blocks: int = 0  #: of the same

    def arguments(self) -> dict[str, Any]:
        """Those of `DataLoader` that are not its defaults.

        >>> Settings(num_threads=4, block_rows=64).arguments()
        {'num_threads': 4}
        """
        fields = dataclasses.fields(self)[:5]
        changed = {f.name: getattr(self, f.name) for f in fields if getattr(self, f.name) != f.default}
        if self.num_workers:
            changed["persistent_workers"] = True  # or each epoch would start them anew
        return changed


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor cores."""

    machine: int  #: of the machine
    allowed: float  #: that this process may use; not always a whole number
    limited_by: str  #: who sets that limit; empty where it is the machine
    #: How many times the work of one thread was done by `allowed` threads, while this was measured; less than that many
    #: where others use the machine, or cores are halves of one.
    measured: float

    @property
    def threads(self) -> int:
        """As many threads, one at least."""
        return max(1, round(self.allowed))


@dataclass(frozen=True, slots=True)
class Gathers:
    """Copies in one thread, from memory to memory: bytes per second, the most in any turn."""

    whole: float  #: of many rows that lie in one piece
    aligned: float  #: of as many random rows, into an array that begins at a page
    misaligned: float  #: the same, into one that begins 16 bytes after a cache line


@dataclass(frozen=True, slots=True)
class Memory:
    """Whether what is trained on can stay in memory."""

    nbytes: int  #: of the split's fields that are used, as they are stored
    limit: int  #: bytes that this process may use
    limited_by: str  #: who sets that limit
    resident: float | None  #: share of `nbytes` that was in memory at the beginning, in [0, 1]; None if not known
    reason: str = ""  #: why it is not known

    @property
    def fits(self) -> bool:
        """Whether it all fits."""
        return self.nbytes <= self.limit


@dataclass(frozen=True, slots=True)
class Storage:
    """Reading in order from where the store is kept, past the page cache."""

    rate: float | None  #: bytes per second; None if not measured
    nbytes: int = 0  #: read for it
    reason: str = ""  #: why it was not measured


@dataclass(frozen=True, slots=True)
class Run:
    """A loader at work, alone or with a model."""

    settings: Settings  #: of the loader
    batch_size: int  #: samples of a batch
    rate: float  #: samples per second
    batches: int  #: that were counted
    wait: float  #: share of the time in which the next batch was waited for, in [0, 1]
    gather: float  #: seconds that a thread worked for a batch
    copy: float  #: seconds that the copy of a batch to a GPU took; 0 elsewhere
    depth: float  #: tasks that stood ready when one was asked for
    busy: float  #: seconds of processor time of this process, per second
    major_faults: int | None  #: pages that had to be read from storage; None if the system does not tell


@dataclass(frozen=True, slots=True)
class ModelRun:
    """A model at work on one batch that stays on the device."""

    name: str  #: of the model
    batch_size: int  #: samples of that batch
    rate: float  #: samples per second
    larger_batch: int = 0  #: a larger batch; 0 if not measured
    larger_rate: float = 0.0  #: samples per second with it
    threads: int = 1  #: that torch computes with on the CPU
    fewer_threads: int = 0  #: fewer of them; 0 if not measured
    fewer_rate: float = 0.0  #: samples per second with these

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.batch_size / self.rate


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one batch to a GPU: seconds each, waited for."""

    nbytes: int  #: of the batch
    pinned: float  #: from page-locked memory
    pageable: float  #: from ordinary memory
    #: Samples per second of copy and step, with copies one step ahead on a stream of their own; 0 without a model.
    ahead: float = 0.0
    in_turn: float = 0.0  #: the same, each copy before its step


@dataclass(frozen=True, slots=True)
class TransformRun:
    """What a data set's transform does to the loader."""

    without: float  #: samples per second without it
    one: float  #: with it, in one thread
    several: float  #: with it, in `threads` threads
    threads: int  #: how many these are
    speed_up: float  #: how many times the work of one thread these did, the most in any turn
    possible: float  #: the same for threads that hashed, which does not hold the GIL, the least in any turn
    gil_wait: float  #: seconds that another thread waited for the interpreter while these worked, the median


@dataclass(frozen=True, slots=True)
class Decoding:
    """Encoded images, in one thread."""

    read: float  #: seconds to get the bytes of a sample
    decode: float  #: seconds to decode them


@dataclass(frozen=True, slots=True)
class Measured:
    """All numbers of a diagnosis."""

    device: str  #: the type of the device on which the model trains
    layout: str  #: of the store
    encoding: str  #: of its images
    sample_nbytes: float  #: stored bytes of a sample, on average
    cores: Cores
    memory: Memory
    storage: Storage
    gathers: Gathers
    first_epoch: Run  #: the loader from its start, with the store in memory or not; at most one epoch
    current: Run  #: the loader alone with the settings in use, rows in memory
    runs: tuple[Run, ...]  #: the same with other settings
    model: ModelRun | None = None  #: the model alone; None if none trains
    together: Run | None = None  #: model and loader with the settings in use; None if no model trains
    copies: Copies | None = None  #: None without a GPU
    transform: TransformRun | None = None  #: None if the data set has none
    decoding: Decoding | None = None  #: None if images are pixels
    wanted: Settings | None = None  #: settings that are better than those in use, if there are any
    gain: float = 1.0  #: how many times as quick training is with these, or loading where nothing trains

    @property
    def best(self) -> Run:
        """The quickest loader."""
        return max((self.current, *self.runs), key=lambda run: run.rate)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding of `diagnose`, with what to change."""

    code: str  #: a word for it, such as ``model-bound``
    line: str  #: what it is
    change: str  #: what to do about it
    evidence: dict[str, float]  #: the numbers behind it, by name


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of `diagnose`, what slows training down and what to change."""

    path: str  #: of the store
    split: str  #: that was examined
    samples: int  #: that it has
    batch_size: int  #: of the steps
    device: str  #: where the model trains, in words
    seconds: float  #: that the diagnosis took
    measured: Measured  #: all numbers
    verdicts: tuple[Verdict, ...]  #: what holds training back, the heaviest first
    recommended: Settings  #: settings of the loader, which are those in use unless others are faster
    code: str  #: the same, to be pasted
    #: Samples per second with these settings, relative to the ones in use, in training or, where nothing trains, in
    #: loading; measured in turns; 1 if they are the same.
    gain: float
    not_measured: tuple[str, ...]  #: what could not be measured, or not wholly, and why
    installation: Installation = field(default_factory=installation)  #: versions, and the compiled kernels in use
