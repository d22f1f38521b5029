"""COCO's JSON as it is specified and as various tools write it: what is read, left out and refused."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import Case, Has, blank, case, check, converted, found, refused, stored, write
from stores import png_bytes
from tensorstore_ds.annex.sources import json_files
from tensorstore_ds.annex.sources.coco import files as coco_files, source as coco_source
from tensorstore_ds.annex.sources.coco.files import Kind, kind_of
from tensorstore_ds.errors import SourceError
from tensorstore_ds.imaging.outlines import dump_counts
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import SourceOptions

Json = dict[str, Any]

SQUARE = [1, 2, 9, 2, 9, 12, 1, 12]
DATA: Json = {
    "info": {"year": 2017},
    "images": [
        {"id": 9, "file_name": "b.png", "height": 30, "width": 40},
        {"id": 4, "file_name": "a.png", "height": 30, "width": 40},
        {"id": 5, "file_name": "c.png"},
    ],
    "annotations": [
        {"id": 1, "image_id": 4, "category_id": 90, "bbox": [1, 2, 8, 10], "area": 70.5, "segmentation": [SQUARE]},
        {"id": 2, "image_id": 9, "category_id": 1, "bbox": [0.5, 0, 3, 3.25], "segmentation": [], "area": 9},
        {"id": 3, "image_id": 4, "category_id": 1, "bbox": [0, 0, 40, 30], "iscrowd": 1,
         "segmentation": {"counts": [31, 4, 1165], "size": [30, 40]}},
        {"id": 4, "image_id": 4, "category_id": 7, "bbox": [1, 1, 5, 5], "keypoints": [3, 4, 2, 0, 0, 0, 5, 6, 1],
         "segmentation": [SQUARE, [20, 20, 30, 20, 30, 25], [1, 1, 2, 2]]},
    ],
    "categories": [
        {"id": 90, "name": "toothbrush"},
        {"id": 1, "name": "person"},
        {"id": 7, "name": "train", "keypoints": ["nose", "left_eye", "right_eye"], "skeleton": [[1, 2], [1, 3]]},
    ],
}  # fmt: skip


def data(**changes: Any) -> Json:
    return {**copy.deepcopy(DATA), **changes}


def source_of(root: Path, content: Any = DATA, json_path: str = "annotations/instances_val2017.json") -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 30, 40, 3), np.uint8)
    images = {f"val2017/{name}.png": png_bytes(each) for name, each in zip("abc", pixels, strict=True)}
    text = content if isinstance(content, str) else json.dumps(content)
    return write(root, {**images, json_path: text})


def turned(degrees: Any, **more: Any) -> Json:
    """The data with an object as CVAT writes turned rectangles, and one that is not turned."""
    objects = [
        {"bbox": [10, 12, 16, 6], "attributes": {"occluded": False, "rotation": degrees}, "segmentation": []},
        {"bbox": [2, 3, 5, 4], "attributes": {"rotation": 0.0}},
        {"bbox": [1, 2, 8, 10], "attributes": {"rotation": degrees}, "segmentation": [SQUARE]},
    ]
    shared = {"image_id": 9, "category_id": 1, **more}
    return data(annotations=[{"id": i, **shared, **each} for i, each in enumerate(objects, 1)])


@pytest.mark.parametrize("degrees", [30, 90.0, 300.5, -45, 725])
def test_boxes_turned_in_cvat_are_oriented(tmp_path: Path, degrees: float) -> None:
    source_of(tmp_path / "src", turned(degrees))
    split = stored(tmp_path / "src")["val"]
    found = split["objects"][0]
    turn = np.exp(1j * np.radians(degrees))  # clockwise as it is seen, because y points down
    corners = (18 + 15j) + turn * np.array([-8 - 3j, 8 - 3j, 8 + 3j, -8 + 3j])
    np.testing.assert_allclose(found["oriented_boxes"][0, :4], [18, 15, 16, 6], atol=1e-4)
    np.testing.assert_allclose(np.exp(1j * found["oriented_boxes"][0, 4]), turn, atol=1e-5)
    expected = [corners.real.min(), corners.imag.min(), corners.real.max(), corners.imag.max()]
    np.testing.assert_allclose(found["boxes"][0], expected, atol=1e-4)
    np.testing.assert_allclose(found["oriented_boxes"][1], [4.5, 5, 5, 4, 0], atol=1e-5)
    np.testing.assert_array_equal(found["boxes"][1:], [[2, 3, 7, 7], [1, 2, 9, 12]])
    assert np.isnan(found["oriented_boxes"][2]).all()  # an outline says more, and its box is around it


def test_all_that_is_read(tmp_path: Path) -> None:
    source_of(tmp_path / "src")
    store = stored(tmp_path / "src")
    assert list(store) == ["val"]
    split = store["val"]
    assert split["key"][:] == ["val2017/b.png", "val2017/a.png", "val2017/c.png"]  # as the file lists them
    field: Any = split.fields["objects"]
    assert field.classes == ("person", "train", "toothbrush")  # in the order of the ids
    assert (field.keypoints, field.flip_pairs) == (("nose", "left_eye", "right_eye"), ((1, 2),))
    assert field.skeleton == ((0, 1), (0, 2))
    assert split["objects"][2]["boxes"].shape == (0, 4)
    first, second = split["objects"][0], split["objects"][1]
    np.testing.assert_array_equal(first["boxes"], [[0.5, 0, 3.5, 3.25]])
    np.testing.assert_array_equal(first["area"], [9])
    assert first["polygons"][0].shape == (0, 2) and first["rle"][0].shape == (0,)
    np.testing.assert_array_equal(second["labels"], [2, 0, 1])
    np.testing.assert_array_equal(second["iscrowd"], [0, 1, 0])
    np.testing.assert_array_equal(second["area"], [70.5, 1200, 25])  # that of the box where none is given
    np.testing.assert_array_equal(second["boxes"], [[1, 2, 9, 12], [0, 0, 40, 30], [1, 1, 6, 6]])
    np.testing.assert_array_equal(second["polygons"][0], np.reshape(SQUARE, (-1, 2)))
    np.testing.assert_array_equal(second["rle"][1], [31, 4, 1165])
    gap = [[np.nan, np.nan]]
    expected = np.concatenate([np.reshape(SQUARE, (-1, 2)), gap, [[20, 20], [30, 20], [30, 25]]])
    np.testing.assert_array_equal(second["polygons"][2], expected)  # without the one of two corners
    np.testing.assert_array_equal(second["keypoints"][2], [[3, 4], [np.nan, np.nan], [5, 6]])
    np.testing.assert_array_equal(second["visibility"], [[0, 0, 0], [0, 0, 0], [2, 0, 1]])
    masks = tsds.loading.draw_masks(second, (30, 40))
    assert masks[1].sum() == 4 and masks[0].sum() == pytest.approx(80, abs=10)
    (left,) = (json.loads(line) for line in (store.path / "skipped.jsonl").read_text().splitlines())
    assert left["reason"] == "polygon-short"


def test_outlines_move_with_their_image(tmp_path: Path) -> None:
    source_of(tmp_path / "src")
    split = stored(tmp_path / "src", fit=tsds.Fit((60, 20), "stretch"))["val"]  # twice as high, half as wide
    objects = split["objects"][1]
    np.testing.assert_allclose(objects["polygons"][0], np.reshape(SQUARE, (-1, 2)) * [0.5, 2])
    np.testing.assert_allclose(objects["area"], [70.5, 1200, 25])
    masks = tsds.loading.draw_masks(objects, (60, 20))
    assert masks[1].sum() == 0 or masks[1].sum() == 8  # four pixels of one column


def test_a_crop_drops_an_object_with_its_outline(tmp_path: Path) -> None:
    content = data()
    content["annotations"][3]["bbox"] = [0, 0, 4, 4]  # left of the middle square
    source_of(tmp_path / "src", content)
    objects = stored(tmp_path / "src", fit=tsds.Fit((30, 30), "crop"))["val"]["objects"][1]
    assert len(objects["boxes"]) == len(objects["polygons"]) == len(objects["rle"]) == 2
    np.testing.assert_allclose(objects["polygons"][0], np.reshape(SQUARE, (-1, 2)) - [5, 0])


def test_a_polygon_of_via_has_no_list_around(tmp_path: Path) -> None:
    store = stored(source_of(tmp_path / "src", change("annotations", 0, segmentation=SQUARE)))
    np.testing.assert_array_equal(store["val"]["objects"][1]["polygons"][0], np.reshape(SQUARE, (-1, 2)))


def test_repacked_and_resized(tmp_path: Path) -> None:
    store = stored(source_of(tmp_path / "src"))
    tsds.repack(store.path, tmp_path / "r.tsds", encoding="jpeg", fit=tsds.conversion.Shrink(20))
    assert tsds.verify(tmp_path / "r.tsds") == []
    objects = tsds.open(tmp_path / "r.tsds")["val"]["objects"][1]
    np.testing.assert_allclose(objects["polygons"][0], np.reshape(SQUARE, (-1, 2)) / 2)
    np.testing.assert_allclose(objects["area"], [70.5 / 4, 300, 25 / 4])
    tsds.repack(store.path, tmp_path / "z.tsds", layout="zarr")
    np.testing.assert_array_equal(tsds.open(tmp_path / "z.tsds")["val"]["objects"][1]["rle"][1], [31, 4, 1165])


def change(part: str, index: int, **values: Any) -> Json:
    content = data()
    content[part][index] |= values
    return content


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"segmentation": [[1, 2, 3, 4, 5]]}, "odd number"),
        ({"segmentation": [["a"] * 6]}, r"segmentation\[0\]\[0\]: expected a number, found a text"),
        ({"segmentation": {"counts": [3, 4], "size": [30, 40]}}, "runs of 7 pixels"),
        ({"segmentation": {"counts": [-3, 1203], "size": [30, 40]}}, "negative"),
        ({"segmentation": {"counts": "~", "size": [30, 40]}}, "compressed form"),
        ({"segmentation": {"counts": [1200], "size": [40, 40]}}, "where the size says"),
        ({"segmentation": {"counts": [1200], "size": [40, 30]}}, r"an image of \(30, 40\) .* found \(40, 30\)"),
        ({"segmentation": {"counts": [300], "size": [15, 20]}}, r"an image of \(30, 40\) .* found \(15, 20\)"),
        ({"keypoints": [1, 2, 2]}, "expected 3 numbers for each of 3 keypoints"),
        ({"keypoints": [1, 2]}, "expected 3 numbers for each, found 2"),
        ({"keypoints": [1, 2, 2, 0, 0, 0, 5, 6, 300]}, "none of 0, 1 and 2"),
    ],
)
def test_what_a_conversion_refuses(tmp_path: Path, values: Json, message: str) -> None:
    source_of(tmp_path / "src", change("annotations", 3, **values))
    with pytest.raises(tsds.SourceError, match=message) as caught:
        stored(tmp_path / "src")
    assert "instances_val2017.json" in str(caught.value) and "\n" not in str(caught.value)
    assert converted(tmp_path / "src", on_error="skip")[1].rows == {"val": 2}


def test_runs_are_of_their_image(tmp_path: Path) -> None:
    """The JSON gives no size of the image: the size of the runs is compared with the image itself."""
    content = data()
    content["annotations"].append({**content["annotations"][2], "id": 9, "image_id": 5})
    assert tsds.verify(converted(source_of(tmp_path / "right", content))[0].path) == []
    content["annotations"][-1]["segmentation"] = {"counts": [31, 1169], "size": [40, 30]}
    with pytest.raises(tsds.SourceError, match="for an image of 40x30") as caught:
        stored(source_of(tmp_path / "wrong", content))
    assert caught.value.problems[0].reason == "size-mismatch"


@pytest.mark.parametrize("nbytes", [1, 50, 333])
def test_pieces_may_end_anywhere(tmp_path: Path, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = data(licenses=[{"id": 1}], videos=[{"id": 1}])
    content["annotations"][0] |= {"parts": [{"a": 1}, {"a": 2}], "attributes": {"occluded": True}}
    content["annotations"].insert(1, {"image_id": 5, "category_id": 77, "bbox": [1, 2, 3, 4]})
    content["images"].append({"id": 6, "file_name": 3})
    names = ["annotations", "videos", "images", "info", "categories", "licenses"]
    source = source_of(tmp_path / "src", {name: content[name] for name in names})

    def found() -> tuple[Any, ...]:
        opened = open_source(source)
        contents = opened.scan()
        samples = [opened.read("val", reference) for reference in contents.splits["val"]]
        objects = [(each.objects or {})["boxes"].tolist() for each in samples]
        return contents.problems, contents.left_out, opened.ledger.problems(), list(contents.splits["val"]), objects

    expected = found()
    assert len(expected[3]) == 2 and len(expected[2]) == 3
    monkeypatch.setattr(json_files, "_PIECE", nbytes)
    monkeypatch.setattr(json_files, "_FIRST", nbytes)
    monkeypatch.setattr(coco_source, "_AT_ONCE", 2)
    assert found() == expected


@pytest.mark.parametrize("ids", [[9, 4, 5], [9.0, 4.0, 5.0], ["ü", "a", ""], [-1, -2, 0], [2**70, 2**62, 0.5]])
def test_ids_of_all_kinds(tmp_path: Path, ids: list[Any]) -> None:
    content = data()
    new = dict(zip((9, 4, 5), ids, strict=True))
    for image in content["images"]:
        image["id"] = new[image["id"]]
    for each in content["annotations"]:
        each["image_id"] = new[each["image_id"]]
    contents = [
        open_source(source_of(tmp_path / name, given)).scan() for name, given in (("a", data()), ("b", content))
    ]
    counts = [[reference.split("\0")[2].count(":") for reference in each.splits["val"]] for each in contents]
    assert counts[0] == counts[1] == [1, 3, 0] and not contents[1].problems


def test_a_foreign_file_of_many_members_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({f"{i:06}.jpg": [i, i] for i in range(20_000)}))
    monkeypatch.setattr(coco_files, "JsonPieces", None)
    assert kind_of(path) == Kind.OTHER


def test_a_file_is_recognized_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its first members are, and without all of it in memory."""
    monkeypatch.setattr(json_files, "_PIECE", 1 << 12)
    monkeypatch.setattr(coco_files, "_AT_ONCE", 0)
    categories = [{"id": i, "name": f"class {i}", "supercategory": "x" * 20} for i in range(20_000)]
    path = source_of(tmp_path / "src", {"categories": categories, "images": DATA["images"]}) / "annotations"
    for name, mark in (("instances_val2017.json", b""), ("marked.json", b"\xef\xbb\xbf")):
        (path / name).write_bytes(mark + (path / "instances_val2017.json").read_bytes())
        tracemalloc.start()
        try:
            assert kind_of(path / name) == Kind.COCO
            assert tracemalloc.get_traced_memory()[1] < 400_000
        finally:
            tracemalloc.stop()
    assert (path / "marked.json").stat().st_size > 1_000_000
    (path / "other.json").write_text(json.dumps({"info": {}, "x" * 5000: [], "files": []}))
    (path / "cut.json").write_text(json.dumps({"info": {}, "x" * 5000: [], "files": []})[:-1])
    assert [kind_of(path / name) for name in ("other.json", "cut.json")] == [Kind.OTHER, Kind.BROKEN]


PLACE, IMAGES = "annotations/instances_val2017.json", tuple(f"val2017/{name}.png" for name in "abc")


def files(images: Sequence[str], jsons: Mapping[str, Json | bytes], at: str = "", **expected: object) -> Case:
    texts = {name: each if isinstance(each, bytes) else json.dumps(each) for name, each in jsons.items()}
    return case({**texts, **blank(*images)}, at, **expected)


def one(content: Json | bytes, more: Mapping[str, Json] | None = None, at: str = "", **expected: Any) -> Case:
    """The images of `DATA`, with this JSON and more of it."""
    others = {f"annotations/{name}_val2017.json": each for name, each in (more or {}).items()}
    return files(IMAGES, {PLACE: content, **others}, at, **expected)


def captions(*names: str) -> Json:
    images = [{"id": 7, "file_name": f"{name}.png"} for name in names]
    return {"images": images, "annotations": [{"id": 1, "image_id": 7, "caption": "of one"}]}


CAPTION = {"id": 1, "image_id": 9, "caption": "a cat"}
RICHER = {"person_keypoints": data(annotations=[]), "captions": data(annotations=[CAPTION])}
TWICE = "expected each id of an image once in annotations/captions_val2017.json, found 7 again."
ONE_IMAGE = json.dumps(data(annotations=[], images=[{"id": 1, "file_name": "x.png"}]))

ONE_BOX = {"image_id": 9, "category_id": 1, "bbox": [0, 0, 3, 3]}
CASES = {
    **{
        f"the rotation {rotation!r}": one(turned(rotation), values=["boxes", "labels", "area", "polygons"], boxes=[
            [[10, 12, 26, 18], [2, 3, 7, 7], [1, 2, 9, 12]], [], []
        ])
        for rotation in (0, 0.0, "left", None, True, [30], {"x": 1}, 10**30)
    },
    **{
        f"the attributes {attributes!r}": one(
            data(annotations=[{**DATA["annotations"][1], "attributes": attributes}]),
            boxes=[[[0.5, 0, 3.5, 3.25]], [], []],
        )
        for attributes in ([], [1], "x", 5, None, {"occluded": True})
    },
    "runs in compressed form": one(
        change("annotations", 2, segmentation={"size": [30, 40], "counts": dump_counts(np.array([93, 17, 1090]))}),
        rle=[[[]], [[], [93, 17, 1090], []], []],
    ),
    "only what objects have": one(
        data(annotations=[{**ONE_BOX, "iscrowd": 0, "area": 9}]), values=["boxes", "labels"]
    ),
    "a file by its name": one(DATA, at=PLACE, keys={"val": [f"val2017/{name}.png" for name in "bac"]}),
    "two images of one id": one(  # both are bad, for annotations may be of either
        change("images", 1, id=9), keys={"val": ["val2017/c.png"]},
        problems=[
            (f"{PLACE}: image_id 4", "no-image"), ("val2017/b.png", "duplicate-key"), ("val2017/a.png", "duplicate-key")
        ],
    ),
    **{
        f"images of {', '.join(names)}": case(
            {**dict.fromkeys(names, ONE_IMAGE), **blank(*(f"{folder}/x.png" for folder in folders))},
            keys=dict(zip(splits, ([f"{folder}/x.png".removeprefix("./")] for folder in folders), strict=True)),
        )
        for names, folders, splits in (
            (["labels.json"], ["images"], ["train"]),
            (["labels.json"], ["."], ["train"]),
            (["train.json", "test.json"], ["images/train", "images/test"], ["train", "test"]),
        )
    },
    "richer files of the same images": one(
        DATA, RICHER, left_out=[("annotations/person_keypoints_val2017.json", "no-more-annotated")]
    ),
    "captions alone": one(
        DATA, RICHER, "annotations/captions_val2017.json", fields=["captions"], left_out=[],
        texts=[{"captions": ["a cat"]}, {}, {}],
    ),
    **{
        f"an id of the images {names} of captions": one(  # the caption may be of either; one listed again is no other
            DATA, {"captions": captions(*names)},
            said=[f"val2017/{name}.png: {TWICE}" for name in bad],
        )
        for names, bad in (("ab", "ba"), (("a", "gone"), "a"), ("aa", ""))
    },
    "JSON in no UTF-8": one(
        json.dumps(data(info={"year": "x"})).encode().replace(b'"x"', b'"\xff"'),
        refused=("annotation", r"val2017\.json: expected JSON((?!another one).)*$"),
    ),
    "captions that another file replaces": one(
        data(annotations=[*DATA["annotations"], {"id": 7, "image_id": 9, "caption": "a dog"}]),
        {"captions": data(annotations=[CAPTION])}, said=[Has(PLACE, "captions")],
    ),
    "neither objects nor captions": one(
        data(annotations=[{"id": 1, "image_id": 9, "sky": 3}]),
        said=[Has("not stored: 1 annotations without a box or a caption."), Has('not read: "sky".')],
    ),
    "an image that no file lists": one(
        data(images=DATA["images"][:2]), left_out=[("val2017/c.png", "not-listed")]
    ),
    "an image listed twice alike": one(
        data(images=[*DATA["images"], DATA["images"][1]]), problems=[],
        left_out=[("val2017/a.png", "duplicate-object")], keys={"val": [f"val2017/{name}.png" for name in "bac"]},
    ),
    "a member that comes twice": one(
        json.dumps(DATA)[:-1].encode() + b', "annotations": []}',
        refused=("annotation", r"\.json: expected each member once, found 'annotations' again\. Write"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "reason", "where"),
    [
        (change("images", 0, file_name="../../etc/passwd"), "unsafe-path", "image 1"),
        (change("images", 0, file_name="/etc/passwd"), "unsafe-path", "image 1"),
        (change("images", 0, file_name="https://example.org/b.png"), "no-image", "example.org/b.png"),
        (change("images", 0, file_name="missing.png"), "no-image", "missing.png"),
        (change("images", 1, file_name="b.png"), "duplicate-key", "b.png"),
        (change("images", 1, file_name=3), "annotation", "image 2"),
        (change("images", 1, id=None), "annotation", "image 2"),
        (change("annotations", 1, bbox=[1, 2, 3]), "annotation", "annotation 2"),
        (change("annotations", 1, bbox="1 2 3 4"), "annotation", "annotation 2"),
        (change("annotations", 1, bbox=None), "annotation", "annotation 2"),
        (change("annotations", 1, image_id=77), "no-image", "annotation 2"),
        (change("annotations", 1, category_id=77), "unknown-class", "annotation 2"),
    ],
)
def test_what_a_scan_refuses(tmp_path: Path, content: Json, reason: str, where: str) -> None:
    contents = open_source(source_of(tmp_path / "src", content), "coco", SourceOptions()).contents()
    assert [where in str(each) for each in contents.problems if each.reason == reason] == [True]


@pytest.mark.parametrize(
    "text",
    [
        '{"images": [',
        '{"images": {}, "annotations": []}',
        '{"images": [], "annotations": [], "categories": [{"id": 1}]}',
        '{"images": [{"id": NaN}], "annotations": []}',
        '{"annotations": ' + "[" * 5000,
        '{"images": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}',
        '{"images": [], "categories": [{"id": 1, "name": "a", "keypoints": ["x", "x"]}]}',
        '{"images": []}',
    ],
)
def test_files_that_are_damaged(tmp_path: Path, text: str) -> None:
    refused(source_of(tmp_path / "src", text), "coco", r"^.{1,500}$")


# --- as tools write it, compared with pycocotools ------------------------------------------------------------------


def pets(*names: str, **changes: Any) -> Json:
    """An image, a cat of keypoints and an outline for each name; `changes` are of all annotations."""
    annotations = [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 10, 12], "iscrowd": 0, "area": 120} | changes
        for i in range(len(names))
    ]
    return {
        "info": {},
        "images": [{"id": i, "file_name": name, "width": 64, "height": 48} for i, name in enumerate(names)],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "cat"}],
    }


def drawn(root: Path, *paths: str, content: Any = None) -> Path:
    """Images of these paths, and train.json with this content."""
    images = {path: png_bytes(np.full((48, 64, 3), (i, 9, 9), np.uint8)) for i, path in enumerate(paths)}
    return write(root, {**images, **({} if content is None else {"train.json": json.dumps(content)})})


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda text: b"", "empty file"),
        (lambda text: b" \n", "empty file"),
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: text.replace(b"}", b"", 1), "JSON"),
        (lambda text: text.replace(b"cat", b"caf\xe9"), "UTF-8"),
        (lambda text: b"PK\x03\x04" + text, "JSON"),
        (lambda text: b"<html>not found</html>", "JSON"),
    ],
)
@pytest.mark.parametrize("files", [("train", "val"), ("val",)])
def test_a_file_that_cannot_be_parsed_is_named(
    tmp_path: Path, damaged: Callable[[bytes], bytes], message: str, files: tuple[str, ...]
) -> None:
    """Also where others can be read, or it is the only one."""
    texts = {name: json.dumps(pets(f"{name}.png")).encode() for name in files}
    texts["val"] = damaged(texts["val"])
    root = drawn(tmp_path / "src", *(f"{name}/{name}.png" for name in files))
    write(root, {f"{name}/_annotations.coco.json": text for name, text in texts.items()})
    for on_error in ("fail", "skip"):
        with pytest.raises(SourceError, match=message) as caught:
            tsds.convert(root, tmp_path / "out.tsds", workers=0, on_error=on_error)
        assert str(caught.value).count("val/_annotations.coco.json") == 1 and "\n" not in str(caught.value)


def test_a_file_among_many_images(tmp_path: Path) -> None:
    """Formats are recognized by some names of a folder; the scan reads all."""
    names = [f"{i}.png" for i in range(1500)]
    jsons = {"train": pets("t.png"), "valid": pets(*names)}
    write(tmp_path, blank("train/t.png", *(f"valid/{name}" for name in names)))
    write(tmp_path, {f"{split}/_annotations.coco.json": json.dumps(each) for split, each in jsons.items()})
    assert {split: len(some) for split, some in found(tmp_path, "coco").keys.items()} == {"train": 1, "valid": 1500}
    (tmp_path / "train/_annotations.coco.json").unlink()
    assert [open_source(path).name for path in (tmp_path, tmp_path / "valid")] == ["coco"] * 2


def oracle(path: Path) -> dict[str, list[list[float]]]:
    """The boxes of each image as pycocotools has them, x1 y1 x2 y2."""
    pycocotools = pytest.importorskip("pycocotools.coco")
    with contextlib.redirect_stdout(io.StringIO()):
        data = pycocotools.COCO(str(path))
    found = {}
    for id, image in data.imgs.items():
        boxes = [each["bbox"] for each in data.loadAnns(data.getAnnIds(imgIds=[id]))]
        found[image["file_name"]] = [[x, y, x + width, y + height] for x, y, width, height in boxes]
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pycocotools
@pytest.mark.parametrize(
    "change",
    [
        *({"iscrowd": value} for value in (False, True, None, 0.0, 1, "0")),
        *({"area": value} for value in ("120", None, 120.5, 0)),
        *({"segmentation": value} for value in (None, [], {}, "")),
        *({"keypoints": value} for value in (None, [])),
        {"id": "first"},
        {"id": None},
        {"caption": ""},
        {"category_id": 1.0},
    ],
)
def test_types_that_pycocotools_takes(tmp_path: Path, change: Json) -> None:
    content = pets("a.png", "b.png")
    content["annotations"][0] |= change
    root = drawn(tmp_path / "src", "a.png", "b.png", content=content)
    store, summary = converted(root)
    expected = oracle(root / "train.json")
    split = store["train"]
    assert {key: split["objects"][i]["boxes"].tolist() for i, key in enumerate(split["key"])} == expected
    assert not summary.skipped and not summary.left_out
    flags = split["objects"][0].get("iscrowd", np.zeros(1))
    assert flags.tolist() == [int(float(change.get("iscrowd") or 0))]


@pytest.mark.parametrize(
    ("size", "is_good"),
    [
        *((size, True) for size in [(64.0, 48.0), (-1, -1), (None, None), (0, 0), ("64", "48"), (64, None)]),
        *((size, False) for size in [(64.5, 48), ([], 48), ("wide", 48), (48, 64), (2**40, 48), (True, 48)]),
        ((10**400, 48), False),
    ],
)
def test_sizes(tmp_path: Path, size: tuple[Any, Any], is_good: bool) -> None:
    content = pets("a.png", "b.png")
    content["images"][0] |= dict(zip(("width", "height"), size, strict=True))
    root = drawn(tmp_path / "src", "a.png", "b.png", content=content)
    if not is_good:
        with pytest.raises(SourceError):
            converted(root)
    store, summary = converted(root, on_error="fail" if is_good else "skip")
    assert store["train"]["key"][:] == ["a.png", "b.png"][not is_good :]
    assert summary.skipped_images == (not is_good)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iscrowd": "maybe"}, "iscrowd: expected 0 or 1, found 'maybe'"),
        ({"iscrowd": 2}, "iscrowd: expected 0 or 1, found 2"),
        ({"bbox": [1, 2, 3, 4, 5]}, "bbox: expected 4 numbers, found 5"),
        ({"bbox": ["1", "2", "3", "4"]}, r"bbox\[0\]: expected a number, found a text"),
        ({"bbox": [1, 2, None, 4]}, r"bbox\[2\]: expected a number, found null"),
        ({"bbox": []}, "expected a box, found none"),
        ({"area": "large"}, "area: expected a number, found 'large'"),
        ({"area": 10**400}, "area: expected|expected area, a number, found"),
        ({"category_id": "1"}, "expected the id of a category, found '1'"),
        ({"category_id": 1.5}, "expected the id of a category, found 1.5"),
        ({"segmentation": "1,2,3"}, 'segmentation: expected polygons or runs, found "1,2,3"'),
        ({"segmentation": [1, 2, 3, 4, 5]}, "polygons of x and y, found one with an odd number of coordinates"),
        ({"keypoints": {"nose": 1}}, "keypoints: expected a list of numbers, found"),
    ],
)
def test_no_object_becomes_background(tmp_path: Path, change: Json, message: str) -> None:
    content = pets("a.png", "b.png")
    content["annotations"].append(content["annotations"][0] | {"id": 7} | change)
    root = drawn(tmp_path / "src", "a.png", "b.png", content=content)
    with pytest.raises(SourceError, match=f"^a.png: train.json: annotation .*{message}"):
        converted(root)
    for on_error in ("skip", "skip-image") if "iscrowd" in change else ("skip",):
        store, summary = converted(root, on_error=on_error)
        assert store["train"]["key"][:] == ["b.png"]
        assert (summary.skipped_images, summary.skipped_boxes, sum(summary.skipped.values())) == (1, 0, 1)


POINTS = [10, 10, 2, 20, 10, 1, 0, 0, 0]


@pytest.mark.parametrize("category", [{}, {"keypoints": []}, {"keypoints": None, "skeleton": None}, {"skeleton": []}])
def test_keypoints_without_names(tmp_path: Path, category: Json) -> None:
    content = pets("a.png", "b.png", keypoints=POINTS)
    content["categories"][0] |= category
    root = drawn(tmp_path / "src", "a.png", "b.png", content=content)
    store, summary = converted(root)
    field: Any = store.manifest.fields["objects"]
    assert field.keypoints == ("1", "2", "3")
    assert any("3 keypoints of cat have no names" in note for note in summary.notes)
    expected = np.float32([[10, 10], [20, 10], [np.nan, np.nan]])
    np.testing.assert_array_equal(store["train"]["objects"][1]["keypoints"][0], expected)
    assert store["train"]["objects"][1]["visibility"].tolist() == [[2, 1, 0]]
    names = tmp_path / "names.txt"
    names.write_text("left eye\nright eye\nnose\n")
    store, summary = converted(root, keypoints=tsds.conversion.read_keypoints(names))
    field = store.manifest.fields["objects"]
    assert (field.keypoints, field.flip_pairs) == (("left eye", "right eye", "nose"), ((0, 1),))
    assert not any("names" in note for note in summary.notes)
    with pytest.raises(tsds.OptionError, match=r"expected 3 names, .* found 1"):
        names.write_text("nose\n")
        converted(root, keypoints=tsds.conversion.read_keypoints(names))


@pytest.mark.parametrize("encoding", ["source", "raw", "jpeg"])
def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    page = (Path(__file__).parent.parent / "formats/sources/coco.md").read_text("utf-8")
    (example,) = (block for block in page.split("```")[1::2] if "draw_masks" in block)
    root = drawn(tmp_path / "src", "a.png", content=pets("a.png", segmentation=[[1, 2, 11, 2, 11, 14, 1, 14]]))
    tsds.convert(root, tmp_path / "coco.tsds", workers=0, encoding=encoding)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    exec(example.partition("\n")[2], variables)  # noqa: S102
    assert variables["masks"].shape == (1, 48, 64) and variables["masks"].sum() == 120


def labelled(*pairs: tuple[int, Any], names: tuple[str, ...] = ("a.png", "b.png", "c.png")) -> Json:
    """Images and categories of whole images, as iNaturalist and camera traps have them."""
    categories = [{"id": 7, "name": "owl", "supercategory": "Aves"}, {"id": 9, "name": "elk"}]
    rows = [{"id": i, "image_id": image, "category_id": c} for i, (image, c) in enumerate(pairs)]
    return {**pets(*names), "annotations": rows, "categories": categories}


def listed(content: Json | bytes, *images: str, **expected: object) -> Case:
    return files(images or ("a.png", "b.png", "c.png"), {"train.json": content}, **expected)


BOXES = pets("a.png")["annotations"]
LISTED_NOWHERE = {**pets("a.png"), "annotations": [*BOXES, *({**BOXES[0], "image_id": id} for id in ("0", 5, 5))]}
UNREAD = pets("a.png", "b.png", attributes={"occluded": True, "rotation": 0.0, "empty": ""}, track=5, ignore=0)
UNREAD["images"][1] |= {"tags": ["night"], "license": 1, "flickr_url": "x", "note": None}
UNREAD["tracks"] = [{"id": 5}]
UNREAD["categories"][0] |= {"supercategory": "animal", "color": "red", "keypoints": ["x"], "skeleton": [[1, 2]]}
UNREAD["categories"].append({"id": 2, "name": "dog"})
LVIS = pets("1.png")
LVIS["images"] = [{"id": 0, "coco_url": "http://images.cocodataset.org/val2017/1.png", "width": 64, "height": 48}]
CAPTIONS = [{"id": 1, "image_id": 0, "category_id": 0, "caption": "hello"}]
MIXED = labelled((0, 9), (2, 7))
MIXED["annotations"][0]["bbox"] = [1, 2, 3, 4]
ALONE = labelled((0, 9), names=("a.png",))
BESIDE = {"train.json": ALONE, "val.json": pets("b.png")}

OF_TOOLS = {
    **{
        f"the first member is {next(iter(content))} in {name}": files(
            ["train/t.png", "val/a.png"], {"train.json": pets("t.png"), name: content},
            keys={"train": ["train/t.png"], "val": ["val/a.png"]},
        )
        for content in (
            {"dataset": "x", **pets("a.png")},
            {"dataset2": {"text": "y" * 5000}, **pets("a.png")},
            dict(reversed(pets("a.png").items())),
            {"annotations": pets(*["a.png"] * 99)["annotations"], "more": 1, **pets("a.png")},
        )
        for name in ("annotations/instances_val2017.json", "val.json")
    },
    **{
        f"no box beside {', '.join(beside)}, {absent}": listed(
            {**pets("a.png"), "annotations": [{"id": 0, "image_id": 0, "category_id": 1, **absent, **beside}]}, "a.png",
            boxes=[[box]], notes=[Has("1 objects have no bbox: their boxes are around their polygons or k"), *notes],
        )
        for absent in ({"bbox": []}, {})
        for beside, box, notes in (
            ({"segmentation": [[5, 6, 20, 6, 20, 30, 5, 30], [2, 9, 3, 9, 3, 10]]}, [2, 6, 20, 30], []),
            ({"keypoints": [5, 6, 2, 10, 12, 1, 0, 0, 0], "num_keypoints": 2}, [5, 6, 10, 12], [Has("have no names")]),
        )
    },
    "images that annotations name, and no list": listed(
        LISTED_NOWHERE, "a.png",
        problems=[("train.json: image_id '0'", "no-image"), ("train.json: image_id 5", "no-image")],
        said=[Has("annotation 2"), Has("annotation 3 and 1 more annotations")],
    ),
    "the longest end of a path": listed(
        pets("/data/cam2/x.png", r"C:\cam1\x.png", "/q.png"), "p/cam1/x.png", "p/cam2/x.png", "x.png", "z/q.png",
        "y/q.png", keys={"train": ["p/cam2/x.png", "p/cam1/x.png"]},
        problems=[("train.json: image 3", "ambiguous-image")],
        said=[Has("y/q.png, z/q.png"), Has("x.png"), Has("q.png"), Has("q.png")],
    ),
    "images of another split": files(  # such as frames, which are numbered in each split
        ["val/1.png"], {"train.json": pets("1.png"), "val.json": pets("1.png")}, splits=["val"],
        problems=[("1.png", "no-image")], left_out=[("train.json", "empty-split")],
    ),
    "images by URL, as in LVIS": files(
        ["train2017/1.png", "val2017/1.png"], {"lvis_v1_train.json": LVIS}, keys={"train": ["val2017/1.png"]}
    ),
    **{
        f"splits of {', '.join(names)}": files(
            [f"images/{i}.png" for i in range(len(names))], {name: pets(f"{i}.png") for i, name in enumerate(names)},
            splits=splits,
        )
        for names, splits in (
            (["annotations.json", "annotations_unofficial.json"], ["annotations", "annotations_unofficial"]),
            (["data/annotations.json", "data/annotations_unofficial.json"], ["annotations", "annotations_unofficial"]),
            (["labels/a.json", "labels/b.json"], ["a", "b"]),
            (["a/annotations.json", "b/annotations.json"], ["a", "b"]),
            (["annotations/instances_val.json", "annotations/labels_val.json"], ["val"]),
            (["labels_train.json", "labels_val.json"], ["train", "val"]),
            (["train_1.json", "train_2.json", "val.json"], ["train_1", "train_2", "val"]),
            (
                ["annotations/image_info_test2017.json", "annotations/image_info_test-dev2017.json"],
                ["test-dev2017", "test2017"],
            ),
            (["annotations/instances_train2017.json", "annotations/image_info_test2017.json"], ["train"]),
            (["train/annotations/coco.json", "val/annotations/coco.json"], ["train", "val"]),
        )
    },
    "two files of one split": files(
        ["images/a.png"], {"new/train.json": pets("a.png"), "old/train.json": pets("a.png")},
        refused=("split-name", "old/train.json: expected one file for the split train, found new/train.json"),
    ),
    "one of two files of one split": files(  # as the message says
        ["images/a.png"], {"new/train.json": pets("a.png"), "old/train.json": pets("a.png")}, "old/train.json",
        options={"images": "images"}, splits=["train"],
    ),
    "images in two splits": files(
        ["images/a.png", "images/b.png"], {"train.json": pets("a.png", "b.png"), "val.json": pets("b.png")},
        notes=["the splits train and val share images: 1, such as images/b.png."],
    ),
    "captions with a category": files(
        ["a.png"], {"captions_train.json": {**pets("a.png"), "annotations": CAPTIONS, "categories": []}},
        texts=[{"captions": ["hello"]}],
    ),
    "members that are not read": listed(
        UNREAD, "a.png", "b.png", notes=["classes without an object: 1 (dog)."],
        said=[
            'train.json: not read: "tracks".',
            'train.json: category 1: not read: "color".',
            'train.json: category cat: not read: "skeleton".',
            'train.json: image 2: not read: "tags".',
            'train.json: annotation 1: not read: "track", in 2 annotations.',
            'train.json: annotation 1: not read: "attributes.occluded", in 2 annotations.',
        ],
    ),
    **{
        f"categories of whole images in {encoding}": listed(
            json.dumps(labelled((0, 9), (2, 7))).encode(encoding), fields=["label"], classes=["owl", "elk"],
            labels={"train": [1, -1, 0]}, said=[],
        )
        for encoding in ("utf-8", "utf-16")
    },
    "several categories of an image": listed(
        labelled((0, 9), (0, 7), (0, 7), (2, 7)), classes=["owl", "elk"], multi=[[1, 1], [-1, -1], [1, 0]]
    ),
    "categories beside boxes": listed(MIXED, problems=[("c.png", "annotation")], said=[Has("expected a box")]),
    "categories beside a file of boxes": files(
        ["a.png", "b.png"], BESIDE,
        refused=("annotation", "train.json: expected boxes, as val.json has, .* Convert each file alone"),
    ),
    "categories alone": files(["a.png", "b.png"], BESIDE, "train.json", fields=["label"]),
    "categories of no name": listed(
        labelled((0, 8), names=("a.png",)), "a.png", refused=("unknown-class", "expected the id of a category")
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "each"), [*CASES.items(), *OF_TOOLS.items()])
def test_what_is_read(name: str, each: Case, tmp_path: Path) -> None:
    check(each, tmp_path, "coco")
