"""Several stores as one data set: classes, shares, passes, ranks, resuming; and what cannot be mixed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data

import tensorstore_ds as tsds

CLASSES = {"a": ("ant", "bee"), "b": ("bee", "cow", "ant"), "c": ("dog",)}
ROWS = {"a": 13, "b": 30, "c": 5}


def pixels(name: str, row: int, side: int = 6) -> np.ndarray[Any, Any]:
    return np.full((side, side, 3), ord(name) + row, np.uint8)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    for name, rows in ROWS.items():
        with tsds.Writer(folder / f"{name}.tsds", classes=CLASSES[name]) as writer:
            for row in range(rows):
                count = len(CLASSES[name])
                writer.append(
                    "train",
                    image=pixels(name, row),
                    label=row % count,
                    boxes=np.array([[0, 0, 2 + row % 3, 3]] * (row % 3), np.float64).reshape(-1, 4),
                    labels=np.array([(row + i) % count for i in range(row % 3)], np.int64),
                    key=f"{name}{row}",
                )
    with tsds.Writer(folder / "large.tsds", classes=("ant",)) as writer:
        for row in range(4):
            writer.append("train", image=pixels("l", row, 9), label=0, key=f"l{row}")
    return folder


def mixed(stores: Path, shares: dict[str, float] | str = "abc", **options: Any) -> tsds.MixedDataset:
    if isinstance(shares, str):
        return tsds.MixedDataset([stores / f"{name}.tsds" for name in shares], **options)
    return tsds.MixedDataset({stores / f"{name}.tsds": share for name, share in shares.items()}, **options)


def keys(dataset: tsds.MixedDataset, rows: Any) -> list[str]:
    return [dataset.key(int(row)) for row in rows]


@pytest.mark.parametrize(("collate", "workers"), [("list", 0), ("padded", 0), ("packed", 0), ("list", 2)])
def test_batches_are_the_samples(stores: Path, collate: Any, workers: int) -> None:
    dataset = mixed(stores)
    assert dataset.samples[13:15] == [("b0", 1), ("b1", 2)] and dataset[-1]["image"][0, 0, 0] == ord("c") + 4
    loader = tsds.DataLoader(dataset, 7, shuffle=True, collate=collate, seed=3, num_workers=workers)
    order = tsds.ShuffleSampler(48, seed=3).rows()
    by_samples = data.DataLoader([dataset[int(row)] for row in order], 7, collate_fn=list)  # type: ignore[arg-type]
    count = 0
    for batch, samples in zip(loader, by_samples, strict=True):
        assert torch.equal(batch["image"], torch.stack([sample["image"] for sample in samples]))
        assert torch.equal(batch["label"], torch.stack([sample["label"] for sample in samples]))
        if collate == "list":
            for objects, sample in zip(batch["objects"], samples, strict=True):
                assert torch.equal(objects["labels"], sample["objects"]["labels"])
                assert torch.equal(objects["boxes"], sample["objects"]["boxes"])
        count += len(samples)
    assert count == 48


def test_images_of_several_sizes_come_as_a_list_or_by_a_plan_in_one(stores: Path) -> None:
    sources = [stores / "a.tsds", stores / "large.tsds"]
    batch = next(iter(tsds.DataLoader(tsds.MixedDataset(sources, fields=["image"]), 17)))
    assert [tuple(image.shape) for image in batch["image"]] == [(3, 6, 6)] * 13 + [(3, 9, 9)] * 4
    planned = tsds.MixedDataset(sources, fields=["image", "label"], decode=tsds.Resize((4, 4)))
    for dataset in (planned, tsds.MixedDataset(sources, fields=["image", "label"]).with_decode(tsds.Resize((4, 4)))):
        assert next(iter(tsds.DataLoader(dataset, 17)))["image"].shape == (17, 3, 4, 4)


@pytest.mark.parametrize("encoding", ["raw", "source"])
@pytest.mark.parametrize("plan", [None, tsds.Resize((6, 6)), [tsds.Resize((6, 6)), tsds.Resize((3, 3))]])
def test_gray_images_become_rgb_if_others_are(stores: Path, tmp_path: Path, encoding: Any, plan: Any) -> None:
    """Also in a batch that has only gray ones, and of each sample."""
    gray = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 1), np.uint8)
    (tmp_path / "gray").mkdir()
    for row, image in enumerate(gray):
        Image.fromarray(image[:, :, 0]).save(tmp_path / f"gray/{row}.png")
    tsds.convert(tmp_path / "gray", tmp_path / "gray.tsds", encoding=encoding, workers=0)
    dataset = tsds.MixedDataset([stores / "a.tsds", tmp_path / "gray.tsds"], fields=["image"], decode=plan)
    name = "image_0" if isinstance(plan, list) else "image"
    expected = [*(pixels("a", row) for row in range(13)), *np.repeat(gray, 3, axis=3)]
    found = [image for rows in ([*range(14)], [14, 15, 16]) for image in dataset.gather(rows).columns[name]]
    np.testing.assert_array_equal(np.stack(found).transpose(0, 2, 3, 1), expected)
    found = [np.asarray(dataset[row][name]).transpose(1, 2, 0) for row in range(17)]
    np.testing.assert_array_equal(found, expected)


def test_a_transform_is_that_of_the_mixture(stores: Path) -> None:
    seen = []

    def note(sample: Any, generator: torch.Generator) -> int:
        seen.append(int(torch.randint(1000, (), generator=generator)))
        return int(sample["image"][0, 0, 0])

    dataset = mixed(stores, transform=note)
    first = [int(each) for batch in tsds.DataLoader(dataset, 48, seed=5, num_threads=1) for each in batch]
    assert first == [ord(name) + row for name in "abc" for row in range(ROWS[name])]
    drawn, seen[:] = list(seen), []
    list(tsds.DataLoader(dataset, 5, seed=5, num_threads=1))
    assert sorted(drawn) == sorted(seen)


def test_subsets_and_urls_and_pickles(stores: Path) -> None:
    part = tsds.StoreDataset(stores / "a.tsds").subset([3, 1])
    url = (stores / "c.tsds").absolute().as_uri()
    dataset = tsds.MixedDataset({part: 1, url: 1}, epoch_length=4)
    assert keys(dataset, range(7)) == ["a3", "a1", "c0", "c1", "c2", "c3", "c4"]
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert keys(again, range(7)) == keys(dataset, range(7)) and len(again.sampler()) == 4


# --- what cannot be mixed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stores_given", "options", "message"),
    [
        ([], {}, "`stores`: expected several stores"),
        ("a.tsds", {}, "`stores`: expected several stores"),
        ({"a": 1, "b": -1}, {}, "`weights`: expected 2 numbers, none negative"),
        ({"a": 0, "b": 0}, {}, "`weights`: expected 2 numbers"),
        ({"a": 1, "b": float("nan")}, {}, "`weights`: expected 2 numbers"),
        ({"a": 1, "b": 1}, {"epoch_length": 0}, "`epoch_length`: expected first, shortest, or a number"),
        ({"a": 0, "b": 1}, {}, "`epoch_length`: expected shortest or a number, with the share 0 of the first"),
        ("abc", {"weights": lambda epoch: [1, 1, 1]}, "`weights`: expected stores without shares, and a number"),
        ("abc", {"classes": ["ant", "bee"]}, r"`classes`: expected all classes of label, missing cow of b\.tsds"),
    ],
)
def test_what_is_refused(stores: Path, stores_given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tsds.OptionError, match=message):
        if stores_given in ([], "a.tsds"):
            tsds.MixedDataset(stores_given, **options)
        else:
            mixed(stores, stores_given, **options)


@pytest.mark.parametrize("epoch_length", ["first", "shortest", 5])
def test_a_store_without_samples_has_no_share(stores: Path, epoch_length: Any) -> None:
    whole = tsds.StoreDataset(stores / "a.tsds")
    with pytest.raises(tsds.OptionError, match="`weights`: expected 0 for each store without samples"):
        tsds.MixedDataset({whole: 0.5, whole.subset([]): 0.5}, epoch_length=epoch_length)
    given = tsds.MixedDataset([whole, whole.subset([])], weights=lambda epoch: [0.5, 0.5], epoch_length=np.int64(5))
    with pytest.raises(tsds.OptionError, match="`weights`: expected 0 for each store without samples"):
        list(tsds.DataLoader(given, shuffle=True))


def test_objects_that_differ(tmp_path: Path) -> None:
    for name, values in (
        ("a", {"labels": np.array([0])}),
        ("b", {}),
        ("one", {"keypoints": np.ones((1, 1, 2), np.float32)}),
        ("two", {"keypoints": np.ones((1, 2, 2), np.float32)}),
    ):
        with tsds.Writer(tmp_path / f"{name}.tsds", classes=("ant",)) as writer:
            writer.append("train", image=pixels("d", 0), boxes=np.array([[1, 1, 4, 4]], np.float32), **values)
    for names, message in (
        ("a b", r"^b\.tsds: expected objects with the values labels, as others have, found none\. Leave"),
        ("b one", r"^b\.tsds: expected objects with the values keypoints"),
        ("one two", r"^one\.tsds: expected objects with the keypoints 1,"),
    ):
        with pytest.raises(tsds.OptionError, match=message):
            tsds.MixedDataset([tmp_path / f"{name}.tsds" for name in names.split()])
        tsds.editing.merge_stores([tmp_path / f"{name}.tsds" for name in names.split()], tmp_path / f"{names}.tsds")


@pytest.mark.parametrize("encoding", ["raw", "source"])
def test_images_of_another_bit_depth(tmp_path: Path, encoding: Any) -> None:
    """A batch of 8 bits would keep the lower half of 16."""
    for dtype in (np.uint8, np.uint16):
        (folder := tmp_path / np.dtype(dtype).name).mkdir()
        Image.fromarray(np.full((6, 6), 200, dtype)).save(folder / "0.png")
        tsds.convert(folder, folder.with_suffix(".tsds"), encoding=encoding, workers=0)
    message = r"^uint16\.tsds: expected uint8 pixels in its images, as in uint8\.tsds, found uint16"
    with pytest.raises(tsds.OptionError, match=message):
        tsds.MixedDataset([tmp_path / "uint8.tsds", tmp_path / "uint16.tsds"])


def test_what_another_thread_has_replaced_is_counted(stores: Path) -> None:
    """Also where this one has gathered before."""
    dataset = tsds.MixedDataset([stores / "a.tsds", stores / "b.tsds"])
    dataset.gather([0])
    dataset.parts[0].replaced.append(5)
    assert dataset.replaced == [5] and tsds.DataLoader(dataset, 2).stats().replaced == 1


def test_fields_that_differ(stores: Path, tmp_path: Path) -> None:
    for name, count in (("d", 2), ("e", 3)):
        with tsds.Writer(tmp_path / f"{name}.tsds") as writer:
            writer.append("train", image=pixels("d", 0), score=np.zeros(count, np.float32))
    with pytest.raises(
        tsds.OptionError, match=r"^e\.tsds: expected score to be .*2.*, found .*3.*\. Leave .* `fields`"
    ):
        tsds.MixedDataset([tmp_path / "d.tsds", tmp_path / "e.tsds"])
    assert tsds.MixedDataset([tmp_path / "d.tsds", tmp_path / "e.tsds"], fields=["image"]).fields == ("image",)
    dataset = tsds.MixedDataset([stores / "a.tsds", tmp_path / "d.tsds"])
    assert dataset.fields == ("image",)
    with pytest.raises(tsds.OptionError, match="a StoreDataset, for `residency='device'`, found a MixedDataset"):
        tsds.DataLoader(dataset, 4, residency="device")
    with pytest.raises(tsds.OptionError, match="Mix subsets"):
        dataset.subset([0])
    assert not isinstance(dataset, tsds.StoreDataset)
    with pytest.raises(AttributeError, match="Ask the data sets in `parts`"):
        tsds.class_balanced_weights(mixed(stores).split)
