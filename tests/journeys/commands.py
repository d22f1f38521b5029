"""The command `tsds`, as a person runs it.

Most commands run in this process, which saves the seconds in which each would import torch. `program`, `started` and
`serving` start the real program.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tsds_cli.main import cli

ROOT = Path(__file__).parents[2]
#: A command that takes longer has failed.
SECONDS = 600


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    words: tuple[object, ...]
    status: int
    stdout: str
    stderr: str

    def check(self, fails: int | None) -> Done:
        """Assert that it ended as expected, and that an error is one line."""
        said = f"tsds {' '.join(map(str, self.words))}\n{self.stdout[-1500:]}\n{self.stderr[-1500:]}"
        assert fails is None or self.status == fails, said
        assert "Traceback" not in self.stderr, said
        if self.status and not self.stdout:
            assert self.stderr.splitlines()[-1].startswith("tsds: "), said
        return self


class Shell:
    """Runs commands in a folder, with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {"CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1", "TSDS_CACHE_DIR": str(folder / "cache")}

    def run(self, *words: object, fails: int | None = 0) -> Done:
        """Run `tsds` with these words, in this process. `fails` is its exit status, or None for any."""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(cli, [*map(str, words)], env=self.environment, catch_exceptions=False)
        return Done(words, done.exit_code, done.stdout, done.stderr).check(fails)

    def program(self, *words: object, fails: int | None = 0) -> Done:
        """As `run`, by the program, in a process of its own."""
        done = self._process(command(words))
        return Done(words, done.returncode, done.stdout, done.stderr).check(fails)

    def json(self, *words: object, fails: int | None = 0) -> Any:
        """As `run`, with ``--json``: what it prints."""
        return json.loads(self.run(*words, "--json", fails=fails).stdout)

    def python(self, code: str) -> str:
        """Run lines of Python in a process of their own: what they print."""
        done = self._process([sys.executable, "-c", code])
        assert done.returncode == 0, f"{code}\n{done.stderr[-3000:]}"
        return done.stdout

    @contextlib.contextmanager
    def started(self, *words: object) -> Iterator[subprocess.Popen[str]]:
        """The program, which runs meanwhile; it is killed at the end, if it still runs."""
        with subprocess.Popen(
            command(words),
            cwd=self.folder,
            env=self._of_processes(),
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

    def _process(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self._of_processes(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def _of_processes(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
        return {**os.environ, **self.environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def command(words: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "tsds_cli", *map(str, words)]
