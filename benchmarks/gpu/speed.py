"""How fast batches come to a GPU, and how long it waits for them."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import data

import tensorstore_ds as tsds
from benchmarks.gpu.data import (
    Found,
    Row,
    Settings,
    digits,
    epochs,
    gpu_seconds,
    jpegs,
    or_why_not,
    photographs,
    training_step,
)
from benchmarks.measure import alternate
from tensorstore_ds.annex.training.process import torch_settings
from tensorstore_ds.machine import usable_cores

#: Precisions, and the option by which the model is compiled; empty if it is not.
COMPILED = [
    *(("bf16", ""), ("bf16", "compile"), ("bf16", "cuda_graphs")),
    *(("fp32", ""), ("tf32", ""), ("fp16", ""), ("tf32", "compile")),
]


def copies(settings: Settings) -> Found:
    """Copies of one buffer, then the loader by its threads."""
    for mib in settings.pick((1, 8, 37, 64), (1,)):
        for name, pin in (("pinned", True), ("pageable", False)):
            source = torch.ones(mib << 20, dtype=torch.uint8, pin_memory=pin)
            seconds = _copy_seconds(source, torch.empty_like(source, device="cuda"))
            yield {"what": f"{mib} MiB, {name}", "GB/s": round(source.nbytes / seconds / 1e9, 2)}
    mib = settings.pick(64, 1)
    empty = functools.partial(torch.empty, mib << 20, dtype=torch.uint8, pin_memory=True)
    seconds = gpu_seconds(lambda: [empty() for _ in range(4)]) / 4  # none is used again
    yield {"what": f"to allocate {mib} MiB of pinned memory", "ms": round(seconds * 1000, 2)}
    dataset, batch_size = photographs(settings), settings.pick(256, 32)
    for threads in sorted({1, 2, 4, 8, 16} & set(range(usable_cores() + 1))):
        loader = tsds.DataLoader(dataset, batch_size, shuffle=True, device="cuda", num_threads=threads)
        seconds, stats = epochs(loader, 2)
        row = {
            "what": f"loader, batch {batch_size}, threads: {threads}",
            "GB/s": round(dataset.nbytes / seconds / 1e9, 2),
        }
        times = {f"{name} of a batch, ms": _per_batch(stats, name) for name in ("copy", "gather")}
        yield {**row, "images/s": round(len(dataset) / seconds), **times}


def _copy_seconds(source: torch.Tensor, target: torch.Tensor) -> float:
    target.copy_(source)
    return gpu_seconds(lambda: target.copy_(source, non_blocking=True), 20)


def _per_batch(stats: tsds.loading.LoaderStats, name: str) -> float:
    return round(float(getattr(stats, name)) / stats.batches * 1000, 3)


def resident(settings: Settings) -> Found:
    """Loading from a copy of the split in the memory of the GPU."""
    for dataset, batch_sizes in ((digits(settings), (128, 1024, 8192)), (photographs(settings), (64, 256, 1024))):
        side = dataset.image_sizes[0][0]
        for batch_size in batch_sizes:

            def measure(dataset: tsds.StoreDataset = dataset, batch_size: int = batch_size) -> Row:
                loader = tsds.DataLoader(dataset, batch_size, shuffle=True, device="cuda", residency="device")
                seconds, _ = epochs(loader, 3)
                rate = {"images/s": round(len(dataset) / seconds), "GB/s": round(dataset.nbytes / seconds / 1e9, 2)}
                return rate

            yield or_why_not({"pixels": f"{side}x{side}", "batch": batch_size}, measure)


def idle(settings: Settings) -> Found:
    """Training on pixels of 224x224: how long the script waits for batches, and how long the GPU does."""
    dataset, patience = photographs(settings), settings.pick(3.0, 0.1)
    size = dataset.image_sizes[0][0]
    cases = itertools.product(settings.pick((256, 64), (32,)), ("tiny", "small", "base"), (None, 1))
    for batch_size, model, threads in settings.pick(list(cases), [(32, "seed", 1)]):

        def measure(batch_size: int = batch_size, model: str = model, threads: int | None = threads) -> Row:
            step = training_step(model, size, 3, batch_size)
            options = {} if threads is None else {"num_threads": threads}
            loader = tsds.DataLoader(dataset, batch_size, shuffle=True, drop_last=True, device="cuda", **options)
            for batch in itertools.islice(loader, 5):
                step(batch)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, began, batches = loader.stats(), time.perf_counter(), 0
            while time.perf_counter() - began < patience:
                for batch in loader:
                    step(batch)
                    batches += 1
                torch.cuda.synchronize()
            spent, stats = time.perf_counter() - began, loader.stats() - before
            return {
                "images/s": round(batches * batch_size / spent),
                "script waits": round(stats.wait / spent, 3),
                "GPU idle": round(stats.idle / spent, 3),
                "step, ms": round((spent - stats.idle) / batches * 1000, 2),
                "GPU memory, GiB": round(torch.cuda.max_memory_reserved() / 2**30, 1),
            }

        yield or_why_not({"model": model, "batch": batch_size, "threads": threads or "default"}, measure)
        torch.cuda.empty_cache()


def mnist(settings: Settings) -> Found:
    """Epochs of 60,000 images of 28x28, from a TensorDataset and from a store: loading alone, and a small ViT."""
    dataset, batch_size = digits(settings), settings.pick(512, 64)
    everything = next(iter(tsds.DataLoader(dataset, len(dataset))))
    tensors = data.TensorDataset(everything["image"].contiguous(), everything["label"])
    step = training_step("seed", 28, 1, batch_size)

    def ours(**options: Any) -> tsds.DataLoader[Any]:
        return tsds.DataLoader(dataset, batch_size, shuffle=True, device="cuda", **options)

    def torchs(**options: Any) -> data.DataLoader[Any]:
        return data.DataLoader(tensors, batch_size, shuffle=True, pin_memory=True, **options)

    loaders: dict[str, Iterable[Any]] = {"tensorstore-ds, page cache": ours()}
    loaders["tensorstore-ds, residency=device"] = ours(residency="device")
    loaders["TensorDataset, 0 workers"] = torchs()
    if not settings.small:
        loaders["TensorDataset, 4 workers"] = torchs(num_workers=4, persistent_workers=True)

    def timing(loader: Iterable[Any], train: bool) -> Callable[[], float]:
        def epoch() -> None:
            for item in loader:
                batch = item if isinstance(item, dict) else _to_gpu(item)
                if train:
                    step(batch)

        return lambda: gpu_seconds(epoch)

    measured = [
        alternate([timing(loader, train) for loader in loaders.values()], settings.pick(3, 1))
        for train in (False, True)
    ]
    for name, loading, training in zip(loaders, *measured, strict=True):
        times = {"loading, s": statistics.median(loading), "training, s": statistics.median(training)}
        rate = round(len(dataset) / times["training, s"])
        yield {"way": name, **{what: round(seconds, 4) for what, seconds in times.items()}, "images/s, training": rate}


def _to_gpu(item: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    image, label = (each.to("cuda", non_blocking=True) for each in item)
    return {"image": image, "label": label}


def nvjpeg(settings: Settings) -> Found:
    """JPEG files of 500x375: decoded by the GPU, and by the CPU."""
    dataset = jpegs(settings, "jpegs", settings.pick(2000, 64), settings.pick((375, 500), (40, 56)))
    plan = tsds.RandomResizedCrop(settings.pick(224, 32))
    ways: dict[str, dict[str, Any]] = {
        "GPU, whole": {"decode": "device"},
        "CPU, whole": {},
        "CPU, crops": {"decode": plan},
    }
    batch_size = settings.pick(128, 16)
    for (name, options), threads in itertools.product(ways.items(), sorted({min(8, usable_cores()), usable_cores()})):

        def measure(options: dict[str, Any] = options, threads: int = threads) -> Row:
            loader = tsds.DataLoader(dataset, batch_size, shuffle=True, device="cuda", num_threads=threads, **options)
            seconds, stats = epochs(loader, 1)
            return {"images/s": round(len(dataset) / seconds), "gather of a batch, ms": _per_batch(stats, "gather")}

        yield or_why_not({"decoded by": name, "threads": threads}, measure)


def compiled(settings: Settings) -> Found:
    """A training step by precision, compiled, with CUDA graphs, and as it is; then one on a short batch."""
    size, batch_size = settings.pick((224, 256), (32, 8))
    image = torch.randint(0, 256, (batch_size, 3, size, size), dtype=torch.uint8, device="cuda")
    label = torch.randint(0, 10, (batch_size,), device="cuda")
    whole = {"image": image.contiguous(memory_format=torch.channels_last), "label": label}
    short = {name: tensor[: batch_size // 3] for name, tensor in whole.items()}
    for precision, compiled_by in COMPILED:

        def measure(precision: str = precision, compiled_by: str = compiled_by) -> Row:
            torch.compiler.reset()
            with torch_settings(precision):  # type: ignore[arg-type]
                options: dict[str, Any] = {"precision": precision} | ({compiled_by: True} if compiled_by else {})
                step = training_step(settings.pick("tiny", "seed"), size, 3, batch_size, **options)
                first = gpu_seconds(lambda: step(whole))
                rate = batch_size / gpu_seconds(lambda: step(whole), settings.pick(20, 2))
                last = gpu_seconds(lambda: step(short))
                loss = float(step(whole))
            row = {"first step, s": round(first, 2), "images/s": round(rate)}
            return row | {"first short step, s": round(last, 3), "loss": round(loss, 4)}

        yield or_why_not({"precision": precision, "option": compiled_by}, measure)
