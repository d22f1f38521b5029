"""What the tests of frameworks share. `make test-clients` runs them, in an environment of their own."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorstore_ds as tsds
from clients.table import EXAMPLES, LIMITS, WORKS
from tensorstore_ds.annex import demo

# Read by the frameworks, which are imported later. Nothing is downloaded, nor written to the user's folders.
os.environ.update(HF_HUB_OFFLINE="1", YOLO_OFFLINE="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
os.environ.update(JAX_PLATFORMS="cpu", NO_ALBUMENTATIONS_UPDATE="1", ACCELERATE_USE_CPU="true")
SETTINGS = tempfile.TemporaryDirectory(prefix="tsds-clients-")
os.environ.update(YOLO_CONFIG_DIR=SETTINGS.name)

Example = Callable[..., str]


def of_example(name: str) -> dict[str, Any]:
    """The names of an example."""
    return runpy.run_path(str(EXAMPLES / "clients" / name))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write", action="store_true", help="write the table of docs/clients.md")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "works(framework, what): the test shows that this works")
    config.addinivalue_line("markers", "limit(framework, what): the test shows that this does not work")
    config.addinivalue_line("filterwarnings", "ignore")  # the frameworks' own warnings are not ours
    config.addinivalue_line("filterwarnings", r"error:::tensorstore_ds(\..*)?")
    config.stash[WORKS], config.stash[LIMITS] = {}, {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "whole_table" in item.fixturenames)  # the table comes last


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.passed:
        for name, key in (("works", WORKS), ("limit", LIMITS)):
            for mark in item.iter_markers(name):
                framework, what = mark.args
                shown = item.config.stash[key].setdefault(framework, [])
                if what not in shown:
                    shown.append(what)
    return report


@pytest.fixture(scope="session", autouse=True)
def one_thread_of_torch() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 digits of 8 x 8 pixels as a store; the folders that it was made of lie beside it, without its `.tsds`."""
    root = tmp_path_factory.mktemp("digits")
    images, labels = demo.load_digits()
    demo.write_digits(root / "digits", images[:500], labels[:500])
    tsds.convert(root / "digits", root / "digits.tsds", tsds.ConvertOptions(color="rgb", workers=0))
    return root / "digits.tsds"


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 scenes of 120 x 160 pixels with boxes as a store, 8 for training; as Pascal VOC beside it."""
    root = tmp_path_factory.mktemp("scenes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SCENES", 12)
        patch.setattr(demo, "_TRAIN_SCENES", 8)
        demo.write_scenes(root / "scenes", *demo.load_digits())
    tsds.convert(root / "scenes", root / "scenes.tsds", tsds.ConvertOptions(workers=0))
    return root / "scenes.tsds"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Example]:
    """Runs an example in this process, as if from the command line; returns the last line that it printed."""

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()[-1]

    return run
