"""AVIF and HEIC files as source images. Oracles: Pillow and pillow-heif themselves, and turns of arrays by NumPy."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, ImageOps

import tensorstore_ds as tsds
from jpeg_files import exif_of
from labelling_files import refusing
from stores import image_file
from tensorstore_ds.errors import SourceError
from tensorstore_ds.imaging.codecs import decode_image, further_frames, is_storable, open_image, read_image_header
from tensorstore_ds.imaging.heif import heif_format
from tensorstore_ds.reading.stored_images import decode_stored, stored_shape

FORMATS = ("AVIF", "HEIC")
Pixels = NDArray[np.uint8]


def quarters(height: int = 64, width: int = 96) -> Pixels:
    """Red, green, blue and white quarters, so that each orientation looks different."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2], pixels[: height // 2, width // 2 :] = (230, 20, 20), (20, 230, 20)
    pixels[height // 2 :, : width // 2], pixels[height // 2 :, width // 2 :] = (20, 20, 230), (240, 240, 240)
    return pixels


def saved(format: str, pixels: NDArray[Any] | Image.Image, *, exif: Image.Exif | None = None, **options: Any) -> bytes:
    """An image file of high quality. pillow-heif encodes HEIC, and Pillow AVIF."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer, options = io.BytesIO(), {"quality": 90, **({"exif": exif.tobytes()} if exif else {}), **options}
    if format == "HEIC":
        pillow_heif.from_pillow(image).save(buffer, **options)
    else:
        image.save(buffer, "AVIF", speed=10, **options)
    return buffer.getvalue()


def is_close(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    return found.shape == expected.shape and bool(np.abs(found.astype(int) - expected).mean() < 8)


def box(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), name) + body


# --- orientation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("number", range(1, 9))
def test_an_image_comes_out_upright_once(format: str, number: int) -> None:
    png = image_file(Image.fromarray(quarters()), exif=exif_of(number))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(png))))
    file = saved(format, quarters(), exif=exif_of(number))
    assert (b"irot" in file or b"imir" in file) == (number != 1)  # both libraries write the EXIF orientation as boxes
    assert read_image_header(file).size == expected.shape[:2]
    assert is_close(decode_image(file), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_an_exif_orientation_without_boxes_is_no_turn(format: str) -> None:
    file = saved(format, quarters(), exif=exif_of(6))
    at = file.index(b"irot") + 4
    assert file[at] == 3
    unturned = file[:at] + b"\0" + file[at + 1 :]  # a turn by nothing
    assert is_close(decode_image(unturned), quarters())


# --- pixels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 3)])
def test_modes(format: str, mode: str, channels: int) -> None:
    image = Image.fromarray(quarters()).convert(mode)
    pixels = decode_image(saved(format, image))
    expected = np.asarray(image.convert("L" if channels == 1 else "RGB")).reshape(64, 96, channels)
    assert pixels.dtype == np.uint8
    assert is_close(pixels, expected)


@pytest.mark.parametrize("format", FORMATS)
def test_alpha_is_kept_where_it_is_asked_for(format: str) -> None:
    image = Image.fromarray(quarters())
    alpha = Image.fromarray(np.repeat(np.arange(96, dtype=np.uint8)[None], 64, axis=0))
    image.putalpha(alpha)
    assert is_close(decode_image(saved(format, image), color="rgba")[:, :, 3], np.asarray(alpha))


@pytest.mark.parametrize("mode", ["RGB;16", "L;16"])
def test_heic_of_10_bits(mode: str) -> None:
    channels = 3 if mode == "RGB;16" else 1
    values = np.linspace(0, 65535, 64 * 96 * channels).astype(np.uint16)
    buffer = io.BytesIO()
    pillow_heif.from_bytes(mode, (96, 64), values.tobytes()).save(buffer, quality=-1, chroma=444)
    file, expected = buffer.getvalue(), values.reshape(64, 96, channels)
    assert pillow_heif.open_heif(file).info["bit_depth"] == 10
    pixels = decode_image(file)
    if channels == 1:  # Pillow has 16 bits of gray, and not of colors
        assert pixels.dtype == np.uint16
        assert np.abs(pixels.astype(int) - expected).max() <= 128
    else:
        assert pixels.dtype == np.uint8
        assert np.abs(pixels.astype(int) - expected / 257).mean() < 4


@pytest.mark.parametrize(("format", "primary"), [("AVIF", 0), ("HEIC", 0), ("HEIC", 2)])
def test_of_several_images_the_first_or_primary_one_counts(format: str, primary: int) -> None:
    frames = [Image.fromarray(np.rot90(quarters(96, 96), turn)) for turn in range(3)]
    buffer = io.BytesIO()
    if format == "AVIF":
        frames[0].save(buffer, "AVIF", save_all=True, append_images=frames[1:])
    else:
        heif = pillow_heif.from_pillow(frames[0])
        for each in frames[1:]:
            heif.add_from_pillow(each)
        heif.save(buffer, primary_index=primary)
    (note,) = further_frames(open_image(buffer.getvalue()), "k")
    assert note.reason == "further-frames"
    assert ("primary" in note.message) == (format == "HEIC")
    assert is_close(decode_image(buffer.getvalue()), np.asarray(frames[primary]))
    assert further_frames(open_image(saved(format, quarters())), "k") == ()


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_is_cut_off(format: str) -> None:
    file = saved(format, quarters())
    for length in (8, 12, 20, 60, 150, len(file) // 2, len(file) - 1):
        with pytest.raises(SourceError) as caught:
            decode_image(file[:length], key="a")
        assert caught.value.reason == ("truncated-image" if length >= 12 else "not-an-image"), length
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format", FORMATS)
def test_pixels_are_counted_before_they_are_decoded(format: str) -> None:
    file = saved(format, quarters())
    announced: list[int] = []
    with refusing("too-many-pixels"):
        decode_image(file, max_pixels=64 * 96 - 1, on_decode=announced.append)
    assert announced == []
    decode_image(file, max_pixels=64 * 96, on_decode=announced.append)
    assert announced == [64 * 96 * 24]


def test_a_heic_header_that_promises_too_few_pixels() -> None:
    file = saved("HEIC", quarters(256, 256))
    at = file.index(b"ispe") + 8
    with refusing("truncated-image"):
        decode_image(file[:at] + struct.pack(">II", 16, 16) + file[at + 8 :])


@pytest.mark.parametrize(
    ("brands", "expected"),
    [
        (b"avif0000mif1", "AVIF"),
        (b"avis0000msf1", "AVIF"),
        (b"mif10000miafavif", "AVIF"),
        (b"heic0000mif1heic", "HEIC"),
        (b"mif10000heix", "HEIC"),
        (b"msf10000", "HEIC"),
        (b"isom0000mp42", None),
        (b"crx 0000crx isom", None),
    ],
)
def test_brands(brands: bytes, expected: str | None) -> None:
    head = box(b"ftyp", brands)
    assert heif_format(head + bytes(16)) == expected
    if expected is None:
        with refusing("not-an-image", "expected an image file, found something else"):
            decode_image(head + bytes(400))


def test_without_pillow_heif_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.heic").write_bytes(saved("HEIC", quarters()))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(SourceError) as caught:
        tsds.convert(tmp_path / "photos", tmp_path / "o.tsds", workers=0)
    assert caught.value.reason == "missing-library"
    assert "pip install '.[heic]'" in str(caught.value)


def test_a_pillow_without_avif_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved("AVIF", quarters())
    monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    with refusing("missing-library", "Pillow that is installed cannot decode"):
        decode_image(file)


def test_pillow_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(saved("HEIC", quarters()))
    script = (
        "import sys; from PIL import Image; from tensorstore_ds.imaging.codecs import decode_image\n"
        "print('pillow_heif' in sys.modules)\n"
        "decode_image(open(sys.argv[1], 'rb').read())\n"
        "Image.init()\n"
        "print('pillow_heif' in sys.modules, 'HEIF' in Image.OPEN, '.heic' in Image.registered_extensions())"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "a.heic"], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["False", "True", "False", "False"]


@pytest.mark.parametrize("format", FORMATS)
def test_no_store_holds_such_files(format: str) -> None:
    file = saved(format, quarters())
    for read in (decode_stored, stored_shape):
        with refusing("not-an-image", "expected an image file"):
            read(file, key="0")


# --- conversions --------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Of three sizes: a JPEG file, an AVIF and a HEIC file, which are turned."""
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(quarters()).save(folder / "a.jpg", quality=80)
    (folder / "b.avif").write_bytes(saved("AVIF", quarters(), exif=exif_of(6)))
    (folder / "c.HEIC").write_bytes(saved("HEIC", quarters(80, 112), exif=exif_of(3)))
    return folder


def expected_of(photos: Path) -> dict[str, Pixels]:
    turned = {"a.jpg": quarters(), "b.avif": np.rot90(quarters(), 3), "c.HEIC": np.rot90(quarters(80, 112), 2)}
    assert sorted(turned) == sorted(path.name for path in photos.iterdir())
    return turned


@pytest.mark.filterwarnings("ignore:deprecated")  # whose flat form has a note of its own
@pytest.mark.parametrize("options", [{}, {"encoding": "source"}, {"encoding": "source", "check": "headers"}])
def test_source_keeps_what_all_readers_decode(photos: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    summary = tsds.convert(photos, tmp_path / "o.tsds", workers=0, quality=70, **options)
    noted = [(each.where, each.reason) for each in summary.left_out]
    assert noted == [("b.avif", "file-not-kept"), ("c.HEIC", "file-not-kept")]
    assert not any("`quality` changes nothing" in note for note in summary.notes)
    listed = map(json.loads, (tmp_path / "o.tsds" / "skipped.jsonl").read_text("utf-8").splitlines())
    assert [each["where"] for each in listed] == ["b.avif", "c.HEIC"]
    tsds.verify(tmp_path / "o.tsds")
    split = tsds.open(tmp_path / "o.tsds")["train"]
    assert split.fields["image"].encoding == "source"
    for row, (name, expected) in enumerate(expected_of(photos).items()):
        stored = split["image"][row]
        assert is_storable(stored)
        assert split["key"][row] == name
        assert is_close(split[row]["image"], expected)
        assert tuple(split.image_shapes[row]) == expected.shape
        if name == "a.jpg":
            assert stored == (photos / name).read_bytes()
        else:
            jpeg = image_file(Image.fromarray(decode_image((photos / name).read_bytes())), "JPEG", quality=70)
            found, oracle = (np.asarray(Image.open(io.BytesIO(each))) for each in (stored, jpeg))
            np.testing.assert_array_equal(found, oracle)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_other_encodings(photos: Path, tmp_path: Path, encoding: str) -> None:
    summary = tsds.convert(photos, tmp_path / "o.tsds", workers=0, encoding=encoding)
    assert summary.left_out == ()
    split = tsds.open(tmp_path / "o.tsds")["train"]
    for row, expected in enumerate(expected_of(photos).values()):
        assert is_close(split[row]["image"], expected)


def test_images_of_one_size_become_pixels(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for i in range(3):
        (tmp_path / "photos" / f"{i}.avif").write_bytes(saved("AVIF", np.roll(quarters(), 9 * i, axis=1)))
    summary = tsds.convert(
        tmp_path / "photos", tmp_path / "o.tsds", workers=0, encoding=tsds.conversion.Auto(quality=70)
    )
    assert "`quality` changes nothing here: images are not encoded as JPEG." in summary.notes
    split = tsds.open(tmp_path / "o.tsds")["train"]
    for i in range(3):
        np.testing.assert_array_equal(split["image"][i], np.asarray(Image.open(tmp_path / "photos" / f"{i}.avif")))


def test_gray_of_10_bits_is_kept_exactly_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    expected = []
    for i in range(2):
        values = np.linspace(0, 65535, (40 + i) * 70).astype(np.uint16)
        pillow_heif.from_bytes("L;16", (70, 40 + i), values.tobytes()).save(tmp_path / "photos" / f"{i}.heic")
        expected.append(np.asarray(pillow_heif.HeifImageFile(tmp_path / "photos" / f"{i}.heic")))
    tsds.convert(tmp_path / "photos", tmp_path / "o.tsds", workers=0)
    split = tsds.open(tmp_path / "o.tsds")["train"]
    for i in range(2):
        assert split["image"][i].startswith(b"\x89PNG")
        np.testing.assert_array_equal(split[i]["image"][:, :, 0], expected[i])


def test_a_dry_run_tells_it_too(photos: Path) -> None:
    found = tsds.estimate(photos, encoding="source")
    assert found.problems == ()
    assert found.sizes == {"64x96": 1, "96x64": 1, "80x112": 1}
    assert "AVIF and HEIC files are stored as JPEG files of the same size, with `quality` 90: 2." in " ".join(
        found.notes
    )


def test_a_damaged_file_is_skipped(photos: Path, tmp_path: Path) -> None:
    for name in ("b.avif", "c.HEIC"):
        data = (photos / name).read_bytes()
        (photos / name).write_bytes(data[: len(data) * 2 // 3])
    summary = tsds.convert(photos, tmp_path / "o.tsds", workers=0, on_error="skip")
    assert summary.skipped == {"truncated-image": 2}
    assert sum(summary.rows.values()) == 1
