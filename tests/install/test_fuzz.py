"""A minute of libFuzzer with the sanitizers: no input may lead the kernels out of their memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorstore_ds import native

RUN = Path(__file__).parents[1] / "native_fuzz" / "run.py"


def has_fuzzer(folder: Path) -> bool:
    """Whether there is clang, and the libraries of its fuzzer and sanitizers, which may be a package of their own."""
    (folder / "empty.c").write_text(
        "int LLVMFuzzerTestOneInput(const char *data, long size) { return data && size < 0; }"
    )
    command = ["clang", "-fsanitize=fuzzer,address,undefined", "empty.c", "-o", "empty"]
    return shutil.which("clang") is not None and not subprocess.run(command, cwd=folder, capture_output=True).returncode


@pytest.mark.skipif(native.core is None, reason=f"no compiled kernels: {native.why_not}")
def test_nothing_leads_the_kernels_out_of_their_memory(tmp_path: Path) -> None:
    if not has_fuzzer(tmp_path):
        pytest.skip("clang and its fuzzer are not here")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, RUN, "60"], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "stat::number_of_executed_units" in done.stderr
