"""Pascal VOC: an XML file for each image, with boxes and perhaps keypoints: formats/sources/voc.md."""

from __future__ import annotations

import contextlib
import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources import masks
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import PackedStrings, encoding_problem, walk_files
from tensorstore_ds.sources.objects import ObjectTable
from tensorstore_ds.sources.voc.annotation import read_annotation
from tensorstore_ds.sources.voc.layout import ANNOTATIONS, Layout, Splits, find_layout, find_splits, image_folders
from tensorstore_ds.sources.xml import folder_roots

_NO_IMAGE = -1
_MASKS = ("SegmentationClass", "SegmentationObject")
_MASKS_TOO = 'There are masks, too, which are not stored: boxes are. For the masks, convert with `format="masks"`.'


class VocSource(Source):
    """A reference is the path of an image and that of its XML file, with a NUL between."""

    name: ClassVar[str] = "voc"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.images = options.images or path
        self._table = ObjectTable()

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether in some folder there are XML files whose root is ``annotation``, and none whose root is imglab's."""
        return path.is_dir() and {"annotation"} in folder_roots(path)

    def scan(self) -> Contents:
        """Read every XML file once: for the classes, the keypoints and the flags that there are, and for its faults."""
        layout = find_layout(self.path)
        walk = walk_files(self.path / layout.annotations, {".xml"})
        xmls = PackedStrings(layout.annotations + xml for xml in walk)
        if not xmls:
            message = f"expected XML files in {layout.annotations or 'this folder'} or below, found none."
            raise SourceError(Problem(str(self.path), "empty-source", message), "Name a folder that holds some.")
        splits = find_splits(self.path, layout, xmls)
        images = _Images(self, layout)
        image_of = self._match(xmls, images, splits)
        splits.left_out += self._beside(layout)
        references = {
            name: PackedStrings(f"{images.paths[image_of[i]]}\0{xmls[i]}" for i in rows if image_of[i] != _NO_IMAGE)
            for name, rows in splits.rows.items()
        }
        references = {name: paths for name, paths in references.items() if paths}
        if not references:
            raise SourceError(splits.problems)
        field = self._table.field(self.options, str(self.path), labelled=True)
        problems, left_out = tuple(splits.problems), tuple(splits.left_out)
        notes = (*splits.notes, *([_MASKS_TOO] if masks.find(self.path) else []))
        return Contents({"objects": field}, references, None, problems, left_out, notes)

    def read(self, split: str, reference: Reference) -> Sample:
        image, _, xml = str(reference).partition("\0")
        annotation = read_annotation(self.path / xml, xml)
        self._table.check(annotation.objects, xml)
        objects = self._table.arrays(annotation.objects, xml)
        return Sample(image, f"{self.images}/{image}", objects=objects, annotated_size=annotation.size, annotation=xml)

    def files(self, reference: Reference) -> tuple[str, ...]:
        image, _, xml = str(reference).partition("\0")
        return (f"{self.path}/{xml}", f"{self.images}/{image}")

    def _beside(self, layout: Layout) -> list[Problem]:
        """The XML files and images of the source that lie outside of the folders of the data set, but its masks."""
        if not layout.annotations or self.options.images is not None:
            return []  # all XML files are looked at; images lie elsewhere
        base = layout.annotations.removesuffix(f"{ANNOTATIONS}/")
        inside = (layout.images, *(f"{base}{folder}/" for folder in _MASKS))
        message = "not stored: it lies outside of the folders of this data set."
        beside = []
        try:
            for path in walk_files(self.path, IMAGE_SUFFIXES | {".xml"}):
                if not path.startswith(layout.annotations if path.lower().endswith(".xml") else inside):
                    beside.append(Problem(path, "not-listed", message))
        except SourceError as error:  # a folder that is no part of the data set
            beside += error.problems
        return beside

    def _match(self, xmls: Sequence[str], images: _Images, splits: Splits) -> array[int]:
        """Read the annotations that belong to a split, and say what becomes of all other files.

        Returns the number of the image of each XML file that is sound, and `_NO_IMAGE` for the others.
        """
        image_of = array("q", [_NO_IMAGE]) * len(xmls)
        is_claimed = bytearray(len(images.paths))  # images that some XML file belongs to, sound or not
        wanted = np.zeros(len(xmls), np.bool_)
        wanted[np.concatenate([*splits.rows.values()])] = True
        unsound = [*splits.missing]  # they may claim an image only after all sound annotations have theirs
        for i, xml in enumerate(xmls):
            try:
                if not wanted[i]:
                    splits.left_out.append(Problem(xml, "not-listed", "not stored: no split lists it."))
                    unsound.append(xml)
                    continue
                annotation = read_annotation(self.path / xml, xml)
                image = images.find(annotation.filename, xml)
                path = images.paths[image]
                if problem := encoding_problem(path):
                    raise SourceError(problem)
                if is_claimed[image]:
                    message = f"expected an image of its own, found {path}, which {xmls[image_of.index(image)]} has."
                    raise SourceError(Problem(xml, "duplicate-key", f"{message} Correct <filename> in one of them."))
            except SourceError as error:
                splits.problems += error.problems
                unsound.append(xml)
                continue
            is_claimed[image] = True
            image_of[i] = image
            self._table.note(annotation.objects)
        for xml in unsound:
            with contextlib.suppress(SourceError):  # there is no such image, or it cannot be told: nothing to mark
                is_claimed[images.find("", xml)] = True
        for path in itertools.compress(images.paths, (not claimed for claimed in is_claimed)):
            if splits.listed:
                splits.left_out.append(Problem(path, "not-listed", "not stored: no split lists it."))
            else:
                message = "expected an annotation, found none. Add one (without objects if it shows none) or remove it."
                splits.problems.append(Problem(path, "no-annotation", message))
        return image_of


class _Images:
    """The images of a source, in string order, to be found by name."""

    def __init__(self, source: VocSource, layout: Layout) -> None:
        self._apart = source.options.images is not None
        self._layout = layout
        prefix = "" if self._apart else layout.images
        self.paths = PackedStrings(prefix + path for path in walk_files(source.images / prefix, IMAGE_SUFFIXES))
        self._index: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def find(self, filename: str, xml: str) -> int:
        """The index in `paths` of the image of an XML file.

        It is looked for by the name that the annotation gives, of which only the part after the last ``/`` or ``\\``
        counts, near the XML file and then everywhere; and after that by the stem of the XML file with any suffix, in
        the same places.
        """
        folders = image_folders(xml)
        if self._apart:
            folders = (xml[len(self._layout.annotations) : xml.rfind("/") + 1], "")
        name, stem = filename.replace("\\", "/").rpartition("/")[2].strip(), _stem(xml)
        for matches in self._searches(name, stem, folders):
            if len(matches) == 1:
                return matches[0]
            if matches:
                some = ", ".join(self.paths[i] for i in matches[:3]) + (", ..." if len(matches) > 3 else "")
                message = f"expected one image of that name, found {some}. Move the annotation beside its image."
                raise SourceError(Problem(xml, "ambiguous-image", message))
        message = f"expected an image named {name or stem} or {stem}.*, found none."
        raise SourceError(Problem(xml, "no-image", f"{message} Add it, or name its folder with `images`."))

    def _searches(self, name: str, stem: str, folders: Sequence[str]) -> Iterator[list[int]]:
        if own := _stem(name):  # every image has a suffix
            for folder in folders:
                yield [i for i in self._in_folder(folder, own) if self.paths[i] == folder + name]
            yield [i for i in self._anywhere(own) if self.paths[i].rpartition("/")[2] == name]
        for folder in folders:
            yield self._in_folder(folder, stem)
        yield self._anywhere(stem)

    def _in_folder(self, folder: str, stem: str) -> list[int]:
        prefix = f"{folder}{stem}."
        places = range(bisect_left(self.paths, prefix), len(self.paths))
        begin_so = itertools.takewhile(lambda i: self.paths[i].startswith(prefix), places)
        return [i for i in begin_so if _stem(self.paths[i]) == stem]

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


def _stem(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[0]
