"""The wheel without compiled kernels: built, unpacked, and used in a process that sees nothing of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tensorstore_ds as tsds

ROOT = Path(__file__).parents[1]
VALID = ROOT / "formats/v1/conformance/valid"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [*build, "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, "TSDS_NATIVE": "0"})  # with kernels: tests/install
    (path,) = folder.glob("*.whl")
    assert path.name == f"tensorstore_ds-{tsds.__version__}-py3-none-any.whl"
    return path


@pytest.mark.slow
def test_it_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    packages = (ROOT / "tensorstore_ds", ROOT / "cli/tsds_cli")
    expected = {
        path.relative_to(package.parent).as_posix()
        for package in packages
        for path in package.rglob("*")
        if path.suffix in (".py", ".pyi", ".typed", ".c", ".h", ".js", ".css", ".html")
    } | {"tensorstore_ds/native/_not_compiled.txt"}
    assert {"tensorstore_ds/__init__.pyi", "tensorstore_ds/py.typed", "tsds_cli/main.py"} < expected
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected


@pytest.mark.slow
def test_it_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)
    program, environment = site / "bin/tsds", {**os.environ, "PYTHONPATH": str(site)}

    def run(*command: object) -> str:
        arguments = [str(word) for word in command]
        return subprocess.run(
            arguments, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path
        ).stdout

    code = "import tensorstore_ds, tsds_cli; print(tensorstore_ds.__file__); print(tsds_cli.__file__)"
    assert all(Path(line).is_relative_to(site) for line in run(sys.executable, "-c", code).splitlines())
    assert run(sys.executable, program, "--version").split()[-1] == tsds.__version__
    store = VALID / "minimal.tsds"
    run(sys.executable, program, "repack", store, "packed.tsds", "--layout", "zarr")
    run(sys.executable, program, "verify", "packed.tsds")
    assert tsds.open(tmp_path / "packed.tsds").layout == "zarr"
