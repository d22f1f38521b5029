"""The whole job on small photographs: from the folder of files to three epochs of a tiny model; and the first batch."""

from __future__ import annotations

import shutil
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Settings, as_result, in_fresh_process, ratio_of_medians, seconds_of, spread
from benchmarks.samples import write_colors
from tensorstore_ds.annex.measuring.measure import in_turns

EPOCHS, BATCH, WORKERS = 3, 128, 2
ENCODINGS = ("raw", "jpeg", "source")
_ROUNDS = 3  # of minutes each


def measure(settings: Settings) -> dict[str, Any]:
    """Seconds of each part, in processes that begin with nothing: files through ImageFolder, and a store.

    The 60,000 JPEG files of 32x32 pixels in 10 folders are as many and as large as CIFAR-10's.
    """
    files = settings.scratch / "files"
    write_colors(files)
    ways = {"files": run_files, "store": run_store}
    rounds = in_turns({way: partial(in_fresh_process, run, files) for way, run in ways.items()}, _ROUNDS)
    totals = {way: [sum(parts.values()) for parts in own] for way, own in rounds.items()}
    parts = {
        way: ", ".join(f"{part} {statistics.median(each[part] for each in own):.1f} s" for part in own[0])
        for way, own in rounds.items()
    }
    what = (
        f"60,000 JPEG files of 32x32, {EPOCHS} epochs of a tiny ViT: time, relative to ImageFolder, {WORKERS} workers"
    )
    ratio = ratio_of_medians(totals["store"], totals["files"])
    store_words, files_words = (f"{spread(totals[way])} s ({parts[way]})" for way in ("store", "files"))
    note = f"{_ROUNDS} rounds: {store_words} against {files_words}"
    return as_result([Figure(what, ratio, 1.0, "x", note=note)], rounds=rounds)


def measure_first_batch(settings: Settings) -> dict[str, Any]:
    """Seconds until the first batch of a store has come, in a new process, for each encoding."""
    files, store = settings.scratch / "files", settings.scratch / "store.tsds"
    write_colors(files)
    firsts = {}
    for encoding in ENCODINGS:
        in_fresh_process(convert, files, store, encoding)
        firsts[encoding] = [in_fresh_process(first_batch, store) for _ in range(settings.repeat)]
        shutil.rmtree(store)
    slowest = max(statistics.median(seconds) for seconds in firsts.values())
    seconds = ", ".join(f"{encoding} {spread(own)}" for encoding, own in firsts.items())
    what = f"import tensorstore_ds and the first batch of {BATCH}: the slowest of three encodings"
    return as_result([Figure(what, slowest, 0.5, "s", note=f"{seconds} s")])


def run_files(files: Path) -> dict[str, float]:
    """ImageFolder and torch's loader, as torchvision's documentation has them."""
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    normalize = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    dataset = datasets.ImageFolder(str(files / "train"), v2.Compose([v2.RandomHorizontalFlip(), *normalize]))
    options: dict[str, Any] = {"shuffle": True, "num_workers": WORKERS, "persistent_workers": True}
    return train(torch.utils.data.DataLoader(dataset, BATCH, **options))


def convert(files: Path, store: Path, encoding: Any = None) -> None:
    """With two workers; the default encoding is raw."""
    import tensorstore_ds as tsds

    tsds.convert(files, store, workers=WORKERS, **({} if encoding is None else {"encoding": encoding}))


def run_store(files: Path) -> dict[str, float]:
    """The same from a store, with the conversion."""
    import tensorstore_ds as tsds

    store = files.with_name("store.tsds")
    shutil.rmtree(store, ignore_errors=True)
    converting = seconds_of(lambda: convert(files, store))
    transform = tsds.Compose([tsds.RandomHorizontalFlip(), tsds.Normalize([0.5] * 3, [0.25] * 3)])
    dataset = tsds.StoreDataset(store, return_as="tuple")
    loader = tsds.DataLoader(dataset, BATCH, shuffle=True, batch_transform=transform)
    return {"convert": converting, **train(loader)}


def train(loader: Any) -> dict[str, float]:
    """Seconds until the first batch has come, and of each epoch, that one's first batch with it."""
    import torch

    from tensorstore_ds.annex.training.options import ViTOptions
    from tensorstore_ds.annex.training.vit import ViT

    torch.manual_seed(0)
    model = ViT(ViTOptions(image_size=(32, 32), channels=3, patch_size=4, width=48, depth=2, heads=3, mlp_width=96), 10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    parts: dict[str, float] = {}
    for epoch in range(1, EPOCHS + 1):
        begun = time.perf_counter()
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        parts[f"epoch {epoch}"] = time.perf_counter() - begun
    if not loss < 2.2:  # the classes have colors of their own: a model that learns nothing was fed nothing
        raise RuntimeError(f"after {EPOCHS} epochs the loss is {loss:.2f}")
    return parts


def first_batch(store: Path) -> float:
    """Seconds from the import on, torch being there, as a script has it before."""
    import torch

    torch.zeros(1)
    begun = time.perf_counter()
    import tensorstore_ds as tsds

    next(iter(tsds.DataLoader(tsds.StoreDataset(store), BATCH, shuffle=True)))
    return time.perf_counter() - begun
