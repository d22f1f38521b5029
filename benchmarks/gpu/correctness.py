"""Whether batches are right on a GPU that is late, and whether memory stays what it is."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

import tensorstore_ds as tsds
from benchmarks.gpu.data import (
    Found,
    NotHereError,
    Settings,
    digits,
    gpu_seconds,
    jpegs,
    keep_busy,
    photographs,
    rows_seen,
    rows_stored,
    told_apart,
)
from benchmarks.measure import Figure
from tensorstore_ds.annex import device_decoding

_LOADERS: dict[str, dict[str, Any]] = {
    "threads": {},
    "collate_images=padded": {"collate_images": "padded"},
    "num_workers=2": {"num_workers": 2},
    "residency=device": {"residency": "device"},
}
_SANITIZED = """
import sys, torch, tensorstore_ds as tsds
for batch in tsds.DataLoader(tsds.StoreDataset(sys.argv[1]), 50, shuffle=True, device="cuda"):
    batch["image"].float().mean()
torch.cuda.synchronize()
"""


def races(settings: Settings) -> Found:
    """The model's stream is late: copies, and memory that is used again, run ahead of it."""
    dataset = told_apart(settings)
    for name, options in _LOADERS.items():
        loader = tsds.DataLoader(dataset, 50, shuffle=True, device="cuda", seed=1, **options)
        wrong = [_is_wrong(settings, loader) for _ in range(settings.pick(4, 2))]
        yield {"loader": name, "batches": len(wrong) * len(loader), "wrong epochs": sum(wrong)}
        yield Figure(f"epochs with wrong batches, {name}", sum(wrong), 0, decimals=0)
    if not settings.small:
        yield _sanitized(str(dataset.path))


def _is_wrong(settings: Settings, loader: tsds.DataLoader[Any]) -> bool:
    seen = []
    for batch in loader:
        keep_busy(settings, 3)
        seen.append((batch["image"].clone(), batch["label"].clone()))  # what the model would have read
        del batch
    torch.cuda.synchronize()
    images = [image.cpu() for image, _ in seen]
    values = [image[:, 0, 0, 0] for image in images]
    if not all((image == value.view(-1, 1, 1, 1)).all() for image, value in zip(images, values, strict=True)):
        return True
    return rows_seen(values, (label.cpu() for _, label in seen)) != rows_stored(sum(map(len, values)))


def _sanitized(path: str) -> dict[str, Any]:
    """What torch's sanitizer of streams finds, which knows only what torch does."""
    variables = {**os.environ, "TORCH_CUDA_SANITIZER": "1"}
    command = [sys.executable, "-c", _SANITIZED, path]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return {"loader": "threads, with torch's CUDA sanitizer", "status": done.returncode, "last line": last[:120]}


def nvjpeg_race(settings: Settings) -> Found:
    """nvJPEG writes images beside the streams: without the library's guard, into memory that the model still reads."""
    dataset = jpegs(settings, "small_jpegs", settings.pick(512, 64), (96, 128))
    try:
        quiet = _sums(settings, dataset, 0)
    except (tsds.OptionError, NotImplementedError) as error:
        raise NotHereError(str(error)) from error
    wrong = _differ(quiet, _sums(settings, dataset, 20))
    with mock.patch.object(device_decoding, "_decoding_stream", _unguarded):
        without = _differ(quiet, _sums(settings, dataset, 20))
    yield {"decoding": "as the library does", "batches": len(quiet), "wrong batches": wrong}
    yield {"decoding": "on the model's stream", "batches": len(quiet), "wrong batches": without}
    yield Figure("wrong batches that a GPU decoded", wrong, 0, decimals=0)


def _sums(settings: Settings, dataset: tsds.StoreDataset, late: float) -> list[torch.Tensor]:
    """The sums of the pixels of each image, by batch, where the model is late by some milliseconds."""
    sums = []
    for batch in tsds.DataLoader(dataset, 32, device="cuda", decode="device"):
        if late:
            keep_busy(settings, late)
        sums.append(batch["image"].flatten(1).sum(1, dtype=torch.int64))
        del batch
        if not late:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return [each.cpu() for each in sums]


def _differ(expected: list[torch.Tensor], found: list[torch.Tensor]) -> int:
    return sum(not torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@contextlib.contextmanager
def _unguarded(device: torch.device) -> Iterator[Callable[[Any], Any]]:
    yield lambda images: images


class LinearStep:
    """A whole step of a model that is computed sooner than it is launched; each begins with the same weights."""

    def __init__(self, pixels: int) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, 10)
        self.model = nn.Sequential(*layers).to("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def __call__(self, batch: Any) -> torch.Tensor:
        """The loss, which was not waited for."""
        logits = self.model(batch["image"].flatten(1).float() / 255)
        loss = nn.functional.cross_entropy(logits, batch["label"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def captured(self, batch: Any) -> Callable[[], torch.Tensor]:
        """The step on the tensors of a batch as a graph. The model stays what it is."""
        weights = copy.deepcopy(self.model.state_dict())
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what is made in the first steps must not be captured
            for _ in range(3):
                self(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loss = self(batch)
        self.model.load_state_dict(weights)

        def replay() -> torch.Tensor:
            graph.replay()
            return loss

        return replay


def graphs(settings: Settings) -> Found:
    """Steps of a small model as a CUDA graph over the tensors of `into`, while the loader works; and without one."""
    dataset, batch_size = digits(settings), settings.pick(512, 20)
    losses = []
    for is_graph in (False, True):
        loader = tsds.DataLoader(dataset, batch_size, shuffle=True, drop_last=True, device="cuda", seed=1, into="first")
        step, found = LinearStep(dataset[0]["image"].numel()), list[torch.Tensor]()
        run: Callable[[], torch.Tensor] | None = None
        for batch in loader:
            run = run or (step.captured(batch) if is_graph else functools.partial(step, batch))
            keep_busy(settings, 1)
            found.append(run().clone())  # the next step overwrites it
        assert run is not None
        losses.append(torch.stack(found).cpu())
        row = {"step": "CUDA graph" if is_graph else "no graph", "steps": len(found), "loss": float(losses[-1][-1])}
        yield row | {"step, ms": round(gpu_seconds(run, settings.pick(1000, 2)) * 1000, 4)}
    differing = int((~torch.isclose(*losses, rtol=0.01)).sum())
    yield Figure("losses of a CUDA graph that differ from those without one", differing, 0, decimals=0)


def memory(settings: Settings) -> Found:
    """A loader's memory over epochs: of the GPU, and pinned memory, as torch keeps it."""
    dataset = photographs(settings).subset(range(settings.pick(1024, 64)))
    loader = tsds.DataLoader(dataset, settings.pick(128, 16), shuffle=True, device="cuda")
    reserved = {}
    for epoch in range(1, 41):
        for batch in loader:
            batch["image"].float().mean()
            torch.cuda.synchronize()  # a script that is ahead of the GPU holds one more batch for each step
            del batch
        reserved[epoch] = torch.cuda.memory_reserved()
        if epoch in (1, 2, 5, 10, 20, 40):
            row = {"epoch": epoch, "GPU memory, MiB": round(reserved[epoch] / 2**20)}
            if hasattr(torch.cuda, "host_memory_stats"):
                row["allocations of pinned memory"] = torch.cuda.host_memory_stats()["num_host_alloc"]
            yield row
    growth = reserved[40] / reserved[10]
    yield Figure("GPU memory after 40 epochs, relative to 10 epochs", growth, 1.1, "x")
