"""Which image a Pascal VOC annotation belongs to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import PackedStrings, walk_files


class Images:
    """The images below a folder, to be found by name.

    Attributes:
        root: what the paths are relative to.
        paths: all images below ``root / prefix``, in string order.
    """

    def __init__(self, root: Path, prefix: str = "") -> None:
        self.root = root
        self.paths = PackedStrings(prefix + path for path in walk_files(root / prefix, IMAGE_SUFFIXES))
        self._index: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def find(self, filename: str, stem: str, folders: Sequence[str], where: str) -> int:
        """The index in `paths` of an annotation's image.

        It is looked for by the name that the annotation gives, in `folders` and then everywhere, and after that by the
        annotation's own stem with any suffix, in the same places.

        Args:
            filename: what the annotation names, of which only the part after the last ``/`` or ``\\`` counts.
            stem: the name of the annotation's file without its suffix.
            folders: where to look first, in this order: ``""`` or with a ``/`` at the end.
            where: the annotation's file, for errors.

        Raises:
            SourceError: `no-image` or `ambiguous-image`.
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
