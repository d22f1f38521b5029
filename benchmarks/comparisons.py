"""``tsds bench`` on MNIST and on a VOC folder, as its users see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorstore_ds as tsds
from benchmarks.measure import Settings, say


def measure_mnist(settings: Settings) -> dict[str, Any]:
    """Loading alone, at all batch sizes."""
    return _compare(settings, settings.digits, settings.digits_name, train=False)


def measure_mnist_train(settings: Settings) -> dict[str, Any]:
    """Training of the `seed` ViT, which takes minutes per batch size."""
    return _compare(settings, settings.digits, settings.digits_name, ways=("files", "tensors", "store"))


def measure_bccd(settings: Settings) -> dict[str, Any]:
    """Loading and training; nothing without a VOC folder."""
    if settings.voc is None:
        return {}
    return _compare(settings, settings.voc, settings.voc.name, on_error="skip")


def _compare(settings: Settings, source: Path, name: str, *, on_error: Any = "fail", **options: Any) -> dict[str, Any]:
    store = settings.scratch / "compared.tsds"
    tsds.convert(source, store, workers=2, on_error=on_error)
    comparison = tsds.bench(
        store,
        tsds.BenchOptions(raw=source, device="cpu", **options),
        progress=lambda event: say(f"  {event.done}/{event.total} {event.doing}"),
    )
    kept = ("machine", "samples", "shape", "device", "batch_sizes", "seconds", "took", "ways", "cells")
    data = comparison.as_data()
    values = ("way", "phase", "batch_size", "seconds", "reckoned", "batches", "of", "epochs", "memory", "reason")
    cells = [{value: cell[value] for value in values} for cell in data["cells"]]
    return {"name": name, **{key: data[key] for key in kept}, "cells": cells}
