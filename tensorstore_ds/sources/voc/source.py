"""Pascal VOC: an XML file for each image, with boxes and perhaps keypoints: formats/sources/voc.md."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import PackedStrings, encoding_problem, walk_files
from tensorstore_ds.sources.objects import ObjectTable
from tensorstore_ds.sources.voc.annotation import read_annotation
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
        self._images = _Images(source.images, "" if self._apart else layout.images)
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


class _Images:
    """The images below ``root / prefix``, in string order, to be found by name."""

    def __init__(self, root: Path, prefix: str = "") -> None:
        self.paths = PackedStrings(prefix + path for path in walk_files(root / prefix, IMAGE_SUFFIXES))
        self._index: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def find(self, filename: str, stem: str, folders: Sequence[str], where: str) -> int:
        """The index in `paths` of an annotation's image, which errors name `where`.

        It is looked for by the name that the annotation gives, of which only the part after the last ``/`` or ``\\``
        counts, in `folders` (``""`` or with a ``/`` at the end) and then everywhere; and after that by the stem of the
        annotation's own file with any suffix, in the same places.
        """
        name = filename.replace("\\", "/").rpartition("/")[2].strip()
        for matches in self._searches(name, stem, folders):
            if len(matches) == 1:
                return matches[0]
            if matches:
                some = ", ".join(self.paths[i] for i in matches[:3]) + (", ..." if len(matches) > 3 else "")
                message = f"expected one image of that name, found {some}. Move the annotation beside its image."
                raise SourceError(Problem(where, "ambiguous-image", message))
        message = f"expected an image named {name or stem} or {stem}.*, found none."
        raise SourceError(Problem(where, "no-image", f"{message} Add it, or name its folder with `images`."))

    def _searches(self, name: str, stem: str, folders: Sequence[str]) -> Iterator[list[int]]:
        own = _stem(name)
        if own:  # every image has a suffix
            for folder in folders:
                yield [i for i in self._in_folder(folder, own) if self.paths[i] == folder + name]
            yield [i for i in self._anywhere(own) if _name(self.paths[i]) == name]
        for folder in folders:
            yield self._in_folder(folder, stem)
        yield self._anywhere(stem)

    def _in_folder(self, folder: str, stem: str) -> list[int]:
        prefix = f"{folder}{stem}."
        i = bisect_left(self.paths, prefix)
        matches = []
        while i < len(self.paths) and (path := self.paths[i]).startswith(prefix):
            if _stem(path) == stem:
                matches.append(i)
            i += 1
        return matches

    def _anywhere(self, stem: str) -> list[int]:
        if self._index is None:  # built when an image is not where it is looked for first
            # hashes in order and their images: 16 bytes a path where a dict takes 200
            hashes: Iterable[int] = (hash(_stem(path)) for path in self.paths)
            unsorted: NDArray[np.int64] = np.fromiter(hashes, np.int64, len(self.paths))
            order = np.argsort(unsorted, kind="stable")
            self._index = unsorted[order], order
        hashed, order = self._index
        start, stop = (int(np.searchsorted(hashed, hash(stem), side)) for side in ("left", "right"))
        return [i for i in map(int, order[start:stop]) if _stem(self.paths[i]) == stem]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _stem(path: str) -> str:
    return _name(path).rpartition(".")[0]
