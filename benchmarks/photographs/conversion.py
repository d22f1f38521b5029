"""Converting photographs: encoded again, against FFCV's writer; and kept as they are, against copying them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    Figure,
    Settings,
    Spent,
    alternate,
    as_result,
    rates,
    ratio_of_medians,
    seconds_of,
    spent_on,
)
from benchmarks.peers import WORKERS
from benchmarks.photographs import FFCV_JPEG, MAX_SIDE, QUALITY
from benchmarks.photographs.race import folder_of_photographs
from benchmarks.race import PATIENCE, Data, lane_of
from tensorstore_ds.annex.measuring.lane import Lane

#: How often each photograph is in the folders that are encoded again, and kept as they are. With 3,000 files or more,
#: the start of the command, which counts, is a small part.
ENCODED_TIMES, KEPT_TIMES = 3, 8


def measure(settings: Settings) -> dict[str, Any]:
    """Photographs that are encoded again; files and page cache warm."""
    figures, rounds = _encoded(settings)
    return as_result(figures, rounds=rounds)


def measure_kept(settings: Settings) -> dict[str, Any]:
    """Photographs that are kept as they are; files and page cache warm."""
    return as_result(_kept(settings))


#: Times FFCV's writer.
TARGET = 1.2


def _encoded(settings: Settings) -> tuple[list[Figure], list[dict[str, Any]]]:
    """Speed by the clock and by CPU time; and both kinds of seconds of each round."""
    files, name = folder_of_photographs(settings, ENCODED_TIMES)
    count = len(list(files.rglob("*.jpg")))
    scratch = settings.scratch / "converted"
    scratch.mkdir()
    what = f"convert {name} to `jpeg`, {MAX_SIDE} pixels a side at most, {WORKERS} workers: images per CPU second, "
    what += "relative to FFCV's writer"
    with ExitStack() as stack:
        writer = stack.enter_context(lane_of(replace(FFCV_JPEG, task="train"), Data("", files, "", {}), scratch))
        writer.begin(PATIENCE)
        limits = ["--encoding", "jpeg", "--max-side", str(MAX_SIDE), "--quality", str(QUALITY)]
        timings = [
            lambda: _commanded(files, scratch / "new.tsds", *limits),
            lambda: _timed(writer, scratch / "new"),
        ]
        try:
            ours, theirs = alternate(timings, settings.repeat)
        except RuntimeError as error:
            return [Figure(what, None, TARGET, "x", at_least=True, note=str(error))], []
    walls, cpus = zip(
        *[[rates(count, seconds) for seconds in zip(*side, strict=True)] for side in (ours, theirs)], strict=True
    )
    note = f"{' against '.join(cpus)} images per CPU second; by the clock {' against '.join(walls)} images/s"
    ratio = ratio_of_medians([one.cpu for one in theirs], [one.cpu for one in ours])
    sides = (("tsds convert", ours), ("FFCV's writer", theirs))
    figure = Figure(what, ratio, TARGET, "x", at_least=True, note=note)
    return [figure], [{"converter": side, **_columns(spent)} for side, spent in sides]


def _columns(rounds: list[Spent]) -> dict[str, Any]:
    return {
        "seconds": [round(one.wall, 3) for one in rounds],
        "cpu_seconds": [round(one.cpu, 3) for one in rounds],
    }


def _commanded(source: Path, target: Path, *options: str) -> Spent:
    """Seconds of the whole command. In this process there is torch, whose threads keep workers from being forked."""
    command = [sys.executable, "-m", "tsds_cli", "convert", str(source), str(target), "--workers", str(WORKERS)]
    spent = spent_on(lambda: subprocess.run([*command, *options], check=True, capture_output=True))
    shutil.rmtree(target)
    return spent


def _timed(lane: Lane, target: Path) -> Spent:
    answer = lane.ask("convert", PATIENCE, target=str(target))
    shutil.rmtree(target, ignore_errors=True)
    if answer["state"] != "ok":
        raise RuntimeError(answer["reason"])
    return Spent(*answer["spent"])


def _kept(settings: Settings) -> list[Figure]:
    files, name = folder_of_photographs(settings, KEPT_TIMES)
    paths = sorted(files.rglob("*.jpg"))
    nbytes = sum(path.stat().st_size for path in paths)
    copy, store = settings.scratch / "copy.bin", settings.scratch / "kept.tsds"

    def copying() -> float:
        seconds = seconds_of(lambda: copy_files(paths, copy))
        copy.unlink()
        return seconds

    def converting(check: str) -> float:
        return _commanded(files, store, "--encoding", "source", "--check", check).wall

    timings = [copying, partial(converting, "headers"), partial(converting, "full")]
    copied, headers, full = alternate(timings, settings.repeat)
    speeds = [f"{rates(nbytes / 1e6, own)} MB/s" for own in (headers, copied)]
    images = [f"{rates(len(paths), own)} images/s" for own in (headers, full)]
    what = f"convert {name} to `source`, {WORKERS} workers: speed,"
    copy_of_headers = Figure(
        f"{what} `check=headers`, relative to copying them into one file",
        ratio_of_medians(copied, headers),
        0.7,
        "x",
        at_least=True,
        note=f"{speeds[0]}, {images[0]}, against {speeds[1]}; `check=full` {images[1]}",
    )
    return [copy_of_headers]


def copy_files(paths: list[Path], target: Path) -> None:
    """All bytes into one file, in order, synced in the end: what the disk allows."""
    with target.open("wb") as file:
        for path in paths:
            file.write(path.read_bytes())
        file.flush()
        os.fsync(file.fileno())
