"""Two worker processes through each engine, against plain ``tsds convert``; and what a plan and a commit cost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import tensorstore_ds as tsds
from benchmarks.measure import (
    ROOT,
    Figure,
    Settings,
    alternate,
    as_result,
    in_fresh_process,
    peak_nbytes,
    ratio_of_medians,
    seconds_of,
    spread,
)
from benchmarks.samples import write_photos

SLOWER, PLAN_SECONDS, PLAN_GIGABYTES, COMMIT_SECONDS = 1.15, 120, 1.5, 10
_PHOTOS, _SHARDS, _FILES, _MANY = 3000, 12, 10_000_000, 10_000
_TIMES = 8  # so many times the photographs, for Slurm
_TSDS: tuple[str | Path, ...] = (sys.executable, "-m", "tsds_cli")
_OPTIONS = tsds.ConvertOptions(fit=tsds.Fit(224, "crop"), color="rgb", shard_nbytes=_PHOTOS // _SHARDS * 224 * 224 * 3)


def measure(settings: Settings) -> dict[str, Any]:
    """Some thousand photographs; 10,000,000 lines of a list without images; 10,000 shards of an image each."""
    folder = settings.scratch / "engines"
    folder.mkdir()
    write_photos(folder / "photos", _PHOTOS, 375, 500)
    figures = [*_engines(folder, settings.repeat), *_slurm(folder, settings.repeat)]
    planned = in_fresh_process(plan_many, folder)
    note = f"plan.json and references: {planned['nbytes'] / 1e6:.0f} MB"
    figures += [
        Figure(f"plan of {_FILES:,} files: time", planned["seconds"], PLAN_SECONDS, "s", 0, note=note),
        Figure(f"plan of {_FILES:,} files: memory", planned["rss"] / 1e9, PLAN_GIGABYTES, "GB"),
        Figure(f"plan of {_FILES:,} files: from the start of a task to its first image", planned["first"], 1, "s"),
    ]
    committed = in_fresh_process(commit_many, folder)
    note = f"its plan: {committed['plan']:.1f} s"
    figures.append(Figure(f"commit of {_MANY:,} shards", committed["seconds"], COMMIT_SECONDS, "s", 1, note=note))
    return as_result(figures)


def _engines(folder: Path, repeat: int) -> list[Figure]:
    out = folder / "o.tsds"
    with ExitStack() as stack:
        plain = partial(_command, out, "convert", folder / "photos", out, *_flags(), "--workers", 2)
        ways: dict[str, Callable[[], float]] = {"plan, two tasks at a time, commit": partial(_by_hand, folder, out)}
        with suppress(ModuleNotFoundError):
            ways["Dask, two workers"] = _dask(stack, folder, out)
        with suppress(ModuleNotFoundError):
            ways["Ray, two CPUs"] = _ray(stack, folder, out)
        seconds, *others = alternate([plain, *ways.values()], repeat)
    return [_figure(_PHOTOS, name, own, seconds) for name, own in zip(ways, others, strict=True)]


def _figure(photos: int, name: str, own: list[float], seconds: list[float]) -> Figure:
    note = f"{spread(own)} s, tsds convert with 2 workers {spread(seconds)} s"
    return Figure(
        f"{photos:,} photographs, {name}: time relative to tsds convert",
        ratio_of_medians(own, seconds),
        SLOWER,
        note=note,
    )


def _slurm(folder: Path, repeat: int) -> list[Figure]:
    """Two nodes on this machine, as in the tests; Slurm needs seconds to begin a job, so it has more to do."""
    if shutil.which("slurmctld", path="/usr/sbin:/usr/bin") is None or os.geteuid() != 0:
        return []
    sys.path.insert(0, str(ROOT / "tests"))
    from cluster.slurm_nodes import slurm_cluster  # type: ignore[import-not-found,unused-ignore]

    source, out, state = folder / "many-photos", folder / "o.tsds", folder / "slurm"
    state.mkdir()
    for i in range(_TIMES):
        shutil.copytree(folder / "photos", source / str(i), copy_function=os.link)
    with slurm_cluster(state) as cluster:

        def array() -> float:
            def run() -> None:
                subprocess.run([*_TSDS, "plan", source, out, *_flags(), "--tasks", "2"], check=True, **quiet)
                command = [*_TSDS, "convert", source, out, *_flags(), "--engine", "slurm", "--submit"]
                subprocess.run(command, check=True, **{**quiet, "env": cluster.environment, "cwd": state})
                while not out.exists():
                    time.sleep(0.02)

            seconds = seconds_of(run, makes=out)
            cluster.wait(lambda: not (folder / "o.tsds.partial").exists())
            return seconds

        quiet: Any = {"cwd": ROOT, "stdout": subprocess.DEVNULL}
        plain = partial(_command, out, "convert", source, out, *_flags(), "--workers", 2)
        seconds, own = alternate([plain, array], repeat)
    return [_figure(_TIMES * _PHOTOS, "Slurm, an array of two tasks on two nodes", own, seconds)]


def _flags() -> list[str]:
    return ["--size", "224", "--fit", "crop", "--color", "rgb", "--shard-size", str(_OPTIONS.shard_nbytes)]


def _command(out: Path, *words: object) -> float:
    command = [*_TSDS, *map(str, words)]
    return seconds_of(lambda: subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL), makes=out)


def _by_hand(folder: Path, out: Path) -> float:
    """As a cluster with two cores would: two tasks, a process each."""

    def run() -> None:
        quiet: Any = {"cwd": ROOT, "stdout": subprocess.DEVNULL}
        subprocess.run([*_TSDS, "plan", folder / "photos", out, *_flags()], check=True, **quiet)
        tasks = [[*_TSDS, "convert", out, "--task", f"{i}/2", "--workers", "0"] for i in range(2)]
        for process in [subprocess.Popen(task, **quiet) for task in tasks]:
            assert process.wait() == 0
        subprocess.run([*_TSDS, "commit", out], check=True, **quiet)

    return seconds_of(run, makes=out)


def _dask(stack: ExitStack, folder: Path, out: Path) -> Callable[[], float]:
    from distributed import LocalCluster

    cluster = LocalCluster(2, threads_per_worker=1, dashboard_address=":0")
    stack.callback(cluster.close)
    return partial(_on, "dask", folder, out, cluster.scheduler_address)


def _ray(stack: ExitStack, folder: Path, out: Path) -> Callable[[], float]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    stack.callback(ray.shutdown)
    return partial(_on, "ray", folder, out, None)


def _on(engine: Any, folder: Path, out: Path, address: str | None) -> float:
    """In this process, as a cluster that runs is used; the command would need a second more to start."""
    photos = folder / "photos"
    return seconds_of(lambda: tsds.clusters.convert_on(engine, photos, out, _OPTIONS, scheduler=address), makes=out)


# --- in fresh processes -------------------------------------------------------------------------------------------


def plan_many(folder: Path) -> dict[str, float]:
    """Plan a list of 10,000,000 lines, whose first image alone is there, and read one shard of the plan."""
    source = folder / "many"
    source.mkdir()
    write_photos(source / "0000", 1, 375, 500)
    with open(source / "all.csv", "w") as file:
        file.write("path,label\n0000/00000.jpg,0\n")
        for i in range(1, _FILES):
            file.write(f"{i // 10_000:04d}/{i % 10_000:05d}.jpg,{i % 1000}\n")
    out = folder / "many.tsds"
    began = time.perf_counter()
    options = tsds.ConvertOptions(fit=tsds.Fit(1, "crop"), color="rgb", shard_nbytes=30_000)
    tsds.clusters.plan(source / "all.csv", out, options, progress=lambda event: None)
    seconds, rss = time.perf_counter() - began, peak_nbytes()
    began = time.perf_counter()
    with suppress(tsds.SourceError):  # its images are not there
        tsds.clusters.convert_task(out, shards=[("train", 7)], workers=0, progress=lambda event: None)
    first = time.perf_counter() - began
    planned = (folder / "many.tsds.partial").rglob("*")
    nbytes = sum(path.stat().st_size for path in planned if path.is_file())
    return {"seconds": seconds, "rss": rss, "first": first, "nbytes": nbytes}


def commit_many(folder: Path) -> dict[str, float]:
    """Commit 10,000 shards of an image each."""
    source = folder / "pixels"
    write_photos(source, _MANY, 50, 50)
    out = folder / "shards.tsds"
    options = tsds.ConvertOptions(fit=tsds.Fit(8, "crop"), color="rgb", shard_nbytes=1)
    plan = seconds_of(lambda: tsds.clusters.plan(source, out, options, progress=lambda event: None))
    tsds.clusters.convert_task(out, 0, 1, progress=lambda event: None)
    seconds = seconds_of(lambda: tsds.clusters.commit(out))
    return {"seconds": seconds, "plan": plan}
