"""A diagnosis: one measurement after the other, within a time, and what follows from them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tensorstore_ds.diagnosis.advice import code_of, recommend
from tensorstore_ds.diagnosis.examination import Examination
from tensorstore_ds.diagnosis.findings import Diagnosis
from tensorstore_ds.diagnosis.learning import Student, student_of
from tensorstore_ds.diagnosis.options import DiagnoseOptions
from tensorstore_ds.diagnosis.subject import Subject, subject_of
from tensorstore_ds.diagnosis.verdicts import judge
from tensorstore_ds.errors import TsdsError
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.reading.store import Store
from tensorstore_ds.training.process import random_state_kept
from tensorstore_ds.training.ranks import ranks

#: A gain that is less is not told from chance: the settings in use stay.
GAIN = 1.03


@random_state_kept()
def diagnose(
    store: Store | StoreDataset | str | os.PathLike[str],
    options: DiagnoseOptions | None = None,
    *,
    transform: Callable[[Any], Any] | None = None,
    step: Callable[[Any], Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Measure what holds training back, and say what to change.

    The store's bytes are read, as training reads them, and nothing is written. Nothing is dropped from memory, and the
    global random generators are left as they were found.

    >>> found = tsds.diagnose("photos.tsds", tsds.DiagnoseOptions(seconds=20))      # doctest: +SKIP
    >>> print(found.verdicts[0].line)                                               # doctest: +SKIP

    Args:
        store: a store, its path, or a data set, with its transform.
        options: what to examine, for how long.
        transform: of samples, as `StoreDataset` takes it.
        step: one whole step of a training of your own, called with every batch on its device, in place of
            `options.model`.
        progress: told what is measured next.

    Returns:
        The numbers, the verdicts, and the settings to use. What could not be measured is in `not_measured`.

    Raises:
        OptionError: no such split or device, or the split is empty.
        FormatError: the store is damaged.
    """
    options = options or DiagnoseOptions()
    began = time.perf_counter()
    subject = subject_of(store, options.split, transform)
    with ranks(options.device) as found:
        device = found.device
        student, why_none = _student(subject, options, device, step)
        subject = subject.with_fields(None if student is None else student.fields)
        examination = Examination(subject, options, device, student, progress or _ignore)
        if why_none:
            examination.notes.append(why_none)
        measured = examination.measure()
        used, wanted = measured.current.settings, recommend(measured)
        gain = examination.gain(used, wanted)
    if gain >= GAIN or wanted.block_rows:
        measured = replace(measured, wanted=wanted, gain=gain)
    recommended = measured.wanted or used
    return Diagnosis(
        str(subject.store.path),
        subject.dataset.split_name,
        len(subject.dataset),
        examination.batch_size,
        _device_name(device),
        time.perf_counter() - began,
        measured,
        judge(measured),
        recommended,
        code_of(subject, recommended, batch_size=examination.batch_size, device=str(device)),
        measured.gain,
        tuple(examination.notes),
    )


def _student(
    subject: Subject, options: DiagnoseOptions, device: torch.device, step: Callable[[Any], Any] | None
) -> tuple[Student | None, str]:
    """What trains, and why nothing does."""
    if step is not None:
        return Student("the step that was given", step, collate="list"), ""
    if options.model == "none":
        return None, "training: the model none was chosen, loading alone was examined"
    try:
        split = subject.dataset.split
        return student_of(subject.store, split, options.model, device, batch_size=options.batch_size), ""
    except TsdsError as error:
        return None, f"training: no model learns from this store, loading alone was examined ({error})"


def _device_name(device: torch.device) -> str:
    return f"{device}, {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def _ignore(_: str) -> None:
    pass
