"""Images of differing sizes and colors: what is said of them, and what a conversion makes of gray among color."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from stores import Samples, class_folders, files_of, png_bytes
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import from_flat

LIMITED = ConvertOptions(workers=0, max_pixels=29)
NOTE_OF_SIZES = (
    "images have {} sizes: each is kept as pixels of its own size. Pass `size` for one size, or choose another "
    "`encoding`."
)
IN_SHARDS = ConvertOptions(workers=0, shard_nbytes=60)  # two gray images of 6x5, or one in color, at least
NOTE = '15 gray and 1 color images: all are stored as RGB, which needs no action. `color="gray"` stores all as gray.'


@pytest.fixture
def mixed(tmp_path):
    """Gray images, one of which, in the middle of the second split, is in color."""
    folders = class_folders(tmp_path / "src")
    pixels = np.random.default_rng(1).integers(0, 256, (6, 5, 3), np.uint8)
    (folders / "test/bee/1.png").write_bytes(png_bytes(pixels))
    return folders


def files(store):
    """The bytes of all files but the root's, which has the time in it, and the root's splits and fields."""
    content = files_of(store)
    content.pop("zarr.json")
    manifest = tsds.open(store).manifest
    return content, manifest.splits, manifest.fields


def stopped(source, out, after, options):
    """Convert until this is the `after`-th call of progress, then stop as Ctrl-C does; whether it got there."""
    calls = []

    def stop(progress):
        calls.append(progress)
        if len(calls) == after:
            raise KeyboardInterrupt

    try:
        tsds.convert(source, out, options, progress=stop)
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("workers", [0, 2])
def test_gray_among_color_becomes_rgb_and_the_user_is_told(mixed, tmp_path, workers):
    summary = tsds.convert(mixed, tmp_path / "s.tsds", ConvertOptions(workers=workers, shard_nbytes=60))
    assert summary.notes == (NOTE,)
    assert summary.rows == {"train": 8, "test": 8}
    told = tsds.convert(mixed, tmp_path / "rgb.tsds", ConvertOptions(color="rgb", workers=0, shard_nbytes=60))
    assert told.notes == ()
    assert files(tmp_path / "s.tsds") == files(tmp_path / "rgb.tsds")
    split = tsds.open(tmp_path / "s.tsds")["test"]
    for i in range(8):
        expected = np.asarray(Image.open(mixed / split["key"][i]).convert("RGB"))
        np.testing.assert_array_equal(split["image"][i], expected)


def test_files_kept_as_they_are_stay_gray_and_color(mixed, tmp_path):
    note = (
        "images keep their channels, 15 with 1 and 1 with 3: the loader gives batches of both as RGB. "
        'Pass `encoding="jpeg"` and `color="rgb"` to store all as RGB.'
    )
    options = ConvertOptions(encoding="source", workers=0)
    assert tsds.estimate(mixed, options).notes == (note,)
    assert tsds.convert(mixed, tmp_path / "s.tsds", options).notes == (note,)
    split = tsds.open(tmp_path / "s.tsds")["test"]
    assert [split["image"][i] for i in range(8)] == [(mixed / split["key"][i]).read_bytes() for i in range(8)]
    assert tsds.convert(mixed / "train", tmp_path / "one.tsds", options).notes == ()
    assert "images_of" not in split.statistics["image"]


@pytest.mark.parametrize("workers", [0, 2])
def test_gray_after_color_is_stored_as_rgb_without_a_survey(tmp_path, workers):
    for i, channels in enumerate([3, 1, 3, 1, 1, 3]):
        (tmp_path / f"images/{i % 2}").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (9, 7 + i, channels), np.uint8)
        (tmp_path / f"images/{i % 2}/{i}.png").write_bytes(png_bytes(pixels.squeeze()))
    stages = []
    options = ConvertOptions(encoding="jpeg", workers=workers)
    summary = tsds.convert(tmp_path / "images", tmp_path / "s.tsds", options, progress=lambda p: stages.append(p.stage))
    assert summary.notes == (NOTE.replace("15 gray and 1", "3 gray and 3"),)
    tsds.convert(tmp_path / "images", tmp_path / "rgb.tsds", replace(options, color="rgb"))
    assert files(tmp_path / "s.tsds") == files(tmp_path / "rgb.tsds")
    assert stages.count("scan") == 1


def test_images_that_are_mixed_no_longer_are_gray_again(mixed, tmp_path):
    out = tmp_path / "s.tsds"
    assert stopped(mixed, out, 20, IN_SHARDS)
    (mixed / "test/bee/1.png").unlink()
    (note,) = tsds.convert(mixed, out, IN_SHARDS).notes
    assert "converted again: the images no longer have differing sizes or colors" in note
    tsds.convert(mixed, tmp_path / "whole.tsds", IN_SHARDS)
    assert files(out) == files(tmp_path / "whole.tsds")


def test_all_that_differs_is_said_at_once(mixed, tmp_path):
    (mixed / "test/bee/3.png").write_bytes(png_bytes(np.zeros((9, 9), np.uint8)))
    summary = tsds.convert(mixed, tmp_path / "s.tsds", ConvertOptions(workers=0, encoding="raw"))
    assert summary.notes == (NOTE_OF_SIZES.format(2), NOTE)
    (mixed / "test/bee/4.png").write_bytes(png_bytes(np.zeros((2, 2), np.uint16)))
    with pytest.raises(tsds.SourceError) as caught:
        tsds.convert(mixed, tmp_path / "16.tsds", ConvertOptions(workers=0, encoding="raw"))
    assert str(caught.value) == (
        f"{mixed}: images are of differing sizes (height x width): 6x5 (15), 9x9 (1, test/bee/3.png), 2x2 (1, "
        "test/bee/4.png); and of differing colors: gray (15), color (1, test/bee/1.png), 16-bit gray (1, "
        "test/bee/4.png). Save all images with one bit depth, or leave out those that differ from most with "
        '`on_error="skip"`.'
    )


def test_masks_need_images_of_one_size(tmp_path):
    samples = [{"image": np.zeros((n, 3), np.uint8), "mask": np.zeros((n, 3), np.uint8)} for n in (4, 5)]
    options = ConvertOptions(workers=0, classes=("back", "cat"))
    with pytest.raises(
        tsds.SourceError, match=r"4x3 \(1\), 5x3 \(1, train/00001\). Masks are stored as pixels of one size: pass"
    ):
        tsds.convert(samples, tmp_path / "s.tsds", options)
    tsds.convert(samples, tmp_path / "s.tsds", replace(options, size=(4, 4)))


def sized(count=12, dtype=np.uint8, channels=3):
    """Images of differing sizes."""
    generator = np.random.default_rng(5)
    top = np.iinfo(dtype).max + 1
    return [generator.integers(0, top, (3 + i % 5, 2 + i % 7, channels), dtype) for i in range(count)]


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 3), (np.uint16, 1), (np.int32, 4)])
def test_arrays_of_differing_sizes_are_kept_as_pixels(tmp_path, dtype, channels, workers):
    images, out = sized(12, dtype, channels), tmp_path / "s.tsds"
    summary = tsds.convert(images, out, ConvertOptions(workers=workers, shard_nbytes=400))
    assert summary.notes == (NOTE_OF_SIZES.format(12),)
    assert tsds.verify(out) == []
    store = tsds.open(out)
    split = store["train"]
    assert len(store.manifest.splits["train"].shards) > 1
    assert store.manifest.provenance["options"]["encoding"] == "raw"
    assert split.fields["image"].encoding == "raw"
    np.testing.assert_array_equal(split.image_shapes, [image.shape for image in images])
    for i, image in enumerate(images):
        found = split["image"][i]
        assert found.dtype == dtype
        assert not found.flags.writeable
        np.testing.assert_array_equal(found, image)
        np.testing.assert_array_equal(split[i]["image"], image)
    taken = split.table("image").take([7, 2])
    np.testing.assert_array_equal(taken["pixels"], np.concatenate([images[7].ravel(), images[2].ravel()]))
    scale = {"uint8": 255, "uint16": 65535}.get(np.dtype(dtype).name, 1)
    every = np.concatenate([image.reshape(-1, channels) for image in images]).astype(np.float64) / scale
    np.testing.assert_allclose(split.statistics["image"]["mean"], every.mean(0))
    np.testing.assert_allclose(split.statistics["image"]["std"], every.std(0))


def test_views_of_pixels_share_the_map(tmp_path):
    tsds.convert(sized(), tmp_path / "s.tsds", ConvertOptions(workers=0))
    table = tsds.open(tmp_path / "s.tsds")["train"].table("image")
    assert np.shares_memory(table[3], table["pixels"].part(0))


def test_files_of_differing_sizes_are_kept_as_files(mixed, tmp_path):
    (mixed / "test/bee/3.png").write_bytes(png_bytes(np.zeros((9, 9), np.uint8)))
    summary = tsds.convert(mixed, tmp_path / "s.tsds", ConvertOptions(workers=0))
    assert summary.notes[0] == (
        "images have 2 sizes: they are kept as their files, which are decoded whenever they are loaded. "
        'Pass `size` for pixels of one size, or `encoding="raw"` for pixels of each.'
    )
    split = tsds.open(tmp_path / "s.tsds")["test"]
    assert [split["image"][i] for i in range(8)] == [(mixed / split["key"][i]).read_bytes() for i in range(8)]
    told = tsds.convert(mixed, tmp_path / "told.tsds", ConvertOptions(workers=0, encoding="source"))
    assert told.notes == summary.notes[1:]
    assert files(tmp_path / "s.tsds") == files(tmp_path / "told.tsds")
    manifests = [tsds.open(tmp_path / f"{name}.tsds").manifest for name in ("s", "told")]
    assert [manifest.provenance["options"]["encoding"] for manifest in manifests] == ["source", "source"]
    estimate = tsds.estimate(mixed, ConvertOptions(workers=0))
    assert estimate.notes == summary.notes
    assert estimate.fields["image"] == split.fields["image"]


def test_files_whose_colors_are_asked_for_are_kept_as_pixels(mixed, tmp_path):
    (mixed / "test/bee/3.png").write_bytes(png_bytes(np.zeros((9, 9), np.uint8)))
    summary = tsds.convert(mixed, tmp_path / "s.tsds", ConvertOptions(workers=0, color="gray"))
    assert summary.notes == (NOTE_OF_SIZES.format(2),)
    assert set(tsds.open(tmp_path / "s.tsds")["test"].image_shapes[:, 2].tolist()) == {1}


@pytest.mark.parametrize(
    ("color", "has_gray", "encoding"),
    [("rgb", False, "source"), ("rgb", True, "jpeg"), ("gray", False, "jpeg"), ("rgba", False, "raw")],
)
def test_photographs_are_kept_if_they_have_the_colors_asked_for(tmp_path, color, has_gray, encoding):
    (tmp_path / "images").mkdir()
    for i in range(4):
        image = Image.effect_noise((20 + i, 16), 90)
        image = image if has_gray and i == 2 else Image.merge("RGB", [image] * 3)
        image.save(tmp_path / f"images/{i}.jpg")
    options = ConvertOptions(workers=0, color=color)
    assert tsds.estimate(tmp_path / "images", options).fields["image"].encoding == encoding
    tsds.convert(tmp_path / "images", tmp_path / "s.tsds", options)
    split = tsds.open(tmp_path / "s.tsds")["train"]
    assert split.fields["image"].encoding == encoding
    if encoding == "source":
        assert split["image"][2] == (tmp_path / "images/2.jpg").read_bytes()
    elif encoding == "jpeg":
        assert Image.open(io.BytesIO(split["image"][2])).mode == {"rgb": "RGB", "gray": "L"}[color]


def test_an_array_of_too_many_pixels(tmp_path):
    with pytest.raises(tsds.SourceError, match="this image has 6x5 pixels, the limit is 29") as caught:
        tsds.convert([np.zeros((2, 2), np.uint8), np.zeros((5, 6), np.uint8)], tmp_path / "s.tsds", LIMITED)
    assert caught.value.reason == "too-many-pixels"


def test_other_options_do_not_lose_what_was_surveyed(mixed, tmp_path):
    (mixed / "test/bee/3.png").write_bytes(png_bytes(np.zeros((9, 9), np.uint8)))
    out = tmp_path / "s.tsds"
    assert stopped(mixed, out, 24, IN_SHARDS)
    with pytest.raises(tsds.OptionError, match="finished shards of another conversion"):
        tsds.convert(mixed, out, replace(IN_SHARDS, encoding="source"))
    assert tsds.convert(mixed, out, IN_SHARDS).resumed > 0


@pytest.mark.parametrize("check", ["full", "headers"])
def test_16_bit_files_among_others_are_not_kept(mixed, tmp_path, check):
    (mixed / "test/bee/3.png").write_bytes(png_bytes(np.zeros((9, 9), np.uint16)))
    options = ConvertOptions(workers=0, encoding=tsds.conversion.SourceFiles(check=check))
    with pytest.raises(tsds.SourceError, match=r"colors: gray \(14\), .* 16-bit gray \(1, test/bee/3.png\)") as caught:
        tsds.convert(mixed, tmp_path / "s.tsds", options)
    assert caught.value.reason == "shapes-differ"
    assert "sizes" not in str(caught.value)
    summary = tsds.convert(mixed, tmp_path / "s.tsds", replace(options, on_error="skip"))
    assert summary.rows == {"train": 8, "test": 7}
    assert summary.skipped == {"unsupported-depth": 1}
    assert "left out: 1 image has pixels of a different type than most: test/bee/3.png." in summary.notes
    (mixed / "test/bee/4.png").write_bytes(png_bytes(np.zeros((9, 9), np.uint16)))
    summary = tsds.convert(mixed, tmp_path / "two.tsds", replace(options, on_error="skip"))
    assert "left out: 2 images have pixels of a different type than most, such as test/bee/3.png." in summary.notes


def test_files_of_16_bit_alone_are_kept(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(png_bytes(np.full((5, 4 + i), 40000 + i, np.uint16)))
    tsds.convert(tmp_path, tmp_path.with_suffix(".tsds"), ConvertOptions(workers=0))
    split = tsds.open(tmp_path.with_suffix(".tsds"))["train"]
    assert [split["image"][i] for i in range(3)] == [(tmp_path / f"{i}.png").read_bytes() for i in range(3)]


@pytest.mark.parametrize("options", [{}, {"size": (8, 8)}, {"encoding": "jpeg"}, {"color": "rgb"}, {"color": "gray"}])
@pytest.mark.parametrize("has_gray", [False, True])
def test_alpha_that_is_lost_is_reported_with_gray_images_too(tmp_path, options, has_gray):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (9, 9), (9, 8, 7)).save(tmp_path / "images/a.png")
    Image.new("RGBA", (9, 9), (9, 8, 7, 60)).save(tmp_path / "images/b.png")
    if has_gray:
        Image.new("L", (9, 9), 9).save(tmp_path / "images/c.png")
    summary = tsds.convert(tmp_path / "images", tmp_path / "s.tsds", ConvertOptions(workers=0, **options))
    assert [(each.reason, each.where) for each in summary.left_out] == [("alpha", "b.png")]


def test_arrays_with_and_without_alpha(tmp_path):
    samples = Samples([np.zeros((4, 5, 3), np.uint8), np.zeros((4, 5, 4), np.uint8), np.zeros((3, 5, 4), np.uint8)])
    with pytest.raises(tsds.SourceError, match=r'color \(1, train/00000\). Pass `color="rgb"`.$'):
        tsds.convert(samples, tmp_path / "s.tsds", ConvertOptions(workers=0))
    assert tsds.convert(samples, tmp_path / "s.tsds", ConvertOptions(workers=0, size=(8, 8), color="rgb")).notes == ()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_advice_for_arrays_of_several_channels_works(tmp_path, dtype):
    samples = [np.zeros((6, 7, channels), dtype) for channels in (1, 3, 5)]
    advice = "Convert the images of each number of channels into a store of their own"
    with pytest.raises(tsds.SourceError, match=advice):
        tsds.convert(samples, tmp_path / "s.tsds", ConvertOptions(workers=0))
    (note,) = tsds.convert(samples[:2], tmp_path / "s.tsds", ConvertOptions(workers=0)).notes
    assert ('`color="gray"`' in note) == (dtype == np.uint8)
    if dtype == np.uint8:
        tsds.convert(samples[:2], tmp_path / "gray.tsds", ConvertOptions(workers=0, color="gray"))
    with pytest.raises(tsds.SourceError, match=r"cannot become (gray|rgb)"):
        tsds.convert(samples[1:], tmp_path / "o.tsds", ConvertOptions(workers=0, color="rgb"))


def test_an_estimate_tells_of_rgb(mixed):
    found = tsds.estimate(mixed, ConvertOptions(workers=1))
    assert found.notes == (NOTE,)
    assert found.fields["image"].spec.shape == (6, 5, 3)
    assert found.problems == ()


@pytest.mark.parametrize(
    ("options", "belongs"),
    [
        (
            {"quality": 50, "size": 8, "encoding": "raw"},
            '`quality` belongs to `encoding="jpeg"` or `encoding="source"`',
        ),
        ({"encoding": "raw", "check": "headers"}, '`check` belongs to `encoding="source"`'),
        ({"encoding": "jpeg", "channels": "a,b,c"}, '`channels` belongs to `encoding="raw"`'),
        ({"fit": "crop"}, "`fit` belongs to `size`"),
        ({"overlap": 0.5}, "`overlap` belongs to `tiles`"),
        ({"margin": 0.5}, '`margin` belongs to `objects="crops"`'),
    ],
)
def test_flat_options_belong_to_values(options, belongs):
    with pytest.raises(OptionError, match=re.escape(f"{belongs}: add that, or leave it out.")):
        from_flat(ConvertOptions, options)
    assert from_flat(ConvertOptions, options, strict=set()).keys() <= {"fit", "encoding", "cut"}
