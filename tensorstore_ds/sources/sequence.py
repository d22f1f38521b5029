"""Python objects with ``__len__`` and ``__getitem__``, such as torchvision's data sets: formats/sources/sequence.md.

The module `samples` defines what a single sample may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.regular_files import check_machine
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import encoding_problem
from tensorstore_ds.sources.hugging_face import hugging_face_rows
from tensorstore_ds.sources.names import flip_pairs, number_classes, told_apart
from tensorstore_ds.sources.samples import SampleReader, as_array, parts_of
from tensorstore_ds.sources.splits import notes_of_renamed, split_names


@runtime_checkable
class Indexable(Protocol):
    """A sequence: its length, and its samples by number from 0."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class SequenceSource(Source):
    """A reference is a sample's number. The first sample defines the fields.

    `sequence` has the samples, or the samples of each split. `options.classes` names labels without names.
    """

    name: ClassVar[str] = "sequence"

    def __init__(self, sequence: Indexable | Mapping[str, Indexable], options: SourceOptions) -> None:
        super().__init__(Path("<sequence>"), options)
        sequences = sequence if isinstance(sequence, Mapping) else {"train": sequence}
        self._sequences: Mapping[str, Indexable] = {name: hugging_face_rows(each) for name, each in sequences.items()}
        if options.keypoints is None:
            options = replace(options, keypoints=_own_keypoints(self._sequences.values()))
        self._reader = SampleReader(options, str(self.path))
        self._keys: Mapping[str, list[str]] = {}  # of splits whose samples have some

    def key(self, split: str, reference: Reference) -> str:
        return self._keys[split][int(reference)] if split in self._keys else super().key(split, reference)

    def scan(self) -> Contents:
        """Read the first sample, and the class names and labels that the sequence offers."""
        for name, sequence in self._sequences.items():
            if not isinstance(sequence, Indexable):
                message = f"expected __len__ and __getitem__, found {type(sequence).__name__}."
                raise OptionError(
                    f"{name}: {message} Pass a list or a data set of the map style, or append the samples to a Writer."
                )
        names = split_names(self._sequences)
        self._sequences = {names[name]: sequence for name, sequence in self._sequences.items() if len(sequence)}
        if not self._sequences:
            raise SourceError(Problem(str(self.path), "empty-source", "expected samples, found none."))
        self._keys = {name: keys for name, each in self._sequences.items() if (keys := _own_keys(name, each))}
        split = next(iter(self._sequences))
        parts = parts_of(self.key(split, 0), self._get(split, 0))
        labels: dict[str, NDArray[np.int64]] | None = None
        if parts.label is not None:
            targets = {name: _targets(sequence) for name, sequence in self._sequences.items()}
            known = {name: array for name, array in targets.items() if array is not None}
            labels = known if len(known) == len(targets) else None
        # what a sequence calls its targets need not be the labels of the objects
        asked = parts.may_have_classes and self.options.classes is None
        self._reader.classes = self._class_names(labels) if asked else None
        left_out = self._reader.learn(parts)
        splits = {name: range(len(sequence)) for name, sequence in self._sequences.items()}
        return Contents(self._reader.fields, splits, labels, left_out=left_out, notes=notes_of_renamed(names))

    def read(self, split: str, reference: Reference) -> Sample:
        return self._reader.read(self.key(split, reference), self._get(split, int(reference)))

    def _get(self, split: str, index: int) -> Any:
        sample = item_of(self._sequences[split], index, self.key(split, index))
        return {name: each for name, each in sample.items() if name != "key"} if split in self._keys else sample

    def _class_names(self, labels: Mapping[str, NDArray[np.int64]] | None) -> tuple[str, ...] | None:
        classes = own_classes(self._sequences.values())
        if classes is not None or labels is None:
            return classes
        return number_classes(np.concatenate([*labels.values()]), None, str(self.path))


def item_of(sequence: Indexable, index: int, key: str) -> Any:
    """A sample of a sequence; all exceptions of the sequence become `SourceError` with the `key`."""
    try:
        return sequence[index]
    except Exception as error:  # whatever a stranger's code raises
        check_machine(key, error)
        message = f"its __getitem__({index}) raised {type(error).__name__}: {error}."
        raise SourceError(Problem(key, "unreadable-file", message)) from error


def _own_keys(split: str, sequence: object) -> list[str]:
    """The keys of a list of dicts that all have one, otherwise an empty list: other sequences are not read for it."""
    samples = sequence if isinstance(sequence, list) else []
    found = [each.get("key") if isinstance(each, Mapping) else None for each in samples]
    if not all(isinstance(key, str | int | np.integer) for key in found):
        return []
    keys = list(map(str, found))
    if repeated := next((key for key, n in Counter(keys).items() if n > 1), None):
        message = f"expected keys that differ, found this one twice in {split}."
        raise SourceError(Problem(repeated, "key-text", message), "Give each sample a different key.")
    if other := next(filter(encoding_problem, keys), None):
        message = "expected a key in UTF-8, found other characters."
        raise SourceError(Problem(repr(other), "annotation", message), "Correct the key.")
    return keys


def own_classes(sequences: Iterable[object]) -> tuple[str, ...] | None:
    """Class names in the attribute ``classes`` of the first object that has it."""
    for sequence in sequences:
        classes = getattr(sequence, "classes", None)
        if isinstance(classes, list | tuple) and classes:
            names = [", ".join(map(str, name)) if isinstance(name, list | tuple) else str(name) for name in classes]
            return told_apart(names)
    return None


def _own_keypoints(sequences: Iterable[object]) -> Keypoints | None:
    """Keypoints in the attribute ``keypoints`` of the first object that has it: `Keypoints`, or names."""
    for sequence in sequences:
        keypoints = getattr(sequence, "keypoints", None)
        if isinstance(keypoints, Keypoints):
            return keypoints
        if isinstance(keypoints, list | tuple) and keypoints and all(isinstance(name, str) for name in keypoints):
            return Keypoints(tuple(keypoints), flip_pairs(keypoints))
    return None


def _targets(sequence: Indexable) -> NDArray[np.int64] | None:
    """Labels of all samples, (n,) int64, if a data set offers them as torchvision's do."""
    if getattr(sequence, "target_transform", None) is not None:
        return None
    for name in ("targets", "labels"):
        array = as_array(getattr(sequence, name, None))
        if array is not None and array.shape == (len(sequence),) and array.dtype.kind in "iu":
            return array.astype(np.int64)
    return None
