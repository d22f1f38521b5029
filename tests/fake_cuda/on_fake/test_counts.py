"""What a loader takes of a GPU and of pinned memory: counted by the runtime below torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from fake_cuda.kernels import enable
from fake_cuda.runtime import contexts, count, counted, is_fake
from stores import numbered, store_of

ROWS, BATCH = 64, 16
EPOCHS = 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled images, each of one value."""
    return numbered(tmp_path_factory.mktemp("labelled") / "s.tsds", ROWS, (64, 64, 3)).path


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with boxes."""
    boxes = np.array([[1.0, 2, 30, 40], [5, 5, 9, 9]])
    samples = [
        {"image": np.full((64, 64, 3), row, np.uint8), "boxes": boxes[: row % 3], "labels": np.zeros(row % 3, int)}
        for row in range(ROWS)
    ]
    return store_of(tmp_path_factory.mktemp("boxes") / "s.tsds", samples, ["a", "b"]).path


def test_a_split_on_the_gpu_outlives_the_batches_of_any_stream(path: Path) -> None:
    """It is freed where it was copied, and another stream may still gather of it."""
    used: set[tuple[int, int]] = set()
    record = torch.Tensor.record_stream
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.Tensor,
            "record_stream",
            lambda tensor, stream: (used.add((tensor.data_ptr(), stream.cuda_stream)), record(tensor, stream)),
        )
        loader = tsds.DataLoader(tsds.StoreDataset(path), BATCH, device="cuda", residency="device")
        next(iter(loader))
        with torch.cuda.stream(torch.cuda.Stream("cuda:0")) as _:
            next(iter(loader))
            other = torch.cuda.current_stream().cuda_stream
    assert {(column.data_ptr(), other) for column in loader._resident._columns.values()} <= used  # type: ignore[union-attr]


def values_of(loader: tsds.DataLoader[Any]) -> list[int]:
    """A pixel of each image of an epoch, of batches that are dropped before the GPU has done with them."""
    images = [batch["image"].clone() for batch in loader]
    torch.cuda.synchronize()
    return [int(value) for image in images for value in image.cpu()[:, 0, 0, 0]]


def test_epochs_are_right_and_take_a_bounded_amount_of_pinned_memory(path: Path) -> None:
    loader = tsds.DataLoader(tsds.StoreDataset(path), BATCH, shuffle=True, device="cuda")
    with counted("host_allocs") as grown:
        for _ in range(EPOCHS):
            assert sorted(values_of(loader)) == list(range(ROWS))
    # Not more than all batches of two epochs, with an image and a label each.
    assert grown["host_allocs"] <= 2 * 2 * ROWS // BATCH


def stacked(samples: list[Any]) -> torch.Tensor:
    return torch.stack([sample["image"] for sample in samples])


@pytest.mark.parametrize(
    ("of_dataset", "of_loader"),
    [
        ({}, {}),
        ({}, {"collate": "packed"}),
        ({}, {"batch_transform": tsds.RandomHorizontalFlip()}),  # whose objects are a list
        ({}, {"collate_images": "padded"}),
        ({}, {"num_workers": 1}),
        ({"transform": dict}, {}),
        ({}, {"collate_fn": stacked}),
        ({"return_as": "torchvision"}, {}),
    ],
)
def test_batches_are_copied_from_pinned_memory(
    detection: Path, of_dataset: dict[str, Any], of_loader: dict[str, Any]
) -> None:
    dataset = tsds.StoreDataset(detection, **of_dataset)
    with counted("copies_to_device", "copies_to_device_pageable") as copies:
        for _ in tsds.DataLoader(dataset, BATCH, device="cuda", **of_loader):
            pass
        torch.cuda.synchronize()
    assert copies["copies_to_device"] and not copies["copies_to_device_pageable"]


def waits_in(make: Callable[[], Any]) -> Counter[str]:
    """What the host waited for in a call."""
    before = enable().waits.copy()
    make()
    return enable().waits - before


def test_objects_on_the_gpu_are_gathered_without_a_wait(detection: Path) -> None:
    loader = tsds.DataLoader(tsds.StoreDataset(detection), BATCH, device="cuda", residency="device", collate="packed")
    list(loader)  # copies the split
    found: list[Any] = []
    assert not waits_in(lambda: found.extend(loader))
    assert [len(batch["objects"]["boxes"]) for batch in found] == [15, 16, 17, 15]


@pytest.mark.parametrize(("collate", "most"), [("packed", 1), ("padded", 4), ("list", 2)])
def test_all_values_of_dropped_objects_are_one_wait(detection: Path, collate: Any, most: int) -> None:
    batch = next(iter(tsds.DataLoader(tsds.StoreDataset(detection), BATCH, device="cuda", collate=collate)))
    crop = tsds.RandomCrop(32)
    twice = tsds.Compose([tsds.RandomCrop(48), tsds.RandomHorizontalFlip(), crop])  # changes their form once
    for transform, more in ((crop, 0), (twice, 1)):
        transform(batch, np.arange(BATCH), 0)
        assert sum(waits_in(lambda: transform(batch, np.arange(BATCH), 1)).values()) <= most + more  # noqa: B023


# --- in a process that has used no GPU before


def in_a_process(script: Callable[..., None], *arguments: object) -> str:
    """What a function prints in a new process, in which no GPU was used before."""
    module, given = script.__module__.rpartition(".")[2], tuple(map(str, arguments))
    code = f"import {module} as tests; tests.{script.__name__}(*{given})"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def print_epochs_on_the_second_gpu(path: str) -> None:
    loader = tsds.DataLoader(tsds.StoreDataset(path), BATCH, device="cuda:1")
    for _ in range(EPOCHS):
        for batch in loader:
            del batch
        torch.cuda.synchronize(1)  # else memory waits for a model that lags by epochs
    reserved = torch.cuda.memory_reserved(1)
    print(json.dumps({"contexts": contexts(), "streams": count("streams_used"), "reserved": reserved}))


@pytest.fixture(scope="module")
def second_gpu(path: Path) -> dict[str, Any]:
    """What some epochs on the second of two GPUs have taken, of a loader alone."""
    found: dict[str, Any] = json.loads(in_a_process(print_epochs_on_the_second_gpu, path))
    return found


def test_all_epochs_copy_on_one_stream(second_gpu: dict[str, Any]) -> None:
    assert second_gpu["streams"] == 1
    assert second_gpu["reserved"] <= 8 * 2**20  # four batches, each in the least that torch takes


def test_a_gpu_that_is_not_used_has_no_context(second_gpu: dict[str, Any]) -> None:
    assert second_gpu["contexts"] == [1]


def test_this_process_is_on_the_fake() -> None:
    assert is_fake() and torch.cuda.get_device_name() == "Fake H100 (no GPU)"
