"""The command `tsds`, as a person runs it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: A command that takes longer has failed.
SECONDS = 600


class Shell:
    """Runs commands in a folder, with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
        hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONPATH": path}
        self.environment = {**os.environ, **hidden, "TSDS_CACHE_DIR": str(folder / "cache")}

    def run(self, *words: object, fails: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `tsds` with these words. What fails says so in one line; `fails` is its exit status, or None for any."""
        done = subprocess.run(
            command(words),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        said = f"tsds {' '.join(map(str, words))}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        assert fails is None or done.returncode == fails, said
        assert "Traceback" not in done.stderr, said
        if done.returncode and not done.stdout:
            assert done.stderr.splitlines()[-1].startswith("tsds: "), said
        return done

    def json(self, *words: object, fails: int | None = 0) -> Any:
        """As `run`, with ``--json``: what it prints."""
        return json.loads(self.run(*words, "--json", fails=fails).stdout)

    def python(self, code: str) -> str:
        """Run lines of Python in a process of their own: what they print."""
        words = [sys.executable, "-c", code]
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stderr[-3000:]}"
        return done.stdout

    @contextlib.contextmanager
    def started(self, *words: object) -> Iterator[subprocess.Popen[str]]:
        """A command that runs meanwhile; it is killed at the end, if it still runs."""
        with subprocess.Popen(
            command(words),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def serving(self, store: Path) -> Iterator[str]:
        """The URL of a store, as long as the block lasts."""
        with self.started("serve", store, "--port", 0) as process:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]


def command(words: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "tsds_cli", *map(str, words)]
