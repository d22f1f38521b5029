"""Labels: one class index per sample, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import ArrayField, Field, Finding, ImageSizes, StoredRows, pieces
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec, EncodedSample
from tensorstore_ds.format.statistics import LabelSums, Sums

_LABEL = ArraySpec("int64")
#: Label of a sample whose class is unknown.
UNLABELLED = -1


@dataclass(frozen=True)
class LabelField(ArrayField):
    """One class index per sample, an index into `classes`, or `UNLABELLED`."""

    kind: ClassVar[str] = "label"
    joins_classes: ClassVar[bool] = True
    spec: ArraySpec = _LABEL
    classes: tuple[str, ...] = ()

    @property
    def unknown(self) -> int:
        return UNLABELLED

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "classes": list(self.classes)}

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        return {"classes": self.classes}

    def renumbered(self, rows: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Return labels with new class numbers. Negative labels do not change.

        >>> LabelField(classes=("dog", "cat")).renumbered(np.array([0, -1]), np.array([1]))
        array([ 1, -1])
        """
        return np.where(rows >= 0, numbers[rows.clip(0)], rows)

    def class_rows(self, stored: Any) -> tuple[None, NDArray[np.int64]]:
        return None, np.asarray(stored[:])

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        spec = values.expect_spec(where, data, _LABEL, "label")
        return cls(spec, classes=values.names(f"{where}.classes", data.get("classes")))

    def row(self, name: str, sample: EncodedSample) -> Any:
        label = sample.arrays.get(name, sample.label)
        return UNLABELLED if label is None else label

    def sums(self, rows: NDArray[np.int64]) -> Sums:
        return LabelSums.of_labels(rows, len(self.classes))

    def check(self, column: StoredRows, image_sizes: ImageSizes) -> Iterator[Finding]:
        return check_labels(column, len(self.classes), least=UNLABELLED)


def check_labels(labels: StoredRows, classes: int, *, least: int = 0) -> Iterator[Finding]:
    """Yield labels outside of [least, classes)."""
    first, count = "", 0
    for start, rows in pieces(labels):
        wrong = np.flatnonzero((rows < least) | (rows >= classes))
        if wrong.size and not count:
            first = f"{int(rows[wrong[0]])} at {start + int(wrong[0])}"
        count += wrong.size
    if count:
        yield "label-range", f"expected labels in [{least}, {classes}), found {first} ({count} in all)."
