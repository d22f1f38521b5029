"""A sample of each object: its pixels compared with those that NumPy cuts out of the whole image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import write
from small_stores import tsds as command
from tensorstore_ds.conversion.crops import SOURCE_BOX
from tensorstore_ds.conversion.values import ObjectCrops
from tensorstore_ds.errors import OptionError, SourceError

HEIGHT, WIDTH = 20, 30


def pixels(seed: int, channels: int = 3) -> NDArray[np.uint8]:
    shape = (HEIGHT, WIDTH, 3) if channels == 3 else (HEIGHT, WIDTH)
    return np.random.default_rng(seed).integers(1, 256, shape, np.uint8)


def shape(label: str, *points: Any, form: str = "rectangle", group: int | None = None) -> dict[str, Any]:
    return {"label": label, "points": list(points), "shape_type": form, "group_id": group, "flags": {}}


#: Five objects side by side.
ROW = [shape("cat", [x, 2], [x + 3, 6]) for x in range(0, 25, 5)]


def source(root: Path, *images: list[dict[str, Any]]) -> Path:
    """labelme's files, an image each."""
    for i, shapes in enumerate(images):
        write(root, {f"{i}.json": json.dumps({"version": "5", "shapes": shapes, "imagePath": f"{i}.png"})})
        Image.fromarray(pixels(i)).save(root / f"{i}.png")
    return root


def crops(path: Path, out: Path, **options: Any) -> tsds.Store:
    tsds.convert(path, out, tsds.ConvertOptions(**{"cut": ObjectCrops(), "workers": 0, **options}))
    return tsds.open(out)


def rows(split: tsds.Split, name: str) -> list[Any]:
    return [split[name][row] for row in range(len(split))]


def test_each_object_is_a_sample(tmp_path: Path) -> None:
    path = source(
        tmp_path / "s",
        [
            shape("cat", [4, 5], [10, 9], group=1),
            shape("nose", [6, 7], form="point", group=1),
            shape("dog", [20, 10], [28, 10], [24, 18], form="polygon"),
        ],
        [],
        [shape("dog", [1, 1], [7, 5])],
    )
    split = crops(path, tmp_path / "o.tsds", cut=ObjectCrops(margin=0))["train"]
    assert rows(split, "key") == ["0.png#0", "0.png#1", "2.png#0"]
    assert rows(split, SOURCE_BOX)[1].tolist() == [20, 10, 28, 18]
    assert split["label"][:].tolist() == [0, 1, 1]
    for row, (number, part) in enumerate([(0, np.s_[5:9, 4:10]), (0, np.s_[10:18, 20:28]), (2, np.s_[1:5, 1:7])]):
        np.testing.assert_array_equal(split["image"][row], pixels(number)[part])
    first, second, _ = rows(split, "objects")
    assert (first["boxes"].tolist(), first["keypoints"].tolist()) == ([[0, 0, 6, 4]], [[[2, 2]]])
    assert second["polygons"][0].tolist() == [[0, 0], [8, 0], [4, 8]]
    assert tsds.verify(tmp_path / "o.tsds") == []


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(-80, 380).map(lambda n: n / 10), min_size=4, max_size=4),
    st.floats(0, 2),
    st.one_of(st.none(), st.tuples(st.integers(1, 24), st.integers(1, 24))),
)
@example([0.1, -0.9, 0.1, -0.9], 0.0, (1, 2))  # the part around it is outside of the image
def test_any_box(
    tmp_path_factory: pytest.TempPathFactory, corners: list[float], margin: float, size: tuple[int, int] | None
) -> None:
    """Every pixel of the box is there; where the crop leaves the image it is black."""
    root = tmp_path_factory.mktemp("any")
    (x1, x2), (y1, y2) = sorted(corners[:2]), sorted(corners[2:])
    box = np.clip([x1, y1, x2, y2], 0, [WIDTH, HEIGHT, WIDTH, HEIGHT])
    path = source(root / "s", [shape("cat", [x1, y1], [x2, y2])])
    options: dict[str, Any] = {"cut": ObjectCrops(margin)} | ({"size": size} if size else {})
    if not (box[0] < box[2] and box[1] < box[3] and x2 - x1 >= 1 and y2 - y1 >= 1):
        with pytest.raises(SourceError):
            crops(path, root / "o.tsds", **options)
        return
    split = crops(path, root / "o.tsds", **options)["train"]
    image, found = split["image"][0], split["objects"][0]["boxes"][0]
    np.testing.assert_allclose(split[SOURCE_BOX][0], box, rtol=1e-6)
    if size is not None:
        assert image.shape == (*size, 3)
        assert ((found >= -1e-3) & (found <= np.array([*size[::-1], *size[::-1]]) + 1e-3)).all()
        return
    left, top = np.round(box[:2] - found[:2]).astype(int)
    ys, xs = np.indices(image.shape[:2])
    inside = (ys + top >= 0) & (ys + top < HEIGHT) & (xs + left >= 0) & (xs + left < WIDTH)
    assert not image[~inside].any()
    np.testing.assert_array_equal(image[inside], pixels(0)[(ys + top)[inside], (xs + left)[inside]])
    assert (found[:2] >= -1e-4).all() and found[2] <= image.shape[1] + 1e-4 and found[3] <= image.shape[0] + 1e-4


def test_a_size_takes_more_of_the_image_instead_of_borders(tmp_path: Path) -> None:
    path = source(tmp_path / "s", [shape("cat", [10, 8], [14, 10])])
    split = crops(path, tmp_path / "o.tsds", size=(4, 4), cut=ObjectCrops(margin=0))["train"]
    np.testing.assert_array_equal(split["image"][0], pixels(0)[7:11, 10:14])
    assert split["objects"][0]["boxes"].tolist() == [[0, 1, 4, 3]]


def test_coordinates_that_are_fractions_and_small_objects(tmp_path: Path) -> None:
    write(tmp_path / "s", {"labels/0.txt": "0 0.5 0.5 0.2 0.4\n1 0.5 0.5 0.05 0.5\n", "classes.txt": "cat\ndog\n"})
    (tmp_path / "s/images").mkdir()
    Image.fromarray(pixels(0)).save(tmp_path / "s/images/0.png")
    split = crops(tmp_path / "s", tmp_path / "o.tsds", cut=ObjectCrops(0, min_side=2))["train"]
    np.testing.assert_array_equal(split["image"][0], pixels(0)[6:14, 12:18])
    assert len(split) == 1
    left_out = [json.loads(line) for line in (tmp_path / "o.tsds/skipped.jsonl").read_text().splitlines()]
    assert [(each["reason"], each["message"]) for each in left_out] == [("small-objects", "not stored: 1 objects.")]


def test_no_image_is_in_two_splits(tmp_path: Path) -> None:
    path = source(tmp_path / "s", *[ROW] * 20)
    store = crops(path, tmp_path / "o.tsds", size=(8, 8), split_into={"train": 0.75, "val": 0.25}, workers=2)
    images = {name: {key.partition("#")[0] for key in rows(store[name], "key")} for name in store}
    assert {name: len(each) for name, each in images.items()} == {"train": 15, "val": 5}
    assert not images["train"] & images["val"]


def test_workers_and_a_plan_make_the_same_store(tmp_path: Path) -> None:
    path, out = source(tmp_path / "s", *[ROW] * 6), tmp_path / "plan.tsds"
    stores = [crops(path, tmp_path / f"{n}.tsds", size=(8, 8), workers=n) for n in (0, 2)]
    tsds.clusters.plan(path, out, tsds.ConvertOptions(cut=ObjectCrops(), size=(8, 8)), tasks=1)
    tsds.clusters.convert_task(out, 0, workers=0)
    tsds.clusters.commit(out)
    for name in ("image", SOURCE_BOX):
        first, *others = (each["train"][name][:] for each in (*stores, tsds.open(out)))
        for other in others:
            np.testing.assert_array_equal(first, other)


def test_another_margin_does_not_go_on(tmp_path: Path) -> None:
    path, options = source(tmp_path / "s", ROW, ROW), {"size": (8, 8), "shard_nbytes": 8 * 8 * 3 * 5}
    broken = (path / "1.png").read_bytes()
    (path / "1.png").write_bytes(b"")
    with pytest.raises(SourceError):
        crops(path, tmp_path / "o.tsds", **options)
    (path / "1.png").write_bytes(broken)
    for name, cut in (("margin", ObjectCrops(0.2)), ("min_side", ObjectCrops(min_side=2))):
        with pytest.raises(OptionError, match=f"finished shards of another conversion .* `{name}` was"):
            crops(path, tmp_path / "o.tsds", cut=cut, **options)
    made = tsds.ConvertOptions(cut=ObjectCrops(), workers=0, **options)
    assert tsds.convert(path, tmp_path / "o.tsds", made).resumed == 1


def test_jpeg_files_of_differing_sizes(tmp_path: Path) -> None:
    path = source(tmp_path / "s", [shape("cat", [2, 2], [12, 10]), shape("cat", [2, 2], [12, 18])])
    store = crops(path, tmp_path / "o.tsds", encoding="jpeg")
    assert store["train"]["size"][:].tolist() == [[10, 12], [20, 12]]
    assert tsds.convert(path, tmp_path / "raw.tsds", cut=ObjectCrops(), workers=0).rows == {"train": 2}


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    path = source(tmp_path / "s", [shape("cat", [2, 2], [12, 10])])
    with pytest.raises(OptionError, match='`objects="crops"` stores parts of images'):
        crops(path, tmp_path / "o.tsds", encoding="source")
    with pytest.raises(OptionError, match="`margin` belongs to"):
        tsds.ConvertOptions(margin=0.5)
    with pytest.raises(SourceError, match="expected objects that are large enough, found none"):
        crops(path, tmp_path / "o.tsds", cut=ObjectCrops(min_side=100))
    plain = tmp_path / "plain"
    plain.mkdir()
    Image.fromarray(pixels(0)).save(plain / "a.png")
    with pytest.raises(OptionError, match="expected objects with boxes, found none"):
        crops(plain, tmp_path / "o.tsds")
    assert not list(tmp_path.glob("o.tsds*"))


def test_bad_boxes_are_named_or_left_out_and_counted_as_boxes(tmp_path: Path) -> None:
    shapes = [shape("b", [1, 2], [9, 9]), shape("a", [42, 2], [52, 10]), shape("c", [91, 2], [99, 9])]
    path = source(tmp_path / "s", shapes)
    found = r"0\.png: object 2: expected a box inside of the image, found \(42, 2, 52, 10\)"
    with pytest.raises(SourceError, match=found):
        crops(path, tmp_path / "o.tsds", size=(8, 8))
    summary = tsds.convert(path, tmp_path / "o.tsds", cut=ObjectCrops(), on_error="skip", workers=0)
    assert (summary.rows, summary.skipped) == ({"train": 1}, {"box-outside": 2})
    assert (summary.skipped_boxes, summary.skipped_images) == (2, 0)


def test_the_command(tmp_path: Path) -> None:
    path = source(tmp_path / "s", [shape("cat", [2, 2], [12, 10])])
    arguments = ("convert", path, tmp_path / "o.tsds", "--objects", "crops", "--size", 8, "--margin", 0.2)
    done = command(*arguments, "--min-side", 2)
    assert done.exit_code == 0, done.output
    dry = command(*arguments[:2], tmp_path / "p.tsds", *arguments[3:], "--dry-run")
    assert dry.exit_code == 0 and "labelme, 1 sample" in dry.output
