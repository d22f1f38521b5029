"""Images that are cut into tiles while they are converted: compared with slices by NumPy and boxes by hand."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import write
from tensorstore_ds.annex.openers import tiff
from tensorstore_ds.conversion import workers
from tensorstore_ds.conversion.values import ImageTiles
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.imaging import picture
from tensorstore_ds.imaging.outlines import mask_of_runs, runs_of_mask

SIZES = {"a": (100, 170), "b": (64, 64), "c": (20, 90), "d": (130, 30)}


def pictures(channels: int = 3) -> dict[str, NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(1, 256, (*size, channels), np.uint8) for name, size in SIZES.items()}


def folder(root: Path, suffix: str = "png") -> Path:
    for i, (name, pixels) in enumerate(pictures().items()):
        path = root / "xy"[i % 2] / f"{name}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


def starts(length: int, size: int, overlap: float) -> list[int]:
    """The rule, step by step."""
    if length <= size:
        return [0]
    found = [0]
    while found[-1] + size < length:
        found.append(min(found[-1] + max(1, round(size * (1 - overlap))), length - size))
    return found


def cut(image: NDArray[Any], y: int, x: int, size: tuple[int, int], fill: int = 0) -> NDArray[Any]:
    result = np.full((*size, *image.shape[2:]), fill, image.dtype)
    part = image[y : y + size[0], x : x + size[1]]
    result[: part.shape[0], : part.shape[1]] = part
    return result


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize(
    ("size", "overlap", "workers"), [((64, 64), 0.2, 2), ((32, 48), 0, 0), ((50, 40), 0.5, 0), ((7, 300), 0.9, 0)]
)
def test_all_tiles_of_all_images(
    tmp_path: Path, suffix: str, workers: int, size: tuple[int, int], overlap: float
) -> None:
    source = folder(tmp_path / "s", suffix)
    out = tmp_path / "o.tsds"
    tsds.convert(source, out, cut=ImageTiles(size, overlap=overlap), workers=workers)
    split, images = tsds.open(out)["train"], pictures()
    expected = [
        (f"{'xy'[i % 2]}/{name}.{suffix}", y, x, images[name], i % 2)
        for i, name in sorted(enumerate(images), key=lambda each: (each[0] % 2, each[0]))
        for y in starts(SIZES[name][0], size[0], overlap)
        for x in starts(SIZES[name][1], size[1], overlap)
    ]
    assert [split.key(row) for row in range(len(split))] == [f"{key}#{y:05d},{x:05d}" for key, y, x, _, _ in expected]
    for row, (_, y, x, image, label) in enumerate(expected):
        np.testing.assert_array_equal(split["image"][row], cut(image, y, x, size))
        bottom, right = min(y + size[0], image.shape[0]), min(x + size[1], image.shape[1])
        assert split["source_box"][row].tolist() == [x, y, right, bottom]
        assert split["label"][row] == label
    assert tsds.verify(out) == []


def test_large_tiff_is_read_only_where_a_tile_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    monkeypatch.setattr(tiff, "LARGE_NBYTES", 1000)
    pixels = np.random.default_rng(1).integers(0, 65536, (150, 210, 5)).astype(np.uint16)
    (tmp_path / "s/a").mkdir(parents=True)
    layout = {"tile": (32, 32), "compression": "zlib", "photometric": "minisblack", "planarconfig": "contig"}
    tifffile.imwrite(tmp_path / "s/a/x.tif", pixels, bigtiff=True, **layout)
    read, sizes = tiff.TiffImage.read, []

    def watched(self: Any, *box: int) -> Any:
        sizes.append((box[2] - box[0], box[3] - box[1]))
        return read(self, *box)

    monkeypatch.setattr(tiff.TiffImage, "read", watched)
    # The image has more pixels than the limit, which the tiles keep to.
    tsds.convert(tmp_path / "s", tmp_path / "o.tsds", cut=ImageTiles(64), workers=0, max_pixels=5000)
    split = tsds.open(tmp_path / "o.tsds")["train"]
    for row in range(len(split)):
        x, y = map(int, split["source_box"][row][:2])
        np.testing.assert_array_equal(split["image"][row], cut(pixels, y, x, (64, 64)))
    assert set(sizes) == {(64, 64)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_worker_opens_an_image_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file that its parent has open, workers would move each other's position, and read other bytes."""
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    monkeypatch.setattr(tiff, "LARGE_NBYTES", 1000)
    monkeypatch.setattr(workers, "start_method", lambda: "fork")
    pixels = np.random.default_rng(1).integers(0, 256, (400, 300, 3), np.uint8)
    (tmp_path / "s/a").mkdir(parents=True)
    tifffile.imwrite(tmp_path / "s/a/x.tif", pixels, tile=(32, 32))
    make, read, owners = tiff.TiffImage.__init__, tiff.TiffImage._bytes, dict[int, int]()

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        owners[id(self)] = os.getpid()

    def bytes_at(self: Any, offset: int, nbytes: int) -> bytes:
        assert owners[id(self)] == os.getpid()
        return read(self, offset, nbytes)

    monkeypatch.setattr(tiff.TiffImage, "__init__", made)
    monkeypatch.setattr(tiff.TiffImage, "_bytes", bytes_at)
    tsds.convert(tmp_path / "s", tmp_path / "o.tsds", cut=ImageTiles(64, overlap=0.2), workers=2)
    split = tsds.open(tmp_path / "o.tsds")["train"]
    for row in range(len(split)):
        x, y = map(int, split["source_box"][row][:2])
        np.testing.assert_array_equal(split["image"][row], cut(pixels, y, x, (64, 64)))


def test_an_image_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, decode, decoded = folder(tmp_path / "s"), picture.open_decoded, []

    def counted(*args: Any, **options: Any) -> Any:
        decoded.append(options["key"])
        return decode(*args, **options)

    monkeypatch.setattr(picture, "open_decoded", counted)
    tsds.convert(source, tmp_path / "o.tsds", cut=ImageTiles(16), workers=0)
    assert len(decoded) <= len(SIZES) + 1  # the first one also tells what the rows are


BOXES = np.array([[2, 3, 30, 20], [60, 60, 70, 70], [0, 0, 170, 100], [150, 80, 169, 99]], np.float64)


def annotated(count: int = 6) -> list[dict[str, Any]]:
    """The boxes, each with a polygon, a keypoint and a mask of its own; and a mask of the image."""
    images = []
    for i in range(count):
        rng = np.random.default_rng(i)
        runs = []
        for x1, y1, x2, y2 in BOXES.astype(int):
            mask = np.zeros((100, 170), np.bool_)
            mask[y1:y2, x1:x2] = rng.integers(0, 2, (y2 - y1, x2 - x1))
            runs.append(runs_of_mask(mask))
        images.append(
            {
                "key": f"{i}",
                "image": rng.integers(0, 256, (100, 170, 3), np.uint8),
                "mask": rng.integers(0, 3, (100, 170), np.uint8),
                "boxes": BOXES,
                "labels": np.arange(4),
                "keypoints": BOXES[:, None, :2] + 1,
                "rle": runs,
            }
        )
    return images


@pytest.mark.parametrize("min_visibility", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("size", [(64, 64), (40, 200)])
def test_objects_and_masks_of_a_tile(tmp_path: Path, min_visibility: float, size: tuple[int, int]) -> None:
    samples = annotated(2)
    names = ("p", "q", "r", "s")
    options: dict[str, Any] = {"workers": 0, "classes": names}
    tiles = ImageTiles(size, min_visibility=min_visibility)
    summary = tsds.convert(samples, tmp_path / "o.tsds", cut=tiles, **options)
    assert not summary.skipped  # what is in another tile is no problem
    split = tsds.open(tmp_path / "o.tsds")["train"]
    places = [(y, x) for y in starts(100, size[0], 0.2) for x in starts(170, size[1], 0.2)]
    assert len(split) == 2 * len(places)
    for row in range(len(split)):
        sample, (y, x) = samples[row // len(places)], places[row % len(places)]
        expected = []
        for i, (x1, y1, x2, y2) in enumerate(BOXES):
            left, top = max(x1, x) - x, max(y1, y) - y
            right, bottom = min(x2, x + size[1]) - x, min(y2, y + size[0]) - y
            seen = max(0, right - left) * max(0, bottom - top)
            if seen and seen >= min_visibility * (x2 - x1) * (y2 - y1):
                expected.append((i, [left, top, right, bottom]))
        objects = split["objects"][row]
        assert objects["labels"].tolist() == [i for i, _ in expected]
        np.testing.assert_array_equal(objects["boxes"], np.reshape([box for _, box in expected], (-1, 4)))
        for (i, _), keypoint, runs in zip(expected, objects["keypoints"], objects["rle"], strict=True):
            np.testing.assert_array_equal(keypoint[0], BOXES[i, :2] + 1 - (x, y))
            whole = mask_of_runs(sample["rle"][i], (100, 170), "")
            np.testing.assert_array_equal(mask_of_runs(runs, size, ""), cut(whole, y, x, size))
        np.testing.assert_array_equal(split["image"][row], cut(sample["image"], y, x, size))
        np.testing.assert_array_equal(split["mask"][row], cut(sample["mask"], y, x, size, 255))  # ignored


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_empty_tiles_are_chosen_by_their_share(tmp_path: Path, share: float) -> None:
    box = np.array([[5.0, 5, 9, 9]])
    samples = [
        {"key": f"{i}", "image": np.zeros((80, 80, 3), np.uint8), "boxes": box, "labels": np.zeros(1, np.int64)}
        for i in range(40)
    ]
    options: dict[str, Any] = {"workers": 0, "classes": ("x",), "cut": ImageTiles(8, overlap=0, empty=share)}
    tsds.convert(samples, tmp_path / "o.tsds", **options)
    split = tsds.open(tmp_path / "o.tsds")["train"]
    counts = [len(split["objects"][row]["boxes"]) for row in range(len(split))]
    full = 40 * 4  # the box is in four tiles of each image
    assert sum(count > 0 for count in counts) == full
    assert abs(len(counts) - full - share * 40 * 96) <= (0 if share in (0, 1) else 4 * 40)
    tsds.convert(samples, tmp_path / "p.tsds", **options)
    again = tsds.open(tmp_path / "p.tsds")["train"]
    assert [again.key(row) for row in range(len(again))] == [split.key(row) for row in range(len(split))]


def test_tiles_of_an_image_stay_in_one_split(tmp_path: Path) -> None:
    samples = annotated(10)
    options: dict[str, Any] = {"workers": 0, "classes": tuple("pqrs"), "cut": ImageTiles(64)}
    tsds.convert(samples, tmp_path / "o.tsds", split_into={"train": 0.5, "val": 0.5}, **options)
    tsds.convert(samples, tmp_path / "one.tsds", **options)
    tsds.editing.split_store(tmp_path / "one.tsds", tmp_path / "p.tsds", {"train": 0.5, "val": 0.5})
    for path in (tmp_path / "o.tsds", tmp_path / "p.tsds"):
        store = tsds.open(path)
        keys = {name: [store[name].key(row) for row in range(len(store[name]))] for name in store}
        images = {name: {key.rpartition("#")[0] for key in found} for name, found in keys.items()}
        assert not images["train"] & images["val"] and {*map(len, images.values())} == {5}
        assert {len(found) for found in keys.values()} == {5 * 2 * 4}


def shapes(*boxes: list[float]) -> list[dict[str, Any]]:
    return [
        {"label": "x", "points": [box[:2], box[2:]], "shape_type": "rectangle", "group_id": None, "flags": {}}
        for box in boxes
    ]


def labelled(root: Path, *images: list[dict[str, Any]]) -> Path:
    for i, own in enumerate(images):
        write(root, {f"{i}.json": json.dumps({"version": "5", "shapes": own, "imagePath": f"{i}.png"})})
        Image.fromarray(np.full((40, 60, 3), i, np.uint8)).save(root / f"{i}.png")
    return root


def test_wrong_boxes_are_told_of_once(tmp_path: Path) -> None:
    source = labelled(tmp_path / "s", shapes([1, 1, 30, 30], [100, 5, 120, 9]), shapes([2, 2, 50, 30]))
    with pytest.raises(SourceError, match=r"0\.png: object 2 of 2"):
        tsds.convert(source, tmp_path / "o.tsds", cut=ImageTiles(32), workers=0)
    skipped = tsds.convert(source, tmp_path / "o.tsds", cut=ImageTiles(32), workers=0, on_error="skip")
    assert (skipped.skipped, skipped.rows) == ({"box-outside": 1}, {"train": 12})
    whole = tsds.convert(source, tmp_path / "p.tsds", cut=ImageTiles(32), workers=0, on_error="skip-image")
    assert whole.rows == {"train": 6}


@pytest.mark.parametrize("good", [[], [[33, 2, 50, 6]]])
def test_wrong_boxes_of_images_whose_first_tile_is_empty(tmp_path: Path, good: list[list[float]]) -> None:
    source = labelled(tmp_path / "s", shapes(*good, [100, 5, 120, 9]), shapes([2, 2, 20, 6]))
    options: dict[str, Any] = {"cut": ImageTiles(32, overlap=0, empty=0), "workers": 0}
    with pytest.raises(SourceError, match=rf"0\.png: object {len(good) + 1} of .* lies outside"):
        tsds.convert(source, tmp_path / "o.tsds", **options)
    skipped = tsds.convert(source, tmp_path / "o.tsds", on_error="skip", **options)
    assert (skipped.skipped, skipped.rows, skipped.skipped_boxes) == ({"box-outside": 1}, {"train": 1 + len(good)}, 1)
    assert tsds.estimate(source, on_error="skip", **options).rows == skipped.rows
    whole = tsds.convert(source, tmp_path / "p.tsds", on_error="skip-image", **options)
    assert (whole.skipped, whole.rows) == ({"box-outside": 1}, {"train": 1})


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    source = folder(tmp_path / "s")
    (source / "x/bad.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    with pytest.raises(SourceError, match=r"bad.png: this image's header is damaged"):
        tsds.convert(source, tmp_path / "o.tsds", cut=ImageTiles(32), workers=0)
    data = (source / "y/b.png").read_bytes()
    (source / "y/b.png").write_bytes(data[: len(data) // 2])
    summary = tsds.convert(source, tmp_path / "o.tsds", cut=ImageTiles(64), workers=0, on_error="skip")
    keys = [tsds.open(summary.path)["train"].key(row) for row in range(summary.rows["train"])]
    assert {key.partition("#")[0] for key in keys} == {"x/a.png", "x/c.png", "y/d.png"}


def test_tiles_with_other_options(tmp_path: Path) -> None:
    source = folder(tmp_path / "s")
    options = {"size": 16, "encoding": "jpeg", "color": "gray"}
    summary = tsds.convert(source, tmp_path / "o.tsds", cut=ImageTiles(64), workers=0, **options)
    split = tsds.open(summary.path)["train"]
    with Image.open(io.BytesIO(bytes(split["image"][0]))) as image:
        assert (image.size, image.mode) == ((16, 16), "L")
    found = tsds.estimate(source, cut=ImageTiles(64), workers=1)
    assert found.rows == summary.rows and found.sizes == {"64x64": summary.rows["train"]}


def test_append_cuts_as_the_store_was_cut(tmp_path: Path) -> None:
    source = folder(tmp_path / "s")
    before = tsds.convert(source, tmp_path / "o.tsds", cut=ImageTiles(64), workers=0)
    Image.fromarray(pictures()["a"][::-1].copy()).save(source / "x/later.png")
    tsds.append(tmp_path / "o.tsds", source, workers=0)
    split = tsds.open(tmp_path / "o.tsds")["train"]
    added = [split.key(row) for row in range(before.rows["train"], len(split))]
    places = [(y, x) for y in starts(100, 64, 0.2) for x in starts(170, 64, 0.2)]
    assert added == [f"x/later.png#{y:05d},{x:05d}" for y, x in places]


@pytest.mark.filterwarnings("ignore:deprecated")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tiles": 0}, "`tiles`"),
        ({"tiles": 40_000}, "`tiles`"),
        ({"tiles": 64, "overlap": 1.0}, "`overlap`"),
        ({"overlap": 0.5}, "belongs to `tiles`"),
        ({"empty_tiles": 0.5}, "belongs to `tiles`"),
        ({"tiles": 64, "encoding": "source"}, "parts of images"),
        ({"tiles": 64, "objects": "crops"}, "leave out one of them"),
        ({"tiles": 64, "max_pixels": 100}, "at most `max_pixels`, 100 pixels"),
        ({"tiles": 64, "empty_tiles": 0.5}, "expected objects with boxes"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        tsds.convert(folder(tmp_path / "s"), tmp_path / "o.tsds", workers=0, **options)


def test_a_stream_is_not_cut(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`tiles`: expected a folder, a file or a list, found a stream"):
        tsds.convert(iter(annotated(1)), tmp_path / "o.tsds", cut=ImageTiles(64), classes=tuple("pqrs"))
