"""Decode plans give the pixels of decoding everything and using torchvision; objects and masks follow."""

import dataclasses
import io
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional as TF  # noqa: N812

import antialiased
import tensorstore_ds as tsds
from jpeg_files import drawn, oriented
from stores import png_bytes, store_of
from tensorstore_ds import native
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.imaging.jpeg import encode_jpeg, find_restarts
from tensorstore_ds.loading import decoding

CROP = tsds.RandomResizedCrop((40, 56), scale=(0.05, 1.0), seed=3)


SCALED = {
    "crop": tsds.Compose([tsds.RandomResizedCrop((20, 28), scale=(0.2, 1.0)), tsds.RandomHorizontalFlip()]),
    "validate": tsds.Compose([tsds.Resize(30, exact=False), tsds.CenterCrop(26)]),
    "letterbox": tsds.transforms.Letterbox((50, 40), fill=9, exact=False),
    "usual, just a quarter": tsds.Compose([tsds.Resize(34), tsds.RandomCrop(28)]),
    "twice": tsds.Compose([tsds.RandomResizedCrop(70, scale=(0.5, 1.0)), tsds.Resize(24), tsds.RandomCrop(19)]),
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A store of JPEG files of all orientations, with restart markers and without; and these files."""
    folder = tmp_path_factory.mktemp("scaled")
    (folder / "in").mkdir()
    files = []
    for i in range(16):
        pixels, chroma = drawn(*((213, 301), (200, 136))[i % 2 ^ i // 8], seed=i), ("4:2:0", "4:4:4")[i % 3 == 1]
        files.append(oriented(pixels, 1 + i % 8, subsampling=chroma, restart_marker_blocks=i // 8))
        (folder / "in" / f"{i:02}.jpg").write_bytes(files[-1])
    tsds.convert(folder / "in", folder / "s.tsds", tsds.ConvertOptions(encoding="source", workers=0))
    return folder / "s.tsds", files


def placed(file, placements, row):
    """(H, W, C): what a plan makes of a file that is decoded at 1/2, 1/4 or 1/8, one number after the other."""
    origin, extent = placements.origin[row], placements.extent[row]
    (height, width), (top, left) = placements.resized[row].tolist(), placements.offset[row].tolist()
    scale = 2 ** min(3, max(0, math.floor(math.log2(min(extent / (height, width))))))
    image = Image.open(io.BytesIO(file))
    orientation = image.getexif().get(0x0112, 1)
    image.draft("RGB", (image.width // scale, image.height // scale))
    pixels = np.asarray(ImageOps.exif_transpose(image))
    lines = []
    for o, e, n, pixel_count, length, mirrored in zip(
        origin, extent, (height, width), pixels.shape, shown(file), ((3, 4, 7, 8), (2, 3, 6, 7)), strict=False
    ):  # of a mirrored image, the pixel that reaches beyond the edge is the first
        beyond = pixel_count * scale - length if orientation in mirrored else 0
        lines.append((float((o + beyond) / scale), float(e / scale), n, pixel_count))
    canvas = np.full((*placements.size[row], 3), placements.fill or 0, np.uint8)
    whole = antialiased.resized(pixels, *lines)
    rows, columns = (np.arange(a, a + n) for a, n in ((top, height), (left, width)))
    inside = [(each >= 0) & (each < n) for each, n in zip((rows, columns), canvas.shape, strict=False)]
    canvas[np.ix_(rows[inside[0]], columns[inside[1]])] = whole[np.ix_(*inside)]
    return canvas[:, ::-1] if placements.flip[row] else canvas


def shown(file):
    """(height, width) of an image file, upright."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(file))).size[::-1]


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("plan", SCALED.values(), ids=SCALED)
def test_images_that_are_decoded_smaller_are_resized_at_fractions_of_pixels(photographs, plan, monkeypatch):
    path, files = photographs
    dataset, rows = tsds.StoreDataset(path, decode=plan), np.arange(len(files))
    compiled = dataset.gather(rows).columns["image"]
    monkeypatch.setattr(native, "core", None)
    plain = dataset.gather(rows).columns["image"]
    shapes = np.array([[*shown(file), 3] for file in files], np.int32)
    placements = decoding.place_on(decoding.Placements.whole(shapes[:, :2]), plan, rows, 0)
    for row, file in enumerate(files):
        expected = placed(file, placements, row)
        for found in (compiled, plain):
            np.testing.assert_array_equal(found[row].permute(1, 2, 0), expected, str(row))


EDGES = {
    "a canvas without any of the image": (
        (4, 4),
        [tsds.transforms.Pad((20, 0, 0, 0), fill=9), tsds.CenterCrop(4), tsds.Resize((8, 6))],
        lambda _: torch.full((3, 8, 6), 9, dtype=torch.uint8),
    ),
    "8 times as large, seen from 2 lines after one at which a pixel begins": (
        (12, 15),
        [tsds.Resize(96), tsds.CenterCrop((92, 84))],
        lambda image: TF.center_crop(TF.resize(image, [96]), [92, 84]),
    ),
    "seen from 1/4 pixel beside the edge of one": (
        (8, 2501),
        [tsds.Resize((8, 1251)), tsds.CenterCrop((8, 60))],
        lambda image: TF.center_crop(TF.resize(image, [8, 1251]), [8, 60]),
    ),
    "padded after a crop, whose edges are made of pixels beyond it": (
        (17, 23),
        [tsds.Resize(240), tsds.CenterCrop(35), tsds.transforms.Pad(18)],
        lambda image: TF.pad(TF.center_crop(TF.resize(image, [240]), [35]), [18]),
    ),
}


@pytest.mark.parametrize(("size", "steps", "reference"), EDGES.values(), ids=EDGES)
def test_parts_of_resized_images(tmp_path, size, steps, reference):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    store = store_of(tmp_path / "s.tsds", [image], encoding="raw")
    found = tsds.StoreDataset(store, decode=tsds.Compose(steps))[0]["image"]
    assert torch.equal(found, reference(torch.from_numpy(image).permute(2, 0, 1)))


# --- keypoints and damaged images


def damaged(path, rows, count):
    """A store of JPEG files. Some are damaged in their second half."""
    samples = [{"image": drawn(80, 80, seed=i), "label": i} for i in range(count)]
    path = store_of(path, samples, list("abcdefgh"[:count]), encoding="jpeg").path
    offsets = tsds.open(path)["train"].table("image").offsets.tolist()
    data = next(each for each in path.rglob("image/bytes/**/*") if each.is_file() and each.stat().st_size > 1000)
    changed = bytearray(data.read_bytes())
    for row in rows:
        middle, stop = (offsets[row] + offsets[row + 1]) // 2, offsets[row + 1]
        changed[middle:stop] = b"\xf7" * (stop - middle)
    data.write_bytes(bytes(changed))
    return path


@pytest.mark.slow
def test_a_damaged_image_is_named_or_replaced(tmp_path):
    path, plan = damaged(tmp_path / "s.tsds", [2], 6), tsds.Resize((40, 40))
    with pytest.raises(SourceError, match="00002: this image is damaged"):
        tsds.StoreDataset(path, decode=plan).gather(range(6))
    with pytest.raises(SourceError, match="00002: this image is damaged"):
        list(tsds.DataLoader(tsds.StoreDataset(path), 6, decode=plan, num_workers=1))
    dataset = tsds.StoreDataset(path, decode=plan, on_error="replace")
    loader = tsds.DataLoader(dataset, 3, num_threads=2)
    labels = [label for batch in loader for label in batch["label"].tolist()]
    assert labels[:2] + labels[3:] == [0, 1, 3, 4, 5] and labels[2] != 2
    assert loader.stats().replaced == 1
    assert [label for batch in tsds.DataLoader(dataset, 2) for label in batch["label"].tolist()] == labels  # determined


def test_replacements_in_a_mixture_have_their_own_rows(tmp_path):
    path = damaged(tmp_path / "s.tsds", [2, 4], 6)
    whole = tsds.StoreDataset(path, on_error="replace")
    chosen = [5, 2, 0, 4]
    batch = tsds.MixedDataset([whole, whole.subset(chosen)]).gather(range(10))
    of_rows = [*range(6), *chosen]
    assert [of_rows[row] for row in batch.rows] == batch.columns["label"].tolist()
    assert (batch.rows < 6).tolist() == [True] * 6 + [False] * 4 and (batch.rows != np.arange(10)).sum() == 4


def test_replacing_ends_where_all_images_are_damaged(tmp_path):
    dataset = tsds.StoreDataset(damaged(tmp_path / "s.tsds", range(7), 8), on_error="replace")
    for seed in range(6):
        loader = tsds.DataLoader(dataset, 8, seed=seed)
        assert [batch["label"].tolist() for batch in loader] == [[7] * 8]  # also with damaged images
    dataset = tsds.StoreDataset(dataset.path, on_error="replace").subset([1, 3])
    with pytest.raises(SourceError, match=r"00001: this image is damaged .* 64 images that were drawn instead of"):
        dataset.gather([0, 1])
    assert len(dataset.replaced) == 64


@pytest.mark.parametrize("dtype", [np.uint16, np.float16, np.float32])
def test_other_types_of_pixels_are_resized_as_numbers(tmp_path, dtype):
    """Floating-point values are not rounded to integers."""
    largest = 1000 if dtype == np.uint16 else 1
    images = [(np.random.default_rng(i).random((30, 40, 2)) * largest).astype(dtype) for i in range(3)]
    store = store_of(tmp_path / "s.tsds", images)
    got = tsds.StoreDataset(store, decode=tsds.Resize((12, 50))).gather(range(3)).columns["image"]
    want = TF.resize(torch.from_numpy(np.stack(images).astype(np.float32)).permute(0, 3, 1, 2), [12, 50])
    assert got.dtype == torch.from_numpy(np.empty(0, dtype)).dtype
    torch.testing.assert_close(got.float(), want.round() if dtype == np.uint16 else want, atol=1e-3, rtol=1e-5)


def test_several_keypoints_are_mirrored_only_with_pairs(tmp_path):
    sample = {"image": drawn(20, 40), "boxes": [[2, 3, 12, 13]], "labels": [0], "keypoints": [[[3, 4], [9, 5]]]}
    flip, stored = tsds.RandomHorizontalFlip(1.0), {}
    for name, pairs in (("none", ()), ("pairs", ((0, 1),))):
        keypoints = tsds.Keypoints(("one", "other"), pairs)
        stored[name] = store_of(tmp_path / f"{name}.tsds", [sample], ["a"], keypoints=keypoints)
    for make in (
        lambda: tsds.RandomHorizontalFlip.from_split(stored["none"]["train"]),
        lambda: tsds.StoreDataset(stored["none"], decode=flip),
        lambda: tsds.DataLoader(tsds.StoreDataset(stored["none"]), decode=tsds.Compose([tsds.CenterCrop(8), flip])),
    ):
        with pytest.raises(OptionError, match="found none for 2 keypoints"):
            make()
    without = tsds.StoreDataset(stored["none"], decode=tsds.RandomHorizontalFlip(1.0, flip_pairs=()))
    assert without[0]["objects"]["keypoints"].tolist() == [[[37, 4], [31, 5]]]
    for step in (flip, tsds.RandomHorizontalFlip.from_split(stored["pairs"]["train"], 1.0)):
        found = tsds.StoreDataset(stored["pairs"], decode=step)[0]["objects"]["keypoints"]
        assert found.tolist() == [[[31, 5], [37, 4]]]
    images = tsds.StoreDataset(stored["none"], fields=["image"], decode=flip)
    assert images[0]["image"].shape == (3, 20, 40)


def test_pixels_are_decoded_into_memory_of_the_thread(tmp_path):
    samples = [{"image": drawn(300, 400), "label": 0}]
    split = store_of(tmp_path / "s.tsds", samples, ["a"], encoding="jpeg")["train"]
    reader, placements = decoding.ImageReader(split), decoding.Placements.whole([[300, 400]])
    for size in ((300, 400), (75, 100)):
        (window,) = decoding.windows_of(placements.resize(size), placements.size)
        buffer = decoding._scratch_of(window)
        pixels = reader.read(0, decoding.JpegSegment(*window.low, *window.high), window.scale, buffer)
        assert np.shares_memory(pixels.array, buffer) and decoding._scratch_of(window) is buffer


def test_gray_pixels_among_colored_ones_are_placed_as_rgb(tmp_path):
    images = [np.random.default_rng(i).integers(0, 256, (9 + i, 8, 1 + 2 * i), np.uint8) for i in range(2)]
    split = store_of(tmp_path / "s.tsds", [{"image": image} for image in images], encoding="raw")
    batch = tsds.StoreDataset(split, decode=tsds.CenterCrop(8)).gather(range(2)).columns["image"]
    for got, image in zip(batch, images, strict=True):
        colored = np.broadcast_to(image, (*image.shape[:2], 3)).copy()
        assert torch.equal(got, TF.center_crop(torch.from_numpy(colored).permute(2, 0, 1), [8, 8]))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_file_alone_is_resized_and_made_gray_after(channels):
    data = png_bytes(drawn(40, 30)[:, :, :channels].squeeze())
    gray, size = decoding.decode_resized(data, (20, 25), is_gray=True, key="k")
    image = np.asarray(Image.open(io.BytesIO(data))).reshape(40, 30, channels)
    whole = TF.resize(torch.from_numpy(image.transpose(2, 0, 1).copy()), [20, 25], antialias=True)
    want = np.asarray(TF.to_pil_image(whole).convert("L"))
    assert size == (40, 30) and gray.shape == (20, 25, 1)
    np.testing.assert_array_equal(gray[:, :, 0], want)


# --- what goes wrong


@pytest.mark.parametrize(
    "make",
    [
        lambda: tsds.Resize(8.5),
        lambda: tsds.Resize((8.5, 9)),
        lambda: tsds.Resize(0),
        lambda: tsds.Resize(2**16),
        lambda: tsds.Resize(8, max_size=8),
        lambda: tsds.CenterCrop((8, 9, 10)),
        lambda: tsds.transforms.Letterbox("8"),
        lambda: tsds.RandomResizedCrop(8, scale=0.5),
        lambda: tsds.RandomResizedCrop(8, scale=(0.1, 0.2, 0.3)),
        lambda: tsds.RandomResizedCrop(8, ratio=(1, float("inf"))),
        lambda: tsds.RandomResizedCrop(8, scale=(float("nan"), 1)),
    ],
)
def test_sizes_and_limits_that_make_no_sense_are_refused(make):
    with pytest.raises(OptionError, match="expected"):
        make()


def test_sizes_may_be_numpys_and_a_fill_must_fit(tmp_path):
    path = store_of(tmp_path / "s.tsds", [{"image": drawn(8, 9), "label": 0}], ["a"]).path
    assert tsds.StoreDataset(path, decode=tsds.Resize(np.int64(4)))[0]["image"].shape == (3, 4, 4)
    with pytest.raises(OptionError, match="fill`: expected a value of uint8, found 300"):
        tsds.StoreDataset(path, decode=tsds.transforms.Pad(2, fill=300))[0]


def test_a_file_that_is_not_of_its_shape_is_named():
    data = encode_jpeg(drawn(80, 112), 90)
    from tensorstore_ds.imaging.jpeg import JpegSegment
    from tensorstore_ds.reading.stored_images import decode_part

    with pytest.raises(SourceError, match="k: expected 80 x 111 x 3, as the store says, found 80 x 112 x 3"):
        decode_part(data, JpegSegment(0, 0, 10, 10), shape=(80, 111, 3), restarts=find_restarts(data), key="k")


def test_a_plan_of_other_steps_is_refused(tmp_path):
    path = store_of(tmp_path / "s.tsds", [{"image": drawn(8, 8), "label": 0}], ["a"]).path
    for plan in (
        tsds.transforms.ColorJitter(0.1),
        tsds.Compose([tsds.CenterCrop(4), tsds.Normalize([0.5], [0.5])]),
        "device?",
        3,
    ):
        with pytest.raises(OptionError, match="decode"):
            tsds.StoreDataset(path, decode=plan)
        with pytest.raises(OptionError, match="decode"):
            tsds.DataLoader(tsds.StoreDataset(path), decode=plan)
    labels = tsds.StoreDataset(path, fields=("label",))
    for make in (
        lambda: tsds.StoreDataset(path, decode=CROP, fields=("label",)),
        lambda: tsds.DataLoader(labels, decode=CROP),
    ):
        with pytest.raises(OptionError, match="decode`: expected a field image"):
            make()
    with pytest.raises(OptionError, match="on_error"):
        tsds.StoreDataset(path, on_error="skip")
    with pytest.raises(OptionError, match="decode`: expected a StoreDataset"):
        tsds.DataLoader([1, 2], decode=CROP)
    with pytest.raises(ValueError, match="fill: expected one"):
        tsds.StoreDataset(path, decode=tsds.Compose([tsds.transforms.Pad(1), tsds.transforms.Letterbox((20, 30))]))[0]
    with pytest.raises(OptionError, match="padding_mode`: expected constant in a decode plan"):
        tsds.StoreDataset(path, decode=tsds.RandomCrop(4, padding=1, padding_mode="edge"))[0]
    with pytest.raises(OptionError, match="a decode plan works on the CPU"):
        tsds.DataLoader(tsds.StoreDataset(path), 2, decode=CROP, device="cpu", residency="device")


def test_images_of_any_size_are_a_list_where_the_plan_keeps_their_sizes(tmp_path):
    samples = [{"image": drawn(20 + 4 * (i // 2), 30, seed=i), "label": 0} for i in range(4)]
    path = store_of(tmp_path / "s.tsds", samples, ["a"], encoding="jpeg").path
    for plan, is_list in (
        (tsds.Resize(10), True),
        (tsds.transforms.Pad(2), True),
        (tsds.Compose([tsds.Resize(10), tsds.CenterCrop(8)]), False),
    ):
        for batch in tsds.DataLoader(tsds.StoreDataset(path), 2, decode=plan):
            assert isinstance(batch["image"], list) == is_list


def to_8_bits(sample):
    image = sample["image"]
    return {**sample, "image": (image.to(torch.int32) >> 8).to(torch.uint8) if image.dtype == torch.uint16 else image}


def test_16_bits_among_8_are_not_damaged(tmp_path, monkeypatch):
    """The message names the file, ``replace`` does not hide it, and both pieces of its advice work."""
    monkeypatch.setattr("tensorstore_ds.annex.editing.edit.check_depths", lambda *_: None)  # as older versions merged
    rng, both = np.random.default_rng(0), tmp_path / "both"
    both.mkdir()
    for name, dtype, count in (("low", np.uint8, 3), ("high", np.uint16, 2)):
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.fromarray(rng.integers(0, 256, (20, 30 + i)).astype(dtype)).save(tmp_path / name / f"{name}{i}.png")
            shutil.copy(tmp_path / name / f"{name}{i}.png", both)
        options = tsds.ConvertOptions(workers=0, encoding="source")
        tsds.convert(tmp_path / name, tmp_path / f"{name}.tsds", options)
    tsds.editing.merge_stores([tmp_path / "low.tsds", tmp_path / "high.tsds"], tmp_path / "m.tsds")

    def batch(store, **options):
        dataset = tsds.StoreDataset(tmp_path / store, decode=tsds.Resize((16, 16)), **options)
        return next(iter(tsds.DataLoader(dataset, 5)))

    for on_error in ("raise", "replace"):
        with pytest.raises(SourceError, match=r"^high0.png: expected 1 x uint8 .*, found 1 x uint16\. ") as caught:
            batch("m.tsds", on_error=on_error)
        assert not isinstance(caught.value, decoding.DamagedImageError)
    assert tuple(batch("m.tsds", transform=to_8_bits)["image"].shape) == (5, 1, 16, 16)
    tsds.convert(both, tmp_path / "again.tsds", dataclasses.replace(options, on_error="skip"))
    assert tuple(batch("again.tsds")["image"].shape) == (3, 1, 16, 16)


def test_images_that_have_the_size_stay_as_they_are_beside_others():
    both, sizes = decoding.Placements.whole([[40, 60], [40, 60]]).crop(5, [[16, 16], [30, 20]]), [[16, 16], [16, 16]]
    fit, other = (decoding.Placements.whole([40, 60]).crop(5, size) for size in ((16, 16), (30, 20)))
    assert fit.resize((16, 16)) is fit
    for found, *parts in zip(*map(dataclasses.astuple, (both.resize(sizes), fit, other.resize((16, 16)))), strict=True):
        assert np.array_equal(found, np.concatenate(parts)) if isinstance(found, np.ndarray) else [found] * 2 == parts


def test_random_crops_are_decoded_smaller_unless_asked_for():
    sizes = np.array([[800, 800, 3]] * 2, np.int32)
    rows = np.arange(2)
    for plan, is_exact in (
        (tsds.Resize(50), True),
        (tsds.Resize(50, exact=False), False),
        (tsds.transforms.Letterbox(50), True),
        (tsds.RandomResizedCrop(50), False),
        (tsds.RandomResizedCrop(50, exact=True), True),
        (tsds.Compose([tsds.Resize(60), tsds.RandomCrop(50)]), False),
        (tsds.Compose([tsds.Resize(60, exact=True), tsds.RandomCrop(50)]), True),
        (tsds.Compose([tsds.Resize(60), tsds.RandomHorizontalFlip()]), True),
        (None, True),
    ):
        placements = decoding.place_on(decoding.Placements.whole(sizes[:, :2]), plan, rows, 0)
        assert placements.is_exact == is_exact
        scales = {window.scale for window in decoding.windows_of(placements, sizes[:, :2])}
        assert (scales == {1}) == is_exact, plan
