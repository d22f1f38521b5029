"""Python objects with ``__len__`` and ``__getitem__``, such as torchvision's data sets: formats/sources/sequence.md.

What a single sample may be, `samples` says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, LabelField, MaskField, ObjectsField
from tensorstore_ds.format.schema import ArrayField, ArraySpec, Field, TableField
from tensorstore_ds.regular_files import check_machine
from tensorstore_ds.sources.base import Contents, Objects, Reference, Sample, SourceOptions
from tensorstore_ds.sources.classes import number_classes
from tensorstore_ds.sources.keypoints import flip_pairs
from tensorstore_ds.sources.samples import Parts, as_array, read_parts
from tensorstore_ds.sources.splits import split_names

_MASK = "(H, W) of the image"


@runtime_checkable
class Indexable(Protocol):
    """What is asked of a sequence: its length, and its samples by number from 0."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class SequenceSource:
    """A reference is a sample's number. The first sample of all says which fields there are.

    Args:
        sequence: the samples, or for each split its samples.
        options: `classes` names labels that the sequence does not name itself.
    """

    name: ClassVar[str] = "sequence"

    def __init__(self, sequence: Indexable | Mapping[str, Indexable], options: SourceOptions) -> None:
        self.path = Path("<sequence>")
        self.options = options
        self._given = sequence
        self._sequences: dict[str, Indexable] = {}
        self._fields: dict[str, Field] = {}
        self._classes: dict[str, int] = {}

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Never: a sequence has no path."""
        return False

    def scan(self) -> Contents:
        """Read the first sample, and the class names and labels that the sequence itself offers."""
        given = self._given if isinstance(self._given, Mapping) else {"train": self._given}
        for name, sequence in given.items():
            if not isinstance(sequence, Indexable):
                message = f"expected __len__ and __getitem__, found {type(sequence).__name__}."
                raise OptionError(f"{name}: {message} Pass a list, or a data set of the map style.")
        names = split_names(given)
        self._sequences = {names[name]: sequence for name, sequence in given.items() if len(sequence)}
        if not self._sequences:
            raise SourceError(Problem(str(self.path), "empty-source", "expected samples, found none."))
        split = next(iter(self._sequences))
        parts = self._parts(split, 0)
        labels = {name: _targets(sequence) for name, sequence in self._sequences.items()}
        known = {name: array for name, array in labels.items() if array is not None}
        self._fields = self._find_fields(parts, known if len(known) == len(labels) else {})
        splits = {name: range(len(sequence)) for name, sequence in self._sequences.items()}
        left_out = tuple(Problem(f"{self.path}: {name}", "not-listed", "not stored.") for name in parts.ignored)
        use = "label" in self._fields and len(known) == len(labels)
        return Contents(self._fields, splits, known if use else None, left_out=left_out)

    def read(self, split: str, reference: Reference) -> Sample:
        """One sample, which must have the fields of the first."""
        key = self.key(split, reference)
        parts = self._parts(split, int(reference))
        found = _shapes(parts)
        expected = _field_shapes(self._fields)
        if found != expected:
            message = f"expected the fields of the first sample, {_listed(expected)}, found {_listed(found)}."
            raise SourceError(Problem(key, "annotation", message), "Give all samples the same fields.")
        if parts.objects is not None and parts.objects.labels is not None:
            for label in parts.objects.labels:
                self._index(key, int(label))
        label = None if parts.label is None else self._index(key, parts.label)
        masks = {} if parts.mask is None else {"mask": parts.mask}
        arrays = {_field_name(name): array for name, array in parts.arrays.items()}
        return Sample(key, parts.image, label, parts.objects, masks, arrays)

    def key(self, split: str, reference: Reference) -> str:
        """The split and the sample's number."""
        return f"{split}/{int(reference):05d}"

    def files(self, reference: Reference) -> tuple[Path, ...]:
        """None: where a sequence has its samples from, it does not say."""
        return ()

    def common_files(self) -> tuple[Path, ...]:
        """None, as above."""
        return ()

    def _parts(self, split: str, index: int) -> Parts:
        key = self.key(split, index)
        try:
            sample = self._sequences[split][index]
        except Exception as error:  # whatever a stranger's code raises
            check_machine(key, error)
            message = f"its __getitem__({index}) raised {type(error).__name__}: {error}."
            raise SourceError(Problem(key, "unreadable-file", message)) from error
        try:
            return read_parts(sample)
        except ValueError as error:
            raise SourceError(Problem(key, "annotation", f"{error}.")) from error

    def _find_fields(self, parts: Parts, labels: Mapping[str, NDArray[np.int64]]) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        if parts.label is not None or parts.mask is not None or (parts.objects and parts.objects.labels is not None):
            # what a sequence calls its targets need not be the labels of the objects
            classes = self._class_names(labels if parts.label is not None else {})
            self._classes = {name: i for i, name in enumerate(classes)}
        if parts.label is not None:
            fields["label"] = LabelField(classes=tuple(self._classes))
        if parts.objects is not None:
            fields["objects"] = self._objects_field(parts.objects)
        if parts.mask is not None:
            fields["mask"] = MaskField.of(tuple(self._classes))
        for name, array in parts.arrays.items():
            field = _field_name(name)
            if field in fields or field in ("image", "key", "size", "objects", "label"):
                message = f"expected a name that a store does not use itself, found {name}."
                raise SourceError(Problem(str(self.path), "annotation", message), "Rename it.")
            fields[field] = ArrayField(ArraySpec(array.dtype.name, array.shape))
        return fields

    def _class_names(self, labels: Mapping[str, NDArray[np.int64]]) -> tuple[str, ...]:
        if self.options.classes is not None:
            return number_classes((), self.options.classes, str(self.path))
        for sequence in self._sequences.values():
            named = getattr(sequence, "classes", None)
            if isinstance(named, list | tuple) and named:
                return _distinct([", ".join(map(str, n)) if isinstance(n, list | tuple) else str(n) for n in named])
        if labels:
            found = {int(label) for array in labels.values() for label in np.unique(array)}
            return number_classes(found, None, str(self.path))
        message = "expected class names, found labels alone (no attribute classes or targets)."
        advice = "Pass the names, label 0 first (SourceOptions(classes=...))."
        raise SourceError(Problem(str(self.path), "unknown-class", message), advice)

    def _objects_field(self, objects: Objects) -> Field:
        values = [name for name in OBJECT_VALUES if getattr(objects, name) is not None]
        classes = tuple(self._classes) if objects.labels is not None else ()
        if objects.keypoints is None:
            return ObjectsField.of(*values, classes=classes)
        count, chosen = objects.keypoints.shape[1], self.options.keypoints
        if chosen is not None and len(chosen.names) != count:
            message = f"expected {len(chosen.names)} keypoints, found {count}."
            raise SourceError(Problem(str(self.path), "keypoint-count", message))
        names = tuple(map(str, range(count))) if chosen is None else chosen.names
        pairs = flip_pairs(names) if chosen is None else chosen.flip_pairs
        return ObjectsField.of(*values, classes=classes, keypoints=names, flip_pairs=pairs)

    def _index(self, key: str, label: int | str) -> int:
        index = self._classes.get(label, -1) if isinstance(label, str) else label
        if not 0 <= index < len(self._classes):
            message = f"expected a label of the {len(self._classes)} classes, found {label}."
            raise SourceError(Problem(key, "unknown-class", message), "Correct the label or the class names.")
        return index


def _targets(sequence: Indexable) -> NDArray[np.int64] | None:
    """The labels of all samples, (n,) int64, where a data set offers them as torchvision's do."""
    if getattr(sequence, "target_transform", None) is not None:
        return None
    for name in ("targets", "labels"):
        array = as_array(getattr(sequence, name, None))
        if array is not None and array.shape == (len(sequence),) and array.dtype.kind in "iu":
            return array.astype(np.int64)
    return None


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Names that differ: those that occur twice get their number (ImageNet has two classes named crane)."""
    counts = Counter(names)
    return tuple(f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(names))


def _shapes(parts: Parts) -> dict[str, str]:
    """The fields of a sample, and of each what must not differ."""
    found = {_field_name(name): f"{a.dtype.name} {a.shape}" for name, a in parts.arrays.items()}
    if parts.label is not None:
        found["label"] = "int64 ()"
    if parts.mask is not None:
        found["mask"] = _MASK
    for name in OBJECT_VALUES if parts.objects is not None else ():
        array = getattr(parts.objects, name)
        if array is not None:
            found[f"objects.{name}"] = str(array.shape[1:])
    return found


def _field_shapes(fields: Mapping[str, Field]) -> dict[str, str]:
    found = {}
    for name, field in fields.items():
        if isinstance(field, MaskField):
            found[name] = _MASK
        elif isinstance(field, ArrayField):
            found[name] = f"{field.spec.dtype} {field.spec.shape}"
        elif isinstance(field, TableField):
            found.update({f"{name}.{value}": str(spec.shape) for value, spec in field.values.items()})
    return found


def _listed(shapes: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())) or "no field"


def _field_name(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "_", name.lower())[:64]
