"""The objects of an image as a scan adds them, packed in a reference, and as arrays again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelling_files import blank, found, refused, write
from tensorstore_ds.annex.clusters import plain
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources.annotations import AnnotatedObject, Annotations, Row, _encode, unpack
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.ledger import Ledger


def some_objects(rng: np.random.Generator, count: int) -> list[AnnotatedObject]:
    """Objects with any of the values; half of the numbers are no float32."""

    def places(n: int) -> list[Any]:
        values = rng.uniform(-9, 1e4, (n, 2))
        return list(map(tuple, (np.round(values) if rng.random() < 0.5 else values).tolist()))

    def one() -> AnnotatedObject:
        (x1, y1), (x2, y2) = places(2)
        names = rng.choice(["nose", "left", "0", "é"], rng.integers(0, 4), replace=False).tolist()
        return AnnotatedObject(
            str(rng.choice(["cat", "dog", "ü\n"])),
            (x1, y1, x2, y2),
            {"difficult": int(rng.integers(2))} if rng.random() < 0.7 else {},
            dict(zip(names, [*places(len(names) - 1), (np.nan, np.nan)], strict=False)) if names else {},
            places(int(rng.integers(3, 6))) if rng.random() < 0.5 else (),
            places(4) if rng.random() < 0.3 else (),
            bool(rng.random() < 0.5),
        )

    return [one() for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_objects_return_from_their_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = [some_objects(rng, int(rng.integers(0, 5))) for _ in range(6)]
    annotations = Annotations(Ledger(Path("in")))
    for i, objects in enumerate(samples):
        assert annotations.add(f"{i}\udcff.jpg", objects, (i, 3), "\udce9.xml", file="") == i
    field, reader, _ = annotations.field(SourceOptions(), "in")
    reader = plain.load(json.loads(json.dumps(plain.dump(reader))))  # as a planned conversion has it
    for i, (objects, reference) in enumerate(zip(samples, PackedStrings(annotations.rows), strict=True)):
        image, row = unpack(reference)
        assert (image, row.size, row.texts) == (f"{i}\udcff.jpg", (i, 3), ["\udce9.xml"])
        arrays = reader.arrays(row, image)
        assert arrays.keys() == field.values.keys()
        assert all(len(array) == len(objects) for array in arrays.values())
        for k, each in enumerate(objects):
            assert tuple(arrays["boxes"][k]) == each.box
            assert field.classes[arrays["labels"][k]] == each.label
            assert not (each.flags and arrays["difficult"][k] != each.flags["difficult"])
            absent = dict.fromkeys(field.keypoints, (np.nan, np.nan)) | dict(each.keypoints)
            if field.keypoints:
                np.testing.assert_array_equal(arrays["keypoints"][k], [absent[name] for name in field.keypoints])
            if "polygons" in arrays:
                np.testing.assert_array_equal(arrays["polygons"][k], np.reshape(each.polygon, (-1, 2)))
            if "oriented_boxes" in arrays:
                (x1, y1, x2, y2), is_box = each.box, each.is_rectangle and each.box[0] < each.box[2]
                drawn = [(x1, y1), (x2, y1), (x2, y2), (x1, y2)] if is_box and y1 < y2 else np.full((4, 2), np.nan)
                np.testing.assert_array_equal(arrays["oriented_boxes"][k], each.oriented or drawn)


def test_names_that_the_scan_did_not_see() -> None:
    annotations = Annotations(Ledger(Path("in")))
    annotations.note([AnnotatedObject("cat", (0, 0, 1, 1), {}, {"nose": (1, 1)})])
    _, reader, _ = annotations.field(SourceOptions(), "in")
    for new in (AnnotatedObject("dog", (0, 0, 1, 1)), AnnotatedObject("cat", (0, 0, 1, 1), {}, {"ear": (1, 1)})):
        with pytest.raises(SourceError, match=r"a\.txt: .*(dog|ear)\. Do not change a source while it is read"):
            reader.arrays(Row.of([new]), "a.txt")


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_reference_does_not_depend_on_the_process(seed: str) -> None:
    """Shards of an interrupted conversion are found by a digest of their references."""
    flags = dict.fromkeys(("truncated", "occluded", "difficult", "iscrowd"), 1)
    program = f"""if True:
        from tensorstore_ds.sources.annotations import AnnotatedObject, _encode, Row
        print(_encode(Row.of([AnnotatedObject("cat", (1, 2, 3, 4), {flags})])).hex())
    """
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
    )
    own = _encode(Row.of([AnnotatedObject("cat", (1, 2, 3, 4), flags)]))
    assert bytes.fromhex(done.stdout.decode()) == own


def list_of(format: str, boxes: dict[str, int]) -> str:
    """A file that lists images, with the box x1 x1 x1 + 5 x1 + 6 of each."""
    if format == "cvat":
        box = "<image name='{0}'><box label='cat' xtl='{1}' ytl='{1}' xbr='{2}' ybr='{3}'/></image>"
        return f"<annotations>{''.join(box.format(n, x, x + 5, x + 6) for n, x in boxes.items())}</annotations>"
    if format == "imglab":
        box = "<image file='{0}'><box left='{1}' top='{1}' width='5' height='6'><label>cat</label></box></image>"
        return f"<dataset><images>{''.join(box.format(n, x) for n, x in boxes.items())}</images></dataset>"
    if format == "coco":
        images = [{"id": i, "file_name": name} for i, name in enumerate(boxes)]
        objects = [{"image_id": i, "category_id": 7, "bbox": [x, x, 5, 6]} for i, x in enumerate(boxes.values())]
        return json.dumps({"images": images, "annotations": objects, "categories": [{"id": 7, "name": "cat"}]})
    sizes = {"id": "r", "original_width": 100, "original_height": 100, "type": "rectanglelabels"}
    value = {"rectanglelabels": ["cat"], "width": 5, "height": 6}
    results = {name: [{**sizes, "value": {**value, "x": x, "y": x}}] for name, x in boxes.items()}
    return json.dumps([{"annotations": [{"result": each}], "data": {"image": n}} for n, each in results.items()])


@pytest.mark.parametrize("format", ["cvat", "imglab", "coco", "labelstudio"])
def test_one_file_that_lists_images_of_split_folders(tmp_path: Path, format: str) -> None:
    boxes = {"in/train2017/b.png": 1, "in/test/a.png": 2, "in/train2017/c.png": 3}
    suffix = {"cvat": "xml", "imglab": "xml"}.get(format, "json")
    write(tmp_path, {f"l.{suffix}": list_of(format, boxes), **blank(*boxes)})
    got = found(tmp_path, format)
    assert {split: set(keys) for split, keys in got.keys.items()} == {
        "train": {"in/train2017/b.png", "in/train2017/c.png"}, "test": {"in/test/a.png"},
    }  # fmt: skip
    for each in (sample for samples in got.samples.values() for sample in samples):
        x = boxes[each.key]
        assert each.objects is not None
        np.testing.assert_allclose(each.objects["boxes"], [[x, x, x + 5, x + 6]])
        assert each.objects["labels"].tolist() == [0]

    (tmp_path / f"l.{suffix}").rename(tmp_path / f"Val_1.{suffix}")  # its name decides
    assert {split: set(keys) for split, keys in found(tmp_path, format).keys.items()} == {"val": set(boxes)}
    (tmp_path / f"Val_1.{suffix}").rename(tmp_path / f"l.{suffix}")
    write(tmp_path, {f"l.{suffix}": list_of(format, {**boxes, "d.png": 4}), "d.png": ""})
    assert refused(tmp_path, format, "found d.png beside (train2017|test)") == "split-name"


@pytest.mark.parametrize("format", ["cvat", "imglab", "coco", "labelstudio"])
def test_files_named_after_splits(tmp_path: Path, format: str) -> None:
    suffix = {"cvat": "xml", "imglab": "xml"}.get(format, "json")
    for i, split in enumerate(("train", "valid")):
        write(tmp_path, {f"my_{split}.{suffix}": list_of(format, {f"{split}.png": i}), f"{split}.png": ""})
    valid = "val" if format == "imglab" else "valid"
    assert found(tmp_path, format).keys == {"train": ["train.png"], valid: ["valid.png"]}
