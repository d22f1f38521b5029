"""The fake CUDA runtime, built with g++ from the headers that torch installs; and a command that runs on it.

``python tests/fake_cuda/build.py --schedule main-late -- python script.py`` runs a program with two GPUs that are none.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = (HERE / "runtime.cpp", HERE / "crt" / "host_defines.h", Path(__file__))
#: CUDA's major version whose runtime this is.
MAJOR = "13"
#: Between them, they show every kind of race: see runtime.cpp.
SCHEDULES = ("side-late", "main-late")


def _cuda() -> Path | None:
    """Where torch's wheels have put the files of CUDA."""
    try:
        found = importlib.util.find_spec(f"nvidia.cu{MAJOR}")
    except ModuleNotFoundError:
        return None
    return next(map(Path, found.submodule_search_locations or ()), None) if found else None


def unavailable() -> str:
    """Why there is no fake runtime on this machine; empty if it can be built."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the fake CUDA runtime is for Linux on x86_64, this is {sys.platform} on {platform.machine()}"
    if missing := [name for name in ("g++", "nm") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} is needed to build the fake CUDA runtime"
    import torch

    if torch.version.cuda is None or torch.version.cuda.split(".")[0] != MAJOR:
        found = torch.version.cuda or "no CUDA: use the wheel of PyPI"
        return f"the fake CUDA runtime is for torch with CUDA {MAJOR}, found {found}"
    files = [f"lib/libcudart.so.{MAJOR}", "include/cuda_runtime_api.h"]
    if (cuda := _cuda()) is None or not all((cuda / file).is_file() for file in files):
        return f"the wheel nvidia-cuda-runtime is needed for {' and '.join(files)}"
    return ""


def build() -> Path:
    """The folder with both libraries, which is made where there is none for these sources; see `unavailable`."""
    cuda = _cuda()
    assert cuda is not None
    library = cuda / "lib" / f"libcudart.so.{MAJOR}"
    parts = [*(source.read_bytes() for source in SOURCES), library.read_bytes()]
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    folder = ROOT / ".pytest_cache" / "d" / "fake_cuda" / digest[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        _compile(made, library, cuda / "include")
        try:
            made.rename(folder)
        except OSError:  # another process was quicker
            shutil.rmtree(made)
    return folder


def _compile(folder: Path, library: Path, include: Path) -> None:
    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr}")
        return done.stdout

    # Every function that the true library has, and that runtime.cpp has not: torch is linked to some, and calls few.
    names = [line.split()[-1].partition("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    lines = [
        f'__attribute__((weak)) int {name}(void) {{ return fake_cuda_missing("{name}"); }}'
        for name in sorted(set(names))
        if name.startswith(("cuda", "__cuda"))
    ]
    (folder / "missing.c").write_text("int fake_cuda_missing(const char *);\n" + "\n".join(lines) + "\n")
    (folder / "versions").write_text(f"{library.name} {{ global: *; }};\n")
    run("gcc", "-O1", "-fPIC", "-w", "-c", "missing.c")
    headers = [f"-I{HERE}", f"-isystem{include}"]
    run("g++", "-std=c++17", "-O1", "-fPIC", "-Wall", *headers, "-c", HERE / "runtime.cpp")
    linked = ["-shared", "-Wl,--version-script=versions", f"-Wl,-soname,{library.name}", "-o", library.name]
    run("g++", "runtime.o", "missing.o", *linked)
    # torch opens the driver's library by its name, and finds what it asks for in the one that this is linked to.
    run("gcc", "-shared", "-o", "libcuda.so.1", "-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed", library.name)


def environment(folder: Path, schedule: str, *, devices: int = 2) -> Mapping[str, str]:
    """What a program needs to run on the fake runtime: variables beside those of this process."""
    names = (f"libcudart.so.{MAJOR}", "libcuda.so.1")
    imported = [str(HERE.parent), str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(names),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, imported)),
        "FAKE_CUDA_SCHEDULE": schedule,
        "FAKE_CUDA_DEVICES": str(devices),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a command on a fake CUDA runtime.")
    parser.add_argument("--schedule", default="side-late", help="eager, late, side-late, main-late or random:SEED")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if reason := unavailable():
        sys.exit(reason)
    given_environment = environment(build(), given.schedule, devices=given.devices)
    os.execvpe(given.command[0], given.command, given_environment)  # noqa: S606


if __name__ == "__main__":
    main()
