"""With the sanitizers: no input, and no map that changes while it is read, may lead the kernels out of their memory."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorstore_ds import native

RUN = Path(__file__).parents[1] / "native_fuzz" / "run.py"
needs_kernels = pytest.mark.skipif(native.core is None, reason=f"no compiled kernels: {native.why_not}")


def has_fuzzer(folder: Path) -> bool:
    """Whether there is clang, and the libraries of its fuzzer and sanitizers, which may be a package of their own."""
    (folder / "empty.c").write_text(
        "int LLVMFuzzerTestOneInput(const char *data, long size) { return data && size < 0; }"
    )
    command = ["clang", "-fsanitize=fuzzer,address,undefined", "empty.c", "-o", "empty"]
    return shutil.which("clang") is not None and not subprocess.run(command, cwd=folder, capture_output=True).returncode


@needs_kernels
def test_nothing_leads_the_kernels_out_of_their_memory(tmp_path: Path) -> None:
    if not has_fuzzer(tmp_path):
        pytest.skip("clang and its fuzzer are not here")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    seconds = os.environ.get("TSDS_FUZZED", "20")
    done = subprocess.run([sys.executable, RUN, seconds], env=environment, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "stat::number_of_executed_units" in done.stderr


@needs_kernels
def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """As another process can change a map: a context is not damaged for the files that come afterwards."""
    if not has_fuzzer(tmp_path):
        pytest.skip("clang and its sanitizers are not here")
    run = runpy.run_path(str(RUN))
    run["seeds"](tmp_path)
    checks = "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread"
    sources = f"-I{run['SOURCES']}", str(run["SOURCES"] / "kernels.c"), str(RUN.with_name("changing.c"))
    subprocess.run(["clang", *run["FLAGS"], *checks, *sources, "-lm", "-o", str(tmp_path / "changing")], check=True)
    for number in (0, 4, 9, 10):  # without tables, with restarts, gray, with entries
        command = [str(tmp_path / "changing"), str(tmp_path / f"{number:03}"), "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        assert "then 0 instead of 0" in done.stdout
