"""Each way to install the package, with and without a compiler. Nothing is downloaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from install.conftest import PIP, build, install, run, status
from small_stores import ROOT

MODULE, NOTE = "tensorstore_ds/native/_core.abi3.so", "tensorstore_ds/native/_not_compiled.txt"
EDITABLE = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
#: Tests of what the kernels do, which must pass without them.
SELECTION = ["test_mapping.py", "test_minimal_reader.py", "test_jpeg.py"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="other names of files")


def names_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_with_kernels_says_its_platform(compiled: Path) -> None:
    assert "-cp311-abi3-" in compiled.name
    names = names_of(compiled)
    assert MODULE in names and NOTE not in names
    assert {"tensorstore_ds/native/module.c", "tensorstore_ds/native/core.h"} < names  # to compile it again


def test_what_is_installed_uses_the_kernels(compiled: Path, tmp_path: Path) -> None:
    site = install(compiled, tmp_path / "site")
    assert status(site).endswith("|")
    assert status(site, TSDS_NATIVE="0") == "None|the environment variable TSDS_NATIVE is 0"
    with (site / "tensorstore_ds/native/rows.h").open("a") as file:  # as an older module beside newer sources
        file.write("\n")
    assert status(site) == "None|compiled from the sources of another version"


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_it_is_for_later_versions_of_python(compiled: Path, tmp_path: Path, version: str) -> None:
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('_core', sys.argv[1]);"
        "core = importlib.util.module_from_spec(spec); spec.loader.exec_module(core); print(core.sources())"
    )
    program = shutil.which(f"python{version}")
    if program is None or subprocess.run([program, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"python{version} is not here")
    with zipfile.ZipFile(compiled) as archive:
        module = archive.extract(MODULE, tmp_path)
    assert len(run(program, "-c", code, module).stdout.strip()) == 64


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"TSDS_NATIVE": "0"}, "TSDS_NATIVE=0 forbade it"),
        ({"PATH": "/nowhere", "CC": ""}, "cc: No such file or directory"),
    ],
)
def test_without_a_compiler_the_wheel_is_pure_and_says_why(
    tree: Path, tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    wheel = build(tree, tmp_path / "wheel", **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert NOTE in names_of(wheel) and MODULE not in names_of(wheel)
    assert status(install(wheel, tmp_path / "site")) == f"None|not compiled at installation: {reason}"


def test_what_is_wanted_and_fails_is_an_error(tree: Path, tmp_path: Path) -> None:
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, tree]
    done = run(*command, fails=True, TSDS_NATIVE="1", CC="false")
    line = "tensorstore-ds: the kernels in C were not compiled: false: failed with status 1"
    assert line in done.stdout + done.stderr and "Traceback" not in done.stdout + done.stderr


def test_two_builds_at_the_same_time(compiled: Path, tree: Path, tmp_path: Path) -> None:
    """They have the same bytes as an earlier build, and write nothing into their tree."""
    command = [*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    outs = [tmp_path / "a", tmp_path / "b"]
    processes = [subprocess.Popen([*command, "-w", str(out), str(tree)]) for out in outs]
    assert [process.wait() for process in processes] == [0, 0]
    assert [wheel.read_bytes() for out in outs for wheel in out.glob("*.whl")] == [compiled.read_bytes()] * 2
    assert not list((tree / "tensorstore_ds/native").glob("*_core*"))


def test_an_editable_install_compiles_in_its_tree(compiled: Path, tree: Path, tmp_path: Path, quick_cc: str) -> None:
    own = tmp_path / "own"
    shutil.copytree(tree, own)
    run(sys.executable, "-c", EDITABLE, tmp_path, cwd=own, CC=quick_cc)
    assert status(own).endswith("|")
    run(sys.executable, "-c", EDITABLE, tmp_path, cwd=own, CC="false")
    assert status(own) == "None|not compiled at installation: false: failed with status 1"
    run(sys.executable, own / "tensorstore_ds/native/compile.py", "if-possible", CC=quick_cc)
    assert status(own).endswith("|") and not (own / NOTE).exists()
    (wheel,) = build(own, tmp_path / "w", TSDS_NATIVE="0").parent.glob("*.whl")
    assert MODULE not in names_of(wheel)  # the one in the tree is of this machine


def test_the_advice_of_a_pure_install_works(pure: Path, tmp_path: Path, quick_cc: str) -> None:
    if shutil.which("cc") is None:
        pytest.skip("cc is needed to compile the kernels")
    site = tmp_path / "site"
    shutil.copytree(pure, site)
    run(sys.executable, "-m", "tensorstore_ds.native", PYTHONPATH=str(site), CC=quick_cc)
    assert status(site).endswith("|")


def test_tests_pass_without_kernels(pure: Path, tmp_path: Path) -> None:
    files = [ROOT / "tests" / name for name in SELECTION]
    flags = ["-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "--basetemp", tmp_path / "t"]
    assert status(pure) == "None|not compiled at installation: false: failed with status 1"
    assert (pure / NOTE).is_file() and not (pure / MODULE).exists()
    run(sys.executable, "-m", "pytest", *flags, "-m", "not slow", *files, cwd=tmp_path, PYTHONPATH=str(pure))
