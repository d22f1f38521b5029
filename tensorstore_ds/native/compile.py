"""Compile the kernels in C: ``python -m tensorstore_ds.native``, in a checkout and where pip has installed them.

It needs a C compiler and Python's headers. The build of a wheel, which runs this file before any package exists, and
``make`` call `compile_or_note`, which leaves a note instead of a module if there is no compiler.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

HERE = Path(__file__).resolve().parent
IS_WINDOWS = sys.platform == "win32"
#: Whether this Python is built without the GIL: it has no stable ABI, so a module is for one version.
IS_FREE_THREADED = "t-" in EXTENSION_SUFFIXES[0]
#: The module, by the names that Python looks for, and the note on why it is missing.
MODULE = f"_core{EXTENSION_SUFFIXES[0] if IS_FREE_THREADED else '.pyd' if IS_WINDOWS else '.abi3.so'}"
NOTE = "_not_compiled.txt"
#: No contraction into fused multiply-adds, so that results are equal on all processors. Overflow wraps around.
FLAGS = (
    *("-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fwrapv", "-Wno-psabi"),
    *(() if IS_WINDOWS else ("-fPIC",)),
)
#: Flags to compile and to link; of each line the first ones that the compiler accepts without a warning.
HARDENING: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("-fstack-protector-strong",),),
    (("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"), ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2")),
)
LINK_HARDENING = ("-Wl,-z,relro,-z,now",)
_AVX2 = {"plain": (), "avx2": ("-mavx2", "-mbmi", "-mbmi2", "-mlzcnt")}
#: By processor, the sets of instructions that kernels.c is compiled for, and their flags.
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {"x86_64": _AVX2, "AMD64": _AVX2}


class CompileError(Exception):
    """The kernels cannot be compiled here; the message is one line."""


def sources_digest() -> str:
    """SHA-256 of the sources, in hex; empty if they are missing."""
    files = sorted(HERE.glob("*.[ch]"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if files else ""


def compile_module(out: Path = HERE / MODULE, *more: str) -> Path:
    """Compile the kernels to `out`; `more` flags follow the usual ones, also of CFLAGS. Raises `CompileError`."""
    import shlex  # here, since whoever imports this library imports this file
    import shutil
    import sysconfig
    import tempfile

    if platform.python_implementation() != "CPython":
        raise CompileError("the kernels are for CPython")
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        raise CompileError(f"Python.h is not in {headers}: install the headers of Python, such as python3-dev")
    compiler = shlex.split(os.environ.get("CC") or ("clang" if IS_WINDOWS else "cc"))
    common = [*_words("CFLAGS"), *FLAGS]
    gil = {"Py_GIL_DISABLED": "1"} if IS_FREE_THREADED and IS_WINDOWS else {}  # elsewhere pyconfig.h has it
    fresh = out.with_name(f".{os.getpid()}{out.name}")
    try:
        with tempfile.TemporaryDirectory(prefix="tsds-compile-") as folder:
            linked, objects = str(Path(folder, out.name)), [str(Path(folder, "module.o"))]
            common += [*_hardening([*compiler, *common, *more], Path(folder)), *more, f"-I{headers}"]
            defined = _defined(SOURCES=f'"{sources_digest()}"', **gil)
            _call([*compiler, *common, *defined, "-c", str(HERE / "module.c"), "-o", objects[0]])
            for name, own in VARIANTS.get(platform.machine(), {"plain": ()}).items():
                objects.append(str(Path(folder, f"{name}.o")))
                defined = _defined(VARIANT=name, KERNELS=f"kernels_{name}")
                _call([*compiler, *common, *own, *defined, "-c", str(HERE / "kernels.c"), "-o", objects[-1]])
            _call([*compiler, *_words("LDFLAGS"), *_link(), *more, *objects, *_libraries(), "-o", linked])
            shutil.copy(linked, fresh)
        fresh.replace(out)  # in one step: a process that runs keeps the module that it has
    except OSError as error:
        raise CompileError(f"{error.filename or out}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):  # whose cause is told already
            fresh.unlink()
    return out


def compile_or_note(folder: Path = HERE) -> Path:
    """Compile the module into `folder`, or write there why this failed; returns the written file.

    With TSDS_NATIVE=0 in the environment it is not compiled. With TSDS_NATIVE=1 a failure raises `CompileError`.
    """
    wanted, module, note = os.environ.get("TSDS_NATIVE"), folder / MODULE, folder / NOTE
    try:
        if wanted == "0":
            raise CompileError("TSDS_NATIVE=0 forbade it")
        compile_module(module)
    except CompileError as error:
        if wanted == "1":
            raise
        try:
            module.unlink(missing_ok=True)  # of an older version, perhaps
            note.write_text(f"{error}\n", encoding="utf-8")
        except OSError as failed:
            raise CompileError(f"{failed.filename or note}: {failed.strerror}") from failed
        return note
    note.unlink(missing_ok=True)
    return module


def _words(variable: str) -> list[str]:
    import shlex

    return shlex.split(os.environ.get(variable, ""))


def _defined(**values: str) -> list[str]:
    return [f"-D{name}={value}" for name, value in values.items()]


def _link() -> list[str]:
    if sys.platform == "darwin":
        return ["-bundle", "-undefined", "dynamic_lookup"]
    return ["-shared", *(LINK_HARDENING if sys.platform == "linux" else ())]


def _hardening(command: list[str], folder: Path) -> list[str]:
    """The flags of `HARDENING` that a compiler accepts, on Linux; they do not slow the kernels."""
    import subprocess

    probe, found = folder / "probe.c", list[str]()
    probe.write_text("#include <string.h>\nint main(void) { return 0; }\n", encoding="ascii")
    for choices in HARDENING if sys.platform == "linux" else ():
        for flags in choices:
            tried = [*command, *flags, "-Werror", "-c", str(probe), "-o", str(folder / "probe.o")]
            with contextlib.suppress(OSError):  # the next call reports it
                if subprocess.run(tried, capture_output=True).returncode == 0:
                    found += flags
                    break
    return found


def _libraries() -> list[str]:
    version = "{}{}t".format(*sys.version_info) if IS_FREE_THREADED else "3"
    return [f"-L{Path(sys.base_prefix, 'libs')}", f"-lpython{version}"] if IS_WINDOWS else ["-lm"]


def _call(command: list[str]) -> None:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise CompileError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.splitlines() or [f"failed with status {done.returncode}"]
        raise CompileError(f"{command[0]}: {next((line for line in lines if 'error' in line), lines[0])}")
    sys.stderr.write(done.stderr)


def main(arguments: list[str]) -> None:
    """Compile the module in place, with more flags if given; `if-possible` leaves a note on failure."""
    try:
        made = compile_or_note() if arguments == ["if-possible"] else compile_module(HERE / MODULE, *arguments)
        if arguments != ["if-possible"]:
            (HERE / NOTE).unlink(missing_ok=True)
    except CompileError as error:
        sys.exit(f"The kernels in C were not compiled: {error}")
    if made.name == NOTE:
        reason = made.read_text(encoding="utf-8").strip()
        sys.stderr.write(f"The kernels in C were not compiled, so some work is slower: {reason}\n")
    else:
        sys.stdout.write(f"{made}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
