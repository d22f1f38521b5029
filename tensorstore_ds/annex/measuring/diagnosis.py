"""A diagnosis: what was measured, the verdicts, and the settings that the numbers speak for, as code to paste."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Unpack, overload

import torch

from tensorstore_ds.annex.keywords import DiagnoseKeywords
from tensorstore_ds.annex.measuring.any_loader import LoaderDiagnosis, diagnose_loader
from tensorstore_ds.annex.measuring.diagnose_options import DiagnoseOptions, split_of
from tensorstore_ds.annex.measuring.diagnosis_results import Diagnosis, Measured, Settings
from tensorstore_ds.annex.measuring.examination import Examination
from tensorstore_ds.annex.measuring.measure_loading import remade
from tensorstore_ds.annex.measuring.verdicts import QUICKER, cause_of, disturbed, holds_gil, judge, starved
from tensorstore_ds.annex.training.crops import plan_in_code
from tensorstore_ds.annex.training.process import random_state_kept, ranks
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Plan
from tensorstore_ds.options import chosen, refusal, takes_options
from tensorstore_ds.progress import notebook_bar
from tensorstore_ds.reading.store import Store, open as open_store

#: Other settings are worth a try from here on; of those that are nearly as quick as the best the smallest are taken.
WORTH, NEARLY = 1.1, 0.93
#: What a disk should read at once for a shuffle by blocks, and the share of memory for the two windows under way.
BLOCK_NBYTES, WINDOW_SHARE, MOST_BLOCKS = 4 * 1024**2, 0.25, 256
#: A gain that is less is not told from chance: the settings in use stay.
GAIN = 1.03


@overload
def diagnose(
    store: Store | StoreDataset | str | os.PathLike[str],
    options: DiagnoseOptions | None = None,
    *,
    transform: Callable[[Any], Any] | None = None,
    step: Callable[[Any], Any] | None = None,
    progress: Callable[[str], None] | None = None,
    **keywords: Unpack[DiagnoseKeywords],
) -> Diagnosis: ...
@overload
def diagnose(
    *, loader: Iterable[Any], step: Callable[[Any], Any] | None = None, **keywords: Unpack[DiagnoseKeywords]
) -> LoaderDiagnosis: ...
@random_state_kept()
@takes_options(DiagnoseOptions)
def diagnose(
    store: Store | StoreDataset | str | os.PathLike[str] | None = None,
    options: DiagnoseOptions | None = None,
    *,
    loader: Iterable[Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    step: Callable[[Any], Any] | None = None,
    progress: Callable[[str], None] | None = None,
    **keywords: Unpack[DiagnoseKeywords],
) -> Diagnosis | LoaderDiagnosis:
    """Measure what slows down training from a store, or with any loader, and recommend what to change.

    >>> images = torch.zeros(64, 3, 32, 32)
    >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), batch_size=8)
    >>> found = tsds.diagnose(loader=loader, step=lambda batch: batch[0].mean(), seconds=1, device="cpu")
    >>> found.batch_size, found.load_rate > 0
    (8, True)

    The bytes of the store are read as in training. Files are not written, pages are not dropped from the page cache,
    and the global random generators keep their state.

    Args:
        store: open store, path of a store, or data set with its transform.
        options: all options as one object.
        loader: any iterable of batches that can be iterated repeatedly, such as torch's DataLoader, instead of a store.
            The loader, the step and both together are measured in turns. Only the options `seconds` and `device` apply.
        transform: transform of samples, as in `StoreDataset`.
        step: one complete training step of your own, called with every batch on its device, instead of the model of
            `options.model`.
        progress: function that is called with a line before each measurement. None shows it in a notebook.
        keywords: options by name. Each overrides `options`.

    Returns:
        A `Diagnosis` with measurements, verdicts and recommended settings; `not_measured` lists what could not be
        measured. For a `loader`, a `LoaderDiagnosis`.

    Raises:
        OptionError: the split or device does not exist, the split is empty, or the loader returns no batches of
            tensors.
        FormatError: the store is damaged.
    """
    options = chosen(options, DiagnoseOptions, keywords)
    if (store is None) == (loader is None):
        raise OptionError("expected a `store` or a `loader`, found both or none. Pass one of them.")
    if loader is not None and transform is not None:
        raise refusal("transform", "none with a `loader`, which transforms its own samples", transform)
    if loader is not None:
        with ranks(options.device) as own:
            return diagnose_loader(loader, step, device=own.device, seconds=options.seconds)
    assert store is not None  # noqa: S101  # checked above
    began, draw = time.perf_counter(), notebook_bar()
    dataset = dataset_of(store, options.split, transform)
    with ranks(options.device) as own:
        device = own.device
        told = progress or (lambda stage: draw(f"Measuring {stage}", 0, 0))
        examination = Examination(dataset, options, device, step, told)
        measured = examination.measure()
        used, wanted = measured.current.settings, recommend(measured)
        gain = examination.gain(used, wanted)
    if wanted != used and (gain >= GAIN or wanted.block_rows):
        measured = replace(measured, wanted=wanted, gain=gain)
    recommended, batch_size = measured.wanted or used, examination.batch_size
    verdicts = judge(measured)
    threads = next((int(v.evidence["fewer_threads"]) for v in verdicts if v.code == "too-many-torch-threads"), None)
    path = None if isinstance(store, StoreDataset) else str(dataset.path)
    return Diagnosis(
        path=str(dataset.path),
        split=dataset.split_name,
        samples=len(dataset),
        batch_size=batch_size,
        device=f"{device}, {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device),
        seconds=time.perf_counter() - began,
        measured=measured,
        cause=cause_of(measured),
        verdicts=verdicts,
        recommended=recommended,
        code=code_of(
            dataset,
            path,
            recommended,
            batch_size=batch_size,
            device=str(device),
            torch_threads=threads,
            decode=examination.decode,
        ),
        gain=measured.gain,
        not_measured=tuple(examination.notes),
    )


def recommend(m: Measured) -> Settings:
    """Settings to try: those in use, unless training waits for the loader and others are faster.

    If the loader disturbs the training thread, the fewest threads that are fast enough are tried.

    Data that do not fit in memory are shuffled in blocks regardless of the numbers, which were measured on rows in
    memory.
    """

    def cost(settings: Settings) -> tuple[int, int]:
        """Prefer threads over processes, and waiting batches over threads."""
        return settings.num_workers, (settings.num_threads or 1) * (settings.prefetch_factor or 1)

    chosen = m.current.settings
    if starved(m) and m.best.rate >= WORTH * m.current.rate:
        chosen = min((run.settings for run in m.runs if run.rate >= NEARLY * m.best.rate), key=cost)
    elif m.model is not None and disturbed(m):
        enough = [run.settings for run in m.runs if run.rate >= QUICKER * m.model.rate]
        processes = [settings for settings in enough if settings.num_workers]
        is_held = m.transform is not None and holds_gil(m.transform)
        chosen = min((is_held and processes) or enough, key=cost, default=chosen)
    if not m.memory.fits and chosen.residency != "device":
        block_rows = max(1, round(BLOCK_NBYTES / m.sample_nbytes))
        blocks = int(WINDOW_SHARE * m.memory.limit / (2 * block_rows * m.sample_nbytes))
        chosen = replace(chosen, block_rows=block_rows, window_blocks=min(MOST_BLOCKS, max(2, blocks)))
    return chosen


def dataset_of(
    examined: Store | StoreDataset | str | os.PathLike[str], split: str | None, transform: Callable[[Any], Any] | None
) -> StoreDataset:
    """The samples to examine: `split`, else ``train``, else the first split."""
    if isinstance(examined, StoreDataset):
        if split not in (None, examined.split_name):
            raise OptionError(
                f"`split`: expected the data set's split {examined.split_name}, found {split}. Leave it out."
            )
        dataset = examined if transform is None else remade(examined, examined.fields, transform)
    else:
        store = examined if isinstance(examined, Store) else open_store(examined)
        dataset = StoreDataset(store, split_of(split, list(store.splits)), transform=transform)
    if not len(dataset):
        raise OptionError(f"`split`: expected samples, found none in {dataset.split_name}. Choose another split.")
    return dataset


def code_of(
    dataset: StoreDataset,
    path: str | None,
    settings: Settings,
    *,
    batch_size: int,
    device: str,
    torch_threads: int | None = None,
    decode: Plan | None = None,
) -> str:
    """Python code that makes the loader, and the data set of the store at `path`, unless that is None.

    The number of torch's threads is set if it should change. The loader gets the measured plan `decode`, unless the
    data set has one.
    """
    lines = [] if torch_threads is None else [f"torch.set_num_threads({torch_threads})"]
    if path is not None:
        transform = "" if dataset.transform is None else ", transform=transform"
        lines.append(f"dataset = tsds.StoreDataset({path!r}, {dataset.split_name!r}{transform})")
    order = "shuffle=True"
    if settings.block_rows:
        blocks = f"block_rows={settings.block_rows}, window_blocks={settings.window_blocks}"
        order = f"sampler=tsds.BlockShuffleSampler(dataset, {blocks})"
    arguments = [f"batch_size={batch_size}", order]
    if device != "cpu":
        arguments.append(f"device={device!r}")
    if decode is not None and dataset.decode is None:
        arguments.append(f"decode={plan_in_code(decode)}")
    arguments += [f"{name}={value!r}" for name, value in settings.arguments().items()]
    lines.append(f"loader = tsds.DataLoader(dataset, {', '.join(arguments)})")
    return "\n".join(lines)
