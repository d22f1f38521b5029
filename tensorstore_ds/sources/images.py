"""Find images of a source, such as the image of an annotation file."""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.packed_strings import PackedStrings, place_of
from tensorstore_ds.regular_files import entries, is_dir, os_errors
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import LITTER
from tensorstore_ds.sources.splits import SPLIT_NAMES, split_word, words_of

#: Names of folders that tell what kind of files they have, in lower case; others tell which.
FOLDERS = frozenset(
    {"", ".", "annotation", "annotations", "annots", "ann", "anns", "image", "images", "img", "imgs", "jpegimages"}
    | {"label", "labels", "xml", "xmls"}
)

#: Names of folders, in lower case and letters alone, that seldom are classes.
_NO_CLASSES = (
    FOLDERS - {""}
    | {each[1:] for each in IMAGE_SUFFIXES}
    | {"data", "dataset", "frames", "photo", "photos", "pictures", "rgb"}
)


def is_plain(name: str) -> bool:
    """Whether a folder's name tells what kind of files it has, such as ``image_2`` and ``train_images``."""
    is_listed = re.sub("[^a-z]", "", name.lower()) in _NO_CLASSES
    return is_listed or (len(words := words_of(name)) > 1 and set(words) <= _NO_CLASSES | SPLIT_NAMES)


class ImageIndex:
    """Paths of images, in string order, found by name."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = PackedStrings(paths)
        self._normal: dict[str, list[int]] | None = None  # for names that are not ASCII
        self._index: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def row(self, path: str) -> int:
        """Index of a path in `paths`, or -1."""
        return place_of(self.paths, path)

    def find(self, filename: str, annotation: str, folders: Sequence[str]) -> int:
        """Index in `paths` of the image of an annotation file.

        Looks for the last part of `filename`, after ``/`` or ``\\``, in `folders`, then everywhere. Then looks for the
        stem of the annotation file, with any suffix, in the same order.

        Raises `SourceError` `no-image` or `ambiguous-image`.
        """
        name, stem = filename.replace("\\", "/").rpartition("/")[2].strip(), stem_of(annotation)
        for matches in self._searches(name, stem, folders):
            if len(matches) > 1:
                matches = self._longest(self._closest(matches, annotation), filename)
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise self._ambiguous(matches, annotation, "Move the annotation beside its image.")
        normal = self._normalized(name, stem)
        if len(normal) == 1:
            return normal[0]
        names = " or ".join(each for each in (name or stem, stem and f"{stem}.*") if each)
        message = f"expected an image named {names}, found none."
        raise SourceError(Problem(annotation, "no-image", f"{message} Add it, or name its folder with `images`."))

    def _closest(self, matches: Sequence[int], annotation: str) -> list[int]:
        """The matches that share the most folders with the annotation: ``train`` of ``train/xml/a.xml``."""
        own = {folder for folder in annotation.split("/")[:-1] if folder.lower() not in FOLDERS}
        return _best(matches, lambda i: len(own.intersection(self.paths[i].split("/")[:-1])))

    def find_by_end(self, path: str, where: str, split: str = "") -> str:
        r"""The image that shares the most last parts with a path from a different machine.

        Ties go to the image without further parts, then to one in a folder with the word `split` in its name. Empty if
        no image shares the last part. Raises `SourceError` `ambiguous-image`.

        >>> images = ImageIndex(["a/1.png", "b/1.png"])
        >>> images.find_by_end(r"C:\photos\b\1.png", "labels.json"), images.find_by_end("2.png", "labels.json")
        ('b/1.png', '')
        """
        name = path.replace("\\", "/").rpartition("/")[2].strip()
        rows = [i for i in self._anywhere(stem_of(name)) if self.paths[i].rpartition("/")[2] == name]
        rows = rows or (self._normalized(name, "") if not name.isascii() else [])
        advice = "Remove or rename the others, or write the path from the source's folder."
        return self._only(self._longest(rows, path), where, advice, split)

    def find_by_stem(self, path: str, where: str, split: str = "") -> str:
        """Like `find_by_end`, for a `path` without a suffix."""
        parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "..")]
        rows = self._anywhere(parts[-1]) if parts else []
        best = _best(rows, lambda i: _common_end(parts, self.paths[i].rpartition(".")[0].split("/")))
        return self._only(best, where, "Write the suffix, or the path from the source's folder.", split)

    def _only(self, rows: Sequence[int], where: str, advice: str, split: str) -> str:
        if len(rows) > 1 and split:
            own = [i for i in rows if any(split_word(name) == split for name in self.paths[i].split("/")[:-1])]
            rows = own or rows
        if len(rows) > 1:
            raise self._ambiguous(rows, where, advice)
        return self.paths[rows[0]] if rows else ""

    def _longest(self, rows: Sequence[int], path: str) -> list[int]:
        """The rows that share the most last parts with a path; among these, those without further parts."""
        parts = path.replace("\\", "/").strip().split("/")
        return _best(rows, lambda i: _common_end(parts, self.paths[i].split("/")))

    def _ambiguous(self, rows: Sequence[int], where: str, advice: str) -> SourceError:
        some = ", ".join(self.paths[i] for i in rows[:3]) + (", ..." if len(rows) > 3 else "")
        message = f"expected one image of that name, found {some}. {advice}"
        return SourceError(Problem(where, "ambiguous-image", message))

    def _searches(self, name: str, stem: str, folders: Sequence[str]) -> Iterator[list[int]]:
        if own := stem_of(name):  # every image has a suffix
            for folder in folders:
                yield [i for i in self._in_folder(folder, own) if self.paths[i] == folder + name]
            yield [i for i in self._anywhere(own) if self.paths[i].rpartition("/")[2] == name]
        for folder in folders:
            yield self._in_folder(folder, stem)
        yield self._anywhere(stem)

    def _normalized(self, name: str, stem: str) -> list[int]:
        """Images whose names differ only in Unicode normalization, because macOS decomposes characters."""
        if self._normal is None:
            self._normal = {}
            for i, path in enumerate(self.paths):
                if not path.isascii():
                    own = path.rpartition("/")[2]
                    for key in {_normal(own), _normal(stem_of(own))}:
                        self._normal.setdefault(key, []).append(i)
        return self._normal.get(_normal(name)) or self._normal.get(_normal(stem)) or []

    def _in_folder(self, folder: str, stem: str) -> list[int]:
        prefix = f"{folder}{stem}."
        places = range(bisect_left(self.paths, prefix), len(self.paths))
        begin_so = itertools.takewhile(lambda i: self.paths[i].startswith(prefix), places)
        return [i for i in begin_so if stem_of(self.paths[i]) == stem]

    def _anywhere(self, stem: str) -> list[int]:
        if self._index is None:  # built when an image is not at its first candidate path
            # hashes in order and their images: 16 bytes a path where a dict takes 200
            hashes: Iterable[int] = (hash(stem_of(path)) for path in self.paths)
            unsorted: NDArray[np.int64] = np.fromiter(hashes, np.int64, len(self.paths))
            order = np.argsort(unsorted, kind="stable")
            self._index = unsorted[order], order
        hashed, order = self._index
        start, stop = (int(np.searchsorted(hashed, hash(stem), side)) for side in ("left", "right"))
        return [i for i in map(int, order[start:stop]) if stem_of(self.paths[i]) == stem]


def not_listed(root: Path, folders: Iterable[str], is_listed: Callable[[str], bool], by: str) -> list[Problem]:
    """Problems for images that no file lists, in folders with listed images."""
    left_out = []
    for folder in sorted(folders):
        with os_errors(folder or str(root)):
            names = (name for name, _ in entries(root / folder)) if is_dir(root / folder) else ()
            paths = sorted(folder + name for name in names if not is_listed(folder + name))
        for path in paths:
            name = path[len(folder) :]
            if name[0] != "." and name.lower() not in LITTER and PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES:
                left_out.append(Problem(path, "not-listed", f"not stored: no {by} file of this source lists it."))
    return left_out


def note_of_folders(paths: Iterable[str], classes: Iterable[str] = ()) -> tuple[str, ...]:
    """A note about folders with images whose names are not splits, parts of a data set or `classes`.

    >>> note_of_folders(["cat/1.jpg", "dog/1.jpg"])
    ('the images are in 2 folders, such as cat: names of folders are not read as labels.',)
    """
    names = {path.rpartition("/")[0].rpartition("/")[2] for path in paths}.difference(classes)
    names = {name for name in names if name.lower() not in FOLDERS | SPLIT_NAMES and any(map(str.isalpha, name))}
    if len(names) < 2:
        return ()
    return (
        f"the images are in {len(names):,} folders, such as {min(names)}: names of folders are not read as labels.",
    )


def _best(rows: Sequence[int], score: Callable[[int], Any]) -> list[int]:
    """The rows with the highest score."""
    scores = list(map(score, rows))
    most = max(scores, default=None)
    return [i for i, each in zip(rows, scores, strict=True) if each == most]


def _common_end(parts: Sequence[str], others: Sequence[str]) -> tuple[int, bool]:
    """Number of equal last parts, and whether they are all of `others`."""
    pairs = zip(reversed(parts), reversed(others), strict=False)
    count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return count, count == len(others)


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def stem_of(path: str) -> str:
    """File name without its last suffix."""
    return path.rpartition("/")[2].rpartition(".")[0]
