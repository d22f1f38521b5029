"""Data sets of Hugging Face's library, as a stand-in has them, and the library's own where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import stored
from stores import Samples, png_bytes
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.sequence import SequenceSource
from test_source_sequence import scan

COLOR = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)


class Image:
    """A feature as Hugging Face's `datasets` has it."""

    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class ClassLabel:
    def __init__(self, *names: str) -> None:
        self.names = list(names)


class Rows(Samples):
    """What is used of a `datasets.Dataset`: images are decoded unless they are cast."""

    def __init__(self, samples: list[Any], features: dict[str, Any]) -> None:
        super().__init__(samples, features=features, format={"type": None})

    def cast_column(self, name: str, feature: Image) -> Rows:
        return Rows(self.samples, {**self.features, name: feature})  # type: ignore[attr-defined]

    def with_format(self, type: None) -> Rows:
        return self

    def __getitem__(self, index: int) -> Any:
        assert not any(getattr(each, "decode", False) for each in vars(self)["features"].values())
        return super().__getitem__(index)


def test_data_sets_of_hugging_face(tmp_path: Path) -> None:
    data = png_bytes(COLOR)
    rows: list[Any] = [
        {
            "img": {"bytes": data, "path": "a.png"},
            "n": 3,
            "objects": {"bbox": [[0, 1, 2, 3]], "category": [1], "area": [6.0]},
        },
        {"img": {"bytes": data, "path": None}, "n": 4, "objects": {"bbox": [], "category": [], "area": []}},
    ]
    features = {"img": Image(), "n": None, "objects": {"bbox": None, "category": [ClassLabel("cat", "dog")]}}
    source, contents = scan({"train": Rows(rows, features), "test": Rows(rows[::-1], features)})
    assert contents.fields["objects"].classes == ("cat", "dog")  # type: ignore[attr-defined]
    first, second = (source.read("train", row) for row in (0, 1))
    assert first.image == data and first.arrays["n"] == 3
    assert first.objects is not None and second.objects is not None
    assert first.objects["boxes"].tolist() == [[0, 1, 2, 4]] and first.objects["labels"].tolist() == [1]
    assert second.objects["boxes"].shape == (0, 4)
    labelled = Rows(
        [{"image": {"bytes": data, "path": None}, "label": 1}], {"image": Image(), "label": ClassLabel("a", "b")}
    )
    tsds.convert(labelled, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    train = tsds.open(tmp_path / "o.tsds")["train"]
    assert (list(train["label"]), bytes(train["image"][0])) == ([1], data)


@pytest.mark.parametrize(
    "feature", [[ClassLabel("cat", "dog", "emu")], Samples([], feature=ClassLabel("cat", "dog", "emu"))]
)
@pytest.mark.parametrize("name", ["labels", "label", "tags"])
def test_several_labels_of_hugging_face(tmp_path: Path, feature: Any, name: str) -> None:
    data = png_bytes(COLOR)
    cells: list[list[int] | None] = [[2, 0], [], None, [1]]
    rows = [{"image": {"bytes": data, "path": None}, name: cell} for cell in cells]
    tsds.convert(Rows(rows, {"image": Image(), name: feature}), tmp_path / "o.tsds", workers=0)
    train = tsds.open(tmp_path / "o.tsds")["train"]
    assert train.fields["labels"].classes == ("cat", "dog", "emu")
    assert train["labels"][:].tolist() == [[1, 0, 1], [0, 0, 0], [-1, -1, -1], [0, 1, 0]]


def test_label_and_objects_of_hugging_face_with_other_classes_are_refused() -> None:
    features = {"image": Image(), "label": ClassLabel("a"), "objects": {"bbox": None, "category": ClassLabel("b")}}
    with pytest.raises(SourceError, match="to_parquet"):
        SequenceSource(Rows([{}], features), SourceOptions())


def test_the_library_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["cat", "dog"])
    numbers = datasets.Sequence(datasets.Sequence(datasets.Value("float32")))
    objects = {"bbox": numbers, "category": datasets.Sequence(names)}
    features = datasets.Features({"img": datasets.Image(), "label": names, "objects": objects})
    data = png_bytes(COLOR)
    columns = {
        "img": [{"bytes": data, "path": "a.png"}] * 2,
        "label": [1, None],
        "objects": [{"bbox": [[0, 1, 2, 2]], "category": [1]}, {"bbox": [], "category": []}],
    }
    rows = datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns, features=features)})
    tsds.convert(rows, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    train = tsds.open(tmp_path / "o.tsds")["train"]
    assert (list(train["label"]), bytes(train["image"][1])) == ([1, -1], data)
    assert [each["boxes"].tolist() for each in (train["objects"][0], train["objects"][1])] == [[[0, 1, 2, 3]], []]
    rows["train"].to_parquet(tmp_path / "x.parquet")
    again = stored(tmp_path / "x.parquet", encoding="source")["train"]
    assert list(again["label"]) == [1, -1] and again["objects"][0]["boxes"].tolist() == [[0, 1, 2, 3]]
