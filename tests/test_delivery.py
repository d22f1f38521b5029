"""How batches get from the threads that make them to a device: pinned, in few pieces, and the same as without one."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stores import detections, store_of
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.buffers import BufferPool, shared_nbytes
from tensorstore_ds.loading.collate import COLLATES, map_tensors, settle
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import DevicePrefetcher
from tensorstore_ds.loading.epoch import Ahead, LoaderStats, Position
from tensorstore_ds.loading.fields import detection_image
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.loading.packing import pack

gpu = pytest.mark.gpu
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
    """A batch of lists of numbers, with dtypes and strides of tensors, to be compared."""

    return map_tensors(batch, lambda tensor: (tensor.dtype, tensor.shape, tensor.stride(), str(tensor.tolist())))


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


@pytest.mark.parametrize("way", WAYS)
def test_a_packed_batch_is_the_same_over_copies_of_its_pieces(path: Path, way: str) -> None:
    for batch in loader_of(path, way):
        expected = plain(batch)
        packed = pack(batch, BufferPool())
        pieces = [piece.clone() for piece in packed.pieces]
        for piece in packed.pieces:
            piece.zero_()
        assert plain(packed.over(pieces)) == expected
        assert len(pieces) == 1  # all tensors are small


def test_large_tensors_have_pieces_of_their_own_and_many_share_one() -> None:
    label, images = torch.arange(3), [torch.rand(3, 64, 128 + i).mT for i in range(5)]
    few, many = pack((label, images[:2]), BufferPool()), pack((label, images), BufferPool())
    assert [len(packed.pieces) for packed in (few, many)] == [3, 2]
    for packed, count in ((few, 2), (many, 5)):
        found = packed.over([piece.clone() for piece in packed.pieces])
        assert torch.equal(found[0], label) and len(found[1]) == count
        assert all(a.equal(b) and a.stride() == b.stride() for a, b in zip(found[1], images, strict=False))
        label_memory, *others = (tensor.untyped_storage().data_ptr() for tensor in tensors_of(found))
        assert label_memory not in others  # labels that are kept do not keep the images


def test_nested_and_sparse_tensors_of_a_collate_fn_have_pieces_of_their_own() -> None:
    nested, sparse = (
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.eye(3).to_sparse(),
    )
    packed = pack((torch.arange(3), nested, sparse, torch.ones(2)), BufferPool())
    found = packed.over(packed.pieces)
    assert len(packed.pieces) == 3 and found[1] is nested and found[2] is sparse and found[3].tolist() == [1, 1]


def test_gaps_between_the_rows_of_a_larger_tensor_are_not_packed() -> None:
    whole = torch.arange(60.0).view(6, 10)
    packed = pack({"part": whole[:, 2:5], "bits": whole > 30, "none": whole[:0], "one": whole[3, 3]}, BufferPool())
    assert packed.nbytes == 64 * 3 + 64  # 72 bytes, 60, none and 4
    found = packed.over(packed.pieces)
    assert torch.equal(found["part"], whole[:, 2:5]) and found["part"].is_contiguous()
    assert torch.equal(found["bits"], whole > 30) and found["none"].shape == (0, 10) and found["one"] == 33


@gpu
def test_an_error_of_a_batch_that_nobody_asks_for_keeps_nothing() -> None:
    class Loader:
        def __iter__(self) -> Iterator[Tensor]:
            yield from torch.zeros(2, 4)
            raise ArithmeticError("too much")

    loader = Loader()
    alive = weakref.ref(loader)
    batches = iter(DevicePrefetcher(loader, "cuda"))
    next(batches)
    gc.disable()
    try:
        del loader, batches
        assert alive() is None
    finally:
        gc.enable()


@gpu
@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_gets_small_batches_by_one_copy(path: Path, way: str) -> None:
    for batch in loader_of(path, way, device="cuda"):
        tensors = [t for t in tensors_of(batch) if (t.numel() and t.dtype != torch.float32) or "torchvision" not in way]
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}) == 1


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, 37 * 2**20, 2**26 - 1, 2**26, 2**26 + 1])
def test_at_most_a_quarter_of_pinned_memory_is_unused(nbytes: int) -> None:
    whole = shared_nbytes(nbytes)
    assert whole.bit_count() == 1 and whole % nbytes <= whole // 4 and whole < 8 * nbytes


@gpu
def test_pinned_buffers_share_an_allocation() -> None:
    pool, spec = BufferPool(pinned=True), ArraySpec("int64", (1000, 37))
    held = [pool.empty(8, spec)[0].fill_(i) for i in range(7)]  # 2.3 MB each, three in 8 MiB
    assert all(tensor.is_pinned() and (tensor == i).all() for i, tensor in enumerate(held))
    assert len({tensor.untyped_storage().data_ptr() for tensor in held}) == 3


@gpu
def test_pinned_memory_has_a_budget(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorstore_ds.loading.epoch.GROUP_NBYTES", 1)
    monkeypatch.setattr("tensorstore_ds.loading.loader.PINNED_NBYTES", 8000)  # of batches of 2 kB
    loader = loader_of(path, "packed dict", device="cuda", num_threads=8, batch_transform=lambda b, rows, epoch: b)
    assert len(list(loader)) == 3
    assert loader._by_threads(StoreDataset(path), Position())._depth() == 4


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


# --- a batch that is there does not wait for others


def test_whether_the_next_batch_is_there() -> None:
    go = threading.Event()

    def make(group: list[Any]) -> list[Any]:
        assert group == ["a", "b"] or go.wait(30)
        return group

    tasks = Ahead(make, [["a", "b"], ["c"]], LoaderStats(), width=1, depth=lambda: 1)
    batches = iter(tasks)
    assert not tasks.ready()
    assert next(batches) == "a" and tasks.ready()
    assert next(batches) == "b" and not tasks.ready()
    go.set()
    assert next(batches) == "c"
    assert list(batches) == []


@gpu
def test_a_batch_on_a_gpu_does_not_wait_for_later_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorstore_ds.loading.epoch.GROUP_NBYTES", 1)
    go = threading.Event()

    def late(sample: Any) -> Any:
        assert int(sample["image"][0, 0, 0]) not in later or go.wait(10)
        return sample

    dataset = StoreDataset(path, fields=["image"], transform=late)
    later = {int(dataset.split["image"][row][0, 0, 0]) for row in range(4, 11)}
    assert not later & {int(dataset.split["image"][row][0, 0, 0]) for row in range(4)}
    batches = iter(DataLoader(dataset, 4, device="cuda", num_threads=1))
    assert len(next(batches)["image"]) == 4
    go.set()
    assert sum(len(batch["image"]) for batch in batches) == 7


@gpu
def test_an_error_comes_after_the_batches_before_it() -> None:
    def batches() -> Iterator[Tensor]:
        yield from (torch.zeros(2), torch.ones(2))
        raise ArithmeticError("too much")

    found = iter(DevicePrefetcher(batches(), "cuda"))
    assert [next(found).tolist(), next(found).tolist()] == [[0, 0], [1, 1]]
    with pytest.raises(ArithmeticError, match="too much"):
        next(found)
    assert next(found, None) is None
