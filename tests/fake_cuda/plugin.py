"""pytest's plugin for a process on the fake CUDA runtime: ``-p fake_cuda.plugin``."""

from __future__ import annotations

import pytest

from fake_cuda import kernels, runtime

#: What tests need of a GPU, by the words of their mark ``gpu(...)``, and why the fake one has it not.
CANNOT = {
    "nvjpeg": "the fake GPU has no nvJPEG, which is a library of its own",
    "nccl": "the fake GPU has no NCCL, which is a library of its own",
    "graphs": "the fake GPU has no CUDA graphs",
    "times": "the fake GPU takes no time to compute",
}


def pytest_configure(config: pytest.Config) -> None:
    kernels.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("gpu"):
            for need in mark.args:
                item.add_marker(pytest.mark.skip(reason=CANNOT[need]))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A function that the fake runtime has not is an error that torch may not look at."""
    if missing := runtime.last_missing():
        pytest.exit(f"{item.nodeid}: {missing} was called, which the fake CUDA runtime has not", 1)
