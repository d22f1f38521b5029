"""An sdist of this tree, unpacked in a folder with a name that is not plain, and the wheels that are built of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from small_stores import ROOT

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def run(
    *command: object, fails: bool = False, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment that says nothing about the kernels but what is named."""
    own = {key: value for key, value in os.environ.items() if key not in ("TSDS_NATIVE", "CFLAGS", "LDFLAGS")}
    env = {**own, "PYTHONSAFEPATH": "1", **environment}  # no module of the current folder
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=env)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done


def build(tree: Path, out: Path, **environment: str) -> Path:
    """The wheel of a tree."""
    run(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, tree, **environment)
    (wheel,) = out.glob("*.whl")
    return wheel


def install(wheel: Path, site: Path) -> Path:
    run(*PIP, "install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", site, wheel)
    return site


def status(site: Path, **environment: str) -> str:
    """The kernels in use and why there are none, of the package in a folder."""
    code = "import tensorstore_ds as t; print(t.__file__); i = t.installation(); print(i.kernels, i.why_not, sep='|')"
    where, found = run(sys.executable, "-c", code, PYTHONPATH=str(site), **environment).stdout.splitlines()
    assert Path(where).is_relative_to(site)
    return found


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, as an sdist has them."""
    folder = tmp_path_factory.mktemp("sdist ä 数")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz"))


@pytest.fixture(scope="session")
def quick_cc(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler that optimizes little: 3 s for the kernels, not 13."""
    script = tmp_path_factory.mktemp("quick") / "cc"
    script.write_text('#!/bin/sh\nexec cc "$@" -O1\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="session")
def compiled(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with the kernels."""
    if shutil.which("cc") is None:
        pytest.skip("cc is needed to compile the kernels")
    return build(tree, tmp_path_factory.mktemp("compiled"), TSDS_NATIVE="1")


@pytest.fixture(scope="session")
def pure(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without kernels, installed in a folder."""
    wheel = build(tree, tmp_path_factory.mktemp("pure"), CC="false")
    assert wheel.name.endswith("-py3-none-any.whl")
    return install(wheel, tmp_path_factory.mktemp("site ö"))
