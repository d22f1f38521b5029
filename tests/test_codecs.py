"""Image files to pixels: limits, and the memory that is announced before it is taken."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import tensorstore_ds as tsds
from jpeg_files import drawn, exif_of, jpeg, oriented
from stores import image_file
from tensorstore_ds.errors import SourceError
from tensorstore_ds.imaging import MAX_PIXELS
from tensorstore_ds.imaging.codecs import decode_image, decode_mask, quiet_pillow

PICTURE = Image.fromarray(drawn(30, 70))


def test_the_limit_is_that_of_pillow() -> None:
    assert MAX_PIXELS == 89_478_485


@pytest.mark.parametrize(
    "image",
    [*(image_file(PICTURE, suffix) for suffix in ("png", "bmp", "jpeg")), oriented(drawn(30, 70), 6), PICTURE],
    ids=["png", "bmp", "jpeg", "turned", "opened"],
)
def test_the_memory_that_decoding_takes_is_announced(image: Any) -> None:
    announced: list[int] = []
    assert sorted(decode_image(image, on_decode=announced.append).shape) == [3, 30, 70]
    assert announced == [30 * 70 * 10]


def with_exif(data: bytes, exif: bytes) -> bytes:
    """A JPEG file with this EXIF, whatever is wrong with it."""
    body = b"Exif\0\0" + exif
    return data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2) + body + data[2:]


def odd_tag() -> bytes:
    """EXIF of a tag that Pillow warns of."""
    tag = (0x9000).to_bytes(2, "little") + b"\x05\0" + (9999).to_bytes(4, "little") + (8).to_bytes(4, "little")
    return b"II*\0\x08\0\0\0\x01\0" + tag + b"\0\0\0\0"


@pytest.mark.parametrize("exif", [b"\xff\xff\xff\xff\0\0\0\x08" + b"\0" * 16, b"II*\0", b"MM\0*\0\0\0\x08\0\x63", b""])
def test_damaged_exif_does_not_turn_an_image(tmp_path: Path, exif: bytes) -> None:
    """Pillow raises for some of these where it is asked for the orientation, but reads the pixels."""
    plain = jpeg(drawn(30, 70))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a.jpg").write_bytes(with_exif(plain, exif))
    expected = np.asarray(Image.open(io.BytesIO(plain)))
    for encoding in ("raw", "source"):
        store = tmp_path / f"{encoding}.tsds"
        assert tsds.convert(tmp_path / "f", store, encoding=encoding, workers=0).skipped == {}
        found = tsds.StoreDataset(store, decode=tsds.CenterCrop((30, 70)))[0]["image"]
        np.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("color", ["auto", "rgba"])
def test_turned_jpeg_files_are_pillows_and_judged_as_others(orientation: int, mode: str, color: Any) -> None:
    pytest.importorskip("simplejpeg")
    data = image_file(PICTURE.convert(mode), "JPEG", exif=exif_of(orientation))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    expected = expected.convert("RGBA" if color == "rgba" else "L" if mode == "L" else "RGB")
    found = decode_image(data, color=color)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, np.asarray(expected).reshape(found.shape))
    with pytest.raises(SourceError, match=r"this image is damaged \(.*[Pp]remature end") as caught:
        decode_image(data[:-20] + b"\xff\xd9", color=color)
    assert caught.value.reason == "truncated-image"


def test_jpeg_masks_are_judged_as_images() -> None:
    pytest.importorskip("simplejpeg")
    data = jpeg(drawn(30, 70, 1))
    np.testing.assert_array_equal(decode_mask(data, key="m"), np.asarray(Image.open(io.BytesIO(data))))
    with pytest.raises(SourceError, match="this image is damaged"):
        decode_mask(data[:-20] + b"\xff\xd9", key="m")


def test_bmp_of_16_bits_a_pixel_is_read() -> None:
    """5-6-5: each channel has at most 6 bits, so 8 keep them."""
    values = np.random.default_rng(0).integers(0, 2**16, (8, 8), np.uint16)
    head = struct.pack("<IiiHHIIiiIIIII", 40, 8, -8, 1, 16, 3, 128, 0, 0, 0, 0, 0xF800, 0x7E0, 0x1F)
    found = decode_image(b"BM" + struct.pack("<IHHI", 194, 0, 0, 66) + head + values.tobytes())
    for channel, (shift, most) in enumerate(((11, 31), (5, 63), (0, 31))):
        expected = (values >> shift & most).astype(int) * 255 // most
        np.testing.assert_array_equal(found[:, :, channel], expected)


@pytest.mark.slow
def test_no_warning_of_pillow_or_libtiff_is_printed(tmp_path: Path) -> None:
    """By the command, its workers, and a loader, of files that both complain about."""
    (tmp_path / "f").mkdir()
    for i in range(3):
        (tmp_path / "f" / f"{i}.jpg").write_bytes(with_exif(jpeg(drawn(30, 70)), odd_tag()))
    data = bytearray(image_file(Image.fromarray(drawn(64, 64)), "TIFF", compression="jpeg"))
    at = data.rindex(b"\xff\xda") + 30
    data[at : at + 40] = bytes(40)
    (tmp_path / "f" / "a.tif").write_bytes(data)
    (tmp_path / "f" / "b.tif").write_bytes(b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 277, 3, 1, 65535) + bytes(4))
    load = "import sys, tensorstore_ds as tsds; print(len(list(tsds.DataLoader(tsds.StoreDataset(sys.argv[1]), 1))))"
    convert = ["convert", "f", "o.tsds", "--on-error", "skip", "--encoding", "source", "--workers", "2", "--json"]
    for command in (["-m", "tsds_cli", *convert], ["-c", load, "o.tsds"]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
        for printed in ("Warning", "warn", "site-packages", "JPEGLib", "TIFF", "samples per pixel"):
            assert printed not in done.stderr, done.stderr


def test_filters_of_warnings_are_back() -> None:
    before = list(warnings.filters)
    with quiet_pillow(), quiet_pillow():
        assert len(warnings.filters) == len(before) + 1
    assert list(warnings.filters) == before
