"""Multi-label classification: whether each class applies to a sample, or that this is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import ArrayField, Field, Finding, ImageSizes, StoredRows, pieces, some_of
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.format.statistics import MultiLabelSums, Sums

_DTYPE = "int8"
#: Number of a class that may or may not apply to a sample.
NOT_KNOWN = -1


@dataclass(frozen=True)
class LabelsField(ArrayField):
    """C numbers int8 per sample: 1 if a class applies, 0 if not, -1 if unknown.

    `absent` is the number of a class in the samples of a store that lacks it, when stores are joined. It is not stored.
    """

    kind: ClassVar[str] = "labels"
    joins_classes: ClassVar[bool] = True
    classes: tuple[str, ...] = ()
    absent: int = field(default=NOT_KNOWN, compare=False)

    @classmethod
    def of(cls, classes: Sequence[str], absent: int = NOT_KNOWN) -> LabelsField:
        """Create the field with these classes.

        >>> LabelsField.of(("cat", "dog", "bird")).spec.shape
        (3,)
        """
        return cls(ArraySpec(_DTYPE, (len(classes),)), tuple(classes), absent)

    @property
    def unknown(self) -> int:
        return NOT_KNOWN

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "classes": list(self.classes)}

    def likeness(self) -> dict[str, Any]:
        return {**super().likeness(), "shape": []}

    def gaps(self, name: str, own: Self, class_map: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        known = [class_map.get(each, each) for each in own.classes]
        if missing := [each for each in self.classes if each not in known]:
            said = "unknown, stored as -1" if self.absent == NOT_KNOWN else "stored as 0, no sample has them"
            yield f"the classes {some_of(missing)} to {name} of", said

    def with_classes(self, classes: tuple[str, ...]) -> Self:
        return replace(self, spec=replace(self.spec, shape=(len(classes),)), classes=classes)

    def class_rows(self, stored: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        owners, numbers = np.nonzero(np.asarray(stored[:]) > 0)
        return owners, numbers

    def united(self, other: Field) -> Self:
        return replace(super().united(other), absent=0)

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        spec = values.spec(where, data)
        classes = values.names(f"{where}.classes", data.get("classes"))
        if spec.dtype != _DTYPE or spec.shape != (len(classes),):
            expected = f"int8 and the shape [{len(classes)}] of labels of {len(classes)} classes"
            values.wrong(where, f"expected {expected}, found {spec.dtype} and {list(spec.shape)}.")
        return cls(spec, classes)

    def sums(self, rows: NDArray[np.int8]) -> Sums:
        return MultiLabelSums.of_labels(rows)

    def check(self, column: StoredRows, image_sizes: ImageSizes) -> Iterator[Finding]:
        for start, rows in pieces(column):
            wrong = (rows < NOT_KNOWN) | (rows > 1)
            if wrong.any():
                row, number = np.argwhere(wrong)[0].tolist()
                found = f"{int(rows[row, number])} of class {number} in row {start + row}"
                yield "label-range", f"expected 1, 0 or -1 for each class, found {found}."
                return

    def row_of(self, numbers: Iterable[int] | None) -> NDArray[np.int8]:
        """Return the row (C,) int8 of a sample to which only the classes of these numbers apply. None: not known.

        >>> LabelsField.of(("cat", "dog", "bird")).row_of([0, 2])
        array([1, 0, 1], dtype=int8)
        """
        row = np.full(self.spec.shape, NOT_KNOWN if numbers is None else 0, np.int8)
        row[list(numbers or ())] = 1
        return row

    def names_of(self, row: NDArray[Any]) -> tuple[str, ...]:
        """Return the names of the classes that apply to a sample with the row (C,).

        >>> LabelsField.of(("cat", "dog", "bird")).names_of(np.array([1, 0, 1]))
        ('cat', 'bird')
        """
        return tuple(self.classes[number] for number in np.flatnonzero(np.asarray(row) > 0).tolist())

    def renumbered(self, rows: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows (n, C) with new class numbers, `absent` for classes without an old one. Unknown is NaN in floats.

        A class that several became applies if one of them does, and is unknown if none does and one is unknown.

        >>> LabelsField.of(("cat", "dog", "pet")).renumbered(np.array([[1, 0, -1]], np.int8), np.array([1, 2, 2]))
        array([[-1,  1, -1]], dtype=int8)
        """
        unknown = np.nan if rows.dtype.kind == "f" else NOT_KNOWN
        absent = unknown if self.absent == NOT_KNOWN else self.absent
        moved = np.full((len(rows), len(self.classes)), absent, rows.dtype)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            old = rows[:, numbers == number]
            known = np.where((old >= 0).all(axis=1), np.zeros((), rows.dtype), unknown)
            moved[:, number] = np.where((old > 0).any(axis=1), 1, known) if old.shape[1] > 1 else old[:, 0]
        return moved
