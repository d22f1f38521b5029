"""Lists of any length: rows of numbers, such as the embeddings of a text, one for each of its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import Field, TableField
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec, EncodedSample

_VALUE = "rows"


@dataclass(frozen=True)
class RaggedField(TableField):
    """A table of numbers. Its one value is `rows`: a sample has an array (m, ...), and m differs between samples."""

    kind: ClassVar[str] = "ragged"

    @classmethod
    def of(cls, spec: ArraySpec) -> Self:
        """The field of arrays (m, ...) whose rows are like `spec`."""
        return cls({_VALUE: spec})

    @property
    def spec(self) -> ArraySpec:
        """dtype and shape of one row."""
        return self.values[_VALUE]

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        specs, per_row = values.table(where, data)
        if {*specs} != {_VALUE} or specs[_VALUE].is_ragged:
            values.wrong(where, f"expected the one value {_VALUE}, not ragged, found {sorted(specs)}.")
            specs = {_VALUE: ArraySpec("uint8")}
        return cls(specs, per_row=per_row)

    def describe(self) -> str:
        return f"lists of {self.spec}"

    @property
    def absent_as(self) -> str:
        return "" if self.per_row else "unknown, stored as an empty list"

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        arrays = [sample.arrays[name] for sample in samples]
        empty = np.empty((0, *self.spec.shape), self.spec.dtype)
        rows = np.concatenate([empty, *arrays], dtype=empty.dtype)
        return np.array([len(each) for each in arrays], np.int64), {_VALUE: rows}

    def value(self, values: Mapping[str, Any], per_row: Callable[[str], Any], where: str) -> NDArray[Any]:
        found: NDArray[Any] = values[_VALUE]
        return found
