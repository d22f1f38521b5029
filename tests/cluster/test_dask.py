"""Conversions on a Dask cluster of three worker processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorstore_ds as tsds
from cluster.conftest import FLAGS, OPTIONS, busy_with_a_shard, converting, end, kill, wait_for
from stores import contents

pytest.importorskip("distributed", reason="Dask is not here: pip install '.[dask]'")
pytestmark = pytest.mark.timeout(180)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, int]]:
    """A scheduler with three workers: its address, and its process."""
    file = folder / "scheduler.json"
    python = [sys.executable, "-m"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    options = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", ":0", "--scheduler-file", str(file)]
    started = [subprocess.Popen([*python, "distributed.cli.dask_scheduler", *options], **quiet)]  # type: ignore[call-overload]
    try:
        wait_for(lambda: file.exists() and file.read_text().endswith("\n}"))  # it is there before it is written
        address = json.loads(file.read_text())["address"]
        words = [*python, "distributed.cli.dask_worker", address, "--nthreads", "1"]
        for i in range(3):
            words_of_one = [*words, "--local-directory", str(folder / str(i)), "--death-timeout", "30"]
            started.append(subprocess.Popen(words_of_one, **quiet))  # type: ignore[call-overload]
        yield address, started[0].pid
    finally:
        end(started)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with three workers."""
    with cluster(tmp_path_factory.mktemp("dask")) as (address, _):
        yield address


def workers(scheduler: str) -> list[int]:
    """The processes of the workers."""
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:
        return list(client.run(os.getpid).values())


def test_three_workers(scheduler: str, source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    seen = list[tsds.conversion.Progress]()
    summary = tsds.clusters.convert_on(
        "dask", source, tmp_path / "o.tsds", OPTIONS, scheduler=scheduler, progress=seen.append
    )
    assert contents(tmp_path / "o.tsds") == expected
    assert sum(summary.rows.values()) == seen[-1].done == seen[-1].total == 600


@pytest.mark.usefixtures("slow_disk")
def test_a_worker_that_dies(scheduler: str, source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    """In the middle of a shard; Dask's nanny starts another worker in its place."""
    with converting("dask", source, tmp_path / "o.tsds", scheduler):
        kill(workers(scheduler)[0])
    assert contents(tmp_path / "o.tsds") == expected


@pytest.mark.usefixtures("slow_disk")
def test_a_scheduler_that_dies(scheduler: str, source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    """That ends the conversion; the same command with another scheduler goes on."""
    out = tmp_path / "o.tsds"
    (tmp_path / "dask").mkdir()
    command = [sys.executable, "-m", "tsds_cli", "convert", source, out, *FLAGS, "--engine", "dask", "--scheduler"]
    with cluster(tmp_path / "dask") as (address, process):
        converting = subprocess.Popen([*command, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: busy_with_a_shard(out))
        kill(process)
        _, errors = converting.communicate(timeout=100)
    assert converting.returncode == 1
    assert errors.startswith("tsds: ") and "Dask" in errors and "Traceback" not in errors, errors
    journal = out.with_name("o.tsds.partial") / "journal"
    finished = [path.stem.replace("train-", "train/") for path in journal.glob("*.json")]
    inodes = {name: (journal.parent / "store" / name / "zarr.json").stat().st_ino for name in finished}
    done = subprocess.run([*command, scheduler], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert inodes == {name: (out / name / "zarr.json").stat().st_ino for name in finished} != {}  # not made again
    assert contents(out) == expected


def test_a_bad_sample_is_not_tried_again(scheduler: str, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(source, folder)
    (folder / "b" / "599.jpg").write_bytes(b"\xff\xd8\xff rubbish")
    with pytest.raises(tsds.SourceError, match=r"b/599\.jpg"):
        tsds.clusters.convert_on("dask", folder, tmp_path / "o.tsds", OPTIONS, scheduler=scheduler)


def test_no_cluster_there(source: Path, tmp_path: Path) -> None:
    import dask

    is_refused = pytest.raises(tsds.errors.ConversionError, match=r"Dask at tcp://127\.0\.0\.1:1")
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}), is_refused:
        tsds.clusters.convert_on("dask", source, tmp_path / "o.tsds", OPTIONS, scheduler="tcp://127.0.0.1:1")


def test_a_cluster_of_its_own(source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    """The command starts one where no address is given."""
    command = [sys.executable, "-m", "tsds_cli", "convert", source, tmp_path / "o.tsds", *FLAGS, "--engine", "dask"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(tmp_path / "o.tsds") == expected
