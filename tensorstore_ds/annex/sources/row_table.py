"""Labels and objects of the rows of packed data sets, and the fields that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import FormatError, Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.manifest_parser import parse_fields
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources.annotations import changed
from tensorstore_ds.sources.base import FLAGS, LISTS, Objects, SourceOptions
from tensorstore_ds.sources.forms import FormError, kind
from tensorstore_ds.sources.names import number_classes, numbered_keypoints, order_classes, told_apart
from tensorstore_ds.sources.row_objects import Label, RowObjects, label_of

_NAMED_LIMIT = 1 << 20  # classes that are filled up to the largest number


class ClassNames:
    """Classes of labels that are numbers or names: collected by the scan, numbered by `choose`."""

    def __init__(self, names: tuple[str, ...] | None = None) -> None:
        self.given = names  #: those of the source in its own order
        self.named: dict[int, str] = {}
        self.numbers: set[int] = set()
        self.texts: set[str] = set()
        self.indices: dict[Label, int] = {}

    def note(self, label: Label, name: str | None = None) -> None:
        """Note a label, and its name if a number has one; raises `FormError` for a second name."""
        if isinstance(label, str):
            self.texts.add(label)
            return
        self.numbers.add(label)
        if name is not None and self.named.setdefault(label, name) != name:
            raise FormError(f"expected one name of class {label}, found {self.named[label]!r} and {name!r}")

    def choose(self, wanted: tuple[str, ...] | None, where: str) -> tuple[str, ...]:
        """Class names, as given or as they occur; raises as `order_classes` and `number_classes`.

        Also raises `unknown-class` for a number whose given name differs from its own.
        """
        for number, name in self.named.items() if wanted is None else ():
            if self.given and self.given[number : number + 1] not in ((), (name,)):
                message = f"expected {', '.join(self.given)[:200]} as classes, found {name} as number {number}."
                raise SourceError(
                    Problem(where, "unknown-class", message), "Correct the list: its first name is label 0."
                )
        as_texts = {str(number) for number in self.numbers - {UNLABELLED}}
        if self.texts or (wanted is not None and self.numbers and as_texts <= set(wanted)):
            classes = order_classes(self.texts | as_texts, wanted or self.given, where)
            index: dict[str, int] = {name: i for i, name in enumerate(classes)}
            self.indices.update(index)
            self.indices.update((n, index[str(n)]) for n in self.numbers if n != UNLABELLED)
            return classes
        classes = number_classes(sorted(self.numbers), wanted or self.given or self._known(), where)
        self.indices = {number: number for number in self.numbers}
        return classes

    def index(self, label: Label | None, where: str) -> int:
        """Class index of a label, `UNLABELLED` for None; raises `SourceError` for one that the scan did not see."""
        if label is None or label == UNLABELLED:
            return UNLABELLED
        if label not in self.indices:
            raise SourceError(changed(where, f"class, {label}"))
        return self.indices[label]

    def _known(self) -> tuple[str, ...] | None:
        """Names of numbers, if there are any; a number without a name is its own."""
        count = max((*self.numbers, *self.named), default=-1) + 1
        if not self.named or not 0 < count <= _NAMED_LIMIT:
            return None
        return told_apart([self.named.get(i, str(i)) for i in range(count)])


class RowTable:
    """Labels and objects of all rows, and the arrays of one row.

    `labels`, `categories` and `several` are the classes of rows, of objects, and of rows with several each. `values`
    are the names of the objects' values, and `keypoints` is their number per object.
    """

    def __init__(self) -> None:
        self.labels = ClassNames()
        self.categories, self.several = ClassNames(), ClassNames()
        self.values: dict[str, None] = {}
        self.keypoints = 0
        self.has_labels = self.has_several = self.has_objects = False
        self._labels_field = LabelsField.of(("",))
        self._keypoints: Keypoints | None = None  # as `give` has them
        self._skeleton: tuple[tuple[int, int], ...] = ()

    def give(self, data: object, where: str) -> None:
        """Use the class and keypoint names of a store's `label` and `objects`, each as its `dump` gives it.

        Raises `SourceError` `annotation` for data of a different form.
        """
        try:
            fields = parse_fields(data)
        except FormatError as error:
            first = error.problems[0]
            message = f"{first.where}: {first.message}"
            raise SourceError(Problem(where, "annotation", message), "Export again, or remove the names.") from error
        if isinstance(label := fields.get("label"), LabelField):
            self.has_labels, self.labels.given = True, label.classes or None
        if isinstance(labels := fields.get("labels"), LabelsField):
            self.has_several, self.several.given = True, labels.classes
        if isinstance(objects := fields.get("objects"), ObjectsField):
            self.has_objects, self.categories.given = True, objects.classes or None
            if objects.keypoints:
                self._keypoints = Keypoints(objects.keypoints, objects.flip_pairs)
                self._skeleton = objects.skeleton

    def note(self, objects: RowObjects) -> None:
        """Note the objects of a row, except names of labels; raises `FormError` for other numbers of keypoints."""
        self.has_objects = True
        if "keypoints" in objects.values:
            count = objects.values["keypoints"].shape[1]
            if self.keypoints and count != self.keypoints:
                raise FormError(f"expected {self.keypoints} keypoints, found {count}")
            self.keypoints = count
        for label in objects.labels or ():
            self.categories.note(label)
        self.values.update(dict.fromkeys(objects.names))

    def note_several(self, labels: object, name: str) -> None:
        """Note a row's list of labels; raises `FormError` for anything else."""
        self.has_several = True
        for label in _labels_in(labels, name) or ():
            self.several.note(label)

    def several_of(self, labels: object, name: str, where: str) -> NDArray[np.int8]:
        """A number for each class of a row's list of labels; -1, unknown, for null."""
        found = _labels_in(labels, name)
        numbers = None if found is None else [self.several.index(label, where) for label in found]
        return self._labels_field.row_of(numbers)

    def fields(self, options: SourceOptions, where: str) -> dict[str, Field]:
        """The fields of labels and objects."""
        fields: dict[str, Field] = {}
        if self.has_labels:
            fields["label"] = LabelField(classes=self.labels.choose(options.classes, where))
        if self.has_several:
            fields["labels"] = self._labels_field = LabelsField.of(self.several.choose(options.classes, where))
        if self.has_objects:
            classes = self.categories.choose(options.classes, where) if "labels" in self.values else ()
            if self._keypoints is not None and "keypoints" in self.values and not self.keypoints:
                self.keypoints = len(self._keypoints.names)  # though no object has any
            chosen = options.keypoints or self._keypoints
            if not self.keypoints:  # no object has any
                self.values = {name: None for name in self.values if name not in ("keypoints", "visibility")}
            named = numbered_keypoints(self.keypoints, chosen if self.keypoints else None, where)
            values = [name for name in OBJECT_VALUES if name in self.values] or ["boxes"]
            self.values = dict.fromkeys(values)
            lines = self._skeleton if named is self._keypoints else ()
            fields["objects"] = ObjectsField.of(
                *values, classes=classes, keypoints=named.names, flip_pairs=named.flip_pairs, skeleton=lines
            )
        return fields

    def arrays(self, objects: RowObjects | None, where: str) -> Objects | None:
        """The objects of one row, which errors call `where`; None if no row has any."""
        if not self.has_objects:
            return None
        found: dict[str, Any] = dict(objects.values) if objects is not None else {}
        if objects is not None and objects.labels is not None:
            found["labels"] = np.array([self.categories.index(label, where) for label in objects.labels], np.int64)
        count = 0 if objects is None else len(objects)
        missing = [name for name in self.values if name not in found]
        if wrong := [name for name in missing if count and name not in FLAGS]:
            message = f"expected objects with {wrong[0]}, as others have, found {', '.join(found)}."
            raise SourceError(Problem(where, "annotation", message), "Give all objects the same values.")
        return found | {name: [] if name in LISTS else self._empty(name, count) for name in missing}

    def _empty(self, name: str, count: int) -> Any:
        dtype, shape = OBJECT_VALUES[name]
        return np.zeros((count, *(self.keypoints if n == "K" else n for n in shape)), dtype)


def _labels_in(value: object, name: str) -> list[Label] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise FormError(f"expected {name}, a list of numbers or names, found {kind(value)}")
    labels = [label_of(each, name) for each in value]
    if None in labels or UNLABELLED in labels:
        raise FormError(f"expected {name}, a list of numbers or names, found none among them")
    return [each for each in labels if each is not None]
