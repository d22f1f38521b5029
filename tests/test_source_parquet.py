"""Parquet: files as Hugging Face writes them, of every layout of objects, nulls, damage, and every refusal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import labelling_files
import tensorstore_ds as tsds
from labelling_files import Case, Has, bad, case, check, converted, found, refused, refusing
from stores import png_bytes, store_of
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.format.kinds.base import ArrayField
from tensorstore_ds.format.schema import ArraySpec, Keypoints
from tensorstore_ds.sources import open_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CATEGORY = {"feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "_type": "Sequence"}
IMAGE = {"image": {"_type": "Image"}}
LABEL = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}


def png(value: int = 0) -> bytes:
    return png_bytes(np.full((20, 30, 3), (value, 0, 0), np.uint8))


def images(*paths: str | None) -> Any:
    return pa.array([{"bytes": png(i), "path": path} for i, path in enumerate(paths)], FILE)


def parquet(columns: dict[str, Any], features: Any = None, *, group: int = 2, **metadata: str) -> bytes:
    if features is not None:
        metadata["huggingface"] = json.dumps({"info": {"features": features}})
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata or None), buffer, row_group_size=group)
    return buffer.getvalue()


def write(path: Path, columns: dict[str, Any], features: Any = None, *, group: int = 2) -> Path:
    labelling_files.write(path.parent, {path.name: parquet(columns, features, group=group)})
    return path


@pytest.mark.parametrize(
    ("column", "names"), [("Kind", ["pug", "tabby"]), ("label", ["b", "a"]), ("marks", [["wet"], ["dry", "wet"]])]
)
def test_the_column_of_labels_that_is_asked_for(tmp_path: Path, column: str, names: list[Any]) -> None:
    columns = {
        "image": images("a", "b"),
        "label": ["b", "a"],
        "kind": ["pug", "tabby"],
        "marks": [["wet"], ["wet", "dry"]],
    }
    path = write(tmp_path / "a.parquet", columns)
    assert found(path, label_from=column).names == names
    with pytest.raises(
        OptionError, match=r"`label_from`: expected a column of a.parquet, found 'x': kind, label, marks"
    ):
        found(path, label_from="x")


def test_labels_paths_and_numbers(tmp_path: Path) -> None:
    columns = {
        "img": images("a.png", "b/b.png", "c.png"),
        "label": pa.array([1, None, 0]),
        "width": pa.array([3, 4, 5], pa.int32()),
        "vector": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        "Wet?": pa.array([True, False, True]),
        "remark": pa.array(["x", "y", "z"]),
        "size": pa.array([1, 2, 3]),
    }
    features = {"img": {"_type": "Image"}, **LABEL}
    got = found(write(tmp_path / "x.parquet", columns, features))
    assert got.keys == {"train": ["a.png", "b/b.png", "c.png"]}
    assert (got.pictures, got.labels) == ([png(0), png(1), png(2)], {"train": [1, -1, 0]})
    assert got.classes == ["cat", "dog"]
    assert {name: each.spec for name, each in got.contents.fields.items() if type(each) is ArrayField} == {
        "width": ArraySpec("int32", ()),
        "vector": ArraySpec("float32", (2,)),
        "wet_": ArraySpec("uint8", ()),
    }
    assert (got.vector, got.wet_) == ([[1, 2], [3, 4], [5, 6]], [1, 0, 1])
    assert got.left_out == [("x.parquet: remark", "not-read"), ("x.parquet: size", "not-read")]
    train = converted(tmp_path / "x.parquet", workers=2)[0]["train"]
    assert list(train["label"]) == [1, -1, 0] and list(train["width"]) == [3, 4, 5]


def test_columns_of_objects_and_their_types(tmp_path: Path) -> None:
    """Two polygons of an object, a hidden keypoint, runs; and the names of keypoints where people look for them."""
    nan = [np.nan, np.nan]
    values = {
        "boxes": [[1, 2, 30, 29.6]],
        "labels": [1],
        "keypoints": [[[3, 4.5], nan, [50, 3]]],
        "visibility": [[1, 0, 2]],
        "polygons": [[[1, 2], [9, 2], [9, 6], nan, [20, 20], [30, 20], [30, 29.6]]],
        "rle": [[40, 7, 553]],
        "truncated": [1],
    }
    sample = {"image": np.zeros((20, 30, 3), np.uint8), "objects": values}
    keypoints = Keypoints(("nose", "left_eye", "right_eye"), ((1, 2),))
    store = store_of(tmp_path / "s.tsds", [sample], ("cat", "dog"), keypoints=keypoints)
    tsds.export(store.path, tmp_path / "out", "parquet")
    table = pq.read_table(tmp_path / "out" / "train-00000.parquet")
    stored = table.column("objects")[0].as_py()
    assert str(stored["bbox"]) == "[[1.0, 2.0, 29.0, 18.0]]"  # cut off at the edges of the image
    assert stored["keypoints"][0][::2] == [[3, 4.5], [50, 3]] and str(stored["keypoints"][0][1]) == "[nan, nan]"
    assert stored["polygons"] == [[[[1, 2], [9, 2], [9, 6]], [[20, 20], [30, 20], [30, float(np.float32(29.6))]]]]
    rest = {name: stored[name] for name in ("category", "visibility", "rle", "truncated")}
    assert rest == {"category": [1], "visibility": [[1, 0, 2]], "rle": [[40, 7, 553]], "truncated": [1]}
    types = {name: str(table.schema.field("objects").type.field(name).type).replace("element", "") for name in stored}
    assert {name: kind.replace("list<: ", "").rstrip(">") for name, kind in types.items()} == {
        **dict.fromkeys(("keypoints", "polygons"), "float"),
        **dict.fromkeys(("visibility", "truncated"), "uint8"),
        **{"bbox": "double", "category": "int64", "rle": "uint32"},
    }
    depths = {name: kind.count("list<") for name, kind in types.items()}
    assert depths == {
        **{"bbox": 2, "category": 1, "keypoints": 3, "visibility": 2, "polygons": 4, "rle": 2, "truncated": 1}
    }
    named = json.loads(table.schema.metadata[b"tsds"])["objects"]
    assert (named["keypoints"], named["flip_pairs"]) == (["nose", "left_eye", "right_eye"], [[1, 2]])


def test_nulls_are_named_with_their_row(tmp_path: Path) -> None:
    nulls = pa.array([{"bytes": png(), "path": None}, {"bytes": None, "path": "x.png"}, None], FILE)
    path = write(tmp_path / "x.parquet", {"image": nulls, "text": pa.array([["a", None], ["b"], []])})
    source = open_source(path)
    references = source.contents().splits["train"]
    assert [bad(source, "train", each) for each in references] == ["annotation", "no-image", "no-image"]
    with pytest.raises(SourceError, match=r"^x\.parquet \(group 1, row 0\): "):
        source.read("train", references[2])


def test_columns_of_numbers_with_nulls_are_reported(tmp_path: Path) -> None:
    """One null makes a column of numbers, or of vectors, one that is not read; the others are."""
    pair = pa.list_(pa.float32(), 2)
    columns = {
        "image": images("a.png", "b.png", "c.png"),
        "age": pa.array([3, None, 5]),
        "at": pa.array([[1, 2], [3, None], [None, 6]], pair),
        "some": pa.array([[1, 2], None, [5, 6]], pair),
        "good": pa.array([7, 8, 9]),
    }
    assert found(write(tmp_path / "x.parquet", columns)).said == [
        "x.parquet: age: not stored: a column of numbers; null: 1.",
        "x.parquet: at: not stored: a column of numbers; null: 2.",
        "x.parquet: some: not stored: a column of numbers; null: 1.",
    ]
    train = converted(tmp_path / "x.parquet")[0]["train"]
    assert set(train.fields) == {"image", "size", "key", "good"} and list(train["good"]) == [7, 8, 9]


LINE = pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("kind", "polygons", "message"),
    [
        (LINE, [1.0, 2.0, 3.0, 4.0], "expected polygons, lists of corners x y"),
        (pa.list_(LINE), [[1.0, 2.0], [3.0, 4.0]], "expected corners"),
        (pa.list_(pa.list_(LINE)), [None], "expected polygons, lists"),
        (pa.list_(pa.list_(LINE)), [[[1.0, 2.0], [3.0]]], "expected corners"),
        (pa.list_(pa.list_(LINE)), [[[1.0, 2.0, 3.0]]], "expected corners"),
        (pa.list_(pa.list_(LINE)), [[[1.0, 2.0], [3.0, None]]], "expected corners with two coordinates"),
        (pa.list_(pa.list_(LINE)), [[[1.0, 2.0], [3.0, float("inf")]]], "expected finite coordinates of polygons"),
        (pa.string(), "1 2 3 4", "expected polygons, lists"),
    ],
)
def test_polygons_that_are_none(tmp_path: Path, kind: Any, polygons: Any, message: str) -> None:
    type_ = pa.struct([("bbox", pa.list_(LINE)), ("polygons", pa.list_(kind))])
    objects = [{"bbox": [[1.0, 2, 3, 4]], "polygons": [polygons]}]
    columns = {"image": images("a", "b"), "objects": pa.array([*objects, {"bbox": [], "polygons": []}], type_)}
    path = write(tmp_path / "x.parquet", columns)
    with refusing("annotation", message):
        tsds.convert(path, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))
    summary = tsds.convert(path, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0, on_error="skip"))
    assert dict(summary.skipped) == {"annotation": 1} and tsds.verify(summary.path) == []


def shared(value: bytes, rows: int) -> Any:
    """A column that refers to one value in all rows."""
    indices = pa.array(np.zeros(rows, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.large_binary()))


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if "VmHWM" in line).split()[1]) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_value_that_many_rows_refer_to_is_unpacked_once(tmp_path: Path) -> None:
    """5,000 rows of 1 MB in a file of some kB."""
    value = png() + bytes(1 << 20)
    columns = {"image": shared(value, 5000), "caption": shared(b"y" * (1 << 20), 5000)}
    options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False}
    pq.write_table(
        pa.table({**columns, "label": pa.array(np.zeros(5000, np.int64))}), tmp_path / "a.parquet", **options
    )
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    before = peak_mib()
    source = open_source(tmp_path / "a.parquet", "parquet")
    references = source.scan().splits["train"]
    assert len(references) == 5000 and source.read("train", references[4999]).image == value
    assert peak_mib() - before < 300


def test_rows_of_one_number_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of one number takes a few bytes in the file, and 8 a row in memory."""
    monkeypatch.setattr("tensorstore_ds.annex.sources.parquet.memory_limit", lambda: 400_000)
    columns = {"image": shared(png(), 20_000), "label": pa.array(np.zeros(20_000, np.int64))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", store_schema=False)
    with pytest.raises(SourceError, match="expected a row group of at most 50,000 bytes, found 160,000"):
        open_source(tmp_path / "a.parquet", "parquet").scan()


def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", {"image": images("a")})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(OptionError, match=r"pip install '\.\[hub\]' in a clone of tensorstore-ds"):
        tsds.convert(path, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))


BOXES = [[302.0, 109.0, 73.0, 52.0], [810.0, 100.0, 57.0, 28.0], [5.0, 6.0, 70.0, 80.0]]  # the first two of CPPE-5


def detection_columns(boxes: list[list[float]], **others: Any) -> dict[str, Any]:
    """Columns as CPPE-5 has them, with one object for each image."""
    objects = [{"id": [i], "area": [b[2] * b[3]], "bbox": [b], "category": [i % 2]} for i, b in enumerate(boxes)]
    return {"image": images(*"abcdefghijklmnopqrstuvwxyz"[: len(boxes)]), "objects": pa.array(objects), **others}


@pytest.mark.parametrize("known", ["sizes", "areas", "nothing", "few"])
@pytest.mark.parametrize("corners", [False, True])
def test_corners_are_told_from_sizes(tmp_path: Path, known: str, corners: bool) -> None:
    rng = np.random.default_rng(len(known))
    count = 5 if known == "few" else 25
    place, sides = rng.integers(0, 40, (count, 2)), rng.integers(41, 60, (count, 2))
    expected = np.hstack([place, place + sides]).astype(float)
    written = expected if corners else np.hstack([place, sides]).astype(float)  # either could be the other
    rows: list[dict[str, Any]] = [{"bbox": [box], "category": [0]} for box in written.tolist()]
    if known == "areas":
        rows = [row | {"area": [float(area)]} for row, area in zip(rows, sides.prod(axis=1), strict=True)]
    columns = {"image": images(*"abcdefghijklmnopqrstuvwxy"[:count]), "objects": pa.array(rows)}
    if known == "sizes":
        columns |= {"width": pa.array([100] * count), "height": pa.array([100] * count)}
    got = found(write(tmp_path / "x.parquet", columns, IMAGE))
    is_told = known in ("sizes", "areas")
    if not is_told and corners:
        expected[:, 2:] += place  # read as COCO's
    np.testing.assert_array_equal(np.concatenate(got.boxes), expected)
    words = {"sizes": "two corners", "areas": "two corners", "nothing": "could also be two corners", "few": ""}[known]
    has_note = bool(words) and (corners or (known != "areas"))
    assert [words in note for note in got.notes] == [True] * has_note


def one(columns: dict[str, Any], features: Any = None, metadata: dict[str, str] | None = None, **expected: Any) -> Case:
    return case({"x.parquet": parquet(columns, features, **(metadata or {}))}, "x.parquet", **expected)


STRUCT = pa.array(
    [{"bbox": [[1.0, 2, 3, 4]], "category": [1], "id": [7]}, {"bbox": [], "category": [], "id": []}],
    pa.struct(
        [("bbox", pa.list_(pa.list_(pa.float64()))), ("category", pa.list_(pa.int64())), ("id", pa.list_(pa.int64()))]
    ),
)
LIST = pa.array([[{"bbox": [1.0, 2, 3, 4], "category": 1, "truncated": True}], []])
OBJECT = pa.struct([("bbox", pa.list_(pa.float64())), ("category", pa.int64()), ("difficult", pa.int64())])
ENTRY = {"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [0], "score": [0.5], "attr": ["x"]}
ALIEN = {"label": {"kind": "label", "dtype": "int64", "shape": [], "classes": ["a"]}}
EMPTY = {"objects": {"kind": "objects", "values": {}, "classes": [], "keypoints": [], "flip_pairs": []}}
FLAT = {f"objects.{name}": pa.array([row[name] for row in detection_columns(BOXES)["objects"].to_pylist()])
        for name in ("id", "area", "bbox", "category")}  # fmt: skip


def licensed(path: str) -> Any:
    return pa.array([{"bytes": png(), "path": path, "license": "CC0"}])


def flat(prefix: str) -> dict[str, Any]:
    return {"image": images(*"abc"), **{name.replace("objects", prefix): column for name, column in FLAT.items()}}


CASES = {
    **{
        f"lists of labels as {column}": one(
            {"image": images(*"abcd"), column: pa.array(cells, pa.list_(kind))},
            {**IMAGE, column: {"_type": "Sequence", "feature": LABEL["label"]}} if is_named else None,
            fields=["labels"], classes=classes, multi=[first, [0] * len(first), [-1] * len(first), last],
        )
        for column, cells, kind, is_named, classes, first, last in (
            ("labels", [["a", "b"], [], None, ["c"]], pa.string(), False, ["a", "b", "c"], [1, 1, 0], [0, 0, 1]),
            ("tags", [[0, 2], [], None, [1]], pa.int64(), False, ["0", "1", "2"], [1, 0, 1], [0, 1, 0]),
            ("things", [[1], [], None, [0, 1]], pa.int8(), True, ["cat", "dog"], [0, 1], [1, 1]),
        )
    },
    "a list of labels with null": one(
        {"image": images("a.png", "b.png"), "labels": pa.array([["x", None], ["y"]])},
        problems=[("x.parquet (group 0, row 0)", "annotation")],
    ),
    "splits of numbered files, and bytes without a path": case(
        {
            f"data/{name}.parquet": parquet({"image": pa.array([png(i)] * 2), "class": pa.array(["b", "a"])})
            for i, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "test-00000"))
        },
        keys={"test": ["test/00000", "test/00001"], "train": [f"train/0000{i}" for i in range(4)]},
        labels={"test": [1, 0], "train": [1, 0, 1, 0]}, pictures=[png(i) for i in (2, 2, 0, 0, 1, 1)],
    ),
    **{
        f"metadata that are refused: {data}": one(
            {"image": images("a"), "objects": pa.array([{"bbox": [[1.0, 2, 3, 4]]}])}, None, {"tsds": data},
            refused=reason,
        )
        for data, reason in (("{", "json"), ('{"objects": 1}', "annotation"), (json.dumps(EMPTY), "annotation"))
    },
    "metadata of no column": one({"image": images("a")}, None, {"tsds": json.dumps(ALIEN)}, fields=[]),
    **{
        f"the layout of objects: {feature}": one(
            {"image": images(None, None), "objects": column}, {**IMAGE, "objects": feature}, classes=["cat", "dog"],
            values=values, boxes=[[[1, 2, 4, 6]], []], names=[["dog"], []],
        )
        for column, feature, values in (
            (STRUCT, {"bbox": {}, "category": CATEGORY}, ["boxes", "labels"]),
            (STRUCT, {"feature": {"category": CATEGORY["feature"]}, "_type": "Sequence"}, ["boxes", "labels"]),
            (LIST, [{"category": CATEGORY["feature"]}], ["boxes", "labels", "truncated"]),
            (LIST, {"feature": {"category": CATEGORY["feature"]}, "_type": "List"}, ["boxes", "labels", "truncated"]),
        )
    },
    "members and columns that are not read": case(  # a column of nulls has no data
        {
            "train-0.parquet": parquet(
                {"image": licensed("a.png"), "objects": pa.array([ENTRY]), "none": pa.nulls(1)}
            ),
            "train-1.parquet": parquet(
                {"image": licensed("b.png"), "objects": pa.array([ENTRY]), "answer": pa.array(["yes"])}
            ),
        },
        said=[
            "train-0.parquet: image.license: not stored: a column of string; rows: 2.",
            "train-0.parquet: objects.score: not stored: a column of list<element: double>; rows: 2.",
            "train-0.parquet: objects.attr: not stored: a column of list<element: string>; rows: 2.",
            "train-1.parquet: answer: not stored: a column of string; rows: 1.",
        ],
    ),
    **{
        f"bad objects: {objects}": one(
            {
                "image": images("a", "b"),
                "objects": pa.array(
                    [[{"bbox": [1.0, 2, 3, 4], "category": 0, "difficult": 0}], objects], pa.list_(OBJECT)
                ),
            },
            problems=[("x.parquet (group 0, row 1)", "annotation")], said=[Has(words)], keys={"train": ["a"]},
        )
        for objects, words in (
            (None, "null"),
            ([None], "null"),
            ([{"bbox": None}], "bbox"),
            ([{"bbox": [1.0, 2, 3]}], "bbox"),
            ([{"bbox": [1.0, 2, 3, None]}], "bbox"),
            ([{"bbox": [1.0, 2, 3, 4], "category": -1}], "category"),
            ([{"bbox": [1.0, 2, 3, 4], "category": None}], "category"),
            ([{"bbox": [1.0, 2, 3, 4], "category": 0, "difficult": 256}], "difficult"),
        )
    },
    "numbers alone": one({"image": pa.array([1, 2])}, refused=("packed-file", "bytes of files, found image")),
    "bytes alone": one({"data": pa.array([b"1"])}, refused=("packed-file", "bytes of files, found data")),
    "files of other types": case(
        {
            f"train-{i}.parquet": parquet({"image": images("a"), "label": pa.array([label])})
            for i, label in enumerate((0, "x"))
        },
        refused=("packed-file", r"train-1\.parquet: expected the column label as int64"),
    ),
    "class names in another order": case(
        {
            f"{name}-0.parquet": parquet(
                {"image": images("a.png"), "label": pa.array([0])},
                {**IMAGE, "label": {**LABEL["label"], "names": names}},
            )
            for name, names in (("train", ["cat", "dog"]), ("test", ["dog", "cat"]))
        },
        refused=("packed-file", "train-0.parquet: expected the class names of label as in the first file, found"),
    ),
    "labels as pandas writes categories": one(
        {"image": images(*"abc"), "label": pa.array(["dog", "cat", "dog"]).dictionary_encode()},
        classes=["cat", "dog"], labels={"train": [1, 0, 1]},
    ),
    "one box that is no corner": one(
        detection_columns([[1.0, 1, 30, 30]] * 24 + [[50.0, 1, 30, 30]]), IMAGE, notes=[]
    ),
    **{
        f"members of {prefix} as columns, described in {place}": case(
            {
                "d/x.parquet": parquet(flat(prefix), features if place == "metadata" else None),
                **({} if place == "metadata" else {f"d/{place}": json.dumps({"features": features})}),
            },
            "d", classes=["cat", "dog"], names=[["cat"], ["dog"], ["cat"]], notes=[],
            boxes=[[[x, y, x + w, y + h]] for x, y, w, h in BOXES], area=[[w * h] for _, _, w, h in BOXES],
            said=[f"x.parquet: {prefix}.id: not stored: a column of list<element: int64>; rows: 3."],
        )
        for prefix in ("objects", "annotations")
        for features in ({**IMAGE, f"{prefix}.category": CATEGORY},)
        for place in ("metadata", "dataset_info.json")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "parquet")


@pytest.mark.parametrize("name", ["numbers alone", "bytes alone"])
def test_files_without_images_are_not_recognized(name: str, tmp_path: Path) -> None:
    refused(labelling_files.write(tmp_path, CASES[name].files) / "x.parquet", match="no known data set format")
