"""Pascal VOC: an XML file for each image, with boxes and perhaps keypoints: formats/sources/voc.md."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import PackedStrings, encoding_problem, walk_files
from tensorstore_ds.sources.objects import ObjectTable
from tensorstore_ds.sources.voc.annotation import read_annotation
from tensorstore_ds.sources.voc.images import Images
from tensorstore_ds.sources.voc.layout import Layout, Splits, find_layout, find_splits, image_folders
from tensorstore_ds.sources.xml import folder_roots

_NO_IMAGE = -1


class VocSource(Source):
    """A reference is the path of an image and that of its XML file, with a NUL between."""

    name: ClassVar[str] = "voc"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.images = options.images or path
        self._table = ObjectTable()

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the folder has XML files whose root is ``annotation``, and none whose root is imglab's."""
        return path.is_dir() and folder_roots(path) == {"annotation"}

    def scan(self) -> Contents:
        """Read every XML file once: for the classes, the keypoints and the flags that there are, and for its faults."""
        layout = find_layout(self.path)
        walk = walk_files(self.path / layout.annotations, {".xml"})
        xmls = PackedStrings(layout.annotations + xml for xml in walk)
        if not xmls:
            message = f"expected XML files in {layout.annotations or 'this folder'} or below, found none."
            raise SourceError(Problem(str(self.path), "empty-source", message), "Name a folder that holds some.")
        splits = find_splits(self.path, layout, xmls)
        survey = _Survey(self, layout, xmls, self._table)
        survey.read(splits)
        references = {name: PackedStrings(survey.references(rows)) for name, rows in splits.rows.items()}
        references = {name: paths for name, paths in references.items() if paths}
        problems = (*splits.problems, *survey.problems)
        if not references:
            raise SourceError(problems)
        left_out = (*splits.left_out, *survey.left_out)
        field = self._table.field(self.options, str(self.path), labelled=True)
        return Contents({"objects": field}, references, problems=problems, left_out=left_out)

    def read(self, split: str, reference: Reference) -> Sample:
        image, _, xml = str(reference).partition("\0")
        annotation = read_annotation(self.path / xml, xml)
        for each in annotation.objects:
            if each.label not in self._table.classes or not self._table.keypoints.keys() >= each.keypoints.keys():
                message = f"expected what the scan found, found a new class or keypoint in {each.label}."
                raise SourceError(Problem(xml, "annotation", f"{message} Do not change a source while it is read."))
        objects = self._table.arrays(annotation.objects, xml)
        return Sample(image, f"{self.images}/{image}", objects=objects, annotated_size=annotation.size)

    def files(self, reference: Reference) -> tuple[str, ...]:
        image, _, xml = str(reference).partition("\0")
        return (f"{self.path}/{xml}", f"{self.images}/{image}")


class _Survey:
    """What all annotations hold together, and which image each of them has."""

    def __init__(self, source: VocSource, layout: Layout, xmls: Sequence[str], table: ObjectTable) -> None:
        self.problems: list[Problem] = []
        self.left_out: list[Problem] = []
        self._root, self._layout, self._xmls, self._table = source.path, layout, xmls, table
        self._apart = source.options.images is not None
        self._images = Images(source.images, "" if self._apart else layout.images)
        self._image_of = array("q", [_NO_IMAGE]) * len(xmls)
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

    def references(self, rows: NDArray[np.int64]) -> Iterator[str]:
        """Of the XML files with these numbers, those that are sound."""
        images = ((i, self._image_of[i]) for i in map(int, rows))
        return (f"{self._images.paths[j]}\0{self._xmls[i]}" for i, j in images if j != _NO_IMAGE)

    def _add(self, i: int, xml: str) -> None:
        annotation = read_annotation(self._root / xml, xml)
        image = self._find(annotation.filename, xml)
        path = self._images.paths[image]
        if problem := encoding_problem(path):
            raise SourceError(problem)
        if self._claimed[image]:
            other = self._xmls[self._image_of.index(image)]
            message = f"expected an image of its own, found {path}, which {other} has."
            raise SourceError(Problem(xml, "duplicate-key", f"{message} Correct <filename> in one of them."))
        self._claimed[image] = 1
        self._image_of[i] = image
        self._table.note(annotation.objects)

    def _claim(self, xml: str) -> None:
        """Mark the image of an XML file that is not stored, so that it is not reported once more."""
        try:
            self._claimed[self._find("", xml)] = 1
        except SourceError:
            return  # there is no such image, or it cannot be told: nothing to mark

    def _find(self, filename: str, xml: str) -> int:
        folders = image_folders(xml)
        if self._apart:
            folders = (xml[len(self._layout.annotations) : xml.rfind("/") + 1], "")
        return self._images.find(filename, PurePosixPath(xml).stem, folders, xml)

    def _judge_images(self, listed: bool) -> None:
        """Report the images that no annotation belongs to."""
        for claimed, path in zip(self._claimed, self._images.paths, strict=True):
            if listed and not claimed:
                self.left_out.append(Problem(path, "not-listed", "not stored: no split lists it."))
            elif not claimed:
                message = "expected an annotation, found none. Add one (without objects if it shows none) or remove it."
                self.problems.append(Problem(path, "no-annotation", message))
