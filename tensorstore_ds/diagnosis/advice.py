"""The settings that the numbers speak for, and the code to paste."""

from __future__ import annotations

from dataclasses import replace

from tensorstore_ds.diagnosis.findings import Measured, Run
from tensorstore_ds.diagnosis.settings import Settings
from tensorstore_ds.diagnosis.subject import Subject
from tensorstore_ds.diagnosis.thresholds import starved

#: A change is worth proposing from here on, in a comparison of loaders.
WORTH = 1.1
#: Of settings that are nearly as quick as the quickest, the ones with the fewest threads are taken.
NEARLY = 0.93
#: What a disk should read at once for a shuffle by blocks, and the share of memory for the two windows under way.
BLOCK_NBYTES, WINDOW_SHARE, MOST_BLOCKS = 4 * 1024**2, 0.25, 256


def recommend(m: Measured) -> Settings:
    """Settings to try: those in use, unless training waits for the loader and others are quicker.

    What does not fit is shuffled by blocks, whatever the numbers say: they were taken from rows in memory.
    """
    chosen = m.current.settings
    if starved(m) and m.best.rate >= WORTH * m.current.rate:
        enough = [run for run in m.runs if run.rate >= NEARLY * m.best.rate]
        chosen = min(enough, key=_cost).settings
    if not m.memory.fits and chosen.residency != "device":
        block_rows = max(1, round(BLOCK_NBYTES / m.sample_nbytes))
        blocks = int(WINDOW_SHARE * m.memory.limit / (2 * block_rows * m.sample_nbytes))
        chosen = replace(chosen, block_rows=block_rows, window_blocks=min(MOST_BLOCKS, max(2, blocks)))
    return chosen


def _cost(run: Run) -> tuple[int, int]:
    """How much a setting takes: processes more than threads, and threads more than batches that wait."""
    return run.settings.num_workers, (run.settings.num_threads or 1) * (run.settings.prefetch_factor or 1)


def code_of(subject: Subject, settings: Settings, *, batch_size: int, device: str) -> str:
    """Python that makes the loader."""
    lines = []
    if subject.path is not None:
        dataset = subject.dataset
        transform = "" if dataset.transform is None else ", transform=transform"
        lines.append(f"dataset = tsds.StoreDataset({subject.path!r}, {dataset.split_name!r}{transform})")
    arguments = [f"batch_size={batch_size}", _order(settings)]
    if device != "cpu":
        arguments.append(f"device={device!r}")
    arguments += [f"{name}={value!r}" for name, value in settings.arguments().items()]
    lines.append(f"loader = tsds.DataLoader(dataset, {', '.join(arguments)})")
    return "\n".join(lines)


def _order(settings: Settings) -> str:
    if not settings.block_rows:
        return "shuffle=True"
    blocks = f"block_rows={settings.block_rows}, window_blocks={settings.window_blocks}"
    return f"sampler=tsds.BlockShuffleSampler(dataset, {blocks})"
