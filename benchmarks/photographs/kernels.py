"""Crops of photographs with the compiled kernels and without them, by the clock and by CPU time, in turn."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.measure import Figure, Settings, alternate, as_result, ratio_of_medians, say, spent_with
from benchmarks.photographs import BATCH, store
from benchmarks.photographs.race import folder_of_photographs
from benchmarks.race import rates_of
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
                what = f"photographs, `{encoding}`, {task}, {threads} threads: CPU time without kernels, relative"
                figures.append(Figure(what, rows[-1]["cpu_ratio"], 1.0, "x", at_least=True, note=name))
    return as_result(figures, kernels=native.core.variant(), photographs=name, rows=rows)


def _row(loader: Any, repeat: int, **names: Any) -> dict[str, Any]:
    count = len(loader.dataset)

    def epoch() -> None:
        for _ in loader:
            pass

    epoch()  # the reader of images is made with the kernels, and works without them, too
    with_kernels, without = alternate([partial(spent_with, core, epoch) for core in (native.core, None)], repeat)
    row: dict[str, Any] = {**names}
    for way, rounds in (("with", with_kernels), ("without", without)):
        wall, cpu = zip(*rounds, strict=True)
        row[way] = rates_of([one / count for one in wall], [one / count for one in cpu])
    for ratio, kind in (("ratio", "seconds"), ("cpu_ratio", "cpu_seconds")):
        row[ratio] = round(ratio_of_medians(row["without"][kind], row["with"][kind]), 3)
    say(f"    CPU time without them, relative to with: {row['cpu_ratio']:.2f}")
    return row
