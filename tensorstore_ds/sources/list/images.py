"""The images that lists name: by their paths, by the ends of these, or by names without a suffix."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tensorstore_ds.errors import SourceError
from tensorstore_ds.regular_files import is_dir, is_file, os_errors
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import walk_files
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.images import ImageIndex
from tensorstore_ds.sources.list.table import clean_path

_SUFFIXES = tuple(IMAGE_SUFFIXES)


class ListedImages:
    """Images below the folder `root`, which is walked when a path in a list is not an image.

    With None, paths are not resolved.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._index: ImageIndex | None = None
        self._moved: set[str] = set()  # images that are not where their lists say
        self._example = ("", "")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_index": None}  # which workers do not need

    @property
    def paths(self) -> list[str] | None:
        """All images, or None if the folder was not walked."""
        return None if self._index is None else list(self._index.paths)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes with the number of images found elsewhere than lists say."""
        if not self._moved:
            return ()
        text, path = self._example
        are = "image is" if len(self._moved) == 1 else "images are"
        return (
            f"{len(self._moved):,} {are} not where the list says, but found by the end of the path: {text} at {path}.",
        )

    def expect(self, text: str, folder: str) -> None:
        """Check the first path of a list, to detect whether paths lead to images."""
        try:
            path = folder + clean_path(text)
        except FormError:
            return
        is_there = False
        with suppress(SourceError), os_errors(path):  # such as a name that is too long
            is_there = self._root is None or is_file(self._root / path)
        if not is_there:
            self._walk()

    def path(self, text: str, folder: str, split: str = "") -> str:
        """Path below the root of the image that a list in `folder` names; raises `FormError` for none or several.

        Of several, the one in a folder with the word `split` in its name is meant.
        """
        try:
            path = folder + clean_path(text)
        except FormError as error:
            found = self._found(text, split) if error.reason == "unsafe-path" else ""
            if not found:
                raise
            return found
        has_suffix = path.lower().endswith(_SUFFIXES)
        if self._root is None or (self._index is None and has_suffix):
            return path
        if self._walk().row(path) >= 0:
            return path
        if found := self._found(path, split):
            return found
        if has_suffix:
            return path  # reading it fails, and says so
        raise FormError(f"expected an image named {text}, or {text} with a suffix, found none.", "no-image")

    def _found(self, text: str, split: str) -> str:
        """The single image whose path ends as `text`; empty if there is none."""
        if self._root is None:
            return ""
        index = self._walk()
        has_suffix = text.lower().endswith(_SUFFIXES)
        try:
            find = index.find_by_end if has_suffix else index.find_by_stem
            found = find(text, "", split)
        except SourceError as error:
            raise FormError(error.problems[0].message, error.reason) from error
        if found and has_suffix:
            self._example = self._example if self._moved else (text, found)
            self._moved.add(found)
        return found

    def _walk(self) -> ImageIndex:
        if self._index is None:
            there = self._root is not None and is_dir(self._root)
            self._index = ImageIndex(walk_files(self._root, IMAGE_SUFFIXES) if self._root and there else ())
        return self._index
