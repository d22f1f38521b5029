"""What was measured, as plain data: verdicts follow from these numbers alone. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from tensorstore_ds.diagnosis.settings import Settings


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor cores.

    Attributes:
        machine: of the machine.
        allowed: that this process may use; not always a whole number.
        limited_by: who sets that limit; empty where it is the machine.
        measured: how many times the work of one thread was done by `allowed` threads, while this was measured: less
            than that many where others use the machine, or cores are halves of one.
    """

    machine: int
    allowed: float
    limited_by: str
    measured: float

    @property
    def threads(self) -> int:
        """As many threads, one at least."""
        return max(1, round(self.allowed))


@dataclass(frozen=True, slots=True)
class Memory:
    """Whether what is trained on can stay in memory.

    Attributes:
        nbytes: of the split's fields that are used, as they are stored.
        limit: bytes that this process may use.
        limited_by: who sets that limit.
        resident: share of `nbytes` that was in memory at the beginning, in [0, 1]; None if not known.
    """

    nbytes: int
    limit: int
    limited_by: str
    resident: float | None

    @property
    def fits(self) -> bool:
        """Whether it all fits."""
        return self.nbytes <= self.limit


@dataclass(frozen=True, slots=True)
class Storage:
    """Reading in order from where the store is kept, past the page cache.

    Attributes:
        rate: bytes a second; None if not measured.
        nbytes: read for it.
        reason: why not.
    """

    rate: float | None
    nbytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A loader at work, alone or with a model.

    Attributes:
        settings: of the loader.
        batch_size: samples of a batch.
        rate: samples a second.
        batches: that were counted.
        wait: share of the time in which the next batch was waited for, in [0, 1].
        gather: seconds that a thread worked for a batch.
        copy: seconds that the copy of a batch to a GPU took; 0 elsewhere.
        depth: tasks that stood ready when one was asked for.
        busy: seconds of processor time of this process, a second.
        major_faults: pages that had to be read from storage; None if the system does not tell.
    """

    settings: Settings
    batch_size: int
    rate: float
    batches: int
    wait: float
    gather: float
    copy: float
    depth: float
    busy: float
    major_faults: int | None


@dataclass(frozen=True, slots=True)
class ModelRun:
    """A model at work on one batch that stays on the device.

    Attributes:
        name: of the model.
        batch_size: samples of that batch.
        rate: samples a second.
        larger_batch, larger_rate: the same for a larger batch; 0 if not measured.
        threads: that torch computes with on the CPU.
        fewer_threads, fewer_rate: the same for fewer of them; 0 if not measured.
    """

    name: str
    batch_size: int
    rate: float
    larger_batch: int = 0
    larger_rate: float = 0.0
    threads: int = 1
    fewer_threads: int = 0
    fewer_rate: float = 0.0

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.batch_size / self.rate


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one batch to a GPU: seconds each, waited for.

    Attributes:
        nbytes: of the batch.
        pinned: from page-locked memory, ``non_blocking``.
        pinned_blocking: from there, each tensor waited for.
        pageable: from ordinary memory, ``non_blocking``.
        pageable_blocking: from there, each tensor waited for.
        ahead: samples a second of copy and step, copies one step ahead on a stream of their own; 0 without a model.
        in_turn: the same, each copy before its step.
    """

    nbytes: int
    pinned: float
    pinned_blocking: float
    pageable: float
    pageable_blocking: float
    ahead: float = 0.0
    in_turn: float = 0.0


@dataclass(frozen=True, slots=True)
class TransformRun:
    """What a data set's transform does to the loader.

    Attributes:
        without: samples a second without it.
        one: with it, in one thread.
        several: with it, in `threads` threads.
        threads: how many these are.
        speed_up: how many times the work of one thread these did, the most in any turn.
        possible: the same for threads that hashed, which does not hold the GIL, the least in any turn.
        gil_wait: seconds that another thread waited for the interpreter while these worked, the median.
    """

    without: float
    one: float
    several: float
    threads: int
    speed_up: float
    possible: float
    gil_wait: float


@dataclass(frozen=True, slots=True)
class Decoding:
    """Encoded images, in one thread.

    Attributes:
        read: seconds to get the bytes of a sample.
        decode: seconds to decode them.
    """

    read: float
    decode: float


@dataclass(frozen=True, slots=True)
class Measured:
    """All numbers of a diagnosis.

    Attributes:
        device: where batches go and the model trains: its type.
        layout: of the store.
        encoding: of its images.
        sample_nbytes: stored bytes of a sample, on average.
        found: the loader as the store was found, in memory or not; at most one epoch.
        current: the loader alone with the settings in use, rows in memory.
        runs: the same with other settings.
        model: the model alone; None if none trains.
        together: model and loader with the settings in use; None if no model trains.
        copies: None without a GPU.
        transform: None if the data set has none.
        decoding: None if images are pixels.
        wanted: settings that may be better than those in use; None: none.
        gain: how many times as quick training is with these, or loading where nothing trains.
    """

    device: str
    layout: str
    encoding: str
    sample_nbytes: float
    cores: Cores
    memory: Memory
    storage: Storage
    found: Run
    current: Run
    runs: tuple[Run, ...]
    model: ModelRun | None = None
    together: Run | None = None
    copies: Copies | None = None
    transform: TransformRun | None = None
    decoding: Decoding | None = None
    wanted: Settings | None = None
    gain: float = 1.0

    @property
    def best(self) -> Run:
        """The quickest loader."""
        return max((self.current, *self.runs), key=lambda run: run.rate)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that was found.

    Attributes:
        code: a word for it, such as ``model-bound``.
        line: what it is.
        change: what to do about it.
        evidence: the numbers behind it, by name.
    """

    code: str
    line: str
    change: str
    evidence: dict[str, float]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What holds training back, and what to change.

    Attributes:
        path: of the store.
        split: that was examined.
        samples: that it has.
        batch_size: of the steps.
        device: where the model trains, in words.
        seconds: that the diagnosis took.
        measured: all numbers.
        verdicts: what holds training back, the heaviest first.
        recommended: settings of the loader: those in use, unless others gain something.
        code: the same, to be pasted.
        gain: samples a second with these settings, relative to the ones in use, in training or, where nothing trains,
            in loading; measured in turns; 1 if they are the same.
        not_measured: what could not be measured here, or not wholly, and why.
    """

    path: str
    split: str
    samples: int
    batch_size: int
    device: str
    seconds: float
    measured: Measured
    verdicts: tuple[Verdict, ...]
    recommended: Settings
    code: str
    gain: float
    not_measured: tuple[str, ...]
