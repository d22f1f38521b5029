"""Which image a Pascal VOC annotation belongs to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
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
        self._by_name: _Names | None = None  # built when an image is not where it is looked for first
        self._by_stem: _Names | None = None

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
        searches: list[Callable[[], list[int]]] = [lambda: self._beside(folders, stem), lambda: self._stem(stem)]
        if name not in ("", ".", ".."):
            searches = [lambda: self._at(folders, name), lambda: self._name(name), *searches]
        for search in searches:
            found = search()
            if len(found) == 1:
                return found[0]
            if found:
                some = ", ".join(self.paths[i] for i in found[:3]) + (", ..." if len(found) > 3 else "")
                message = f"expected one image of that name, found {some}. Move the annotation beside its image."
                raise SourceError(Problem(where, "ambiguous-image", message))
        message = f"expected an image named {name or stem} or {stem}.*, found none. Add it or its folder (--images)."
        raise SourceError(Problem(where, "no-image", message))

    def index(self, path: str) -> int | None:
        """Where a path is in `paths`."""
        i = bisect_left(self.paths, path)
        return i if i < len(self.paths) and self.paths[i] == path else None

    def _at(self, folders: Sequence[str], name: str) -> list[int]:
        for folder in folders:
            i = self.index(folder + name)
            if i is not None:
                return [i]
        return []

    def _beside(self, folders: Sequence[str], stem: str) -> list[int]:
        for folder in folders:
            prefix = f"{folder}{stem}."
            i = bisect_left(self.paths, prefix)
            found = []
            while i < len(self.paths) and (path := self.paths[i]).startswith(prefix):
                if _stem(path) == stem:
                    found.append(i)
                i += 1
            if found:
                return found
        return []

    def _name(self, name: str) -> list[int]:
        if self._by_name is None:
            self._by_name = _Names(self.paths, _name)
        return self._by_name.find(name)

    def _stem(self, stem: str) -> list[int]:
        if self._by_stem is None:
            self._by_stem = _Names(self.paths, _stem)
        return self._by_stem.find(stem)


class _Names:
    """From a name to the paths that have it: hashes and indices in order, 16 bytes a path where a dict takes 200."""

    def __init__(self, paths: Sequence[str], name_of: Callable[[str], str]) -> None:
        self._paths, self._name_of = paths, name_of
        hashes: Iterable[int] = (hash(name_of(path)) for path in paths)
        unsorted: NDArray[np.int64] = np.fromiter(hashes, np.int64, len(paths))
        self._order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[self._order]

    def find(self, name: str) -> list[int]:
        start, stop = (int(np.searchsorted(self._hashes, hash(name), side)) for side in ("left", "right"))
        found = map(int, self._order[start:stop])
        return [i for i in found if self._name_of(self._paths[i]) == name]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _stem(path: str) -> str:
    return _name(path).rpartition(".")[0]
