"""Decoding against Pillow; what is kept of depth, color and orientation; what damaged files say."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from jpeg_files import exif_of
from labelling_files import refusing
from stores import image_file, png_bytes
from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.imaging.codecs import decode_image, open_image, oriented_size, quiet_pillow
from tensorstore_ds.sources.base import Sample
from test_png import chunk

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (9, 7, 3), np.uint8)


@pytest.mark.parametrize(
    ("mode", "shape", "dtype"),
    [
        ("1", (9, 7, 1), "uint8"),
        ("L", (9, 7, 1), "uint8"),
        ("LA", (9, 7, 1), "uint8"),
        ("P", (9, 7, 3), "uint8"),
        ("RGB", (9, 7, 3), "uint8"),
        ("RGBA", (9, 7, 3), "uint8"),
        ("CMYK", (9, 7, 3), "uint8"),
        ("YCbCr", (9, 7, 3), "uint8"),
        ("F", (9, 7, 1), "float32"),
        ("I", (9, 7, 1), "int32"),
    ],
)
def test_modes(mode, shape, dtype):
    image = Image.fromarray(RGB).convert(mode if mode not in ("F", "I") else "L").convert(mode)
    pixels = decode_image(image_file(image, "TIFF"))
    assert pixels.shape == shape
    assert pixels.dtype == dtype
    expected = np.asarray(image.convert({1: "L", 3: "RGB"}[shape[2]]) if dtype == "uint8" else image)
    np.testing.assert_array_equal(pixels, expected.reshape(shape))


def test_16_bit_gray_stays_16_bit():
    values = RNG.integers(0, 65536, (5, 4), np.uint16)
    pixels = decode_image(png_bytes(values))
    assert pixels.dtype == np.uint16
    np.testing.assert_array_equal(pixels[:, :, 0], values)


def test_16_bit_color_is_refused_rather_than_halved():
    # A PNG by hand: 1x1, 16 bits, color type 2.
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(7))) + chunk(b"IEND", b"")
    with refusing("unsupported-depth", r"16-bit color.*\.npy"):
        decode_image(png)


def test_alpha_is_dropped_or_kept_as_asked():
    rgba = np.dstack([RGB, RNG.integers(0, 256, (9, 7), np.uint8)])
    data = png_bytes(rgba)
    np.testing.assert_array_equal(decode_image(data), RGB)
    np.testing.assert_array_equal(decode_image(data, color="rgba"), rgba)
    np.testing.assert_array_equal(decode_image(png_bytes(RGB), color="rgba")[:, :, 3], np.full((9, 7), 255))


def test_gray_becomes_color_and_color_gray_as_asked():
    gray = RGB[:, :, 0]
    np.testing.assert_array_equal(decode_image(png_bytes(gray), color="rgb"), np.stack([gray] * 3, axis=2))
    expected = np.asarray(Image.fromarray(RGB).convert("L"))
    np.testing.assert_array_equal(decode_image(png_bytes(RGB), color="gray")[:, :, 0], expected)
    np.testing.assert_array_equal(decode_image(RGB, color="gray")[:, :, 0], expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF"])
def test_orientation_is_applied(orientation, format):
    """EXIF 2.3, section 4.6.4 A: row 0 and column 0 of the stored image, as they are to be shown."""
    shown = {
        1: RGB,
        2: RGB[:, ::-1],
        3: RGB[::-1, ::-1],
        4: RGB[::-1],
        5: RGB.transpose(1, 0, 2),
        6: np.rot90(RGB, -1),
        7: np.rot90(RGB, 2).transpose(1, 0, 2),
        8: np.rot90(RGB),
    }[orientation]
    options = {"quality": 100, "subsampling": 0} if format == "JPEG" else {}
    data = image_file(Image.fromarray(RGB), format, exif=exif_of(orientation), **options)
    pixels = decode_image(data)
    np.testing.assert_allclose(pixels.astype(int), shown, atol=4 if format == "JPEG" else 0)
    assert oriented_size(open_image(data)) == shown.shape[:2]


def test_orientation_comes_before_boxes():
    data = image_file(Image.fromarray(RGB), "PNG", exif=exif_of(6))  # 9x7 is shown as 7x9
    objects = {"boxes": np.array([[6.0, 1, 9, 5]])}  # inside of the shown image only
    encoded = encode_sample(Sample("k", data, objects=objects, annotated_size=(7, 9)), ImageOptions())
    assert encoded.size == (7, 9)
    assert encoded.objects["boxes"].tolist() == [[6, 1, 9, 5]]
    with refusing("size-mismatch", "annotation is for an image of 9x7"):
        encode_sample(Sample("k", data, objects=objects, annotated_size=(9, 7)), ImageOptions())


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_a_truncated_file_is_named(format):
    data = image_file(Image.fromarray(np.tile(RGB, (20, 20, 1))), format)
    with pytest.raises(SourceError) as caught:
        decode_image(data[: len(data) // 2], key="photos/a.jpg")
    assert caught.value.reason == "truncated-image"
    assert "photos/a.jpg" in str(caught.value)


def test_text_is_not_an_image():
    with pytest.raises(SourceError) as caught:
        decode_image(b"these are the notes of last week", key="notes.jpg")
    assert caught.value.reason == "not-an-image"
    assert str(caught.value) == "notes.jpg: expected an image file, found something else."
    with refusing("not-an-image", r"notes\.jpg: expected an image file, found an empty file\."):
        decode_image(b"", key="notes.jpg")


def test_a_decompression_bomb_is_refused_from_its_header():
    bomb = image_file(Image.new("1", (10_000, 10_000)))
    with quiet_pillow(), pytest.raises(SourceError, match=r"10000x10000.*`max_pixels`") as caught:
        decode_image(bomb)
    assert caught.value.reason == "too-many-pixels"
    assert decode_image(png_bytes(RGB), max_pixels=63).shape == RGB.shape
    with pytest.raises(SourceError):
        decode_image(png_bytes(RGB), max_pixels=62)


def test_arrays():
    assert decode_image(np.zeros((4, 5), bool)).dtype == np.uint8
    big_endian = np.arange(20, dtype=">u2").reshape(4, 5)
    pixels = decode_image(big_endian)
    assert pixels.dtype == np.dtype("=u2")
    np.testing.assert_array_equal(pixels[:, :, 0], big_endian)
    for bad in (np.zeros(3), np.zeros((0, 4, 3)), np.zeros((2, 2), complex)):
        with pytest.raises(SourceError):
            decode_image(bad)


def test_source_encoding_keeps_every_byte():
    data = image_file(Image.fromarray(RGB), "JPEG")
    assert encode_sample(Sample("k", data), ImageOptions(encoding="source")).image == data


def test_a_keypoint_has_two_coordinates_or_none():
    def encoded(*point):
        objects = {"keypoints": np.array([[point, (1, 2)]], np.float64), "difficult": np.array([3], np.uint8)}
        return encode_sample(Sample("k", RGB, objects=objects), ImageOptions()).objects

    np.testing.assert_array_equal(encoded(np.nan, 3)["keypoints"], [[[np.nan, np.nan], [1, 2]]])
    assert encoded(3, 4)["difficult"].tolist() == [1]
    with pytest.raises(SourceError, match="expected finite coordinates of keypoints"):
        encoded(1e300, 3)


def drawn(height, width):
    """Pixels of a picture with edges and shades, as photographs have them."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (5 + 9 * c)) * 60 + np.cos(y / 11 + c) * 50 + 20 * ((x // 23 + y // 17) % 2) for c in range(3)]
    return (np.stack(waves, axis=2) + 120).clip(0, 255).astype(np.uint8)


def test_images_become_smaller_with_their_boxes_and_keypoints():
    objects = {"boxes": np.array([[10.0, 20, 110, 60]]), "keypoints": np.array([[[200.0, 100]]])}
    sample = Sample("k", drawn(100, 200), objects=objects)
    for encoding in ("raw", "jpeg"):
        encoded = encode_sample(sample, ImageOptions(encoding=encoding, fit=tsds.conversion.Shrink(50)))
        assert (encoded.shape, encoded.size) == ((25, 50, 3), (100, 200))
        np.testing.assert_allclose(encoded.objects["boxes"], [[2.5, 5, 27.5, 15]])
        np.testing.assert_allclose(encoded.objects["keypoints"], [[[50, 25]]])
    same = encode_sample(sample, ImageOptions(fit=tsds.conversion.Shrink(200)))
    np.testing.assert_array_equal(same.image, sample.image)
    np.testing.assert_allclose(same.objects["boxes"], objects["boxes"])


@pytest.mark.parametrize("width", [500, 499, 1000, 2001])
def test_much_larger_jpegs_are_decoded_smaller_and_look_the_same(width):
    data = image_file(Image.fromarray(drawn(width * 3 // 4, width)), "JPEG", quality=95)
    options = ImageOptions(fit=tsds.conversion.Shrink(125))
    encoded = encode_sample(Sample("k", data), options)
    whole = encode_sample(Sample("k", np.asarray(Image.open(io.BytesIO(data)))), options)
    assert encoded.shape == whole.shape == (94, 125, 3)
    difference = np.abs(encoded.image.astype(int) - whole.image)
    assert difference.mean() < 2
    assert np.percentile(difference, 99) < 12


@pytest.mark.filterwarnings("ignore:deprecated")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "source", "max_side": 9}, "leave out `max_side`"),
        ({"encoding": "source", "size": (9, 9)}, "leave out `size`"),
        ({"encoding": "source", "size": (9, 9), "color": "rgb"}, "leave out `size` and `color`"),
        ({"encoding": "jpeg", "color": "rgba"}, "JPEG has no alpha"),
        ({"quality": 0}, "1 to 95"),
        ({"size": (100_000, 100_000)}, "`size`: expected at most `max_pixels`"),
        ({"size": (9, 9), "max_side": 9}, "leave out one of them"),
        ({"max_side": 0}, "`max_side`: expected 1 or more"),
        ({"subsampling": "4:1:1"}, "`subsampling`: expected one of 4:2:0, 4:4:4"),
        ({"check": "none"}, "`check`: expected one of"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        ImageOptions(**options)


def test_what_a_check_decodes():
    data = image_file(Image.fromarray(drawn(90, 130)), "JPEG")
    for check, pixels in (("full", 90 * 130), ("headers", 0)):
        encoded = encode_sample(Sample("k", data), ImageOptions(encoding=tsds.conversion.SourceFiles(check=check)))
        assert (encoded.image, encoded.shape, encoded.size) == (data, (90, 130, 3), (90, 130))
        assert encoded.sums is not None and encoded.sums().count == pixels
    turned = image_file(Image.fromarray(drawn(90, 130)), "JPEG", exif=exif_of(6))
    assert encode_sample(Sample("k", turned), ImageOptions(encoding="source")).shape == (130, 90, 3)
    assert encode_sample(
        Sample("k", turned), ImageOptions(encoding=tsds.conversion.SourceFiles(check="headers"))
    ).shape == (130, 90, 3)
    cut = encode_sample(Sample("k", data[:-9]), ImageOptions(encoding=tsds.conversion.SourceFiles(check="headers")))
    assert cut.image == data[:-9]


@pytest.mark.parametrize("without", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 40), (8, 8)])
def test_tiny_files_are_checked_whole(monkeypatch, size, without):
    if without:
        monkeypatch.setattr("tensorstore_ds.imaging.jpeg.simplejpeg", None)
    data = image_file(Image.new("RGB", size, (10, 20, 30)), "JPEG")
    assert encode_sample(Sample("k", data), ImageOptions(encoding="source")).shape == (*size[::-1], 3)


@pytest.mark.parametrize(
    ("suffix", "frames"), [("gif", 2), ("tiff", 3), ("webp", 2), ("png", 2), ("gif", 1), ("tiff", 1)]
)
@pytest.mark.parametrize("encoding", ["raw", "source"])
def test_files_with_several_frames_are_noted(tmp_path, suffix, frames, encoding):
    folder = tmp_path / "images"
    folder.mkdir()
    pages = [Image.new("RGB", (6, 4), (60 * i, 0, 0)) for i in range(frames)]
    pages[0].save(folder / f"a.{suffix}", save_all=True, append_images=pages[1:])
    options = tsds.ConvertOptions(encoding=encoding, workers=0)
    summary = tsds.convert(folder, tmp_path / "o.tsds", options)
    noted = [("a." + suffix, "further-frames")] * (frames > 1)
    assert [(problem.where, problem.reason) for problem in summary.left_out] == noted
    assert [(p.where, p.reason) for p in tsds.estimate(folder, options).left_out] == noted
    assert (tsds.StoreDataset(tmp_path / "o.tsds")[0]["image"] == 0).all()


@pytest.mark.parametrize(
    ("mode", "alpha", "options", "noted"),
    [
        ("RGBA", 128, {}, True),
        ("RGBA", 255, {}, False),
        ("LA", 0, {}, True),
        ("P", 0, {}, True),
        ("RGB", 0, {}, False),
        ("RGBA", 128, {"color": "rgba"}, False),
        ("RGBA", 128, {"color": "rgb"}, True),
        ("RGBA", 128, {"color": "gray"}, True),
        ("RGBA", 255, {"color": "rgb"}, False),
    ],
)
def test_transparency_that_is_not_stored_is_noted(
    tmp_path: Path, mode: str, alpha: int, options: dict[str, Any], noted: bool
) -> None:
    source = tmp_path / "src"
    (source / "x").mkdir(parents=True)
    image = Image.new("RGBA", (30, 20), (200, 100, 50, alpha))
    if mode == "P":
        image = Image.new("P", (30, 20))
        image.info["transparency"] = 0
    elif mode != "RGBA":
        image = image.convert(mode)
    image.save(source / "x" / "a.png")
    summary = tsds.convert(source, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0, **options))
    assert [(each.where, each.reason) for each in summary.left_out] == [("x/a.png", "alpha")] * noted
