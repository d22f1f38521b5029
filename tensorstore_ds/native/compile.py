"""Compiles the kernels where they lie: ``python tensorstore_ds/native/compile.py``. The build of a wheel does it, too.

It needs a C compiler and Python's headers, and nothing else.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
MODULE = HERE / "_core.abi3.so"
FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fwrapv",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
)
#: By processor, the sets of instructions that kernels.c is compiled for, and their flags.
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {"plain": (), "avx2": ("-mavx2", "-mbmi", "-mbmi2", "-mlzcnt")},
}


class CompileError(Exception):
    """The kernels cannot be compiled here; one line says why."""


def compile_module(out: Path = MODULE, *more: str) -> Path:
    """Compile the module of kernels to `out`; `more` flags go to each call of the compiler.

    Raises:
        CompileError: there is no compiler, or it fails.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED") or platform.python_implementation() != "CPython":
        raise CompileError("Python's limited API is for CPython with the GIL")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    flags = [*FLAGS, *more, f"-I{sysconfig.get_path('include')}"]
    folder = out.parent / f".{out.name}.{os.getpid()}"
    folder.mkdir()
    try:
        jobs = {folder / "module.o": [str(HERE / "module.c")]}
        for name, own in VARIANTS.get(platform.machine(), {"plain": ()}).items():
            jobs[folder / f"{name}.o"] = [
                *own,
                f"-DVARIANT={name}",
                f"-DKERNELS=kernels_{name}",
                str(HERE / "kernels.c"),
            ]
        for made, job in jobs.items():
            _call([*compiler, *flags, "-c", *job, "-o", str(made)])
        link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
        _call([*compiler, *more, *link, *map(str, jobs), "-lm", "-o", str(folder / out.name)])
        (folder / out.name).replace(out)  # a process that runs keeps the one that it has
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    return out


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise CompileError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["failed"]
        raise CompileError(f"{command[0]}: {lines[0]}")
    sys.stderr.write(done.stderr)


if __name__ == "__main__":
    print(compile_module(MODULE, *sys.argv[1:]))  # noqa: T201
