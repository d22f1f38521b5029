"""`StoreDataset` and `Split` as ImageFolder, CocoDetection, and plain sources of random access have it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data
from torchvision import datasets, models, transforms, tv_tensors
from torchvision.transforms import v2

import tensorstore_ds as tsds
from stores import class_folders, detections, store_of

ROWS = 11


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("folders") / "src")


@pytest.fixture(scope="module")
def classified(folders: Path) -> Path:
    tsds.convert(folders, folders.parent / "s.tsds", tsds.ConvertOptions(workers=0))
    return folders.parent / "s.tsds"


@pytest.fixture(scope="module")
def detected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(tmp_path_factory.mktemp("detected") / "s.tsds", detections(ROWS), ["ant", "bee"]).path


# --- ImageFolder --------------------------------------------------------------------------------------------------


def test_what_image_folder_has(folders: Path, classified: Path) -> None:
    theirs, ours = datasets.ImageFolder(folders / "train"), tsds.StoreDataset(classified)
    assert ours.class_to_idx == theirs.class_to_idx
    assert list(ours.classes) == theirs.classes
    assert ours.targets == theirs.targets
    expected = [(Path(path).relative_to(folders).as_posix(), index) for path, index in theirs.samples]
    assert ours.samples == ours.imgs == expected


def test_of_a_subset(classified: Path) -> None:
    dataset = tsds.StoreDataset(classified)
    subset = dataset.subset([4, 1])
    assert subset.targets == [dataset.targets[4], dataset.targets[1]]
    assert subset.samples == [dataset.samples[4], dataset.samples[1]]


def test_without_labels(detected: Path) -> None:
    dataset = tsds.StoreDataset(detected)
    with pytest.raises(AttributeError, match="expected a field of labels, found none"):
        _ = dataset.targets
    assert not hasattr(dataset, "targets") and dataset.class_to_idx == {"ant": 0, "bee": 1}


@pytest.mark.parametrize("workers", [0, 1])
def test_transforms_that_want_pil_images(folders: Path, classified: Path, workers: int) -> None:
    steps = transforms.Compose([transforms.RandomHorizontalFlip(p=1), transforms.PILToTensor()])
    dataset = tsds.StoreDataset(classified, return_as="tuple", as_pil=True, transform=steps, transform_of="image")
    theirs = datasets.ImageFolder(folders / "train", loader=Image.open, transform=steps)
    for loader in (tsds.DataLoader, data.DataLoader):
        batches = list(loader(dataset, 4, num_workers=workers))
        for batch, expected in zip(batches, data.DataLoader(theirs, 4), strict=True):
            assert torch.equal(batch[0], expected[0]) and torch.equal(batch[1], expected[1])


def v1_transforms() -> dict[str, Any]:
    """Of single images, as scripts with ImageFolder have them; each gives the same on every call."""
    crop = [transforms.Resize(20), transforms.CenterCrop(16)]
    normalize = transforms.Normalize([0.4], [0.2])
    preset = models.ResNet18_Weights.DEFAULT.transforms
    return {
        "ToTensor": transforms.ToTensor(),
        "Compose": transforms.Compose([*crop, transforms.ToTensor(), normalize]),
        "with a function": transforms.Compose([lambda image: image.rotate(90), transforms.ToTensor()]),
        "nested": transforms.Compose([transforms.RandomApply([transforms.AutoAugment()], 0), transforms.ToTensor()]),
        "functional": transforms.functional.to_tensor,
        "preset of weights": preset(crop_size=16, resize_size=20, mean=(0.4,), std=(0.2,)),
    }


@pytest.mark.parametrize("given", [{}, {"transform_of": "image"}, {"as_pil": True}, {"return_as": "dict"}])
@pytest.mark.parametrize("name", v1_transforms())
def test_transforms_of_single_images_are_recognized(folders: Path, classified: Path, name: str, given: Any) -> None:
    transform = v1_transforms()[name]
    dataset = tsds.StoreDataset(classified, **{"return_as": "tuple", **given}, transform=transform)
    theirs = datasets.ImageFolder(folders / "train", loader=Image.open, transform=transform)
    mixed = tsds.MixedDataset([classified], transform=transform, return_as="tuple")
    for row, (image, label) in enumerate(theirs):
        ours = dataset[row]
        own_image, own_label = ours.values() if isinstance(ours, dict) else ours
        assert torch.equal(own_image, image) and own_label == label
        assert torch.equal(mixed[row][0], image)


def test_transforms_of_single_images_on_tensors(classified: Path) -> None:
    """Where nothing needs a PIL image there is none; `v2` and functions of a user get the whole sample as before."""
    plain = tsds.StoreDataset(classified, return_as="tuple")
    flips = [transforms.RandomHorizontalFlip(p=1), transforms.RandomVerticalFlip(p=1)]
    for transform in (transforms.Compose(flips), torch.nn.Sequential(*flips)):
        dataset = tsds.StoreDataset(classified, return_as="tuple", transform=transform)
        assert torch.equal(dataset[3][0], plain[3][0].flip(1, 2))
    both = v2.Compose([v2.RandomHorizontalFlip(1), v2.ToDtype(torch.float32)])
    assert torch.equal(
        tsds.StoreDataset(classified, return_as="tuple", transform=both)[3][0], plain[3][0].flip(2).float()
    )
    sizes = transforms.Compose([transforms.Lambda(len), lambda count: count])
    assert tsds.StoreDataset(classified, return_as="tuple", transform=sizes)[3] == 2
    dataset.transform = len
    assert dataset[3] == 2


def test_transforms_of_single_images_do_not_leave_boxes_behind(detected: Path) -> None:
    flip = transforms.Compose([transforms.RandomHorizontalFlip(p=1)])
    message = "such as torchvision.transforms.v2, found torchvision's RandomHorizontalFlip, which takes images: pass"
    with pytest.raises(tsds.OptionError, match=re.escape(message)):
        tsds.StoreDataset(detected, transform=flip)
    dataset = tsds.StoreDataset(detected, transform=flip, transform_of="image")
    assert len(dataset[3]["objects"]["boxes"]) == 3
    assert len(tsds.StoreDataset(detected, transform=flip, fields=["image"])[3]) == 1
    dataset = tsds.StoreDataset(detected)
    with pytest.raises(tsds.OptionError, match="`transform`: expected one of samples"):
        dataset.transform = flip


@pytest.mark.parametrize("return_as", ["dict", "tuple"])
def test_a_transform_that_cannot_take_a_sample_says_what_it_got(classified: Path, return_as: Any) -> None:
    for wants_pil in (lambda image: image.convert("L"), lambda image: np.asarray(image, np.float32).mean()):
        notes = []
        for given in ({}, {"transform_of": "image"}):
            dataset = tsds.StoreDataset(classified, return_as=return_as, transform=wants_pil, **given)
            try:
                dataset[0]
            except (TypeError, AttributeError, ValueError) as error:
                notes.append(" ".join(error.__notes__))
        assert return_as in notes[0] and '`transform_of="image"`' in notes[0] and "`as_pil=True`" in notes[0]
        assert all("an image as a tensor. Pass `as_pil=True`" in note for note in notes[1:])
        fixed = tsds.StoreDataset(classified, transform=wants_pil, transform_of="image", as_pil=True)
        assert fixed[0]


def plus_noise(image: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
    return image + torch.rand((), generator=generator)


@pytest.mark.parametrize("return_as", ["dict", "tuple"])
def test_a_transform_of_the_image_may_be_set_later(classified: Path, return_as: Any) -> None:
    plain = tsds.StoreDataset(classified, return_as=return_as)
    dataset = tsds.StoreDataset(classified, return_as=return_as, transform_of="image")
    dataset.transform = plus_noise  # as timm does
    noisy = []
    for row in range(len(plain)):
        (image, label), (expected, its_label) = (
            sample.values() if return_as == "dict" else sample for sample in (dataset[row], plain[row])
        )
        assert torch.equal(dataset[row]["image" if return_as == "dict" else 0], image)  # it got a generator
        assert torch.equal(image.floor(), expected) and label == its_label
        noisy.append(float((image - expected).max()))
    assert len(set(noisy)) == len(plain)


def test_a_transform_that_is_set_later_comes_before_that_of_batches(classified: Path) -> None:
    dataset = tsds.StoreDataset(classified, transform_of="image")
    loader = tsds.DataLoader(dataset, 4, batch_transform=tsds.transforms.ToFloat())
    assert max(float(batch["image"].max()) for batch in loader) <= 1
    dataset.transform = torch.bitwise_not
    plain = [sample["image"] for sample in tsds.StoreDataset(classified)]
    for _ in range(2):
        found = torch.cat([batch["image"] for batch in loader])
        assert torch.allclose(found, (255 - torch.stack(plain)) / 255)


def test_what_a_transform_may_be_of(classified: Path, detected: Path) -> None:
    image, target = tsds.StoreDataset(
        detected, return_as="torchvision", transform=lambda image: image * 0, transform_of="image"
    )[3]
    assert not image.any() and len(target["boxes"]) == 3
    with pytest.raises(tsds.OptionError, match="`transform_of`: expected one of sample, image, found 'pixels'"):
        tsds.StoreDataset(classified, transform_of="pixels")  # type: ignore[arg-type]
    with pytest.raises(tsds.OptionError, match="`transform_of=image`: expected a field image, found label"):
        tsds.StoreDataset(classified, fields=["label"], transform_of="image")


@pytest.mark.parametrize(("shape", "mode"), [((4, 5), "L"), ((4, 5, 3), "RGB"), ((4, 5, 4), "RGBA")])
def test_modes_of_pil_images(tmp_path: Path, shape: tuple[int, ...], mode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = store_of(tmp_path / "s.tsds", [pixels]).path
    image = tsds.StoreDataset(path, as_pil=True)[0]["image"]
    assert image.mode == mode
    np.testing.assert_array_equal(image, pixels)
    (batch,) = tsds.DataLoader(tsds.StoreDataset(path, as_pil=True, fields=["image"]), collate_fn=list)
    assert batch[0]["image"].mode == mode


# --- detection ----------------------------------------------------------------------------------------------------


def expected_target(dataset: tsds.StoreDataset, row: int) -> dict[str, Any]:
    objects = dataset.split[row]["objects"]
    boxes = torch.from_numpy(np.array(objects["boxes"]))
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    labels = torch.from_numpy(np.array(objects["labels"])).long() + 1
    target = {"boxes": boxes, "labels": labels, "area": areas, "iscrowd": torch.zeros(len(boxes), dtype=torch.int64)}
    return {**target, "image_id": row}


@pytest.mark.parametrize("transform", [None, "same"])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_torchvisions_references_take(detected: Path, transform: Any, workers: int) -> None:
    dataset = tsds.StoreDataset(detected, return_as="torchvision", transform=transform and same)
    seen = 0
    for images, targets in tsds.DataLoader(dataset, 4, num_workers=workers):
        for image, target in zip(images, targets, strict=True):
            expected = expected_target(dataset, seen)
            assert {name: target[name] for name in ("image_id",)} == {"image_id": seen}
            for name in ("boxes", "labels", "area", "iscrowd"):
                torch.testing.assert_close(target[name].as_subclass(torch.Tensor), expected[name])
            pixels = torch.from_numpy(np.array(dataset.split[seen]["image"])).permute(2, 0, 1)
            assert torch.equal(image, pixels if transform else pixels / 255)
            seen += 1
    assert seen == ROWS


def same(image: Any, target: Any = None) -> Any:
    sample = image
    assert isinstance(sample[0], tv_tensors.Image) and isinstance(sample[1]["boxes"], tv_tensors.BoundingBoxes)
    return sample


def test_single_samples_and_batches_agree(detected: Path) -> None:
    dataset = tsds.StoreDataset(detected, return_as="torchvision")
    (batch,) = tsds.DataLoader(dataset, ROWS)
    for row, (image, target) in enumerate(zip(*batch, strict=True)):
        alone, its_target = dataset[row]
        assert torch.equal(alone, image) and alone.dtype == torch.float32
        assert its_target.keys() == target.keys()
        for name, value in target.items():
            torch.testing.assert_close(torch.as_tensor(its_target[name]), torch.as_tensor(value), equal_nan=True)


def test_boxes_without_labels_get_one_name_for_all(tmp_path: Path) -> None:
    """The message of a store of boxes alone has advice, which works."""
    Image.new("RGB", (20, 20)).save(tmp_path / "0.png")
    box = "<box top='1' left='2' width='9' height='8'/>"
    source = tmp_path / "faces.xml"
    source.write_text(f"<dataset><images><image file='0.png'>{box}</image></images></dataset>")
    tsds.convert(source, tmp_path / "boxes.tsds", tsds.ConvertOptions(workers=0))
    with pytest.raises(
        tsds.OptionError, match=r"objects has boxes: convert with `classes`; a single name, such as face"
    ):
        tsds.StoreDataset(tmp_path / "boxes.tsds", return_as="torchvision")
    tsds.convert(source, tmp_path / "faces.tsds", tsds.ConvertOptions(workers=0, classes=("face",)))
    dataset = tsds.StoreDataset(tmp_path / "faces.tsds", return_as="torchvision")
    assert (dataset.classes, dataset[0][1]["labels"].tolist()) == (("face",), [1])


@pytest.mark.parametrize("arguments", [{"fields": ["image"]}, {"fields": ["objects"]}])
def test_what_has_no_boxes_is_refused(detected: Path, classified: Path, arguments: dict[str, Any]) -> None:
    for path in (detected, classified):
        if path == classified:
            arguments = {}
        with pytest.raises(tsds.OptionError, match="expected images and objects with boxes and labels"):
            tsds.StoreDataset(path, return_as="torchvision", **arguments)


# --- random access ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["raw", "source"])
def test_a_split_is_a_source_of_random_access(folders: Path, tmp_path: Path, encoding: Any) -> None:
    tsds.convert(folders, tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, encoding=encoding))
    split = tsds.open(tmp_path / "s.tsds")["train"]
    for row in (0, 3, np.int64(5), -1):
        sample = split[row]
        assert list(sample) == list(split.fields)
        with Image.open(folders / sample["key"]) as image:
            np.testing.assert_array_equal(sample["image"][:, :, 0], image)
        assert sample["label"] == split["label"][row] and sample["key"] == split["key"][row]
    for row in (len(split), -len(split) - 1):
        with pytest.raises(IndexError, match="is outside of"):
            split[row]
    assert [sample["key"] for sample in (split[i] for i in range(len(split)))] == split["key"][:]


def test_samples_without_a_label(tmp_path):
    labels = [1, -1, 0, -1]
    store_of(tmp_path / "s.tsds", [(np.zeros((6, 5), np.uint8), label) for label in labels], ["ant", "bee"])
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", return_as="tuple")
    assert dataset.targets == labels == [int(label) for _, label in dataset]
    assert [label for _, label in dataset.samples] == labels
    assert dataset.class_to_idx == {"ant": 0, "bee": 1}
    assert [labels.tolist() for _, labels in tsds.DataLoader(dataset, 4)] == [labels]
    assert dataset.filter(lambda label: label >= 0, "label").targets == [1, 0]


def test_the_only_split_is_to_be_passed(tmp_path: Path) -> None:
    with tsds.Writer(tmp_path / "s.tsds", classes=("a",)) as writer:
        writer.append("val", {"image": np.zeros((4, 4, 3), np.uint8), "label": 0})
    with pytest.raises(tsds.OptionError, match=r"its only split 'val', found 'train'\. Pass `split='val'`\.$"):
        tsds.StoreDataset(tmp_path / "s.tsds")
    assert len(tsds.StoreDataset(tmp_path / "s.tsds", split="val")) == 1
