"""Labels of several classes at once: the kind `labels`, its conversion, loading, joining and editing."""

from __future__ import annotations

import csv
import re
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from small_stores import tsds as command
from tensorstore_ds.annex.editing.edit import _strata
from tensorstore_ds.annex.measuring.runner import fields_of
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.format.kinds.labels import LabelsField

CLASSES = ("cat", "dog", "bird")
#: What applies to each sample; None: not known.
TAGS: tuple[tuple[str, ...] | None, ...] = (("cat",), ("dog", "cat"), (), ("bird", "dog"), None, ("cat",))


def image(value: int) -> NDArray[np.uint8]:
    return np.full((8, 8, 3), value % 256, np.uint8)


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
        tsds.convert(samples, tmp_path / f"{i}.tsds", classes=CLASSES, workers=0)
        split = tsds.open(tmp_path / f"{i}.tsds")["train"]
        assert split.fields["labels"] == LabelsField.of(CLASSES)
        np.testing.assert_array_equal(split["labels"][:], expected)
        assert split.statistics["labels"] == {
            "class_counts": (expected == 1).sum(axis=0).tolist(),
            "unknown": (expected == -1).sum(axis=0).tolist(),
        }
        assert tsds.verify(tmp_path / f"{i}.tsds") == []


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"image": image(0), "labels": ["emu"]}], r"expected labels of the 3 classes .*, found 'emu'"),
        ([{"image": image(0), "labels": [0, 1]}], r"expected labels that are 3 numbers, .*found \(2,\)"),
        ([{"image": image(0), "labels": [0, 1, 2]}], r"expected labels that are 3 numbers, .*found \[0, 1, 2\]"),
        ([{"image": image(0), "labels": ["cat"]}, {"image": image(1)}], "expected the fields of the first sample"),
    ],
)
def test_other_labels_are_errors(tmp_path: Path, samples: list[Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        tsds.convert(samples, tmp_path / "a.tsds", classes=CLASSES, workers=0)


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
    summary = tsds.editing.merge_stores([one, other], tmp_path / "c.tsds")
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
    samples = [{"image": image(i), "labels": row} for i, row in enumerate(rows)]
    tsds.convert(samples, tmp_path / "a.tsds", classes=CLASSES, workers=0)
    tsds.editing.relabel_store(tmp_path / "a.tsds", tmp_path / "b.tsds", {"cat": "pet", "dog": "pet", "bird": "fowl"})
    split = tsds.open(tmp_path / "b.tsds")["train"]
    assert split.fields["labels"].classes == ("pet", "fowl")
    assert split["labels"][:].tolist() == [[1, 0], [-1, 1], [0, 1], [1, 0], [-1, -1]]
    tsds.editing.relabel_store(tmp_path / "a.tsds", tmp_path / "c.tsds", {"cat": ""})
    assert tsds.open(tmp_path / "c.tsds")["train"]["labels"][:].tolist() == [row[1:] for row in rows]
    with pytest.raises(OptionError, match="expected classes that stay in labels, found none"):
        tsds.editing.relabel_store(tmp_path / "a.tsds", tmp_path / "d.tsds", dict.fromkeys(CLASSES, ""))


def test_stores_are_compared_by_the_names_of_classes(tmp_path: Path) -> None:
    one = tagged(tmp_path / "a.tsds", [("cat",), ("dog",), ()])
    other = tagged(tmp_path / "b.tsds", [("cat",), ("cat",), ()], CLASSES[::-1])
    difference = tsds.editing.compare_stores(one, other).splits["train"]
    assert {name: each.count for name, each in difference.fields.items()} == {"labels": 1}


# --- conditions, weights and folds -------------------------------------------------------------------------------


def random_tags(count: int, classes: Sequence[str], seed: int = 0) -> list[tuple[str, ...]]:
    """Tags of some samples: the first class is common, the last one rare."""
    rng = np.random.default_rng(seed)
    shares = np.linspace(0.6, 0.05, len(classes))
    return [tuple(c for c, share in zip(classes, shares, strict=True) if rng.random() < share) for _ in range(count)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("'cat' in labels", [0, 1, 5]),
        ("'cat' in labels and not 'dog' in labels", [0, 5]),
        ("'dog' not in labels", [0, 2, 4, 5]),
    ],
)
def test_samples_are_filtered_by_their_labels(tmp_path: Path, where: str, expected: list[int]) -> None:
    tsds.editing.filter_store(tagged(tmp_path / "a.tsds"), tmp_path / "b.tsds", where)
    found = tsds.open(tmp_path / "b.tsds")["train"]
    np.testing.assert_array_equal(found["labels"][:], multi_hot(TAGS, CLASSES)[expected])


def test_weights_draw_a_class_and_then_one_of_its_samples(tmp_path: Path) -> None:
    split = tsds.open(tagged(tmp_path / "a.tsds"))["train"]
    members = {name: [i for i, each in enumerate(TAGS) if each is not None and name in each] for name in CLASSES}
    members["none"] = [2]  # of sample 4 nothing is known
    expected = np.zeros(len(TAGS))
    for rows in members.values():
        expected[rows] += 1 / len(rows)
    np.testing.assert_allclose(tsds.class_balanced_weights(split, field="labels"), expected)
    effective = np.zeros(len(TAGS))
    for rows in members.values():
        effective[rows] += (1 - 0.9) / (1 - 0.9 ** len(rows))
    found = tsds.class_balanced_weights(split, field="labels", method="effective", beta=0.9)
    np.testing.assert_allclose(found, effective)
    some = tsds.class_balanced_weights(split, field="labels", rows=[0, 1, 3])
    np.testing.assert_allclose(some, [1 / 2, 1 / 2 + 1 / 2, 1 / 2 + 1])
    with pytest.raises(OptionError, match=r"expected a field .label. of kind label or labels.*Use `field=.labels.`"):
        tsds.class_balanced_weights(split)


def test_repeat_factors_are_those_of_objects_of_the_same_classes(tmp_path: Path) -> None:
    classes = tuple("abcde")
    tags = random_tags(200, classes)
    split = tsds.open(tagged(tmp_path / "a.tsds", tags, classes))["train"]
    boxes = [
        {"image": image(0), "boxes": [[0, 0, 4, 4]] * len(each), "labels": [classes.index(c) for c in each]}
        for each in tags
    ]
    tsds.convert(boxes, tmp_path / "b.tsds", classes=classes, workers=0)
    other = tsds.open(tmp_path / "b.tsds")["train"]
    for method in ("image", "instance"):
        found = tsds.loading.repeat_factors(split, field="labels", method=method, threshold=0.3)
        np.testing.assert_allclose(found, tsds.loading.repeat_factors(other, method=method, threshold=0.3))
        assert found.max() > 1


def test_folds_have_equal_shares_of_each_class(tmp_path: Path) -> None:
    classes = tuple("abcde")
    tags = random_tags(500, classes)
    path = tagged(tmp_path / "a.tsds", tags, classes)
    hot = multi_hot(tags, classes)
    made = tsds.folds(path, 5, stratify="labels")
    counts = np.array([hot[fold.val].sum(axis=0) for fold in made])
    assert (np.abs(counts - hot.sum(axis=0) / 5) <= np.maximum(1, 0.03 * hot.sum(axis=0) / 5)).all(), counts
    assert sorted(np.concatenate([fold.val for fold in made]).tolist()) == list(range(500))


def test_a_divided_store_has_the_rare_classes_in_all_parts(tmp_path: Path) -> None:
    classes = tuple("abcde")
    tags = random_tags(500, classes)
    path = tagged(tmp_path / "a.tsds", tags, classes)
    tsds.editing.split_store(path, tmp_path / "b.tsds", {"train": 0.8, "val": 0.2})
    divided = tsds.open(tmp_path / "b.tsds")
    rarest = multi_hot(tags, classes)[:, -1].sum()
    assert abs(int((divided["val"]["labels"][:][:, -1] == 1).sum()) - 0.2 * rarest) <= 1
    tsds.editing.sample_store(path, tmp_path / "c.tsds", 3)
    sampled = tsds.open(tmp_path / "c.tsds")["train"]["labels"][:]
    assert (sampled.sum(axis=0) >= 3).all() and (sampled.sum(axis=1) == 0).sum() == 3 and len(sampled) <= 18


def test_many_samples_of_many_classes_are_weighted_and_divided_by_pieces(tmp_path: Path) -> None:
    """As floating-point numbers, or counts, all labels would take 8 bytes each, 24 MB."""
    rows, classes = 20_000, tuple(f"c{i}" for i in range(150))
    hot = (np.random.default_rng(0).random((rows, 150)) < np.linspace(0.001, 0.02, 150)).astype(np.int8)
    hot[::7] = 0
    tsds.convert([np.zeros((1, 1), np.uint8)] * rows, tmp_path / "a.tsds", workers=0)
    tsds.editing.add_fields(tmp_path / "a.tsds", {"labels": hot}, classes={"labels": classes})
    store = tsds.open(tmp_path / "a.tsds")
    np.testing.assert_array_equal(store["train"]["labels"][:], hot)  # opened and
    weigh = tsds.class_balanced_weights  # imported before memory is counted
    tracemalloc.start()
    weights = weigh(store["train"], field="labels")
    peaks = [tracemalloc.get_traced_memory()[1]]
    tracemalloc.reset_peak()
    strata = _strata(store, ["train"])
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert max(peaks) < 15 * 10**6, peaks
    counts = hot.sum(axis=0)
    none = ~hot.any(axis=1)
    np.testing.assert_allclose(weights, (hot / counts).sum(axis=1) + none / none.sum())
    rarest = [min(np.flatnonzero(row), key=lambda c: counts[c], default=150) for row in hot]
    np.testing.assert_array_equal(strata, rarest)


# --- mixing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", [tsds.transforms.Mixup, tsds.transforms.CutMix])
def test_mixed_labels_are_those_of_both_images_by_their_shares(mixing: Any) -> None:
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.choice([0.0, 1.0, np.nan], (16, 4), p=[0.5, 0.4, 0.1])).float()
    transform = mixing(p=0.5, seed=3)
    values = torch.arange(16.0)[:, None, None, None].expand(-1, 3, 32, 32).contiguous()
    for batch in ({"image": values, "labels": labels}, (values, labels)):
        mixed = transform(batch)
        images, found = (mixed["image"], mixed["labels"]) if isinstance(mixed, dict) else mixed
        for image_of, row in zip(images, found, strict=True):
            pixels, counts = image_of[0].unique(return_counts=True)
            if mixing is tsds.transforms.CutMix:
                shares = {int(pixel): float(count) / 1024 for pixel, count in zip(pixels, counts, strict=True)}
                expected = sum(labels[other] * share for other, share in shares.items())
                np.testing.assert_allclose(row.numpy(), expected.numpy(), atol=1e-6)
    untouched = [i for i in range(16) if (images[i] == i).all()]
    assert untouched
    np.testing.assert_array_equal(found[untouched].numpy(), labels[untouched].numpy())


# --- all that shows, adds and exports ----------------------------------------------------------------------------


def test_labels_are_added_to_a_store(tmp_path: Path) -> None:
    path = tmp_path / "a.tsds"
    tsds.convert([{"image": image(i)} for i in range(len(TAGS))], path, workers=0)
    hot = multi_hot(TAGS, CLASSES)
    tsds.editing.add_fields(path, {"tags": list(TAGS), "flags": hot}, classes={"tags": CLASSES, "flags": CLASSES})
    split = tsds.open(path)["train"]
    for name in ("tags", "flags"):
        assert split.fields[name] == LabelsField.of(CLASSES)
        np.testing.assert_array_equal(split[name][:], hot)
        assert split.class_counts[name] == dict(zip(CLASSES, (hot == 1).sum(axis=0).tolist(), strict=True))
    for values, message in (([["emu"]] * 6, "found 'emu'"), (2 * hot, "expected 1, 0 or -1 for each class, found")):
        with pytest.raises(OptionError, match=message):
            tsds.editing.add_fields(path, {"more": values}, classes={"more": CLASSES})


def test_counts_and_captions_are_shown(tmp_path: Path) -> None:
    path = tagged(tmp_path / "a.tsds")
    said = command("stats", path).stdout
    assert "classes of labels, by samples" in said and "3 of 18 are unknown" in said
    assert re.search(r"0\s+cat\s+3\s+50\.0 %", said) and re.search(r"2\s+bird\s+1\s+16\.7 %", said)
    assert re.search(r"0\s+cat\s+3", command("info", path).stdout)
    assert command("preview", path, "--out", tmp_path / "sheet.png").exit_code == 0
    findings = tsds.check_store(path, tsds.checking.CheckOptions(min_class=2))
    assert [(each.field, each.name, each.count) for each in findings.classes] == [("labels", "bird", 1)]
    assert command("verify", path).exit_code == 0


def test_a_csv_file_has_a_column_for_each_class(tmp_path: Path) -> None:
    path = tagged(tmp_path / "a.tsds")
    summary = tsds.export(path, tmp_path / "out", "csv")
    assert summary.left_out == {} and summary.files == len(TAGS) + 1
    with (tmp_path / "out/labels.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["path", "split", *CLASSES]
    assert [[int(cell) for cell in row[2:]] for row in rows] == multi_hot(TAGS, CLASSES).tolist()
    for i, (name, split, *_) in enumerate(rows):
        assert split == "train"
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "out" / name)), image(i))
    tsds.convert(tmp_path / "out", tmp_path / "b.tsds", workers=0)
    assert is_like(path, tmp_path / "b.tsds")


def is_like(one: Path, other: Path) -> bool:
    """Whether two stores differ in keys alone."""
    found = tsds.editing.compare_stores(one, other, by="row")
    return not found.fields and all(not each.fields and not each.only_first.count for each in found.splits.values())


def test_one_label_a_line_and_classes_that_cannot_be_columns(tmp_path: Path) -> None:
    samples = [(image(i), label) for i, label in enumerate(["b", "a", None, "b"])]
    tsds.convert(samples, tmp_path / "a.tsds", classes=("a", "b"), workers=0)
    tsds.export(tmp_path / "a.tsds", tmp_path / "out", "csv")
    with (tmp_path / "out/labels.csv").open(newline="") as file:
        assert [row[2] for row in csv.reader(file)] == ["label", "b", "a", "", "b"]
    tsds.convert(tmp_path / "out", tmp_path / "b.tsds", workers=0)
    assert is_like(tmp_path / "a.tsds", tmp_path / "b.tsds")
    with pytest.raises(OptionError, match="expected classes that are not called path or split, found 'split'"):
        tsds.export(tagged(tmp_path / "c.tsds", [("split",)], ("split", "b")), tmp_path / "other", "csv")
    with pytest.raises(OptionError, match=r"no spreadsheet runs as a formula, found '=1\+1'"):
        tsds.export(tagged(tmp_path / "d.tsds", [("=1+1",)], ("=1+1", "b")), tmp_path / "other", "csv")


def test_parquet_has_lists_of_classes(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    summary = tsds.export(tagged(tmp_path / "a.tsds"), tmp_path / "out", "parquet")
    assert summary.left_out == {}
    rows = parquet.read_table(tmp_path / "out/train-00000.parquet").to_pylist()
    expected = [None if each is None else sorted(map(CLASSES.index, each)) for each in TAGS]
    assert [row["labels"] for row in rows] == expected


def test_others_leave_labels_out_and_say_so(tmp_path: Path) -> None:
    path = tagged(tmp_path / "a.tsds")
    assert tsds.export(path, tmp_path / "out", "folders").left_out == {"labels": len(TAGS)}
    tsds.export(path, tmp_path / "npy", "npy")
    np.testing.assert_array_equal(np.load(tmp_path / "npy/train/labels.npy"), multi_hot(TAGS, CLASSES))
    assert (tmp_path / "npy/classes.txt").read_text().split() == list(CLASSES)


def test_a_source_whose_tags_grew_is_appended(tmp_path: Path) -> None:
    """A class that the store or the source has not met applies to none of its samples."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(4):
        Image.fromarray(image(i)).save(folder / f"{i}.png")
    lines = ["path,labels", "0.png,cat|dog", "1.png,dog"]
    (folder / "labels.csv").write_text("\n".join(lines))
    tsds.convert(folder / "labels.csv", tmp_path / "a.tsds", workers=0)
    (folder / "labels.csv").write_text("\n".join([*lines, "2.png,emu|dog", "3.png,"]))
    summary = tsds.append(tmp_path / "a.tsds", folder / "labels.csv", workers=0)
    assert summary.added.keys == ["2.png", "3.png"]
    split = tsds.open(tmp_path / "a.tsds")["train"]
    assert split.fields["labels"].classes == ("cat", "dog", "emu")
    assert split["labels"][:].tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert split.statistics["labels"]["class_counts"] == [1, 3, 1]
    assert tsds.verify(tmp_path / "a.tsds") == []
    (folder / "labels.csv").write_text("\n".join(["path,labels", "0.png,emu|cat", "1.png,dog"]))
    assert tsds.update(tmp_path / "a.tsds", folder / "labels.csv", workers=0).updated_fields == {"labels": 1}
    assert tsds.open(tmp_path / "a.tsds")["train"]["labels"][:].tolist()[:2] == [[1, 0, 1], [0, 1, 0]]


def test_the_command_prints_what_it_has_trained(tmp_path: Path) -> None:
    path = tagged(tmp_path / "a.tsds")
    words = ("--epochs", 1, "--eval-split", "train", "--model", "seed", "--image-size", 16, "--device", "cpu")
    done = command("train", path, "--out", tmp_path / "run", *words)
    assert done.exit_code == 0, done.stderr
    assert "best map " in done.stdout and "average precision: " in done.stdout


def test_bench_loads_the_images_and_says_what_it_does_not_train(tmp_path: Path) -> None:
    fields, reason = fields_of(tsds.open(tagged(tmp_path / "a.tsds"))["train"])
    assert fields == {"image": "image"} and "training needs one label per image" in reason


def tagged_folder(folder: Path, *lines: str) -> Path:
    """Images 0.png, 1.png and so on of 16 pixels, and a list of their tags."""
    folder.mkdir()
    for i in range(len(lines)):
        Image.fromarray(np.full((16, 16, 3), 40 * i + len(folder.name), np.uint8)).save(folder / f"{i}.png")
    (folder / "labels.csv").write_text("\n".join(["path,labels", *(f"{i}.png,{line}" for i, line in enumerate(lines))]))
    return folder


def test_that_split_into_does_not_stratify_several_labels_is_said(tmp_path: Path) -> None:
    folder = tagged_folder(tmp_path / "one", *(["cat|dog", "dog"] * 2))
    note = "note: --split-into does not stratify samples with several labels. tsds split does"
    done = command("convert", folder, tmp_path / "a.tsds", "--split-into", "train=0.5,val=0.5", "--workers", 0)
    assert done.exit_code == 0 and note in done.stdout + done.stderr
    assert note not in command("convert", folder, tmp_path / "b.tsds", "--workers", 0).output


def test_several_sources_tiles_and_erased_samples(tmp_path: Path) -> None:
    one = tagged_folder(tmp_path / "one", "cat|dog", "dog")
    other = tagged_folder(tmp_path / "other", "emu|dog", "")
    tsds.convert(tsds.Sources(one, other), tmp_path / "a.tsds", workers=0)
    every = [(("cat", "dog"), ("cat", "dog")), (("dog",), ("cat", "dog"))]
    every += [(("emu", "dog"), ("dog", "emu")), ((), ("dog", "emu"))]
    expected = joined(every, ("cat", "dog", "emu"))
    np.testing.assert_array_equal(tsds.open(tmp_path / "a.tsds")["train"]["labels"][:], expected)
    tsds.convert(
        tsds.Sources(one, other), tmp_path / "b.tsds", workers=0, class_map={"dog": "pet", "cat": "pet", "emu": ""}
    )
    assert tsds.open(tmp_path / "b.tsds")["train"]["labels"][:].tolist() == [[1], [1], [1], [0]]
    tsds.convert(one, tmp_path / "tiles.tsds", cut=tsds.conversion.ImageTiles(8), workers=0)
    tiles = tsds.open(tmp_path / "tiles.tsds")["train"]
    rows = {"0.png": [1, 1], "1.png": [0, 1]}
    assert all(tiles["labels"][i].tolist() == rows[tiles.key(i).partition("#")[0]] for i in range(len(tiles)))
    tsds.erase(tmp_path / "a.tsds", "key == 'one/0.png'")
    split = tsds.open(tmp_path / "a.tsds")["train"]
    np.testing.assert_array_equal(split["labels"][:], expected[1:])
    assert split.statistics["labels"]["class_counts"] == (expected[1:] == 1).sum(axis=0).tolist()
    assert tsds.verify(tmp_path / "a.tsds") == []
