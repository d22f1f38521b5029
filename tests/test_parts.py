"""Large images of all formats, which are converted by parts: the same stores as of images that are converted whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from jpeg_files import exif_of
from stores import image_file
from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.errors import SourceError
from tensorstore_ds.imaging import codecs, picture as pictures
from tensorstore_ds.imaging.codecs import decode_image
from tensorstore_ds.imaging.picture import WholePicture
from tensorstore_ds.sources.base import Sample

SIZE = (71, 53)  # width, height


def picture(mode: str, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (SIZE[1], SIZE[0], 4), np.uint8)
    pixels[:40, :, 3] = 255  # transparent below
    if mode == "I;16":
        return Image.fromarray(pixels[:, :, :2].copy().view(np.uint16)[:, :, 0])
    image = Image.fromarray(pixels)
    return image.convert("RGB").quantize(16) if mode == "P" else image.convert(mode)


def file(mode: str, format: str, **options: Any) -> bytes:
    return image_file(picture(mode), format, **options)


FILES = {
    "gray.png": file("L", "PNG"),
    "bits.png": file("1", "PNG"),
    "color.png": file("RGB", "PNG"),
    "palette.png": file("P", "PNG"),
    "transparent palette.png": file("P", "PNG", transparency=3),
    "alpha.png": file("RGBA", "PNG"),
    "gray alpha.png": file("LA", "PNG"),
    "16 bits.png": file("I;16", "PNG"),
    "turned.png": file("RGB", "PNG", exif=exif_of(6)),
    "mirrored.jpg": file("RGB", "JPEG", exif=exif_of(7)),
    "gray.jpg": file("L", "JPEG"),
    "lossless.webp": file("RGBA", "WEBP", lossless=True),
    "old.bmp": file("RGB", "BMP"),
    "frames.gif": file("P", "GIF", save_all=True, append_images=[picture("P", 1)]),
}


@pytest.fixture
def by_parts(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(pictures, "LARGE_NBYTES", 1)
    monkeypatch.setattr(pictures, "_BAND_NBYTES", 700)
    monkeypatch.setattr(codecs, "_COPIED_PIXELS", 200)
    return monkeypatch


def stored(source: Path, out: Path, **options: Any) -> Any:
    """What a store has of each image, and what is told of them; or why there is none."""
    try:
        summary = tsds.convert(source, out, tsds.ConvertOptions(workers=0, **options))
    except tsds.TsdsError as error:
        return str(error)
    split = tsds.open(out)["train"]
    images = [
        (bytes(image), getattr(image, "shape", ())) for image in map(split["image"].__getitem__, range(len(split)))
    ]
    return split["key"][:], images, split.statistics["image"], sorted(map(str, summary.left_out)), summary.skipped


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "raw"},
        {"encoding": "raw", "color": "rgb"},
        {"encoding": "raw", "color": "gray"},
        {"encoding": "jpeg"},
        {"encoding": "source"},
    ],
    ids=lambda options: " ".join(options.values()),
)
def test_stores_are_the_same(tmp_path: Path, options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    (tmp_path / "s").mkdir()
    for name, data in FILES.items():
        (tmp_path / "s" / name).write_bytes(data)
    whole = stored(tmp_path / "s", tmp_path / "w.tsds", on_error="skip", **options)
    request.getfixturevalue("by_parts")
    assert stored(tmp_path / "s", tmp_path / "p.tsds", on_error="skip", **options) == whole
    assert tsds.verify(tmp_path / "p.tsds") == [] and len(whole[0]) == len(FILES) - 1  # all but the one with 16 bits


@pytest.mark.parametrize("color", ["auto", "gray", "rgb", "rgba"])
@pytest.mark.parametrize("name", FILES)
def test_bands_are_the_pixels(name: str, color: Any, by_parts: pytest.MonkeyPatch) -> None:
    try:
        expected = decode_image(FILES[name], color=color)
    except SourceError as error:
        with pytest.raises(SourceError) as caught:
            list(WholePicture(FILES[name], color, 10**9, "image").bands())
        assert str(caught.value) == str(error)
        return
    whole = WholePicture(FILES[name], color, 10**9, "image")
    bands = list(whole.bands())
    np.testing.assert_array_equal(np.concatenate(bands), expected)
    assert (whole.shape, whole.dtype) == (expected.shape, expected.dtype) and len(bands) > 5
    np.testing.assert_array_equal(whole.read(3, 5, 40, 50), expected[3:40, 5:50])


def test_the_first_image_is_decoded_once(tmp_path: Path, by_parts: pytest.MonkeyPatch) -> None:
    """What a row is follows from the header."""
    decoded = []
    opened = codecs.open_decoded
    by_parts.setattr(pictures, "open_decoded", lambda *args, **options: decoded.append(1) or opened(*args, **options))
    (tmp_path / "s").mkdir()
    (tmp_path / "s/a.png").write_bytes(FILES["gray.png"])
    for number, encoding in enumerate(("raw", "source"), 1):
        stored(tmp_path / "s", tmp_path / f"{encoding}.tsds", encoding=encoding)
        assert len(decoded) == number
    tsds.convert(
        tmp_path / "s", tmp_path / "headers.tsds", encoding=tsds.conversion.SourceFiles(check="headers"), workers=0
    )
    assert len(decoded) == 2


def test_memory_is_asked_for_before_a_large_file_is_decoded(by_parts: pytest.MonkeyPatch) -> None:
    for encoding in ("raw", "jpeg", "source"):
        asked: list[int] = []
        sample = Sample("k", FILES["color.png"])
        encoded = encode_sample(sample, ImageOptions(encoding=encoding), asked.append, by_parts=True)
        assert asked == []
        _ = encoded.sums() if encoding == "source" else list(encoded.image.bands([]))
        assert len(asked) == 1 and asked[0] >= SIZE[0] * SIZE[1] * 3


@pytest.mark.parametrize("encoding", ["raw", "source", "jpeg"])
def test_a_damaged_image_is_named_and_left_out(tmp_path: Path, by_parts: pytest.MonkeyPatch, encoding: str) -> None:
    (tmp_path / "s").mkdir()
    for name in ("b.png", "c.png"):
        (tmp_path / "s" / name).write_bytes(FILES["color.png"])
    (tmp_path / "s/a.png").write_bytes(FILES["color.png"][:-3000])
    assert "a.png: this image is damaged" in stored(tmp_path / "s", tmp_path / "x.tsds", encoding=encoding)
    summary = tsds.convert(tmp_path / "s", tmp_path / "o.tsds", encoding=encoding, on_error="skip", workers=0)
    assert tsds.open(tmp_path / "o.tsds")["train"]["key"][:] == ["b.png", "c.png"] and summary.skipped_images == 1


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("P", 3), ("I;16", 1)])
def test_few_pixels_are_copied_at_a_time(mode: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """tracemalloc counts bytes and NumPy's arrays, but not Pillow's images."""
    monkeypatch.setattr(pictures, "_BAND_NBYTES", 1 << 16)
    monkeypatch.setattr(codecs, "_COPIED_PIXELS", 1 << 14)
    data = image_file(picture(mode).resize((1000, 700), Image.Resampling.NEAREST))
    nbytes = 1000 * 700 * channels * (2 if mode == "I;16" else 1)
    whole = WholePicture(data, "auto", 10**9, "a.png")
    tracemalloc.start()
    try:
        bands = sum(band.nbytes for band in whole.bands())
        _, of_bands = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        pixels = decode_image(data)
        _, of_all = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bands == pixels.nbytes == nbytes
    assert of_bands < nbytes / 1.5 and of_all < 1.5 * nbytes + len(data)
