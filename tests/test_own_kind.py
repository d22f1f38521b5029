"""A kind of field that is one class and one registration is joined, edited, compared, verified and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import Shard, Store, write_plain
from tensorstore_ds.format import kinds
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.kinds.base import Field, TableField
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading import fields


@dataclass(frozen=True)
class TagsField(TableField):
    """Any number of class numbers per sample."""

    kind: ClassVar[str] = "tags"
    joins_classes: ClassVar[bool] = True
    class_value: ClassVar[str] = "tag"
    absent_as: ClassVar[str] = "stored as no tags"  # type: ignore[misc]
    values: Mapping[str, ArraySpec] = field(default_factory=lambda: {"tag": ArraySpec("int64")})
    classes: tuple[str, ...] = ()

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "classes": list(self.classes)}

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        return cls(values.table(where, data)[0], classes=values.names(f"{where}.classes", data.get("classes")))

    def describe(self) -> str:
        return "tags"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.KINDS, TagsField.kind, TagsField)  # type: ignore[arg-type]
    monkeypatch.setitem(fields.GATHERERS, TagsField, fields.GATHERERS[ObjectsField])


def stored(path: Path, classes: Sequence[str], rows: Sequence[Sequence[int]] | None) -> Path:
    """A store of samples with these tags, or without tags."""
    count = 2 if rows is None else len(rows)
    arrays = {"number": np.arange(count)}
    known: dict[str, Any] = {"number": {"kind": "array", "dtype": "int64", "shape": []}}
    if rows is not None:
        arrays |= {"tags/offsets": np.cumsum([0, *map(len, rows)]), "tags/tag": np.concatenate(rows).astype(np.int64)}
        known["tags"] = {"kind": "tags", "values": {"tag": {"dtype": "int64", "shape": []}}, "classes": list(classes)}
    return write_plain(path, Store(known, {"train": [Shard(count, arrays)]}))


def names(path: Path) -> list[list[str]]:
    """The tags of each sample."""
    split = tsds.open(path)["train"]
    return [[split.fields["tags"].classes[i] for i in row["tag"]] for row in split.table("tags")[:]]


def test_joined_edited_compared_and_loaded(tmp_path: Path) -> None:
    first = stored(tmp_path / "first.tsds", ("red", "big"), [[0, 1], [], [1]])
    second = stored(tmp_path / "second.tsds", ("big", "old"), [[1], [0, 1]])
    lacking = stored(tmp_path / "lacking.tsds", (), None)
    expected = [["red", "big"], [], ["big"], ["old"], ["big", "old"], [], []]

    merged = tsds.editing.merge_stores([first, second, lacking], tmp_path / "merged.tsds")
    assert names(merged.path) == expected and tsds.verify(merged.path) == []
    assert any("adds tags to the 2 samples of lacking.tsds: stored as no tags." in note for note in merged.notes)

    dropped = tsds.editing.relabel_store(merged.path, tmp_path / "dropped.tsds", {"big": "", "old": "red"})
    assert names(dropped.path) == [["red"], [], [], ["red"], ["red"], [], []]

    other = stored(tmp_path / "other.tsds", ("big", "red"), [[1, 0], [], [1]])
    found = tsds.editing.compare_stores(first, other)
    assert found.fields == [] and found.splits["train"].fields["tags"].keys == ["row 2"]

    batch = tsds.StoreDataset(merged.path).gather([4, 0])
    tags: Any = batch.columns["tags"]
    assert tags.offsets.tolist() == [0, 2, 4] and tags.values["tag"].tolist() == [1, 2, 0, 1]
    mixed = tsds.MixedDataset([first, second], fields=["tags"])
    value: Any = mixed.gather([4]).columns["tags"]
    assert value.values["tag"].tolist() == [1, 2]
