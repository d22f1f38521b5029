"""`StoreDataset`: samples and batches are what was stored, whoever asks."""

import pickle
import shutil

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import tensorstore_ds as tsds
from stores import Samples, class_folders, detections, png_bytes, store_of
from tensorstore_ds import ConvertOptions, convert
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.samples import Batch

SAMPLES = detections(11)
LABELLED = [
    {"image": np.full((4, 6, 3), i, np.uint8), "label": i % 3, "angle": np.array([i, -i], np.float32)}
    for i in range(20)
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("d") / "s.tsds", SAMPLES, ["ant", "bee"], shard_nbytes=1500).path


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("l") / "s.tsds", LABELLED, ["a", "b", "c"]).path


def test_a_sample_is_a_dict_of_tensors(path):
    dataset = StoreDataset(path)
    assert len(dataset) == 11
    assert dataset.fields == ("image", "objects")
    assert dataset.classes == ("ant", "bee")
    for i in (0, 3, 10, -1):
        sample = dataset[i]
        np.testing.assert_array_equal(sample["image"].permute(1, 2, 0), SAMPLES[i]["image"])
        np.testing.assert_allclose(sample["objects"]["boxes"], SAMPLES[i]["boxes"], rtol=1e-6)
        assert sample["objects"]["labels"].tolist() == list(SAMPLES[i]["labels"])
    with pytest.raises(IndexError, match="sample 11 is outside"):
        dataset[11]


def test_a_batch_is_a_sequence_of_samples_over_whole_columns(path):
    dataset = StoreDataset(path, fields=["image", "objects", "key", "size"])
    batch = dataset.gather([5, 2, 2, 9])
    assert isinstance(batch, Batch)
    assert len(batch) == 4
    assert batch.columns["image"].shape == (4, 3, 12, 10)
    assert batch.columns["image"].is_contiguous(memory_format=torch.channels_last)
    for sample, i in zip(batch, [5, 2, 2, 9], strict=True):
        np.testing.assert_array_equal(sample["image"].permute(1, 2, 0), SAMPLES[i]["image"])
        assert sample["key"] == f"train/{i:05d}"
        assert sample["size"].tolist() == [12, 10]
    assert [batch[-1]["key"], batch[-4]["key"]] == ["train/00009", "train/00005"]
    assert [s["key"] for s in batch[1:3]] == ["train/00002"] * 2
    for item in (4, -5):
        with pytest.raises(IndexError, match=f"sample {item} is outside of a batch of 4"):
            batch[item]


def test_parts_of_a_batch(path):
    whole = StoreDataset(path, fields=("image", "objects", "key")).gather(np.arange(11))
    parts = whole.parts([3, 5, 0, 3])
    assert [len(part) for part in parts] == [3, 5, 0, 3]
    assert [row for part in parts for row in part.rows] == list(range(11))
    assert parts[1].columns["image"].data_ptr() == whole.columns["image"][3:].data_ptr()  # views
    for sample, row in zip([sample for part in parts for sample in part], range(11), strict=True):
        np.testing.assert_array_equal(sample["image"].permute(1, 2, 0), SAMPLES[row]["image"])
        np.testing.assert_allclose(sample["objects"]["keypoints"], SAMPLES[row]["keypoints"], rtol=1e-6)
        assert sample["key"] == f"train/{row:05d}"
    assert whole.parts([11]) == [whole]


def test_tuples_as_torchvision_has_them(path, labelled):
    image, label, angle = StoreDataset(labelled, return_as="tuple", fields=["image", "label", "angle"])[7]
    assert image.shape == (3, 4, 6)
    assert int(label) == 1
    assert angle.tolist() == [7, -7]
    image, target = StoreDataset(path, return_as="tuple")[3]
    assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
    assert target["boxes"].canvas_size == (12, 10)
    assert target["labels"].dtype == torch.int64


def test_a_tuple_is_a_pair_whatever_is_added_to_the_store(path, labelled):
    """Neither a field of its own nor one of the same kind changes what a loop unpacks; `fields` names others."""
    images, labels = next(iter(tsds.DataLoader(StoreDataset(labelled, return_as="tuple"), 4)))
    assert images.shape == (4, 3, 4, 6) and labels.shape == (4,)
    mixed = tsds.MixedDataset([labelled, StoreDataset(labelled)], return_as="tuple")
    image, label = mixed[7]
    assert image.shape == (3, 4, 6) and int(label) == 1
    chosen = ["image", "angle"]
    for part in (labelled, StoreDataset(labelled, fields=chosen)):
        image, angle = tsds.MixedDataset([part], fields=chosen, return_as="tuple")[7]
        assert angle.tolist() == [7, -7]
    image, angle = tsds.MixedDataset([StoreDataset(labelled, fields=chosen)], return_as="tuple")[7]
    assert angle.tolist() == [7, -7]
    image, target = tsds.MixedDataset([path], return_as="tuple")[3]
    assert target.keys() >= {"boxes", "labels"}


def test_a_target_with_other_fields_has_one_form_in_samples_and_batches(path, tmp_path):
    store = tmp_path / "s.tsds"
    shutil.copytree(path, store)
    tsds.editing.add_fields(
        store, {"box": np.arange(4 * len(tsds.open(store)["train"]), dtype=np.float32).reshape(-1, 4)}
    )
    for transform in (None, lambda sample: sample):
        dataset = StoreDataset(store, return_as="tuple", fields=["image", "objects", "box"], transform=transform)
        assert dataset[1][1].keys() == {"objects", "box"}
        _, target = next(iter(tsds.DataLoader(dataset, 3, collate="packed")))
        assert target.keys() == {"objects", "box"} and target["box"].flatten().tolist() == list(range(12))
        assert torch.equal(target["objects"]["boxes"], torch.cat([dataset[i][1]["objects"]["boxes"] for i in range(3)]))


def test_a_tuple_has_the_label_after_fields_are_added(labelled, tmp_path):
    store = tmp_path / "s.tsds"
    shutil.copytree(labelled, store)
    rows = len(tsds.open(store)["train"])
    added = {"a_score": np.zeros(rows, np.float32), "a_class": np.ones(rows, np.int64)}
    tsds.editing.add_fields(store, added, classes={"a_class": ["x", "y"]})
    for dataset in (StoreDataset(store, return_as="tuple"), tsds.MixedDataset([store], return_as="tuple")):
        image, label = dataset[7]
        assert image.shape == (3, 4, 6) and int(label) == 1
    assert len(StoreDataset(store, return_as="tuple", fields=["image", "label", "a_score", "a_class"])[7]) == 4


@pytest.mark.filterwarnings("ignore:torchvision's flip")  # this store has no pairs: see test_paired_keypoints
def test_torchvisions_transforms_move_boxes_and_keypoints(path):
    dataset = StoreDataset(path, return_as="tuple", transform=lambda s: v2.RandomHorizontalFlip(p=1)(*s))
    image, target = dataset[3]
    np.testing.assert_array_equal(image.permute(1, 2, 0), SAMPLES[3]["image"][:, ::-1])
    x1, y1, x2, y2 = SAMPLES[3]["boxes"].T
    np.testing.assert_allclose(target["boxes"], np.stack([10 - x2, y1, 10 - x1, y2], 1), rtol=1e-5)
    moved = SAMPLES[3]["keypoints"] * [-1, 1] + [10, 0]
    np.testing.assert_allclose(target["keypoints"], moved, atol=1.01)  # torchvision takes points for pixel centers
    as_dict = StoreDataset(path, transform=v2.RandomHorizontalFlip(p=1))[3]
    np.testing.assert_allclose(as_dict["objects"]["boxes"], target["boxes"])


def test_no_tensor_aliases_the_map(path):
    dataset = StoreDataset(path)
    before = dataset[2]["image"].clone()
    for sample in (dataset[2], dataset.gather([2])[0]):
        sample["image"].zero_()
        sample["objects"]["boxes"].zero_()
    assert torch.equal(dataset[2]["image"], before)
    np.testing.assert_allclose(dataset[2]["objects"]["boxes"], SAMPLES[2]["boxes"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_zero_copy_aliases_the_map_when_asked_for(path):
    dataset = StoreDataset(path, zero_copy=True)
    image = dataset[2]["image"]
    np.testing.assert_array_equal(image.permute(1, 2, 0), SAMPLES[2]["image"])
    mapped = dataset.split["image"][2].__array_interface__["data"][0]
    assert image.data_ptr() == mapped


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_transforms_draw_the_same_with_zero_copy(path):
    copies, views = (StoreDataset(path, transform=with_noise, zero_copy=zero_copy) for zero_copy in (False, True))
    for epoch in (0, 3):
        for dataset in (copies, views):
            dataset.set_epoch(epoch)
        for row in (0, 7):
            assert torch.equal(views[row], copies[row])


def with_noise(sample, *, generator):
    return sample["image"] + torch.rand((), generator=generator)


def test_subset_and_filter(labelled):
    dataset = StoreDataset(labelled)
    rows = np.array([4, 0, 19])
    subset = dataset.subset(rows)
    rows[:] = 7
    assert [int(s["image"][0, 0, 0]) for s in (subset[0], subset[1], subset[-1])] == [4, 0, 19]
    assert [int(v) for v in subset.subset([2, 1]).gather([0, 1]).columns["image"][:, 0, 0, 0]] == [19, 0]
    twos = dataset.filter(lambda label: label == 2, "label")
    assert len(twos) == 6
    assert {int(s["label"]) for s in twos.gather(range(6))} == {2}
    few = twos.filter(lambda angle, label: (angle[:, 0] > 10) & (label == 2), "angle", "label")
    assert [int(few[i]["angle"][0]) for i in range(len(few))] == [11, 14, 17]
    for row in (20, -1):
        with pytest.raises(IndexError, match=f"found {row} to {row}"):
            dataset.subset([row])
    for mask in ([True, False], [[True] * len(dataset)], True):  # such as one of all rows, for a part of them
        with pytest.raises(IndexError, match=rf"expected a mask of shape \({len(dataset)},\), found"):
            dataset.subset(mask)
    with pytest.raises(ValueError, match=r"expected \(20,\) bool"):
        dataset.filter(lambda label: label, "label")
    assert len(dataset) == 20


def test_filter_by_objects(path):
    with_objects = StoreDataset(path).filter(lambda o: np.diff(o.offsets) > 1, "objects")
    assert with_objects.rows.tolist() == [2, 3, 6, 7, 10]


@pytest.mark.parametrize("is_meant", [True, False])
def test_a_store_that_was_opened_by_its_digest_and_replaced(tmp_path, is_meant):
    path = tmp_path / "a.tsds"
    images = np.zeros((3, 4, 5, 3), np.uint8)
    store = store_of(path, [{"image": image} for image in images[:2]])
    meant = tsds.open(path, sha256=store.sha256) if is_meant else store
    store_of(tmp_path / "b.tsds", [{"image": image} for image in images])
    path.rename(tmp_path / "old.tsds")
    (tmp_path / "b.tsds").rename(path)
    if is_meant:
        with pytest.raises(tsds.FormatError, match=f"expected the store {store.sha256}"):
            StoreDataset(meant)
    else:
        assert len(StoreDataset(meant)) == 3


def test_it_pickles_as_its_arguments(path):
    dataset = StoreDataset(path, return_as="tuple").subset([3, 4])
    dump = pickle.dumps(dataset)
    assert len(dump) < 1000
    again = pickle.loads(dump)  # noqa: S301
    assert torch.equal(again[1][0], dataset[1][0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fields": ["mask"]}, KeyError, "expected one of the fields image"),
        ({"fields": "image"}, tsds.OptionError, "`fields`: expected a list of names, found 'image'"),
        ({"split": "val"}, KeyError, "found 'val'"),
        ({"return_as": "list"}, ValueError, "`return_as`: expected one of dict, tuple, torchvision, found 'list'"),
    ],
)
def test_what_is_refused(path, arguments, error, message):
    with pytest.raises(error, match=message):
        StoreDataset(path, **arguments)
    for item in ("image", slice(0, 3), None, 1.5):
        with pytest.raises(TypeError, match=r"sample: expected a number, found .* use subset"):
            StoreDataset(path)[item]


def test_an_empty_split(tmp_path):
    samples = {"train": Samples(LABELLED[:2], ["a", "b", "c"]), "val": Samples([np.zeros(0, np.uint8)])}
    source = {"train": samples["train"]}
    convert(source, tmp_path / "s.tsds", ConvertOptions(workers=0, split_into={"train": 1.0, "val": 0.0}))
    dataset = StoreDataset(tmp_path / "s.tsds", "val")
    assert len(dataset) == 0
    assert dataset.gather([]).columns["image"].shape == (0, 3, 4, 6)


# --- as other loaders and people use it ---------------------------------------------------------------------------


def image_alone(sample):
    return sample["image"].as_subclass(torch.Tensor)


def test_an_opened_store_that_has_grown_since(tmp_path):
    folder = class_folders(tmp_path / "src")
    convert(folder, tmp_path / "s.tsds", ConvertOptions(workers=0))
    opened = tsds.open(tmp_path / "s.tsds")
    (folder / "train" / "bee" / "new.png").write_bytes(png_bytes(np.zeros((6, 5), np.uint8)))
    tsds.append(tmp_path / "s.tsds", folder, workers=0)
    assert (len(opened["train"]), len(StoreDataset(opened))) == (8, 9)


def test_what_is_printed_of_it(labelled):
    assert repr(StoreDataset(labelled).subset([4, 0])) == (
        f"<StoreDataset {str(labelled)!r} 'train', 2 samples of image, label, angle>"
    )


def test_bytes_of_a_row(tmp_path, labelled):
    dataset = StoreDataset(labelled)
    assert (dataset.nbytes, dataset.row_nbytes) == (20 * (72 + 8 + 8), 72 + 8 + 8)
    assert StoreDataset(store_of(tmp_path / "s.tsds", LABELLED[:1], ["a", "b", "c"])).row_nbytes == 72 + 8 + 8


def test_encoded_images_of_many_sizes_are_always_a_list(tmp_path):
    """Also in a batch whose images happen to have one size."""
    folder = tmp_path / "src"
    folder.mkdir()
    for i, size in enumerate([(4, 9), (8, 3), (4, 9), (4, 9)]):
        (folder / f"{i}.png").write_bytes(png_bytes(np.full(size, i, np.uint8)))
    convert(folder, tmp_path / "s.tsds", ConvertOptions(encoding="source", workers=0))
    (first, second) = tsds.DataLoader(StoreDataset(tmp_path / "s.tsds"), 2)
    assert [tuple(image.shape) for image in first["image"]] == [(1, 4, 9), (1, 8, 3)]
    assert isinstance(second["image"], list) and len(second["image"]) == 2


@pytest.mark.parametrize("transform", [None, image_alone])
def test_gray_among_color_becomes_rgb(tmp_path, transform):
    folder = tmp_path / "src"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.png").write_bytes(png_bytes(np.full((4, 9) if i == 1 else (4, 9, 3), 40 * i, np.uint8)))
    convert(folder, tmp_path / "s.tsds", ConvertOptions(encoding="source", workers=0))
    batch = next(iter(tsds.DataLoader(StoreDataset(tmp_path / "s.tsds", transform=transform), 3)))
    images = batch["image"] if transform is None else batch
    assert images.shape == (3, 3, 4, 9) and images[1].unique().tolist() == [40]


def test_a_changed_data_set_does_not_open_the_store_again(labelled, monkeypatch):
    whole = StoreDataset(labelled)
    monkeypatch.setattr("tensorstore_ds.loading.dataset.open_store", None)
    some = whole.subset([2, 0]).with_decode(tsds.Resize(8))
    assert some.split is not whole.split  # each advises the system for itself
    assert (some[0]["image"] == 2).all() and (some[1]["image"] == 0).all()
