"""Training over two processes that torchrun starts, on the CPU, with gloo."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from tensorstore_ds.annex.training import process
from tensorstore_ds.annex.training.process import MOST_UNASKED, StopVote
from training_stores import finished, labelled, load_history, names, torchrun, trained
from waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, of="ranks")]

FLAGS = [
    *("--model", "seed", "--image-size", "12", "--patch-size", "4", "--width", "16", "--depth", "2", "--heads", "2"),
    *("--mlp-width", "32", "--device", "cpu", "--threads", "1", "--epochs", "2"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory.mktemp("ranks"), train=64, test=21)  # an odd number for two ranks to evaluate


def started(store: Path, out: Path, *flags: str, ranks: int = 2) -> subprocess.Popen[str]:
    return torchrun("-m", "tsds_cli", "train", store, "--out", out, *FLAGS, *flags, ranks=ranks)


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
    """So that gradients are averaged, no sample is seen twice or never, and metrics are reduced right.

    Half of the samples have no label, and count for nothing whatever rank and batch they are in.
    """
    store = Path(shutil.copytree(store, tmp_path / "half.tsds"))
    label = tsds.open(store)["train"]["label"]
    half = {"label": {"train": np.where(np.arange(64) < 32, -1, label)}}
    tsds.editing.add_fields(store, half, classes={"label": ("a", "b", "c")}, replace=True)
    output = finished(started(store, tmp_path / "two", "--batch-size", "4", "--accumulate", "2"))
    _, notes = trained(store, tmp_path / "one", epochs=2, batch_size=16)
    assert "32 of 64 samples of train have no label: they teach no class" in notes
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
    process = started(store, out, *flags)
    wait_for((out / "last.pt").exists, 60)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    if process.returncode:  # else it was over before
        assert "stopped in epoch" in errors, output + errors
    finished(started(store, out, *flags, "--resume"))
    trained(store, tmp_path / "whole", epochs=2, batch_size=4, augment="none")
    close(tmp_path / "whole", out)
    assert [r.epoch for r in load_history(out)] == [1, 2]


def listens(port: int) -> bool:
    with socket.socket() as client:
        return not client.connect_ex(("127.0.0.1", port))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_waits_for_others_can_be_ended(store: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Python handles no signal there. torchrun would wait 30 seconds before it kills."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranked = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "alone"}
    environment = {**os.environ, **ranked, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [sys.executable, "-m", "tsds_cli", "train", str(store), "--out", str(tmp_path / "run"), *FLAGS]
    rank = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
    try:
        while not listens(port):
            assert rank.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)
        rank.send_signal(number)
        assert rank.wait(20) in (-number, 128 + number)
    finally:
        rank.kill()
        rank.communicate()


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_a_run_goes_on_with_another_number_of_ranks(store: Path, tmp_path: Path, before: int, after: int) -> None:
    """Stopped in the middle of an epoch: the rest of it is divided anew, and every sample is counted once."""
    flags = ("--batch-size", "1", "--augment", "none", "--epochs", "900")
    out = tmp_path / "run"
    state = stopped_within_an_epoch(store, out, *flags, ranks=before)
    seen = state["batch"] * before
    assert (state["ranks"], int(state["tally"]["samples"])) == (before, seen)
    epochs = changed_epochs(out, state["epoch"] + 1)  # to see the end of this one
    output = finished(started(store, out, *flags[:-1], str(epochs), "--resume", ranks=after))
    left = math.ceil((64 - seen) / after)
    assert f"goes on in epoch {epochs} after 0 of {left} batches" in output
    ended = torch.load(out / "last.pt", weights_only=True)
    assert (ended["epoch"], ended["start"], ended["batch"]) == (state["epoch"], seen, left)
    assert int(ended["tally"]["samples"]) == seen + left * after  # 64, and a remainder that is repeated
    assert ended["learner"]["step"] == pytest.approx(epochs * math.ceil(64 / after), abs=1)


def stopped_within_an_epoch(store: Path, out: Path, *flags: str, ranks: int) -> dict[str, Any]:
    """The checkpoint of a run that was stopped by a signal, neither at the end of an epoch nor while it evaluated."""
    for attempt in range(16):
        process = started(store, out, *flags, *(["--resume"] if attempt else []), ranks=ranks)
        before = (out / "last.pt").stat().st_mtime_ns if attempt else 0
        last = out / "last.pt"
        wait_for(lambda last=last, before=before: last.exists() and last.stat().st_mtime_ns != before, 60)
        time.sleep(0.07 * attempt)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode and "stopped in epoch" in errors, errors
        state: dict[str, Any] = torch.load(last, weights_only=True)
        if 0 < state["batch"] * ranks < 64 - ranks:
            return state
    raise AssertionError("it was always stopped between two epochs")


def changed_epochs(out: Path, epochs: int) -> int:
    """Let the run in a checkpoint have so many epochs, for a test that wants to see the end of this one."""
    state = torch.load(out / "last.pt", weights_only=True)
    state["options"]["epochs"] = epochs
    torch.save(state, out / "last.pt")
    return epochs


class Two:
    """Two ranks, of which the other one takes `slow` milliseconds for a step, and receives no signal."""

    size = 2

    def __init__(self, slow: int) -> None:
        self.slow = slow
        self.asked: list[int] = []

    def any(self, number: int) -> int:
        self.asked.append(number)
        return number if len(self.asked) % 2 == 0 else max(number, self.slow)


@pytest.mark.parametrize(("own", "slow", "every"), [(1, 1, MOST_UNASKED), (50, 1, 20), (1, 250, 4), (3000, 1, 1)])
def test_ranks_ask_for_signals_once_a_second(monkeypatch: pytest.MonkeyPatch, own: int, slow: int, every: int) -> None:
    clock = [0.0]
    monkeypatch.setattr(process.time, "perf_counter", lambda: clock[0])
    ranks = Two(slow)
    vote, stopped = StopVote(ranks), []  # type: ignore[arg-type]
    for step in range(1, 3 * every + 2):
        clock[0] += own / 1000
        if vote.after_step(15 if step > every + 1 else 0):
            stopped.append(step)
    assert stopped == [step for step in (2 * every + 1, 3 * every + 1) if step > every + 1]
    assert len(ranks.asked) == 2 * 4


def test_one_rank_looks_after_each_step() -> None:
    vote = StopVote(process.Ranks(0, 1, torch.device("cpu")))
    assert [vote.after_step(number) for number in (0, 15)] == [0, 15]
