"""Labels of several classes at once: the kind `labels`, its conversion, loading, joining and editing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tensorstore_ds as tsds
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.format.kinds.labels import LabelsField

CLASSES = ("cat", "dog", "bird")
#: What applies to each sample; None: not known.
TAGS: tuple[tuple[str, ...] | None, ...] = (("cat",), ("dog", "cat"), (), ("bird", "dog"), None, ("cat",))


def image(value: int) -> NDArray[np.uint8]:
    return np.full((8, 8, 3), value, np.uint8)


def multi_hot(tags: Sequence[Sequence[str] | None], classes: Sequence[str]) -> NDArray[np.int8]:
    """By Python alone: 1 where a class is among the tags, -1 everywhere where there are no tags known."""
    rows = [[-1 if each is None else int(name in each) for name in classes] for each in tags]
    return np.array(rows, np.int8).reshape(len(tags), len(classes))


def tagged(path: Path, tags: Sequence[Sequence[str] | None] = TAGS, classes: Sequence[str] = CLASSES) -> Path:
    """A store of images with tags."""
    with tsds.Writer(path, classes=tuple(classes)) as writer:
        for i, each in enumerate(tags):
            writer.append("train", {"image": image(i), "labels": each})
    return path


def test_names_and_numbers_give_the_same_rows(tmp_path: Path) -> None:
    expected = multi_hot(TAGS, CLASSES)
    as_names: list[Any] = [{"image": image(i), "labels": each} for i, each in enumerate(TAGS)]
    as_numbers: list[Any] = [{"image": image(i), "labels": row} for i, row in enumerate(expected)]
    as_target: list[Any] = [(image(i), torch.from_numpy(row).float()) for i, row in enumerate(expected)]
    as_dict: list[Any] = [(image(i), {"labels": row.tolist()}) for i, row in enumerate(expected)]
    for i, samples in enumerate((as_names, as_numbers, as_target, as_dict)):
        tsds.convert(samples, tmp_path / f"{i}.tsds", classes=CLASSES)
        split = tsds.open(tmp_path / f"{i}.tsds")["train"]
        assert split.fields["labels"] == LabelsField.of(CLASSES)
        np.testing.assert_array_equal(split["labels"][:], expected)
        assert split.statistics["labels"] == {
            "class_counts": (expected == 1).sum(axis=0).tolist(),
            "unknown": (expected == -1).sum(axis=0).tolist(),
        }
        assert tsds.verify(tmp_path / f"{i}.tsds") == []


def test_the_class_names_of_a_data_set_are_taken(tmp_path: Path) -> None:
    class Tagged(list[Any]):
        classes = CLASSES

    tsds.convert(Tagged([{"image": image(0), "labels": [0, 1, 1]}]), tmp_path / "a.tsds")
    assert tsds.open(tmp_path / "a.tsds")["train"].fields["labels"].classes == CLASSES


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"image": image(0), "labels": ["emu"]}], "expected labels of the 3 classes, found emu"),
        ([{"image": image(0), "labels": [0, 1]}], r"expected labels that are 3 numbers, .*found \(2,\)"),
        ([{"image": image(0), "labels": [0, 1, 2]}], r"expected labels that are 3 numbers, .*found \[0, 1, 2\]"),
        ([{"image": image(0), "labels": ["cat"]}, {"image": image(1)}], "expected the fields of the first sample"),
    ],
)
def test_other_labels_are_errors(tmp_path: Path, samples: list[Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        tsds.convert(samples, tmp_path / "a.tsds", classes=CLASSES)


def test_names_need_classes(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"expected class names for the labels, found none\. Pass the names as"):
        tsds.convert([{"image": image(0), "labels": ["cat"]}], tmp_path / "a.tsds")


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_a_loader_gives_floats_with_nan_where_unknown(tmp_path: Path) -> None:
    dataset = tsds.StoreDataset(tagged(tmp_path / "a.tsds"), return_as="tuple")
    expected = multi_hot(TAGS, CLASSES).astype(np.float32)
    expected[expected < 0] = np.nan
    for zero_copy in (False, True):
        one = tsds.StoreDataset(tmp_path / "a.tsds", return_as="tuple", zero_copy=zero_copy)[3]
        assert [part.dtype for part in one] == [torch.uint8, torch.float32]
        np.testing.assert_array_equal(one[1].numpy(), expected[3])
    for residency in ("page-cache", "device"):
        device = "cpu" if residency == "device" else None
        loader = tsds.DataLoader(dataset, batch_size=6, shuffle=False, residency=residency, device=device)
        _, labels = next(iter(loader))
        assert labels.dtype == torch.float32
        np.testing.assert_array_equal(labels.numpy(), expected)
    loader = torch.utils.data.DataLoader(dataset, batch_size=6)
    np.testing.assert_array_equal(next(iter(loader))[1].numpy(), expected)


def joined(tags: Sequence[tuple[Sequence[str] | None, Sequence[str]]], classes: Sequence[str]) -> NDArray[np.int8]:
    """Rows of samples of data sets with classes of their own: what a data set has not is unknown."""
    rows = [[-1 if each is None or name not in own else int(name in each) for name in classes] for each, own in tags]
    return np.array(rows, np.int8)


def test_merged_and_mixed_stores_do_not_know_the_classes_of_others(tmp_path: Path) -> None:
    one, other = tagged(tmp_path / "a.tsds"), tagged(tmp_path / "b.tsds", [("emu",), ("dog", "emu")], ("dog", "emu"))
    every = [(each, CLASSES) for each in TAGS] + [(("emu",), ("dog", "emu")), (("dog", "emu"), ("dog", "emu"))]
    expected = joined(every, (*CLASSES, "emu"))
    summary = tsds.merge_stores([one, other], tmp_path / "c.tsds")
    assert summary.notes[:2] == (
        "adds the classes emu to labels of the 6 samples of a.tsds: unknown, stored as -1.",
        "adds the classes cat, bird to labels of the 2 samples of b.tsds: unknown, stored as -1.",
    )
    split = tsds.open(tmp_path / "c.tsds")["train"]
    assert split.fields["labels"].classes == (*CLASSES, "emu")
    np.testing.assert_array_equal(split["labels"][:], expected)
    assert split.statistics["labels"]["unknown"] == (expected == -1).sum(axis=0).tolist()
    assert tsds.verify(tmp_path / "c.tsds") == []
    mixed = tsds.MixedDataset([tsds.StoreDataset(one), tsds.StoreDataset(other)])
    found = torch.stack([mixed[i]["labels"] for i in range(len(mixed))])
    np.testing.assert_array_equal(found.nan_to_num(-1).numpy(), expected)


def test_relabelled_classes_are_united(tmp_path: Path) -> None:
    """One of several that applies is enough; if none does and one is unknown, the new one is unknown."""
    rows = [[1, 0, 0], [0, -1, 1], [0, 0, 1], [-1, 1, 0], [-1, -1, -1]]
    tsds.convert(
        [{"image": image(i), "labels": row} for i, row in enumerate(rows)], tmp_path / "a.tsds", classes=CLASSES
    )
    tsds.relabel_store(tmp_path / "a.tsds", tmp_path / "b.tsds", {"cat": "pet", "dog": "pet", "bird": "fowl"})
    split = tsds.open(tmp_path / "b.tsds")["train"]
    assert split.fields["labels"].classes == ("pet", "fowl")
    assert split["labels"][:].tolist() == [[1, 0], [-1, 1], [0, 1], [1, 0], [-1, -1]]
    tsds.relabel_store(tmp_path / "a.tsds", tmp_path / "c.tsds", {"cat": ""})
    assert tsds.open(tmp_path / "c.tsds")["train"]["labels"][:].tolist() == [row[1:] for row in rows]
    with pytest.raises(OptionError, match="expected classes that stay in labels, found none"):
        tsds.relabel_store(tmp_path / "a.tsds", tmp_path / "d.tsds", dict.fromkeys(CLASSES, ""))


def test_stores_are_compared_by_the_names_of_classes(tmp_path: Path) -> None:
    one = tagged(tmp_path / "a.tsds", [("cat",), ("dog",), ()])
    other = tagged(tmp_path / "b.tsds", [("cat",), ("cat",), ()], CLASSES[::-1])
    difference = tsds.compare_stores(one, other).splits["train"]
    assert {name: each.count for name, each in difference.fields.items()} == {"labels": 1}
