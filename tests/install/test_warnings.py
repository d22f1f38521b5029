"""The kernels under all warnings and analyzers of the compilers that are here. Users compile without."""

from __future__ import annotations

import platform
import shutil
import sysconfig
from pathlib import Path

import pytest

from install.conftest import run
from tensorstore_ds.native.compile import FLAGS, HERE, VARIANTS

STRICT = [*FLAGS, "-Wall", "-Wextra", "-Wshadow", "-Wno-psabi", "-Werror", f"-I{sysconfig.get_path('include')}"]
ANALYSES = {
    # A value that is stored and not read is no danger.
    "clang": ["--analyze", "-Xclang", "-analyzer-werror", "-Xclang", "-analyzer-disable-checker=deadcode"],
    "gcc": ["-fanalyzer", "-O1"],
    "aarch64-linux-gnu-gcc": ["-fanalyzer", "-O1"],
}


@pytest.mark.parametrize("compiler", list(ANALYSES))
@pytest.mark.parametrize("file", ["module.c", "kernels.c"])
@pytest.mark.parametrize("how", ["compiled", "analyzed"])
def test_no_compiler_warns(tmp_path: Path, compiler: str, file: str, how: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not here")
    machine = "aarch64" if compiler.startswith("aarch64") else platform.machine()
    if machine != platform.machine() and file == "module.c":
        pytest.skip("Python's headers are those of this machine")
    more = ANALYSES[compiler] if how == "analyzed" else []
    variants = {"plain": ()} if how == "analyzed" else VARIANTS.get(machine, {"plain": ()})
    for name, own in variants.items():
        defined = [f"-DVARIANT={name}", f"-DKERNELS=kernels_{name}"]
        run(compiler, *STRICT, *own, *defined, *more, "-c", HERE / file, "-o", tmp_path / "out", cwd=tmp_path)
