"""`DataLoader` has the arguments of torch's, and says of its own what is wrong with them."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torchvision.transforms import v2

import tensorstore_ds as tsds
from stores import detections, numbered, store_of
from tensorstore_ds.loading.collate import COLLATES

ROWS = 12


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered(tmp_path_factory.mktemp("labelled") / "s.tsds", ROWS, (6, 5), classes=3).path


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 5 x 6 with objects, a mask, and a label."""
    samples = [{**sample, "mask": sample["image"][..., 0] % 2} for sample in detections(150, shape=(5, 6, 3))]
    return store_of(tmp_path_factory.mktemp("objects") / "s.tsds", samples, ["ant", "bee"]).path


# --- torch's own --------------------------------------------------------------------------------------------------


def test_every_argument_of_torchs_loader_is_one_of_ours() -> None:
    """By the same name and, of those that need no name, at the same place, with the same default."""
    theirs = inspect.signature(data.DataLoader.__init__).parameters.values()
    ours = inspect.signature(tsds.DataLoader.__init__).parameters
    named = [each.name for each in theirs if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert list(ours)[: len(named)] == named
    differing = {each.name for each in theirs if each.default != ours[each.name].default}
    assert differing == {"pin_memory"}  # ours pins if `device` is a GPU


def test_the_class_is_generic_as_torchs_is(labelled: Path) -> None:
    loader: tsds.DataLoader[dict[str, Any]] = tsds.DataLoader(tsds.StoreDataset(labelled), 4)
    assert tsds.DataLoader[int] and isinstance(loader, data.DataLoader)


def test_a_loader_says_what_it_does(labelled: Path) -> None:
    dataset = tsds.StoreDataset(labelled)
    loader = tsds.DataLoader(dataset, 5, shuffle=True, num_threads=3, device="cpu")
    assert repr(loader) == f"<DataLoader, 3 batches of 5 to cpu, ShuffleSampler, 3 threads, of {dataset!r}>"
    assert "12 samples, ShuffleSampler, in order, 2 workers" in repr(tsds.DataLoader(dataset, None, num_workers=2))
    assert "2 batches, SequentialSampler" in repr(
        tsds.DataLoader(dataset, batch_sampler=data.BatchSampler(data.SequentialSampler(dataset), 6, False))
    )


class Counted(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


def test_a_state_asks_for_no_length_of_a_data_set_that_is_iterated() -> None:
    loader = tsds.DataLoader(Counted(), 4)
    next(iter(loader))
    loader.state_dict()
    assert loader._IterableDataset_len_called is None  # torch warns of a wrong length once somebody has asked for it


@pytest.mark.parametrize("persistent", [False, True])
def test_the_iterator_shows_what_torchs_has(labelled: Path, persistent: bool) -> None:
    loader = tsds.DataLoader(tsds.StoreDataset(labelled), 4, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    workers = iterator._workers
    assert len(workers) == 2 and all(worker.is_alive() for worker in workers)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = iterator.no_such_thing


# --- ours ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "device"), [(0, None), (1, "cpu")])
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("return_as", ["dict", "tuple"])
@pytest.mark.parametrize("fields", [None, ["image"], ["image", "label"]])
def test_batch_transforms_take_what_a_data_set_returns(
    labelled: Path, fields: Any, return_as: Any, transformed: bool, device: Any, workers: int
) -> None:
    dataset = tsds.StoreDataset(labelled, fields=fields, return_as=return_as, transform=same if transformed else None)
    flip = tsds.Compose([tsds.RandomHorizontalFlip(1.0), tsds.Normalize([0.0], [1 / 255])])
    loader = tsds.DataLoader(dataset, 5, batch_transform=flip, device=device, num_workers=workers)
    batches = list(loader)
    images = [batch["image"] if return_as == "dict" else batch[0] for batch in batches]
    assert torch.cat(images)[:, 0, 0, 0].tolist() == list(range(ROWS))
    if fields != ["image"]:
        labels = torch.cat([batch["label"] if return_as == "dict" else batch[1] for batch in batches])
        assert labels.tolist() == [i % 3 for i in range(ROWS)]
    assert all(isinstance(batch, tuple) == (return_as == "tuple") for batch in batches)


TRANSFORMS = {
    "flip": tsds.RandomHorizontalFlip(flip_pairs=()),
    "shift": tsds.RandomCrop((5, 6), padding=2, fill=9),
    "crop": tsds.RandomCrop(3),
    "edge": tsds.RandomCrop((5, 6), padding=2, padding_mode="edge"),
    "resized": tsds.RandomResizedCrop(4),
    "jitter": tsds.transforms.ColorJitter(0.5, 0.5, 0.5),
    "normalize": tsds.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]),
    "half": tsds.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], dtype=torch.bfloat16),
    "twice": tsds.RandomHorizontalFlip(flip_pairs=(), seed=1),
}


@pytest.mark.drawn(5)
@pytest.mark.parametrize("batch_size", [3, np.int64(100)])
@pytest.mark.parametrize("names", [*([name] for name in TRANSFORMS), ["flip", "shift", "jitter", "twice", "normalize"]])
def test_batches_transformed_by_threads_are_those_transformed_by_hand(
    objects: Path, names: list[str], batch_size: int
) -> None:
    dataset = tsds.StoreDataset(objects)
    steps = tsds.Compose([TRANSFORMS[name] for name in names], seed=3)
    stored = dataset.split["image"][:].copy()

    def loader(transform: Any) -> tsds.DataLoader[Any]:
        options: Any = {"shuffle": True, "collate": "packed", "num_threads": 3, "batch_transform": transform}
        return tsds.DataLoader(dataset, batch_size, **options)

    by_hand, by_threads = loader(lambda batch, rows, epoch: steps(batch, rows, epoch)), loader(steps)
    for _epoch in range(2):
        for expected, found in zip(by_hand, by_threads, strict=True):
            assert found.keys() == expected.keys() and found["objects"].keys() == expected["objects"].keys()
            assert found["image"].is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(found["image"], expected["image"]) and torch.equal(found["mask"], expected["mask"])
            for name, value in expected["objects"].items():
                torch.testing.assert_close(found["objects"][name], value, rtol=0, atol=0, equal_nan=True)
    assert np.array_equal(dataset.split["image"][:], stored)


def test_transforms_of_others_run_in_the_scripts_thread(labelled: Path) -> None:
    threads = []

    class Noting(torch.nn.Module):
        def forward(self, batch: Any, rows: Any, epoch: int) -> Any:
            threads.append(threading.current_thread())
            return batch

    for transform in (tsds.Compose([tsds.RandomHorizontalFlip(), Noting()]), lambda *arguments: Noting()(*arguments)):
        list(tsds.DataLoader(tsds.StoreDataset(labelled), 4, batch_transform=transform))
    assert set(threads) == {threading.current_thread()}


class Counting(tsds.RandomHorizontalFlip):
    """A user's own, which has state."""

    calls = 0

    def forward(self, batch: Any, rows: Any = None, epoch: int | None = None) -> Any:
        assert threading.current_thread() is threading.main_thread()
        self.calls += 1
        return super().forward(batch, rows, epoch)


@pytest.mark.parametrize("composed", [False, True])
def test_a_subclass_and_hooks_are_called_once_a_batch(labelled: Path, composed: bool) -> None:
    flip = Counting()
    calls: list[str] = []
    flip.register_forward_pre_hook(lambda *arguments: calls.append("before"))
    flip.register_forward_hook(lambda *arguments: calls.append("after"))
    loader = tsds.DataLoader(tsds.StoreDataset(labelled), 4, batch_transform=tsds.Compose([flip]) if composed else flip)
    list(loader)
    assert flip.calls == len(loader) and calls == ["before", "after"] * len(loader)


def test_threads_compute_alone(labelled: Path) -> None:
    counts = []

    def transform(sample: Any) -> Any:
        counts.append(torch.get_num_threads())
        return sample

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        list(tsds.DataLoader(tsds.StoreDataset(labelled, transform=transform), 4, num_threads=2))
        assert counts == [1] * ROWS and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def same(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize("return_as", ["dict", "tuple"])
@pytest.mark.parametrize("collate", COLLATES)
def test_objects_and_masks_move_along(objects: Path, return_as: Any, collate: Any) -> None:
    dataset = tsds.StoreDataset(objects, return_as=return_as, fields=["image", "objects"])
    flip = tsds.RandomHorizontalFlip(1.0, flip_pairs=())
    plain, loader = (tsds.DataLoader(dataset, 40, collate=collate, batch_transform=each) for each in (None, flip))
    for moved, still in zip(loader, plain, strict=True):
        both = (batch["objects"] if return_as == "dict" else batch[1] for batch in (moved, still))
        if collate == "list":
            both = ({"boxes": torch.cat([each["boxes"] for each in found])} for found in both)
        after, before = (found["boxes"][found["mask"]] if "mask" in found else found["boxes"] for found in both)
        torch.testing.assert_close(after[:, [2, 0]], 6 - before[:, [0, 2]])
    dataset = tsds.StoreDataset(objects, return_as=return_as, fields=["image", "mask"])
    (batch,) = tsds.DataLoader(dataset, 150, batch_transform=flip)
    mask = batch["mask"] if return_as == "dict" else batch[1]
    assert np.array_equal(mask.flip(-1), dataset.split["mask"][:])


def test_tuples_with_two_masks_are_refused() -> None:
    images, mask = torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="expected one mask and one member with objects, found several"):
        tsds.RandomCrop(2)((images, mask, mask))
    with pytest.raises(ValueError, match="found NoneType"):
        tsds.RandomCrop(2)(())


NO_FUNCTION = r"^`batch_transform`: expected a function that is called as batch_transform\(batch, rows, epoch\), found "


class OfOneArgument(torch.nn.Module):
    def forward(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collate": "stack"}, "`collate`: expected one of list, padded, packed, found 'stack'"),
        ({"residency": "disk"}, "`page-cache` is RAM that all processes share, found 'disk'"),
        ({"batch_transform": [tsds.RandomCrop(2)]}, "expected a callable, such as Compose .* found a list"),
        ({"batch_transform": tsds.RandomCrop}, "expected a callable, such as .* found the class RandomCrop"),
        ({"batch_transform": lambda batch: batch}, NO_FUNCTION),
        ({"batch_transform": lambda batch, rows, *, epoch: batch}, NO_FUNCTION),
        ({"batch_transform": OfOneArgument()}, NO_FUNCTION),
        ({"batch_transform": v2.RandomHorizontalFlip()}, "RandomHorizontalFlip, which takes one argument: give it to"),
        ({"batch_size": None, "batch_transform": tsds.RandomCrop(2)}, "expected batches, found `batch_size=None`"),
        (
            {"decode": v2.RandomResizedCrop(4)},
            r"torchvision.s RandomResizedCrop: use tsds\.transforms\.RandomResizedCrop",
        ),
        ({"decode": 224}, r"`decode`: expected .* found 224: use tsds\.Resize\(224\)"),
        ({"shuffle": "yes"}, "`shuffle`: expected True or False, found 'yes'"),
        ({"sampler": 5}, "`sampler`: expected a sampler, or a list of rows, found 5"),
        ({"num_threads": 0}, "`num_threads`: expected at least 1, found 0"),
        ({"num_threads": "2"}, "`num_threads`: expected an integer, found '2'"),
        ({"num_workers": "2"}, "`num_workers`: expected an integer, found '2'"),
        ({"prefetch_factor": "2"}, "`prefetch_factor`: expected an integer, found '2'"),
        ({"seed": "a"}, "`seed`: expected an integer, found 'a'"),
        ({"device": "cuda:7"}, "`device`: expected one that this machine has, found cuda:7"),
        ({"device": "gpu"}, r"found gpu \(torch has no device of this name\)\. Use "),
        ({"sampler": tsds.WeightedSampler([1, 2, 3])}, "`sampler`: expected a weight for each of 12 samples, found 3"),
        ({"sampler": data.WeightedRandomSampler([1, 2, 3], 3)}, "expected a weight for each of 12 samples, found 3"),
        *(
            (
                {"batch_size": wrong},
                f"^{re.escape(f'`batch_size`: expected a whole number, at least 1, or None, found {wrong!r}.')}$",
            )
            for wrong in ("32", [32], b"3")
        ),
    ],
)
def test_arguments_that_are_refused_when_the_loader_is_made(
    labelled: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(tsds.OptionError, match=message):
        tsds.DataLoader(tsds.StoreDataset(labelled), **arguments)


@pytest.mark.parametrize(
    "right", [lambda batch, rows, epoch: epoch, lambda batch, *draw: draw[1], lambda b, r=None, e=7, more=1: e]
)
def test_batch_transforms_that_take_rows_and_epoch(labelled: Path, right: Any) -> None:
    assert list(tsds.DataLoader(tsds.StoreDataset(labelled), ROWS, batch_transform=right)) == [0]


def test_what_is_mistaken_for_something_else_is_named(labelled: Path) -> None:
    store, tensors = tsds.open(labelled), data.TensorDataset(torch.zeros(4))
    for wrong in (str(labelled), labelled, store, store["train"]):
        with pytest.raises(tsds.OptionError, match=r"`dataset`: expected a data set, such as StoreDataset\(path"):
            tsds.DataLoader(wrong)  # type: ignore[arg-type]
    with pytest.raises(tsds.OptionError, match="whose rows it draws by, found a TensorDataset"):
        tsds.DataLoader(tensors, batch_transform=tsds.RandomCrop(2))
    for state in ("x", None, 3):
        with pytest.raises(
            tsds.OptionError, match=r"expected the dict that state_dict\(\) of a loader returned, found a "
        ):
            tsds.DataLoader(tsds.StoreDataset(labelled), 4).load_state_dict(state)  # type: ignore[arg-type]
    with pytest.raises(tsds.OptionError, match=r"found a Split: use StoreDataset\(store, 'train'\)"):
        tsds.StoreDataset(store["train"])  # type: ignore[arg-type]
    wrong_types: dict[str, Callable[[], Any]] = {
        r'such as dataset.split or store\["train"\], found a StoreDataset': lambda: tsds.Normalize.from_split(
            tsds.StoreDataset(labelled)  # type: ignore[arg-type]
        ),
        "expected a list of batch transforms, .* found a Resize": lambda: tsds.Compose(tsds.Resize(3)),  # type: ignore[arg-type]
        "expected a function and its fields, .* found 'label == 0'": lambda: tsds.StoreDataset(labelled).filter(
            "label == 0"  # type: ignore[arg-type]
        ),
        "`transform`: expected a function of samples": lambda: tsds.StoreDataset(labelled, transform=3),  # type: ignore[arg-type]
        "`progress`: expected a function": lambda: tsds.convert(labelled, "x", progress=True),  # type: ignore[arg-type]
        r"expected a folder, or tsds\.Sources": lambda: tsds.convert([str(labelled), "voc"], "x"),
    }
    for message, call in wrong_types.items():
        with pytest.raises(tsds.OptionError, match=message):
            call()
    with pytest.raises(ValueError, match="pass a crop or Resize to the loader as `decode`, use `collate_images"):
        tsds.RandomCrop(2)({"image": [torch.zeros(3, 4, 4), torch.zeros(3, 5, 4)]})


def test_torchs_subsets_are_gathered_as_ours(labelled: Path) -> None:
    dataset = tsds.StoreDataset(labelled)
    first, second = data.random_split(dataset, [0.75, 0.25], generator=torch.Generator().manual_seed(3))
    nested = data.Subset(data.Subset(first, torch.tensor([2, 0, 1])), [-1, 0])
    expected = [first.indices, second.indices, [first.indices[1], first.indices[2]]]
    options: list[dict[str, Any]] = [{}, {"decode": tsds.Resize((4, 4))}, {"collate_images": "padded"}]
    options += [{"batch_transform": tsds.RandomCrop(2)}, {"num_workers": 1, "decode": tsds.Resize((4, 4))}]
    for part, rows in zip((first, second, nested), expected, strict=True):
        for given in options[: 5 if part is nested else 4]:  # a worker once
            ours = tsds.DataLoader(dataset.subset(rows), 2, shuffle=True, **given)
            theirs = tsds.DataLoader(part, 2, shuffle=True, **given)
            for a, b in zip(ours, theirs, strict=True):
                assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
            assert theirs.dataset.rows.tolist() == list(rows)  # type: ignore[attr-defined]


class Doubled(data.Subset[Any]):
    """A user's own, which is more than its indices."""

    def __getitem__(self, index: Any) -> Any:
        return {"label": 2 * super().__getitem__(index)["label"]}

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def test_a_class_of_subsets_of_its_own_is_kept(labelled: Path) -> None:
    dataset = tsds.StoreDataset(labelled)
    (batch,) = tsds.DataLoader(Doubled(dataset, [1, 0]), 2)
    assert batch["label"].tolist() == [2 * dataset.targets[1], 2 * dataset.targets[0]]
    for options in ({"decode": tsds.Resize((4, 4))}, {"collate_images": "padded"}):
        with pytest.raises(tsds.OptionError, match="found a Doubled"):
            tsds.DataLoader(Doubled(dataset, [1, 0]), 2, **options)


def test_further_objects_move_with_a_sample_and_are_refused_by_batches_that_move(tmp_path: Path) -> None:
    samples = [{name: each[name] for name in ("image", "boxes", "labels")} for each in detections(4)]
    path = store_of(tmp_path / "s.tsds", samples, ["ant", "bee"]).path
    found = [{"boxes": each["boxes"], "labels": each["labels"]} for each in samples]
    tsds.editing.add_fields(path, {"predictions": found}, classes={"predictions": ["ant", "bee"]})
    for sample, given in zip(tsds.StoreDataset(path, transform=v2.RandomHorizontalFlip(1)), samples, strict=True):
        left, top, right, bottom = np.asarray(given["boxes"]).reshape(-1, 4).T
        expected = np.stack([sample["image"].shape[2] - right, top, sample["image"].shape[2] - left, bottom], 1)
        np.testing.assert_allclose(sample["predictions"]["boxes"], expected, rtol=1e-6)
        np.testing.assert_allclose(sample["objects"]["boxes"], expected, rtol=1e-6)
    dataset = tsds.StoreDataset(path)
    with pytest.raises(tsds.OptionError, match="found predictions, which would not move: name all other `fields`"):
        tsds.DataLoader(dataset, 2, batch_transform=tsds.Compose([tsds.RandomHorizontalFlip()]))
    batch = next(iter(tsds.DataLoader(dataset, 2, batch_transform=tsds.Normalize([0.5] * 3, [0.5] * 3))))
    assert torch.equal(batch["predictions"][1]["boxes"], batch["objects"][1]["boxes"])


@pytest.mark.parametrize("collate", ["list", "packed"])
def test_subsets_of_detection_sets(tmp_path: Path, collate: Any) -> None:
    samples = detections(8)
    dataset = tsds.StoreDataset(store_of(tmp_path / "s.tsds", samples, ["ant", "bee"]).path)
    indices = [5, 0, 7]
    mixed = tsds.MixedDataset([dataset])
    for part in (data.Subset(dataset, indices), data.Subset(mixed, indices)):
        (batch,) = tsds.DataLoader(part, 3, collate=collate)
        boxes = [each["boxes"] for each in batch["objects"]] if collate == "list" else [batch["objects"]["boxes"]]
        expected = np.concatenate([samples[i]["boxes"] for i in indices])
        np.testing.assert_allclose(torch.cat(boxes), expected, rtol=1e-6)
    with pytest.raises(tsds.OptionError, match=r"found a Subset: mix subsets, MixedDataset\(\{dataset.subset"):
        tsds.DataLoader(part, 3, decode=tsds.Resize((4, 4)))
