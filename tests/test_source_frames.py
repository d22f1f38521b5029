"""Data frames: as the list of the same rows, from pandas, pyarrow, and a stand-in."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from stores import png_bytes
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.list.frames import FrameSource, has_frames
from test_export import assert_same

COLUMNS: dict[str, list[Any]] = {
    "path": ["a.png", "b/c.png", "d.png"],
    "label": ["dog", None, "cat"],
    "x": [1, 2, float("nan")],
    "y": [1.5, 3, None],
    "w": [4, 5.25, None],
    "h": [2, 2, None],
    "split": ["train", "val", "train"],
    "note": ["x", "y, z", ""],
}


class Frame:
    """What is asked of a data frame."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self.columns = list(columns)
        self.dtypes = [object] * len(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> Iterator[Any]:
        return iter(self._columns[name])


def frames(kind: str, columns: dict[str, list[Any]]) -> Any:
    if kind == "stand-in":
        return Frame(columns)
    module = pytest.importorskip(kind)
    if kind == "pandas":
        return module.DataFrame(columns)
    return module.table({name: [None if v != v else v for v in values] for name, values in columns.items()})


def write_images(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in COLUMNS["path"]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_bytes(rng.integers(0, 256, (12, 14, 3), np.uint8)))
    return folder


def scan(frame: Any, **options: Any) -> tuple[FrameSource, Any]:
    assert has_frames(frame)
    source = FrameSource(frame, SourceOptions(**options))
    contents = source.contents()
    return pickle.loads(pickle.dumps(source)), contents  # noqa: S301  of this process


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "stand-in"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_frame_is_converted_as_the_list_of_the_same_rows(tmp_path: Path, kind: str, workers: int) -> None:
    folder = write_images(tmp_path / "src")
    lines = [
        "path,label,x,y,w,h,split,note",
        "a.png,dog,1,1.5,4,2,train,x",
        'b/c.png,,2,3,5.25,2,val,"y, z"',
        "d.png,cat,,,,,train,",
    ]
    (folder / "list.csv").write_text("\n".join(lines))
    options = tsds.ConvertOptions(workers=workers)
    tsds.convert(folder / "list.csv", tmp_path / "one.tsds", options)
    images = tsds.ConvertOptions(workers=workers, images=folder)
    summary = tsds.convert(frames(kind, COLUMNS), tmp_path / "other.tsds", images)
    one, other = tsds.open(tmp_path / "one.tsds"), tsds.open(tmp_path / "other.tsds")
    assert one["train"].fields == other["train"].fields
    assert_same(one, other, "boxes")
    assert [list(other[split]["key"]) for split in other] == [list(one[split]["key"]) for split in one]
    assert [each.where for each in summary.left_out] == ["<dataframe>: note"]


def test_a_frame_for_each_split_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_images(tmp_path))
    some = {"train": Frame({"file": ["a.png", "d.png"]}), "Val": Frame({"file": ["b/c.png"]})}
    source, contents = scan(some)
    assert {name: list(each) for name, each in contents.splits.items()} == {
        "train": ["a.png\0", "d.png\0"],
        "val": ["b/c.png\0"],
    }
    assert source.read("val", "b/c.png\0").image == f"{tmp_path}/b/c.png"


def test_a_frame_is_divided_by_folders_unless_its_split_is_named() -> None:
    frame = Frame({"path": ["train/a.png", "test/b.png"]})
    assert [list(scan(each)[1].splits) for each in (frame, {"mine": frame})] == [["train", "test"], ["mine"]]


@pytest.mark.parametrize("dtype", [None, "Int64"])
def test_numbers_with_missing_ones_are_labels(dtype: str | None) -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series([1, None, 0], dtype=dtype)
    _, contents = scan(pandas.DataFrame({"path": ["a.png", "b.png", "c.png"], "label": labels}))
    assert contents.labels["train"].tolist() == [1, -1, 0]
    assert contents.fields["label"] == LabelField(classes=("0", "1"))


def test_lists_in_cells_keep_their_items() -> None:
    labels = [[np.str_("it's"), "x, y"], ("x, y",), {'a "b"'}]
    _, contents = scan(Frame({"path": ["a.png", "b.png", "c.png"], "labels": labels}))
    assert contents.fields["labels"].classes == ('a "b"', "it's", "x, y")
    boxes = [[np.float32(1.5), np.int64(2), 3, 4]]
    source, contents = scan(Frame({"path": ["a.png"], "label": ["a"], "bbox": boxes}))
    (objects,) = [source.read("train", reference).objects for reference in contents.splits["train"]]
    assert objects is not None and objects["boxes"].tolist() == [[1.5, 2, 4.5, 6]]


@pytest.mark.parametrize(
    ("columns", "where", "found"),
    [
        ({"a": [1]}, "<dataframe>", "column named path"),
        ({}, "<dataframe>", "found none"),
        ({"path": ["a.png"], "image": ["b.png"]}, "<dataframe>:1", "path and image"),
        ({"path": ["a.png", "../b.png"]}, "<dataframe>:1", "../b.png"),
        ({"path": ["/a.png"]}, "<dataframe>:0", "/a.png"),
        ({"path": ["a.png", "b.png", "a.png"]}, "<dataframe>:2", "already"),
        ({"path": ["a.png", None]}, "<dataframe>:1", "found none"),
        ({"path": ["a.png"], "x1": ["?"], "y1": [1], "x2": [2], "y2": [3]}, "<dataframe>:0", "a number, found ?"),
    ],
)
def test_what_is_refused_is_named_with_its_row(columns: dict[str, list[Any]], where: str, found: str) -> None:
    with pytest.raises(SourceError) as caught:
        _, contents = scan(Frame(columns))
        raise SourceError(contents.problems)
    (problem,) = caught.value.problems
    assert problem.where == where and found in problem.message
