"""Tiles are cut out of decoded images with NumPy, their boxes by hand; predictions are merged in a double loop."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader, DistributedSampler

import tensorstore_ds as tsds
from jpeg_files import drawn, jpeg
from stores import Samples, png_bytes, smart_store, store_of
from tensorstore_ds.annex import tiles as tiles_module
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.tiling import count_tiles, size_of, tile_corners, tile_overlap

SIZE, OVERLAP = (48, 40), 0.25
SIZES = [(100, 130), (48, 40), (31, 200), (200, 30), (131, 77)]
CLASSES = ["cell", "seed", "leaf"]


def objects_of(rng: np.random.Generator, height: int, width: int, count: int) -> dict[str, Any]:
    """Boxes of whole pixels, keypoints in them, polygons, runs by turns."""
    corner = rng.integers(0, (width - 6, height - 6), (count, 2))
    far = np.minimum(corner + rng.integers(1, 60, (count, 2)), (width, height))
    boxes = np.concatenate([corner, far], axis=1).astype(np.float32)
    return {
        "boxes": boxes,
        "labels": rng.integers(0, 3, count),
        "keypoints": rng.integers(0, (width, height), (count, 2, 2)).astype(np.float32),
        "difficult": rng.integers(0, 2, count).astype(np.uint8),
        "polygons": [box[[0, 1, 2, 1, 2, 3]].reshape(3, 2) for box in boxes],
    }


def sample_of(row: int, size: tuple[int, int], image: Any) -> dict[str, Any]:
    count = (7, 0, 3, 1)[row % 4]
    return {"image": image, "label": row % 3, "objects": objects_of(np.random.default_rng(row), *size, count)}


#: By name: what becomes of pixels before they are stored, and the encoding.
KINDS: dict[str, tuple[Any, str]] = {
    "jpeg": (lambda pixels: pixels, "jpeg"),
    "source, restarts": (lambda pixels: jpeg(pixels, restart_marker_blocks=2), "source"),
    "source, entries": (lambda pixels: jpeg(pixels, quality=90), "source"),
    "source, progressive": (lambda pixels: jpeg(pixels, progressive=True), "source"),
    "source, png": (png_bytes, "source"),
    "raw": (lambda pixels: pixels, "raw"),
    "smart": (lambda pixels: pixels, "smart"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiles")


def stored(folder: Path, kind: str) -> tsds.StoreDataset:
    """A store of images of several sizes. Without compiled kernels, JPEG files without markers are decoded whole."""
    path = folder / f"{kind}.tsds"
    if not path.exists():
        made, encoding = KINDS[kind]
        samples = [sample_of(row, size, made(drawn(*size, seed=row))) for row, size in enumerate(SIZES)]
        if encoding == "smart":
            smart_store(path, Samples(samples, CLASSES))
        else:
            store_of(path, samples, CLASSES, encoding=encoding)
    return tsds.StoreDataset(path)


def whole_of(dataset: tsds.StoreDataset, row: int) -> NDArray[np.uint8]:
    """(H, W, C) of a stored image, by Pillow if it is a file."""
    image = dataset.split["image"][row]
    if isinstance(image, np.ndarray):
        return image
    with Image.open(io.BytesIO(image)) as opened:
        return np.asarray(opened.convert("RGB"))


def cut(image: NDArray[Any], y: int, x: int, size: tuple[int, int] = SIZE, fill: int = 0) -> NDArray[Any]:
    """A tile with NumPy alone."""
    part = image[y : y + size[0], x : x + size[1]]
    beyond = [(0, size[0] - part.shape[0]), (0, size[1] - part.shape[1])]
    return np.pad(part, [*beyond, *[(0, 0)] * (image.ndim - 2)], constant_values=fill)


def quiet(*arguments: Any, **options: Any) -> tsds.Tiles:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return tsds.Tiles(*arguments, **options)


# --- places


def starts_in_words(length: int, size: int, overlap: float) -> list[int]:
    """A stride at a time, until a tile reaches the end; that one is moved inwards."""
    starts, at = [], 0
    while at + size < length:
        starts.append(at)
        at += max(1, round(size * (1 - overlap)))
    return [*starts, max(0, length - size)]


@pytest.mark.parametrize("overlap", [(0.0, 0.0), (0.2, 0.5), (0.25, 0.1), (0.99, 0.9)])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (40, 64)])
def test_corners_are_those_of_the_rule(size: tuple[int, int], overlap: tuple[float, float]) -> None:
    sizes = [(1, 1), (7, 5), (8, 6), (40, 40), (41, 100), (64, 3), (16, 32)]
    want = [
        (image, y, x)
        for image, (height, width) in enumerate(sizes)
        for y in starts_in_words(height, size[0], overlap[0])
        for x in starts_in_words(width, size[1], overlap[1])
    ]
    found = tile_corners(sizes, size, overlap)
    assert found.dtype == np.int64 and tile_corners(np.empty((0, 2)), size).shape == (0, 3)
    assert found.tolist() == [list(each) for each in want]
    assert count_tiles(sizes, size, overlap).prod(axis=1).tolist() == np.bincount(found[:, 0]).tolist()


@pytest.mark.parametrize(
    "overlap", [1, 1.5, -0.1, float("nan"), float("inf"), "0.2", None, (0.1,), (0.1, 1), [0, 0, 0]]
)
def test_overlaps_that_are_none_are_refused(overlap: Any) -> None:
    with pytest.raises(OptionError, match=r"overlap.*\[0, 1\)"):
        tile_overlap(overlap)


@pytest.mark.parametrize("size", [0, -1, 2.5, "640", None, (3,), (3, 0), (1, 2, 3), 2**15 + 1])
def test_sizes_that_are_none_are_refused(size: Any) -> None:
    with pytest.raises(OptionError, match="size"):
        size_of(size)


# --- pixels


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_have_the_pixels_of_the_decoded_image(folder: Path, kind: str) -> None:
    dataset = stored(folder, kind)
    wholes = [whole_of(dataset, row) for row in range(len(SIZES))]
    tiles = quiet(dataset, SIZE, OVERLAP, fill=7)
    assert len(tiles) > 30
    batch = tiles.gather(np.arange(len(tiles)))
    want = np.stack([cut(wholes[row], y, x, fill=7) for row, y, x in tiles.positions.tolist()])
    np.testing.assert_array_equal(batch.columns["image"].permute(0, 2, 3, 1).numpy(), want)
    np.testing.assert_array_equal(batch.columns["tile"].numpy(), tiles.positions)
    assert tiles[3]["image"].shape == (3, *SIZE)
    np.testing.assert_array_equal(tiles[3]["image"].permute(1, 2, 0).numpy(), want[3])


@pytest.mark.parametrize(("dtype", "channels"), [("uint8", 1), ("uint8", 3), ("float32", 3), ("uint16", 1)])
@pytest.mark.parametrize("layout", ["memmap", "zarr"])
def test_tiles_of_arrays_and_masks(tmp_path: Path, dtype: str, channels: int, layout: str) -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 250, (3, 90, 70, channels)).astype(dtype)
    masks = rng.integers(0, 3, (3, 90, 70)).astype(np.uint8)
    samples = [{"image": image, "mask": mask} for image, mask in zip(images, masks, strict=True)]
    store_of(tmp_path / "s.tsds", samples, CLASSES, layout=layout)
    tiles = tsds.Tiles(tsds.StoreDataset(tmp_path / "s.tsds"), (60, 80), (0.5, 0), fill=3)
    found = tiles.gather(np.arange(len(tiles))[::-1]).columns
    positions = tiles.positions[::-1].tolist()
    want = np.stack([cut(images[row], y, x, (60, 80), 3) for row, y, x in positions])
    assert found["image"].numpy().dtype == dtype
    np.testing.assert_array_equal(found["image"].permute(0, 2, 3, 1).numpy(), want)
    want = np.stack([cut(masks[row], y, x, (60, 80), 255) for row, y, x in positions])
    np.testing.assert_array_equal(found["mask"].numpy(), want)


def test_a_transform_of_samples_gets_tiles(folder: Path) -> None:
    seen = []

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        seen.append((tuple(sample["image"].shape), sample["objects"]["boxes"].canvas_size))
        return {"image": sample["image"].flip(-1), "tile": sample["tile"]}

    dataset = tsds.StoreDataset(stored(folder, "source, entries").path, transform=transform)
    tiles = quiet(dataset, SIZE, OVERLAP)
    wholes = [whole_of(dataset, row) for row in range(len(SIZES))]
    for sample in (tiles[5], tiles[len(tiles) - 1]):
        row, y, x = sample["tile"].tolist()
        np.testing.assert_array_equal(sample["image"].permute(1, 2, 0), cut(wholes[row], y, x)[:, ::-1])
    assert seen == [((3, *SIZE), SIZE)] * 2


# --- objects


def objects_by_hand(dataset: tsds.StoreDataset, row: int, y: int, x: int, least: float) -> list[dict[str, Any]]:
    """The objects that are seen in a tile, one by one."""
    values, found = dataset.split["objects"][row], []
    height, width = SIZES[row]
    for i, (x1, y1, x2, y2) in enumerate(values["boxes"].tolist()):
        left, top = max(x1, x), max(y1, y)
        right, bottom = min(x2, x + SIZE[1], width), min(y2, y + SIZE[0], height)
        seen = max(0, right - left) * max(0, bottom - top)
        if seen > 0 and seen >= least * (x2 - x1) * (y2 - y1):
            box = [left - x, top - y, right - x, bottom - y]
            points = values["keypoints"][i] - np.array([x, y], np.float32)
            found.append({"boxes": box, "labels": values["labels"][i], "keypoints": points, "number": i})
    return found


@pytest.mark.parametrize("least", [0, 0.1, 0.5, 1])
def test_objects_are_shifted_clipped_and_dropped(folder: Path, least: float) -> None:
    dataset = tsds.StoreDataset(stored(folder, "raw").path, outlines=True)
    tiles = tsds.Tiles(dataset, SIZE, OVERLAP, min_visibility=least)
    dropped = 0
    for number, batch in enumerate(tsds.DataLoader(tiles, batch_size=1, collate="list")):
        row, y, x = tiles.positions[number].tolist()
        want, (found,) = objects_by_hand(dataset, row, y, x, least), batch["objects"]
        dropped += int(batch["objects_dropped"][0])
        assert found["boxes"].tolist() == [each["boxes"] for each in want]
        assert found["labels"].tolist() == [each["labels"] for each in want]
        assert found["outline"].tolist() == [[row, each["number"]] for each in want]
        np.testing.assert_array_equal(found["keypoints"], np.array([e["keypoints"] for e in want]).reshape(-1, 2, 2))
    total = sum(len(dataset.split["objects"][row]["labels"]) * (tiles.image_rows == row).sum() for row in range(5))
    assert dropped == total - tiles.object_counts.sum()


def test_outlines_are_drawn_in_tiles(folder: Path) -> None:
    """Triangles have whole corners: a pixel is in if its center is, up to those on an edge."""
    dataset = tsds.StoreDataset(stored(folder, "raw").path, outlines=True)
    tiles = tsds.Tiles(dataset, SIZE, OVERLAP, min_visibility=0)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    compared = 0
    for batch in tsds.DataLoader(tiles, batch_size=4):
        drawn_masks = tsds.loading.draw_instance_masks(dataset.split, batch["objects"], SIZE)
        for masks, objects, (row, top, left) in zip(drawn_masks, batch["objects"], batch["tile"].tolist(), strict=True):
            for mask, (_, number) in zip(masks.numpy(), objects["outline"].tolist(), strict=True):
                (ax, ay), (bx, by), (cx, cy) = dataset.split["objects"][row]["polygons"][number] - (left, top)
                sides = [
                    (qx - px) * (y - py) - (qy - py) * (x - px)
                    for px, py, qx, qy in ((ax, ay, bx, by), (bx, by, cx, cy), (cx, cy, ax, ay))
                ]
                inside = np.all([side > 0 for side in sides], axis=0) | np.all([side < 0 for side in sides], axis=0)
                around = 2 * (abs(bx - ax) + abs(by - ay) + abs(cx - bx) + abs(cy - by) + abs(ax - cx) + abs(ay - cy))
                assert (mask != inside).sum() <= min(around, 2 * sum(SIZE))
                compared += inside.sum() > 100
    assert compared > 10


def test_runs_are_cut_as_their_mask(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((90, 70)) < 0.5
    flat = mask.T.ravel()  # runs go down the columns, and begin with one of zeros
    runs = np.diff(np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1], [True]])))
    runs = np.concatenate([[0], runs] if flat[0] else [runs]).astype(np.uint32)
    sample = {"image": np.zeros((90, 70, 3), np.uint8), "objects": {"boxes": [[0, 0, 70, 90]], "labels": [0]}}
    sample["objects"]["rle"] = [runs]
    store_of(tmp_path / "s.tsds", [sample], ["a"])
    tiles = tsds.Tiles(tsds.StoreDataset(tmp_path / "s.tsds", outlines=True), 50, 0.2, min_visibility=0)
    batch = next(iter(tsds.DataLoader(tiles, batch_size=len(tiles))))
    found = tsds.loading.draw_instance_masks(tiles.split, batch["objects"], (50, 50))
    for (_, y, x), each in zip(tiles.positions.tolist(), found, strict=True):
        np.testing.assert_array_equal(each[0], cut(mask, y, x, (50, 50)))


def test_empty_tiles_have_their_share(folder: Path) -> None:
    dataset = stored(folder, "raw")
    every = tsds.Tiles(dataset, SIZE, OVERLAP)
    counts = every.object_counts
    by_hand = [len(objects_by_hand(dataset, *position, 0.1)) for position in every.positions.tolist()]
    assert counts.tolist() == by_hand
    full = int((counts > 0).sum())
    for share in (0, 0.1, 0.15):
        some = tsds.Tiles(dataset, SIZE, OVERLAP, empty=share)
        assert (some.object_counts > 0).sum() == full
        assert (some.object_counts == 0).sum() == round(full * share / (1 - share))
        assert (np.diff(some._store_rows(np.arange(len(some)))) > 0).all()
        again = tsds.Tiles(dataset, SIZE, OVERLAP, empty=share)
        np.testing.assert_array_equal(some.positions, again.positions)
        np.testing.assert_array_equal(some.position_of(some.gather([2, 1]).rows), some.positions[[2, 1]])
    other = [tsds.Tiles(dataset, SIZE, OVERLAP, empty=0.1, seed=seed).positions.tolist() for seed in (1, 2)]
    assert other[0] != other[1]
    assert len(tsds.Tiles(dataset, SIZE, OVERLAP, empty=0.999)) == len(every)


# --- as a data set


def test_subsets_fields_and_groups(folder: Path) -> None:
    dataset = tsds.StoreDataset(stored(folder, "jpeg").path, fields=["objects", "label", "key"]).subset([4, 0, 2])
    tiles = tsds.Tiles(dataset, SIZE, OVERLAP)
    assert list(dict.fromkeys(tiles.image_rows.tolist())) == [4, 0, 2]
    batch = tiles.gather(np.arange(len(tiles))).columns
    assert [*batch] == ["objects", "label", "key", "tile"]
    assert batch["label"].tolist() == [row % 3 for row in tiles.image_rows.tolist()] == tiles.targets
    assert batch["key"] == [dataset.split.key(row) for row in tiles.image_rows.tolist()]
    assert batch["objects"].lengths.tolist() == tiles.object_counts.tolist()
    some = tiles.subset(tiles.image_rows == 0)
    assert (some.positions[:, 0] == 0).all()
    assert some.filter(lambda label: label == 1, "label").positions.shape == (0, 3)
    assert tiles.key(0) == f"{dataset.split.key(4)} (y 0, x 0)"
    assert tiles.image_sizes.tolist() == [[*SIZE]] * len(tiles)


@pytest.mark.parametrize("threads", [1, 4])
def test_an_epoch_follows_from_its_seed(folder: Path, threads: int) -> None:
    tiles = quiet(stored(folder, "source, entries"), SIZE, OVERLAP)
    plan = tsds.Compose([tsds.RandomCrop(32), tsds.RandomHorizontalFlip(flip_pairs=())])
    loader = tsds.DataLoader(tiles, 7, shuffle=True, seed=5, num_threads=threads, decode=plan)
    wholes = [whole_of(tiles, row) for row in range(len(SIZES))]
    first, second = (list(loader) for _ in range(2))
    order = [tuple(each) for batch in first for each in batch["tile"].tolist()]
    assert sorted(order) == sorted(map(tuple, tiles.positions.tolist()))
    assert order != [tuple(each) for batch in second for each in batch["tile"].tolist()]
    numbers = {tuple(position): number for number, position in enumerate(tiles.positions.tolist())}
    for batch in first:
        rows = torch.tensor([numbers[tuple(each)] for each in batch["tile"].tolist()])
        alone = tiles.with_decode(plan).gather(rows.numpy(), draw=(5, 0)).columns["image"]
        assert torch.equal(batch["image"], alone)
        for image, (row, y, x) in zip(batch["image"].permute(0, 2, 3, 1).numpy(), batch["tile"].tolist(), strict=True):
            tile = cut(wholes[row], y, x)
            parts = [tile[i : i + 32, j : j + 32] for i in range(17) for j in range(9)]
            assert any((image == part).all() or (image == part[:, ::-1]).all() for part in parts)


def test_ranks_divide_the_tiles(folder: Path) -> None:
    tiles = tsds.Tiles(stored(folder, "raw"), SIZE, OVERLAP)
    for samplers in (
        [tsds.ShuffleSampler(tiles, seed=1, rank=rank, num_replicas=2, even_batches=False) for rank in range(2)],
        [DistributedSampler(tiles, 2, rank, drop_last=True) for rank in range(2)],
        [
            tsds.BlockShuffleSampler(tiles, block_rows=4, window_blocks=2, seed=1, rank=rank, num_replicas=2)
            for rank in range(2)
        ],
    ):
        seen = [
            tuple(each)
            for sampler in samplers
            for batch in tsds.DataLoader(tiles, 5, sampler=sampler)
            for each in batch["tile"].tolist()
        ]
        assert len(set(seen)) >= len(tiles) - 1
    weights = (tiles.object_counts > 0).astype(float)
    loader = tsds.DataLoader(tiles, 5, sampler=tsds.WeightedSampler(weights, 40))
    assert all(len(objects["labels"]) for batch in loader for objects in batch["objects"])


def test_torch_and_processes_load_the_same(folder: Path) -> None:
    made = tsds.Tiles(stored(folder, "jpeg"), SIZE, OVERLAP, empty=0.1)
    tiles = pickle.loads(pickle.dumps(made))  # noqa: S301  # of this process
    np.testing.assert_array_equal(tiles.positions, made.positions)
    want = tiles.gather(np.arange(len(tiles))).columns["image"]
    by_torch = TorchLoader(tiles, 16, collate_fn=lambda batch: torch.stack([each["image"] for each in batch]))
    assert torch.equal(torch.cat(list(by_torch)), want)
    by_processes = tsds.DataLoader(tiles, 16, num_workers=2)
    assert torch.equal(torch.cat([batch["image"] for batch in by_processes]), want)


def test_batch_transforms_views_and_mixtures(folder: Path) -> None:
    raw, coded = stored(folder, "raw"), stored(folder, "source, entries")
    dataset = tsds.StoreDataset(raw.path, fields=["image", "label"])
    coded = tsds.StoreDataset(coded.path, fields=["image"])
    tiles, other = quiet(dataset, SIZE, OVERLAP), quiet(coded, SIZE, OVERLAP)
    batch = next(iter(tsds.DataLoader(tiles, 4, batch_transform=tsds.Normalize([0.5] * 3, [0.25] * 3))))
    plain = next(iter(tsds.DataLoader(tiles, 4)))
    torch.testing.assert_close(batch["image"], (plain["image"] / 255 - 0.5) / 0.25)
    views = next(iter(tsds.DataLoader(tiles, 4, decode=[tsds.CenterCrop(40), tsds.Resize((24, 20))])))
    assert views["image_0"].shape == (4, 3, 40, 40)
    assert views["image_1"].shape == (4, 3, 24, 20)
    assert torch.equal(views["image_0"], plain["image"][:, :, 4:44])
    mixed = tsds.MixedDataset([tiles, other])
    assert len(mixed) == len(tiles) + len(other)
    assert torch.equal(mixed[len(tiles) + 3]["image"], other[3]["image"])


@pytest.mark.parametrize("pixels", ["uint8", "float32"])
def test_normalized_tiles_of_pixels_of_one_size(tmp_path: Path, pixels: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 80, 80, 3)).astype(pixels)
    images = images if pixels == "uint8" else images / np.float32(255)
    store_of(tmp_path / "s.tsds", [{"image": image} for image in images], encoding="raw")
    tiles = tsds.Tiles(tsds.StoreDataset(tmp_path / "s.tsds"), 50)
    steps = [tsds.RandomCrop(32), tsds.Normalize([0.5] * 3, [0.25] * 3)]
    loader = tsds.DataLoader(tiles, 4, batch_transform=tsds.Compose(steps))
    plain = tsds.DataLoader(
        tiles, 4, batch_transform=lambda batch, rows, epoch: tsds.Compose(steps)(batch, rows, epoch)
    )
    for batch, want in zip(loader, plain, strict=True):
        assert torch.equal(batch["image"], want["image"])
        assert torch.equal(batch["tile"], want["tile"])


def test_tuples_and_detection(folder: Path) -> None:
    path = stored(folder, "raw").path
    image, target = tsds.Tiles(tsds.StoreDataset(path, return_as="torchvision"), SIZE, OVERLAP, empty=0.1)[4]
    assert image.dtype == torch.float32
    tiles = tsds.Tiles(tsds.StoreDataset(path), SIZE, OVERLAP, empty=0.1)
    assert tiles.position_of(target["image_id"]).tolist() == tiles.positions[4].tolist()
    image, label = tsds.Tiles(tsds.StoreDataset(path, fields=["image", "label"], return_as="tuple"), SIZE)[0]
    assert image.shape == (3, *SIZE)
    assert label == 0


def test_a_damaged_image_is_named_or_replaced(tmp_path: Path) -> None:
    good, bad = jpeg(drawn(100, 100)), bytearray(jpeg(drawn(100, 100, seed=1)))
    bad[-3000:-2] = b"\xff\xd0" * 1499
    store_of(
        tmp_path / "s.tsds",
        [{"image": good}, {"image": bytes(bad)}],
        encoding=tsds.conversion.SourceFiles(check="headers"),
    )
    tiles = tsds.Tiles(tsds.StoreDataset(tmp_path / "s.tsds"), 50, 0)
    with pytest.raises(SourceError, match="1: this image is damaged"):
        tiles.gather([7])
    replacing = tsds.Tiles(tsds.StoreDataset(tmp_path / "s.tsds", on_error="replace"), 50, 0)
    batch = replacing.gather([7, 0])
    assert replacing.position_of(batch.rows)[:, 0].tolist() == [0, 0]
    assert replacing.replaced[0] == 7


# --- what is refused


def test_bad_arguments_are_named(folder: Path) -> None:
    dataset = stored(folder, "raw")
    share = r"expected a share in \[0, 1\)"
    for arguments, expected in (
        ({"size": (10, -1)}, "`size`: expected a positive number"),
        ({"overlap": 1}, f"`overlap`: {share}"),
        ({"min_visibility": 2}, "`min_visibility`: expected a share"),
        ({"empty": 1}, f"`empty`: {share}"),
        ({"empty": float("nan")}, f"`empty`: {share}"),
        ({"size": 201}, "`size`: expected a tile of 201 x 201 to be smaller .* pad=True"),
    ):
        with pytest.raises(OptionError, match=expected) as error:
            tsds.Tiles(dataset, **{"size": SIZE, **arguments})
        assert "\n" not in str(error.value)
    assert len(tsds.Tiles(dataset, 201, pad=True)) == len(SIZES)
    with pytest.raises(OptionError, match="whole images, found a Tiles"):
        tsds.Tiles(tsds.Tiles(dataset, SIZE))
    with pytest.raises(OptionError, match="mix tiles instead"):
        tsds.Tiles(tsds.MixedDataset([dataset, dataset]))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="zero_copy"):
        tsds.Tiles(tsds.StoreDataset(dataset.path, zero_copy=True), SIZE)
    with pytest.raises(OptionError, match="tiles"):
        tsds.DataLoader(
            tsds.Tiles(tsds.StoreDataset(dataset.path, fields=["label"]), SIZE), residency="device", device="cpu"
        )
    with pytest.raises(OptionError, match="fill"):
        tsds.Tiles(dataset, SIZE, fill=9).with_decode(tsds.transforms.Letterbox(64, fill=114))


def test_too_many_tiles_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    image = np.broadcast_to(np.zeros(3, np.uint8), (1, 60_000, 3))
    store_of(tmp_path / "s.tsds", [{"image": image}], encoding="raw")
    tiles = tsds.Tiles(tsds.StoreDataset(tmp_path / "s.tsds"), (1, 2), 0.5)
    assert len(tiles) == 59_999
    with pytest.raises(OptionError, match=r"`overlap`: expected at most .* tiles.*found 3,599,880,001"):
        tiles_module.check_count(np.array([[60_000, 60_000]], np.int32), (2, 2), (0.5, 0.5))


def test_images_that_are_decoded_whole_are_told_once(folder: Path) -> None:
    for kind, told in (("source, png", True), ("source, progressive", True), ("jpeg", False), ("raw", False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tsds.Tiles(stored(folder, kind), 20)
        messages = [str(each.message) for each in caught]
        assert len(messages) == told
        assert all("5 large images must be decoded whole" in each and 'encoding="jpeg"' in each for each in messages)


# --- predictions


def merged_by_hand(boxes: list[Any], scores: list[float], labels: list[int], threshold: float, match: str) -> list[int]:
    """Greedy, in a double loop."""
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        for j in kept:
            (a1, b1, a2, b2), (c1, d1, c2, d2) = boxes[i], boxes[j]
            inner = max(0, min(a2, c2) - max(a1, c1)) * max(0, min(b2, d2) - max(b1, d1))
            one, other = (a2 - a1) * (b2 - b1), (c2 - c1) * (d2 - d1)
            share = inner / (one + other - inner) if match == "iou" else inner / min(one, other)
            if labels[i] == labels[j] and share > threshold:
                break
        else:
            kept.append(i)
    return kept


@pytest.mark.drawn(1)
@pytest.mark.parametrize("match", ["iou", "ios"])
@pytest.mark.parametrize("agnostic", [False, True])
def test_predictions_are_merged_as_in_a_double_loop(folder: Path, match: Any, agnostic: bool) -> None:
    tiles = tsds.Tiles(stored(folder, "raw"), SIZE, OVERLAP)
    rng, predictions = np.random.default_rng(4), []
    for _ in range(len(tiles)):
        count = int(rng.integers(0, 5))
        corner = rng.integers(0, 25, (count, 2))
        boxes = np.concatenate([corner, corner + rng.integers(4, 25, (count, 2))], 1).astype(np.float32)
        predictions.append(
            {
                "boxes": torch.from_numpy(boxes),
                "scores": torch.from_numpy(rng.permutation(10**6)[:count].astype(np.float32) / 10**6),
                "labels": torch.from_numpy(rng.integers(0, 2, count)),
                "keypoints": torch.from_numpy(np.concatenate([boxes[:, None, :2], np.ones((count, 1, 1))], 2)),
                "oriented_boxes": torch.from_numpy(np.concatenate([boxes, np.full((count, 1), 0.5)], 1)),
                "masks": torch.full((count, 1, 2, 2), 0.25),
            }
        )
    order = rng.permutation(len(tiles))
    by_positions = tsds.merge_tiles(
        [predictions[i] for i in order], tiles.positions[order], 0.3, match=match, class_agnostic=agnostic
    )
    merged = tsds.merge_tiles(predictions, tiles, 0.3, match=match, class_agnostic=agnostic)
    assert [*merged] == sorted(set(tiles.image_rows.tolist()))
    for row, found in merged.items():
        boxes, scores, labels, where, points = [], [], [], [], []
        for number in np.flatnonzero(tiles.image_rows == row):
            _, y, x = tiles.positions[number].tolist()
            each = predictions[number]
            boxes += [[a + x, b + y, c + x, d + y] for a, b, c, d in each["boxes"].tolist()]
            scores += each["scores"].tolist()
            labels += [0 if agnostic else label for label in each["labels"].tolist()]
            where += [tiles.positions[number].tolist()] * len(each["boxes"])
            points += [[[a + x, b + y, 1]] for a, b, _, _ in each["boxes"].tolist()]
        kept = merged_by_hand(boxes, scores, labels, 0.3, match)
        assert len(kept) < len(boxes) or len(boxes) < 4
        assert found["boxes"].tolist() == [boxes[i] for i in kept]
        assert found["scores"].tolist() == [scores[i] for i in kept]
        assert found["tile"].tolist() == [where[i] for i in kept]
        assert found["keypoints"].tolist() == [points[i] for i in kept]
        assert found["oriented_boxes"][:, :2].tolist() == [boxes[i][:2] for i in kept]
        assert (found["oriented_boxes"][:, 4] == 0.5).all()
        assert found["masks"].shape == (len(kept), 1, 2, 2)
        for name, value in by_positions[row].items():
            assert torch.equal(value, found[name])


def test_a_part_at_the_edge_goes_with_ios() -> None:
    whole = {"boxes": torch.tensor([[0.0, 0, 40, 10]]), "scores": torch.tensor([0.9]), "labels": torch.tensor([1])}
    part = {"boxes": torch.tensor([[0.0, 0, 10, 10]]), "scores": torch.tensor([0.8]), "labels": torch.tensor([1])}
    where = [[0, 0, 0], [0, 0, 30]]
    assert len(tsds.merge_tiles([whole, part], where)[0]["boxes"]) == 2
    assert tsds.merge_tiles([whole, part], where, match="ios")[0]["boxes"].tolist() == [[0, 0, 40, 10]]
    assert len(tsds.merge_tiles([whole, part], where, max_detections=1)[0]["boxes"]) == 1
    assert tsds.merge_tiles([], np.empty((0, 3))) == {}


def test_bad_predictions_are_named(folder: Path) -> None:
    tiles = tsds.Tiles(stored(folder, "raw"), SIZE)
    one: dict[str, Any] = {"boxes": torch.zeros(2, 4), "scores": torch.zeros(2)}
    where = [[0, 0, 0], [0, 0, 3]]
    for predictions, positions, options, expected in (
        ([one], tiles, {}, r"tiles.*\(1, 3\)"),
        ([one, one], [[0, 0], [1, 1]], {}, r"tiles.*\(2, 3\)"),
        ([one, one], where, {"iou_threshold": 1.5}, "iou_threshold"),
        ([one, one], where, {"match": "giou"}, "match"),
        ([one, {"boxes": torch.zeros(2, 4)}], where, {}, "prediction 1: expected boxes, scores"),
        ([{"scores": torch.zeros(1)}, one], where, {}, "prediction 0: expected boxes and scores"),
        ([one, {**one, "scores": torch.zeros(3)}], where, {}, r"prediction 1: .*scores \(3,\)"),
        ([one, {**one, "boxes": torch.zeros(2, 5)}], where, {}, r"prediction 1: .*boxes \(2, 5\)"),
        ([one] * len(tiles), tiles.with_decode(tsds.CenterCrop(20)), {}, "decode plan"),
    ):
        with pytest.raises(OptionError, match=expected):
            tsds.merge_tiles(predictions, positions, **options)
