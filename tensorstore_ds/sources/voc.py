"""Pascal VOC: an XML file an image, with boxes and perhaps landmarks: formats/sources/voc.md."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import Keypoints, TableField, objects_field
from tensorstore_ds.sources.base import Contents, Objects, Reference, Sample, SourceOptions
from tensorstore_ds.sources.classes import order_classes
from tensorstore_ds.sources.files import PackedStrings, encoding_problem, walk_files
from tensorstore_ds.sources.keypoints import absent_keypoints, choose_keypoints
from tensorstore_ds.sources.voc_annotation import FLAGS, AnnotatedObject, Annotation, read_annotation
from tensorstore_ds.sources.voc_images import Images
from tensorstore_ds.sources.voc_layout import Layout, Splits, find_layout, find_splits, image_folders
from tensorstore_ds.sources.xml import folder_roots

_NO_IMAGE = -1


class VocSource:
    """A reference is the path of an XML file and that of its image, with a NUL between, which no path can hold."""

    name: ClassVar[str] = "voc"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path
        self.options = options
        self._classes: dict[str, int] = {}
        self._keypoints: dict[str, int] = {}
        self._flags: tuple[str, ...] = ()  # those of FLAGS that occur

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the folder has XML files whose root is ``annotation``, and none whose root is imglab's."""
        return path.is_dir() and folder_roots(path) == {"annotation"}

    def scan(self) -> Contents:
        """Read every XML file once: for the classes, the landmarks and the flags that there are, and for its faults."""
        layout = find_layout(self.path)
        walk = walk_files(self.path / layout.annotations, {".xml"})
        xmls = PackedStrings(layout.annotations + xml for xml in walk)
        if not xmls:
            message = f"expected XML files in {layout.annotations or 'this folder'} or below, found none."
            raise SourceError(Problem(str(self.path), "empty-source", message), "Name a folder that holds some.")
        splits = find_splits(self.path, layout, xmls)
        survey = _Survey(self, layout, xmls)
        survey.read(splits)
        references = {name: PackedStrings(survey.references(rows)) for name, rows in splits.rows.items()}
        references = {name: found for name, found in references.items() if found}
        problems = (*splits.problems, *survey.problems)
        if not references:
            raise SourceError(problems)
        left_out = (*splits.left_out, *survey.left_out)
        return Contents({"objects": self._field(survey)}, references, problems=problems, left_out=left_out)

    def read(self, split: str, reference: Reference) -> Sample:
        """The objects of one XML file, and the path of its image."""
        xml, _, image = str(reference).partition("\0")
        annotation = read_annotation(self.path / xml, xml)
        for found in annotation.objects:
            if found.name not in self._classes or not self._keypoints.keys() >= found.points.keys():
                message = f"expected what the scan found, found a new class or landmark in {found.name}."
                raise SourceError(Problem(xml, "annotation", f"{message} Do not change a source while it is read."))
        return Sample(
            image, self.images / image, objects=self._objects(annotation, xml), annotated_size=annotation.size
        )

    def key(self, split: str, reference: Reference) -> str:
        """The image's path."""
        return str(reference).partition("\0")[2]

    def files(self, reference: Reference) -> tuple[Path, ...]:
        """The XML file and the image."""
        xml, _, image = str(reference).partition("\0")
        return (self.path / xml, self.images / image)

    def common_files(self) -> tuple[Path, ...]:
        """None: the lists of splits only say which samples there are."""
        return ()

    @property
    def images(self) -> Path:
        """The folder that the paths of images are relative to."""
        return self.path if self.options.images is None else self.options.images

    def _field(self, survey: _Survey) -> TableField:
        classes = order_classes(survey.classes, self.options.classes, str(self.path))
        self._classes = {name: i for i, name in enumerate(classes)}
        keypoints = Keypoints(())
        if survey.keypoints:
            keypoints = choose_keypoints(survey.keypoints, self.options.keypoints, str(self.path))
        self._keypoints = {name: i for i, name in enumerate(keypoints.names)}
        self._flags = tuple(flag for flag in FLAGS if flag in survey.flags)
        values = ("boxes", "labels", *(["keypoints"] if self._keypoints else []), *self._flags)
        return objects_field(*values, classes=classes, keypoints=keypoints.names, flip_pairs=keypoints.flip_pairs)

    def _objects(self, annotation: Annotation, xml: str) -> Objects:
        found = annotation.objects
        boxes = np.array([each.box for each in found], np.float64).reshape(-1, 4)
        labels = np.array([self._classes[each.name] for each in found], np.int64)
        flags = {f: np.array([each.flags.get(f, 0) for each in found], np.uint8) for f in self._flags}
        keypoints = absent_keypoints(len(found), len(self._keypoints), xml)
        for row, each in zip(keypoints, found, strict=True):
            for name, place in each.points.items():
                row[self._keypoints[name]] = place
        return Objects(
            boxes,
            labels,
            keypoints if self._keypoints else None,
            difficult=flags.get("difficult"),
            truncated=flags.get("truncated"),
            occluded=flags.get("occluded"),
        )


class _Survey:
    """What all annotations hold together, and which image each of them has."""

    def __init__(self, source: VocSource, layout: Layout, xmls: Sequence[str]) -> None:
        self.classes: set[str] = set()
        self.keypoints: set[str] = set()
        self.flags: set[str] = set()
        self.problems: list[Problem] = []
        self.left_out: list[Problem] = []
        self._source, self._layout, self._xmls = source, layout, xmls
        apart = source.options.images is not None
        self._images = Images(source.images, "" if apart else layout.images)
        self._found = array("q", [_NO_IMAGE]) * len(xmls)  # the image of each XML file
        self._claimed = bytearray(len(self._images.paths))  # images that some XML file belongs to, sound or not

    def read(self, splits: Splits) -> None:
        """Read the annotations that belong to a split, and say what becomes of all other files."""
        wanted = np.zeros(len(self._xmls), bool)
        for rows in splits.rows.values():
            wanted[rows] = True
        pending = []  # they may claim an image only after all sound annotations have theirs
        for i, xml in enumerate(self._xmls):
            if not wanted[i]:
                self.left_out.append(Problem(xml, "not-listed", "not stored: no split lists it."))
                pending.append(xml)
                continue
            try:
                self._add(i, xml)
            except SourceError as error:
                self.problems.extend(error.problems)
                pending.append(xml)
        for xml in (*pending, *splits.missing):
            self._claim(xml)
        self._judge_images(splits.listed)

    def references(self, rows: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[str]:
        """Of the XML files with these numbers, those that are sound."""
        images = ((i, self._found[i]) for i in map(int, rows))
        return (f"{self._xmls[i]}\0{self._images.paths[j]}" for i, j in images if j != _NO_IMAGE)

    def _add(self, i: int, xml: str) -> None:
        annotation = read_annotation(self._source.path / xml, xml)
        image = self._images.find(annotation.filename, PurePosixPath(xml).stem, self._folders(xml), xml)
        path = self._images.paths[image]
        if problem := encoding_problem(path):
            raise SourceError(problem)
        if self._claimed[image]:
            other = self._xmls[self._found.index(image)]
            message = (
                f"expected an image of its own, found {path}, which {other} has. Correct <filename> in one of them."
            )
            raise SourceError(Problem(xml, "duplicate-key", message))
        self._claimed[image] = 1
        self._found[i] = image
        for each in annotation.objects:
            self._note(each)

    def _note(self, each: AnnotatedObject) -> None:
        self.classes.add(each.name)
        self.keypoints.update(each.points)
        self.flags.update(each.flags)

    def _claim(self, xml: str) -> None:
        """Mark the image of an XML file that is not stored, so that it is not reported once more."""
        try:
            self._claimed[self._images.find("", PurePosixPath(xml).stem, self._folders(xml), xml)] = 1
        except SourceError:
            return  # there is no such image, or it cannot be told: nothing to mark

    def _folders(self, xml: str) -> tuple[str, ...]:
        if self._source.options.images is None:
            return image_folders(xml)
        below = xml[len(self._layout.annotations) :].rpartition("/")
        return (below[0] + below[1], "")

    def _judge_images(self, listed: bool) -> None:
        for claimed, path in zip(self._claimed, self._images.paths, strict=True):
            if claimed:
                continue
            if listed:
                self.left_out.append(Problem(path, "not-listed", "not stored: no split lists it."))
            else:
                message = (
                    "expected an annotation, found none. Add one (with no object, if there is none), or remove it."
                )
                self.problems.append(Problem(path, "no-annotation", message))


SOURCE = VocSource
