"""How batches get from the threads that make them to a device: pinned, in few pieces, and the same as without one."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

import tensorstore_ds as tsds
from stores import detections, store_of
from tensorstore_ds.errors import ResidencyError
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.buffers import BufferPool, shared_nbytes
from tensorstore_ds.loading.collate import COLLATES, map_tensors, settle
from tensorstore_ds.loading.crew import Crew
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import DevicePrefetcher, with_index
from tensorstore_ds.loading.feed import Run
from tensorstore_ds.loading.fields import detection_image
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.loading.packing import pack
from tensorstore_ds.loading.resident import choose

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


# --- contents, and data that stay on a device


@pytest.mark.parametrize(("shape", "other"), [((3, 4, 5), (3, 4, 6)), ((3, 4, 5), (3, 5, 5)), ((2,), (3,))])
def test_tensors_of_transforms_are_stacked_or_listed(path: Path, shape: Any, other: Any) -> None:
    def batch_of(*shapes: Any) -> Any:
        samples = [torch.rand(shape) for shape in shapes]
        given = iter(samples)
        dataset = StoreDataset(path, transform=lambda _: {"x": next(given)}).subset(range(3))
        return samples, next(iter(DataLoader(dataset, 3, num_threads=1)))["x"]

    samples, found = batch_of(shape, shape, shape)
    assert torch.equal(found, torch.stack(samples))
    samples, found = batch_of(shape, other, shape)
    assert isinstance(found, list) and all(map(torch.equal, found, samples))
    with pytest.raises(ValueError, match="expected as many channels in all of a batch, found 3, 1, 3"):
        batch_of((3, 4, 5), (1, 4, 5), (3, 4, 5))


@pytest.mark.parametrize("way", [way for way in WAYS if "transform" not in WAYS[way][0] and "collate_fn" not in way])
def test_batches_of_data_kept_on_the_device_are_the_same(path: Path, way: str) -> None:
    kept = loader_of(path, way, device="cpu", residency="device")
    for found, expected in zip(kept, loader_of(path, way), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_what_cannot_be_kept_on_a_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(message: str, dataset: Any = None, **options: Any) -> None:
        given = {"batch_size": 10, "residency": "device", "device": "cpu", **options}
        with pytest.raises(tsds.OptionError, match=message):
            DataLoader(dataset or StoreDataset(path), **given)

    refused(r'`residency="device"`: expected a device .* Pass `device`', device=None)
    refused("transform batches on the device", StoreDataset(path, transform=dict))
    monkeypatch.setattr("tensorstore_ds.loading.resident.free_nbytes", lambda device: 10**9)
    gpu, workers = torch.device("cuda", 0), {"num_workers": 1}
    assert choose("auto", StoreDataset(path), gpu) == "device"
    for options, given, message in (
        (workers, {"workers": 1}, "worker processes read the store themselves. Use `num_workers=0`"),
        ({"batch_size": None}, {"in_batches": False}, "only whole batches are gathered there. Pass a `batch_size`"),
    ):
        refused(f'`residency="device"`: {message}', **options)
        assert choose("auto", StoreDataset(path), gpu, **given) == "page-cache"
    for dataset, found in (
        (TensorDataset(torch.zeros(4)), "a TensorDataset"),
        (Subset(tsds.MixedDataset([path]), [0]), "a Subset: mix subsets"),
    ):
        for residency in ("device", "devise"):
            refused(f"a StoreDataset, for `residency='{residency}'`, found {found}", dataset, residency=residency)
        assert DataLoader(dataset, residency="auto").residency == "page-cache"
    assert DataLoader(Subset(StoreDataset(path), [0]), residency="page-cache").residency == "page-cache"
    monkeypatch.setattr("tensorstore_ds.loading.resident.free_nbytes", lambda _: 1000)
    expected = r'expected 4,776 bytes free on cpu, found 1,000\. .* `residency="page-cache"`'
    with pytest.raises(ResidencyError, match=expected):
        list(DataLoader(StoreDataset(path), 10, residency="device", device="cpu"))


def test_auto_says_what_it_picked(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "tensorstore_ds"):
        loader = DataLoader(StoreDataset(path), 10, residency="auto", device="cpu")
    assert loader.residency == "page-cache"
    assert f"residency: page-cache; the split has {StoreDataset(path).nbytes} bytes" in caplog.text


def test_only_copies_to_cuda_may_be_under_way_when_a_batch_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def to(tensor: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        asked.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(Tensor, "to", to)
    for device in ("mps", "xpu", "cpu"):
        list(DevicePrefetcher([torch.zeros(3)], device))
    assert asked == [("mps", False), ("xpu", False), ("cpu", False)]


def test_a_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 2)
    for name, index in (("xpu", 2), ("xpu:0", 0), ("cpu", None), ("meta", None)):
        assert with_index(torch.device(name)).index == index


@gpu
@pytest.mark.parametrize("residency", ["page-cache", "device"])
def test_held_batches_on_a_gpu_never_change_and_memory_does_not_grow(path: Path, residency: Any) -> None:
    expected = [[batch["image"] for batch in epoch] for epoch in [loader_of(path, "packed dict")] * 3]  # an epoch each
    loader = loader_of(path, "packed dict", device="cuda", residency=residency)
    assert loader.device == torch.device("cuda", torch.cuda.current_device())
    found = [[batch["image"] for batch in epoch] for epoch in [loader] * 3]
    for mine, its in zip(found, expected, strict=True):
        assert all(torch.equal(image.cpu(), other) for image, other in zip(mine, its, strict=True))
    reserved = []
    for _ in range(5):
        for batch in loader:
            del batch
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[1] == reserved[4]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one_leaves_that_alone(path: Path) -> None:
    code = (
        "import sys, torch, tensorstore_ds as tsds\n"
        "loader = tsds.DataLoader(tsds.StoreDataset(sys.argv[1]), 10, device='cuda:1')\n"
        "assert all(batch['image'].device.index == 1 for batch in loader)\n"
        "assert [torch._C._cuda_hasPrimaryContext(n) for n in (0, 1)] == [False, True]\n"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True)


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
    monkeypatch.setattr("tensorstore_ds.loading.feed.GROUP_NBYTES", 1)
    monkeypatch.setattr("tensorstore_ds.loading.loader.PINNED_NBYTES", 8000)  # of batches of 2 kB
    loader = loader_of(path, "packed dict", device="cuda", num_threads=8, batch_transform=lambda b, rows, epoch: b)
    assert len(list(loader)) == 3
    assert loader._threads()._depth() <= 4


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


@gpu
def test_what_is_copied_ahead_in_inference_mode_can_be_trained_on() -> None:
    batches = iter(DevicePrefetcher(torch.arange(6.0).view(3, 2), "cuda"))
    with torch.inference_mode():
        next(batches)  # and begins two more
    weights = torch.ones(2, device="cuda", requires_grad=True)
    (weights * next(batches)).sum().backward()  # raises if it cannot keep the batch until then
    assert weights.grad is not None and weights.grad.tolist() == [2, 3]


# --- a batch that is there does not wait for others


def test_whether_the_next_batch_is_there() -> None:
    go = threading.Event()

    def make(group: list[Any]) -> list[Any]:
        assert group == ["a", "b"] or go.wait(30)
        return group

    crew, run = Crew(1), Run(None, make, lambda: [["a", "b"], ["c"]])  # type: ignore[list-item]
    run.draw()
    assert not run.is_ready and run.submit(crew) and run.tasks[0].wait(30) and run.is_ready
    run.batches.extend(run.tasks.popleft().result())
    assert [run.is_ready, run.batches.popleft(), run.is_ready, run.batches.popleft()] == [True, "a", True, "b"]
    assert not run.is_ready and run.submit(crew) and not run.is_ready
    go.set()
    assert run.tasks[0].wait(30) and run.is_ready and not run.submit(crew)
    assert run.tasks.popleft().result() == ["c"] and run.is_over
    crew.stop()


@gpu
def test_a_batch_on_a_gpu_does_not_wait_for_later_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorstore_ds.loading.feed.GROUP_NBYTES", 1)
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
