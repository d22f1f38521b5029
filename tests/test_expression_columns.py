"""The columns that a condition can ask for, of any rows: those of the store's fields, read one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import VALID
from tensorstore_ds.annex.editing.expression import columns


@pytest.mark.parametrize(
    "name", ["detection", "classification", "unlabelled", "shards", "encoded-source", "array-fields"]
)
def test_columns_of_some_rows_are_those_of_the_fields(name: str) -> None:
    store = tsds.open(VALID / f"{name}.tsds")
    for split in (store[each] for each in store):
        expected: dict[str, list[object]] = {}
        for field, kind in split.fields.items():
            if kind.kind == "label":
                expected[field] = [kind.classes[i] if i >= 0 else "" for i in np.asarray(split[field]).tolist()]
            elif kind.kind == "key":
                expected["key"] = [split[field][row] for row in range(len(split))]
            elif kind.kind == "objects":
                objects = [split[field][row] for row in range(len(split))]
                expected["objects"] = [len(each["boxes"]) for each in objects]
                if objects and kind.classes and "labels" in objects[0]:
                    expected["classes"] = [{kind.classes[i] for i in each["labels"].tolist()} for each in objects]
        found = columns(split)
        assert expected.keys() <= found.keys()
        assert "size" not in split.fields or {"height", "width"} <= found.keys()
        if "size" in split.fields:
            sizes = np.asarray(split["size"])
            expected |= {"height": sizes[:, 0].tolist(), "width": sizes[:, 1].tolist()}
        for column, values in expected.items():
            for start, stop in itertools.combinations(range(len(split) + 1), 2):
                assert list(found[column](start, stop)) == values[start:stop]
