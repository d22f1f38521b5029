"""A slow disk, for every Python process whose PYTHONPATH has this folder: see `slow_disk` in `cluster.conftest`."""

import os
import sys
import time
from pathlib import Path

_FOLDER = os.environ.get("TSDS_TESTS_DISK", "")
_SECONDS = 0.04


def _wait(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and str(arguments[0]).startswith(f"{_FOLDER}/photos/") and Path(_FOLDER, "slow").exists():
        time.sleep(_SECONDS)


if _FOLDER:
    sys.addaudithook(_wait)
