"""What the figures depend on: the machine, the versions, and the date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

from tensorstore_ds.machine import memory_limit, usable_cores
from tensorstore_ds.version import __version__

_PACKAGES = ("torch", "torchvision", "numpy", "pillow")


def machine() -> dict[str, str]:
    """By name, in words: ``cpu``, ``cores`` that may be used, ``memory``, ``system``, versions, ``date``."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "cores": f"{usable_cores()} cores",
        "memory": f"{memory / 2**30:.0f} GiB, {memory_limit() / 2**30:.0f} GiB to use",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": f"Python {platform.python_version()}",
        "tensorstore-ds": f"tensorstore-ds {__version__}",
        **{name: f"{name} {_version(name)}" for name in _PACKAGES},
        "date": datetime.datetime.now().astimezone().date().isoformat(),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
