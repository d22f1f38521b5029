from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds
from small_stores import ROOT, tsds
from stores import store_of
from training_stores import labelled, names, patterns, signal_in_pass

FLAGS = (
    *("--image-size", "12", "--patch-size", "4", "--width", "16", "--depth", "2", "--heads", "2", "--mlp-width", "32"),
    *("--batch-size", "8", "--device", "cpu", "--threads", "1"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory.mktemp("cli"))


def started(*words: object, before: str) -> subprocess.Popen[str]:
    """`tsds` in a process of its own, after some lines of Python."""
    search = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    program = f"{before}\nfrom tsds_cli.program import main\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def one_error(process: subprocess.Popen[str]) -> str:
    """Its one line on stderr."""
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 1, errors
    assert len(errors.splitlines()) == 1 and errors.startswith("tsds: "), errors
    return errors


# --- what is printed ---------------------------------------------------------------------------------------------


def test_lines(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log gets a line now and then where there is no bar."""
    monkeypatch.setattr("tsds_cli.progress._LINE_SECONDS", 0.0)
    done = tsds("train", store, "--out", tmp_path / "run", "--epochs", 2, *FLAGS)
    assert done.exit_code == 0
    logged = done.stderr.splitlines()
    assert logged[0].startswith("epoch 1/2 · ") and logged[-1].startswith("epoch 2/2 · ")
    assert all(re.match(r"epoch [12]/2 · .*\b\d+/s\b", line) for line in logged if "/s" in line)
    assert any("/s" in line for line in logged)
    lines = done.stdout.splitlines()
    assert lines[0] == "task: classification, because the store has labels"
    assert lines[1].startswith("60 samples of train")
    number = r"\d\.\d{3}"
    for epoch in (1, 2):
        assert re.match(
            rf"epoch +{epoch} · train loss {number} accuracy {number} · eval loss {number} accuracy {number} "
            rf"balanced_accuracy {number} · [\d,]+/s · waited [\d.]+% · .*s$",
            lines[2 + epoch],
        )
    assert re.match(r"best accuracy 0\.\d{4} in epoch [12]$", lines[6])
    assert "hardest classes: " in lines[7]
    assert lines[-1].startswith(f"  {tmp_path / 'run'}: best.pt, last.pt, history.jsonl, report.json")


def test_json_and_the_folder_named_after_the_store(store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    done = tsds("train", store, "--epochs", 1, *FLAGS, "--json")
    assert done.exit_code == 0 and names(tmp_path) == ["store.run"]
    found, written = json.loads(done.stdout), json.loads(Path("store.run/report.json").read_text("utf-8"))
    assert found["best"] == written["best"] and found["folder"] == "store.run"


# --- every flag arrives ------------------------------------------------------------------------------------------


#: Flags, the option of the last one, and its value.
GIVEN: list[tuple[list[str], str, object]] = [
    (["--train-split", "test", "--eval-split", "train"], "train_split", "test"),
    (["--train-split", "test", "--eval-split", "train"], "eval_split", "train"),
    *(
        (["--fold", "2/3", *more], name, value)
        for more, name, value in (
            ([], "fold", "2/3"),
            (["--stratify", "label"], "stratify", "label"),
            (["--groups", "label"], "groups", "label"),
            (["--fold-seed", "5"], "fold_seed", 5),
        )
    ),
    (["--image-size", "8x16"], "image_size", [8, 16]),
    (["--lr", "0.01"], "learning_rate", 0.01),
    (["--threads", "2"], "num_threads", 2),
    *(([f"--{name.replace('_', '-')}"], name, True) for name in ("flip", "compile", "grad_checkpointing")),
    *(
        ([f"--{name.replace('_', '-')}", str(value)], name, value)
        for name, value in {
            **{"task": "classification", "model": "tiny", "patch_size": 2, "width": 8, "depth": 1, "heads": 4},
            **{"mlp_width": 8, "dropout": 0.1, "epochs": 2, "batch_size": 16, "accumulate": 2, "warmup": 0.5},
            **{"weight_decay": 0.5, "clip": 0.5, "label_smoothing": 0.2, "mix": "cutmix", "augment": "strong"},
            **{"balance": "effective", "ema": 0.9, "precision": "bf16", "device": "cpu", "residency": "page-cache"},
            **{"torch_threads": 2, "seed": 5},
        }.items()
    ),
]


def test_every_flag_becomes_its_option(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def train(store: Path, options: tensorstore_ds.training.TrainOptions, **others: object) -> None:
        seen.append(options.as_data())
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorstore_ds.train", train)
    for flags, name, value in GIVEN:
        assert tsds("train", store, *FLAGS, *flags).exit_code == 130
        assert json.loads(json.dumps(seen[-1]))[name] == value


# --- a run that ends before its time -----------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_a_checkpoint(store: Path, tmp_path: Path, number: int, status: int) -> None:
    with signal_in_pass(number, passes=11):  # of 8 batches an epoch
        done = tsds("train", store, "--out", tmp_path / "run", "--epochs", 500, *FLAGS)
    assert done.exit_code == status
    assert re.fullmatch(
        r"tsds: stopped in epoch 2 after 3 of 8 batches\. Go on with the same command and --resume; .*last\.pt\.\n",
        done.stderr,
    )
    assert torch.load(tmp_path / "run" / "last.pt", weights_only=True)["epoch"] == 1
    assert not list((tmp_path / "run").glob("*.partial"))


@pytest.mark.slow
@pytest.mark.drawn(1, of="ends of runs")
@pytest.mark.skipif(sys.platform != "linux", reason="limits are set as Linux has them")
def test_no_room_in_memory(tmp_path: Path) -> None:
    """A step of 512 images does not fit beside the libraries; one of the advised size does."""
    store = store_of(tmp_path / "s.tsds", patterns(512), "abc").path
    before = (
        "import ctypes, re, resource, torch, torchvision.transforms.v2, tensorstore_ds.annex.training.train\n"
        "ctypes.CDLL(None).mallopt(-8, 1)\n"  # one arena: else each thread may reserve 128 MB of addresses for its own
        "now = int(re.search(r'VmSize:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + 400_000_000,) * 2)"
    )
    words = ("train", store, "--out", tmp_path / "run", "--epochs", 1, *FLAGS, "--width", 128, "--mlp-width", 512)
    words = (*words, "--image-size", 32)
    error = one_error(started(*words, "--batch-size", 512, before=before))
    advice = "--batch-size 256 with --accumulate 2, --grad-checkpointing, "
    assert f"expected memory for batches of 512, found too little. Try, in this order: {advice}" in error
    words = (*words, "--batch-size", 32, "--accumulate", 16, "--grad-checkpointing")
    process = started(*words, before=before)
    assert process.communicate(timeout=100)[1] == "" and process.returncode == 0


@pytest.mark.slow
@pytest.mark.drawn(1, of="ends of runs")
def test_without_torch(store: Path) -> None:
    before = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'torchvision'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocked())"
    )
    error = one_error(started("train", store, *FLAGS, before=before))
    assert "needs torch" in error and "pip install '.[torch]'" in error


def test_without_another_module_of_torchs_extra(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'threadpoolctl'", name="threadpoolctl")

    monkeypatch.setattr("tensorstore_ds.train", train)
    error = tsds("train", store, *FLAGS).stderr
    assert "needs threadpoolctl" in error and "pip install '.[torch]'" in error


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["missing.tsds"], 1, "missing.tsds: there is no such store."),
        (["STORE", "--batch-size", "100"], 1, "expected at most 60"),
        (["STORE", "--heads", "5"], 1, "heads: expected a divisor of the width 16, such as 4, found 5."),
        (["STORE", "--device", "nonsense"], 1, "--device: expected one that this machine has, found nonsense"),
        (["STORE", "--epochs", "0"], 2, "'--epochs': 0 is not in the range x>=1."),
        (["STORE", "--ema", "1.0"], 2, "'--ema': 1.0 is not in the range 0<=x<1."),
        (
            ["JPEG", "--residency", "device"],
            1,
            "tsds: --residency device: keys, encoded images and images of differing sizes cannot be kept there. "
            "Choose other fields, or another --residency.\n",
        ),
    ],
)
def test_wrong_arguments(store: Path, tmp_path: Path, words: list[str], status: int, message: str) -> None:
    if words[0] == "JPEG":
        samples = [{"image": np.zeros((12, 12, 3), np.uint8), "label": row % 2} for row in range(16)]
        tensorstore_ds.convert(samples, tmp_path / "JPEG", classes=("a", "b"), encoding="jpeg", workers=0)
    place = {"STORE": store, "JPEG": tmp_path / "JPEG"}.get(words[0], words[0])
    done = tsds("train", place, "--out", tmp_path / "run", *FLAGS, *words[1:])
    assert done.exit_code == status and message in done.stderr
    assert (len(done.stderr.splitlines()) == 1 or status == 2) and not (tmp_path / "run").exists()
