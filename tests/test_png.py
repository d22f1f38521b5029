"""PNG files that are read without Pillow's reader, against Pillow."""

import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from jpeg_files import exif_of
from stores import image_file
from tensorstore_ds.errors import SourceError
from tensorstore_ds.imaging import codecs
from tensorstore_ds.imaging.codecs import decode_image, quiet_pillow
from tensorstore_ds.imaging.picture import open_picture
from tensorstore_ds.imaging.png import decode_png, read_png_header

PLAIN = {"L": 1, "RGB": 3}


def image_of(mode, height=7, width=5, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    return Image.fromarray(pixels, "RGBA").convert(mode)


def chunk(kind, data=b""):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_chunks(data, before=b"", behind=b""):
    """The file with more chunks before its pixels and behind them."""
    return data[:33] + before + data[33:-12] + behind + data[-12:]


def result(data, monkeypatch, color="auto", *, by_pillow):
    """Pixels and what is left out, or the error."""
    with monkeypatch.context() as patch, quiet_pillow():
        if by_pillow:
            patch.setattr(codecs, "read_png_header", lambda data: None)
        try:
            picture = open_picture(data, color=color, max_pixels=10_000, key="a.png")
            size, pixels = picture.size, picture.pixels()
            return size, picture.format, pixels.dtype.name, pixels.shape, pixels.tobytes(), picture.left_out
        except SourceError as error:
            return str(error)


def assert_as_pillow(data, monkeypatch, color="auto"):
    assert result(data, monkeypatch, color, by_pillow=False) == result(data, monkeypatch, color, by_pillow=True)


@pytest.mark.parametrize("color", ["auto", "gray", "rgb", "rgba"])
@pytest.mark.parametrize("mode", ["L", "RGB", "1", "P", "LA", "RGBA", "I;16"])
@pytest.mark.parametrize("how", [{}, {"compress_level": 0}, {"optimize": True}])
def test_each_mode_and_color(mode, color, how, monkeypatch):
    image = image_of("I" if mode == "I;16" else mode)
    data = image_file(image.convert("I;16") if mode == "I;16" else image, **how)
    assert (read_png_header(data) is not None) == (mode in PLAIN)
    assert_as_pillow(data, monkeypatch, color)


@pytest.mark.parametrize("mode", PLAIN)
def test_pixels_are_those_of_the_file(mode):
    image = image_of(mode, 40, 3000)
    data = image_file(image, compress_level=0)  # several chunks of 64 KiB
    assert data.count(b"IDAT") > 1
    header = read_png_header(data)
    assert header[:3] == (40, 3000, PLAIN[mode])
    assert decode_png(data, header).tobytes() == image.tobytes()
    assert decode_image(data).tobytes() == image.tobytes()


def test_files_that_say_more_are_left_to_pillow(monkeypatch):
    data, exif = image_file(image_of("RGB")), exif_of(6)
    others = [
        image_file(image_of("RGB"), exif=exif),
        image_file(image_of("L"), transparency=3),
        image_file(image_of("RGB"), save_all=True, append_images=[image_of("RGB", seed=1)]),
        with_chunks(data, chunk(b"tRNS", bytes(6))),
        with_chunks(data, chunk(b"gAMA", b"abc")),
        with_chunks(data, chunk(b"iCCP", b"a\0\0" + zlib.compress(b"profile"))),
        with_chunks(data, chunk(b"abCd", b"unknown")),
        data[:28] + b"\1" + struct.pack(">I", zlib.crc32(data[12:28] + b"\1")) + data[33:],  # interlaced
    ]
    for other in others:
        assert read_png_header(other) is None
        assert_as_pillow(other, monkeypatch)
    behind = with_chunks(data, behind=chunk(b"eXIf", exif.tobytes()))
    assert decode_png(behind, read_png_header(behind)) is None
    assert_as_pillow(behind, monkeypatch)


def test_texts_and_times_change_nothing(monkeypatch):
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Software", "anything")
    data = image_file(image_of("RGB"), pnginfo=texts, dpi=(72, 72))
    data = with_chunks(data, chunk(b"gAMA", struct.pack(">I", 45455)), chunk(b"tIME", bytes(7)) + chunk(b"tEXt", b"no"))
    assert decode_png(data, read_png_header(data)).tobytes() == image_of("RGB").tobytes()
    assert_as_pillow(data, monkeypatch)


@pytest.mark.parametrize("mode", PLAIN)
def test_damage_is_found_as_pillow_finds_it(mode, monkeypatch):
    data = image_file(image_of(mode))
    data = with_chunks(data, chunk(b"pHYs", bytes(9)), chunk(b"tEXt", b"a\0b"))
    for length in range(len(data)):
        assert_as_pillow(data[:length], monkeypatch)
    for at in range(len(data)):
        for change in (1, 128):
            assert_as_pillow(data[:at] + bytes([data[at] ^ change]) + data[at + 1 :], monkeypatch)
    assert_as_pillow(data + b"more", monkeypatch)


def packed(data):
    """The compressed pixels of a file with one chunk of them, and where that chunk begins."""
    at = data.index(b"IDAT") - 4
    return data[at + 8 : at + 8 + int.from_bytes(data[at : at + 4], "big")], at


@pytest.mark.parametrize("mode", PLAIN)
def test_damaged_pixels_with_right_checksums(mode, monkeypatch):
    data, draw = image_file(image_of(mode)), random.Random(7)
    old, at = packed(data)
    rows = zlib.decompress(old)
    new = [old[:-4], old[:-2], old + b"x", b""]
    new += map(zlib.compress, (rows[:-3], rows[:9], rows + b"more", bytes([9]) + rows[1:], b""))
    for _ in range(300):
        changed = bytearray(old)
        changed[draw.randrange(len(old))] ^= 1 << draw.randrange(8)
        new.append(bytes(changed))
    for each in new:
        cut = draw.randrange(len(each) + 1)
        whole, halves = chunk(b"IDAT", each), chunk(b"IDAT", each[:cut]) + chunk(b"IDAT", each[cut:])
        for pixels in (whole, halves, whole + chunk(b"tEXt", b"between") + halves):
            assert_as_pillow(data[:at] + pixels + data[at + len(old) + 12 :], monkeypatch)


def test_large_sides_are_refused(monkeypatch):
    data = image_file(image_of("L"))
    for height, width in ((2**31, 1), (1, 2**31 - 1), (0, 5), (5, 0), (101, 100)):
        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        assert_as_pillow(data[:8] + chunk(b"IHDR", header) + data[33:], monkeypatch)


def test_more_compressed_pixels_than_an_image_can_have_are_left_to_pillow(monkeypatch):
    data = image_file(image_of("L"))
    old, at = packed(data)
    for behind in (1, 1 << 17):
        more = data[:at] + chunk(b"IDAT", old + bytes(behind)) + data[at + len(old) + 12 :]
        assert (decode_png(more, read_png_header(more)) is None) == (behind > 1)
        assert_as_pillow(more, monkeypatch)
