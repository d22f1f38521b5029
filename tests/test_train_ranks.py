"""Training over two processes that torchrun starts, on the CPU, with gloo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorstore_ds as tsds
from small_stores import ROOT
from training_stores import SMALL, labelled, load_history, names, small

pytestmark = pytest.mark.slow

FLAGS = [
    *("--model", "seed", "--image-size", "12", "--patch-size", "4", "--width", "16", "--depth", "2", "--heads", "2"),
    *("--mlp-width", "32", "--device", "cpu", "--threads", "1", "--epochs", "2"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory.mktemp("ranks"), train=64, test=21)  # an odd number for two ranks to evaluate


def torchrun(store: Path, out: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    search = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    return subprocess.Popen(
        [*command, "-m", "tsds_cli", "train", str(store), "--out", str(out), *FLAGS, *flags],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return output, errors


def alone(store: Path, out: Path, **changes: Any) -> tsds.TrainReport:
    report = tsds.train(store, small(epochs=2, **changes), out=out)
    assert report is not None
    return report


def close(a: Path, b: Path) -> None:
    """Two runs came to the same weights, but for the order in which numbers were added.

    Not so the biases of the attention: those of keys have no gradient (softmax ignores what is added to all), and Adam
    makes steps of the rounding errors.
    """
    first, second = (torch.load(out / "last.pt", weights_only=True)["weights"] for out in (a, b))
    assert first.keys() == second.keys()
    for name in (name for name in first if not name.endswith("in_proj_bias")):
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=2e-5)


def test_two_ranks_do_what_one_does_with_a_batch_of_twice_the_size(store: Path, tmp_path: Path) -> None:
    """So that gradients are averaged, no sample is seen twice or never, and metrics are reduced right."""
    output, _ = finished(torchrun(store, tmp_path / "two", "--batch-size", "4", "--accumulate", "2"))
    alone(store, tmp_path / "one", batch_size=16)
    close(tmp_path / "one", tmp_path / "two")
    for one, two in zip(load_history(tmp_path / "one"), load_history(tmp_path / "two"), strict=True):
        assert two.train == pytest.approx(one.train, rel=1e-3)
        assert two.eval == pytest.approx(one.eval, rel=1e-3)
    assert "2 ranks" in output and output.count("epoch   1") == 1  # one rank speaks
    assert {"best.pt", "last.pt", "history.jsonl", "report.json"} <= set(names(tmp_path / "two"))


def test_a_preempted_run_goes_on(store: Path, tmp_path: Path) -> None:
    """SIGTERM to torchrun, as a cluster sends it: all ranks end between the same two steps."""
    flags = ("--batch-size", "2", "--augment", "none")
    out = tmp_path / "stopped"
    process = torchrun(store, out, *flags)
    deadline = time.monotonic() + 60
    while not (out / "last.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    if process.returncode:  # else it was over before
        assert "stopped in epoch" in errors, output + errors
    finished(torchrun(store, out, *flags, "--resume"))
    alone(store, tmp_path / "whole", batch_size=4, augment="none")
    close(tmp_path / "whole", out)
    assert [r.epoch for r in load_history(out)] == [1, 2]


def test_small_is_what_the_flags_say() -> None:
    """The runs alone and those of torchrun are of one model."""
    given: Sequence[str] = FLAGS
    assert given[given.index("--width") + 1] == str(SMALL["width"])
    assert given[given.index("--patch-size") + 1] == str(SMALL["patch_size"])
