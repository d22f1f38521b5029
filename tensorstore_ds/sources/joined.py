"""Join several sources, and rename classes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.joining import FieldsDifferError, JoinedFields, Numbers, Side, join_fields
from tensorstore_ds.format.kinds import LabelField, LabelsField, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, of_kind
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.options import meant
from tensorstore_ds.regular_files import is_dir, is_file
from tensorstore_ds.sources.base import Contents, Objects, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.splits import SPLIT_NAMES


class Sources:
    """Several folders or files to convert into one store. Their formats may differ.

    >>> tsds.convert(tsds.Sources("voc", "coco"), "both.tsds", workers=0).rows
    {'train': 6, 'val': 2}
    >>> tsds.open("both.tsds")["val"].key(0)
    'voc/JPEGImages/4.jpg'

    Splits with the same name are joined, and classes with the same name become one class. If all sources are named as
    splits, such as ``photos/train`` and ``photos/val``, and have none, they become these splits. Every key begins with
    the name of the folder or file of its sample.

    Attributes:
        paths: two or more paths of folders or files.
    """

    def __init__(self, *paths: str | os.PathLike[str]) -> None:
        if len(paths) < 2:
            raise OptionError(f"expected two sources or more, found {len(paths)}. Pass one as it is.")
        self.paths = tuple(Path(path) for path in paths)
        real: dict[str, Path] = {}
        for path in self.paths:
            same = real.setdefault(os.path.realpath(path), path)
            if same is not path:
                message = f"expected sources that differ, found {same} and {path}, which are the same."
                raise OptionError(f"{message} Leave one of them out.")

    def __str__(self) -> str:
        return " + ".join(map(str, self.paths))


@dataclass(frozen=True, slots=True)
class _Part:
    """What becomes of one source.

    `numbers` has the new number of each class, (n,), -1 for removed ones, by field. `objects` is its own field.
    """

    prefix: str
    numbers: Mapping[str, NDArray[np.int64]]
    objects: Field | None
    is_numbered: bool


class JoinedSource(Source):
    """Samples of sources in order, with the union of their classes.

    A reference is the key, the number of its source and the source's own reference behind its path, separated by NUL.
    The sources are not scanned yet; a single one keeps its keys. `class_map` maps old class names to new ones in all
    sources; an empty new name removes the class.
    """

    name: ClassVar[str] = "joined"
    is_audited: ClassVar[bool] = False

    def __init__(self, sources: Sequence[Source], options: SourceOptions, class_map: Mapping[str, str]) -> None:
        names = [source.path.stem if is_file(source.path) else source.path.name for source in sources]
        super().__init__(sources[0].path if len(sources) == 1 else Path(" + ".join(names)), options)
        if len(sources) == 1:
            self.name = sources[0].name  # type: ignore[misc]  # of the format that it has
        self._sources = tuple(sources)
        self._class_map = class_map
        is_unique = len(set(names)) == len(names)
        self._prefixes = [f"{name}/" if is_unique else f"{i}-{name}/" for i, name in enumerate(names)]
        if len(sources) == 1:
            self._prefixes = [""]
        self._prefixes = [(options.key_prefix or "") + prefix for prefix in self._prefixes]
        self._parts: list[_Part] = []
        self._is_renamed = False  # whether the only split of each source, train, has the source's name
        self._fields: Mapping[str, Field] = {}
        self._arrays: Mapping[str, NDArray[Any]] = {}  # what stands for an unknown value of each

    def scan(self) -> Contents:
        """Scan all sources and merge their classes; raises `SourceError` if their fields are incompatible.

        Raises `OptionError` if no class has a name in `class_map`, or a field would have no class left.
        """
        contents = [source.contents() for source in self._sources]
        notes = [note for each in contents for note in each.notes]
        contents, own = self._named_splits(contents)
        notes += own + [
            f"{one.path} lies inside {other.path}: its images may be stored twice."
            for one in self._sources
            for other in self._sources
            if other.path in one.path.parents and is_dir(one.path)
        ]
        joined = self._joined(contents)
        notes += joined.notes
        self._fields = joined.fields
        self._arrays = {
            name: row
            for name, field in self._fields.items()
            if name not in {*of_kind(self._fields, LabelField), *of_kind(self._fields, MaskField)}
            if (row := field.unknown_row) is not None
        }
        self._parts = [self._part(*each) for each in zip(self._prefixes, contents, joined.numbers, strict=True)]
        splits: dict[str, PackedStrings] = {}
        labels: dict[str, list[NDArray[np.int64]]] = {}
        for i, each in enumerate(contents):
            for name, listed in each.splits.items():
                splits.setdefault(name, PackedStrings()).extend(self._references(i, name, listed))
                if "label" in self._fields:
                    labels.setdefault(name, []).append(self._labels(i, each, name, len(listed)))
        is_known = all(each.labels is not None or "label" not in each.fields for each in contents)
        known = {name: np.concatenate(arrays) for name, arrays in labels.items()} if is_known and labels else None
        problems, left_out = (
            tuple(
                _within(prefix, problem)
                for prefix, each in zip(self._prefixes, contents, strict=True)
                for problem in (each.problems if what == "problems" else each.left_out)
            )
            for what in ("problems", "left_out")
        )
        return Contents(self._fields, splits, known, problems, left_out, tuple(notes))

    def _named_splits(self, contents: list[Contents]) -> tuple[list[Contents], list[str]]:
        """The contents, and notes. If all sources are named as splits, their only split gets the source's name.

        An example is ``d/train`` and ``d/val``, each of which alone is a data set without splits.
        """
        names = [source.path.name.lower() for source in self._sources]
        is_plain = all(list(each.splits) == ["train"] for each in contents)
        if not is_plain or len(set(names)) < 2 or not SPLIT_NAMES.issuperset(names):
            return contents, []
        self._is_renamed = True
        found = [
            replace(
                each,
                splits={name: each.splits["train"]},
                labels=None if each.labels is None else {name: each.labels["train"]},
            )
            for name, each in zip(names, contents, strict=True)
        ]
        return found, [f"the splits have the names of the sources: {', '.join(dict.fromkeys(names))}."]

    def read(self, split: str, reference: Reference) -> Sample:
        key, i, own = self._own(str(reference))
        part = self._parts[i]
        split = "train" if self._is_renamed else split
        try:
            sample = self._sources[i].read(split, own)
        except SourceError as error:
            raise SourceError([_within(part.prefix, each) for each in error.problems], error.advice) from error
        sample.key = key
        for name in of_kind(self._fields, LabelField):
            label, numbers = sample.arrays.get(name, sample.label if name == "label" else None), part.numbers.get(name)
            known = UNLABELLED if label is None or label < 0 or numbers is None else int(numbers[label])
            if name == "label" and name not in sample.arrays:
                sample.label = known
            else:
                sample.arrays = {**sample.arrays, name: np.array(known)}
        for name, field in of_kind(self._fields, LabelsField).items():
            if name in sample.arrays and (numbers := part.numbers.get(name)) is not None:
                moved = field.renumbered(sample.arrays[name][None], numbers)[0]
                sample.arrays = {**sample.arrays, name: moved}
        if missing := self._arrays.keys() - sample.arrays.keys():
            sample.arrays = {**sample.arrays, **{name: self._arrays[name] for name in missing}}
        if objects := of_kind(self._fields, ObjectsField).get("objects"):
            sample.objects = _fitted(sample.objects or {}, objects, part)
        return sample

    def key(self, split: str, reference: Reference) -> str:
        return str(reference).partition("\0")[0]

    def column(self, name: str) -> Callable[[str, Reference], str]:
        values = [source.column(name) for source in self._sources]

        def value(split: str, reference: Reference) -> str:
            _, i, own = self._own(str(reference))
            return values[i]("train" if self._is_renamed else split, own)

        return value

    def files(self, reference: Reference) -> tuple[str, ...]:
        _, i, own = self._own(str(reference))
        return self._sources[i].files(own)

    def common_files(self) -> tuple[Path, ...]:
        return tuple(path for source in self._sources for path in source.common_files())

    def _references(self, i: int, split: str, listed: Iterable[Reference]) -> Iterator[str]:
        source, prefix = self._sources[i], self._prefixes[i]
        for own in listed:
            rest = f"\0{own}" if not isinstance(own, str) else "" if "\0" not in own else own[own.index("\0") :]
            yield f"{prefix}{source.key('train' if self._is_renamed else split, own)}\0{i}{rest}"

    def _own(self, reference: str) -> tuple[str, int, Reference]:
        """The key, the number of the source, and its own reference."""
        key, number, *rest = reference.split("\0", 2)
        part = self._parts[int(number)]
        if part.is_numbered:
            return key, int(number), int(rest[0])
        return key, int(number), "\0".join([key[len(part.prefix) :], *rest])

    def _labels(self, i: int, contents: Contents, split: str, count: int) -> NDArray[np.int64]:
        labels = None if contents.labels is None else contents.labels.get(split)
        if labels is None:
            return np.full(count, UNLABELLED, np.int64)
        renumbered: NDArray[np.int64] = self._fields["label"].renumbered(labels, self._parts[i].numbers["label"])
        return renumbered

    def _part(self, prefix: str, contents: Contents, numbers: Numbers) -> _Part:
        first = next((each[0] for each in contents.splits.values() if len(each)), "")
        return _Part(prefix, numbers, contents.fields.get("objects"), isinstance(first, int))

    def _joined(self, contents: Sequence[Contents]) -> JoinedFields:
        known = {name for each in contents for field in each.fields.values() for name in field.classes}
        if unknown := [name for name in self._class_map if name not in known]:
            there = ", ".join(sorted(known)[:10]) + (", ..." if len(known) > 10 else "")
            message = f"expected classes of the source ({there or 'it has none'}), found {unknown[0]!r}."
            raise OptionError(f"`class_map`: {message}{meant(unknown[0], sorted(known))}")
        sides = [
            Side(source.path.name, each.fields, sum(map(len, each.splits.values())))
            for source, each in zip(self._sources, contents, strict=True)
        ]
        try:
            joined = join_fields(sides, self._class_map)
        except FieldsDifferError as error:
            problem = Problem(str(self._sources[error.side].path), "fields-differ", error.message)
            raise SourceError(problem, error.advice) from error
        for name, field in joined.fields.items():
            has_classes = any(each.fields[name].classes for each in contents if name in each.fields)
            if field.joins_classes and has_classes and not field.classes:
                raise OptionError(f"`class_map`: expected classes that stay in {name}, found none.")
        return joined


def _within(prefix: str, problem: Problem) -> Problem:
    return replace(problem, where=prefix + problem.where) if not problem.where.startswith("/") else problem


def _fitted(objects: Objects, field: ObjectsField, part: _Part) -> Objects:
    """Renumber the objects of one source, and add the values that others have."""
    count = len(next(iter(objects.values()), ()))
    keep = np.ones(count, np.bool_)
    values = {name: field.value_of(name, part.objects, objects, count) for name in field.values}
    if "labels" in objects:
        values["labels"] = part.numbers["objects"][np.asarray(objects["labels"], np.int64)]
        keep = values["labels"] >= 0
    if keep.all():
        return values
    return {
        name: [each for each, kept in zip(value, keep, strict=True) if kept] if isinstance(value, list) else value[keep]
        for name, value in values.items()
    }
