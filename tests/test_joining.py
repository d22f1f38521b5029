"""What one of several data sets lacks: the same, whether sources are converted together, merged or appended."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import write
from tensorstore_ds.format.joining import FieldsDifferError, Side, join_fields
from tensorstore_ds.format.kinds import LabelField, MaskField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import ArrayField
from tensorstore_ds.format.schema import ArraySpec

NAMES = ("left_eye", "right_eye", "nose")


def coco(root: Path, which: int, objects: list[list[dict[str, Any]]], captions: bool) -> Path:
    """Images with objects, each of a few values that it may have, and captions or none."""
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": f"only-{which}"}]
    keypoints = NAMES[which : which + 2]
    if any("keypoints" in each for one in objects for each in one):
        categories = [{**each, "keypoints": list(keypoints), "skeleton": []} for each in categories]
    listed, annotations = [], []
    for number, one in enumerate(objects):
        pixels = np.random.default_rng([which, number]).integers(0, 256, (12, 12, 3), np.uint8)
        (root / "images").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
        listed.append({"id": number, "file_name": f"{number}.png", "width": 12, "height": 12})
        for each in one:
            annotation = {"id": len(annotations) + 1, "image_id": number, "bbox": [1, 2, 5, 6], "iscrowd": 0, **each}
            annotations.append({**annotation, "area": 30})
    document = {"images": listed, "annotations": annotations, "categories": categories}
    files = {"annotations/instances_train.json": json.dumps(document)}
    if captions:
        texts = [{"id": i, "image_id": i, "caption": f"number {i}"} for i in range(len(objects))]
        files["annotations/captions_train.json"] = json.dumps({"images": listed, "annotations": texts})
    write(root, files)
    return root


OBJECT = st.fixed_dictionaries(
    {"category_id": st.sampled_from([1, 2])},
    optional={
        "keypoints": st.just([2, 3, 2, 0, 0, 0]),
        "segmentation": st.just([[1, 2, 6, 2, 6, 8]]),
    },
)
SIDE = st.tuples(st.lists(st.lists(OBJECT, max_size=2), min_size=1, max_size=3), st.booleans())


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(SIDE, SIDE)
def test_three_ways_make_the_same_store(
    one: tuple[list[list[dict[str, Any]]], bool], other: tuple[list[list[dict[str, Any]]], bool]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sources = [coco(root / name, i, *side) for i, (name, side) in enumerate(zip("ab", (one, other), strict=True))]
        options = tsds.ConvertOptions(workers=0, size=(12, 12))
        for source in sources:
            tsds.convert(source, root / f"{source.name}.tsds", options)
        tsds.convert(tsds.Sources(*sources), root / "joined.tsds", options)
        shutil.copytree(root / "a.tsds", root / "grown.tsds")
        tsds.append(root / "grown.tsds", sources[1], workers=0, key_prefix="b/")
        tsds.editing.merge_stores([root / "a.tsds", root / "b.tsds"], root / "merged.tsds")
        for name in ("grown", "merged"):
            difference = tsds.editing.compare_stores(root / "joined.tsds", root / f"{name}.tsds", by="row")
            assert difference.is_empty, (name, difference)
            assert tsds.verify(root / f"{name}.tsds") == []
        fields = [tsds.open(root / f"{name}.tsds").manifest.fields for name in ("joined", "merged", "grown")]
        assert fields[0] == fields[1] == fields[2]


def test_arrays_labels_and_masks_that_a_store_lacks(tmp_path: Path) -> None:
    """As literal numbers, which the specification names."""
    image = np.zeros((4, 4, 3), np.uint8)
    full = {
        "image": image,
        "label": 1,
        "mask": np.ones((4, 4), np.uint8),
        "weight": np.float32(0.5),
        "age": np.int16(7),
        "code": np.uint16(3),
    }
    for name, sample in (("full", full), ("bare", {"image": image})):
        options = tsds.ConvertOptions(workers=0, classes=("cat", "dog") if name == "full" else None)
        tsds.convert([sample, sample], tmp_path / f"{name}.tsds", options)
    notes = tsds.editing.merge_stores([tmp_path / "bare.tsds", tmp_path / "full.tsds"], tmp_path / "out.tsds").notes
    assert "adds label to the 2 samples of bare.tsds: unknown, stored as -1." in notes
    split = tsds.open(tmp_path / "out.tsds")["train"]
    assert split["label"][:].tolist() == [-1, -1, 1, 1]
    np.testing.assert_array_equal(split["weight"][:], np.array([np.nan, np.nan, 0.5, 0.5], np.float32))
    assert split["age"][:].tolist() == [-32768, -32768, 7, 7]
    assert split["code"][:].tolist() == [65535, 65535, 3, 3]
    assert split["mask"][:].reshape(4, -1)[:, 0].tolist() == [255, 255, 1, 1]
    assert tsds.verify(tmp_path / "out.tsds") == []


@pytest.mark.parametrize(
    ("one", "other", "equal"), [("plain", "seen", 1), ("plain", "labelled", 0), ("labelled", "plain", 1)]
)
def test_values_of_objects_that_a_store_lacks(tmp_path: Path, one: str, other: str, equal: int) -> None:
    """Keypoints without visibility are seen where they are known. Labels that the first lacks are unknown."""
    plain = {
        "boxes": [[1, 1, 4, 4], [2, 2, 6, 6]],
        "keypoints": np.array([[[1, 2], [np.nan, np.nan]], [[3, 4], [5, 6]]], np.float32),
    }
    objects = {
        "plain": plain,
        "seen": {**plain, "visibility": [[2, 0], [2, 2]]},
        "labelled": {**plain, "labels": [1, 1]},
    }
    for name in (one, other):
        options = tsds.ConvertOptions(workers=0, classes=("cat", "dog") if name == "labelled" else None)
        sample = {"image": np.zeros((9, 9, 3), np.uint8), "objects": objects[name]}
        tsds.convert([sample], tmp_path / f"{name}.tsds", options)
    notes = tsds.editing.merge_stores([tmp_path / f"{name}.tsds" for name in (one, other)], tmp_path / "out.tsds").notes
    assert f"{equal} of them with equal samples" in notes[-1]
    split = tsds.open(tmp_path / "out.tsds")["train"]
    for row, name in enumerate((one, other)):
        found = split["objects"][row]
        np.testing.assert_array_equal(found["keypoints"], plain["keypoints"])
        if other == "seen":
            assert found["visibility"].tolist() == [[2, 0], [2, 2]]
        else:
            classes = split.fields["objects"].classes
            assert [classes[label] for label in found["labels"]] == ["dog" if name == "labelled" else "unknown"] * 2


@pytest.mark.parametrize("kind", [str, Path])
def test_a_list_of_folders_is_refused_with_advice(kind: type, tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError, match=r"tsds\.Sources\(folder, \.\.\.\) of several"):
        tsds.convert([kind(tmp_path)], tmp_path / "x.tsds", workers=0)


def test_fields_that_cannot_be_one() -> None:
    image = {"size": ArrayField(ArraySpec("float32", (3,)))}
    with pytest.raises(FieldsDifferError, match=r"expected size to be float32 3, found int64\."):
        join_fields([Side("a", image, 1), Side("b", {"size": ArrayField(ArraySpec("int64"))}, 1)])
    boxes = {"objects": ObjectsField.of("boxes", "labels", classes=("cat",))}
    with pytest.raises(FieldsDifferError, match="expected objects with boxes, as others have them") as error:
        join_fields([Side("a", boxes, 1), Side("b", {"objects": ObjectsField.of("labels", classes=("cat",))}, 1)])
    assert error.value.side == 1
    masks = [{"mask": MaskField.of(names)} for names in (("sky",), ("sky", "sea"))]
    with pytest.raises(FieldsDifferError, match="expected mask to be"):
        join_fields([Side("a", masks[0], 1), Side("b", masks[1], 1)])
    masks[0] = {"mask": MaskField.of(("sky", "land"))}
    with pytest.raises(FieldsDifferError) as error:
        join_fields([Side("a", masks[0], 1), Side("b", masks[1], 1)])
    assert error.value.advice == "Classes differ: sky, land; sky, sea. Name them with `classes`."
    with pytest.raises(FieldsDifferError, match="expected the same pairs of keypoints"):
        pairs = [ObjectsField.of("keypoints", keypoints=NAMES, flip_pairs=pair) for pair in (((0, 1),), ((0, 2),))]
        join_fields([Side(str(i), {"objects": each}, 1) for i, each in enumerate(pairs)])


def test_notes_name_what_is_added() -> None:
    first = {"label": LabelField(classes=("cat",)), "text": TextField()}
    second = {"label": LabelField(classes=("dog", "cat")), "objects": ObjectsField.of("boxes")}
    assert join_fields([Side("a", first, 2), Side("b", second, 1)]).notes == (
        "adds objects to the 2 samples of a: their images are stored as images without any objects.",
        "adds text to the 1 sample of b: unknown, stored as no texts.",
        "adds the classes dog to label of a.",
    )
