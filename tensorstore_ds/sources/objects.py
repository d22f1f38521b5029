"""Annotated objects as the rows of a table: which names occur in them, and the arrays of one sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.sources.base import FLAGS, Objects, SourceOptions
from tensorstore_ds.sources.names import absent_keypoints, choose_keypoints, order_classes
from tensorstore_ds.sources.xml import Place


@dataclass(frozen=True, slots=True)
class AnnotatedObject:
    """One object as an annotation has it."""

    label: str  #: its class; "" where it has none
    box: tuple[float, float, float, float]  #: x1 y1 x2 y2 in pixels, as written
    flags: Mapping[str, int]  #: those of `FLAGS` that it has, 0 or 1
    keypoints: Mapping[str, Place]  #: NaN NaN where one is absent


class ObjectTable:
    """What the objects of a source have: collected by the scan, and in the order in which it is stored afterwards.

    Attributes:
        classes, keypoints: names, and after `field` their places in the store.
        flags: those of `FLAGS` that some object has.
    """

    def __init__(self) -> None:
        self.classes: dict[str, int] = {}
        self.keypoints: dict[str, int] = {}
        self.flags: set[str] = set()
        self._labelled = False

    def note(self, objects: Iterable[AnnotatedObject]) -> None:
        """Take in the names that objects have."""
        for each in objects:
            if each.label:
                self.classes.setdefault(each.label, len(self.classes))
            for name in each.keypoints:
                self.keypoints.setdefault(name, len(self.keypoints))
            self.flags.update(each.flags)

    @classmethod
    def union(cls, tables: Iterable[ObjectTable]) -> ObjectTable:
        """The names of all of the tables."""
        union = cls()
        for table in tables:
            union.classes |= table.classes
            union.keypoints |= table.keypoints
            union.flags |= table.flags
        return union

    def field(self, options: SourceOptions, where: str, *, labelled: bool) -> ObjectsField:
        """The field, its names ordered as the options say; with `labelled` each object has a class."""
        self._labelled = labelled
        classes = order_classes(self.classes, options.classes, where) if labelled else ()
        keypoints = choose_keypoints(self.keypoints, options.keypoints, where)
        self.classes = {name: i for i, name in enumerate(classes)}
        self.keypoints = {name: i for i, name in enumerate(keypoints.names)}
        names = ["boxes"] + ["labels"] * labelled + ["keypoints"] * bool(self.keypoints)
        names += [flag for flag in FLAGS if flag in self.flags]
        return ObjectsField.of(*names, classes=classes, keypoints=keypoints.names, flip_pairs=keypoints.flip_pairs)

    def arrays(self, objects: Sequence[AnnotatedObject], where: str) -> Objects:
        """The objects of one sample, which errors name `where`."""
        keypoints = absent_keypoints(len(objects), len(self.keypoints), where)
        for row, each in zip(keypoints, objects, strict=True):
            if each.keypoints:
                row[[self.keypoints[name] for name in each.keypoints]] = list(each.keypoints.values())
        arrays: dict[str, NDArray[Any]] = {"boxes": np.array([each.box for each in objects], np.float64).reshape(-1, 4)}
        if self._labelled:
            arrays["labels"] = np.array([self.classes[each.label] for each in objects], np.int64)
        if self.keypoints:
            arrays["keypoints"] = keypoints
        flags = {flag: np.array([each.flags.get(flag, 0) for each in objects], np.uint8) for flag in self.flags}
        return arrays | flags
