"""Pascal VOC: an XML file for each image, with boxes and perhaps keypoints: formats/sources/voc.md."""

from __future__ import annotations

import contextlib
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import is_dir, status_of
from tensorstore_ds.sources.annotations import AnnotatedSource, Row, unpack
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample
from tensorstore_ds.sources.files import PackedStrings, encoding_problem, walk_files
from tensorstore_ds.sources.forms import noted
from tensorstore_ds.sources.images import ImageIndex, note_of_folders, stem_of
from tensorstore_ds.sources.mask_folders import find_mask_folders
from tensorstore_ds.sources.voc.annotation import read_annotation
from tensorstore_ds.sources.voc.layout import ANNOTATIONS, Layout, VocSplits, find_layout, find_splits, image_folders
from tensorstore_ds.sources.xml import folder_roots

_NONE = -1
_MASKS = ("SegmentationClass", "SegmentationObject")
_MASKS_TOO = 'There are also masks, which are not stored; boxes are. For the masks, convert with `format="masks"`.'


class VocSource(AnnotatedSource):
    """A reference has the path of the XML file as well."""

    name: ClassVar[str] = "voc"

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether some folder has XML files with the root ``annotation``, and none with imglab's root."""
        return is_dir(path) and {"annotation"} in folder_roots(path)

    def scan(self) -> Contents:
        """Read every XML file once, for classes, keypoints, flags and errors."""
        layout = find_layout(self.path)
        walk = walk_files(self.path / layout.annotations, {".xml"})
        xmls = PackedStrings(layout.annotations + xml for xml in walk)
        if not xmls:
            message = f"expected XML files in {layout.annotations or 'this folder'} or below, found none."
            raise SourceError(Problem(str(self.path), "empty-source", message), "Name a folder that holds some.")
        splits = find_splits(self.path, layout, xmls)
        self.ledger.use(*splits.lists)
        prefix = "" if self.options.images is not None else layout.images
        pairs = find_mask_folders(self.path)
        apart = tuple(pair.masks for pair in pairs) if self.options.images is None else ()
        paths = (prefix + path for path in walk_files(self.images / prefix, IMAGE_SUFFIXES))
        images = ImageIndex(path for path in paths if not path.startswith(apart))
        row_of = self._match(xmls, images, layout, splits)
        splits.left_out += self._beside(layout)
        every = self._annotations.rows
        references = {
            name: PackedStrings(every[row_of[i]] for i in rows if row_of[i] != _NONE)
            for name, rows in splits.rows.items()
        }
        references = {name: paths for name, paths in references.items() if paths}
        if not references:
            raise SourceError(splits.problems)
        classes = self._annotations.classes
        if not classes:
            splits.notes += ("no annotation has an <object>: all images are stored without objects.",)
        used = (path for paths in references.values() for path in paths)
        splits.notes += note_of_folders((path.partition("\0")[0] for path in used), classes)
        notes = (*splits.notes, *([_MASKS_TOO] if pairs else []))
        self._annotations.problems, self._annotations.left_out = splits.problems, splits.left_out
        return self._contents(references, notes)

    def read(self, split: str, reference: Reference) -> Sample:
        image, row = unpack(reference)
        xml, stamp = row.texts
        if _stamp(self.path / xml) != stamp:  # changed since the scan, or a copy of a source that was planned elsewhere
            annotation = read_annotation(self.path / xml, xml, self.ledger)
            row = Row.of(annotation.objects, annotation.size)
        return replace(self._sample(image, row), annotation=xml)

    def files(self, reference: Reference) -> tuple[str, ...]:
        image, row = unpack(reference)
        return (f"{self.images}/{image}", f"{self.path}/{row.texts[0]}")

    def _beside(self, layout: Layout) -> list[Problem]:
        """XML files and images outside of the folders of the data set, except its masks."""
        if not layout.annotations or self.options.images is not None:
            return []  # all XML files are looked at; images lie elsewhere
        base = layout.annotations.removesuffix(f"{ANNOTATIONS}/")
        inside = (layout.images, *(f"{base}{folder}/" for folder in _MASKS))
        message = "not stored: it lies outside of the folders of this data set."
        beside: list[Problem] = []
        with noted(beside):  # such as a folder that is no part of the data set
            for path in walk_files(self.path, IMAGE_SUFFIXES | {".xml"}):
                if not path.startswith(layout.annotations if path.lower().endswith(".xml") else inside):
                    beside.append(Problem(path, "not-listed", message))
        return beside

    def _near(self, layout: Layout, xml: str) -> Sequence[str]:
        """Folders searched first for the image of an XML file."""
        if self.options.images is None:
            return image_folders(xml)
        return xml[len(layout.annotations) : xml.rfind("/") + 1], ""

    def _has_own_image(self, xml: str, images: ImageIndex, layout: Layout) -> bool:
        """Whether an image has the XML file's own name."""
        try:
            return stem_of(images.paths[images.find("", xml, self._near(layout, xml))]) == stem_of(xml)
        except SourceError as error:
            return error.reason == "ambiguous-image"

    def _match(self, xmls: Sequence[str], images: ImageIndex, layout: Layout, splits: VocSplits) -> array[int]:
        """Read the annotations of all splits, and report all other files.

        Returns the row of each sound XML file, and `_NONE` for the others.
        """
        row_of = array("q", [_NONE]) * len(xmls)
        # by image: the first XML file that it belongs to; of one that is not sound, any number
        claimed_by = array("q", [_NONE]) * len(images.paths)
        wanted = np.zeros(len(xmls), np.bool_)
        wanted[np.concatenate([*splits.rows.values()])] = True
        repeated: dict[str, str] = {}  # XML files that name the image of another one, and that image
        stale: list[str] = []  # XML files that name another image than the one of their own name
        unsound = [*splits.missing]  # they may claim an image only after all sound annotations have theirs
        for i, xml in enumerate(xmls):
            try:
                if not wanted[i]:
                    splits.left_out.append(Problem(xml, "not-listed", splits.unlisted))
                    unsound.append(xml)
                    continue
                stamp = _stamp(self.path / xml)
                annotation = read_annotation(self.path / xml, xml, self.ledger)
                image = images.find(annotation.filename, xml, self._near(layout, xml))
                path = images.paths[image]
                if problem := encoding_problem(path):
                    raise SourceError(problem)
                if claimed_by[image] != _NONE:
                    repeated[xml] = path
                    message = f"expected an image of its own, found {path}, which {xmls[claimed_by[image]]} has."
                    raise SourceError(Problem(xml, "duplicate-key", f"{message} Correct <filename> in one of them."))
            except SourceError as error:
                splits.problems += error.problems
                unsound.append(xml)
                continue
            claimed_by[image] = i
            row_of[i] = self._annotations.add(path, annotation.objects, annotation.size, xml, stamp, file=xml)
            if stem_of(path) != stem_of(xml) and self._has_own_image(xml, images, layout):
                stale.append(f"{xml}: {path}")
        if stale:
            which = "1 XML file names" if len(stale) == 1 else f"{len(stale):,} XML files name"
            message = f"{which} another image than the one of their own name, such as {stale[0]}."
            splits.notes += (f"{message} <filename> counts: correct it, or remove it, if files were renamed.",)
        for xml in unsound:
            with contextlib.suppress(SourceError):  # there is no such image, or it cannot be told: nothing to mark
                image = images.find("", xml, self._near(layout, xml))
                if xml in repeated and claimed_by[image] == _NONE:
                    message = f"not stored: its annotation {xml} names {repeated[xml]} as its image."
                    splits.left_out.append(Problem(images.paths[image], "not-listed", message))
                claimed_by[image] = 0
        for path in itertools.compress(images.paths, (by == _NONE for by in claimed_by)):
            if splits.lists:
                splits.left_out.append(Problem(path, "not-listed", splits.unlisted))
            else:
                message = "expected an annotation, found none. Add one (without objects if it shows none) or remove it."
                splits.problems.append(Problem(path, "no-annotation", message))
        return row_of


def _stamp(path: Path) -> str:
    """Size and time of change of a file, as a text; empty if it is missing."""
    try:
        status = status_of(path)
    except OSError:
        return ""
    return f"{status.st_size},{status.st_mtime_ns}"
