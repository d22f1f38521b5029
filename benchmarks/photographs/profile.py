"""Where the time of a training crop goes, on one core; and what more threads bring."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tensorstore_ds as tsds
from benchmarks.measure import Settings, as_result, say
from benchmarks.photographs import BATCH, MAX_SIDE, SIDE, STORES
from benchmarks.photographs.race import folder_of_photographs, race
from benchmarks.photographs.store import load, write
from benchmarks.samples import STORE
from tensorstore_ds.imaging.jpeg import Part, cut, decode_jpeg, find_restarts, read_header, scale_for
from tensorstore_ds.machine import usable_cores

THREADS = (1, 2, 4, 8, 16)
_PROFILED = 512  # photographs


def measure(settings: Settings) -> dict[str, Any]:
    """Microseconds of each part for one crop of an image with encoding `jpeg`, and images per second by threads."""
    files, name = folder_of_photographs(settings)
    target = settings.scratch / "profiled"
    target.mkdir()
    write("train", files, target, "jpeg")
    with _one_thread():
        spent = [profile(target / STORE, seed) for seed in range(settings.repeat)]
        whole = [microseconds_of_loader(files, target) for _ in range(settings.repeat)]
    shutil.rmtree(target)
    parts = {part: statistics.median(own[part] for own in spent) for part in spent[0]}
    total = statistics.median(whole)
    instead = parts.pop(INSTEAD)
    rest = total - sum(parts.values())
    parts |= {"all else: reading, drawing crops, labels, threads": rest, "the loader in all": total, INSTEAD: instead}
    rows = [{"part": part, "microseconds": round(value, 1)} for part, value in parts.items()]
    say("  " + ", ".join(f"{row['part']}: {row['microseconds']}" for row in rows))
    ways = [STORES["jpeg"].with_threads(threads) for threads in THREADS if threads <= usable_cores()]
    by_threads = race("train", files, ways, settings.scratch / "race", settings.repeat)
    shutil.rmtree(files)
    return as_result([], photographs=name, parts=rows, threads=by_threads)


#: Is no part of it: for comparison.
INSTEAD = "decoding all of the image instead"


def profile(store: Path, seed: int) -> dict[str, float]:
    """Microseconds of processor time for an image, by what is done with it; rows and crops follow from `seed`."""
    files = tsds.open(store)["train"].table("image")
    rng = np.random.default_rng(seed)
    batch = torch.empty((BATCH, 3, SIDE, SIDE), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    buffer = np.empty(3 * (MAX_SIDE + 16) ** 2, np.uint8)
    resize = torch.ops.aten._upsample_bilinear2d_aa.out
    spent: dict[str, float] = defaultdict(float)

    def timed(part: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        begun = time.process_time_ns()
        result = function(*arguments, **named)
        spent[part] += time.process_time_ns() - begun
        return result

    rows = rng.permutation(len(files))[:_PROFILED].tolist()
    for place, row in enumerate(rows):
        data = files.take([row])["bytes"].tobytes()
        restarts = find_restarts(data)  # which the store knows
        header = timed("reading headers", read_header, data)
        part = draw_part(rng, header.height, header.width)
        small, covered = timed("cutting", cut, data, header, restarts, part)
        scale = scale_for((part.height, part.width), (SIDE, SIDE))
        small_header = timed("reading headers", read_header, small)
        pixels = timed("decoding", decode_jpeg, small, small_header, channels=3, scale=scale, buffer=buffer)
        top, left = (part.top - covered.top) // scale, (part.left - covered.left) // scale
        crop = torch.from_numpy(pixels)[top : top + part.height // scale, left : left + part.width // scale]
        out = batch[place % BATCH : place % BATCH + 1]
        timed("resizing", resize, crop.permute(2, 0, 1)[None], [SIDE, SIDE], False, None, None, out=out)
        timed(INSTEAD, decode_jpeg, data, header, channels=3, buffer=buffer)
    return {name: nanoseconds / 1e3 / len(rows) for name, nanoseconds in spent.items()}


def draw_part(rng: np.random.Generator, height: int, width: int) -> Part:
    """As torchvision's `RandomResizedCrop`."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return Part(top, left, top + h, left + w)
    return Part(0, 0, height, width)


def microseconds_of_loader(files: Path, target: Path) -> float:
    """Of processor time for an image, of all threads, in an epoch of the loader with one thread."""
    loader = load("train", files, target, BATCH, "jpeg", 1)
    begun, samples = time.process_time_ns(), 0
    for batch in loader:
        samples += len(batch["label"])
    return (time.process_time_ns() - begun) / 1e3 / samples


@contextmanager
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
