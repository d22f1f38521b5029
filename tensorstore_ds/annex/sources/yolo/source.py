"""Ultralytics and Darknet: a text file for each image, with a row for each object: formats/sources/yolo.md."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from tensorstore_ds.annex.sources.yolo.config import Config, find_config, is_config, read_config
from tensorstore_ds.annex.sources.yolo.labels import FILE_LIMIT, ORIENTED, Labels, parse_labels
from tensorstore_ds.annex.sources.yolo.layout import Files, find_splits, has_labels
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import is_dir, is_file, read_file
from tensorstore_ds.sources.annotations import AnnotatedSource, Row
from tensorstore_ds.sources.base import Contents, Reference, Sample, SourceOptions
from tensorstore_ds.sources.files import PackedStrings, encoding_problem
from tensorstore_ds.sources.forms import noted
from tensorstore_ds.sources.splits import Splits


class YoloSource(AnnotatedSource):
    """A reference is the paths of an image and its label file, if it has one, separated by NUL."""

    name: ClassVar[str] = "yolo"
    scanned: ClassVar[tuple[str, ...] | None] = ("_config", "_reader")
    _config = Config()  # as it was read

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether `path` is a ``data.yaml``, a folder with one, or one with images and label files at their places."""
        if is_file(path):
            return is_config(path)
        return is_dir(path) and (has_labels(path) or find_config(path) is not None)

    def scan(self) -> Contents:
        """Read every label file, for the classes and for errors."""
        config = read_config(self._root, self.path.name if is_file(self.path) else find_config(self.path))
        self._config = config = _with_options(config, self.options)
        files = Files(self.images, self._root)
        if not files.images:
            message = "expected images in this folder or below, found none."
            raise SourceError(Problem(str(self.images), "empty-source", message), "Name a folder that holds images.")
        splits = find_splits(self._root, files, config)
        self.ledger.use(*splits.lists, config.file, config.names_file)
        for name in config.unread:
            self.ledger.unread(f'"{name[:60]}"', config.file)
        notes = (*config.notes, *self._read_all(files, splits))
        references = {
            name: PackedStrings(f"{files.images[row]}\0{files.label(files.images[row]) or ''}" for row in rows)
            for name, rows in splits.rows.items()
            if len(rows)
        }
        if not references:
            raise SourceError(splits.problems)
        names = config.names or {i: str(i) for i in range(1 + max(map(int, self._annotations.classes), default=-1))}
        self._annotations.problems, self._annotations.left_out = splits.problems, splits.left_out
        self._annotations.left_out += _without_image(files)
        return self._contents(references, notes, classes=tuple(names.values()), keypoints=config.keypoints)

    def read(self, split: str, reference: Reference) -> Sample:
        image, _, label = str(reference).partition("\0")
        objects = self._labels(label).objects if label else []
        arrays = self._reader.arrays(Row.of(objects), label or image)
        return Sample(image, f"{self.images}/{image}", objects=arrays, annotation=label, relative=True)

    def files(self, reference: Reference) -> tuple[str, ...]:
        image, _, label = str(reference).partition("\0")
        return (f"{self.images}/{image}", *([f"{self._root}/{label}"] if label else []))

    def common_files(self) -> tuple[Path, ...]:
        return (self._root / self._config.file,) if self._config.file else ()

    def _labels(self, label: str) -> Labels:
        return parse_labels(read_file(self._root / label, label, FILE_LIMIT), label, self._config)

    def _read_all(self, files: Files, splits: Splits) -> tuple[str, ...]:
        """Read the labels of all splits, which keep only sound samples; returns notes."""
        is_sound: dict[int, bool] = {}
        bare, lengths = 0, set[int]()
        for row in dict.fromkeys(row for rows in splits.rows.values() for row in rows.tolist()):
            image = files.images[row]
            label = files.label(image)
            bare += label is None
            is_sound[row] = False
            with noted(splits.problems):
                if problem := encoding_problem(image):
                    raise SourceError(problem)
                labels = self._labels(label) if label else Labels()
                is_sound[row] = True
                lengths |= labels.lengths
                self._annotations.note(labels.objects)
                if labels.repeated:
                    lines = ", ".join(map(str, labels.repeated[:5])) + (", ..." if len(labels.repeated) > 5 else "")
                    message = f"not stored twice: {len(labels.repeated)} rows that repeat others, in lines {lines}."
                    splits.left_out.append(Problem(label or image, "duplicate-object", message))
        if is_sound and bare == len(is_sound):
            message = "expected label files, in labels instead of images or beside the images, found none."
            raise SourceError(
                Problem(str(self.path), "no-annotation", message),
                "Rename the folder of label files to labels, or name the folder of both.",
            )
        splits.rows = {name: rows[[is_sound[row] for row in rows.tolist()]] for name, rows in splits.rows.items()}
        notes = (*splits.notes, *_notes(bare, lengths, self._config))
        if lengths == {ORIENTED} and self._config.keypoints is None and not self._config.task:
            self._config = replace(self._config, task="obb")
            self._annotations.values.discard("polygons")
            self._annotations.values.add("oriented_boxes")
        return notes


def _with_options(config: Config, options: SourceOptions) -> Config:
    """Config with the user's names for numbered classes and keypoints."""
    if config.names is None and options.classes:
        config = replace(config, names=dict(enumerate(options.classes)))
    if config.keypoints is None or options.keypoints is None:
        return config
    count, wanted = len(config.keypoints.names), len(options.keypoints.names)
    if count != wanted:
        message = f"expected {count} names of keypoints, as kpt_shape says, found {wanted} in the keypoint list."
        raise SourceError(Problem(config.file, "unknown-keypoint", message), "Correct the list.")
    return replace(config, keypoints=options.keypoints)


def _notes(bare: int, lengths: Collection[int], config: Config) -> Iterator[str]:
    if bare:
        yield f"{bare} images have no label file: they are stored as images without objects."
    if config.keypoints is None and lengths == {ORIENTED} and not config.task:
        message = "all rows have 9 numbers, and are read as oriented boxes"
        yield f"{message}. If they are polygons of 4 corners, write task: segment into data.yaml."
    if config.keypoints is None and len(lengths) == 1 and min(lengths) > ORIENTED:
        message = f"all rows have {min(lengths)} numbers, and are read as polygons"
        yield f"{message}. If they are a box and keypoints, write a data.yaml with kpt_shape."


def _without_image(files: Files) -> list[Problem]:
    """Problems for label files without an image."""
    used = {files.label(image) for image in files.images}
    labels = (text for text in files.texts if "/labels/" in f"/{text}" and text not in used)
    message = "not stored: no image has this name."
    return [Problem(text, "no-image", message) for text in labels if not text.endswith("/classes.txt")]
