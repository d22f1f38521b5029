"""The measurements of a diagnosis, in an order in which none spoils the next, and each within its share of the time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tensorstore_ds.annex.measuring import measure_loading as loading, measure_training as training
from tensorstore_ds.annex.measuring.diagnose_options import DiagnoseOptions
from tensorstore_ds.annex.measuring.diagnosis_results import Measured, ModelRun, Run, Settings
from tensorstore_ds.annex.measuring.measure import in_turns
from tensorstore_ds.annex.measuring.measure_machine import measure_cores, measure_memory
from tensorstore_ds.annex.training.crops import crops_in_words, decode_plan, how_of, image_size_of
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.errors import OptionError, TsdsError
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Decode, Plan, place_on, plans_of
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.loading.resident import choose
from tensorstore_ds.machine import usable_cores

#: Shares of the time for each measurement; the rest goes to starting up, and to batches that are waited for.
FIRST_EPOCH, WARM, CORES, MODEL, THREADS = 0.08, 0.1, 0.03, 0.1, 0.05
SWEEP, WORK, TOGETHER, DISTURBED, COMPARED = 0.2, 0.1, 0.08, 0.04, 0.14
#: Share that one batch may take, to load or to learn from, so that there are several of them.
BATCH = 0.02
#: Turns in which settings are compared.
ROUNDS = 3
#: Images that are placed to learn what size a plan makes of them, at most.
PLACED = 256
#: Bytes that are copied to the device to try it from there, at most.
DEVICE_NBYTES = 4 * 1024**3


class Examination:
    """One data set on one device, with a step of the user, the model of the options, or no training."""

    def __init__(
        self,
        dataset: StoreDataset,
        options: DiagnoseOptions,
        device: torch.device,
        step: Callable[[Any], Any] | None,
        progress: Callable[[str], None],
    ) -> None:
        self.batch_size = min(options.batch_size, len(dataset))  #: asked for, cut to the data
        self.notes: list[str] = []  #: what could not be measured, or not wholly, and why
        self._store = dataset._open_store()
        self._options = options
        self._device = device
        self._progress = progress
        self._used = Settings(options.num_threads, options.prefetch_factor)
        self._load_batch = self._step_batch = self.batch_size
        self._student = self._choose_student(dataset, step)
        if self._student is not None and self._student.fields is not None:
            dataset = loading.remade(dataset, self._student.fields, dataset.transform)
        if self._student is not None and self._student.decode is not None and dataset.decode is None:
            dataset = dataset.with_decode(self._student.decode)
        if self._student is None and dataset.decode is None and dataset.transform is None and "image" in dataset.fields:
            size = image_size_of(dataset.split, options.image_size)
            how = how_of("random", objects="objects" in dataset.fields)
            dataset = dataset.with_decode(decode_plan(size, how))
            if size is not None:
                self._note("whole images", f"they are decoded to {crops_in_words(size, how)}")
        self._dataset = dataset
        self._rows = dataset  # those that are in memory, once they have been brought there

    @property
    def decode(self) -> Plan | None:
        """The plan by which images were decoded, the data set's own or one to images of one size; None for several."""
        plan, *views = plans_of(self._dataset.decode)
        return None if views else plan

    def _choose_student(self, dataset: StoreDataset, step: Callable[[Any], Any] | None) -> training.Student | None:
        model = self._options.model
        if step is not None:
            return training.Student("the step that was given", step, collate="list")
        if model == "none":
            self._note("training", "the model none was chosen, loading alone was examined")
            return None
        try:
            size = self._options.image_size if dataset.decode is None else _decoded_size(dataset, dataset.decode)
            options = TrainOptions(model=model, batch_size=self._options.batch_size, image_size=size)
            return training.student_of(dataset.split, options, self._device)
        except TsdsError as error:
            self._note("training", f"no model learns from this store, loading alone was examined ({error})")
            return None

    def measure(self) -> Measured:
        """Measure everything that verdicts need, except the settings to use."""
        dataset, seconds = self._dataset, self._options.seconds
        columns = [(dataset.split_name, field) for field in dataset.fields]
        memory = measure_memory(self._store, columns, self._options.memory)
        self._note("how much was in memory", memory.reason)
        self._progress("the loader, as the store was found")
        first_epoch = self._first_epoch()
        self._progress("bringing the store into memory")
        self._rows = rows = loading.warmed(self._store, dataset, memory, seconds=WARM * seconds)
        if len(rows) < len(dataset):
            self._note("all samples from memory", f"{len(rows):,} of {len(dataset):,} were brought there")
        cores = measure_cores(seconds=CORES * seconds)
        model, together, disturbance = self._model(), None, 1.0
        if self._student is not None:
            self._progress("model and loader together")
            together = loading.median(self._in_turns([self._used], TOGETHER, self._student)[self._used])
            self._progress("small operations beside the loader")
            make = partial(self._loader, self._used, self._student)
            disturbance = loading.disturbance(make, seconds=DISTURBED * seconds)
        self._progress("the loader, with other settings")
        current, *runs = map(loading.median, self._in_turns(self._candidates(cores.threads), SWEEP, None).values())
        self._progress("what its threads do")
        seconds *= WORK
        return Measured(
            device=self._device.type,
            layout=self._store.layout,
            encoding=loading.encoding_of(dataset),
            sample_nbytes=memory.nbytes / len(dataset.split),
            cores=cores,
            memory=memory,
            first_epoch=first_epoch,
            current=current,
            runs=tuple(runs),
            model=model,
            together=together,
            transform=loading.measure_transform(rows, self._load_batch, cores.threads, seconds=seconds),
            decoding=loading.measure_decoding(rows, seconds=seconds / 2),
            disturbance=disturbance,
        )

    def gain(self, used: Settings, wanted: Settings) -> float:
        """Speed-up of training, or of loading without training, with the settings `wanted`; measured in turns."""
        if wanted == used:
            return 1.0
        self._progress("what is recommended")
        runs = self._in_turns((used, wanted), COMPARED, self._student)
        return loading.gain_of(runs[used], runs[wanted])

    def _note(self, what: str, why: str) -> None:
        if why:
            self.notes.append(f"{what}: {why}")

    # --- loading

    def _first_epoch(self) -> Run:
        """Measure the loader from its start, for as many batches as time allows."""
        seconds, size = self._options.seconds, self.batch_size
        self._load_batch = loading.loadable_batch(self._dataset, size, seconds=BATCH * seconds)
        if self._load_batch < size:
            some = f"batches of {self._load_batch} were measured instead, because one sample takes so long"
            self._note(f"loading batches of {size}", some)
        loader = self._loader(self._used, None)
        return loading.run(loader, self._used, seconds=FIRST_EPOCH * seconds, first_epoch=True)

    def _loader(self, settings: Settings, student: training.Student | None) -> DataLoader[Any]:
        if student is None:
            return loading.loader_of(self._rows, settings, self._load_batch, device=self._device)
        more = {"device": self._device, "collate": student.collate, "batch_transform": student.transform}
        return loading.loader_of(self._rows, settings, self._step_batch, **more)

    def _in_turns(
        self, candidates: Iterable[Settings], share: float, student: training.Student | None
    ) -> dict[Settings, list[Run]]:
        """Measure each of these settings, with loaders that persist between turns."""
        step = None if student is None else student.step
        loaders = {settings: self._loader(settings, student) for settings in candidates}
        rounds, seconds = ROUNDS if len(loaders) > 1 else 1, share * self._options.seconds
        each = seconds / rounds / len(loaders)
        works = {used: partial(loading.run, loader, used, seconds=each, step=step) for used, loader in loaders.items()}
        try:
            return in_turns(works, rounds, seconds)
        finally:
            for loader in loaders.values():
                loader._iterator = None  # torch's, whose worker processes end with it; a garbage collection takes 10 s

    def _candidates(self, cores: int) -> list[Settings]:
        """The settings in use, and others that may be better."""
        used, rows, workers = self._used, self._rows, min(cores, usable_cores())
        threads = [n for n in sorted({1, 2, 4, 8, cores}) if n <= max(4, 2 * cores)]
        candidates = [used, *(replace(used, num_threads=n) for n in threads)]
        candidates += [replace(used, num_threads=max(2, min(8, cores)), prefetch_factor=n) for n in (1, 4)]
        if rows.transform is not None and workers > 1:  # one that holds the GIL may want processes
            method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
            if method == "fork":
                candidates.append(replace(used, num_threads=None, num_workers=workers))
            else:
                self._note("worker processes", f"they are started by {method} here, which would run your script again")
        if len(rows) == len(self._dataset) and choose("auto", rows, self._device) == "device":
            if rows.nbytes <= DEVICE_NBYTES:
                candidates.append(replace(used, residency="device"))
            else:
                self._note("residency='device'", "it would take too long to copy the split there")
        return list(dict.fromkeys(candidates))

    # --- the model

    def _model(self) -> ModelRun | None:
        """Measure the model alone, on the largest batch that time and memory allow."""
        student, seconds = self._student, self._options.seconds
        if student is None:
            return None
        self._progress("the model alone")
        largest = min(self.batch_size, len(self._rows))
        try:
            size, why = training.fitting_batch(student, self._rows, largest, self._device, seconds=BATCH * seconds)
        except Exception as error:
            if self._dataset.transform is None:
                raise
            what = f"the model does not take what the transform makes ({type(error).__name__}: {error})"
            self._note("training", what)
            self._student = None
            return None
        if why:
            self._note(f"steps of {self.batch_size} samples", f"steps of {size} were measured instead, because {why}")
        self._step_batch = size
        model = training.model_alone(student, self._rows, size, self._device, seconds=MODEL * seconds)
        if self._device.type == "cpu" and model.threads > 1:  # more threads than cores wait for each other
            seconds_of = training.threads_alone(student, self._rows, size, self._device, seconds=THREADS * seconds)
            fewer = min((n for n in seconds_of if n < model.threads), key=seconds_of.__getitem__)
            rates = {n: size / taken for n, taken in seconds_of.items()}
            model = replace(model, rate=rates[model.threads], fewer_threads=fewer, fewer_rate=rates[fewer])
        return model


def _decoded_size(dataset: StoreDataset, decode: Decode) -> tuple[int, int]:
    """(height, width) of images after a data set's own plan; raises `OptionError` if they differ."""
    plan, *others = plans_of(decode)
    if others:
        raise OptionError("`decode`: expected one plan, found several views. Pass a step that learns from them.")
    rows = dataset._store_rows(np.arange(min(PLACED, len(dataset))))
    placed = place_on(Placements.whole(dataset.split.image_shapes[rows, :2]), plan, rows, 0)
    sizes = np.unique(placed.size, axis=0).tolist()
    if len(sizes) > 1:
        raise OptionError("`decode`: expected a plan that makes images of one size, found several. Add a Resize.")
    height, width = sizes[0]
    return height, width
