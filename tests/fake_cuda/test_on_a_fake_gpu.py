"""The tests that need a GPU, and those of the fake one itself, in processes on the fake CUDA runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fake_cuda.build import HERE, ROOT, SCHEDULES, build, environment, unavailable

#: Of the whole project: files are chosen here, since pytest imports all that it looks for marks in.
MARKED = [path for path in sorted(HERE.parent.glob("test_*.py")) if "mark.gpu" in path.read_text()]


@pytest.fixture(scope="session")
def library() -> Path:
    """The folder with the fake runtime."""
    if reason := unavailable():
        pytest.skip(reason)
    return build()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(arguments, id=name, marks=pytest.mark.drawn(1, of=f"schedules {name}"))
        for name, arguments in (("of the fake", [HERE / "on_fake"]), ("of the project", ["-m", "gpu", *MARKED]))
    ],
)
def test_all_pass(library: Path, schedule: str, arguments: list[str | Path], tmp_path: Path) -> None:
    options = ["-p", "fake_cuda.plugin", "-p", "no:cacheprovider", "-rsxX", f"--basetemp={tmp_path / 't'}"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, arguments)]
    variables = environment(library, schedule)
    done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout.strip().splitlines()[-1:]
