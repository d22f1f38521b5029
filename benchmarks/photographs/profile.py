"""Where the time of a training crop goes, on one core, by Linux' perf; and what more threads bring."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from typing import Any

from benchmarks.measure import Settings, as_result, say
from benchmarks.photographs import BATCH, STORES
from benchmarks.photographs.race import folder_of_photographs, race
from benchmarks.photographs.store import load, write
from tensorstore_ds import native
from tensorstore_ds.machine import usable_cores

THREADS = (1, 2, 4, 8, 16)
ENCODINGS = ("jpeg", "source")
_SECONDS = 3.0  # of a round at least

#: What the functions of the kernels do. A compiler can inline others into them.
PARTS = {
    "decode_units": "Huffman codes",
    "inverse_dct": "inverse DCT",
    "make_line": "chroma and colors",
    "crop_image": "resizing",
    "filter_make": "resizing",
    "make_filter": "resizing",
}
REST = "all else: headers, drawing crops, labels, threads"


def measure(settings: Settings) -> dict[str, Any]:
    """Microseconds of each part for one training crop of each encoding, and images per second by threads."""
    if native.core is None:
        raise RuntimeError(f"the kernels are not compiled: {native.why_not}. {native.advice}")
    if not shutil.which("perf"):
        raise RuntimeError("perf is not installed. Debian's package is called linux-perf.")
    files, name = folder_of_photographs(settings)
    columns = {}
    for encoding in ENCODINGS:
        target = settings.scratch / encoding
        target.mkdir()
        write("train", files, target, encoding)
        rounds = [profile(load("train", files, target, BATCH, encoding, 1), settings) for _ in range(settings.repeat)]
        columns[encoding] = {part: statistics.median(own[part] for own in rounds) for part in rounds[0]}
        say(f"  {encoding}: " + ", ".join(f"{part}: {value:.0f}" for part, value in columns[encoding].items()))
        shutil.rmtree(target)
    parts = columns[ENCODINGS[0]]
    rows = [{"part": part, **{name: round(own[part], 1) for name, own in columns.items()}} for part in parts]
    ways = [STORES["jpeg"].with_threads(threads) for threads in THREADS if threads <= usable_cores()]
    by_threads = race("train", files, ways, settings.scratch / "race", settings.repeat)
    return as_result([], photographs=name, kernels=native.core.variant(), parts=rows, threads=by_threads)


def profile(loader: Any, settings: Settings) -> dict[str, float]:
    """Microseconds of processor time for an image, of all threads, by part, in epochs of a loader."""
    for _ in loader:  # starts what has to be started
        pass
    record = settings.scratch / "perf.data"
    command = ["perf", "record", "-q", "-F", "1999", "-o", str(record), "-p", str(os.getpid())]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as perf:
        while not record.exists():
            time.sleep(0.1)
        begun, samples = time.process_time(), 0
        while time.process_time() - begun < _SECONDS:
            samples += sum(len(batch["label"]) for batch in loader)
        spent = 1e6 * (time.process_time() - begun) / samples
        perf.send_signal(signal.SIGINT)
    command = ["perf", "report", "-i", str(record), "--stdio", "--no-children", "-F", "overhead,dso,symbol"]
    shares = shares_of(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    parts = {part: spent * shares[part] for part in dict.fromkeys(PARTS.values())}
    return {**parts, REST: spent - sum(parts.values()), "the loader in all": spent}


def shares_of(report: str) -> dict[str, float]:
    """Of the time, by part, from a table of perf."""
    shares: dict[str, float] = defaultdict(float)
    for percent, function in re.findall(r"^\s*([\d.]+)%\s+_core\S*\s+\[\.\]\s+(\w+)", report, re.MULTILINE):
        shares[PARTS.get(function, REST)] += float(percent) / 100
    return shares
