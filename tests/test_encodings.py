"""What a dry run and a conversion say of the encodings."""

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from stores import Samples, image_file
from tensorstore_ds.conversion.options import ConvertOptions


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


def test_jpegs_that_are_encoded_again_are_said_to_be(tmp_path):
    jpeg = image_file(Image.fromarray(next(pictures(1))), "JPEG")
    for name, options, told in (
        ("a", {"encoding": "jpeg"}, True),
        ("b", {"encoding": "jpeg", "fit": tsds.conversion.Shrink(20)}, False),
        ("c", {"encoding": "source"}, False),
    ):
        source = Samples([{"image": jpeg}])
        notes = tsds.convert(source, tmp_path / f"{name}.tsds", ConvertOptions(workers=0, **options)).notes
        assert any("encoded again" in note for note in notes) == told
        assert any("encoded again" in note for note in tsds.estimate(source, ConvertOptions(**options)).notes) == told


def test_a_dry_run_leaves_out_what_cannot_be(folder):
    options = tsds.estimate(folder, ConvertOptions(encoding="raw", color="rgba")).encodings
    assert [each.options["encoding"] for each in options] == ["raw", "source"]


def test_a_dry_run_compares_the_encodings(folder, tmp_path):
    found = tsds.estimate(folder, ConvertOptions(encoding="jpeg"))
    nbytes = {each.options["encoding"]: each.nbytes for each in found.encodings}
    assert list(nbytes) == ["raw", "jpeg", "source"]
    for encoding, expected in nbytes.items():
        made = tsds.convert(folder, tmp_path / f"{encoding}.tsds", ConvertOptions(encoding=encoding, workers=0))
        assert 0.7 < expected / made.nbytes < 1.3
    assert all(each.rate > 0 for each in found.encodings)
    assert tsds.estimate(folder, ConvertOptions(size=(8, 8))).encodings == ()


@pytest.mark.filterwarnings("ignore:deprecated")
@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ({"size": 8, "quality": 50}, "quality"),
        ({"size": 8, "subsampling": "4:4:4"}, "subsampling"),
        ({"size": 8, "check": "headers"}, "check"),
        ({"size": 8}, ""),
        ({"size": 8, "encoding": "jpeg", "quality": 50}, ""),
    ],
)
def test_options_of_an_encoding_that_is_not_chosen_are_named(tmp_path, options, unused):
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "images" / "a.png")
    told = tsds.convert(tmp_path / "images", tmp_path / "s.tsds", workers=0, **options).notes
    assert [note.split("`")[1] for note in told if "changes nothing here" in note] == [unused] * bool(unused)
    assert tsds.estimate(tmp_path / "images", **options).notes == told
