"""COCO's JSON as various tools write it, compared with pycocotools, and what is reported of unreadable files."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import Case, Has, blank, case, check, converted, found, write
from stores import png_bytes
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources import open_source

Json = dict[str, Any]


def coco(*names: str, **changes: Any) -> Json:
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


def draw(root: Path, *paths: str, content: Any = None) -> Path:
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
    texts = {name: json.dumps(coco(f"{name}.png")).encode() for name in files}
    texts["val"] = damaged(texts["val"])
    root = draw(tmp_path / "src", *(f"{name}/{name}.png" for name in files))
    write(root, {f"{name}/_annotations.coco.json": text for name, text in texts.items()})
    for on_error in ("fail", "skip"):
        with pytest.raises(SourceError, match=message) as caught:
            tsds.convert(root, tmp_path / "out.tsds", workers=0, on_error=on_error)
        assert str(caught.value).count("val/_annotations.coco.json") == 1 and "\n" not in str(caught.value)


def test_a_file_among_many_images(tmp_path: Path) -> None:
    """Formats are recognized by some names of a folder; the scan reads all."""
    names = [f"{i}.png" for i in range(1500)]
    jsons = {"train": coco("t.png"), "valid": coco(*names)}
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
    content = coco("a.png", "b.png")
    content["annotations"][0] |= change
    root = draw(tmp_path / "src", "a.png", "b.png", content=content)
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
    content = coco("a.png", "b.png")
    content["images"][0] |= dict(zip(("width", "height"), size, strict=True))
    root = draw(tmp_path / "src", "a.png", "b.png", content=content)
    if not is_good:
        with pytest.raises(SourceError):
            converted(root)
    store, summary = converted(root, on_error="fail" if is_good else "skip")
    assert store["train"]["key"][:] == ["a.png", "b.png"][not is_good :]
    assert summary.skipped_images == (not is_good)


@pytest.mark.parametrize("on_error", ["skip", "skip-image"])
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
        ({"segmentation": [1, 2, 3, 4, 5, 6]}, r"segmentation\[0\]: expected a list, found a whole number"),
        ({"keypoints": {"nose": 1}}, "keypoints: expected a list of numbers, found"),
    ],
)
def test_no_object_becomes_background(tmp_path: Path, change: Json, message: str, on_error: str) -> None:
    content = coco("a.png", "b.png")
    content["annotations"].append(content["annotations"][0] | {"id": 7} | change)
    root = draw(tmp_path / "src", "a.png", "b.png", content=content)
    with pytest.raises(SourceError, match=f"^a.png: train.json: annotation .*{message}"):
        converted(root)
    store, summary = converted(root, on_error=on_error)
    assert store["train"]["key"][:] == ["b.png"]
    assert (summary.skipped_images, summary.skipped_boxes, sum(summary.skipped.values())) == (1, 0, 1)


POINTS = [10, 10, 2, 20, 10, 1, 0, 0, 0]


@pytest.mark.parametrize("category", [{}, {"keypoints": []}, {"keypoints": None, "skeleton": None}, {"skeleton": []}])
def test_keypoints_without_names(tmp_path: Path, category: Json) -> None:
    content = coco("a.png", "b.png", keypoints=POINTS)
    content["categories"][0] |= category
    root = draw(tmp_path / "src", "a.png", "b.png", content=content)
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
    root = draw(tmp_path / "src", "a.png", content=coco("a.png", segmentation=[[1, 2, 11, 2, 11, 14, 1, 14]]))
    tsds.convert(root, tmp_path / "coco.tsds", workers=0, encoding=encoding)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    exec(example.partition("\n")[2], variables)  # noqa: S102
    assert variables["masks"].shape == (1, 48, 64) and variables["masks"].sum() == 120


def labelled(*pairs: tuple[int, Any], names: tuple[str, ...] = ("a.png", "b.png", "c.png")) -> Json:
    """Images and categories of whole images, as iNaturalist and camera traps have them."""
    categories = [{"id": 7, "name": "owl", "supercategory": "Aves"}, {"id": 9, "name": "elk"}]
    rows = [{"id": i, "image_id": image, "category_id": c} for i, (image, c) in enumerate(pairs)]
    return {**coco(*names), "annotations": rows, "categories": categories}


def files(images: Sequence[str], jsons: Mapping[str, Json | bytes], at: str = "", **expected: object) -> Case:
    texts = {name: each if isinstance(each, bytes) else json.dumps(each) for name, each in jsons.items()}
    return case({**texts, **blank(*images)}, at, **expected)


def one(content: Json | bytes, *images: str, **expected: object) -> Case:
    return files(images or ("a.png", "b.png", "c.png"), {"train.json": content}, **expected)


BOXES = coco("a.png")["annotations"]
LISTED_NOWHERE = {**coco("a.png"), "annotations": [*BOXES, *({**BOXES[0], "image_id": id} for id in ("0", 5, 5))]}
UNREAD = coco("a.png", "b.png", attributes={"occluded": True, "rotation": 0.0, "empty": ""}, track=5, ignore=0)
UNREAD["images"][1] |= {"tags": ["night"], "license": 1, "flickr_url": "x", "note": None}
UNREAD["tracks"] = [{"id": 5}]
UNREAD["categories"][0] |= {"supercategory": "animal", "color": "red", "keypoints": ["x"], "skeleton": [[1, 2]]}
UNREAD["categories"].append({"id": 2, "name": "dog"})
LVIS = coco("1.png")
LVIS["images"] = [{"id": 0, "coco_url": "http://images.cocodataset.org/val2017/1.png", "width": 64, "height": 48}]
CAPTIONS = [{"id": 1, "image_id": 0, "category_id": 0, "caption": "hello"}]
MIXED = labelled((0, 9), (2, 7))
MIXED["annotations"][0]["bbox"] = [1, 2, 3, 4]
ALONE = labelled((0, 9), names=("a.png",))
BESIDE = {"train.json": ALONE, "val.json": coco("b.png")}

CASES = {
    **{
        f"the first member is {next(iter(content))} in {name}": files(
            ["train/t.png", "val/a.png"], {"train.json": coco("t.png"), name: content},
            keys={"train": ["train/t.png"], "val": ["val/a.png"]},
        )
        for content in (
            {"dataset": "x", **coco("a.png")},
            {"dataset2": {"text": "y" * 5000}, **coco("a.png")},
            dict(reversed(coco("a.png").items())),
            {"annotations": coco(*["a.png"] * 99)["annotations"], "more": 1, **coco("a.png")},
        )
        for name in ("annotations/instances_val2017.json", "val.json")
    },
    **{
        f"no box beside {', '.join(beside)}, {absent}": one(
            {**coco("a.png"), "annotations": [{"id": 0, "image_id": 0, "category_id": 1, **absent, **beside}]}, "a.png",
            boxes=[[box]], notes=[Has("1 objects have no bbox: their boxes are around their polygons or k"), *notes],
        )
        for absent in ({"bbox": []}, {})
        for beside, box, notes in (
            ({"segmentation": [[5, 6, 20, 6, 20, 30, 5, 30], [2, 9, 3, 9, 3, 10]]}, [2, 6, 20, 30], []),
            ({"keypoints": [5, 6, 2, 10, 12, 1, 0, 0, 0], "num_keypoints": 2}, [5, 6, 10, 12], [Has("have no names")]),
        )
    },
    "images that annotations name, and no list": one(
        LISTED_NOWHERE, "a.png",
        problems=[("train.json: image_id '0'", "no-image"), ("train.json: image_id 5", "no-image")],
        said=[Has("annotation 2"), Has("annotation 3 and 1 more annotations")],
    ),
    "the longest end of a path": one(
        coco("/data/cam2/x.png", r"C:\cam1\x.png", "/q.png"), "p/cam1/x.png", "p/cam2/x.png", "x.png", "z/q.png",
        "y/q.png", keys={"train": ["p/cam2/x.png", "p/cam1/x.png"]},
        problems=[("train.json: image 3", "ambiguous-image")],
        said=[Has("y/q.png, z/q.png"), Has("x.png"), Has("q.png"), Has("q.png")],
    ),
    "images of another split": files(  # such as frames, which are numbered in each split
        ["val/1.png"], {"train.json": coco("1.png"), "val.json": coco("1.png")}, splits=["val"],
        problems=[("1.png", "no-image")], left_out=[("train.json", "empty-split")],
    ),
    "images by URL, as in LVIS": files(
        ["train2017/1.png", "val2017/1.png"], {"lvis_v1_train.json": LVIS}, keys={"train": ["val2017/1.png"]}
    ),
    **{
        f"splits of {', '.join(names)}": files(
            [f"images/{i}.png" for i in range(len(names))], {name: coco(f"{i}.png") for i, name in enumerate(names)},
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
        ["images/a.png"], {"new/train.json": coco("a.png"), "old/train.json": coco("a.png")},
        refused=("split-name", "old/train.json: expected one file for the split train, found new/train.json"),
    ),
    "one of two files of one split": files(  # as the message says
        ["images/a.png"], {"new/train.json": coco("a.png"), "old/train.json": coco("a.png")}, "old/train.json",
        options={"images": "images"}, splits=["train"],
    ),
    "images in two splits": files(
        ["images/a.png", "images/b.png"], {"train.json": coco("a.png", "b.png"), "val.json": coco("b.png")},
        notes=["the splits train and val share images: 1, such as images/b.png."],
    ),
    "captions with a category": files(
        ["a.png"], {"captions_train.json": {**coco("a.png"), "annotations": CAPTIONS, "categories": []}},
        texts=[{"captions": ["hello"]}],
    ),
    "members that are not read": one(
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
        f"categories of whole images in {encoding}": one(
            json.dumps(labelled((0, 9), (2, 7))).encode(encoding), fields=["label"], classes=["owl", "elk"],
            labels={"train": [1, -1, 0]}, said=[],
        )
        for encoding in ("utf-8", "utf-16")
    },
    "several categories of an image": one(
        labelled((0, 9), (0, 7), (0, 7), (2, 7)), classes=["owl", "elk"], multi=[[1, 1], [-1, -1], [1, 0]]
    ),
    "categories beside boxes": one(MIXED, problems=[("c.png", "annotation")], said=[Has("expected a box")]),
    "categories beside a file of boxes": files(
        ["a.png", "b.png"], BESIDE,
        refused=("annotation", "train.json: expected boxes, as val.json has, .* Convert each file alone"),
    ),
    "categories alone": files(["a.png", "b.png"], BESIDE, "train.json", fields=["label"]),
    "categories of no name": one(
        labelled((0, 8), names=("a.png",)), "a.png", refused=("unknown-class", "expected the id of a category")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "coco")
