"""Several views of each image: each compared with a data set of one plan, and with torchvision."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as TF  # noqa: N812

import tensorstore_ds as tsds
from jpeg_files import drawn, jpeg
from stores import detections, png_bytes, store_of
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.imaging.jpeg import encode_jpeg
from tensorstore_ds.loading import decoding
from tensorstore_ds.seeding import fold

SIZES = [(90, 131), (211, 160), (64, 64), (33, 200), (256, 300), (70, 90)]
CROP = tsds.RandomResizedCrop((40, 56), scale=(0.05, 1.0), seed=3)
SMALL = tsds.Compose([tsds.Resize(32), tsds.CenterCrop(32), tsds.RandomHorizontalFlip()], seed=5)
KINDS = ["markers", "whole", "png", "pixels"]


def files_of(kind: str) -> list[Any]:
    images = [drawn(height, width, seed=i) for i, (height, width) in enumerate(SIZES)]
    make: Any = {"markers": lambda x: encode_jpeg(x, 90), "whole": jpeg, "png": png_bytes, "pixels": lambda x: x}[kind]
    return list(map(make, images))


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    samples = [{"image": each, "label": i % 2} for i, each in enumerate(files_of(request.param))]
    encoding = "raw" if request.param == "pixels" else "source"
    store_of(folder / "s.tsds", samples, ["a", "b"], encoding=encoding)
    return folder / "s.tsds"


def images_of(loader: Any, name: str) -> list[torch.Tensor]:
    return [image for batch in loader for image in batch[name]]


def test_each_view_is_that_of_a_plan_alone(path: Path) -> None:
    """View 0 draws as its plan alone; of a plan that draws nothing, this holds for every view."""
    steady = tsds.Compose([tsds.Resize(48), tsds.CenterCrop(40)])
    views = tsds.StoreDataset(path, decode=[CROP, steady, SMALL])
    loader = tsds.DataLoader(views, 4)
    for epoch in range(2):
        batches = list(loader)
        assert list(batches[0]) == ["image_0", "image_1", "image_2", "label"]
        for name, plan in (("image_0", CROP), ("image_1", steady)):
            alone = tsds.DataLoader(tsds.StoreDataset(path, decode=plan), 4)
            alone.set_epoch(epoch)
            assert all(map(torch.equal, images_of(batches, name), images_of(alone, "image")))
    reverse = tsds.DataLoader(tsds.StoreDataset(path, decode=(SMALL, CROP)), 6)
    assert torch.equal(next(iter(reverse))["image_0"], next(iter(tsds.DataLoader(views, 6, decode=SMALL)))["image"])


def test_later_views_are_torchvisions(path: Path) -> None:
    """What they draw follows from the number of the view and the row."""
    whole = [sample["image"] for sample in tsds.StoreDataset(path)]
    rows = np.arange(len(whole))
    for epoch in (0, 3):
        loader = tsds.DataLoader(tsds.StoreDataset(path), len(rows), decode=[CROP, CROP, CROP])
        loader.set_epoch(epoch)
        batch = next(iter(loader))
        for view in range(3):
            words = fold(view, rows.astype(np.uint64)).view(np.int64) if view else rows
            sizes = np.array([image.shape[1:] for image in whole])
            boxes = CROP.make_params(CROP.keys(words, epoch), sizes)["boxes"].tolist()
            for i, image in enumerate(whole):
                top, left, height, width = boxes[i]
                expected = TF.resized_crop(image, top, left, height, width, list(CROP.size), antialias=True)
                difference = (batch[f"image_{view}"][i].int() - expected.int()).abs().float()
                # Exact, unless the decoder makes half of the size.
                assert difference.mean() <= (2.5 if height >= 80 and width >= 112 else 0)


def test_equal_plans_draw_differently_whatever_makes_the_batches(path: Path) -> None:
    dataset = tsds.StoreDataset(path, decode=[CROP, CROP])
    dataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    first, second = (torch.stack(images_of(tsds.DataLoader(dataset, 2), f"image_{i}")) for i in range(2))
    assert not any(map(torch.equal, first, second))
    for loader in (
        tsds.DataLoader(dataset, 5, num_threads=3),
        tsds.DataLoader(dataset, 3, num_workers=1, multiprocessing_context="fork"),
        torch.utils.data.DataLoader(dataset, 4),
    ):
        batches = list(loader)
        assert torch.equal(torch.stack(images_of(batches, "image_0")), first)
        assert torch.equal(torch.stack(images_of(batches, "image_1")), second)
    assert torch.equal(dataset[4]["image_1"], second[4])
    resumed = tsds.DataLoader(dataset, 2)
    state = tsds.DataLoader(dataset, 2)
    next(batches_of_state := iter(state))
    resumed.load_state_dict(state.state_dict())
    assert torch.equal(next(iter(resumed))["image_1"], next(batches_of_state)["image_1"])
    assert tsds.StoreDataset(path).nbytes == dataset.nbytes


def test_a_file_is_read_once_where_views_need_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_of(tmp_path / "s.tsds", [{"image": each} for each in files_of("whole")], encoding="source")
    calls = list[int]()
    decode = decoding.decode_part
    monkeypatch.setattr(decoding, "decode_part", lambda *a, **k: calls.append(k["scale"]) or decode(*a, **k))
    plan = [tsds.Resize((150, 150)), tsds.transforms.Pad(3), tsds.transforms.Pad(0)]
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", decode=plan)
    (batch,) = tsds.DataLoader(dataset, 6)
    assert len(calls) == len(SIZES)
    for image, padded in zip(batch["image_2"], batch["image_1"], strict=True):
        image.zero_()  # they have memory of their own
        assert padded.any()


def test_tuples_transforms_and_pil(tmp_path: Path) -> None:
    path = tmp_path / "s.tsds"
    store_of(path, [{"image": each, "label": 1} for each in files_of("png")], ["a", "b"], encoding="source")
    plans = [CROP, tsds.Resize(24)]
    whole, short, labels = next(iter(tsds.DataLoader(tsds.StoreDataset(path, decode=plans, return_as="tuple"), 2)))
    assert (whole.shape, [min(each.shape[1:]) for each in short], labels.tolist()) == ((2, 3, 40, 56), [24, 24], [1, 1])

    def noisy(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.rand(image.shape[:1], generator=generator)

    both: dict[str, Any] = {"decode": plans, "transform": noisy, "transform_of": "image"}
    sample = tsds.StoreDataset(path, **both)[0]
    assert (sample["image_0"] != sample["image_1"]).all()
    as_tuple = tsds.StoreDataset(path, **both, return_as="tuple")[0]
    assert torch.equal(as_tuple[0], sample["image_0"])
    assert torch.equal(as_tuple[1], sample["image_1"])
    assert int(as_tuple[2]) == 1
    found = tsds.StoreDataset(path, decode=plans, transform=lambda sample: [*sample], fields=["image"])[1]
    assert found == ["image_0", "image_1"]
    assert tsds.StoreDataset(path, decode=plans, as_pil=True)[0]["image_0"].size == (56, 40)


@pytest.mark.parametrize("by_sample", [False, True])
def test_views_are_padded_each_to_its_size(tmp_path: Path, by_sample: bool) -> None:
    path = tmp_path / "s.tsds"
    store_of(path, [{"image": each, "label": 1} for each in files_of("png")], ["a", "b"], encoding="source")
    options: dict[str, Any] = {"transform": lambda sample: sample} if by_sample else {}
    plans = [tsds.Resize(20), tsds.Resize(30)]
    loader = tsds.DataLoader(tsds.StoreDataset(path, decode=plans, **options), 6, collate_images="padded")
    batch = next(iter(loader))
    members = [f"image_{view}{what}" for view in range(2) for what in ("", "_mask", "_size")]
    assert list(batch) == [*members, "label"]
    assert (batch["image_1_size"].amin(1) == 30).all()
    assert batch["image_0"].shape[-2:] == batch["image_0_mask"].shape[1:]
    dataset = tsds.StoreDataset(path, decode=plans, return_as="tuple", **options)
    first, second, _ = next(iter(tsds.DataLoader(dataset, 6, collate_images="padded")))
    assert torch.equal(first.image, batch["image_0"])
    assert torch.equal(second.image, batch["image_1"])


def test_views_of_a_mixture(tmp_path: Path) -> None:
    for name in "ab":
        store_of(tmp_path / name, [{"image": each, "label": 0} for each in files_of("png")], [name], encoding="source")
    parts = [tmp_path / "a", tmp_path / "b"]
    mixed = tsds.MixedDataset(parts, decode=[CROP, CROP])
    batch = next(iter(tsds.DataLoader(mixed, 12)))
    alone = next(iter(tsds.DataLoader(tsds.StoreDataset(parts[1]), 6, decode=[CROP, CROP])))
    assert list(batch) == ["image_0", "image_1", "label"]
    assert torch.equal(batch["image_1"][6:], alone["image_1"])
    again = next(iter(tsds.DataLoader(tsds.MixedDataset(parts), 12, decode=[CROP, CROP])))
    assert torch.equal(again["image_1"], batch["image_1"])
    with pytest.raises(OptionError, match="`decode`: expected as many views in all data sets"):
        tsds.MixedDataset([tsds.StoreDataset(parts[0], decode=[CROP]), tsds.StoreDataset(parts[1])])


def test_damaged_images_are_replaced_in_all_views(tmp_path: Path) -> None:
    files = files_of("whole")
    store_of(tmp_path / "s.tsds", [{"image": each} for each in files], encoding="source")
    split = tsds.open(tmp_path / "s.tsds")["train"]
    table = split.table("image")
    start, stop = (int(n) for n in table.offsets[2:4])
    good = files[2]
    for file in (tmp_path / "s.tsds").rglob("*"):
        if file.is_file() and good in (data := file.read_bytes()):
            file.write_bytes(data.replace(good, good[:700] + bytes(stop - start - 700)))
    plans = [tsds.Resize((20, 20)), tsds.Resize((30, 30))]
    with pytest.raises(SourceError):
        list(tsds.DataLoader(tsds.StoreDataset(tmp_path / "s.tsds", decode=plans), 6))
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", decode=plans, on_error="replace")
    batch = dataset.gather(range(6))
    assert dataset.replaced == [2]
    for i, (name, plan) in enumerate(zip(("image_0", "image_1"), plans, strict=True)):
        other = int(batch.rows[2])
        alone = tsds.StoreDataset(tmp_path / "s.tsds", decode=plan)[other]["image"]
        assert torch.equal(batch.columns[name][2], alone), i


# --- boxes, keypoints and masks of views ----------------------------------------------------------------------------


def annotated(path: Path, sizes: list[tuple[int, int]]) -> Path:
    """Images with boxes, two keypoints that a flip swaps, and masks if they have one size."""
    rng, samples = np.random.default_rng(6), []
    for i, (height, width) in enumerate(sizes):
        corners = np.sort(rng.random((i % 3, 2, 2)) * (width, height), axis=1)
        sample = {
            "image": drawn(height, width, seed=i),
            "boxes": corners.reshape(-1, 4).astype(np.float32),
            "keypoints": (rng.random((i % 3, 2, 2)) * (width, height)).astype(np.float32),
        }
        if len(set(sizes)) == 1:
            sample["mask"] = rng.integers(0, 3, (height, width)).astype(np.uint8)
        samples.append({**sample, "labels": rng.integers(0, 2, i % 3)})
    store_of(path, samples, ["a", "b", "c"])
    return path


FLIP = tsds.RandomHorizontalFlip(flip_pairs=[(0, 1)])
VIEWS = [
    tsds.Compose([CROP, FLIP], seed=1),
    tsds.Compose([tsds.Resize((60, 70)), tsds.RandomCrop(48)], seed=2),
    tsds.transforms.Letterbox(64),
]


def same_objects(found: Any, expected: Any) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("sizes", [SIZES, [(90, 120)] * 6], ids=["sizes", "one size"])
def test_what_has_places_moves_with_each_view(tmp_path: Path, sizes: list[tuple[int, int]]) -> None:
    """As in a data set of one plan alone, which draws by the rows of the view."""
    path = annotated(tmp_path / "s.tsds", sizes)
    dataset = tsds.StoreDataset(path, decode=VIEWS)
    has_masks = "mask" in dataset.fields
    masks = [f"mask_{view}" for view in range(3)] if has_masks else []
    members = [*(f"image_{i}" for i in range(3)), *(f"objects_{i}" for i in range(3)), *masks]
    loader = tsds.DataLoader(dataset, 6, collate="packed")
    (batch,) = loader
    assert sorted(batch) == sorted(members)
    (mixed,) = tsds.DataLoader(tsds.MixedDataset([dataset, dataset.subset([])]), 6, collate="packed")
    for view, plan in enumerate(VIEWS):
        alone = tsds.StoreDataset(path, decode=plan)
        if view == 0 or isinstance(plan, tsds.transforms.Letterbox):
            (expected,) = tsds.DataLoader(alone, 6, collate="packed")
            same_objects(batch[f"objects_{view}"], expected["objects"])
            if has_masks:
                assert torch.equal(batch[f"mask_{view}"], expected["mask"])
        same_objects(mixed[f"objects_{view}"], batch[f"objects_{view}"])
    # The second view: its crop of the resized image follows from the row and the view.
    rows = fold(1, np.arange(6, dtype=np.uint64))
    crop = VIEWS[1].transforms[1]
    keys = crop.keys(fold(2, 1, rows).view(np.int64), 0)
    params = crop.make_params(keys, (60, 70))
    split = tsds.open(path)["train"]
    for row, (height, width) in enumerate(sizes):
        stored = torch.from_numpy(np.array(split.table("objects")[row]["keypoints"]))
        corner = torch.stack([params["left"], params["top"]], 1)[row]
        moved = stored * torch.tensor([70 / width, 60 / height]) - corner
        lengths = batch["objects_1"]["offsets"].diff()
        first = int(lengths[:row].sum())
        labels = batch["objects_1"]["keypoints"][first : first + int(lengths[row])]
        for point in labels:  # objects without area left are dropped
            assert (moved - point).abs().amax((1, 2)).min() < 1e-3


def test_boxes_of_views_in_every_form(tmp_path: Path) -> None:
    dataset = tsds.StoreDataset(annotated(tmp_path / "s.tsds", SIZES), decode=VIEWS)
    listed, padded = (next(iter(tsds.DataLoader(dataset, 6, collate=how))) for how in ("list", "padded"))
    packed = next(iter(tsds.DataLoader(dataset, 6, collate="packed")))
    for view in range(3):
        boxes = torch.cat([each["boxes"] for each in listed[f"objects_{view}"]])
        assert torch.equal(boxes, packed[f"objects_{view}"]["boxes"])
        assert torch.equal(padded[f"objects_{view}"]["boxes"][padded[f"objects_{view}"]["mask"]], boxes)
        same_objects(dataset[4][f"objects_{view}"], listed[f"objects_{view}"][4])
    by_workers = list(tsds.DataLoader(dataset, 6, num_workers=1, multiprocessing_context="fork"))
    same_objects(by_workers[0]["objects_1"][5], listed["objects_1"][5])


def test_masks_are_padded_with_their_view(tmp_path: Path) -> None:
    path = annotated(tmp_path / "s.tsds", [(90, 120)] * 6)
    plans = [tsds.Resize(20), tsds.transforms.Pad(3)]
    (batch,) = tsds.DataLoader(tsds.StoreDataset(path, decode=plans), 6, collate_images="padded", size_divisor=32)
    for view, (height, width) in enumerate([(20, 26), (96, 126)]):
        assert batch[f"mask_{view}"].shape == batch[f"image_{view}_mask"].shape
        assert (batch[f"mask_{view}"][:, height:] == 255).all()
        assert (batch[f"mask_{view}"][:, :, width:] == 255).all()


# --- batch transforms of views --------------------------------------------------------------------------------------

STRONG = tsds.Compose([FLIP, tsds.transforms.ColorJitter(0.4, 0.4), tsds.transforms.RandomAffine(20)], seed=3)
WEAK = tsds.Compose([tsds.RandomCrop(24), tsds.Normalize([0.5] * 3, [0.2] * 3)], seed=4)


def test_each_view_has_its_transform_and_draws(tmp_path: Path) -> None:
    """Each equals the transform of this view alone, called with rows that follow from view and row."""
    path = annotated(tmp_path / "s.tsds", SIZES)
    dataset = tsds.StoreDataset(path, decode=VIEWS)
    (before,) = tsds.DataLoader(dataset, 6, collate="packed")
    for collate in ("packed", "list"):
        if collate == "list":
            dataset = tsds.StoreDataset(path, fields=["image"], decode=VIEWS)
        loader = tsds.DataLoader(dataset, 6, collate=collate, batch_transform=[STRONG, WEAK, STRONG], num_threads=2)
        loader.set_epoch(2)
        plain = tsds.DataLoader(dataset, 6, collate=collate)
        plain.set_epoch(2)
        (found,), (before,) = loader, plain
        for view, transform in enumerate([STRONG, WEAK, STRONG]):
            own = {"image": before[f"image_{view}"]}
            own |= {"objects": before[f"objects_{view}"]} if collate == "packed" else {}
            rows = fold(view, np.arange(6, dtype=np.uint64)).view(np.int64) if view else np.arange(6)
            expected = transform(own, rows, 2)
            assert torch.equal(found[f"image_{view}"], expected["image"])
            if collate == "packed":
                same_objects(found[f"objects_{view}"], expected["objects"])
    assert not torch.equal(found["image_0"], found["image_2"][..., :40, :56])


def test_one_transform_serves_all_views(path: Path) -> None:
    dataset = tsds.StoreDataset(path, decode=[SMALL, SMALL])
    one, each = (
        next(iter(tsds.DataLoader(dataset, 6, batch_transform=transform))) for transform in (STRONG, [STRONG, STRONG])
    )
    assert all(torch.equal(one[name], each[name]) for name in one)
    as_tuple = tsds.StoreDataset(path, decode=[SMALL, SMALL], return_as="tuple")
    for loader in (
        tsds.DataLoader(as_tuple, 6, batch_transform=STRONG),
        tsds.DataLoader(as_tuple, 6, batch_transform=STRONG, num_workers=1, multiprocessing_context="fork"),
    ):
        first, second, labels = next(iter(loader))
        assert torch.equal(first, one["image_0"])
        assert torch.equal(second, one["image_1"])
        assert torch.equal(labels, one["label"])
    called = []
    tsds.DataLoader(
        dataset, 6, batch_transform=lambda batch, rows, epoch: called.append([*batch])
    ).__iter__().__next__()
    assert called == [["image_0", "image_1", "label"]]
    drawn_by_torch = tsds.transforms.Views([STRONG, STRONG])(next(iter(tsds.DataLoader(dataset, 6))))
    assert drawn_by_torch["image_1"].shape == one["image_1"].shape


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    store_of(tmp_path / "d.tsds", detections(), ["a", "b"])
    dataset = tsds.StoreDataset(tmp_path / "d.tsds")
    assert list(dataset.with_decode([CROP, CROP])[0]) == ["image_0", "image_1", "objects_0", "objects_1"]
    text = r"`decode`: expected several views of .*found objects: use fields=\['image'\]"
    for options in ({"return_as": "tuple"}, {"transform": dict}, {"as_pil": True}, {"return_as": "torchvision"}):
        with pytest.raises(OptionError, match=text):
            tsds.StoreDataset(tmp_path / "d.tsds", decode=[CROP, CROP], **options)
    with pytest.raises(OptionError, match=text):
        dataset.with_decode([CROP, CROP]).transform = dict
    advised = tsds.StoreDataset(tmp_path / "d.tsds", fields=["image"], decode=[CROP, CROP])
    for plan, names in ((CROP, ["image"]), (None, ["image"]), ([CROP, CROP], ["image_0", "image_1"])):
        assert list(advised.with_decode(plan)[0]) == names
    for plans in ([], [CROP, None]):
        with pytest.raises(OptionError, match="`decode`: expected a plan for each view, found"):
            advised.with_decode(plans)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="use `batch_transform`"):
        advised.with_decode([CROP, tsds.transforms.ColorJitter()])  # type: ignore[list-item]
    batch = next(iter(tsds.DataLoader(advised, 2)))
    with pytest.raises(ValueError, match=r"found the views image_0.*a list with a transform for each view as"):
        tsds.Compose([tsds.RandomHorizontalFlip()])(batch)
    for transforms, decode in (([STRONG], [CROP, CROP]), ([STRONG, lambda *_: 1], [CROP, CROP])):
        with pytest.raises(OptionError, match=r"`batch_transform`: expected one, or a list for \d views"):
            tsds.DataLoader(advised, 2, decode=decode, batch_transform=transforms)
    samples = [{"image": each, "image_1": np.float32(1)} for each in files_of("png")]
    store_of(tmp_path / "t.tsds", samples, encoding="source")
    with pytest.raises(OptionError, match="`decode`: expected no field image_1, which is a view"):
        tsds.StoreDataset(tmp_path / "t.tsds", decode=[CROP, CROP])
