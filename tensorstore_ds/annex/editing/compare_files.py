"""What torchvision's ImageFolder would read of a folder of classes, and what a store made of it has instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tensorstore_ds.annex.editing.compare import SampleCount
from tensorstore_ds.conversion.result import OnProgress, Progress, in_notebook
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.imaging.codecs import open_image, orientation, quiet_pillow
from tensorstore_ds.reading.store import Split, Store, open as open_store
from tensorstore_ds.reading.stored_images import decode_stored
from tensorstore_ds.regular_files import entries, is_file, open_file, tidied
from tensorstore_ds.sources.files import walk_files
from tensorstore_ds.sources.splits import SPLIT_NAMES

#: File endings that torchvision's `ImageFolder` treats as images.
_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
#: Number of images whose pixels are compared.
_COMPARED = 100
#: Number of keys that are searched in the folder.
_TRIED = 100


@dataclass
class FolderDifference:
    """Result of `compare_folder`.

    Attributes:
        both: number of files that ImageFolder reads and the store contains.
        only_folder: files that ImageFolder reads and the store lacks.
        only_store: samples that ImageFolder does not read, by the suffix of their file.
        turned: samples that the store turns as their EXIF orientation asks for. ImageFolder ignores it.
        labels: samples whose label is not the name of their folder.
        classes: the classes of both if their order differs, else empty. The numbers of labels then differ.
        pixels: samples with different pixels, of those that were compared. Turned ones are not compared.
        compared: number of samples whose pixels were compared.
        resized: whether the store keeps other sizes or encodes the images anew, so that no pixels are compared.
    """

    both: int = 0
    only_folder: SampleCount = field(default_factory=SampleCount)
    only_store: dict[str, SampleCount] = field(default_factory=dict)
    turned: SampleCount = field(default_factory=SampleCount)
    labels: SampleCount = field(default_factory=SampleCount)
    classes: str = ""
    pixels: SampleCount = field(default_factory=SampleCount)
    compared: int = 0
    resized: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether training code gets the same images and labels from both."""
        counts = (self.only_folder.count, self.turned.count, self.labels.count, self.pixels.count)
        return not (any(counts) or self.only_store or self.classes)


def compare_folder(
    folder: str | os.PathLike[str], store: str | os.PathLike[str], *, progress: OnProgress | None = None
) -> dict[str, FolderDifference]:
    """Compare a folder of classes, as torchvision's ImageFolder reads it, with the store made of it.

    Files and samples are matched by the key of the sample, which is the path of its file. Pixels of 100 samples in each
    split are compared with what Pillow decodes.

    >>> found = tsds.editing.compare_folder("photos", "photos.tsds")
    >>> found["train"].both, found["train"].is_empty
    (8, True)

    Args:
        folder: folder that was converted, or the folder of one of its splits.
        store: path or URL of the store.
        progress: function that is called with the progress, as in `convert`.

    Returns:
        The differences of each split.

    Raises:
        OptionError: the store has no keys or labels, or no key names a file in the folder.
        SourceError: a file or a stored image cannot be decoded.
    """
    notify, root, opened = progress or in_notebook(), tidied(folder), open_store(store)
    files = _image_folder(root)
    found: dict[str, FolderDifference] = {}
    taken: set[str] = set()
    done, total = 0, sum(len(opened[name]) for name in opened)
    for name in opened:
        split = opened[name]
        dropped = _dropped(root, split)
        if dropped is None:
            continue
        rows = {path: row for row in range(len(split)) if (path := _path(split.key(row), dropped))}
        taken |= rows.keys() & files.keys()
        with quiet_pillow():
            found[name] = _compare(root, opened, split, rows, files)
        done += len(split)
        notify(Progress("compare", done, total))
    if not found:
        key = next((opened[name].key(0) for name in opened if len(opened[name])), "")
        advice = "Name the folder that was converted, or the one of a split."
        raise OptionError(f"{root}: expected the folder of {opened.name}, found no {key} in it. {advice}")
    for path in files:
        if path not in taken:
            top = path.partition("/")[0].lower()
            found[top if top in found else next(iter(found))].only_folder.add(path)
    return found


def _image_folder(root: Path) -> dict[str, str]:
    """Class name of each file that ImageFolder reads, by path relative to `root`."""
    tops = [f"{name}/" for name, is_folder in sorted(entries(root)) if is_folder and name.lower() in SPLIT_NAMES]
    found = {}
    for top in tops or [""]:
        for path in walk_files(root / top, _SUFFIXES):
            label, slash, _ = path.partition("/")
            if slash:
                found[top + path] = label
    return found


def _dropped(root: Path, split: Split) -> int | None:
    """Number of leading parts of a key that name folders above `root`; None if no file of the split is there."""
    for row in range(min(len(split), _TRIED)):
        parts = PurePosixPath(split.key(row)).parts
        for dropped in range(len(parts)):
            is_below = not dropped or parts[dropped - 1] == root.name
            if is_below and (path := _path(split.key(row), dropped)) and is_file(root / path):
                return dropped
    return None


def _path(key: str, dropped: int) -> str:
    """The path that a key names; empty if it leads outside. Stores may come from untrusted sources."""
    parts = PurePosixPath(key).parts[dropped:]
    return "" if not parts or ".." in parts or parts[0] == "/" else "/".join(parts)


def _compare(
    root: Path, store: Store, split: Split, rows: Mapping[str, int], files: Mapping[str, str]
) -> FolderDifference:
    found = FolderDifference()
    label = next(iter(of_kind(split.fields, LabelField)), None)
    classes = split.fields[label].classes if label is not None else ()
    listed = sorted({files[path] for path in rows if path in files})
    if label is not None and listed != sorted(set(listed) & set(classes), key=classes.index):
        found.classes = f"{', '.join(listed)}; the store has {', '.join(classes)}"
    numbers = np.asarray(split.column(label)) if label is not None else None
    plain = []
    for path, row in rows.items():
        if path not in files:
            suffix = PurePosixPath(path).suffix.lower() or "no suffix"
            found.only_store.setdefault(suffix, SampleCount()).add(path)
            continue
        found.both += 1
        if numbers is not None and (numbers[row] < 0 or classes[int(numbers[row])] != files[path]):
            found.labels.add(path)
        with suppress(SourceError), open_file(root / path, path) as file:
            if orientation(open_image(file, max_pixels=2**63, key=path)) != 1:
                found.turned.add(path)
            else:
                plain.append((path, row))
    options, field = store.manifest.conversion_options, split.fields.get("image")
    found.resized = bool(options.get("size") or options.get("max_side"))
    found.resized |= field is not None and field.encoding in ("jpeg", "smart")
    if not found.resized:
        for path, row in plain[:: max(1, -(-len(plain) // _COMPARED))]:
            found.compared += 1
            if not _is_same(root / path, split["image"][row], path):
                found.pixels.add(path)
    return found


def _is_same(path: Path, stored: Any, key: str) -> bool:
    """Whether Pillow's pixels of a file, as ImageFolder converts them, equal the pixels in the store."""
    with open_file(path, key) as file:
        expected = np.asarray(open_image(file, max_pixels=2**63, key=key).convert("RGB"))
    pixels = decode_stored(stored, key=key) if isinstance(stored, bytes) else np.asarray(stored)
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    return np.array_equal(pixels, expected)
