"""The files below a folder: walked quickly and in a fixed order, and kept compactly."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path

from tensorstore_ds.archives import SUFFIXES, Archive
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.packed_strings import PackedStrings as PackedStrings
from tensorstore_ds.regular_files import archive_of, check_machine, entries, is_file, unreadable

#: Suffixes of volumes: NIfTI, DICOM, NRRD, MetaImage and MINC.
VOLUME_SUFFIXES = frozenset({".nii", ".nii.gz", ".dcm", ".nrrd", ".nhdr", ".mha", ".mhd", ".mnc"})
#: Files of operating systems and archive programs. Hidden names (``.DS_Store``) are always skipped.
LITTER = frozenset({"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini"})

#: Number of files opened to detect whether a folder is of a format: the first ones may be empty or damaged.
PROBED_FILES = 16

_GLANCE_FOLDER = 1_000  # entries per folder below the root, and in total, that `glance` lists
_GLANCE_ALL = 10_000
_ANNOTATIONS = ("_annotations.coco.json", "annotations.json", "labels.json")  # beside many images
_glances: ContextVar[dict[str, list[str]] | None] = ContextVar("glances", default=None)


def walk_files(root: Path, suffixes: Collection[str], *, others: list[str] | None = None) -> Iterator[str]:
    """Files below `root` with one of these suffixes, as relative paths with ``/``, in string order.

    `suffixes` are lower case with a dot; the case of files is ignored. `others` receives all other paths. Links to
    folders are followed. Hidden names and `LITTER` are skipped. Broken links are included, so that reading them fails.
    """
    if place := archive_of(root):
        yield from _walk_archive(*place, tuple(suffixes), others)
        return
    for run in _walk(str(root), "", (), tuple(suffixes), others):
        yield from run


def _walk_archive(archive: Archive, folder: str, suffixes: tuple[str, ...], others: list[str] | None) -> Iterator[str]:
    for name in archive.below(folder):
        if all(part[0] != "." and part.lower() not in LITTER for part in name.split("/")):
            if name.lower().endswith(suffixes):
                yield name
            elif others is not None:
                others.append(name)


def _walk(
    root: str, prefix: str, above: tuple[tuple[int, int], ...], suffixes: tuple[str, ...], others: list[str] | None
) -> Iterator[list[str]]:
    """Lists of files, so that each file costs one generator step, not one per level of folders."""
    names: list[str] = []
    try:
        status = Path(root, prefix).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            raise _loop(prefix)
        with os.scandir(f"{root}/{prefix}") as found:
            for entry in found:
                name = entry.name
                if name[0] == "." or name.lower() in LITTER:
                    continue
                if entry.is_dir():
                    names.append(f"{name}/")  # with its slash it sorts as its files' paths do
                elif name.lower().endswith(suffixes) and (entry.is_file() or not Path(entry.path).exists()):
                    names.append(name)
                elif others is not None:
                    others.append(prefix + name)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _loop(prefix) from error
        raise SourceError(unreadable(prefix or root, error), "Make it readable, or move it away.") from error
    names.sort()
    run: list[str] = []
    for name in names:
        if name[-1] == "/":
            yield run
            run = []
            yield from _walk(root, prefix + name, (*above, identity), suffixes, others)
        else:
            run.append(prefix + name)
    yield run


@contextmanager
def listed_once() -> Iterator[None]:
    """In this block, `glance` lists each folder once, however many formats call it."""
    before = _glances.set({})
    try:
        yield
    finally:
        _glances.reset(before)


def glance(root: Path) -> list[str]:
    """Some files in `root` and up to 2 levels below, relative with ``/``, for detecting the format.

    Breadth first, some 10,000 at most. Unreadable folders are skipped, because the scan reports them.
    """
    seen = _glances.get()
    if seen is None:
        return _glance(root)
    if str(root) not in seen:
        seen[str(root)] = _glance(root)
    return seen[str(root)].copy()


def _glance(root: Path) -> list[str]:
    files: list[str] = []
    folders = [""]
    for depth in range(3):
        below: list[str] = []
        for prefix in folders:
            limit = min(_GLANCE_ALL - len(files), _GLANCE_FOLDER if depth else _GLANCE_ALL)
            for name, is_folder in _entries(f"{root}/{prefix}", limit):
                (below if is_folder else files).append(f"{prefix}{name}/" if is_folder else prefix + name)
        folders = sorted(below)
    return files


def find_file(root: Path, suffixes: Collection[str]) -> tuple[str | None, int]:
    """A file below `root` with one of these suffixes, relative with ``/``, and the number of files seen before it.

    None if none is among the first 100,000 files. Links to folders are not followed.
    """
    others = 0
    if archive_of(root):
        skipped: list[str] = []
        return next(walk_files(root, suffixes, others=skipped), None), len(skipped)
    for folder, below, files in os.walk(root):
        below[:] = sorted(name for name in below if name[0] != "." and name.lower() not in LITTER)
        shown = [name for name in sorted(files) if name[0] != "." and name.lower() not in LITTER]
        for name in shown:
            if name.lower().endswith(tuple(suffixes)):
                return Path(folder, name).relative_to(root).as_posix(), others
        others += len(shown)
        if others > 10 * _GLANCE_ALL:
            break
    return None, others


def no_images(root: Path, others: int) -> SourceError:
    """The error for a folder without images, but with a number of other files."""
    advice, (volume, _) = "Name a folder that holds images.", find_file(root, VOLUME_SUFFIXES)
    advice += " If a Python library reads these files, pass its data set to tensorstore_ds.convert." if others else ""
    if not archive_of(root) and sum(name.lower().endswith(tuple(SUFFIXES)) for name, _ in entries(root)) > 1:
        advice = f"Unpack the archives in {root}."
    elif (packed := find_file(root, SUFFIXES)[0]) is not None:
        advice = f"Unpack {packed}." if archive_of(root) else f"Name the archive {root / packed}, or unpack it."
    elif archive_of(root):
        advice = "Formats without image files, such as Parquet, are not read in archives: unpack it."
    if volume is not None:
        advice = f"{volume} is a volume: write its slices with tsds.Writer, or train on it with nnU-Net or MONAI."
    message = f"expected images, found none in this folder or below ({others:,} other files)."
    return SourceError(Problem(str(root), "empty-source", message), advice)


def _entries(folder: str, limit: int) -> list[tuple[str, bool]]:
    """Name, and whether it is a folder, of some entries; in a larger folder also of likely annotations."""
    try:
        shown = (each for each in entries(folder) if each[0][0] != "." and each[0].lower() not in LITTER)
        some = list(islice(shown, limit))
    except OSError as error:
        check_machine(folder, error)
        return []
    if some and len(some) == limit:  # some file systems list files as they were written: images first, then XML
        stem = some[0][0].rpartition(".")[0]
        likely = dict.fromkeys([f"{stem}.xml", f"{stem}.json", *_ANNOTATIONS])
        some += [(name, False) for name in likely if (name, False) not in some and is_file(f"{folder}/{name}")]
    return some


def _loop(prefix: str) -> SourceError:
    message = "expected folders without a loop, found a symbolic link that leads to itself or to a folder above it."
    return SourceError(Problem(prefix or ".", "symlink-loop", message), "Remove the link.")


def encoding_problem(path: str) -> Problem | None:
    """Problem `name-encoding` for a path whose bytes are not UTF-8, else None."""
    if path.isascii():
        return None
    try:
        path.encode()
    except UnicodeEncodeError:
        return Problem(path, "name-encoding", "expected a file name in UTF-8, found other bytes. Rename the file.")
    return None


def encodable(paths: Iterable[str], problems: list[Problem]) -> list[str]:
    """Paths that can be stored; `problems` receives an `encoding_problem` for each other path."""
    bad = [(path, encoding_problem(path)) for path in paths]
    problems += [problem for _, problem in bad if problem]
    return [path for path, problem in bad if not problem]
