"""Tests that need a GPU are collected where only the library, torch, pytest and hypothesis are installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from small_stores import ROOT

COLLECT = """
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(name, extras, found):
    name = canonicalize_name(name)
    if (name, extras) in found:
        return
    found.add((name, extras))
    try:
        lines = requires(name) or ()
    except PackageNotFoundError:
        return
    for each in map(Requirement, lines):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            needed(each.name, tuple(sorted(each.extras)), found)


found = set()
for name, extras in (("tensorstore-ds", ("", "torch")), ("pytest", ()), ("hypothesis", ())):
    needed(name, extras, found)
allowed = {name for name, _ in found}
owners = packages_distributions()


class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        owner = {canonicalize_name(each) for each in owners.get(name.partition(".")[0], ())}
        return None if owner and not owner & allowed else super().find_spec(name, path, target)


sys.meta_path = [Installed if each is PathFinder else each for each in sys.meta_path]
try:
    import moto
except ModuleNotFoundError:
    sys.exit(pytest.main(["--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"]))
"""


@pytest.mark.slow
def test_tests_of_a_gpu_need_the_library_torch_and_pytest_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("tests/test_") > 9
