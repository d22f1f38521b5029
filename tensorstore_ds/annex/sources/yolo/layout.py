"""Where a YOLO data set keeps its images, labels and splits. Paths are compared with those of files that were found:
none that was read from a file is opened."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.yolo.config import Config, candidates
from tensorstore_ds.annex.sources.yolo.labels import looks_like_labels
from tensorstore_ds.errors import Problem
from tensorstore_ds.packed_strings import place_of
from tensorstore_ds.regular_files import TEXT_LIMIT, is_file, read_file, read_head
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import PROBED_FILES, PackedStrings, glance, walk_files
from tensorstore_ds.sources.splits import Splits, drop_unions, folder_splits

_TEXTS = (".txt", ".TXT", ".Txt")  # suffixes of label files
_HEAD = 4096
_LISTS = ("train.txt", "val.txt", "valid.txt", "test.txt")


class Files:
    """Images and text files of a source, each in string order, relative to their folders."""

    def __init__(self, images: Path, labels: Path) -> None:
        suffixes = IMAGE_SUFFIXES | {".txt"}
        self.images, self.texts = PackedStrings(), PackedStrings()
        for path in walk_files(labels, suffixes):
            (self.texts if path.lower().endswith(".txt") else self.images).extend([path])
        self._normal = {_normal(text): text for text in self.texts if not text.isascii()}
        self._apart = images != labels
        if self._apart:
            self.images = PackedStrings(walk_files(images, IMAGE_SUFFIXES))

    def label(self, image: str) -> str | None:
        """Label file of an image: in ``labels`` instead of the last ``images``, else next to it.

        Its name may differ in Unicode normalization, because macOS decomposes characters.
        """
        stem = image.rpartition(".")[0]
        head, found, tail = f"/{stem}".rpartition("/images/")
        paths = [f"{head}/labels/{tail}"[1:] if found else stem, *([f"labels/{stem}", stem] if self._apart else [])]
        texts = [f"{path}{suffix}" for path in paths for suffix in _TEXTS]
        exact = (text for text in texts if place_of(self.texts, text) >= 0)
        return next(exact, None) or next(filter(None, (self._normal.get(_normal(text)) for text in texts)), None)

    def below(self, folder: str) -> range:
        """Rows of the images in a folder with a trailing ``/``, or in the root if it is empty."""
        end = f"{folder[:-1]}0" if folder else ""  # 0 comes after the slash
        return range(bisect_left(self.images, folder), bisect_left(self.images, end) if end else len(self.images))

    def resolve(self, path: str, folder: str) -> range:
        """Rows of the image, or folder of images, that `path` in a file in `folder` means.

        It is searched relative to that folder, then to the root, then without its first folders, one by one, because
        the data set may have been moved since it was written.
        """
        for some in candidates(path, folder):
            if (row := place_of(self.images, some)) >= 0:
                return range(row, row + 1)
            if rows := self.below(f"{some}/" if some else ""):
                return rows
        return range(0)


def _normal(path: str) -> str:
    return unicodedata.normalize("NFC", path)


def has_labels(root: Path) -> bool:
    """Whether some text file of a folder has rows of numbers, and is at the path of an image's label file."""
    texts = [file for file in glance(root) if file.lower().endswith(".txt")]
    texts.sort(key=lambda file: "/labels/" not in f"/{file}")
    for text in texts[:PROBED_FILES]:
        head, found, tail = f"/{text[:-4]}".rpartition("/labels/")
        stem = root / (f"{head}/images/{tail}"[1:] if found else text[:-4])
        names = (f"{stem.name}{suffix}" for each in IMAGE_SUFFIXES for suffix in (each, each.upper(), each.title()))
        if looks_like_labels(read_head(root / text, _HEAD)) and any(is_file(stem.with_name(name)) for name in names):
            return True
    return False


def find_splits(root: Path, files: Files, config: Config) -> Splits:
    """Rows of `Files.images` from ``data.yaml``, else from lists in the root, else from folders."""
    splits = Splits()
    named: Mapping[str, Sequence[str]] = config.splits
    if not named:
        named = {Path(name).stem: [name] for name in _LISTS if place_of(files.texts, name) >= 0}
    for name, paths in named.items():
        found = [_rows(root, files, config, path, splits) for path in paths]
        rows = np.concatenate([np.empty(0, np.int64), *found])
        unique = rows[np.sort(np.unique(rows, return_index=True)[1])]
        if len(unique):
            splits.rows[name] = unique
        else:
            message = f"not stored: there is no image at {', '.join(paths)[:200]}."
            splits.left_out.append(Problem(name, "empty-split", message))
    if not splits.rows:
        return _folder_splits(str(root), files, splits)
    _drop_repeated(splits, named)
    stored = np.zeros(len(files.images), np.bool_)
    stored[np.concatenate([*splits.rows.values()])] = True
    for row in np.flatnonzero(~stored):
        splits.left_out.append(Problem(files.images[int(row)], "not-listed", "not stored: no split lists it."))
    return splits


def _drop_repeated(splits: Splits, named: Mapping[str, Sequence[str]]) -> None:
    """Leave out splits without own samples: unions, and one of 2 equal splits.

    That is the later one, unless the path of both has its name: `val` if both are ``images/test``.
    """
    drop_unions(splits)
    names = list(splits.rows)
    for i, name in enumerate(names):
        rows = np.sort(splits.rows[name])
        twin = next((other for other in names[:i] if np.array_equal(np.sort(splits.rows.get(other, ())), rows)), None)
        if twin is not None:
            words = {word for path in named[name] for word in path.replace("\\", "/").split("/")}
            gone, kept = (twin, name) if name in words and twin not in words else (name, twin)
            message = f"not stored twice: it has the same images as {kept}."
            splits.left_out.append(Problem(gone, "split-union", message))
            del splits.rows[gone]


def _rows(root: Path, files: Files, config: Config, path: str, splits: Splits) -> NDArray[np.int64]:
    """Rows of one entry of a split: a folder of images, or a list of them."""
    full = f"{config.path}/{path}" if config.path else path
    if not path.lower().endswith(".txt"):
        return np.asarray(files.resolve(full, config.folder), np.int64)
    file = next((some for some in candidates(full, config.folder) if place_of(files.texts, some) >= 0), None)
    if file is None:
        return np.empty(0, np.int64)
    splits.lists.append(file)
    rows: list[int] = []
    folder = file[: file.rfind("/") + 1]
    text = read_file(root / file, file, TEXT_LIMIT).decode("utf-8-sig", "surrogateescape")
    for i, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = files.resolve(line.strip(), folder)
        if len(found) == 1 and PurePosixPath(line.strip()).suffix:
            rows.append(found[0])
        else:
            message = f"{file} line {i}: expected the path of an image in this source, found none there."
            splits.problems.append(Problem(line.strip()[:500], "no-image", f"{message} Add it, or remove the line."))
    return np.array(rows, np.int64)


def _folder_splits(where: str, files: Files, splits: Splits) -> Splits:
    """Split by the first folder on a path that means a split, if all have one; else one split, `train`."""
    inside = [i for i, image in enumerate(files.images) if "/images/" in f"/{image}"] or range(len(files.images))
    by_folder, splits.notes = folder_splits([files.images[i] for i in inside], where)
    splits.rows = {name: np.array([inside[i] for i in some], np.int64) for name, some in by_folder.items()}
    kept = set(inside)
    beside = (image for i, image in enumerate(files.images) if i not in kept)
    message = "not stored: it lies outside of the folders named images."
    splits.left_out += [Problem(image, "not-listed", message) for image in beside]
    return splits
