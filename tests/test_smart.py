"""The encoding smart: which images are kept as pixels, and that the store keeps to its budget."""

import io

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from jpeg_files import drawn, jpeg
from stores import Samples, contents, interrupted
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.smart import least_worth, pixel_file, worth


def pictures(count):
    """Drawn photographs of differing sizes, gray ones among them, and of differing detail."""
    rng = np.random.default_rng(5)
    for i in range(count):
        height, width = rng.integers(40, 120, 2).tolist()
        y, x = np.mgrid[:height, :width]
        shade = 120 + 60 * np.sin(x / rng.uniform(3, 30)) + 40 * np.cos(y / rng.uniform(3, 30))
        pixels = shade[:, :, None] + rng.normal(0, 25 * (i % 5) / 4, (height, width, 3))
        yield pixels.clip(0, 255).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    for i, pixels in enumerate(pictures(60)):
        path = tmp_path / "src" / "ab"[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "src"


@pytest.mark.parametrize("surveyed", [1024, 20])
def test_a_store_keeps_to_its_budget(folder, tmp_path, surveyed, monkeypatch):
    monkeypatch.setattr("tensorstore_ds.conversion.preparation.SURVEYED", surveyed)
    jpeg = tsds.convert(folder, tmp_path / "jpeg.tsds", ConvertOptions(encoding="jpeg", workers=0)).nbytes
    raw = tsds.convert(folder, tmp_path / "raw.tsds", ConvertOptions(encoding="raw", workers=0)).nbytes
    for share in (0.3, 0.6):
        budget = round(jpeg + share * (raw - jpeg))
        options = ConvertOptions(encoding="smart", budget=budget, workers=0)
        summary = tsds.convert(folder, tmp_path / f"{share}.tsds", options)
        tolerance = 0.05 if surveyed == 1024 else 0.15  # a few small images say less of the others
        assert (1 - tolerance) * budget < summary.nbytes < (1 if surveyed == 1024 else 1 + tolerance) * budget


def test_each_image_is_a_jpeg_or_its_pixels_whatever_the_workers(folder, tmp_path):
    options = {"encoding": "smart", "budget": 700_000, "shard_nbytes": 200_000}
    tsds.convert(folder, tmp_path / "a.tsds", ConvertOptions(workers=0, **options))
    tsds.convert(folder, tmp_path / "b.tsds", ConvertOptions(workers=2, **options))
    assert contents(tmp_path / "a.tsds") == contents(tmp_path / "b.tsds")
    assert tsds.verify(tmp_path / "a.tsds") == []
    split = tsds.open(tmp_path / "a.tsds")["train"]
    kinds = {b"P6": 0, b"\xff\xd8": 0}
    for row in range(len(split)):
        data = bytes(split["image"][row])
        kinds[data[:2]] += 1
        source = np.asarray(Image.open(folder / split["key"][row]))
        if data[:2] == b"P6":
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), source)
    assert min(kinds.values()) > 5


def test_pixels_go_to_those_whose_decoding_takes_most_for_their_space():
    images = [((100, 100, 3), 25_000, 0), ((100, 100, 3), 5_000, 0), ((100, 100, 1), 5_000, 0)]
    worths = [worth(shape, size) for shape, size, _ in images]
    assert worths[0] > worths[2] > worths[1]
    least, nbytes = least_worth(images, 3, 42_000)
    assert (least, nbytes) == (worths[0], 35_000 + 5_000 + 300)
    assert least_worth(images, 3, 10**9) == (0, 70_300)
    assert worth((10, 10, 1), 100) == np.inf


def test_a_pixel_file_is_what_pillow_reads():
    for channels in (1, 3):
        pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
        read = np.asarray(Image.open(io.BytesIO(pixel_file(pixels)))).reshape(pixels.shape)
        np.testing.assert_array_equal(read, pixels)


def test_what_is_refused(folder, tmp_path):
    with pytest.raises(tsds.OptionError, match=r"`budget`: expected at least .* as JPEG files, found 10\.0 kB"):
        tsds.convert(folder, tmp_path / "s.tsds", ConvertOptions(encoding="smart", budget=10_000, workers=0))
    with pytest.raises(tsds.OptionError, match="`budget` is for"):
        ConvertOptions(budget=10_000)
    with pytest.raises(tsds.OptionError, match="found a stream"):
        tsds.convert(iter([np.zeros((4, 4), np.uint8)]), tmp_path / "s.tsds", ConvertOptions(encoding="smart"))


def test_without_a_budget_the_store_fits_into_memory(folder, tmp_path):
    summary = tsds.convert(folder, tmp_path / "s.tsds", ConvertOptions(encoding="smart", workers=0))
    assert any("that they may take" in note for note in summary.notes)
    assert summary.nbytes < tsds.memory_limits()["machine"]


def test_jpegs_that_are_encoded_again_are_said_to_be(tmp_path):
    jpeg = io.BytesIO()
    Image.fromarray(next(pictures(1))).save(jpeg, "JPEG")
    for name, options, told in (
        ("a", {"encoding": "jpeg"}, True),
        ("b", {"encoding": "jpeg", "max_side": 20}, False),
        ("c", {"encoding": "source"}, False),
    ):
        source = Samples([{"image": jpeg.getvalue()}])
        notes = tsds.convert(source, tmp_path / f"{name}.tsds", ConvertOptions(workers=0, **options)).notes
        assert any("encoded again" in note for note in notes) == told
        assert any("encoded again" in note for note in tsds.estimate(source, ConvertOptions(**options)).notes) == told


def test_a_dry_run_leaves_out_what_cannot_be(folder):
    options = tsds.estimate(folder, ConvertOptions(encoding="raw", color="rgba")).encodings
    assert [each.options["encoding"] for each in options] == ["raw", "source"]


def test_a_conversion_that_goes_on_makes_the_same_bytes(folder, tmp_path):
    options = ConvertOptions(encoding="smart", budget=700_000, shard_nbytes=100_000, workers=0)
    interrupted(folder, tmp_path / "a.tsds", 40, options)
    assert tsds.convert(folder, tmp_path / "a.tsds", options).resumed >= 1
    tsds.convert(folder, tmp_path / "b.tsds", options)
    assert contents(tmp_path / "a.tsds") == contents(tmp_path / "b.tsds")


@pytest.mark.slow
def test_a_store_of_600_photographs_is_within_5_percent_of_its_budget(tmp_path):
    rng = np.random.default_rng(1)
    for i in range(600):
        (tmp_path / "src" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        path = tmp_path / "src" / "ab"[i % 2] / f"{i:03d}.jpg"
        path.write_bytes(jpeg(drawn(*rng.integers(100, 400, 2).tolist(), seed=i), quality=95))
    sizes = {}
    for encoding in ("jpeg", "raw"):
        options = ConvertOptions(encoding=encoding, workers=0)
        sizes[encoding] = tsds.convert(tmp_path / "src", tmp_path / f"{encoding}.tsds", options).nbytes
    for share in (0.1, 0.5, 0.9):
        budget = round(sizes["jpeg"] + share * (sizes["raw"] - sizes["jpeg"]))
        options = ConvertOptions(encoding="smart", budget=budget, workers=0)
        made = tsds.convert(tmp_path / "src", tmp_path / f"{share}.tsds", options).nbytes
        assert 0.95 * budget < made <= budget


def test_a_dry_run_compares_the_encodings(folder, tmp_path):
    found = tsds.estimate(folder, ConvertOptions(encoding="jpeg"))
    nbytes = {each.options["encoding"]: each.nbytes for each in found.encodings}
    assert list(nbytes) == ["raw", "jpeg", "smart", "source"]
    assert nbytes["smart"] == pytest.approx(nbytes["raw"], rel=0.01)  # there is room for all pixels
    between = tsds.estimate(folder, ConvertOptions(encoding="smart", budget=(nbytes["raw"] + nbytes["jpeg"]) // 2))
    (smart,) = (each for each in between.encodings if each.options == {"encoding": "smart"})
    assert nbytes["jpeg"] < smart.nbytes < 0.9 * nbytes["raw"]
    for encoding, expected in nbytes.items():
        made = tsds.convert(folder, tmp_path / f"{encoding}.tsds", ConvertOptions(encoding=encoding, workers=0))
        assert 0.7 < expected / made.nbytes < 1.3
    assert all(each.rate > 0 for each in found.encodings)
    assert tsds.estimate(folder, ConvertOptions(size=(8, 8))).encodings == ()
