"""Making stores of stores: filter, merge and append, compared with copying the same bytes and syncing them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, ratio_of_medians, seconds_of, spread

SHARE = 0.7
_ROWS, _SHAPE = 10_000, (224, 224, 3)


def measure(settings: Settings) -> dict[str, Any]:
    """A store of 1.5 GB in the page cache; each result is removed and the disk at rest before the next."""
    store, half, out = (settings.scratch / name for name in ("s.tsds", "half.tsds", "out.tsds"))
    _write(store)
    tsds.editing.filter_store(store, half, "label == '0'")
    ways: dict[str, tuple[Path, Callable[[], object]]] = {
        "filter, all rows": (store, partial(tsds.editing.filter_store, store, out, "label == '0' or label == '1'")),
        "filter, every other row": (half, partial(tsds.editing.filter_store, store, out, "label == '0'")),
        "sample, half of the rows at random": (
            half,
            partial(tsds.editing.sample_store, store, out, per_class=_ROWS // 4),
        ),
        "merge of two": (store, partial(tsds.editing.merge_stores, [half, half], out)),
    }
    figures = []
    for what, (same, make) in ways.items():
        timings = [partial(_timed, out, each) for each in (partial(_copy, same, out), make)]
        copies, made = alternate(timings, settings.repeat)
        nbytes = sum(file.stat().st_size for file in same.rglob("*") if file.is_file())
        note = f"{nbytes / 1e6:.0f} MB in {spread(made)} s, cp and sync {spread(copies)} s"
        share = ratio_of_medians(copies, made)
        figures.append(Figure(f"{what}: speed relative to cp + sync", share, SHARE, at_least=True, note=note))
    return as_result(figures)


def _write(path: Path) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, _SHAPE, np.uint8)
    with tsds.Writer(path, tsds.ConvertOptions(classes=("0", "1"))) as writer:
        for i in range(_ROWS):
            writer.append("train", {"image": np.roll(image, i), "label": i % 2})


def _timed(out: Path, make: Callable[[], object]) -> float:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    return seconds_of(make)


def _copy(path: Path, out: Path) -> None:
    subprocess.run(["cp", "-r", path, out], check=True)
    subprocess.run(["sync", *(file for file in out.rglob("*") if file.is_file())], check=True)
