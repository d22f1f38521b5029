"""Where the time of a conversion goes. Clocks are put around functions of the library; they cost a few per cent."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from benchmarks.convert_mnist import WORKERS, convert
from benchmarks.measure import Settings, seconds_of
from tensorstore_ds.conversion import convert as conversion, shard_writer as writer, workers, workspace
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.imaging import codecs as encode
from tensorstore_ds.sources.folders import FolderSource

#: Steps of the parent, one after the other: what they are, whose function, its name. Indented ones are part of one
#: above; those of threads are summed over threads.
_PARENT: tuple[tuple[str, Any, str], ...] = (
    ("scan: detect the format", conversion, "open_any"),
    ("scan: list, probe", conversion, "prepare"),
    ("blocks: take in tables", writer.ShardWriter, "append"),
    ("finish: a shard", writer.ShardWriter, "finish"),
    ("  of which indices, metadata", writer, "seal_array"),
    ("  of which sync and hash, in threads", writer, "check_in"),
    ("finish: digest of references", conversion, "_digest"),
    ("finish: journal", workspace.Workspace, "finish"),
    ("finish: commit", workspace.Workspace, "commit"),
    ("threads: sync", writer, "sync"),
    ("threads: hash", writer, "digest"),
)
#: Steps of a worker.
_WORKER: tuple[tuple[str, Any, str], ...] = (
    ("source: path and label", FolderSource, "read"),
    ("encode: all of it", workers, "encode_sample"),
    ("  of which read the file", encode, "_read_file"),
    ("  of which header", encode, "open_image"),
    ("  of which decode, with the header", encode, "decode_image"),
    ("rows and keys gathered", workers, "_fixed_rows"),
    ("tables", workers, "_table_values"),
    ("write", workers, "write_rows"),
    ("statistics", Statistics, "add"),
    ("statistics of pixels, with add", Statistics, "add_pixels"),
)


def profile(settings: Settings) -> Iterator[str]:
    """Lines of text: the parent's steps with two workers, and a worker's steps (in one process, without workers).

    Of all rounds the quickest is shown.
    """
    yield from _steps(f"{WORKERS} workers, as the parent sees it", _PARENT, settings, WORKERS)
    yield from _steps("the same in one process, what workers do", _WORKER, settings, 0)


def _steps(title: str, steps: Sequence[tuple[str, Any, str]], settings: Settings, processes: int) -> Iterator[str]:
    store, runs = settings.scratch / "profile.tsds", []
    for _ in range(settings.repeat):
        seconds: dict[str, float] = defaultdict(float)
        with contextlib.ExitStack() as stack:
            for step, owner, name in steps:
                stack.enter_context(mock.patch.object(owner, name, _clocked(step, getattr(owner, name), seconds)))
            runs.append((seconds_of(lambda: convert(settings.digits, store, processes)), seconds))
        shutil.rmtree(store)
    total, seconds = min(runs, key=lambda run: run[0])
    yield f"{title}: {total:.3f} s"
    for step, _, _ in steps:
        yield f"  {seconds[step]:7.3f} s  {step}"
    named = sum(seconds[step] for step, _, _ in steps if not step.startswith(("  ", "threads", "statistics of")))
    yield f"  {total - named:7.3f} s  all else{': start of workers, waiting for blocks' if processes else ''}"


def _clocked(step: str, function: Callable[..., Any], seconds: dict[str, float]) -> Callable[..., Any]:
    lock = threading.Lock()

    def clocked(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            with lock:
                seconds[step] += time.perf_counter() - begun

    return clocked
