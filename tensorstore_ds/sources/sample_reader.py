"""Samples that are Python objects, all with the fields of the first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, LabelField, MaskField, ObjectsField
from tensorstore_ds.format.schema import ArrayField, ArraySpec, Field, TableField
from tensorstore_ds.sources.base import Objects, Sample, SourceOptions
from tensorstore_ds.sources.classes import number_classes
from tensorstore_ds.sources.keypoints import flip_pairs
from tensorstore_ds.sources.samples import Parts, read_parts

_MASK = "(H, W) of the image"
_RESERVED = ("image", "key", "size", "objects", "label")


class SampleReader:
    """Reads Python objects as samples.

    Args:
        options: what the classes and the keypoints are called.
        where: the samples come from, in errors.

    Attributes:
        fields: of all samples but their image, size and key; `learn` or `use` says which.
    """

    def __init__(self, options: SourceOptions, where: str) -> None:
        self.options = options
        self._where = where
        self.use({})

    def use(self, fields: Mapping[str, Field]) -> None:
        """Expect these fields of all samples."""
        self.fields = fields
        self._shapes = _field_shapes(fields)
        self._numbers = {name: {text: i for i, text in enumerate(field.classes)} for name, field in fields.items()}

    def learn(self, parts: Parts, classes: tuple[str, ...] | None = None) -> tuple[Problem, ...]:
        """Take the fields from the first sample; returns what of it is not stored.

        Args:
            parts: of the sample.
            classes: names of its labels, where the options have none.

        Raises:
            SourceError: its classes have no names, or what it names cannot be a field.
        """
        if self.options.classes is not None:
            classes = number_classes((), self.options.classes, self._where)
        if parts.has_classes and classes is None:
            message = "expected class names, found labels alone (no attribute classes or targets)."
            raise SourceError(Problem(self._where, "unknown-class", message), "Pass the names as `classes`.")
        fields: dict[str, Field] = {}
        if parts.label is not None:
            fields["label"] = LabelField(classes=classes or ())
        if parts.objects is not None:
            fields["objects"] = self._objects_field(parts.objects, classes or ())
        if parts.mask is not None:
            fields["mask"] = MaskField.of(classes or ())
        for name, array in parts.arrays.items():
            field = _field_name(name)
            if field in fields or field in _RESERVED:
                message = f"expected a name that a store does not use itself, found {name}."
                raise SourceError(Problem(self._where, "annotation", message), "Rename it.")
            fields[field] = ArrayField(ArraySpec(array.dtype.name, array.shape))
        self.use(fields)
        return tuple(Problem(f"{self._where}: {name}", "not-listed", "not stored.") for name in parts.ignored)

    def read(self, key: str, sample: Any) -> Sample:
        """A sample with the fields that are known; raises `SourceError` if it is none, or has others."""
        parts = parts_of(key, sample)
        shapes = _parts_shapes(parts)
        if shapes != self._shapes:
            message = f"expected the fields of the first sample, {_listed(self._shapes)}, found {_listed(shapes)}."
            raise SourceError(Problem(key, "annotation", message), "Give all samples the same fields.")
        label = None if parts.label is None else self._index(key, parts.label, self._numbers["label"])
        if parts.objects is not None and parts.objects.labels is not None:
            for number in parts.objects.labels:
                self._index(key, int(number), self._numbers["objects"])
        masks = {} if parts.mask is None else {"mask": parts.mask}
        arrays = {_field_name(name): array for name, array in parts.arrays.items()}
        return Sample(key, parts.image, label, parts.objects, masks, arrays)

    def _objects_field(self, objects: Objects, classes: tuple[str, ...]) -> Field:
        values = [name for name in OBJECT_VALUES if getattr(objects, name) is not None]
        classes = classes if objects.labels is not None else ()
        if objects.keypoints is None:
            return ObjectsField.of(*values, classes=classes)
        count, chosen = objects.keypoints.shape[1], self.options.keypoints
        if chosen is not None and len(chosen.names) != count:
            message = f"expected {len(chosen.names)} keypoints, found {count}."
            raise SourceError(Problem(self._where, "keypoint-count", message))
        names = tuple(map(str, range(count))) if chosen is None else chosen.names
        pairs = flip_pairs(names) if chosen is None else chosen.flip_pairs
        return ObjectsField.of(*values, classes=classes, keypoints=names, flip_pairs=pairs)

    def _index(self, key: str, label: int | str, numbers: Mapping[str, int]) -> int:
        index = numbers.get(label, -1) if isinstance(label, str) else label
        if not 0 <= index < len(numbers):
            message = f"expected a label of the {len(numbers)} classes, found {label}."
            raise SourceError(Problem(key, "unknown-class", message), "Correct the label or the class names.")
        return index


def parts_of(key: str, sample: Any) -> Parts:
    """A sample taken apart; raises `SourceError` if it is none."""
    try:
        return read_parts(sample)
    except ValueError as error:
        raise SourceError(Problem(key, "annotation", f"{error}.")) from error


def _parts_shapes(parts: Parts) -> dict[str, str]:
    """The fields of a sample, and of each what must not differ."""
    shapes = {_field_name(name): f"{a.dtype.name} {a.shape}" for name, a in parts.arrays.items()}
    if parts.label is not None:
        shapes["label"] = "int64 ()"
    if parts.mask is not None:
        shapes["mask"] = _MASK
    for name in OBJECT_VALUES if parts.objects is not None else ():
        array = getattr(parts.objects, name)
        if array is not None:
            shapes[f"objects.{name}"] = str(array.shape[1:])
    return shapes


def _field_shapes(fields: Mapping[str, Field]) -> dict[str, str]:
    shapes = {}
    for name, field in fields.items():
        if isinstance(field, MaskField):
            shapes[name] = _MASK
        elif isinstance(field, ArrayField):
            shapes[name] = f"{field.spec.dtype} {field.spec.shape}"
        elif isinstance(field, TableField):
            shapes.update({f"{name}.{value}": str(spec.shape) for value, spec in field.values.items()})
    return shapes


def _listed(shapes: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())) or "no field"


def _field_name(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "_", name.lower())[:64]
