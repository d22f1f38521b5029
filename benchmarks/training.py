"""The accuracy of `tsds train` by batch size, and accuracy against time, beside a script with files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, as_result, say, seconds_of

SIZES = (100, 200, 500, 1000, 2000, 5000, 10_000)
#: By epochs: the accuracy that is to be reached, and by which batch sizes.
TARGETS = {2: (0.93, (500,)), 5: (0.97, (100, 200, 500, 1000))}
#: Of both sides, where accuracy is compared by time.
COMPARED, THREADS = 500, 2


def measure(settings: Settings) -> dict[str, Any]:
    """Runs of 2 and of 5 epochs at each batch size, then the script: hours on two cores."""
    store = settings.scratch / "training.tsds"
    converted = seconds_of(lambda: tsds.convert(settings.digits, store, workers=THREADS))
    runs = [trained(store, settings.scratch / f"{size}-{epochs}", size, epochs) for size in SIZES for epochs in TARGETS]
    figures = [
        Figure(
            f"accuracy after {run['epochs']} epochs in batches of {run['batch_size']:,}",
            run["accuracy"],
            TARGETS[run["epochs"]][0],
            decimals=4,
            at_least=True,
            note=f"learning rate {run['learning_rate']:g}, {run['seconds']:.0f} s",
        )
        for run in runs
        if run["batch_size"] in TARGETS[run["epochs"]][1]
    ]
    return as_result(figures, name=settings.digits_name, converted=converted, runs=runs, files=files(settings.digits))


def trained(store: Path, out: Path, batch_size: int, epochs: int) -> dict[str, Any]:
    """A run with the defaults of a batch size: its learning rate, accuracy and seconds of training."""
    options = tsds.training.TrainOptions(
        model="seed", batch_size=batch_size, epochs=epochs, device="cpu", torch_threads=THREADS
    )
    records: list[tsds.training.EpochRecord] = []
    report = tsds.train(store, options, out=out, listeners=tsds.training.Listeners(epoch=records.append))
    assert report is not None
    rate = torch.load(out / "last.pt", weights_only=True)["options"]["learning_rate"]
    curve = [{"seconds": r.seconds, "accuracy": (r.eval or {})["accuracy"]} for r in records]
    run = {"batch_size": batch_size, "epochs": epochs, "learning_rate": rate, "seconds": report.seconds}
    run |= {"accuracy": report.last["accuracy"], "curve": curve}
    say(f"  {batch_size}, {epochs} epochs: {report.last['accuracy']:.4f} in {report.seconds:.0f} s")
    return run


def files(digits: Path, epochs: int = 2) -> list[dict[str, float]]:
    """A script without this library but for the model: PNG files, torch's loader, AdamW with a rate of 0.001.

    Returns:
        After each epoch: the seconds of training so far, and the accuracy.
    """
    to_tensor = v2.Compose(
        [v2.Grayscale(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.1307], [0.3081])]
    )
    train, test = (ImageFolder(str(digits / split), to_tensor) for split in ("train", "test"))
    loader = DataLoader(train, COMPARED, shuffle=True, num_workers=THREADS)
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    model = tsds.training.ViT(tsds.training.TrainOptions(model="seed").vit((28, 28), 1), len(train.classes))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    curve, seconds = [], 0.0
    for _ in range(epochs):
        began = time.perf_counter()
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        seconds += time.perf_counter() - began
        model.eval()
        with torch.inference_mode():
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 1000, num_workers=THREADS))
        curve.append({"seconds": seconds, "accuracy": right / len(test)})
        say(f"  files: {right / len(test):.4f} after {seconds:.0f} s")
    return curve
