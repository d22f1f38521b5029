"""A store is written again with its images in another encoding."""

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from jpeg_files import drawn, jpeg, oriented
from mask_sources import write_voc
from small_stores import VALID
from stores import contents, detections, png_bytes, smart_store, store_of
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.imaging.jpeg import encode_jpeg, find_restarts
from tensorstore_ds.imaging.resizing import resize
from tensorstore_ds.reading.stored_images import decode_stored

SIZES = ((40, 56), (33, 70), (64, 64), (90, 31), (17, 19), (48, 80), (51, 52))
WAYS = {
    "one size": {"encoding": "raw", "size": (24, 40)},
    "raw": {"encoding": "raw"},
    "jpeg": {"encoding": "jpeg", "layout": "zarr"},
    "smart": {"encoding": "smart"},
    "source": {"encoding": "source"},
}
KEPT = ("label", "size", "key")


@pytest.fixture
def folder(tmp_path):
    """Images of differing sizes in two classes: JPEG, one of them turned, PNG, and a gray one."""
    for i, size in enumerate(SIZES):
        path = tmp_path / "src" / "ab"[i % 2] / f"{i}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = drawn(*size, 1 if i == 3 else 3, seed=i)
        data = png_bytes(pixels) if i in (1, 4) else jpeg(pixels) if i else oriented(pixels, 6)
        path.with_suffix(".png" if i in (1, 4) else ".jpg").write_bytes(data)
    return tmp_path / "src"


def converted(source, path, **options):
    if options.get("encoding") == "smart":
        return tsds.open(smart_store(path, source, shard_nbytes=20_000))
    tsds.convert(source, path, ConvertOptions(**{"workers": 0, "shard_nbytes": 20_000, **options}))
    return tsds.open(path)


def images(split):
    """(H, W, C) of all images, all of them RGB."""
    found = [split[row]["image"] for row in range(len(split))]
    return [np.repeat(each, 3, axis=2) if each.shape[2] == 1 else np.asarray(each) for each in found]


def shard_rows(store):
    return {name: [shard.rows for shard in split.shards] for name, split in store.manifest.splits.items()}


def mean(pixels):
    return np.concatenate([each.reshape(-1, 3) for each in pixels]).mean(0) / 255


@pytest.mark.parametrize("to", ["raw", "jpeg"])
@pytest.mark.parametrize("way", WAYS)
def test_from_every_encoding_to_every_other(folder, tmp_path, way, to):
    before = converted(folder, tmp_path / "before.tsds", **WAYS[way])
    if (way, to) in (("raw", "raw"), ("one size", "raw")):
        with pytest.raises(tsds.OptionError, match="has the encoding raw already"):
            tsds.repack(before.path, tmp_path / "after.tsds", encoding=to)
        return
    encoding = tsds.Jpeg(quality=80) if to == "jpeg" else tsds.conversion.Raw()
    summary = tsds.repack(before.path, tmp_path / "after.tsds", encoding=encoding, workers=0)
    assert tsds.verify(summary.path) == []
    after = tsds.open(summary.path)
    assert after.manifest.fields["image"].encoding == to
    assert (after.layout, shard_rows(after)) == (before.layout, shard_rows(before))
    split, old = after["train"], before["train"]
    assert summary.rows == {"train": len(SIZES)} == {"train": len(old)}
    for name in KEPT:
        assert [str(each) for each in split[name][:]] == [str(each) for each in old[name][:]]
    kinds = set()
    for row, pixels in enumerate(images(old)):
        stored, expected = split["image"][row], pixels
        kinds.add(bytes(stored[:2]) if isinstance(stored, bytes) else b"pixels")
        if isinstance(stored, bytes):
            np.testing.assert_array_equal(split["image"].per_row["restarts"][row], find_restarts(stored))
            assert stored == encode_jpeg(pixels, 80)
            expected = decode_stored(stored, key="")
        np.testing.assert_array_equal(split[row]["image"], expected)
        np.testing.assert_array_equal(split.image_shapes[row], expected.shape)
    assert kinds == {"raw": {b"pixels"}, "jpeg": {b"\xff\xd8"}}[to]
    np.testing.assert_allclose(split.channel_moments[0], mean(images(old)), rtol=1e-12)
    others = [{k: v for k, v in each.statistics.items() if k != "image"} for each in (old, split)]
    assert others[0] == others[1]


def test_resized_pixels_boxes_and_keypoints_are_those_of_a_conversion(tmp_path):
    samples = [each for seed in range(3) for each in detections(8, seed=seed, shape=(12 + seed, 20 - 3 * seed, 3))]
    before = store_of(tmp_path / "b.tsds", samples, ["a", "b"], shard_nbytes=5000)
    cut: dict[str, int] = {}
    for name, options in {
        "side": {"fit": tsds.conversion.Shrink(9)},
        "stretch": {"fit": tsds.Fit((20, 30), "stretch")},
        "crop": {"fit": tsds.Fit((6, 16), "crop")},
        "crop-visible": {"fit": tsds.Fit((6, 16), "crop", min_visibility=0.6)},
    }.items():
        direct = store_of(tmp_path / f"{name}-d.tsds", samples, ["a", "b"], encoding="raw", on_error="skip", **options)
        done = tsds.repack(before.path, tmp_path / f"{name}.tsds", encoding="raw", workers=0, **options)
        assert tsds.verify(done.path) == []
        split, expected = tsds.open(done.path)["train"], direct["train"]
        assert split.statistics == expected.statistics
        for row in range(len(samples)):
            np.testing.assert_array_equal(split[row]["image"], expected[row]["image"])
            np.testing.assert_array_equal(split[row]["size"], samples[row]["image"].shape[:2])
            for value, array in expected[row]["objects"].items():
                np.testing.assert_allclose(split[row]["objects"][value], array, atol=1e-4)
        lines = (done.path / "skipped.jsonl").read_text().splitlines() if "crop" in name else []
        assert done.skipped == ({"box-cropped": len(lines)} if lines else {})
        assert ("crop" in name) == bool(lines)
        cut[name] = len(lines)
        provenance = tsds.open(done.path).manifest.provenance
        assert provenance["skipped"] == done.skipped == dict(direct.manifest.provenance["skipped"])
    assert cut["crop"] < cut["crop-visible"]


def test_masks_are_resized_with_their_images(tmp_path):
    source = write_voc(tmp_path)
    before = converted(source, tmp_path / "b.tsds", size=(40, 40))
    direct = converted(source, tmp_path / "d.tsds", size=(40, 40), encoding="jpeg")["train"]
    done = tsds.repack(before.path, tmp_path / "j.tsds", encoding="jpeg", workers=0)
    split = tsds.open(done.path)["train"]
    assert split.statistics == direct.statistics
    assert [split["image"][i] for i in range(len(split))] == [direct["image"][i] for i in range(len(direct))]
    done = tsds.repack(done.path, tmp_path / "s.tsds", encoding="jpeg", size=(20, 20), workers=0)
    assert tsds.verify(done.path) == []
    split = tsds.open(done.path)["train"]
    for row in range(len(split)):
        expected = Image.fromarray(direct[row]["mask"]).resize((20, 20), Image.Resampling.NEAREST)
        np.testing.assert_array_equal(split[row]["mask"], np.asarray(expected))
    counted = np.bincount(np.asarray(split["mask"]).reshape(-1), minlength=256)
    assert split.statistics["mask"]["ignored"] == counted[255]
    assert split.statistics["mask"]["class_counts"] == counted[: len(split.fields["mask"].classes)].tolist()


def test_a_smaller_image_is_made_of_the_whole_one(folder, tmp_path):
    before = converted(folder, tmp_path / "b.tsds", encoding="source")
    done = tsds.repack(before.path, tmp_path / "a.tsds", encoding="raw", fit=tsds.Fit((16, 16), "stretch"), workers=0)
    after = tsds.open(done.path)["train"]
    placement = ConvertOptions(fit=tsds.Fit((16, 16), "stretch")).placement
    for pixels, small in zip(images(before["train"]), images(after), strict=True):
        np.testing.assert_array_equal(small, resize(pixels, placement(pixels.shape[:2])))


def test_the_layout_may_change_as_well_and_workers_change_nothing(folder, tmp_path):
    before = converted(folder, tmp_path / "b.tsds", encoding="raw", size=(64, 64), layout="zarr")
    for workers in (0, 2):
        tsds.repack(before.path, tmp_path / f"{workers}.tsds", encoding="jpeg", layout="memmap", workers=workers)
    assert tsds.open(tmp_path / "0.tsds").layout == "memmap"
    assert contents(tmp_path / "0.tsds") == contents(tmp_path / "2.tsds")


def test_the_store_says_how_it_was_made(folder, tmp_path):
    before = converted(folder, tmp_path / "b.tsds", encoding="source")
    first = tsds.repack(before.path, tmp_path / "1.tsds", encoding=tsds.Jpeg(70), workers=0)
    second = tsds.repack(first.path, tmp_path / "2.tsds", encoding="raw", size=(20, 20), workers=0)
    provenance = tsds.open(second.path).manifest.provenance
    assert provenance["source"] == "src"
    assert provenance["created"] == before.manifest.provenance["created"]
    assert [step["sha256"] for step in provenance["history"]] == [before.sha256, tsds.open(first.path).sha256]
    assert [step["options"]["encoding"] for step in provenance["history"]] == ["jpeg", "raw"]
    assert provenance["history"][0]["options"]["quality"] == 70
    assert (provenance["options"]["encoding"], provenance["options"]["size"]) == ("raw", [20, 20])


def test_what_is_encoded_again_is_said(folder, tmp_path):
    files = converted(folder, tmp_path / "b.tsds", encoding="source")
    raw = tsds.repack(files.path, tmp_path / "r.tsds", encoding="raw", workers=0)
    assert not any("again" in note for note in raw.notes)
    assert any("images have 7 sizes: each is kept as pixels" in note for note in raw.notes)
    for path, expected in ((files.path, 1), (raw.path, 0)):
        seen = []
        done = tsds.repack(path, tmp_path / f"{expected}.tsds", encoding="jpeg", workers=0, progress=seen.append)
        assert sum("encoded again" in note for note in done.notes) == expected
        assert [event.note for event in seen if event.note] == list(done.notes)


def test_an_interrupted_run_goes_on_from_the_shards_that_were_finished(folder, tmp_path):
    before = converted(folder, tmp_path / "b.tsds", encoding="raw")
    assert len(shard_rows(before)["train"]) >= 3
    options = {"encoding": "jpeg", "workers": 0}

    def stop(progress):
        if progress.stage == "compress" and progress.done >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tsds.repack(before.path, tmp_path / "a.tsds", progress=stop, **options)
    assert not (tmp_path / "a.tsds").exists()
    with pytest.raises(tsds.OptionError, match=r"finished shards.*`quality` was 90, is now 50"):
        tsds.repack(before.path, tmp_path / "a.tsds", **{**options, "encoding": tsds.Jpeg(50)})
    done = tsds.repack(before.path, tmp_path / "a.tsds", **options)
    assert done.resumed >= 1
    tsds.repack(before.path, tmp_path / "whole.tsds", **options)
    assert contents(done.path) == contents(tmp_path / "whole.tsds")
    assert not list(tmp_path.glob("*.partial"))


def test_what_cannot_be_done_is_one_line_and_leaves_nothing(folder, tmp_path):
    out = tmp_path / "a.tsds"
    raw = converted(folder, tmp_path / "raw.tsds", encoding="raw").path
    deep = store_of(tmp_path / "deep.tsds", [np.full((5, 4), 40_000, np.uint16)] * 2).path
    alpha = store_of(tmp_path / "alpha.tsds", [np.zeros((5, 4, 4), np.uint8)] * 2).path
    (tmp_path / "16").mkdir()
    Image.fromarray(np.full((5, 4), 40_000, np.uint16)).save(tmp_path / "16" / "x.png")
    files = converted(tmp_path / "16", tmp_path / "files.tsds", encoding="source").path
    keeps = 'Use `encoding="raw"`'
    refused = [
        (raw, {}, "give `layout`, `encoding` or both"),
        (raw, {"encoding": "source"}, "expected one of raw, jpeg, found source"),
        (raw, {"layout": "zarr", "quality": 50}, '`quality` belongs to `encoding="jpeg"`'),
        (raw, {"encoding": "jpeg", "size": 5, "max_side": 5}, "leave out one of them"),
        (deep, {"encoding": "jpeg"}, f"this image is uint16 with 1 channels. {keeps}"),
        (alpha, {"encoding": "jpeg"}, f"this image is uint8 with 4 channels. {keeps}"),
        (
            files,
            {"encoding": "jpeg"},
            f"x.png: JPEG keeps 8-bit gray or RGB, this image is uint16 with 1 channels. {keeps}",
        ),
    ]
    for path, options, expected in refused:
        with pytest.raises(tsds.TsdsError) as caught:
            tsds.repack(path, out, **{"workers": 0, **options})
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not list(tmp_path.glob("a.tsds*"))


def test_a_damaged_image_ends_it(folder, tmp_path):
    damaged = folder / "a" / "2.jpg"
    damaged.write_bytes(damaged.read_bytes()[:-300])
    before = converted(folder, tmp_path / "b.tsds", encoding=tsds.conversion.SourceFiles(check="headers"))
    with pytest.raises(tsds.SourceError, match=r"a/2\.jpg: .*repacked with all of its samples"):
        tsds.repack(before.path, tmp_path / "a.tsds", encoding="raw", workers=0)
    assert not (tmp_path / "a.tsds").exists()


@pytest.mark.drawn(18)
@pytest.mark.parametrize("path", sorted(VALID.glob("*.tsds")), ids=lambda path: path.stem)
@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_every_store_is_repacked_or_refused(path, encoding, tmp_path):
    before = tsds.open(path)
    try:
        done = tsds.repack(path, tmp_path / "a.tsds", encoding=encoding, workers=0)
    except tsds.TsdsError as error:
        assert "\n" not in str(error)
        assert not list(tmp_path.glob("a.tsds*"))
        return
    assert tsds.verify(done.path) == []
    after = tsds.open(done.path)
    assert {name: field.dump() for name, field in after.manifest.fields.items() if name != "image"} == {
        name: field.dump() for name, field in before.manifest.fields.items() if name != "image"
    }
    assert shard_rows(after) == shard_rows(before)
