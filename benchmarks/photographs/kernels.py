"""Crops of photographs with the compiled kernels and without them, by the clock and by CPU time, in turn."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.measure import Figure, Settings, alternate, as_result, median_ratio, say
from benchmarks.photographs import BATCH, store
from benchmarks.photographs.race import folder_of_photographs
from tensorstore_ds import native

THREADS = (1, 2)


def measure(settings: Settings) -> dict[str, Any]:
    """Training and validation crops of both encodings: images a second of the clock and of a core."""
    if native.core is None:
        raise RuntimeError(f"the kernels are not compiled: {native.why_not}. {native.advice}")
    files, name = folder_of_photographs(settings, times=1)
    rows, figures = [], []
    for encoding in ("source", "jpeg"):
        target = settings.scratch / encoding
        target.mkdir()
        store.write("train", files, target, encoding)
        for task in ("train", "validate"):
            for threads in THREADS:
                say(f"  {encoding}, {task}, {threads} threads")
                loader = store.load(task, files, target, BATCH, encoding, threads)
                rows.append(_row(loader, settings.repeat, encoding=encoding, task=task, threads=threads))
                what = f"{encoding}, {task}, {threads} threads: CPU time without the kernels, of that with them"
                figures.append(Figure(what, rows[-1]["cpu_ratio"], 1.0, "x", at_least=True, note=name))
        shutil.rmtree(target)
    return as_result(figures, kernels=native.core.variant(), photographs=name, rows=rows)


def _row(loader: Any, repeat: int, **names: Any) -> dict[str, Any]:
    clocks: dict[bool, list[float]] = {True: [], False: []}
    count, compiled = len(loader.dataset), native.core
    for _ in loader:  # the reader of images is made with the kernels, and works without them, too
        pass

    def epoch(with_kernels: bool) -> float:
        native.core = compiled if with_kernels else None
        began, cpu = time.perf_counter(), time.process_time()
        try:
            for _ in loader:
                pass
        finally:
            native.core = compiled
        clocks[with_kernels].append(time.perf_counter() - began)
        return time.process_time() - cpu

    ways: list[Callable[[], float]] = [partial(epoch, True), partial(epoch, False)]
    with_kernels, without = alternate(ways, repeat)
    row = {**names, "cpu_ratio": round(median_ratio(without, with_kernels), 3)}
    for way, seconds, wall in (("with", with_kernels, clocks[True]), ("without", without, clocks[False])):
        row[way] = {
            "a_core_second": round(count / statistics.median(seconds)),
            "a_second": round(count / statistics.median(wall)),
            "cpu_seconds": [round(one, 4) for one in seconds],
        }
    say(f"    {row['with']['a_core_second']} a core second with them, {row['without']['a_core_second']} without")
    return row
