"""What all clusters convert: some hundred images in enough shards that a worker can be killed in the middle of one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import numpy as np
import psutil
import pytest
from PIL import Image

import tensorstore_ds as tsds
from stores import contents

#: Some dozen shards.
OPTIONS = tsds.ConvertOptions(shard_nbytes=1_500_000, size=(128, 128), color="rgb", layout="zarr", workers=1)
FLAGS = ("--shard-size", "1500000", "--size", "128", "--color", "rgb", "--layout", "zarr")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, readable by every node."""
    folder = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)
    for i in range(600):
        path = folder / "photos" / "ab"[i % 2] / f"{i:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(path)
    return folder / "photos"


@pytest.fixture(scope="session")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The store of one process: every other must be equal to the byte."""
    return contents(tsds.convert(source, tmp_path_factory.mktemp("expected") / "o.tsds", OPTIONS).path)


@pytest.fixture(autouse=True, scope="session")
def environment(source: Path) -> None:
    """A disk that can be slow; workers inherit it."""
    os.environ["TSDS_TESTS_DISK"] = str(source.parent)
    slow = str(Path(__file__).parent / "slow_disk")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (slow, os.environ.get("PYTHONPATH"))))


@pytest.fixture
def slow_disk(source: Path) -> Iterator[None]:
    """A shard takes more than a second: something can happen in the middle of it on a fast machine, too."""
    (source.parent / "slow").touch()
    yield
    (source.parent / "slow").unlink()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def busy_with_a_shard(out: Path) -> bool:
    """Whether some shards are finished, and another one is being written."""
    partial = out.with_name(f"{out.name}.partial")
    return any((partial / "journal").glob("*.json")) and any((partial / "store").glob("*/*.partial"))


def kill(pid: int) -> None:
    """As if its machine had lost power."""
    os.kill(pid, signal.SIGKILL)


def end(processes: Iterable[subprocess.Popen[Any]]) -> None:
    """Kill processes and all that they have started."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


@contextlib.contextmanager
def converting(engine: Literal["dask", "ray"], source: Path, out: Path, scheduler: str) -> Iterator[None]:
    """A conversion, which is writing a shard when the block begins, and must end well after it."""
    ends = list[object]()

    def convert() -> None:
        try:
            ends.append(tsds.clusters.convert_on(engine, source, out, OPTIONS, scheduler=scheduler))
        except BaseException as error:
            ends.append(error)

    thread = Thread(target=convert)
    thread.start()
    wait_for(lambda: busy_with_a_shard(out))
    yield
    thread.join(150)
    assert ends and isinstance(ends[0], tsds.conversion.Summary), ends
