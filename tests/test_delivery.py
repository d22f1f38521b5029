"""How batches get from the threads that make them to a device: pinned, in few pieces, and the same as without one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stores import detections, store_of
from tensorstore_ds.loading.collate import COLLATES, map_tensors, settle
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.fields import detection_image
from tensorstore_ds.loading.loader import DataLoader

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
#: Ways to a batch: options of the data set, and of the loader.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    f"{how} {as_}": ({"return_as": as_}, {"collate": how})
    for how, as_ in itertools.product(COLLATES, ("dict", "tuple", "torchvision"))
}
WAYS |= {
    "padded images": ({}, {"collate": "packed", "collate_images": "padded", "size_divisor": 8}),
    "transform": ({"transform": dict}, {}),
    "as_pil": ({"as_pil": True, "transform": lambda s: {**s, "image": torch.tensor(np.asarray(s["image"]))}}, {}),
    "torchvision samples": ({"return_as": "torchvision", "transform": lambda sample: sample}, {}),
    "collate_fn": ({}, {"collate_fn": lambda samples: [sample["image"] for sample in samples]}),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(tmp_path_factory.mktemp("d") / "s.tsds", detections(11), ("ant", "bee")).path


def loader_of(path: Path, way: str, **options: Any) -> DataLoader[Any]:
    of_dataset, of_loader = WAYS[way]
    return DataLoader(StoreDataset(path, **of_dataset), 4, shuffle=True, seed=3, **of_loader, **options)


def plain(batch: Any) -> Any:
    """A batch of lists of numbers, with dtypes and strides of tensors, to be compared; nested tensors as lists."""

    def of(tensor: Tensor) -> Any:
        if tensor.is_nested:
            return [of(each) for each in tensor.unbind()]
        return tensor.dtype, tensor.shape, tensor.stride(), str(tensor.tolist())

    return map_tensors(batch, of)


def tensors_of(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(batch, lambda tensor: found.append(tensor) or tensor)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_is_deferred_is_what_would_be_made_at_once(path: Path, way: str) -> None:
    for batch in loader_of(path, way, device="meta"):  # whose tensors have no values
        assert tensors_of(batch) and all(tensor.is_meta for tensor in tensors_of(batch))
    at_once, later = loader_of(path, way), loader_of(path, way)
    object.__setattr__(later._collated.__self__, "defers", True)  # type: ignore[attr-defined]
    for expected, found in zip(at_once, later, strict=True):
        assert plain(settle(found)) == plain(expected)


@gpu
@pytest.mark.parametrize("way", WAYS)
def test_batches_are_pinned_whatever_makes_them(path: Path, way: str) -> None:
    for batch in loader_of(path, way, pin_memory=True):
        assert tensors_of(batch) and all(tensor.is_pinned() for tensor in tensors_of(batch) if tensor.numel())


@gpu
@pytest.mark.parametrize("way", WAYS)
def test_batches_on_a_gpu_are_those_of_the_cpu(path: Path, way: str) -> None:
    for expected, found in zip(loader_of(path, way), loader_of(path, way, device="cuda"), strict=True):
        assert all(tensor.is_cuda for tensor in tensors_of(found))
        assert plain(map_tensors(found, Tensor.cpu)) == plain(expected)


@gpu
def test_images_for_torchvision_are_sent_as_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[torch.dtype] = []

    def noted(images: Any) -> Any:
        sent.extend(image.dtype for image in tensors_of(images) if image.is_cuda)
        return detection_image(images)

    monkeypatch.setattr("tensorstore_ds.loading.fields.detection_image", noted)
    for images, _ in loader_of(path, "list torchvision", device="cuda"):
        assert images.dtype == torch.float32
    assert sent == [torch.uint8] * 3
