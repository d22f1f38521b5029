"""Several sources as one, and sources whose classes get other names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import LabelField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.options import meant
from tensorstore_ds.regular_files import is_file
from tensorstore_ds.sources.base import FLAGS, LISTS, Contents, Objects, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import PackedStrings

#: Values of objects that a source need not have where another one has them.
_ADDED = (*FLAGS, *LISTS, "keypoints", "visibility")


class Sources:
    """Several folders or files that are converted into one store; their formats may differ.

    >>> tsds.convert(tsds.Sources("voc", "coco"), "both.tsds")                             # doctest: +SKIP

    Splits of the same name are put together, and classes of the same name are one. Every key begins with the name of
    the folder or file that its sample is from.

    Attributes:
        paths: of the folders or files, two or more.
    """

    def __init__(self, *paths: str | os.PathLike[str]) -> None:
        if len(paths) < 2:
            raise OptionError(f"expected two sources or more, found {len(paths)}. Pass one as it is.")
        self.paths = tuple(Path(path) for path in paths)

    def __str__(self) -> str:
        return " + ".join(map(str, self.paths))


@dataclass(frozen=True, slots=True)
class _Part:
    """What becomes of one source.

    Attributes:
        prefix: of its keys.
        numbers: for each of its fields with classes the new number of each class, -1 for those that are gone, (n,).
        keypoints: for each of its keypoints the new place.
        has: the values of its objects; None: it has no objects.
        is_numbered: whether its references are numbers.
    """

    prefix: str
    numbers: Mapping[str, NDArray[np.int64]]
    keypoints: tuple[int, ...]
    has: frozenset[str] | None
    is_numbered: bool


class JoinedSource(Source):
    """The samples of sources one after the other, with the classes of all of them.

    A reference is the key, the number of its source and the source's own reference behind its path, with NUL between
    them.

    Args:
        sources: none of them scanned; one alone keeps its keys.
        class_map: new names of classes by old ones, in all sources; a class whose new name is empty is removed.
    """

    name: ClassVar[str] = "joined"
    is_scanned_again: ClassVar[bool] = True

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
        self._parts: list[_Part] = []
        self._fields: Mapping[str, Field] = {}

    def scan(self) -> Contents:
        """Scan all of them, and put their classes together.

        Raises:
            SourceError: as of each; or their fields do not go together.
            OptionError: there is no class of a name in `class_map`, or one of their fields would have none.
        """
        contents = [source.scan() for source in self._sources]
        notes = [note for each in contents for note in each.notes]
        self._fields = self._joined_fields(contents, notes)
        self._parts = [self._part(*each) for each in zip(self._prefixes, contents, strict=True)]
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

    def read(self, split: str, reference: Reference) -> Sample:
        key, i, own = self._own(str(reference))
        part = self._parts[i]
        try:
            sample = self._sources[i].read(split, own)
        except SourceError as error:
            raise SourceError([_within(part.prefix, each) for each in error.problems], error.advice) from error
        sample.key = key
        if "label" in self._fields:
            numbers = part.numbers.get("label")
            known = sample.label is not None and sample.label >= 0 and numbers is not None
            sample.label = int(numbers[sample.label]) if known and numbers is not None else UNLABELLED
        field = self._fields.get("objects")
        if isinstance(field, ObjectsField):
            sample.objects = _fitted(sample.objects or {}, field, part)
        return sample

    def key(self, split: str, reference: Reference) -> str:
        return str(reference).partition("\0")[0]

    def column(self, name: str) -> Callable[[str, Reference], str]:
        values = [source.column(name) for source in self._sources]

        def value(split: str, reference: Reference) -> str:
            _, i, own = self._own(str(reference))
            return values[i](split, own)

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
            yield f"{prefix}{source.key(split, own)}\0{i}{rest}"

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
        numbers = self._parts[i].numbers["label"]
        return np.where(labels >= 0, numbers[labels.clip(0)], UNLABELLED)

    def _part(self, prefix: str, contents: Contents) -> _Part:
        numbers: dict[str, NDArray[np.int64]] = {}
        for name, field in contents.fields.items():
            if isinstance(field, LabelField | ObjectsField) and field.classes:
                places = {each: i for i, each in enumerate(_classes(self._fields[name]))}
                new = (self._class_map.get(each, each) for each in field.classes)
                numbers[name] = np.array([places.get(each, -1) for each in new], np.int64)
        own, joined = contents.fields.get("objects"), self._fields.get("objects")
        keypoints = own.keypoints if isinstance(own, ObjectsField) else ()
        places = {each: i for i, each in enumerate(joined.keypoints)} if isinstance(joined, ObjectsField) else {}
        first = next((each[0] for each in contents.splits.values() if len(each)), "")
        has = frozenset(own.values) if isinstance(own, ObjectsField) else None
        return _Part(prefix, numbers, tuple(places[each] for each in keypoints), has, isinstance(first, int))

    def _joined_fields(self, contents: Sequence[Contents], notes: list[str]) -> dict[str, Field]:
        known = {name for each in contents for field in each.fields.values() for name in _classes(field)}
        if unknown := [name for name in self._class_map if name not in known]:
            there = ", ".join(sorted(known)[:10]) + (", ..." if len(known) > 10 else "")
            message = f"expected classes of the source ({there or 'it has none'}), found {unknown[0]!r}."
            raise OptionError(f"`class_map`: {message}{meant(unknown[0], sorted(known))}")
        names = dict.fromkeys(name for each in contents for name in each.fields)
        fields: dict[str, Field] = {}
        for name in names:
            own = [each.fields.get(name) for each in contents]
            first = next(field for field in own if field is not None)
            classes = tuple(
                dict.fromkeys(new for field in own for old in _classes(field) if (new := self._class_map.get(old, old)))
            )
            if isinstance(first, LabelField | ObjectsField) and first.classes and not classes:
                raise OptionError(f"`class_map`: expected classes that stay in {name}, found none.")
            if isinstance(first, LabelField):
                without = [source.path.name for field, source in zip(own, self._sources, strict=True) if field is None]
                notes += [f"{each} has no labels: its samples are stored without one." for each in without]
                fields[name] = replace(first, classes=classes)
            elif isinstance(first, ObjectsField):
                fields[name] = self._joined_objects(own, classes, notes)
            elif isinstance(first, TextField):
                fields[name] = first
            else:
                fields[name] = self._same(name, own)
        return fields

    def _joined_objects(self, own: Sequence[Field | None], classes: tuple[str, ...], notes: list[str]) -> ObjectsField:
        """The objects of all sources: a value that only some have is empty, absent or 0 in the others."""
        fields = [field for field in own if isinstance(field, ObjectsField)]
        for field, source in zip(own, self._sources, strict=True):
            if field is None:
                notes.append(f"{source.path.name} has no objects: its images are stored as images without any.")
            elif isinstance(field, ObjectsField) and bool(field.classes) != bool(classes):
                message = "expected objects with classes, as another source has them, found objects without."
                raise SourceError(Problem(str(source.path), "fields-differ", message), "Convert it alone.")
        names = tuple(dict.fromkeys(name for field in fields for name in field.keypoints))
        places = {name: i for i, name in enumerate(names)}
        pairs, skeleton = (
            tuple(
                dict.fromkeys(
                    (places[field.keypoints[a]], places[field.keypoints[b]])
                    for field in fields
                    for a, b in (field.flip_pairs if what == "pairs" else field.skeleton)
                )
            )
            for what in ("pairs", "skeleton")
        )
        flat = [place for pair in pairs for place in pair]
        if len(set(flat)) != len(flat):
            message = "expected the same pairs of keypoints in all sources, found others."
            raise SourceError(Problem(str(self.path), "fields-differ", message), "Name them with `keypoints`.")
        values = list(dict.fromkeys(value for field in fields for value in field.values))
        for value in [value for value in values if value not in _ADDED]:
            without = [
                source.path.name
                for field, source in zip(own, self._sources, strict=True)
                if isinstance(field, ObjectsField) and value not in field.values
            ]
            if without and value == "area":
                values.remove(value)
                notes.append(f"objects of {without[0]} have no area, so that of the others is not stored.")
            elif without:
                message = f"expected objects with {value}, as another source has them, found none."
                raise SourceError(Problem(without[0], "fields-differ", message), "Convert it alone.")
        return ObjectsField.of(*values, classes=classes, keypoints=names, flip_pairs=pairs, skeleton=skeleton)

    def _same(self, name: str, own: Sequence[Field | None]) -> Field:
        first = own[0]
        for field, source in zip(own, self._sources, strict=True):
            if first is None or field != first:
                described = ["none" if each is None else each.describe() for each in (first, field)]
                message = f"expected the same field {name} in all sources, found {described[1]}, not {described[0]}."
                raise SourceError(Problem(str(source.path), "fields-differ", message), "Convert it alone.")
        assert first is not None  # noqa: S101  # or it was refused
        return first


def _within(prefix: str, problem: Problem) -> Problem:
    return replace(problem, where=prefix + problem.where) if not problem.where.startswith("/") else problem


def _classes(field: Field | None) -> tuple[str, ...]:
    return field.classes if isinstance(field, LabelField | ObjectsField) else ()


def _fitted(objects: Objects, field: ObjectsField, part: _Part) -> Objects:
    """Objects of one source as those of all: with other class numbers, and with the values that others have."""
    count = len(next(iter(objects.values()), ()))
    keep = np.ones(count, np.bool_)
    values: dict[str, Any] = {}
    for name in field.values:
        value = objects.get(name)
        if name == "labels" and value is not None:
            value = part.numbers["objects"][np.asarray(value, np.int64)]
            keep = value >= 0
        elif name in ("keypoints", "visibility"):
            shape = (count, len(field.keypoints), 2) if name == "keypoints" else (count, len(field.keypoints))
            filled = np.full(shape, np.nan) if name == "keypoints" else np.zeros(shape, np.uint8)
            if value is not None:
                filled[:, list(part.keypoints)] = value
            elif name == "visibility" and "keypoints" in objects:  # labelled and seen, for all that is known
                filled[:, list(part.keypoints)] = 2 * ~np.isnan(objects["keypoints"]).any(axis=2)
            value = filled
        elif value is None and name in LISTS:
            value = [np.empty((0, 2)) if name == "polygons" else np.empty(0, np.uint32)] * count
        elif value is None:
            spec = field.values[name]
            value = np.zeros((count, *spec.shape), spec.dtype)
        values[name] = value
    if keep.all():
        return values
    return {
        name: [each for each, kept in zip(value, keep, strict=True) if kept] if isinstance(value, list) else value[keep]
        for name, value in values.items()
    }
