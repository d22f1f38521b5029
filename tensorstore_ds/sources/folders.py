"""Images in class folders, with or without split folders above them, or in one folder: formats/sources/folders.md."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from tensorstore_ds.errors import ConversionError, OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import LabelField, LabelsField
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.regular_files import entries, is_dir, os_errors, read_file
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Match, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import (
    LITTER,
    PackedStrings,
    encodable,
    encoding_problem,
    glance,
    no_images,
    walk_files,
)
from tensorstore_ds.sources.images import is_plain, note_of_folders
from tensorstore_ds.sources.ledger import is_about, note_of_beside
from tensorstore_ds.sources.list.finding import find_lists
from tensorstore_ds.sources.mask_folders import note_of_masks
from tensorstore_ds.sources.names import order_classes
from tensorstore_ds.sources.splits import SPLIT_NAMES, no_samples, split_names, split_word, words_of

#: Folders of these names beside a folder of images are likely to have its annotations.
_ANNOTATIONS = frozenset({"annotations", "annotation", "labels", "xml", "xmls", "imagesets"})
#: Suffixes of files that may be annotations, and of those of which one alone may be.
_ALONE = frozenset(
    {".csv", ".geojson", ".json", ".jsonl", ".lst", ".manifest", ".mat", ".ndjson", ".odgt", ".parquet", ".tfrecord"}
    | {".xlsx"}
)
_LIKELY, _SHARE = _ALONE | {".npy", ".txt", ".xml"}, 4
_NAMED = 5  # classes in a note
_LOOKED_AT, _COMPARED = 100_000, 20  # images compared by name, and by bytes if names are equal
_LONGEST = 1000  # characters of a regular expression

#: Words in the names of folders that are read as splits, besides the split.
_PLAIN = SPLIT_NAMES | {"data", "dataset", "image", "images", "img", "imgs", "seg", "set", "split"}

#: Words in the names of class folders that may be splits.
_LIKE_SPLITS = SPLIT_NAMES | {"dev", "eval", "evaluation", "extra", "unlabeled"}
_Names = tuple[str, ...]  # of the folders above an image, from the top


class FolderSource(Source):
    """A reference is an image's path; its class is the name of the folder at the level of classes."""

    name: ClassVar[str] = "folders"
    takes: ClassVar[frozenset[str]] = frozenset({"label_from", "multi_label"})
    scanned: ClassVar[tuple[str, ...] | None] = ("_level", "_around", "_labels", "_unlabelled")

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._level = 0  # number of folders above the class folders: 1 with splits
        self._around: frozenset[str] = frozenset()  # folders around all of a split that are no classes: train/images/
        self._labels: dict[str, int] = {}  # class name -> index; empty when there are no classes
        self._unlabelled: frozenset[str] = frozenset()  # split folders without class folders, where others have some
        self._pattern = None if options.label_from is None else compiled(options.label_from, "label_from")

    @classmethod
    def detect(cls, path: Path) -> bool | Match:
        """Whether there are images, and no XML files or list of images."""
        if not is_dir(path):
            return Match.NO
        files = glance(path)
        names = [file.lower() for file in files]
        images = _has_image(names) or _has_image(_glance_doubled(path))
        other = any(name.endswith(".xml") for name in names) or bool(find_lists(path, files))
        return Match.MAYBE if images and not other else Match.NO

    def scan(self) -> Contents:
        """List the images; the labels follow from their paths."""
        others: list[str] = []
        images = PackedStrings(walk_files(self.path, IMAGE_SUFFIXES, others=others))
        if not images:
            raise no_images(self.path, len(others))
        folders = {folder: tuple(folder.split("/")[:-1]) for folder in dict.fromkeys(map(_folder, images))}
        tops = list(dict.fromkeys(names[0] for names in folders.values() if names))
        split_of, notes_of_splits = _splits(tops, folders.values())
        self._level = int(bool(split_of))
        if self._pattern is not None:
            contents = self._labelled_by_paths(self._pattern, images, split_of)
            return replace(contents, notes=notes_of_splits)
        self._check_level(tops, folders.values())
        self._around = self._found_around(folders.values())
        folders = {folder: tuple(self._inside(folder).split("/")[:-1]) for folder in folders}
        divided = {names[0] for names in folders.values() if len(names) > 1}
        self._unlabelled = frozenset(tops).difference(divided) if self._level and divided else frozenset()
        labelled = any(len(names) > self._level for names in folders.values())
        if labelled:
            names = self._class_names(folders.values(), tops, others)
            classes = order_classes(names, self.options.classes, str(self.path), self.options.class_map)
            self._labels = {name: i for i, name in enumerate(classes)}
        contents = self._divide(images, folders, split_of)
        notes: tuple[str, ...] = (self._note_of_no_labels(len(images)),)
        if labelled:
            notes = (*self._note_of_classes(), *note_of_folders(folders, self._labels), *self._note_of_nested(folders))
        if labelled and self.options.multi_label:
            contents = self._with_several_labels(contents)
        elif labelled:
            notes += self._note_of_copies(images)
        if around := sorted(each for each in self._around if len(set(each.split("/")[:-1])) > self._level):
            notes += (f"{around[0][:-1]} is not read as a class, because it is the only folder there.",)
        of_masks = (note_of_masks(islice(images, _LOOKED_AT), self._level + deeper) for deeper in (0, 1))
        notes += notes_of_splits + next(filter(None, of_masks), ())
        left_out = (*contents.left_out, *map(no_samples, self._empty_splits(tops)))
        return replace(
            contents,
            left_out=left_out,
            notes=(*notes, *_note_of_unknown(others, len(images), is_labelled=len(self._labels) > 1)),
        )

    def _empty_splits(self, tops: Collection[str]) -> list[str]:
        """Folders named as splits, next to splits, without images."""
        with os_errors(str(self.path)):
            beside = [name for name, is_folder in entries(self.path) if is_folder and name not in tops]
        return sorted(name for name in beside if self._level and split_word(name))

    def _with_several_labels(self, contents: Contents) -> Contents:
        """Merge the copies of an image into one sample. Its reference lists all of them, the first one first."""
        splits: dict[str, PackedStrings] = {}
        for split, paths in contents.splits.items():
            copies: dict[str | tuple[str, bytes], list[str]] = {}
            named: dict[str, list[str]] = {}
            for path in map(str, paths):
                named.setdefault(self._name(path), []).append(path)
            for name, some in named.items():
                for path in some:
                    copies.setdefault((name, self._digest(path)) if len(some) > 1 else name, []).append(path)
            splits[split] = PackedStrings(sorted("\0".join(some) for some in copies.values()))
        fields = {"labels": LabelsField.of(tuple(self._labels))}
        return replace(contents, fields=fields, splits=splits, labels=None)

    def _note_of_copies(self, images: PackedStrings) -> tuple[str, ...]:
        """A note about images in several class folders; a few with equal names are compared."""
        firsts: dict[str, str] = {}
        compared = 0
        for path in islice(images, _LOOKED_AT):
            first = firsts.setdefault(self._name(path), path)
            if first != path and first.split("/")[: self._level] == path.split("/")[: self._level]:
                with suppress(SourceError, ConversionError):  # the conversion reads it again
                    if read_file(self.path / first, first) == read_file(self.path / path, path) != b"":
                        what = f"{first} and {path} are the same image in two class folders, and two samples"
                        return (f"{what}. Pass `multi_label` to give such images several labels.",)
                compared += 1
                if compared == _COMPARED:
                    break
        return ()

    def _name(self, path: str) -> str:
        """Path of an image below its class folder."""
        return self._inside(path).split("/", self._level + 1)[-1]

    def _digest(self, path: str) -> bytes:
        try:
            return hashlib.sha256(read_file(self.path / path, path)).digest()
        except SourceError:  # the conversion reads it again, as a separate image
            return path.encode()

    def _note_of_classes(self) -> tuple[str, ...]:
        """A note about class folders whose names suggest something else, or that have annotations next to them."""
        with os_errors(str(self.path)):
            beside = sorted(name for name, is_folder in entries(self.path) if is_folder and name not in self._labels)
        classes = list(self._labels)
        unread = None if self._level else next((name for name in beside if name.lower() in _ANNOTATIONS), None)
        is_word = classes[0].isalpha() and classes[0].islower()
        are_plain = all(map(is_plain, classes)) or (len(classes) == 1 and not is_word)
        if unread is not None:
            more = f"{unread} beside them may have annotations, which are not read. Name their `format` to read them."
        elif are_plain:
            more = f"If {classes[0]} is no class, convert that folder alone, or move its images into the folder above."
        elif len({split_word(name) or name.lower() for name in classes} & _LIKE_SPLITS) > 1:
            more = "If these are splits, rename them to train, val or test."
        else:
            return ()
        named = ", ".join(classes[:_NAMED]) + (", ..." if len(classes) > _NAMED else "")
        return (f"the classes are the names of folders: {named}. {more}",)

    def _note_of_nested(self, folders: Mapping[str, _Names]) -> tuple[str, ...]:
        """A note about a class folder with folders of other classes in it, such as a second copy of all."""
        nested = (names for names in folders.values() if not self._labels.keys().isdisjoint(names[self._level + 1 :]))
        if (names := next(nested, None)) is None:
            return ()
        what = f"{'/'.join(names)}: in the class folder {names[self._level]} is one with the name of another class"
        return (f"{what}. If {names[self._level]} is no class, move it away.",)

    def _note_of_no_labels(self, count: int) -> str:
        """A note about a folder of only images, such as one next to its annotations."""
        note = f"no labels: {count:,} images without class folders or annotations."
        for above, advice in ((self.path, "name their `format` to read them."), (self.path.parent, "")):
            with os_errors(str(above)):
                beside = sorted(
                    each for each, is_folder in entries(above) if is_folder and each.lower() in _ANNOTATIONS
                )
            if beside:
                advice = advice or f"convert {above} for images and annotations."
                return f"{note} {above / beside[0]} may have the annotations: {advice}"
        advice = "For training, put the images of each class into a separate folder, or pass `label_from`."
        return f"{note} {advice}"

    def _labelled_by_paths(
        self, pattern: re.Pattern[str], images: PackedStrings, split_of: Mapping[str, str]
    ) -> Contents:
        """The images of each split, with labels that a pattern finds in their paths."""
        problems: list[Problem] = []
        splits: dict[str, PackedStrings] = {}
        for folder, paths in groupby(images, _folder):
            top = folder.partition("/")[0]
            for path in encodable(paths, problems):
                if not _found(pattern, path):
                    message = f"expected a path in which `label_from` finds a label, '{pattern.pattern}' finds none."
                    problems.append(Problem(path, "no-label", message))
                elif split_of and not top:
                    message = "expected images inside the split folders, found one above them. Move it away."
                    problems.append(Problem(path, "no-annotation", message))
                else:
                    splits.setdefault(split_of.get(top, "train"), PackedStrings()).extend([path])
        if not splits:
            raise SourceError(problems, "Correct the expression.")
        texts = {_found(pattern, path) for paths in splits.values() for path in paths}
        classes = order_classes(texts, self.options.classes, str(self.path), self.options.class_map)
        self._labels = {name: i for i, name in enumerate(classes)}
        labels = {
            split: np.fromiter((self._labels[_found(pattern, path)] for path in paths), np.int64, len(paths))
            for split, paths in splits.items()
        }
        return Contents({"label": LabelField(classes=classes)}, splits, labels, tuple(problems))

    def _divide(self, images: PackedStrings, folders: Mapping[str, _Names], split_of: Mapping[str, str]) -> Contents:
        """The images of each split, with their labels; `split_of` maps each top folder to its split."""
        problems: list[Problem] = []
        depth = self._level + bool(self._labels)  # of the folders that images lie in or below
        splits: dict[str, PackedStrings] = {}
        labels: dict[str, array[int]] = {}
        for folder, paths in groupby(images, _folder):
            names = folders[folder]
            bare = len(names) == 1 and names[0] in self._unlabelled
            if len(names) < depth and not bare:
                level = "class" if self._labels else "split"
                message = f"expected images inside the {level} folders, found one beside or above them. Move it away."
                problems += [Problem(path, "no-annotation", message) for path in paths]
            elif kept := encodable(paths, problems):
                split = split_of[names[0]] if self._level else "train"
                splits.setdefault(split, PackedStrings()).extend(kept)
                label = UNLABELLED if bare else self._labels[names[self._level]] if self._labels else 0
                labels.setdefault(split, array("q")).extend([label] * len(kept))
        if not splits:
            raise SourceError(problems)
        if not self._labels:
            return Contents({}, splits, problems=tuple(problems))
        arrays = {split: np.asarray(values, np.int64) for split, values in labels.items()}
        return Contents({"label": LabelField(classes=tuple(self._labels))}, splits, arrays, tuple(problems))

    def read(self, split: str, reference: Reference) -> Sample:
        path, *copies = str(reference).split("\0")
        if not self.options.multi_label:
            return Sample(path, f"{self.path}/{path}", self._label(path))
        numbers = (self._label(each) for each in (path, *copies))
        known = [number for number in numbers if number is not None and number != UNLABELLED]
        row = LabelsField.of(tuple(self._labels)).row_of(known or None)
        return Sample(path, f"{self.path}/{path}", arrays={"labels": row})

    def files(self, reference: Reference) -> tuple[str, ...]:
        return tuple(f"{self.path}/{path}" for path in str(reference).split("\0"))

    def _label(self, path: str) -> int | None:
        if self._pattern is not None:
            return self._labels[_found(self._pattern, path)]
        names = self._inside(path).split("/", self._level + 1)[:-1]
        if not self._labels:
            return None
        return self._labels[names[self._level]] if len(names) > self._level else UNLABELLED

    def _found_around(self, folders: Iterable[_Names]) -> frozenset[str]:
        """The one folder of each split, or of all images, that is named as no class is, or as its split is.

        Its images are all in it, or all in class folders below.
        """
        below: dict[_Names, set[tuple[_Names, bool]]] = {}
        for names in folders:
            place = names[self._level : self._level + 1]
            below.setdefault(names[: self._level], set()).add((place, len(names) > self._level + 1))
        classes = {name for found in below.values() if len(found) > 1 for name, _ in found}
        alone = ((above, next(iter(found))[0]) for above, found in below.items() if len(found) == 1)
        return frozenset(
            "/".join([*above, *name, ""])
            for above, name in alone
            if name and name not in classes and (is_plain(name[0]) or name == above)
        )

    def _inside(self, path: str) -> str:
        """A path without a folder around all of its split."""
        parts = path.split("/", self._level + 1)
        is_around = self._around and "/".join([*parts[:-1], ""]) in self._around
        return "/".join([*parts[: self._level], parts[-1]]) if is_around else path

    def _check_level(self, tops: list[str], folders: Iterable[_Names]) -> None:
        """Raise for folders that would become wrong classes: splits next to other folders, or one folder around all."""
        if self._level or not tops:
            return
        below = _below(folders)
        splits = [top for top in tops if top.lower() in SPLIT_NAMES and below[top]] or _alike(tops, below)
        if splits:
            other = next(top for top in tops if top.lower() not in SPLIT_NAMES and top not in splits)
            message = f"expected split folders alone or class folders alone, found {splits[0]} beside {other}."
            raise SourceError(Problem(str(self.path), "split-name", message), f"Move {other} away, or rename it.")
        if len(tops) == 1 and all(len(names) > 1 for names in folders):
            message = f"expected class folders or split folders, found one folder around them: {tops[0]}."
            advice = f"Convert {self.path / tops[0]}.{note_of_beside(self.path, self.path / tops[0])}"
            raise SourceError(Problem(str(self.path), "unknown-format", message), advice)

    def _class_names(self, folders: Iterable[_Names], tops: list[str], others: list[str]) -> set[str]:
        """Folders at the level of classes that contain images, or are empty."""
        classes = {names[self._level] for names in folders if len(names) > self._level}
        filled = {"/".join(self._inside(other).split("/")[: self._level + 1]) for other in others}
        for above in [f"{top}/" for top in tops] if self._level else [""]:
            folder = self.path / next((around for around in self._around if around.startswith(above)), above)
            with os_errors(above or str(folder)):
                below = [name for name, is_folder in entries(folder) if is_folder]
            shown = (name for name in below if name[0] != "." and name.lower() not in LITTER)
            classes.update(name for name in shown if above + name not in filled)
        return {name for name in classes if encoding_problem(name) is None}


def _splits(tops: list[str], folders: Collection[_Names]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The split of each top folder, if all of them are splits, and notes."""
    if not tops or all(top.lower() in SPLIT_NAMES for top in tops):
        return split_names(tops), ()
    below = _below(folders)
    words = {top: split_word(top) for top in tops}
    are_plain = all(_PLAIN.issuperset(words_of(top)) for top in tops)
    are_alike = len({tuple(word for word in words_of(top) if word != words[top]) for top in tops}) == 1
    are_alike = are_alike or len(_alike(tops, below)) == len(tops)
    count = len(set(words.values()))
    if count > 1 and "" not in words.values() and (are_alike or (are_plain and count == len(tops))):
        return words, (f"the folders {', '.join(tops)} are read as the splits {', '.join(words.values())}.",)
    inner = {name for names in below.values() for name in names}
    if len(inner) > 1 and all(below.values()) and all(name.lower() in SPLIT_NAMES for name in inner):
        what = f"{', '.join(sorted(inner))} in the class folders are not read as splits"
        return {}, (f"{what}: for splits, move them above the class folders, as {min(inner)}/{tops[0]}.",)
    return {}, ()


def _below(folders: Iterable[_Names]) -> dict[str, set[str]]:
    """Folders with images in each top folder; of 2 nested folders with the same name, the inner one."""
    below: dict[str, set[str]] = {}
    for names in folders:
        if names:
            inner = names[2:] if names[1:2] == names[:1] else names[1:]
            below.setdefault(names[0], set()).update(inner[:1])
    return below


def _alike(tops: Iterable[str], below: Mapping[str, set[str]]) -> list[str]:
    """Top folders with a split in their names that share names of subfolders: the classes of splits."""
    named = [top for top in tops if split_word(top)]
    if len({split_word(top) for top in named}) < 2:
        return []
    return [top for top in named if any(below[top] & below[other] for other in named if other != top)]


def _has_image(files: Iterable[str]) -> bool:
    return any(file.endswith(tuple(IMAGE_SUFFIXES)) for file in files)


def _glance_doubled(root: Path) -> list[str]:
    """Files below the first folder that contains a folder of its own name, as unpacked archives do."""
    tops: list[str] = []
    with suppress(OSError):
        tops = sorted(name for name, is_folder in entries(root) if is_folder and split_word(name))
    doubled = next((root / top / top for top in tops if is_dir(root / top / top)), None)
    return [] if doubled is None else [file.lower() for file in glance(doubled)]


def _note_of_unknown(others: Sequence[str], images: int, *, is_labelled: bool) -> tuple[str, ...]:
    """A note about files that may be annotations: one, or nearly as many as the images."""
    others = [other for other in others if not is_about(other.rpartition("/")[2])]
    kinds = Counter(Path(other).suffix.lower() for other in others)
    suffix, count = max(
        kinds.items(), key=lambda each: (each[0] in _LIKELY, each[1], each[0] in _ALONE), default=("", 0)
    )
    least = 1 if suffix in _ALONE and not is_labelled else max(2, images // _SHARE)
    if suffix not in _LIKELY or count < least:
        return ()
    example = next(other for other in others if other.lower().endswith(suffix))
    files = (
        f"{count:,} {suffix} files, such as {example}, are not read. They"
        if count > 1
        else f"{example} is not read. It"
    )
    what = f"{files} may be annotations"
    how = "if you know it, name the `format`, or pass `via`, which reads more formats of boxes"
    return (f"{what} in a format that is not recognized: {how}.",)


def compiled(expression: str, option: str, others: str = "") -> re.Pattern[str]:
    """Compile the regular expression of an option, which may also be one of `others`; raises `OptionError`."""
    try:
        return re.compile(expression if len(expression) <= _LONGEST else "(")
    except re.error as error:
        message = f"expected {others}a regular expression, found {expression[:80]!r} ({error})."
        raise OptionError(f"`{option}`: {message}") from error


def _found(pattern: re.Pattern[str], path: str) -> str:
    """The label in a path, stripped; empty without a match."""
    match = pattern.search(path)
    group = "label" if "label" in pattern.groupindex else min(pattern.groups, 1)
    return "" if match is None else (match[group] or "").strip()


def _folder(path: str) -> str:
    return path[: path.rfind("/") + 1]
