"""How the kernels in C are compiled, and what is said where they are not. Each way to install: tests/install."""

from __future__ import annotations

import importlib
import os
import platform
import struct
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorstore_ds import native
from tensorstore_ds.native import compile as compiling

#: Writes the file that is named after -o, and is quicker than a compiler.
PRETENDS = 'import sys; open(sys.argv[sys.argv.index("-o") + 1], "w").close()'
FORBIDDEN = os.environ.get("TSDS_NATIVE") == "0"


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "pretends.py"
    script.write_text(PRETENDS)
    for name in ("TSDS_NATIVE", "CFLAGS", "LDFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CC", f"'{sys.executable}' -IS '{script}'")
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(headers))


@pytest.mark.skipif(FORBIDDEN, reason="TSDS_NATIVE=0")
def test_what_is_compiled_here_is_used() -> None:
    if not (compiling.HERE / compiling.MODULE).exists():
        pytest.skip("the kernels are not compiled here")
    assert native.core is not None and native.why_not == native.advice == "", f"{native.why_not}: run make"
    assert native.core.sources() == compiling.sources_digest()


@pytest.mark.usefixtures("pretending")
def test_a_note_instead_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, note = tmp_path / compiling.MODULE, tmp_path / compiling.NOTE
    assert compiling.compile_or_note(tmp_path) == module and module.exists() and not note.exists()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiling.compile_or_note(tmp_path) == note and not module.exists()
    assert note.read_text() == "no-such-compiler: No such file or directory\n"
    monkeypatch.setenv("TSDS_NATIVE", "1")
    with pytest.raises(compiling.CompileError, match=r"^no-such-compiler: No such file or directory$"):
        compiling.compile_or_note(tmp_path)
    monkeypatch.setenv("CC", f"'{sys.executable}' -IS '{tmp_path / 'pretends.py'}'")
    assert compiling.compile_or_note(tmp_path) == module and not note.exists()
    monkeypatch.setenv("TSDS_NATIVE", "0")
    assert compiling.compile_or_note(tmp_path) == note and note.read_text() == "TSDS_NATIVE=0 forbade it\n"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("pretending")
@pytest.mark.parametrize(
    ("prints", "line"),
    [
        ("In file included\nrows.h:3:1: error: expected ';'\nmore", "rows.h:3:1: error: expected ';'"),
        ("killed", "killed"),
        ("", "failed with status 3"),
    ],
)
def test_one_line_of_what_a_compiler_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str, line: str
) -> None:
    script = tmp_path / "fails.py"
    script.write_text(f"import sys; sys.stderr.write({prints!r}); sys.exit(3)")
    monkeypatch.setenv("CC", f"'{sys.executable}' -IS '{script}'")
    with pytest.raises(compiling.CompileError) as caught:
        compiling.compile_module(tmp_path / "m.so")
    assert str(caught.value) == f"{sys.executable}: {line}"


@pytest.mark.usefixtures("pretending")
def test_what_cannot_be_compiled_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(compiling.CompileError, match=r"Not a directory|No such file"):
        compiling.compile_or_note(file)
    with pytest.raises(compiling.CompileError, match=r"No such file"):
        compiling.compile_module(tmp_path / "missing" / "m.so")
    (tmp_path / "include" / "Python.h").unlink()
    with pytest.raises(compiling.CompileError, match=r"^Python.h is not in .*: install the headers of Python"):
        compiling.compile_module(tmp_path / "m.so")
    monkeypatch.setattr(platform, "python_implementation", lambda: "PyPy")
    with pytest.raises(compiling.CompileError, match=r"^the kernels are for CPython$"):
        compiling.compile_module(tmp_path / "m.so")


def test_flags_of_the_environment_come_before_the_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def call(command: list[str]) -> None:
        calls.append(command)
        Path(command[command.index("-o") + 1]).touch()

    monkeypatch.setattr(compiling, "_call", call)
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    monkeypatch.setenv("CFLAGS", "-Ofast '-DA=b c'")
    monkeypatch.setenv("LDFLAGS", "-Wl,-z,now")
    compiling.compile_module(tmp_path / "m.so", "-g")
    *objects, link = calls
    for command in objects:
        assert command.index("-Ofast") < command.index("-DA=b c") < command.index("-O3") < command.index("-g")
    assert "-Wl,-z,now" in link and "-g" in link and "-O3" not in link


def status(monkeypatch: pytest.MonkeyPatch, found: Any) -> tuple[Any, str]:
    def load(name: str) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.delenv("TSDS_NATIVE", raising=False)
    monkeypatch.setattr(importlib, "import_module", load)
    return native._load()


def test_what_is_said_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HERE", tmp_path)
    assert status(monkeypatch, ModuleNotFoundError()) == (None, "not compiled")
    (tmp_path / compiling.NOTE).write_text("cc: No such file or directory\n")
    expected = "not compiled at installation: cc: No such file or directory"
    assert status(monkeypatch, ModuleNotFoundError()) == (None, expected)
    assert status(monkeypatch, ImportError("GLIBC_2.99")) == (None, "cannot be loaded: GLIBC_2.99")
    monkeypatch.setenv("TSDS_NATIVE", "0")
    assert native._load() == (None, "the environment variable TSDS_NATIVE is 0")


def test_a_module_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    older = None, "compiled from the sources of another version"
    assert status(monkeypatch, SimpleNamespace()) == older
    assert status(monkeypatch, SimpleNamespace(sources=lambda: "0" * 64)) == older
    same = SimpleNamespace(sources=compiling.sources_digest)
    assert status(monkeypatch, same) == (same, "")
    monkeypatch.setattr(native, "sources_digest", lambda: "")  # where a distribution has removed them
    stripped = SimpleNamespace(sources=lambda: "0" * 64)
    assert status(monkeypatch, stripped) == (stripped, "")


def test_without_the_gil_a_module_is_for_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "IS_FREE_THREADED", True)
    monkeypatch.setattr(compiling, "IS_WINDOWS", False)
    assert compiling._libraries() == ["-lm"]
    monkeypatch.setattr(compiling, "IS_WINDOWS", True)
    assert compiling._libraries()[-1] == f"-lpython{sys.version_info.major}{sys.version_info.minor}t"


def elf_of(data: bytes) -> tuple[set[str], int, bool]:
    """Names of the dynamic symbols of a 64-bit ELF file, its DT_FLAGS_1, and whether it has RELRO."""
    assert data[:6] == b"\x7fELF\x02\x01"
    places = struct.unpack_from("<QQ", data, 0x20)
    sizes = struct.unpack_from("<HHHH", data, 0x36)
    programs = [struct.unpack_from("<II6Q", data, places[0] + i * sizes[0]) for i in range(sizes[1])]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, places[1] + i * sizes[2]) for i in range(sizes[3])]
    names, flags = set[str](), 0
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind == 11:  # dynamic symbols
            texts = data[sections[link][4] : sections[link][4] + sections[link][5]]
            starts = (struct.unpack_from("<I", data, at)[0] for at in range(offset, offset + size, 24))
            names |= {texts[start : texts.index(b"\0", start)].decode() for start in starts}
        if kind == 6:  # the dynamic section: DT_FLAGS_1
            entries = (struct.unpack_from("<QQ", data, at) for at in range(offset, offset + size, 16))
            flags |= sum(value for tag, value in entries if tag == 0x6FFFFFFB)
    return names, flags, any(each[0] == 0x6474E552 for each in programs)


@pytest.mark.slow
@pytest.mark.skipif(FORBIDDEN or sys.platform != "linux", reason="flags of Linux")
def test_the_module_is_hardened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CFLAGS", "LDFLAGS"):
        monkeypatch.delenv(name, raising=False)
    try:
        module = compiling.compile_module(tmp_path / "m.so")
    except compiling.CompileError as error:
        pytest.skip(str(error))
    names, flags, has_relro = elf_of(module.read_bytes())
    assert "__stack_chk_fail" in names and "__memcpy_chk" in names
    assert flags & 1 and has_relro  # bound when it is loaded, and read-only after that


@pytest.mark.skipif(sys.platform != "linux", reason="flags of Linux")
def test_a_compiler_that_takes_no_such_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "refuses.py"
    script.write_text(
        "import sys\nsys.exit(any(each.startswith(('-fstack', '-D_FORTIFY_SOURCE=3')) for each in sys.argv))"
    )
    command = [sys.executable, str(script)]
    assert compiling._hardening(command, tmp_path) == ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
