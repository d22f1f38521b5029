"""Small stores to train on, and a small run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.modules.module import register_module_forward_hook
from torchvision.models.vision_transformer import EncoderBlock

import tensorstore_ds as tsds
from small_stores import ROOT
from stores import store_of
from tensorstore_ds.annex.training.history import EpochRecord, parse_lines
from tensorstore_ds.errors import TsdsError

#: A model that takes a millisecond a step.
SMALL: dict[str, Any] = {
    "model": "seed",
    "image_size": (12, 12),
    "patch_size": 4,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_width": 32,
    "batch_size": 8,
    "device": "cpu",
    "num_threads": 1,
}


def small(**changes: Any) -> tsds.training.TrainOptions:
    """Options of a small run."""
    return tsds.training.TrainOptions(**{**SMALL, **changes})


def trained(
    store: Path, out: Path, options: tsds.training.TrainOptions | None = None, *, resume: bool = False, **changes: Any
) -> tuple[tsds.training.TrainReport, list[str]]:
    """The report and the notes of a small run."""
    notes: list[str] = []
    listeners = tsds.training.Listeners(note=notes.append)
    report = tsds.train(store, options or small(**changes), out=out, resume=resume, listeners=listeners)
    assert report is not None
    return report, notes


def patterns(rows: int, *, classes: int = 3, size: int = 12, channels: int = 1, seed: int = 0) -> list[dict[str, Any]]:
    """Samples of which each class is bright in a part of its own."""
    rng = np.random.default_rng(seed)
    samples = []
    for row in range(rows):
        label = row % classes
        pixels = rng.integers(0, 60, (size, size, channels), np.uint8)
        band = size // classes
        pixels[label * band : (label + 1) * band] += 150
        samples.append({"image": pixels, "label": label})
    return samples


def labelled(folder: Path, *, train: int = 60, test: int = 21, **options: Any) -> Path:
    """A store of `patterns`, with the splits train and test. The classes are a, b, ..."""
    classes = options.get("classes", 3)
    names = [chr(ord("a") + i) for i in range(classes)]
    for split, rows, seed in (("train", train, 0), ("test", test, 1)):
        for row, sample in enumerate(patterns(rows, seed=seed, **options)):
            name = folder / "source" / split / names[sample["label"]] / f"{row:04}.png"
            name.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.squeeze(sample["image"])).save(name)
    tsds.convert(folder / "source", folder / "store.tsds", tsds.ConvertOptions(workers=0))
    return folder / "store.tsds"


def annotated(path: Path, *, rows: int = 24, size: int = 16, points: int = 2, labels: bool = True) -> Path:
    """A store of one split, train: a bright square with a box, points at its corners, and a class by its size."""
    rng = np.random.default_rng(3)
    samples = []
    for row in range(rows):
        side = 4 if row % 2 else 8
        x, y = rng.integers(0, size - side, 2)
        pixels: NDArray[np.uint8] = rng.integers(0, 40, (size, size, 1), np.uint8)
        pixels[y : y + side, x : x + side] = 220
        corners = np.array([[x, y], [x + side, y + side], [x, y + side]][:points], float)
        sample = {"image": pixels, "boxes": [[x, y, x + side, y + side]], "keypoints": corners[None]}
        samples.append({**sample, "labels": np.array([row % 2])} if labels else sample)
    store_of(path, samples, ("small", "large") if labels else ())
    return path


def load_history(path: Path) -> list[EpochRecord]:
    """The epochs in a `history.jsonl`, or in that of a run's folder."""
    path = path / "history.jsonl" if path.is_dir() else path
    return [record for _, record in parse_lines(path.read_bytes(), path)]


def strict_json(text: str) -> Any:
    """The value of JSON without NaN and infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"not JSON: {constant}")

    return json.loads(text, parse_constant=refuse)


def one_line(error: TsdsError) -> str:
    """An error's text, which is one line."""
    assert "\n" not in str(error)
    return str(error)


def names(folder: Path) -> Sequence[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def torchrun(*words: object, ranks: int = 2) -> subprocess.Popen[str]:
    """A module or a script that torchrun starts once for each rank, on the CPU."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    search = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    return subprocess.Popen(
        [*command, *map(str, words)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    """The output of a process that ends well."""
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    return output


@contextmanager
def signal_in_pass(number: int, *, passes: int) -> Iterator[None]:
    """Send this process a signal in a block of the model, in the pass of that number."""
    seen = 0

    def after(block: Any, inputs: Any, outputs: torch.Tensor) -> None:
        nonlocal seen
        if not isinstance(block, EncoderBlock) or not block.training or type(outputs) is not torch.Tensor:
            return  # an evaluation, or tensors without content, by which memory is reckoned
        seen += 1
        if seen == 2 * passes - 1:
            os.kill(os.getpid(), number)

    handle = register_module_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()
