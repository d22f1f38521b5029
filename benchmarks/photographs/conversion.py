"""Converting photographs: encoded again, against FFCV's writer; and kept as they are, against copying them."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, median_ratio, seconds_of
from benchmarks.peers import WORKERS
from benchmarks.photographs import FFCV_JPEG, MAX_SIDE, STORES
from benchmarks.photographs.race import folder_of_photographs, lane_of
from benchmarks.photographs.store import options
from tensorstore_ds.comparison.lane import Lane

#: How often each photograph is in the folder that is kept as it is: 20,480 files, nearly 1 GB.
KEPT_TIMES = 8
_PATIENCE = 900.0


def measure(settings: Settings) -> dict[str, Any]:
    """Both comparisons; files and page cache warm."""
    encoded = _encoded(settings)
    kept = _kept(settings)
    return as_result([encoded, kept])


def _encoded(settings: Settings) -> Figure:
    files, name = folder_of_photographs(settings, times=1)
    count = len(list(files.rglob("*.jpg")))
    scratch = settings.scratch / "converted"
    scratch.mkdir()
    what = f"convert {name} to `jpeg`, {MAX_SIDE} pixels a side at most, {WORKERS} workers: speed, relative to"
    with ExitStack() as stack:
        lanes = []
        for way in (STORES["jpeg"], FFCV_JPEG):
            lanes.append(stack.enter_context(lane_of(way, "train", files, scratch)))
            lanes[-1].begin(_PATIENCE)
        timings = [partial(_timed, lane, scratch / "new") for lane in lanes]
        try:
            ours, theirs = alternate(timings, settings.repeat)
        except RuntimeError as error:
            return Figure(f"{what} FFCV's writer", None, 1.3, "x", at_least=True, note=str(error))
        finally:
            shutil.rmtree(files)
    rates = " against ".join(f"{count / statistics.median(seconds):,.0f}" for seconds in (ours, theirs))
    return Figure(
        *(f"{what} FFCV's writer", median_ratio(theirs, ours), 1.3, "x"), at_least=True, note=f"{rates} images/s"
    )


def _timed(lane: Lane, target: Path) -> float:
    answer = lane.ask("convert", _PATIENCE, target=str(target))
    shutil.rmtree(target, ignore_errors=True)
    if answer["state"] != "ok":
        raise RuntimeError(answer["reason"])
    return float(answer["seconds"])


def _kept(settings: Settings) -> Figure:
    files, name = folder_of_photographs(settings, times=KEPT_TIMES)
    paths = sorted(files.rglob("*.jpg"))
    nbytes = sum(path.stat().st_size for path in paths)
    copy, store = settings.scratch / "copy.bin", settings.scratch / "kept.tsds"

    def timed(work: Callable[[], object], made: Path) -> float:
        took = seconds_of(work)
        shutil.rmtree(made) if made.is_dir() else made.unlink()
        return took

    def converting(**more: Any) -> float:
        return timed(lambda: tsds.convert(files, store, options("source", **more)), store)

    timings = [lambda: timed(lambda: copy_files(paths, copy), copy), converting, partial(converting, check="headers")]
    copied, checked, headers = alternate(timings, settings.repeat)
    shutil.rmtree(files)
    rates = [f"{nbytes / statistics.median(own) / 1e6:,.0f} MB/s" for own in (headers, copied)]
    images = [f"{len(paths) / statistics.median(own):,.0f} images/s" for own in (headers, checked)]
    note = f"{rates[0]}, {images[0]}, against {rates[1]}; with the default check {images[1]}"
    what = (
        f"convert {name} to `source`, `check=headers`, {WORKERS} workers: speed, relative to copying them into one file"
    )
    return Figure(what, median_ratio(copied, headers), 0.7, "x", at_least=True, note=note)


def copy_files(paths: list[Path], target: Path) -> None:
    """All bytes into one file, in order, synced in the end: what the disk allows."""
    with target.open("wb") as file:
        for path in paths:
            file.write(path.read_bytes())
        file.flush()
        os.fsync(file.fileno())
