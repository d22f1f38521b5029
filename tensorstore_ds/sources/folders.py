"""Images in class folders, with or without split folders above them, or in one folder: formats/sources/folders.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import label_field
from tensorstore_ds.regular_files import unreadable
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, SourceOptions
from tensorstore_ds.sources.classes import order_classes
from tensorstore_ds.sources.files import (
    LITTER,
    SPLIT_NAMES,
    PackedStrings,
    encoding_problem,
    glance,
    split_names,
    walk_files,
)
from tensorstore_ds.sources.list_lines import names_images

_SUFFIXES = tuple(IMAGE_SUFFIXES)
#: Files beside the images that nobody would take for data: passed over without a word.
_DOCUMENTS = ("readme", "license", "licence", "copying", "citation", "changelog")


@dataclass(frozen=True, slots=True)
class _Run:
    """Images ``[start, stop)`` of the walk, which lie in one folder; `parts` are the names on the way to it."""

    parts: tuple[str, ...]
    start: int
    stop: int


class FolderSource:
    """A reference is an image's path; its class is the name of the folder at the level of classes."""

    name: ClassVar[str] = "folders"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path
        self.options = options
        self._level = 0  # how many folders lie above the class folders
        self._labels: dict[str, int] = {}  # class name -> index; empty when there are no classes

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether there are images, and neither XML files nor a list that names images."""
        if not path.is_dir():
            return False
        found = glance(path)
        names = [file.lower() for file in found]
        images = any(name.endswith(_SUFFIXES) for name in names)
        lists = (path / file for file in found if "/" not in file)
        return images and not any(name.endswith(".xml") for name in names) and not any(map(names_images, lists))

    def scan(self) -> Contents:
        """List the images; the labels follow from their paths."""
        others: list[str] = []
        found = PackedStrings(walk_files(self.path, IMAGE_SUFFIXES, others=others))
        if not found:
            message = f"expected images, found none in this folder or below ({len(others)} other files)."
            raise SourceError(Problem(str(self.path), "empty-source", message), "Name a folder that holds images.")
        runs = list(_runs(found))
        tops = list(dict.fromkeys(run.parts[0] for run in runs if run.parts))
        self._level = int(bool(tops) and all(top.lower() in SPLIT_NAMES for top in tops))
        self._check_level(tops, runs)
        labelled = any(len(run.parts) > self._level for run in runs)

        problems: list[Problem] = []
        names = split_names(tops) if self._level else {}
        by_split: dict[str, list[_Run]] = {}
        for run in runs:
            if len(run.parts) < self._level + labelled:
                problems += _misplaced(found[run.start : run.stop], "class" if labelled else "split")
            else:
                by_split.setdefault(names[run.parts[0]] if self._level else "train", []).append(run)
        kept = {split: _keep(found, runs, problems) for split, runs in by_split.items()}
        splits = {split: paths for split, (paths, _) in kept.items() if paths}
        if not splits:
            raise SourceError(problems)
        left_out = tuple(_not_an_image(other) for other in others if not _is_document(other))
        if not labelled:
            return Contents({}, splits, problems=tuple(problems), left_out=left_out)
        classes = order_classes(self._class_names(runs, tops, others), self.options.classes, str(self.path))
        self._labels = {name: i for i, name in enumerate(classes)}
        labels = {split: self._split_labels(by_split[split], kept[split][1]) for split in splits}
        return Contents({"label": label_field(classes)}, splits, labels, tuple(problems), left_out)

    def read(self, split: str, reference: Reference) -> Sample:
        """The path and the label that follows from it."""
        path = str(reference)
        label = self._labels[path.split("/", self._level + 1)[self._level]] if self._labels else None
        return Sample(path, f"{self.path}/{path}", label)

    def key(self, split: str, reference: Reference) -> str:
        """The image's path."""
        return str(reference)

    def files(self, reference: Reference) -> tuple[Path, ...]:
        """The image."""
        return (self.path / str(reference),)

    def common_files(self) -> tuple[Path, ...]:
        """None."""
        return ()

    def _check_level(self, tops: list[str], runs: list[_Run]) -> None:
        """Refuse what would give classes that nobody means: split folders beside others, a folder around it all."""
        deep = {run.parts[0] for run in runs if len(run.parts) > 1}
        splits = [top for top in tops if top.lower() in SPLIT_NAMES and top in deep]
        if splits and not self._level:
            other = next(top for top in tops if top.lower() not in SPLIT_NAMES)
            message = f"expected split folders alone or class folders alone, found {splits[0]} beside {other}."
            raise SourceError(Problem(str(self.path), "split-name", message), f"Move {other} away, or rename it.")
        flat = {run.parts[0] if run.parts else "" for run in runs if len(run.parts) < 2}
        if len(tops) == 1 and not self._level and not flat:
            message = f"expected class folders or split folders, found one folder around them: {tops[0]}."
            raise SourceError(Problem(str(self.path), "unknown-format", message), f"Convert {self.path / tops[0]}.")

    def _class_names(self, runs: list[_Run], tops: list[str], others: list[str]) -> set[str]:
        """The folders at the level of classes that hold images, or nothing at all."""
        names = {run.parts[self._level] for run in runs if len(run.parts) > self._level}
        filled = {"/".join(other.split("/")[: self._level + 1]) for other in others}
        for above in [f"{top}/" for top in tops] if self._level else [""]:
            folder = self.path / above
            try:
                below = [entry.name for entry in folder.iterdir() if entry.is_dir()]
            except OSError as error:
                raise SourceError(unreadable(above or str(folder), error)) from error
            shown = (name for name in below if name[0] != "." and name.lower() not in LITTER)
            names.update(name for name in shown if above + name not in filled)
        return {name for name in names if encoding_problem(name) is None}

    def _split_labels(self, runs: list[_Run], counts: list[int]) -> NDArray[np.int64]:
        # a folder whose name is not UTF-8 is no class: all its images are problems, so that its count is 0
        labels = [self._labels.get(run.parts[self._level], -1) for run in runs]
        return np.repeat(np.asarray(labels, np.int64), counts)


def _runs(paths: Iterable[str]) -> Iterator[_Run]:
    """Neighbours of the walk that lie in the same folder."""
    start, i, folder = 0, -1, None
    for i, path in enumerate(paths):
        here = path[: path.rfind("/") + 1]
        if here != folder:
            if folder is not None:
                yield _Run(tuple(folder.split("/")[:-1]), start, i)
            start, folder = i, here
    if folder is not None:
        yield _Run(tuple(folder.split("/")[:-1]), start, i + 1)


def _keep(found: PackedStrings, runs: list[_Run], problems: list[Problem]) -> tuple[PackedStrings, list[int]]:
    """The paths of some runs without those that cannot be stored, and how many of each run there are."""
    counts: list[int] = []

    def paths() -> Iterator[str]:
        for run in runs:
            names = found[run.start : run.stop]
            bad = {name: problem for name in names if (problem := encoding_problem(name))}
            problems.extend(bad.values())
            counts.append(len(names) - len(bad))
            yield from (name for name in names if name not in bad) if bad else names

    return PackedStrings(paths()), counts


def _misplaced(paths: list[str], kind: str) -> list[Problem]:
    message = f"expected images inside the {kind} folders, found one beside or above them. Move it away."
    return [Problem(path, "no-annotation", message) for path in paths]


def _not_an_image(path: str) -> Problem:
    return Problem(path, "not-listed", "not read: its name is not that of an image.")


def _is_document(path: str) -> bool:
    return path.rpartition("/")[2].lower().split(".")[0] in _DOCUMENTS


SOURCE = FolderSource
