"""TIFF files that are read by parts: compared with the arrays that tifffile wrote, and with Pillow's JPEG files."""

from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from stores import image_file
from tensorstore_ds.annex.openers import tiff
from tensorstore_ds.annex.openers.tiff import open_tiff
from tensorstore_ds.errors import ConversionError, SourceError
from tensorstore_ds.imaging.picture import open_picture

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")

HEIGHT, WIDTH = 203, 317
LAYOUTS: dict[str, dict[str, Any]] = {
    "tiles": {"tile": (64, 48)},
    "tiles, deflate": {"tile": (64, 64), "compression": "zlib", "predictor": True},
    "one strip": {"rowsperstrip": HEIGHT},
    "strips": {"rowsperstrip": 7},
    "strips, LZW": {"rowsperstrip": 16, "compression": "lzw"},
    "strips, zstd": {"rowsperstrip": 7, "compression": "zstd"},
    "tiles, LZMA": {"tile": (64, 64), "compression": "lzma"},
    "tiles, PackBits": {"tile": (64, 64), "compression": "packbits"},
}


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of this size are read in several bands."""
    monkeypatch.setattr(tiff, "LARGE_NBYTES", 1000)
    monkeypatch.setattr(tiff, "BAND_NBYTES", 20_000)


def picture(channels: int, dtype: str = "uint8", height: int = HEIGHT, width: int = WIDTH) -> NDArray[Any]:
    """Blocks of colors with noise, so that it is neither flat nor without any structure."""
    rng = np.random.default_rng([channels, height, width])
    blocks = rng.integers(0, 200, (height // 8 + 1, width // 8 + 1, channels)).repeat(8, 0).repeat(8, 1)
    pixels = blocks[:height, :width] + rng.integers(0, 50, (height, width, channels))
    return (pixels * (250 if dtype == "uint16" else 1)).astype(dtype)


def write(path: Path, pixels: NDArray[Any], *, big: bool = True, order: Any = "<", **layout: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = pixels.shape[2]
    is_color = channels in (3, 4) and layout.pop("is_color", channels == 3)
    array = pixels[:, :, 0] if channels == 1 else pixels
    if layout.get("planarconfig") == "separate":
        array = pixels.transpose(2, 0, 1)
    elif channels > 1:
        layout.setdefault("planarconfig", "contig")
    with tifffile.TiffWriter(path, bigtiff=big, byteorder=order) as file:
        file.write(array, photometric="rgb" if is_color else "minisblack", metadata=None, **layout)
    return path


def converted(folder: Path, out: Path, **options: Any) -> tsds.Split:
    tsds.convert(folder, out, **{"workers": 0, "encoding": "raw", **options})
    assert tsds.verify(out) == []
    return tsds.open(out)["train"]


def is_close(found: Any, pixels: NDArray[Any]) -> None:
    scale = {"uint8": 255, "uint16": 65535}.get(pixels.dtype.name, 1)
    np.testing.assert_allclose(found["mean"], pixels.mean((0, 1)) / scale, rtol=1e-6)
    np.testing.assert_allclose(found["std"], pixels.std((0, 1), dtype=np.float64) / scale, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.drawn(12)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("channels", "dtype"), [(3, "uint8"), (1, "uint8"), (1, "uint16"), (3, "uint16"), (5, "uint16"), (64, "uint8")]
)
def test_pixels_are_those_that_were_written(tmp_path: Path, layout: str, channels: int, dtype: str) -> None:
    big = (channels + [*LAYOUTS].index(layout)) % 2 == 0  # each kind of pixels and each layout in both forms
    pixels = picture(channels, dtype)
    write(tmp_path / "s/a/x.tif", pixels, big=big, **LAYOUTS[layout])
    split = converted(tmp_path / "s", tmp_path / "o.tsds")
    np.testing.assert_array_equal(split["image"][0], pixels)
    is_close(tsds.open(tmp_path / "o.tsds").manifest.splits["train"].statistics["image"], pixels)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", [{"rowsperstrip": 5}, {"tile": (32, 48)}, {"tile": (32, 48), "compression": "zlib"}])
def test_separate_planes_and_both_orders_of_bytes(tmp_path: Path, order: str, layout: dict[str, Any]) -> None:
    pixels = picture(3, "uint16")
    write(tmp_path / "s/a/x.tif", pixels, order=order, planarconfig="separate", **layout)
    np.testing.assert_array_equal(converted(tmp_path / "s", tmp_path / "o.tsds")["image"][0], pixels)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
@pytest.mark.parametrize("quality", [60, 90])
def test_jpeg_is_pillows_of_the_whole_image(tmp_path: Path, channels: int, subsampling: Any, quality: int) -> None:
    pixels = picture(channels)
    write(tmp_path / "s/a/x.tif", pixels, tile=(48, 64), compression="zlib")
    encoding = tsds.Jpeg(quality, subsampling)
    split = converted(tmp_path / "s", tmp_path / "o.tsds", encoding=encoding)
    data = bytes(split["image"][0])
    plain = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    file = image_file(plain, "JPEG", quality=quality, subsampling=subsampling)  # without restart markers: other bytes
    decoded, expected = (np.asarray(Image.open(io.BytesIO(each))) for each in (data, file))
    np.testing.assert_array_equal(decoded, expected)
    (tmp_path / "p/a").mkdir(parents=True)
    plain.save(tmp_path / "p/a/x.png")
    whole = converted(tmp_path / "p", tmp_path / "p.tsds", encoding=encoding)
    assert data == bytes(whole["image"][0])
    stores = [tsds.open(tmp_path / name).manifest.splits["train"].statistics["image"] for name in ("o.tsds", "p.tsds")]
    assert stores[0] == stores[1]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_pillows(tmp_path: Path, orientation: int) -> None:
    path = write(
        tmp_path / "s/a/x.tif", picture(3), big=False, tile=(64, 64), extratags=[(274, "H", 1, orientation, True)]
    )
    with Image.open(path) as image:
        expected = np.asarray(image)
    np.testing.assert_array_equal(converted(tmp_path / "s", tmp_path / "o.tsds")["image"][0], expected)


@pytest.mark.parametrize("color", ["auto", "gray", "rgb", "rgba"])
@pytest.mark.parametrize("kind", ["rgb", "rgba", "palette", "white is zero"])
def test_colors_are_pillows(tmp_path: Path, color: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pixels = tmp_path / "s/a/x.tif", picture(4 if kind == "rgba" else 3)
    path.parent.mkdir(parents=True)
    layout: dict[str, Any] = {"tile": (64, 64), "metadata": None}
    if kind == "palette":
        colors = (np.random.default_rng(0).integers(0, 256, (3, 256)) * 257).astype(np.uint16)
        tifffile.imwrite(path, pixels[:, :, 0], photometric="palette", colormap=colors, **layout)
    elif kind == "white is zero":
        tifffile.imwrite(path, pixels[:, :, 0], photometric="miniswhite", **layout)
    else:
        extra = {"extrasamples": ["unassalpha"]} if kind == "rgba" else {}
        tifffile.imwrite(path, pixels, photometric="rgb", planarconfig="contig", **extra, **layout)
    by_parts = converted(tmp_path / "s", tmp_path / "o.tsds", color=color)["image"][0]
    monkeypatch.setattr(tiff, "LARGE_NBYTES", 10**9)
    by_pillow = converted(tmp_path / "s", tmp_path / "p.tsds", color=color)["image"][0]
    np.testing.assert_array_equal(by_parts, by_pillow)


def test_large_and_small_images_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones of several sizes between small ones, in one block: each stays in its row."""
    monkeypatch.setattr(tiff, "LARGE_NBYTES", 60_000)
    pictures = {f"{i}.tif": picture(3, height=40 + 30 * (i % 4), width=100 + 40 * (i % 5)) for i in range(12)}
    for name, pixels in pictures.items():
        write(tmp_path / "s/a" / name, pixels, big=False, tile=(64, 64))
    assert len({each.nbytes >= 60_000 for each in pictures.values()}) == 2
    for options in ({"encoding": "raw"}, {"encoding": "jpeg"}, {"encoding": "raw", "workers": 2}):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.tsds"
        split = converted(tmp_path / "s", out, **options)
        dataset = tsds.open(out)["train"]
        assert len(split) == 12
        for row in range(12):
            expected = pictures[Path(dataset.key(row)).name]
            if options["encoding"] == "raw":
                np.testing.assert_array_equal(split["image"][row], expected)
            else:
                file = image_file(Image.fromarray(expected), "JPEG", quality=90, subsampling="4:2:0")
                found = np.asarray(Image.open(io.BytesIO(bytes(split["image"][row]))))
                np.testing.assert_array_equal(found, np.asarray(Image.open(io.BytesIO(file))))
        assert not list(out.rglob("large-*"))


def test_pages_and_reduced_copies(tmp_path: Path) -> None:
    pixels = picture(3)
    reduced = np.ascontiguousarray(pixels[::2, ::2])
    for name, subfile in (("pyramid", 1), ("pages", 0)):
        path = tmp_path / name / "a/x.tif"
        path.parent.mkdir(parents=True)
        with tifffile.TiffWriter(path, bigtiff=True) as file:
            file.write(pixels, tile=(64, 64), photometric="rgb", metadata=None)
            file.write(reduced, tile=(64, 64), photometric="rgb", metadata=None, subfiletype=subfile)
        out = tmp_path / f"{name}.tsds"
        summary = tsds.convert(tmp_path / name, out, workers=0, encoding="raw")
        np.testing.assert_array_equal(tsds.open(out)["train"]["image"][0], pixels)
        assert [each.reason for each in summary.left_out] == (["further-frames"] if name == "pages" else [])


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "options", [{"encoding": "raw"}, {"encoding": "jpeg"}, {"encoding": "raw", "cut": tsds.conversion.ImageTiles(500)}]
)
@pytest.mark.parametrize("layout", ["tiles", "one strip"])
def test_memory_does_not_grow_with_the_image(
    tmp_path: Path, options: dict[str, Any], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy's arrays are counted by tracemalloc: an image of 192 MB never is one of them."""
    monkeypatch.setattr(tiff, "_KEPT_NBYTES", 2**20)
    line = np.arange(8000, dtype=np.uint8)[None, :, None].repeat(3, 2)
    write(
        tmp_path / "s/a/x.tif",
        np.broadcast_to(line, (8000, 8000, 3)),
        **LAYOUTS[layout] | ({"rowsperstrip": 8000} if layout == "one strip" else {}),
    )
    write(tmp_path / "t/a/x.tif", picture(3), tile=(64, 64))
    tsds.convert(tmp_path / "t", tmp_path / "t.tsds", workers=0)  # what is imported is not counted
    tracemalloc.start()
    try:
        tsds.convert(tmp_path / "s", tmp_path / "o.tsds", workers=0, **options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 110_000_000  # to read a manifest takes 64 MiB


# --- files that are wrong ---------------------------------------------------------------------------------------


def tag_of(data: bytes, tag: int) -> Any:
    """Of the first page, as tifffile finds it."""
    return tifffile.TiffFile(io.BytesIO(data)).pages[0].tags[tag]


def with_value(tag: int, number: int, value: int) -> Any:
    def change(data: bytearray) -> bytearray:
        found = tag_of(data, tag)
        size = found.valuebytecount // found.count
        at = found.valueoffset + number * size
        data[at : at + size] = value.to_bytes(size, "little")
        return data

    return change


def with_count(tag: int, count: int) -> Any:
    def change(data: bytearray) -> bytearray:
        struct.pack_into("<Q", data, tag_of(data, tag).offset + 4, count)
        return data

    return change


WRONG: dict[str, tuple[Any, str]] = {
    "tiles of many pixels": (with_value(322, 0, 65535), "expected 4 tiles of 65535x64 for 317x203"),
    "tiles without pixels": (with_value(322, 0, 0), "expected an image and tiles with pixels"),
    "an image of many pixels": (with_value(256, 0, 2**31 - 1), "tiles of 64x64 for 2147483647x203 pixels"),
    "a tile beyond the end": (with_value(324, 3, 2**31), "found number 3 beyond it"),
    "a length beyond the end": (with_value(325, 3, 2**31), "found number 3 beyond it"),
    "an absurd length": (with_value(325, 0, 100_000), "expected at most"),
    "a short tile": (with_value(325, 0, 5), "tile 0 of this image is damaged"),
    "fewer lengths": (with_count(325, 3), "20 places and 3 lengths"),
    "the end is missing": (lambda data: data[: len(data) // 2], "inside of the file"),
    "other bytes": (lambda data: data[:2000] + bytes(60) + data[2060:], "tile . of this image is damaged"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_bad_samples(tmp_path: Path, what: str) -> None:
    change, expected = WRONG[what]
    good = picture(3)
    path = write(tmp_path / "s/a/x.tif", good, tile=(64, 64), compression="zlib")
    write(tmp_path / "s/a/y.tif", good, tile=(64, 64))
    data = bytearray(path.read_bytes())
    if what in ("a tile beyond the end", "other bytes"):  # the page stands before the tiles
        assert tag_of(data, 324).offset < 1000
    path.write_bytes(change(data))
    for encoding in ("raw", "jpeg"):
        out = tmp_path / f"{encoding}.tsds"
        with pytest.raises(SourceError, match=expected) as raised:
            tsds.convert(tmp_path / "s", out, workers=0, encoding=encoding)
        assert "\n" not in str(raised.value) and "x.tif" in str(raised.value)
        (summary,) = [tsds.convert(tmp_path / "s", out, workers=0, encoding=encoding, on_error="skip")]
        assert summary.rows == {"train": 1} and summary.skipped_images == 1
        assert tsds.verify(out) == []


def test_tags_that_are_larger_than_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tif", picture(3), tile=(64, 64))
    data = with_count(324, 2**60)(bytearray(path.read_bytes()))
    assert open_tiff(io.BytesIO(data)) is None  # Pillow says what is wrong
    path = write(tmp_path / "s/a/x.tif", picture(3), tile=(64, 64))
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"x\.tif") as raised:
        tsds.convert(tmp_path / "s", tmp_path / "o.tsds", workers=0)
    assert "\n" not in str(raised.value)


def test_a_circle_of_pages(tmp_path: Path) -> None:
    path = write(tmp_path / "s/a/x.tif", picture(3), tile=(64, 64))
    data = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<Q", data, 8)
    (count,) = struct.unpack_from("<Q", data, at)
    struct.pack_into("<Q", data, at + 8 + 20 * count, at)
    path.write_bytes(data)
    np.testing.assert_array_equal(converted(tmp_path / "s", tmp_path / "o.tsds")["image"][0], picture(3))


def test_a_jpeg_tile_that_states_another_size(tmp_path: Path) -> None:
    path = write(tmp_path / "s/a/x.tif", picture(3), tile=(64, 64), compression="jpeg")
    assert converted(tmp_path / "s", tmp_path / "o.tsds")["image"][0].shape == (HEIGHT, WIDTH, 3)
    data = path.read_bytes()
    at = data.index(b"\xff\xc0") + 5
    assert data[at : at + 4] == b"\0\x40\0\x40"
    path.write_bytes(data[:at] + b"\xff\0\xff\0" + data[at + 4 :])
    with pytest.raises(SourceError, match="tile 0 of this image is damaged"):
        tsds.convert(tmp_path / "s", tmp_path / "p.tsds", workers=0, encoding="raw")


def test_compressed_strips_must_not_be_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiff, "SEGMENT_NBYTES", 2**20)
    blank = np.zeros((1000, 1000, 3), np.uint8)
    write(tmp_path / "s/a/x.tif", blank, rowsperstrip=1000, compression="zlib")
    with pytest.raises(SourceError, match="expected strips of at most 1 MiB, found 1000x1000 pixels"):
        tsds.convert(tmp_path / "s", tmp_path / "o.tsds", workers=0, encoding="raw")


def test_limits_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "s/a/x.tif", picture(3), tile=(64, 64))
    with pytest.raises(SourceError, match="the limit is 1000"):
        tsds.convert(tmp_path / "s", tmp_path / "o.tsds", workers=0, max_pixels=1000)
    assert converted(tmp_path / "s", tmp_path / "z.tsds", size=(20, 30))["image"][0].shape == (20, 30, 3)
    monkeypatch.setattr("tensorstore_ds.annex.openers.tiff.memory_limit", lambda: 500_000)
    with pytest.raises(ConversionError, match=r'x\.tif: 579,159 bytes of memory .* Use `encoding="raw"`'):
        tsds.convert(tmp_path / "s", tmp_path / "o.tsds", workers=0, size=(20, 30))
    monkeypatch.setattr("tensorstore_ds.imaging.jpeg.MOST_SIDE", 300)
    with pytest.raises(SourceError, match="JPEG has at most 300 pixels in a row and rows, this image has 317x203"):
        tsds.convert(tmp_path / "s", tmp_path / "o.tsds", workers=0, encoding="jpeg")


def test_estimate_of_large_images(tmp_path: Path) -> None:
    write(tmp_path / "s/a/x.tif", picture(3), tile=(64, 64))
    for encoding in ("raw", "jpeg"):
        found = tsds.estimate(tmp_path / "s", encoding=encoding)
        assert found.sizes == {f"{HEIGHT}x{WIDTH}": 1} and not found.problems
        nbytes = tsds.convert(tmp_path / "s", tmp_path / f"{encoding}.tsds", workers=0, encoding=encoding).nbytes
        assert 0.4 < found.nbytes["memmap"] / nbytes < 1.5


def test_without_the_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow reads what it can; for the rest, the message says what is to be installed."""
    monkeypatch.setattr(tiff, "_tifffile", lambda: None)
    write(tmp_path / "s/a/x.tif", picture(3), big=False, tile=(64, 64))
    np.testing.assert_array_equal(converted(tmp_path / "s", tmp_path / "o.tsds")["image"][0], picture(3))
    write(tmp_path / "t/a/x.tif", picture(5), tile=(64, 64))
    with pytest.raises(SourceError, match=r"tifffile and imagecodecs, .* pip install '\.\[tiff\]'"):
        tsds.convert(tmp_path / "t", tmp_path / "p.tsds", workers=0)


def test_sixteen_bits_and_five_channels_of_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiff, "LARGE_NBYTES", 10**9)
    for channels, dtype in ((3, "uint16"), (5, "uint8"), (1, "float64"), (4, "uint8")):
        pixels = picture(channels, dtype)
        write(tmp_path / f"{channels}{dtype}/a/x.tif", pixels, tile=(64, 64))
        split = converted(tmp_path / f"{channels}{dtype}", tmp_path / f"{channels}{dtype}.tsds")
        np.testing.assert_array_equal(split["image"][0], pixels)
        assert split["image"][0].dtype == pixels.dtype


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("dtype", "photometric", "layout", "is_for_pillow"),
    [
        ("float32", "minisblack", {"compression": "lzw"}, True),
        ("int32", "minisblack", {"compression": "zlib", "predictor": True}, True),
        ("uint16", "miniswhite", {}, False),
        ("int8", "minisblack", {}, False),
        ("uint32", "minisblack", {"compression": "lzw"}, False),
        ("uint16", "rgb", {"planarconfig": "separate"}, False),
        ("float32", "minisblack", {"planarconfig": "separate", "compression": "lzw"}, False),
    ],
)
def test_small_files_have_the_numbers_that_were_written(
    tmp_path: Path, dtype: str, photometric: str, layout: Any, order: Any, as_bytes: bool, is_for_pillow: bool
) -> None:
    """Those that Pillow reads as others are read with tifffile. Without a path, they are bad samples."""
    numbers = np.random.default_rng(0).integers(0, 2**32, (3, 8, 9), np.uint32).astype(dtype)
    array = numbers if "planarconfig" in layout else numbers[0]
    tifffile.imwrite(tmp_path / "x.tif", array, photometric=photometric, byteorder=order, metadata=None, **layout)
    expected = array if array.ndim == 2 else array.transpose(1, 2, 0)
    expected = 65535 - expected if photometric == "miniswhite" else expected
    image = (tmp_path / "x.tif").read_bytes() if as_bytes else tmp_path / "x.tif"
    if as_bytes and not is_for_pillow:
        with pytest.raises(SourceError, match=r"which Pillow |that Pillow does not read"):
            open_picture(image, max_pixels=10**6, key="x").pixels()
    else:
        pixels = open_picture(image, max_pixels=10**6, key="x").pixels()
        np.testing.assert_array_equal(pixels.squeeze(), expected)
        assert pixels.dtype == dtype


@pytest.mark.parametrize("bits", [10, 14])
def test_numbers_of_other_bits_are_no_damage(tmp_path: Path, bits: int) -> None:
    numbers = np.arange(72, dtype=np.uint16).reshape(8, 9)
    tifffile.imwrite(tmp_path / "x.tif", numbers, bitspersample=bits, metadata=None)
    with pytest.raises(SourceError, match=f"TIFF files with pixels of {bits} bits are not read by parts"):
        open_picture(tmp_path / "x.tif", max_pixels=10**6, key="x")


@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_is_kept_or_reported(tmp_path: Path, channels: int) -> None:
    """Alpha is reported as for small images, which Pillow decodes."""
    write(
        tmp_path / "s/a/x.tif",
        picture(channels),
        extrasamples=["unassalpha"],
        **({"is_color": True} if channels == 4 else {}),
    )
    summary = tsds.convert(tmp_path / "s", tmp_path / "o.tsds", encoding="raw", workers=0)
    assert [(each.where, each.reason) for each in summary.left_out] == [("a/x.tif", "alpha")]
    with Image.open(tmp_path / "s/a/x.tif") as image:
        expected = np.asarray(image.convert("RGBA"))
    found = converted(tmp_path / "s", tmp_path / "p.tsds", color="rgba")["image"][0]
    np.testing.assert_array_equal(found, expected)


def test_a_tile_larger_than_numbers_of_64_bits(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tif", picture(3), big=False, tile=(64, 64))
    data = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", data, 4)
    for i in range(*struct.unpack_from("<H", data, at)):
        tag = struct.unpack_from("<H", data, at + 2 + 12 * i)[0]
        if tag in (322, 323):
            struct.pack_into("<HII", data, at + 4 + 12 * i, 4, 1, 2**31 - 1)
    path.write_bytes(data)
    with pytest.raises(SourceError, match="found 317x203 in tiles of 2147483647x2147483647"):
        open_picture(path, max_pixels=10**6, key="x")


def page_of(order: str, tags: list[tuple[int, int, int]], following: int = 0) -> bytes:
    """A page of a BigTIFF file: (tag, value, count) of numbers of 8 bytes."""
    entries = b"".join(struct.pack(f"{order}HHQQ", tag, 16, count, value) for tag, value, count in tags)
    return struct.pack(f"{order}Q", len(tags)) + entries + struct.pack(f"{order}Q", following)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("place", [2**63 + 8, 2**64 - 1, 2**32])
def test_what_lies_beyond_the_file_is_damage(tmp_path: Path, order: str, place: int) -> None:
    """The first page of a BigTIFF file, a later one, the values of a tag, a strip, and a height."""
    tags = {256: 8, 257: 8, 258: 8, 262: 1, 273: 300, 279: 64}
    start = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HHH", 43, 8, 0)

    def file(first: int = 16, following: int = 0, count: int = 1, **changed: int) -> bytes:
        values = {**tags, **{int(tag[1:]): value for tag, value in changed.items()}}
        page = page_of(order, [(tag, n, count if tag == 258 else 1) for tag, n in values.items()], following)
        return (start + struct.pack(f"{order}Q", first) + page).ljust(300, b"\0") + bytes(64)

    write(tmp_path / "f" / "good.tif", picture(1, height=8, width=8))
    files = [file(first=place), file(following=place), file(count=5, _258=place), file(_273=place), file(_257=place)]
    for i, data in enumerate(files):
        (tmp_path / "f" / f"{i}.tif").write_bytes(data)
    for encoding in ("raw", "source"):
        options: Any = {"encoding": encoding, "workers": 0, "on_error": "skip"}
        summary = tsds.convert(tmp_path / "f", tmp_path / f"{encoding}.tsds", **options)
        assert sum(summary.rows.values()) >= 1
        assert set(summary.skipped) <= {"truncated-image", "not-an-image", "too-many-pixels"}
        assert sum(summary.skipped.values()) >= 3
        tsds.estimate(tmp_path / "f", **options)


def test_old_jpeg_without_the_number_of_samples_is_left_to_pillow() -> None:
    tags = {256: 24, 257: 16, 259: 6, 262: 6, 273: 300, 278: 16, 279: 64}
    page = page_of("<", [(tag, value, 1) for tag, value in tags.items()])
    file = (b"II" + struct.pack("<HHHQ", 43, 8, 0, 16) + page).ljust(300, b"\0") + bytes(64)
    assert open_tiff(io.BytesIO(file)) is None
