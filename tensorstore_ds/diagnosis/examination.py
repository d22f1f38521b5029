"""The measurements of a diagnosis, in an order in which none spoils the next, and each within its share of the time."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from tensorstore_ds.diagnosis.copies import copy_times
from tensorstore_ds.diagnosis.cores import examine_cores
from tensorstore_ds.diagnosis.findings import Copies, Cores, Measured, ModelRun, Run
from tensorstore_ds.diagnosis.learning import Student, fitting_batch, model_alone, torch_threads
from tensorstore_ds.diagnosis.options import DiagnoseOptions
from tensorstore_ds.diagnosis.rows import loadable_batch, memory_of, warmed
from tensorstore_ds.diagnosis.runs import gain_of, in_turns, loader_of, median, run
from tensorstore_ds.diagnosis.settings import Settings
from tensorstore_ds.diagnosis.storage import read_storage
from tensorstore_ds.diagnosis.subject import Subject
from tensorstore_ds.diagnosis.work import decoding_of, encoding_of, transform_of
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.loading.resident import choose
from tensorstore_ds.machine import usable_cores

#: Shares of the time for each measurement; the rest goes to starting up, and to batches that are waited for.
STORAGE, FOUND, WARM, CORES, MODEL, LARGER = 0.04, 0.08, 0.1, 0.03, 0.1, 0.05
SWEEP, WORK, TOGETHER, COMPARED = 0.22, 0.1, 0.08, 0.14
#: Share that one batch may take, to load or to learn from, so that there are several of them.
BATCH = 0.02
#: Turns in which settings are compared.
ROUNDS = 3
#: A batch so many times as large is tried, too.
LARGER_TIMES = 4
#: Bytes that are copied to the device to try it from there, at most.
DEVICE_NBYTES = 4 * 1024**3


class Examination:
    """One data set, on one device, with one model or none.

    Attributes:
        batch_size: asked for, cut to the data.
        notes: what could not be measured, or not wholly, and why.
    """

    def __init__(
        self,
        subject: Subject,
        options: DiagnoseOptions,
        device: torch.device,
        student: Student | None,
        progress: Callable[[str], None],
    ) -> None:
        self.batch_size = min(options.batch_size, len(subject.dataset))
        self.notes: list[str] = []
        self._subject = subject
        self._options = options
        self._device = device
        self._student = student
        self._progress = progress
        self._used = Settings(options.num_threads, options.prefetch_factor, pin_memory=options.pin_memory)
        self._rows = subject.dataset  # those that are in memory, once they have been brought there
        self._load_batch = self._step_batch = self.batch_size

    def measure(self) -> Measured:
        """All that verdicts follow from."""
        subject, seconds = self._subject, self._options.seconds
        self._progress("the storage")
        memory, unknown = memory_of(subject, self._options.memory)
        self._note("how much was in memory", unknown)
        storage = read_storage(subject.store, subject.columns, seconds=STORAGE * seconds)
        self._note("storage", storage.reason)
        self._progress("the loader, as the store was found")
        self._cut_to_time()
        found = self._run(self._used, FOUND * seconds)
        self._progress("bringing the store into memory")
        self._rows = warmed(subject, memory, seconds=WARM * seconds)
        if len(self._rows) < len(subject.dataset):
            some = f"{len(self._rows):,} of {len(subject.dataset):,} were brought there"
            self._note("all samples from memory", some)
        cores = examine_cores(self._options.cores, seconds=CORES * seconds)
        model = self._model(cores)
        together = self._together(model)
        self._progress("the loader, with other settings")
        sweep = self._in_turns(self._candidates(cores.threads), SWEEP * seconds, None)
        current, *runs = map(median, sweep.values())
        self._progress("what its threads do")
        return Measured(
            device=self._device.type,
            layout=subject.store.layout,
            encoding=encoding_of(subject.dataset),
            sample_nbytes=memory.nbytes / len(subject.dataset.split),
            cores=cores,
            memory=memory,
            storage=storage,
            found=found,
            current=current,
            runs=tuple(runs),
            model=model,
            together=together,
            copies=self._copies(),
            transform=transform_of(
                self._rows, batch_size=self._load_batch, cores=cores.threads, seconds=WORK * seconds
            ),
            decoding=decoding_of(self._rows, seconds=WORK * seconds / 2),
        )

    def gain(self, used: Settings, wanted: Settings) -> float:
        """How many times as quick training (or loading, where nothing trains) is with `wanted`; measured in turns."""
        if wanted == used:
            return 1.0
        self._progress("what is recommended")
        found = self._in_turns((used, wanted), COMPARED * self._options.seconds, self._student)
        return gain_of(found[used], found[wanted])

    def _note(self, what: str, why: str) -> None:
        if why:
            self.notes.append(f"{what}: {why}")

    # --- loading

    def _cut_to_time(self) -> None:
        limit = BATCH * self._options.seconds
        self._load_batch = loadable_batch(self._subject.dataset, self.batch_size, seconds=limit)
        if self._load_batch < self.batch_size:
            some = f"those of {self._load_batch} were, since one sample takes so long"
            self._note(f"loading batches of {self.batch_size}", some)

    def _loader(self, settings: Settings, student: Student | None) -> DataLoader:
        if student is None:
            return loader_of(self._rows, settings, batch_size=self._load_batch, device=self._device)
        return loader_of(
            self._rows,
            settings,
            batch_size=self._step_batch,
            device=self._device,
            collate=student.collate,
            batch_transform=student.transform,
        )

    def _run(self, settings: Settings, seconds: float) -> Run:
        """The first epoch of a loader, from its start."""
        return run(self._loader(settings, None), settings, seconds=seconds, first_epoch=True)

    def _in_turns(
        self, candidates: Iterable[Settings], seconds: float, student: Student | None
    ) -> dict[Settings, list[Run]]:
        """Runs with each of these settings, by loaders that are kept from one turn to the next."""
        step = None if student is None else student.step
        loaders = {settings: self._loader(settings, student) for settings in candidates}
        measure = {s: functools.partial(_run_for, loader, s, step) for s, loader in loaders.items()}
        try:
            return in_turns(measure, seconds=seconds, rounds=ROUNDS if len(measure) > 1 else 1)
        finally:
            for loader in loaders.values():
                loader._iterator = None  # torch's, whose worker processes end with it; a garbage collection takes 10 s

    # --- other settings

    def _candidates(self, cores: int) -> list[Settings]:
        """The settings in use, and others that may be better."""
        used = self._used
        threads = [n for n in sorted({1, 2, 4, 8, cores}) if n <= max(4, 2 * cores)]
        found = [used, *(replace(used, num_threads=n) for n in threads)]
        found += [replace(used, num_threads=max(2, min(8, cores)), prefetch_factor=n) for n in (1, 4)]
        if used.pin_memory is False and self._device.type == "cuda":
            found.append(replace(used, pin_memory=None))
        return list(dict.fromkeys([*found, *self._processes(cores), *self._on_device()]))

    def _processes(self, cores: int) -> list[Settings]:
        """torch's worker processes, which a transform that holds the GIL may want."""
        workers = min(cores, usable_cores())
        if self._subject.dataset.transform is None or workers < 2:
            return []
        method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
        if method != "fork":
            self._note("worker processes", f"they are started by {method} here, which would run your script again")
            return []
        return [replace(self._used, num_threads=None, num_workers=workers)]

    def _on_device(self) -> list[Settings]:
        """The split on the GPU, if all of it is in memory, and takes little there."""
        dataset, all_there = self._rows, len(self._rows) == len(self._subject.dataset)
        if not all_there or choose("auto", dataset, self._device) != "device":
            return []
        if dataset.nbytes > DEVICE_NBYTES:
            self._note("residency='device'", "it would take too long to copy the split there")
            return []
        return [replace(self._used, residency="device")]

    # --- the model

    def _model(self, cores: Cores) -> ModelRun | None:
        """The model alone, on a batch as large as there is time and memory for."""
        student, seconds = self._student, self._options.seconds
        if student is None:
            return None
        self._progress("the model alone")
        largest = min(self.batch_size, len(self._rows))
        try:
            size, why = fitting_batch(student, self._rows, largest, self._device, seconds=BATCH * seconds)
        except Exception as error:
            if self._subject.dataset.transform is None:
                raise
            self._note(
                "training", f"the model does not take what the transform makes ({type(error).__name__}: {error})"
            )
            self._student = None
            return None
        if why:
            self._note(f"steps of {self.batch_size} samples", f"those of {size} were, since {why}")
        self._step_batch = size
        found = model_alone(student, self._rows, size, self._device, seconds=MODEL * seconds)
        return self._larger_batch(student, self._fewer_threads(student, found, cores), cut=bool(why))

    def _fewer_threads(self, student: Student, found: ModelRun, cores: Cores) -> ModelRun:
        """On the CPU also with as many threads as there was work done for: more of them wait for each other."""
        fewer = max(1, int(cores.measured))
        if self._device.type != "cpu" or fewer >= found.threads:
            return found
        with torch_threads(fewer):
            seconds = LARGER * self._options.seconds
            again = model_alone(student, self._rows, found.batch_size, self._device, seconds=seconds)
        return replace(found, fewer_threads=fewer, fewer_rate=again.rate)

    def _larger_batch(self, student: Student, found: ModelRun, *, cut: bool) -> ModelRun:
        """Also on a batch some times as large, if there is time for it."""
        seconds = LARGER * self._options.seconds
        larger = min(LARGER_TIMES * found.batch_size, len(self._rows))
        if cut or larger < 2 * found.batch_size or larger / found.rate > seconds:
            return found
        try:
            more = model_alone(student, self._rows, larger, self._device, seconds=seconds)
        except torch.OutOfMemoryError:
            self._note(f"steps of {larger} samples", f"they do not fit into the memory of {self._device}")
            return found
        return replace(found, larger_batch=larger, larger_rate=more.rate)

    def _together(self, model: ModelRun | None) -> Run | None:
        if self._student is None or model is None:
            return None
        self._progress("model and loader together")
        return median(self._in_turns([self._used], TOGETHER * self._options.seconds, self._student)[self._used])

    def _copies(self) -> Copies | None:
        if self._device.type != "cuda":
            self._note("copies to a device", f"there is none to copy to, batches stay on the {self._device}")
            return None
        size = self._step_batch if self._student is not None else self._load_batch
        return copy_times(self._rows, self._student, size, self._device, seconds=WORK * self._options.seconds)


def _run_for(loader: DataLoader, settings: Settings, step: Callable[[object], object] | None, seconds: float) -> Run:
    return run(loader, settings, seconds=seconds, step=step)
