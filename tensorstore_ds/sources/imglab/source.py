"""dlib's imglab: XML files that list images, with boxes and numbered or named keypoints: formats/sources/imglab.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import unreadable
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import LITTER, PackedStrings, walk_files
from tensorstore_ds.sources.imglab.file import ImageList, read_list, unpack
from tensorstore_ds.sources.objects import ObjectTable
from tensorstore_ds.sources.splits import find_unions, split_name, split_names
from tensorstore_ds.sources.xml import file_root, folder_roots

_SPLITS = ("train", "test", "val")


class ImglabSource(Source):
    """A reference is an image with its objects, as `file.pack` makes it: the workers need no XML."""

    name: ClassVar[str] = "imglab"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._root = path.parent if path.is_file() else path  # what the paths of XML files are relative to
        self._images = options.images or self._root  # what those of images are relative to
        self._table = ObjectTable()

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is an XML file whose root is ``dataset``, or a folder with such files."""
        return file_root(path) == "dataset" if path.is_file() else "dataset" in folder_roots(path)

    def scan(self) -> Contents:
        """Read every XML file."""
        xmls = [self.path.name] if self.path.is_file() else list(walk_files(self.path, {".xml"}))
        if not xmls:
            raise SourceError(Problem(str(self.path), "empty-source", "expected XML files, found none."))
        files: list[ImageList] = []
        problems: list[Problem] = []
        for xml in xmls:
            folder = "" if self.options.images is not None else xml[: xml.rfind("/") + 1]
            try:
                files.append(read_list(self._root / xml, xml, self._images, folder))
            except SourceError as error:
                problems += error.problems
        kept, left_out = _choose(files)
        labelled = any(file.table.classes for file in kept)
        entries = {file.xml: _labelled(file) if labelled else file.entries for file in kept}
        problems += [problem for file in kept for problem in file.problems]
        used = [file for file in kept if entries[file.xml]]
        if not used:
            raise SourceError(problems or left_out)
        self._table = ObjectTable.union(file.table for file in used)
        field = self._table.field(self.options, str(self.path), labelled=bool(self._table.classes))
        splits = {split: entries[file.xml] for split, file in zip(_split_names(used), used, strict=True)}
        left_out += self._not_listed(files)
        return Contents({"objects": field}, splits, problems=tuple(problems), left_out=tuple(left_out))

    def read(self, split: str, reference: Reference) -> Sample:
        """The path of an image and its objects."""
        image, size, objects = unpack(str(reference))
        arrays = self._table.arrays(objects, image)
        return Sample(image, f"{self._images}/{image}", objects=arrays, annotated_size=size if all(size) else None)

    def key(self, split: str, reference: Reference) -> str:
        """The image's path."""
        return str(reference).partition("\0")[0]

    def files(self, reference: Reference) -> tuple[str, ...]:
        """The image. The XML file is no common file: a reference holds all that it says of its sample."""
        return (f"{self._images}/{self.key('', reference)}",)

    def _not_listed(self, files: Sequence[ImageList]) -> list[Problem]:
        """The images that lie in the same folders as listed ones, and that no file lists."""
        listed = {image for file in files for image in file.listed}
        left_out = []
        for folder in sorted({image[: image.rfind("/") + 1] for image in listed}):
            try:
                names = sorted(entry.name for entry in (self._images / folder).iterdir())
            except FileNotFoundError:
                continue  # its images are reported already
            except OSError as error:
                raise SourceError(unreadable(folder or str(self._images), error)) from error
            for path in (folder + name for name in names if name[0] != "." and name.lower() not in LITTER):
                if PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES and path not in listed:
                    left_out.append(Problem(path, "not-listed", "not stored: no XML file lists it."))
        return left_out


def _choose(files: Sequence[ImageList]) -> tuple[list[ImageList], list[Problem]]:
    """The files that become splits: not those that repeat what others have."""
    kept: dict[str, ImageList] = {}
    left_out: list[Problem] = []
    for file in sorted(files, key=lambda each: each.richness, reverse=True):
        other = next((each for each in kept.values() if _same_images(each, file)), None)
        if not file.listed:
            left_out.append(Problem(file.xml, "empty-split", "not stored: it lists no images."))
        elif other is None:
            kept[file.xml] = file
        else:
            counts = f"{other.boxes} boxes and {other.keypoints} keypoints"
            message = f"not stored: {other.xml} lists the same images, with {counts}."
            left_out.append(Problem(file.xml, "no-more-annotated", message))
    numbers: dict[str, int] = {}
    rows = {xml: np.array([numbers.setdefault(i, len(numbers)) for i in kept[xml].listed]) for xml in kept}
    for xml, parts in find_unions(rows).items():
        richness = np.sum([kept[part].richness for part in parts], axis=0)
        if (richness >= kept[xml].richness).all():
            message = f"not stored twice: it is the union of {', '.join(parts)}."
            left_out.append(Problem(xml, "split-union", message))
            del kept[xml]
    return [kept[xml] for xml in sorted(kept)], left_out


def _same_images(a: ImageList, b: ImageList) -> bool:
    return len(a.listed) == len(b.listed) and sorted(a.listed) == sorted(b.listed)


def _labelled(file: ImageList) -> PackedStrings:
    """The entries whose boxes all have a label; the others become problems of the file."""
    for i, box in file.unlabelled.items():
        message = f"{file.xml}: expected a label in every box, as in others of this source, found box {box} without."
        message = f"{message} Label it, or remove all labels."
        file.problems.append(Problem(file.entries[i].partition("\0")[0], "annotation", message))
    return PackedStrings(entry for i, entry in enumerate(file.entries) if i not in file.unlabelled)


def _split_names(files: Sequence[ImageList]) -> list[str]:
    """The name of each file's split: what its stem begins with, or its stem, or its path."""
    paths = [PurePosixPath(file.xml).with_suffix("") for file in files]
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
