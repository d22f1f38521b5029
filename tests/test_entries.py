"""Entries of JPEG files, where decoding can begin: found, stored, kept by everything that makes a store of others."""

import io
import re

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from PIL import Image

import jpeg_entries
import tensorstore_ds as tsds
from jpeg_files import drawn, jpeg, oriented
from tensorstore_ds import native
from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import EncodedImageField
from tensorstore_ds.imaging.codecs import decode_image
from tensorstore_ds.imaging.jpeg import find_entries, wrong_entries
from tensorstore_ds.imaging.picture import WholePicture
from tensorstore_ds.sources.base import Sample

#: Whether the compiled part, as it is here, finds entries.
needs_core = pytest.mark.skipif(native.core is None, reason="the compiled part is not here")
KINDS = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "own tables": {"subsampling": 2, "optimize": True},
    "fine": {"subsampling": 0, "quality": 100},
    "coarse": {"subsampling": 2, "quality": 5},
}
NONE = {
    "restart markers": jpeg(drawn(24, 40), restart_marker_blocks=1),
    "progressive": jpeg(drawn(24, 40), progressive=True),
    "CMYK": jpeg(np.asarray(Image.fromarray(drawn(24, 40)).convert("CMYK")), "CMYK"),
    "cut": jpeg(drawn(24, 40))[:-2],
    "cut in its pixels": jpeg(drawn(24, 40))[:-40] + b"\xff\xd9",
    "header alone": jpeg(drawn(24, 40))[:100],
    "empty": b"",
    "text": b"P5\n1 1\n255\n0",
}


@pytest.fixture
def slow_core(monkeypatch):
    """The walk of the tests in the place of the compiled part."""
    jpeg_entries.use(monkeypatch, jpeg_entries.index)


def files():
    """JPEG files with and without entries, and their list."""
    return [
        jpeg(drawn(40, 150, seed=1)),
        jpeg(drawn(24, 40, seed=2), restart_marker_blocks=1),
        jpeg(drawn(17, 33, 1, seed=3)),
        jpeg(drawn(24, 40, seed=4), progressive=True),
        oriented(drawn(32, 48, seed=5), 6),
        jpeg(drawn(8, 8, seed=6)),
    ]


def expected(data):
    return np.frombuffer(jpeg_entries.index(data), "<u4").reshape(-1, 3)


def stored(store, split="train"):
    """What a store has of each image, by its bytes."""
    column = tsds.open(store)[split]["image"]
    return dict(zip(column[:], (each.tolist() for each in column.per_row["entries"][:]), strict=True))


def check(store, split="train"):
    """The entries of a store are those of its files, and it has some."""
    assert tsds.verify(store) == []
    found = stored(store, split)
    assert found == {data: expected(data).tolist() for data in found}
    assert any(found.values())
    return found


def written(path, data=None, start=0):
    with tsds.Writer(path, encoding="source", classes=["a", "b"]) as writer:
        for i, each in enumerate(files() if data is None else data, start):
            writer.append("train", image=each, label=i % 2, key=f"{i}.jpg")
    return path


def folders(root, data, start=0):
    for i, each in enumerate(data, start):
        path = root / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(each)
    return root


def test_the_walk_of_the_tests_gives_what_decoders_decode():
    """The prediction before a unit is the mean of the block before, as Pillow decodes it."""
    data = jpeg(drawn(40, 136, 1), quality=95)
    pixels = np.asarray(Image.open(io.BytesIO(data))).astype(float)
    step = Image.open(io.BytesIO(data)).quantization[0][0]
    means = pixels.reshape(5, 8, 17, 8).mean((1, 3)).reshape(-1)
    found = jpeg_entries.walk(data)
    units = [17 * row + column for row in range(5) for column in range(0, 17, 4)]
    assert len(found) == len(units)
    for unit, (_, predictions) in zip(units[1:], found[1:], strict=True):
        assert abs(predictions[0] * step / 8 + 128 - means[unit - 1]) < 1
    assert found[0][1] == (0, 0, 0)


@needs_core
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_compiled_part_finds_what_the_walk_finds(kind, channels):
    for seed, (height, width) in enumerate([(1, 1), (8, 8), (17, 65), (40, 129), (64, 31), (9, 300)]):
        data = jpeg(drawn(height, width, channels, seed), **KINDS[kind])
        for whole in (data, data + b"\xff\xd8\xff\xd9 more"):
            np.testing.assert_array_equal(find_entries(whole), expected(whole))
            assert len(find_entries(whole)) > 0


@needs_core
@pytest.mark.parametrize("what", NONE)
def test_the_compiled_part_finds_none_in_other_files(what):
    assert find_entries(NONE[what]).shape == (0, 3)


@needs_core
@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_has_the_sums_of_the_decoded_pixels(kind, channels, is_plain):
    native.core.use_plain(is_plain)
    try:
        for seed, (height, width) in enumerate([(1, 1), (2, 2), (17, 65), (40, 129), (64, 31), (3, 5000)]):
            data = jpeg(drawn(height, width, channels, seed), **KINDS[kind])
            entries, sums = native.walk(data)
            pixels = decode_image(data).reshape(-1, channels).astype(np.int64)
            assert sums == (*pixels.sum(0), *(pixels**2).sum(0))
            assert entries == native.index(data)
    finally:
        native.core.use_plain(False)


@needs_core
def test_a_walk_has_no_sums_of_what_it_cannot_decode():
    assert [native.walk(data) for data in NONE.values()] == [(b"", ())] * len(NONE)
    wide = jpeg(drawn(1, 65_500, 1))
    assert len(native.walk(wide)[1]) == 2
    wider = wide.replace((65_500).to_bytes(2), (65_504).to_bytes(2))  # of as many units, but libjpeg has a limit
    assert native.walk(wider) == (native.index(wider), ()) and native.index(wider)
    data = bytearray(jpeg(drawn(40, 40, 1), quality=100))
    at = data.index(b"\xff\xdb") + 5
    data[at : at + 64] = b"\xff" * 64  # the numbers of the inverse DCT leave 16 bits
    assert native.walk(bytes(data)) == (native.index(data), ()) and native.index(data)


@needs_core
def test_with_a_walk_the_same_files_are_refused(monkeypatch):
    """Damaged files: the statistics and the error are as if the pixels were decoded."""
    rng, walked, found = np.random.default_rng(0), [], []
    walk = WholePicture.walk
    sound = [*files(), *(jpeg(drawn(40, 60, seed=seed), **how) for seed, how in enumerate(KINDS.values()))]

    def converted(data):
        try:
            encoded = encode_sample(Sample("k", data), ImageOptions(encoding="source"))
        except SourceError as error:
            return re.sub("0x[0-9a-f]+", "", str(error))
        return encoded.shape, encoded.sums(), encoded.entries.tolist()

    def counted(self, *args):
        walked.append(walk(self, *args) is not None)
        return walk(self, *args)

    for number in range(1000):
        data = bytearray(sound[number % len(sound)])
        scan = data.index(b"\xff\xda")
        place = int(rng.integers(scan if number % 3 else 2, len(data)))
        if number % 7 < 4:
            data[place] = rng.integers(256)
        elif number % 7 == 4:
            del data[place : place + int(rng.integers(9))]
        else:
            data[place:place] = rng.bytes(int(rng.integers(9)))
        monkeypatch.setattr(WholePicture, "walk", counted)
        found.append(converted(bytes(data)))
        monkeypatch.setattr(WholePicture, "walk", lambda *args: None)
        assert found[-1] == converted(bytes(data)), number
    assert walked.count(True) > 200
    assert 200 < sum(isinstance(each, str) for each in found) < 800


@pytest.mark.parametrize("what", NONE)
def test_other_files_have_no_entries(what, slow_core):
    assert find_entries(NONE[what]).shape == (0, 3)
    if what != "cut in its pixels":  # only a walk tells
        assert wrong_entries(NONE[what], np.zeros((2, 3), np.uint32)).startswith("expected no entries")


def test_where_the_compiled_part_is_missing_there_are_none(monkeypatch):
    jpeg_entries.use(monkeypatch, jpeg_entries.no_entries)
    found = find_entries(files()[0])
    assert (found.shape, found.dtype) == ((0, 3), np.uint32)


@pytest.mark.parametrize(
    ("sampling", "count"), [("444", 16), ("422", 8), ("440", 8), ("420", 4), ("Gray", 16), ("411", 0)]
)
def test_sampling_factors_that_files_with_entries_can_have(sampling, count, slow_core):
    simplejpeg = pytest.importorskip("simplejpeg")
    pixels, space = (drawn(64, 64, 1), "Gray") if sampling == "Gray" else (drawn(64, 64), "RGB")
    data = simplejpeg.encode_jpeg(pixels, colorspace=space, colorsubsampling=sampling)
    found = find_entries(data)
    assert len(found) == count
    assert count == 0 or wrong_entries(data, found) == ""
    said = f"expected {count} entries, found 3" if count else "expected no entries for a file that cannot have any"
    assert wrong_entries(data, np.zeros((3, 3), np.uint32)).startswith(said)


def test_a_store_has_the_entries_of_its_files(tmp_path, slow_core):
    assert [len(each) for each in check(written(tmp_path / "s.tsds")).values()] == [9, 0, 6, 0, 2, 1]


def test_without_the_compiled_part_a_store_has_none_and_the_same_images(tmp_path, monkeypatch):
    source, options = folders(tmp_path / "in", files()), tsds.ConvertOptions(workers=0, encoding="source")
    for name, index in (("with", jpeg_entries.index), ("without", jpeg_entries.no_entries)):
        jpeg_entries.use(monkeypatch, index)
        tsds.convert(source, tmp_path / name, options)
    check(tmp_path / "with")
    assert tsds.verify(tmp_path / "without") == []
    found = stored(tmp_path / "without")
    assert set(found) == set(stored(tmp_path / "with"))
    assert not any(found.values())
    fields = [tsds.open(tmp_path / name).manifest.fields for name in ("with", "without")]
    assert fields[0] == fields[1]


def test_files_that_are_encoded_again_have_restart_markers_and_no_entries(tmp_path, slow_core):
    options = tsds.ConvertOptions(workers=0, encoding="jpeg", color="rgb")
    tsds.convert(folders(tmp_path / "in", files()), tmp_path / "s.tsds", options)
    assert list(tsds.open(tmp_path / "s.tsds").manifest.fields["image"].per_row) == ["shape", "restarts"]


def test_stores_that_are_made_of_others_keep_the_entries(tmp_path, slow_core):
    one = written(tmp_path / "one")
    two = written(tmp_path / "two", [jpeg(drawn(30, 200, seed=9)), jpeg(drawn(8, 90, 1, seed=8))], start=6)
    tsds.editing.filter_store(one, tmp_path / "filtered", where="label == 'a'")
    tsds.editing.merge_stores([one, two], tmp_path / "merged")
    tsds.repack(one, tmp_path / "zarr", layout="zarr")
    for name, rows in (("filtered", 3), ("merged", 8), ("zarr", 6)):
        assert len(check(tmp_path / name)) == rows
    tsds.repack(one, tmp_path / "jpeg", encoding="jpeg", color="rgb", workers=0)
    assert "entries" not in tsds.open(tmp_path / "jpeg").manifest.fields["image"].per_row


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A store of files without `restarts` and `entries`, as others may write one."""

    def of(cls, encoding, max_pixels):
        field = cls(encoding=encoding, max_pixels=max_pixels)
        return cls(encoding=encoding, max_pixels=max_pixels, per_row={"shape": field.per_row["shape"]})

    source = folders(tmp_path / "in", files()[:2])
    with monkeypatch.context() as patch:
        patch.setattr(EncodedImageField, "of", classmethod(of))
        tsds.convert(source, tmp_path / "bare", tsds.ConvertOptions(workers=0, encoding="source"))
    assert list(tsds.open(tmp_path / "bare").manifest.fields["image"].per_row) == ["shape"]
    return tmp_path / "bare"


def test_stores_with_and_without_entries_become_one(tmp_path, slow_core, bare):
    more = folders(tmp_path / "more", files()[2:], start=2)
    tsds.convert(more, tmp_path / "other", tsds.ConvertOptions(workers=0, encoding="source"))
    tsds.editing.merge_stores([tmp_path / "other", bare], tmp_path / "first-has")
    found = stored(tmp_path / "first-has")
    assert tsds.verify(tmp_path / "first-has") == []
    assert found == {data: expected(data).tolist() if data in files()[2:] else [] for data in files()}
    tsds.editing.merge_stores([bare, tmp_path / "other"], tmp_path / "second-has")
    assert tsds.verify(tmp_path / "second-has") == []
    assert list(tsds.open(tmp_path / "second-has").manifest.fields["image"].per_row) == ["shape"]


def test_a_store_without_entries_grows_without_them(tmp_path, slow_core, bare):
    source = folders(tmp_path / "in", files())
    tsds.append(bare, source, workers=0)
    assert tsds.verify(bare) == []
    split = tsds.open(bare)["train"]
    assert (len(split), list(split.fields["image"].per_row)) == (6, ["shape"])


def test_a_store_grows_and_is_updated_with_entries(tmp_path, slow_core):
    source = folders(tmp_path / "in", files()[:3])
    tsds.convert(source, tmp_path / "s", tsds.ConvertOptions(workers=0, encoding="source"))
    folders(source, files()[3:], start=3)
    tsds.append(tmp_path / "s", source, workers=0)
    assert len(check(tmp_path / "s")) == 6
    folders(source, [jpeg(drawn(40, 150, seed=20))])
    tsds.update(tmp_path / "s", source, workers=0)
    assert expected(jpeg(drawn(40, 150, seed=20))).tolist() in check(tmp_path / "s").values()


def test_whether_a_store_has_entries_makes_no_sample_differ(tmp_path, monkeypatch):
    source = folders(tmp_path / "in", files())
    jpeg_entries.use(monkeypatch, jpeg_entries.no_entries)
    tsds.convert(source, tmp_path / "s", tsds.ConvertOptions(workers=0, encoding="source"))
    jpeg_entries.use(monkeypatch, jpeg_entries.index)
    assert tsds.update(tmp_path / "s", source, workers=0).updated.count == 0


WHOLE = jpeg(drawn(24, 72))
RIGHT = expected(WHOLE)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**32 - 1)), max_size=3),
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=3),
    st.integers(0, len(WHOLE)),
)
@example([], [], len(WHOLE))
@example([(3, 0, 2**32 - 1)], [], len(WHOLE))
@example([(3, 2, 1)], [], len(WHOLE))
def test_any_entries_of_any_file_are_judged(numbers, changes, end):
    entries, data = RIGHT.copy(), bytearray(WHOLE)
    for row, column, number in numbers:
        entries[row, column] = number
    for at, value in changes:
        data[at] = value
    with pytest.MonkeyPatch.context() as patch:
        jpeg_entries.use(patch, jpeg_entries.index)
        wrong = wrong_entries(bytes(data[:end]), entries)
    assert wrong.isprintable()
    if data == WHOLE and end == len(WHOLE):
        assert (wrong == "") == bool((entries == RIGHT).all())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e[:3], "expected 4 entries, found 3"),
        (lambda e: e[[0, 2, 1, 3]], "expected entries that rise from bit "),
        (lambda e: e + np.array([1, 0, 0], np.uint32), "expected entries that rise from bit "),
        (lambda e: e + np.array([[0, 0, 0]] * 3 + [[2**31, 0, 0]], np.uint32), "expected entries that rise from bit "),
        (lambda e: e + np.array([[0, 0, 0]] * 3 + [[0, 0, 2**16]], np.uint32), "expected zeros in the first entry"),
        (lambda e: e + np.array([[0, 1, 0]] + [[0, 0, 0]] * 3, np.uint32), "expected zeros in the first entry"),
        (
            lambda e: e + np.array([[0, 0, 0], [1, 0, 0]] + [[0, 0, 0]] * 2, np.uint32),
            f"expected {RIGHT[1].tolist()}, found {[int(RIGHT[1, 0]) + 1, *RIGHT[1, 1:].tolist()]} in entry 1",
        ),
    ],
)
def test_what_is_wrong_is_said(change, said, slow_core):
    assert wrong_entries(WHOLE, change(RIGHT)).startswith(said)
