"""What a check finds in a store's content: planted faults are found, each of them, and nothing else."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

import tensorstore_ds as tsds
from small_stores import tsds as command
from stores import store_of
from tensorstore_ds.annex.checking.hashes import as_gray, correlations, is_constant, perceptual_hashes, thumbnail
from tensorstore_ds.annex.checking.search import components, mirrored_pairs, near_pairs

CLASSES = ("cat", "dog")


def photo(seed: int, size: tuple[int, int] = (96, 128)) -> Image.Image:
    """A picture with large and small shapes, unlike all others."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize(size[::-1], Image.Resampling.BICUBIC)
    noise = rng.integers(-12, 13, (*size, 3))
    return Image.fromarray(np.clip(np.asarray(image).astype(int) + noise, 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, quality: int = 90) -> Image.Image:
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality)
    return Image.open(io.BytesIO(data.getvalue()))


def folders(root: Path, **images: Image.Image) -> Path:
    """``train_cat_name`` is the file name in the class cat of train."""
    for place, image in images.items():
        split, label, name = place.split("_")
        path = root / split / label / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    return root


def checked(
    root: Path, out: Path, *, convert: dict[str, Any] | None = None, **options: Any
) -> tsds.checking.CheckFindings:
    tsds.convert(root, out, tsds.ConvertOptions(workers=0, **(convert or {})))
    return tsds.check_store(out, tsds.checking.CheckOptions(**{"min_class": 0, **options}))


def groups(found: tsds.checking.CheckFindings) -> list[list[str]]:
    return sorted(sorted(each.key for each in group.samples) for group in found.copies)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    others = {f"train_cat_other{i}": photo(100 + i) for i in range(12)}
    return folders(
        tmp_path / "planted",
        **others,
        train_cat_a=photo(1),
        test_cat_a=photo(1),
        train_cat_b=photo(2),
        test_dog_b=jpeg(photo(2), 50),
        train_dog_c=photo(3),
        train_dog_csmall=photo(3).resize((64, 48)),
        train_cat_d=photo(4),
        test_cat_d=ImageEnhance.Brightness(photo(4)).enhance(0.8),
        train_cat_e=photo(5),
        test_cat_e=photo(5).transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        train_cat_blank=Image.new("RGB", (128, 96), (9, 9, 9)),
        test_cat_white=Image.new("RGB", (128, 96), "white"),
    )


EQUAL = [["test/cat/a.png", "train/cat/a.png"]]
CHANGED = [
    ["test/cat/d.png", "train/cat/d.png"],
    ["test/dog/b.png", "train/cat/b.png"],
    ["train/dog/c.png", "train/dog/csmall.png"],
]
MIRRORED = [["test/cat/e.png", "train/cat/e.png"]]


@pytest.mark.parametrize("convert", [{}, {"encoding": "jpeg"}, {"size": (48, 64)}], ids=str)
def test_images_of_other_stores(tmp_path: Path, convert: dict[str, Any]) -> None:
    """Planted in their splits: equal, encoded again, smaller and mirrored; other classes do not contradict."""
    options = tsds.ConvertOptions(workers=0, **convert)
    others = {f"train_cat_other{i}": photo(100 + i) for i in range(12)}
    mine = {"train_cat_a": photo(1), "train_cat_b": photo(2), "train_cat_c": photo(3), "test_cat_d": photo(4)}
    own = folders(tmp_path / "own", **others, **mine, train_dog_a=photo(1), train_dog_e=photo(5))
    theirs = {
        "test_kitten_a": photo(1),
        "test_kitten_b": jpeg(photo(2), 50),
        "val_kitten_c": photo(3).resize((64, 48)).transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "train_kitten_d": photo(4),
        "train_kitten_e": photo(5),
        "train_kitten_f": photo(6),
        "test_kitten_f": photo(6),
    }
    for root in (own, folders(tmp_path / "theirs", **{f"train_lion_{i}": photo(200 + i) for i in range(9)}, **theirs)):
        tsds.convert(root, tmp_path / f"{root.name}.tsds", options)
    place = str(tmp_path / "theirs.tsds")
    check = tsds.checking.CheckOptions(min_class=0, mirrored=True)
    found = tsds.check_store(tmp_path / "own.tsds", check, others=[place])
    known = {tuple(sorted((each.store, each.key) for each in group.samples)): group for group in found.copies}
    pairs = {
        "a": (["train/cat/a.png", "train/dog/a.png"], "test/kitten/a.png", True),
        "b": (["train/cat/b.png"], "test/kitten/b.png", True),
        "c": (["train/cat/c.png"], "val/kitten/c.png", True),
        "d": (["test/cat/d.png"], "train/kitten/d.png", True),
        "e": (["train/dog/e.png"], "train/kitten/e.png", False),
    }
    expected = {(*(("", key) for key in keys), (place, other)): leak for keys, other, leak in pairs.values()}
    assert {names: group.is_leak for names, group in known.items()} == expected
    assert all(group.is_across for group in found.copies) and found.samples == 18
    assert [[e.key for e in g.samples if not e.store] for g in found.copies if g.labels_disagree] == [pairs["a"][0]]
    counts = {(each.split, each.store, each.other): each.count for each in found.shared}
    expected_counts = {("train", "test"): 3, ("train", "val"): 1, ("test", "train"): 1, ("train", "train"): 1}
    assert counts == {(split, place, other): count for (split, other), count in expected_counts.items()}
    assert found.shared[-1].split == found.shared[-1].other  # leaks first
    split = tsds.open(tmp_path / "own.tsds")["train"]
    assert {name: {split.key(row) for row in rows} for name, rows in found.drop.items()} == {
        "train": {"train/cat/a.png", "train/dog/a.png", "train/cat/b.png", "train/cat/c.png"}
    }
    alone = tsds.check_store(tmp_path / "own.tsds", check)
    assert groups(alone) == [["train/cat/a.png", "train/dog/a.png"]] and alone.shared == ()
    assert [alone.images, alone.constant] == [found.images, found.constant]
    sheet = tmp_path / "sheet.png"
    arguments = ["check", tmp_path / "own.tsds", place, "--mirrored", "--min-class", "0", "--picture", sheet]
    done = command(*arguments, "--out", tmp_path / "found.json")
    assert done.exit_code == 1 and "leaks between stores: 4 groups" in done.stdout and sheet.exists()
    assert f"  train: 3 images in test of {place}\n" in done.stdout
    command("filter", tmp_path / "own.tsds", tmp_path / "clean.tsds", "--without", tmp_path / "found.json")
    again = tsds.check_store(tmp_path / "clean.tsds", check, others=[place])
    assert {(each.split, each.other) for each in again.shared} == {("test", "train"), ("train", "train")}


@pytest.mark.parametrize("convert", [{}, {"encoding": "jpeg"}, {"size": (48, 64)}], ids=str)
def test_planted_copies_are_found_and_nothing_else(planted: Path, tmp_path: Path, convert: dict[str, Any]) -> None:
    found = checked(planted, tmp_path / "s.tsds", convert=convert)
    assert groups(found) == sorted(EQUAL + CHANGED)
    assert sorted(each.key for each in found.constant) == ["test/cat/white.png", "train/cat/blank.png"]
    by_key = {tuple(sorted(each.key for each in group.samples)): group for group in found.copies}
    assert by_key[tuple(EQUAL[0])].exact
    assert [group.is_leak for key, group in sorted(by_key.items())] == [True, True, True, False]
    assert by_key[tuple(CHANGED[1])].labels_disagree
    assert [each.split for each in by_key[tuple(CHANGED[1])].samples] == ["test", "train"]
    assert not (found.unreadable or found.boxes or found.classes or found.notes)
    assert len(found.leaks) == 3


def test_mirrored_and_equal_alone(planted: Path, tmp_path: Path) -> None:
    found = checked(planted, tmp_path / "s.tsds", mirrored=True)
    assert groups(found) == sorted(EQUAL + CHANGED + MIRRORED)
    found = tsds.check_store(tmp_path / "s.tsds", tsds.checking.CheckOptions(near=False))
    assert (groups(found), found.notes) == (EQUAL, ())
    tsds.convert(planted, tmp_path / "jpeg.tsds", tsds.ConvertOptions(workers=0, encoding="jpeg", size=(64, 64)))
    (note,) = tsds.check_store(tmp_path / "s.tsds", near=False, others=[tmp_path / "jpeg.tsds"]).notes
    assert "different encodings (jpeg, source)" in note


def test_filter_takes_the_findings(planted: Path, tmp_path: Path) -> None:
    checked(planted, tmp_path / "s.tsds")
    done = command("check", tmp_path / "s.tsds", "--json", "--out", tmp_path / "findings.json")
    assert done.exit_code == 1
    assert json.loads(done.output) == json.loads((tmp_path / "findings.json").read_text())
    drop = json.loads(done.output)["drop"]
    assert sum(map(len, drop.values())) == 4 + 2  # a copy of each group, and two of one color
    done = command("filter", tmp_path / "s.tsds", tmp_path / "c.tsds", "--without", tmp_path / "findings.json")
    assert done.exit_code == 0, done.output
    again = tsds.check_store(tmp_path / "c.tsds", tsds.checking.CheckOptions(min_class=0))
    assert again.is_clean
    assert "test/cat/a.png" in [tsds.open(tmp_path / "c.tsds")["test"]["key"][row] for row in range(4)]


def test_an_image_that_cannot_be_decoded(tmp_path: Path) -> None:
    root = folders(tmp_path / "s", **{f"train_cat_{i}": photo(i) for i in range(4)})
    place = root / "train/cat/1.png"
    data = bytearray(place.read_bytes())
    at = data.index(b"IDAT")
    data[at + 40 : at + 60] = bytes(20)
    place.write_bytes(data)
    tsds.convert(
        root, tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, encoding=tsds.conversion.SourceFiles(check="headers"))
    )
    found = tsds.check_store(tmp_path / "s.tsds", tsds.checking.CheckOptions(min_class=0))
    assert [(sample.key, "damaged" in message) for sample, message in found.unreadable] == [("train/cat/1.png", True)]
    assert found.drop == {"train": (1,)}
    tsds.editing.filter_store(tmp_path / "s.tsds", tmp_path / "clean.tsds", drop=found.drop)
    clean = tsds.check_store(tmp_path / "clean.tsds", tsds.checking.CheckOptions(min_class=0))
    assert (clean.unreadable, len(tsds.open(tmp_path / "clean.tsds")["train"])) == ((), 3)


def test_boxes_and_classes(tmp_path: Path) -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 1, 9], [0, 0, 30, 40], [2, 2, 39, 3.5], [5, 5, 20, 20]], np.float64)
    image = np.asarray(photo(1, (30, 40)))
    samples = [{"image": np.roll(image, i, 0), "boxes": boxes, "labels": [0, 0, 0, 0, 1]} for i in (0, 11)]
    store = store_of(tmp_path / "s.tsds", samples, CLASSES)
    found = tsds.check_store(store.path, tsds.checking.CheckOptions(max_box=0.5, min_class=3))
    assert [(each.sample.row, each.object, each.why) for each in found.boxes] == [
        (row, number, why) for row in (0, 1) for number, why in ((1, "small"), (2, "large"), (3, "small"))
    ]
    options = tsds.checking.CheckOptions(max_box=0.09, min_box=0, max_aspect=5, min_class=3)
    whys = [(each.object, each.why) for each in tsds.check_store(store.path, options).boxes if each.sample.row == 0]
    assert whys == [(1, "long"), (2, "large"), (3, "long"), (4, "large")]
    (few,) = found.classes
    assert (few.field, few.name, few.split, few.count) == ("objects", "dog", "train", 2)


def test_absent_keypoints(tmp_path: Path) -> None:
    names, rng = ("eye", "nose", "left ear", "right ear"), np.random.default_rng(4)
    expected: list[tuple[int, int, tuple[str, ...]]] = []
    seen = every = 0
    with tsds.Writer(tmp_path / "s.tsds", keypoints=tsds.Keypoints(names)) as writer:
        for row in range(30):
            points = rng.uniform(1, 9, (row % 4, 4, 2)).round().astype(np.float32)
            points[rng.random((row % 4, 4)) < 0.3] = np.nan
            points[: row == 7] = np.nan  # an object without any keypoint does not count
            writer.append("train", image=np.asarray(photo(row, (12, 16))), keypoints=points)
            for number, places in enumerate(points.tolist()):
                lost = tuple(name for name, (x, _) in zip(names, places, strict=True) if x != x)
                seen, every = seen + (len(lost) < 4), every + 1
                expected += [(row, number, lost)] if 0 < len(lost) < 4 else []
    assert expected and seen < every
    counts = {name: [sum(name in lost for *_, lost in expected), seen] for name in names}
    found = tsds.check_store(tmp_path / "s.tsds", tsds.checking.CheckOptions(near=False))
    assert [(each.sample.row, each.object, each.names) for each in found.keypoints] == expected
    assert not found.is_clean and found.drop == {}
    done = command("check", tmp_path / "s.tsds", "--no-near", "--json")
    assert [each["names"] for each in json.loads(done.stdout)["keypoints"]] == [list(lost) for *_, lost in expected]
    assert done.exit_code == 1
    shown = command("check", tmp_path / "s.tsds", "--no-near").stdout
    assert f"objects without some of their keypoints: {len(expected)}\n" in shown
    assert f"object {expected[0][1] + 1} lacks {', '.join(expected[0][2])}\n" in shown
    left = command("check", tmp_path / "s.tsds", "--no-near", "--no-absent-keypoints")
    assert (left.exit_code, left.output) == (0, "OK: 30 samples\n")
    stats = json.loads(command("stats", tmp_path / "s.tsds", "--json").stdout)["train"]
    assert stats["absent_keypoints"] == {"objects": counts}
    shown = command("stats", tmp_path / "s.tsds").stdout
    for name, (lost_in, count) in counts.items():
        assert f"{name}: absent in {lost_in} of {count}\n" in shown


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_other_types_and_channels(tmp_path: Path, dtype: Any) -> None:
    factor = dtype(1 if dtype is np.float32 else 200)
    images = [np.asarray(photo(i).convert("L"))[:, :, None].astype(dtype) * factor for i in range(5)]
    images += [images[0].copy(), np.full_like(images[0], 7)]
    store = store_of(tmp_path / "s.tsds", [{"image": image} for image in images])
    found = tsds.check_store(store.path)
    assert [[each.row for each in group.samples] for group in found.copies] == [[0, 5]]
    assert [each.row for each in found.constant] == [6]


# --- hashes and their search ----------------------------------------------------------------------------------------


def dct(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """DCT-II along the first axis, from its definition, orthonormal."""
    n = len(values)
    rows = [
        np.sqrt((1 if k == 0 else 2) / n) * sum(values[i] * np.cos(np.pi * (2 * i + 1) * k / (2 * n)) for i in range(n))
        for k in range(n)
    ]
    return np.array(rows)


def test_hashes_are_those_of_the_definition() -> None:
    small = np.stack([thumbnail(as_gray(np.asarray(photo(i)))) for i in range(20)])
    for mirrored in (False, True):
        made = perceptual_hashes(small, mirrored=mirrored)
        for image, found in zip(small[:, :, ::-1] if mirrored else small, made.tolist(), strict=True):
            low = dct(dct(image.astype(np.float64)).T).T[:8, :8].ravel()[1:]
            bits = low > np.median(low)
            differing = [i for i in range(63) if bool(found >> (62 - i) & 1) != bits[i]]
            assert not [i for i in differing if abs(low[i] - np.median(low)) > 0.01]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.lists(st.integers(0, 62), max_size=5)), max_size=40),
    st.integers(0, 7),
)
def test_all_pairs_are_found(base: list[int], changes: list[tuple[int, list[int]]], distance: int) -> None:
    values = list(base)
    for number, bits in changes:
        value = base[number % len(base)]
        for bit in bits:
            value ^= 1 << bit
        values.append(value)
    hashes = np.array(values, np.uint64)
    n = len(values)
    expected = [[i, j] for i in range(n) for j in range(i + 1, n) if (values[i] ^ values[j]).bit_count() <= distance]
    equal = max(np.unique(hashes, return_counts=True)[1])
    found = near_pairs(hashes, distance)
    assert not found.crowded
    if equal <= 32:
        assert found.pairs.tolist() == expected
    else:
        assert {tuple(pair) for pair in found.pairs.tolist()} <= {tuple(pair) for pair in expected}


@given(st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=20, unique=True), st.integers(0, 3))
def test_all_mirrored_pairs_are_found(values: list[int], distance: int) -> None:
    hashes, mirrored = np.array(values, np.uint64), np.array(values[::-1], np.uint64)
    n = len(values)
    expected = {
        (min(i, j), max(i, j))
        for i in range(n)
        for j in range(n)
        if i != j and (values[i] ^ values[::-1][j]).bit_count() <= distance
    }
    assert {tuple(pair) for pair in mirrored_pairs(hashes, mirrored, distance).pairs.tolist()} == expected


def test_many_equal_and_crowded_hashes() -> None:
    same = near_pairs(np.zeros(1000, np.uint64), 3)
    assert same.pairs.tolist() == [[0, i] for i in range(1, 1000)]
    crowded = near_pairs(np.arange(500, dtype=np.uint64) << np.uint64(32), 1, most=50)
    assert crowded.crowded > 50


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=60))
def test_groups_are_connected(n: int, pairs: list[tuple[int, int]]) -> None:
    edges = [(a % n, b % n) for a, b in pairs]
    found = components(n, np.array(edges, np.int64).reshape(-1, 2))
    expected = list(range(n))
    for _ in range(n):
        for a, b in edges:
            expected[a] = expected[b] = min(expected[a], expected[b])
    assert found.tolist() == expected


def test_correlation_is_numpys() -> None:
    small = np.stack([thumbnail(as_gray(np.asarray(photo(i)))) for i in range(4)])
    found = correlations(small[:2], small[2:])
    expected = [np.corrcoef(small[i].ravel(), small[i + 2].ravel())[0, 1] for i in (0, 1)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    assert correlations(small, small[:, :, ::-1], mirrored=True).tolist() == pytest.approx([1] * 4)
    assert correlations(np.zeros_like(small), small).tolist() == [0] * 4
    board = (np.indices((128, 128)).sum(axis=0) % 2 * 255).astype(np.uint8)[:, :, None]
    assert np.ptp(thumbnail(as_gray(board))) <= 1 and not is_constant(board)  # a pattern whose thumbnail is gray


@pytest.mark.parametrize("side", [32, 100, 128])
def test_padding_does_not_hide_one_color(tmp_path: Path, side: int) -> None:
    """Wide and high images; one that is bright in the middle is none, though its thumbnail is of few levels."""
    for i, (size, color) in enumerate(
        [((60, 20), 200), ((20, 61), 90), ((33, 32), 7), ((60, 1), 30), ((60, 20), None)]
    ):
        image = Image.new("RGB", size, (color or 5,) * 3)
        if color is None:
            image.putpixel((30, 10), (255, 0, 0))
        (tmp_path / "src" / "cat").mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "src" / "cat" / f"{i}.png")
    tsds.convert(tmp_path / "src", tmp_path / "s.tsds", tsds.ConvertOptions(size=(side, side), workers=0))
    found = tsds.check_store(tmp_path / "s.tsds")
    assert [each.row for each in found.constant] == [0, 1, 2, 3]


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_images_of_nearly_one_color(tmp_path: Path, ending: str) -> None:
    """Lines that differ by one level, a pixel in the corner and a corner of one level are not of one color."""
    one = np.full((300, 400, 3), 128, np.uint8)
    lines, pixel, corner = one.copy(), one.copy(), one.copy()
    lines[::2] = 130
    pixel[0, 0] = 255
    corner[:60, :60] = 130
    for name, image in (("one", one), ("lines", lines), ("pixel", pixel), ("corner", corner)):
        path = tmp_path / "s" / "a" / f"{name}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, quality=100)
        assert (np.ptp(np.asarray(Image.open(path))) == 0) == (name == "one")  # as decoded by Pillow
    found = checked(tmp_path / "s", tmp_path / "s.tsds", convert={"encoding": "source"}, near=False)
    assert [each.key for each in found.constant] == [f"a/one.{ending}"]


# --- the command ------------------------------------------------------------------------------------------------------


def test_what_is_printed_and_drawn(planted: Path, tmp_path: Path) -> None:
    tsds.convert(planted, tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    done = command("check", tmp_path / "s.tsds", "--picture", tmp_path / "c.png")
    assert done.exit_code == 1
    lines = [line.strip() for line in done.output.splitlines()]
    assert "leaks between splits: 3 groups (1 equal, 2 changed)" in lines
    assert "test/dog/b.png (dog) = train/cat/b.png (cat)" in lines
    assert "images of one color: 2" in lines and "dog: 1 in test (label)" in lines
    with Image.open(tmp_path / "c.png") as sheet:
        assert sheet.width > 300 and sheet.height > 400
    refused = command("check", tmp_path / "s.tsds", "--picture", tmp_path / "c.gif")
    assert refused.exit_code == 1 and "ends in .png" in refused.output


def test_a_clean_store_and_one_that_lacks_a_class(tmp_path: Path) -> None:
    root = folders(tmp_path / "s", **{f"train_cat_{i}": photo(i) for i in range(6)})
    tsds.convert(root, tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    done = command("check", tmp_path / "s.tsds", "--min-class", 1)
    assert (done.exit_code, done.output) == (0, "OK: 6 samples\n")
    done = command("check", tmp_path / "s.tsds", "--min-class", 1, "--picture", tmp_path / "c.png")
    assert done.output.endswith(f"{tmp_path}/c.png: not written, because there are no copies\n")
    with pytest.raises(tsds.OptionError, match="expected findings with copies, found none"):
        tsds.checking.draw_copies(tsds.open(tmp_path / "s.tsds"), tsds.check_store(tmp_path / "s.tsds"))
    done = command("check", tmp_path / "s.tsds", "--min-class", 9)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == "exit status 1, because of these findings"
    root = folders(tmp_path / "t", train_cat_a=photo(1), train_dog_b=photo(2), test_cat_c=photo(3))
    found = checked(root, tmp_path / "t.tsds", min_class=1)
    assert [(each.name, each.split, each.count) for each in found.classes] == [("dog", "test", 0)]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for options in ({"distance": 8}, {"similarity": 1.5}, {"max_box": 0}, {"max_aspect": 0.5}, {"min_class": -1}):
        with pytest.raises(tsds.OptionError, match=f"`{next(iter(options))}`: expected"):
            tsds.checking.CheckOptions(**options)
    assert command("check", tmp_path / "nothing.tsds").exit_code == 1


def test_a_file_that_is_not_of_the_store(planted: Path, tmp_path: Path) -> None:
    """One advice, and it leads to success."""
    store = tmp_path / "s.tsds"
    tsds.convert(planted, store, tsds.ConvertOptions(workers=0, size=(64, 64)))
    (store / "notes.txt").write_text("x")
    result = command("check", store)
    assert (result.exit_code, result.output) == (1, "tsds: notes.txt: this file is not listed. Remove it.\n")
    (store / "notes.txt").unlink()
    assert "not listed" not in command("check", store).output
