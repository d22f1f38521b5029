"""dlib's imglab: XML files that list images, with boxes and numbered or named parts: formats/sources/imglab.md."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import Keypoints, TableField, objects_field
from tensorstore_ds.regular_files import unreadable
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Objects, Reference, Sample, SourceOptions
from tensorstore_ds.sources.classes import order_classes
from tensorstore_ds.sources.files import LITTER, PackedStrings, split_name, split_names, walk_files
from tensorstore_ds.sources.imglab_file import FLAGS, NO_LABEL, Columns, Names, read_columns
from tensorstore_ds.sources.keypoints import absent_keypoints, choose_keypoints
from tensorstore_ds.sources.unions import find_unions
from tensorstore_ds.sources.xml import file_root, folder_roots

_SPLITS = ("train", "test", "val")
_NO_LABELS = "expected a label in every box, as in others here, found box {} without. Label it, or remove all labels."


class ImglabSource:
    """A reference is an image's number, counted through all files that are stored."""

    name: ClassVar[str] = "imglab"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path
        self.options = options
        self._root = path  # what the paths of XML files are relative to
        self._files: list[Columns] = []
        self._begins: list[int] = []  # the number of the first image of each file
        self._labels: NDArray[np.int64] = np.zeros(0, np.int64)  # from numbers in Columns.labels to class indices
        self._places: NDArray[np.int64] = np.zeros(0, np.int64)  # from numbers in Columns.part_names to keypoints
        self._values: tuple[str, ...] = ()  # the arrays of objects that are stored

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is an XML file whose root is ``dataset``, or a folder with such files."""
        return file_root(path) == "dataset" if path.is_file() else "dataset" in folder_roots(path)

    def scan(self) -> Contents:
        """Read every XML file: its boxes and parts are kept, as columns."""
        single = self.path.is_file()
        self._root = self.path.parent if single else self.path
        xmls = [self.path.name] if single else list(walk_files(self.path, {".xml"}))
        if not xmls:
            raise SourceError(Problem(str(self.path), "empty-source", "expected XML files, found none."))
        names = Names()
        files: list[Columns] = []
        problems: list[Problem] = []
        for xml in xmls:
            try:
                files.append(read_columns(self._root / xml, xml, self.images, self._folder(xml), names))
            except SourceError as error:
                problems += error.problems
        kept, left_out = _choose(files)
        used = _judge_labels(kept)
        problems += [problem for columns in kept for problem in columns.problems]
        self._files = [columns for columns in kept if used[columns.xml]]
        self._begins = [0, *accumulate(len(columns.images) for columns in self._files)][:-1]
        if not self._files:
            raise SourceError(problems or left_out)
        splits = {
            split: array("q", [begin + i for i in used[columns.xml]])
            for (columns, split), begin in zip(_split_names(self._files), self._begins, strict=True)
        }
        left_out += self._not_listed(files)
        for columns in self._files:  # nothing more that workers would need
            columns.listed, columns.problems = PackedStrings(), []
        fields = {"objects": self._field(names)}
        return Contents(fields, splits, problems=tuple(problems), left_out=tuple(left_out))

    def read(self, split: str, reference: Reference) -> Sample:
        """The path of an image and its objects, out of memory."""
        columns, i = self._find(reference)
        key = columns.images[i]
        height, width = columns.sizes[2 * i : 2 * i + 2]
        size = (height, width) if height and width else None
        return Sample(key, self.images / key, objects=self._objects(columns, i, key), annotated_size=size)

    def key(self, split: str, reference: Reference) -> str:
        """The image's path."""
        columns, i = self._find(reference)
        return columns.images[i]

    def files(self, reference: Reference) -> tuple[Path, ...]:
        """The image."""
        return (self.images / self.key("", reference),)

    def common_files(self) -> tuple[Path, ...]:
        """The XML files: a reference, a number, says nothing of what they hold."""
        return tuple(self._root / columns.xml for columns in self._files)

    @property
    def images(self) -> Path:
        """The folder that the paths of images are relative to."""
        return self._root if self.options.images is None else self.options.images

    def _folder(self, xml: str) -> str:
        return "" if self.options.images is not None else xml[: xml.rfind("/") + 1]

    def _find(self, reference: Reference) -> tuple[Columns, int]:
        at = bisect_right(self._begins, int(reference)) - 1
        return self._files[at], int(reference) - self._begins[at]

    def _objects(self, columns: Columns, i: int, key: str) -> Objects:
        start, stop = columns.starts[i], columns.starts[i + 1]
        keypoints = absent_keypoints(stop - start, int(self._places.max(initial=-1)) + 1, key)
        for row, box in enumerate(range(start, stop)):
            a, b = columns.part_starts[box], columns.part_starts[box + 1]
            places = np.asarray(columns.part_places[2 * a : 2 * b], np.float64).reshape(-1, 2)
            keypoints[row, self._places[columns.part_names[a:b]]] = places
        arrays = {flag: np.frombuffer(columns.flags[flag][start:stop], np.uint8) for flag in FLAGS}
        stored = {flag: values for flag, values in arrays.items() if flag in self._values}
        return Objects(
            np.asarray(columns.boxes[4 * start : 4 * stop], np.float64).reshape(-1, 4),
            self._labels[columns.labels[start:stop]] if "labels" in self._values else None,
            keypoints if "keypoints" in self._values else None,
            difficult=stored.get("difficult"),
            truncated=stored.get("truncated"),
            occluded=stored.get("occluded"),
        )

    def _field(self, names: Names) -> TableField:
        labels, parts = (
            _used(all_names, [getattr(columns, column) for columns in self._files])
            for all_names, column in ((names.labels, "labels"), (names.parts, "part_names"))
        )
        where = str(self.path)
        classes = order_classes(labels, self.options.classes, where) if labels else ()
        keypoints = choose_keypoints(parts, self.options.keypoints, where) if parts else Keypoints(())
        self._labels = _numbers(names.labels, classes)
        self._places = _numbers(names.parts, keypoints.names)
        seen = {flag for columns in self._files for flag in columns.seen}
        given = {"labels": bool(classes), "keypoints": bool(parts), **{flag: flag in seen for flag in FLAGS}}
        self._values = ("boxes", *(name for name, is_given in given.items() if is_given))
        return objects_field(*self._values, classes=classes, keypoints=keypoints.names, flip_pairs=keypoints.flip_pairs)

    def _not_listed(self, files: Sequence[Columns]) -> list[Problem]:
        """The images that lie in the same folders as listed ones, and that no file lists."""
        listed = {image for columns in files for image in columns.listed}
        left_out = []
        for folder in sorted({image[: image.rfind("/") + 1] for image in listed}):
            try:
                names = sorted(entry.name for entry in (self.images / folder).iterdir())
            except FileNotFoundError:
                continue  # its images are reported already
            except OSError as error:
                raise SourceError(unreadable(folder or str(self.images), error)) from error
            for path in (folder + name for name in names if name[0] != "." and name.lower() not in LITTER):
                if PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES and path not in listed:
                    left_out.append(Problem(path, "not-listed", "not stored: no XML file lists it."))
        return left_out


def _choose(files: Sequence[Columns]) -> tuple[list[Columns], list[Problem]]:
    """The files that become splits: not those that repeat what others have."""
    kept: list[Columns] = []
    left_out: list[Problem] = []
    for columns in sorted(files, key=lambda each: each.richness, reverse=True):
        other = next((each for each in kept if _same_images(each, columns)), None)
        if not len(columns.listed):
            left_out.append(Problem(columns.xml, "empty-split", "not stored: it lists no images."))
        elif other is None:
            kept.append(columns)
        else:
            parts, boxes = other.richness
            message = f"not stored: {other.xml} lists the same images, with {boxes} boxes and {parts} parts."
            left_out.append(Problem(columns.xml, "no-more-annotated", message))
    numbers: dict[str, int] = {}
    rows = {each.xml: np.array([numbers.setdefault(i, len(numbers)) for i in each.listed]) for each in kept}
    by_name = {each.xml: each for each in kept}
    for xml, parts_of in find_unions(rows).items():
        richness = np.sum([by_name[part].richness for part in parts_of], axis=0)
        if (richness >= by_name[xml].richness).all():
            message = f"not stored twice: it is the union of {', '.join(parts_of)}."
            left_out.append(Problem(xml, "split-union", message))
            kept.remove(by_name[xml])
    return sorted(kept, key=lambda each: each.xml), left_out


def _same_images(a: Columns, b: Columns) -> bool:
    return len(a.listed) == len(b.listed) and sorted(a.listed) == sorted(b.listed)


def _judge_labels(files: Sequence[Columns]) -> dict[str, list[int]]:
    """The images of each file that can be stored; where some box has a label, those whose boxes all have one."""
    labelled = any(max(columns.labels, default=NO_LABEL) > NO_LABEL for columns in files)
    used: dict[str, list[int]] = {}
    for columns in files:
        labels = np.asarray(columns.labels)
        bare = np.flatnonzero(labels == NO_LABEL) if labelled else np.zeros(0, np.int64)
        images = np.searchsorted(np.asarray(columns.starts), bare, "right") - 1
        first = dict(zip(images[::-1].tolist(), bare[::-1].tolist(), strict=True))
        for i in sorted(first):
            message = f"{columns.xml}: {_NO_LABELS.format(first[i] - columns.starts[i] + 1)}"
            columns.problems.append(Problem(columns.images[i], "annotation", message))
        used[columns.xml] = [i for i in range(len(columns.images)) if i not in first]
    return used


def _split_names(files: Sequence[Columns]) -> list[tuple[Columns, str]]:
    """Each file with the name of its split: what its stem begins with, or its stem, or its path."""
    paths = [PurePosixPath(columns.xml).with_suffix("") for columns in files]
    short = [next((s for s in _SPLITS if path.name.lower().startswith(s)), "") for path in paths]
    if len(files) == 1:
        return [(files[0], short[0] or "train")]
    stems = [split_name(path.name) for path in paths]
    names = [
        s if s and short.count(s) == 1 and s not in stems[:i] + stems[i + 1 :] else "" for i, s in enumerate(short)
    ]
    names = [name or stem for name, stem in zip(names, stems, strict=True)]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    texts = [str(path) if name in repeated else name for path, name in zip(paths, names, strict=True)]
    final = split_names(texts)
    return [(columns, final[text]) for columns, text in zip(files, texts, strict=True)]


def _used(names: dict[str, int], columns: Sequence[array[int]]) -> list[str]:
    """The names whose numbers occur in one of the columns."""
    marks = np.zeros(len(names) + 1, bool)  # the last one for NO_LABEL
    for column in columns:
        marks[np.frombuffer(column, column.typecode)] = True
    return [name for name, n in names.items() if marks[n]]


def _numbers(names: dict[str, int], order: Sequence[str]) -> NDArray[np.int64]:
    """For each name's number its place in `order`, -1 for one that is not in it."""
    places = {name: i for i, name in enumerate(order)}
    return np.array([places.get(name, -1) for name in names], np.int64)


SOURCE = ImglabSource
