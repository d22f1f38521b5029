"""dlib's imglab: XML files that list images, with boxes and numbered or named keypoints: formats/sources/imglab.md."""

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
from tensorstore_ds.format.kinds import OBJECT_VALUES, ObjectsField
from tensorstore_ds.regular_files import unreadable
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Objects, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.classes import order_classes
from tensorstore_ds.sources.files import LITTER, PackedStrings, walk_files
from tensorstore_ds.sources.imglab.file import NO_LABEL, Columns, Names, read_columns
from tensorstore_ds.sources.keypoints import absent_keypoints, choose_keypoints
from tensorstore_ds.sources.splits import find_unions, split_name, split_names
from tensorstore_ds.sources.xml import file_root, folder_roots

_SPLITS = ("train", "test", "val")


class ImglabSource(Source):
    """A reference is an image's number, counted through all files that are stored."""

    name: ClassVar[str] = "imglab"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._root = path  # what the paths of XML files are relative to
        self._files: list[Columns] = []
        self._begins: list[int] = []  # the number of the first image of each file
        self._labels: NDArray[np.int64] = np.zeros(0, np.int64)  # from numbers in Columns.labels to class indices
        self._keypoints: NDArray[np.int64] = np.zeros(0, np.int64)  # from numbers in Columns.keypoint_names to places
        self._values: tuple[str, ...] = ()  # the arrays of objects that are stored

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is an XML file whose root is ``dataset``, or a folder with such files."""
        return file_root(path) == "dataset" if path.is_file() else "dataset" in folder_roots(path)

    def scan(self) -> Contents:
        """Read every XML file: its boxes and keypoints are kept, as columns."""
        single = self.path.is_file()
        self._root = self.path.parent if single else self.path
        xmls = [self.path.name] if single else list(walk_files(self.path, {".xml"}))
        if not xmls:
            raise SourceError(Problem(str(self.path), "empty-source", "expected XML files, found none."))
        names = Names()
        files: list[Columns] = []
        problems: list[Problem] = []
        for xml in xmls:
            folder = "" if self.options.images is not None else xml[: xml.rfind("/") + 1]
            try:
                files.append(read_columns(self._root / xml, xml, self.images, folder, names))
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
            for split, columns, begin in zip(_split_names(self._files), self._files, self._begins, strict=True)
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
        return Sample(key, f"{self.images}/{key}", objects=self._objects(columns, i, key), annotated_size=size)

    def key(self, split: str, reference: Reference) -> str:
        """The image's path."""
        columns, i = self._find(reference)
        return columns.images[i]

    def files(self, reference: Reference) -> tuple[str, ...]:
        """The image."""
        return (f"{self.images}/{self.key('', reference)}",)

    def common_files(self) -> tuple[str, ...]:
        """The XML files: a reference, a number, says nothing of what they hold."""
        return tuple(f"{self._root}/{columns.xml}" for columns in self._files)

    @property
    def images(self) -> Path:
        """The folder that the paths of images are relative to."""
        return self.options.images or self._root

    def _find(self, reference: Reference) -> tuple[Columns, int]:
        n = bisect_right(self._begins, int(reference)) - 1
        return self._files[n], int(reference) - self._begins[n]

    def _objects(self, columns: Columns, i: int, key: str) -> Objects:
        start, stop = columns.starts[i], columns.starts[i + 1]
        keypoints = absent_keypoints(stop - start, int(self._keypoints.max(initial=-1)) + 1, key)
        for row, box in enumerate(range(start, stop)):
            a, b = columns.keypoint_starts[box], columns.keypoint_starts[box + 1]
            places = np.asarray(columns.keypoint_places[2 * a : 2 * b], np.float64).reshape(-1, 2)
            keypoints[row, self._keypoints[columns.keypoint_names[a:b]]] = places
        return Objects(
            np.asarray(columns.boxes[4 * start : 4 * stop], np.float64).reshape(-1, 4),
            self._labels[columns.labels[start:stop]] if "labels" in self._values else None,
            keypoints if "keypoints" in self._values else None,
            **{f: np.frombuffer(v[start:stop], np.uint8) for f, v in columns.flags.items() if f in self._values},
        )

    def _field(self, names: Names) -> ObjectsField:
        where = str(self.path)
        labels = _used(names.labels, [columns.labels for columns in self._files])
        classes = order_classes(labels, self.options.classes, where) if labels else ()
        used = _used(names.keypoints, [columns.keypoint_names for columns in self._files])
        keypoints = choose_keypoints(used, self.options.keypoints, where)
        self._labels = _numbers(names.labels, classes)
        self._keypoints = _numbers(names.keypoints, keypoints.names)
        seen = {"boxes"}.union(*(columns.seen for columns in self._files))
        seen.update(["labels"] if classes else [], ["keypoints"] if used else [])
        self._values = tuple(name for name in OBJECT_VALUES if name in seen)
        pairs = keypoints.flip_pairs
        return ObjectsField.of(*self._values, classes=classes, keypoints=keypoints.names, flip_pairs=pairs)

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
    kept: dict[str, Columns] = {}
    left_out: list[Problem] = []
    for columns in sorted(files, key=lambda each: each.richness, reverse=True):
        other = next((each for each in kept.values() if _same_images(each, columns)), None)
        if not columns.listed:
            left_out.append(Problem(columns.xml, "empty-split", "not stored: it lists no images."))
        elif other is None:
            kept[columns.xml] = columns
        else:
            keypoints, boxes = other.richness
            message = f"not stored: {other.xml} lists the same images, with {boxes} boxes and {keypoints} keypoints."
            left_out.append(Problem(columns.xml, "no-more-annotated", message))
    numbers: dict[str, int] = {}
    rows = {xml: np.array([numbers.setdefault(i, len(numbers)) for i in kept[xml].listed]) for xml in kept}
    for xml, parts in find_unions(rows).items():
        richness = np.sum([kept[part].richness for part in parts], axis=0)
        if (richness >= kept[xml].richness).all():
            message = f"not stored twice: it is the union of {', '.join(parts)}."
            left_out.append(Problem(xml, "split-union", message))
            del kept[xml]
    return [kept[xml] for xml in sorted(kept)], left_out


def _same_images(a: Columns, b: Columns) -> bool:
    return len(a.listed) == len(b.listed) and sorted(a.listed) == sorted(b.listed)


def _judge_labels(files: Sequence[Columns]) -> dict[str, list[int]]:
    """The images of each file that can be stored; where some box has a label, those whose boxes all have one."""
    labelled = any(max(columns.labels, default=NO_LABEL) > NO_LABEL for columns in files)
    used: dict[str, list[int]] = {}
    for columns in files:
        labels = np.asarray(columns.labels)
        bare = np.flatnonzero(labels == NO_LABEL) if labelled else np.zeros(0, np.int64)
        images, first = np.unique(np.searchsorted(np.asarray(columns.starts), bare, "right") - 1, return_index=True)
        for i, box in zip(images.tolist(), bare[first].tolist(), strict=True):
            which = f"box {box - columns.starts[i] + 1}"
            message = f"expected a label in every box, as in others here, found {which} without."
            message = f"{columns.xml}: {message} Label it, or remove all labels."
            columns.problems.append(Problem(columns.images[i], "annotation", message))
        unlabelled = set(images.tolist())
        used[columns.xml] = [i for i in range(len(columns.images)) if i not in unlabelled]
    return used


def _split_names(files: Sequence[Columns]) -> list[str]:
    """The name of each file's split: what its stem begins with, or its stem, or its path."""
    paths = [PurePosixPath(columns.xml).with_suffix("") for columns in files]
    short = [next((s for s in _SPLITS if path.name.lower().startswith(s)), "") for path in paths]
    if len(files) == 1:
        return [short[0] or "train"]
    stems = [split_name(path.name) for path in paths]
    unique = [s and short.count(s) == 1 and s not in stems[:i] + stems[i + 1 :] for i, s in enumerate(short)]
    names = [s if is_unique else stem for s, is_unique, stem in zip(short, unique, stems, strict=True)]
    count = Counter(names)
    texts = [str(path) if count[name] > 1 else name for path, name in zip(paths, names, strict=True)]
    final = split_names(texts)
    return [final[text] for text in texts]


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
