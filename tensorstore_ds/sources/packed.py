"""Sources whose references contain all annotations of an image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tensorstore_ds.errors import Problem
from tensorstore_ds.regular_files import is_file
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import PackedStrings, walk_files
from tensorstore_ds.sources.images import ImageIndex
from tensorstore_ds.sources.objects import AnnotatedObject, ObjectTable
from tensorstore_ds.sources.splits import folder_splits
from tensorstore_ds.sources.xml import Place


def pack(image: str, size: tuple[int, int], objects: Sequence[AnnotatedObject]) -> str:
    """Encode an image with its objects as one string: some 12 bytes a keypoint, where a tuple would take 200.

    `size` is (height, width) as annotated; 0 if unknown.
    """
    rows = []
    for each in objects:
        keypoints = [value for name, (x, y) in each.keypoints.items() for value in (name, _short(x), _short(y))]
        rows.append([each.label, each.flags, *map(_short, each.box), *keypoints])
    oriented = [_flat(each.oriented) or int(each.is_rectangle) for each in objects]  # 1 for that of the box
    outlines: list[list[Any]] = [[_flat(each.polygon) for each in objects], oriented]
    while outlines and not any(outlines[-1]):
        outlines.pop()
    parts = [size, rows, *outlines]
    return f"{image}\0{json.dumps(parts, separators=(',', ':'))}"


class PackedSource(Source):
    """A source whose references are images with their objects, encoded by `pack`: workers need no annotation."""

    scanned: ClassVar[tuple[str, ...] | None] = ("_table",)

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._root = path.parent if is_file(path) else path  # what the paths of annotations are relative to
        self.images = options.images or self._root
        self._table = ObjectTable()

    def _walked(self, suffix: str) -> tuple[list[str], ImageIndex]:
        """Annotation files with a suffix, and all images."""
        files = [self.path.name] if is_file(self.path) else list(walk_files(self.path, {suffix}))
        return files, ImageIndex(walk_files(self.images, IMAGE_SUFFIXES))

    def _by_folder(self, entries: Mapping[str, str]) -> tuple[dict[str, PackedStrings], tuple[str, ...]]:
        """Divide the references of all images, by path, into splits of folders; also returns notes."""
        keys = sorted(entries)
        splits, notes = folder_splits(keys, str(self.path))
        return {name: PackedStrings(entries[keys[i]] for i in rows) for name, rows in splits.items()}, notes

    def _contents(
        self,
        references: Mapping[str, PackedStrings],
        problems: Sequence[Problem],
        left_out: Sequence[Problem],
        notes: Sequence[str],
        *,
        labelled: bool = True,
    ) -> Contents:
        """What the scan found, with what its table knows."""
        left_out = (*left_out, *self._table.left_out(str(self.path)))
        field = self._table.field(self.options, str(self.path), labelled=labelled)
        return Contents({"objects": field}, references, None, tuple(problems), left_out, (*self._table.notes, *notes))

    def read(self, split: str, reference: Reference) -> Sample:
        image, size, objects = unpack(str(reference))
        arrays = self._table.arrays(objects, image)
        return Sample(image, f"{self.images}/{image}", objects=arrays, annotated_size=size if all(size) else None)


def unpack(entry: str) -> tuple[str, tuple[int, int], list[AnnotatedObject]]:
    """The image's path, its (height, width), and its objects."""
    image, _, text = entry.partition("\0")
    (height, width), rows, *rest = json.loads(text)
    objects = []
    none: list[int] = [0] * len(rows)
    polygons, oriented = (*rest, none, none)[:2]
    for i, (label, flags, x1, y1, x2, y2, *flat) in enumerate(rows):
        keypoints = {name: (x, y) for name, x, y in zip(flat[::3], flat[1::3], flat[2::3], strict=True)}
        polygon, corners = _places(polygons[i]), _places(oriented[i])
        box = x1, y1, x2, y2
        objects.append(AnnotatedObject(label, box, flags, keypoints, polygon, corners, oriented[i] == 1))
    return image, (height, width), objects


def _flat(places: Sequence[Place]) -> list[float]:
    return [_short(value) for place in places for value in place]


def _places(flat: list[float] | int) -> tuple[Place, ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True)) if isinstance(flat, list) else ()


def _short(value: float) -> float:
    return int(value) if value.is_integer() else value  # 201 takes two characters less than 201.0
