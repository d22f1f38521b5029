"""How soon the command answers, against a Python that does nothing."""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import tensorstore_ds
from benchmarks.convert_mnist import WORKERS
from benchmarks.measure import Figure, Settings, alternate, as_result, seconds_of

HELP, INFO = 0.25, 0.5  # seconds
_ROUNDS = 10


def measure(settings: Settings) -> dict[str, Any]:
    """Wall time of whole processes, files warm: the median of ten, or of more if more rounds are asked for."""
    store = settings.scratch / "startup.tsds"
    tensorstore_ds.convert(settings.digits, store, workers=WORKERS)
    tsds = str(Path(sys.executable).with_name("tsds"))  # of the environment that this runs in
    commands = [[sys.executable, "-c", "pass"], [tsds, "--help"], [tsds, "info", str(store)]]
    bare, help_, info = alternate([functools.partial(_run, c) for c in commands], max(_ROUNDS, settings.repeat))
    note = f"of this, Python startup {statistics.median(bare):.3f} s"
    figures = [
        Figure("tsds --help", statistics.median(help_), HELP, "s", 3, note=note),
        Figure("tsds info of the 70,000 images", statistics.median(info), INFO, "s", 3, note=note),
    ]
    return as_result(figures)


def _run(command: list[str]) -> float:
    return seconds_of(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
