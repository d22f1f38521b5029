"""A sample for each annotated object: its part of the image, its class and its keypoints."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.encode import check_size
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.pixels import PathInErrors
from tensorstore_ds.conversion.values import Fit, ObjectCrops
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField, Field, named
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.imaging.objects import in_pixels
from tensorstore_ds.imaging.oriented import as_corners
from tensorstore_ds.imaging.picture import Picture, open_picture, read_header
from tensorstore_ds.imaging.placement import box_faults, clip
from tensorstore_ds.sources.base import Contents, Objects, Reference, Sample, Source
from tensorstore_ds.sources.files import PackedStrings

#: The field with the box of a crop in the image that it is from.
SOURCE_BOX = "source_box"
_FAULTS = {
    "box-nan": "a box of finite numbers",
    "box-reversed": "a box that begins before it ends",
    "box-empty": "a box with an area",
    "box-outside": "a box inside of the image",
}


class PartSource(Source):
    """Samples are parts of the images of another source; a reference ends with ``\\0`` and the number of the image."""

    has_parts: bool = True
    is_audited: ClassVar[bool] = False
    _source: Source
    _images: list[tuple[int, str, Any]]  #: the first image of each split, its name, and its references

    def whole(self, split: str, reference: Reference) -> str:
        return self._source.whole(*self._image(reference))

    def column(self, name: str) -> Callable[[str, Reference], str]:
        value = self._source.column(name)
        return lambda split, reference: value(*self._image(reference))

    def files(self, reference: Reference) -> tuple[str, ...]:
        return self._source.files(self._image(reference)[1])

    def common_files(self) -> tuple[Path, ...]:
        return self._source.common_files()

    def _image(self, reference: Reference) -> tuple[str, Reference]:
        """The source's split and reference of the image that a part is from."""
        return self._numbered(int(str(reference).rpartition("\0")[2]))

    def _numbered(self, number: int) -> tuple[str, Reference]:
        first, split, listed = self._images[bisect_right(self._images, number, key=lambda each: each[0]) - 1]
        return split, listed[number - first]


class CropSource(PartSource):
    """The objects of a source, image by image. A reference is the image's key, the object's and the image's number."""

    def __init__(self, source: Source, options: ConvertOptions, cut: ObjectCrops) -> None:
        super().__init__(source.path, options)
        self.name = source.name  # of the format that it has
        self._source, self._options, self._cut = source, options, cut
        self._images = []
        self._values: frozenset[str] = frozenset()
        self._last: tuple[str, Picture] | None = None  # the last image

    def scan(self) -> Contents:
        """Scan the source, and read all of its annotations, for the number and size of their objects."""
        contents = self._source.contents()
        field = named(contents.fields, "objects", ObjectsField)
        if field is None or "boxes" not in field.values:
            raise OptionError('`objects="crops"`: expected objects with boxes, found none in the source. Leave it out.')
        self._values = frozenset(field.values) - {"rle"}
        splits: dict[str, PackedStrings] = {}
        labels: dict[str, NDArray[np.int64]] = {}
        problems, left_out = list(contents.problems), Counter[str]()
        first = 0
        for split, listed in contents.splits.items():
            self._images.append((first, split, listed))
            references, classes = PackedStrings(), list[int]()
            for number, own in enumerate(listed, first):
                try:
                    kept, own_labels = self._kept(split, own, left_out)
                except SourceError as error:
                    problems += error.problems
                    continue
                key = self._source.key(split, own)
                references.extend(f"{key}\0{i}\0{number}" for i in kept)
                classes += own_labels
            first += len(listed)
            if references:
                splits[split], labels[split] = references, np.array(classes, np.int64)
        if not splits:
            nothing = Problem(str(self.path), "empty-source", "expected objects that are large enough, found none.")
            raise SourceError(problems or nothing)
        not_stored = [
            Problem(str(self.path), reason, f"not stored: {n:,} objects.") for reason, n in left_out.items() if n
        ]
        others = [name for name in contents.fields if name != "objects"]
        not_stored += [Problem(str(self.path), "not-listed", f"{name}: not stored with crops.") for name in others]
        return Contents(
            _fields(field),
            splits,
            labels if field.classes else None,
            tuple(problems),
            (*contents.left_out, *not_stored),
            contents.notes,
        )

    def read(self, split: str, reference: Reference) -> Sample:
        """Read a crop; its image is decoded once for consecutive crops."""
        key, text, _ = str(reference).split("\0")
        i, own_split, own = int(text), *self._image(reference)
        sample = self._source.read(own_split, own)
        picture = self._opened(sample)
        size = picture.size
        objects = _objects(sample, size)
        boxes = objects["boxes"][i : i + 1]
        if fault := str(box_faults(boxes, size)[0]):
            found = ", ".join(f"{value:g}" for value in boxes[0])
            message = f"object {i + 1}: expected {_FAULTS[fault]}, found ({found}) in an image of {size[0]}x{size[1]}."
            raise SourceError(Problem(key, fault, message))
        box = clip(boxes, size)[0]
        left, top, right, bottom = self._region(box)
        options = self._options
        if (right - left) * (bottom - top) > options.max_pixels:
            message = f"object {i + 1}: this crop has {right - left}x{bottom - top} pixels, the limit is "
            raise SourceError(Problem(key, "too-many-pixels", f"{message}{options.max_pixels}."))
        crop = np.zeros((bottom - top, right - left, picture.shape[2]), picture.dtype)
        first, last = (max(top, 0), max(left, 0)), (min(bottom, size[0]), min(right, size[1]))
        if first[0] < last[0] and first[1] < last[1]:  # a small crop at the edge may lie outside
            with PathInErrors(sample.key, sample.image):
                inside = picture.read(*first, *last)
            crop[first[0] - top : last[0] - top, first[1] - left : last[1] - left] = inside
        corner = np.array([left, top], np.float64)
        values: dict[str, Any] = {"boxes": box[None] - np.tile(corner, 2)}
        for name in self._values - {"boxes"}:
            value = objects[name][i : i + 1]
            if name == "keypoints":
                value = value - corner
            elif name == "oriented_boxes":
                value = as_corners(value) - corner
            elif name == "polygons":
                value = [corners - corner for corners in value]
            values[name] = value
        label = int(objects["labels"][i]) if "labels" in self._values else None
        arrays = {SOURCE_BOX: box.astype(np.float32)}
        return Sample(f"{key}#{i}", crop, label, values, arrays=arrays)

    def key(self, split: str, reference: Reference) -> str:
        key, i, _ = str(reference).split("\0")
        return f"{key}#{i}"

    def _kept(self, split: str, reference: Reference, left_out: Counter[str]) -> tuple[list[int], list[int]]:
        """The numbers of the objects of an image that are stored, and their labels; `left_out` counts the others."""
        sample = self._source.read(split, reference)
        if not sample.objects or not len(sample.objects["boxes"]):
            return [], []
        size = self._header_size(sample) if sample.relative else (1, 1)
        objects = _objects(sample, size)
        boxes = np.asarray(objects["boxes"], np.float64)
        with np.errstate(invalid="ignore"):  # what is no box is found when it is read
            is_small = np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]) < self._cut.min_side
        is_small &= box_faults(boxes, (2**62, 2**62)) == ""
        is_crowd = np.asarray(objects.get("iscrowd", np.zeros(len(boxes))), np.bool_)
        left_out.update({"small-objects": int((is_small & ~is_crowd).sum()), "crowds": int(is_crowd.sum())})
        kept = np.flatnonzero(~(is_small | is_crowd))
        labels = np.asarray(objects["labels"], np.int64)[kept].tolist() if "labels" in self._values else []
        return kept.tolist(), labels

    def _header_size(self, sample: Sample) -> tuple[int, int]:
        return read_header(sample.image, max_pixels=self._options.max_pixels, key=sample.key).size

    def _opened(self, sample: Sample) -> Picture:
        """The whole image, which is opened once for consecutive crops."""
        if self._last is None or self._last[0] != sample.key:
            self._last = None  # before the next one takes memory
            how: Any = {"color": self._options.color, "max_pixels": self._options.max_pixels, "key": sample.key}
            with PathInErrors(sample.key, sample.image):
                picture = open_picture(sample.image, **how)
            check_size(sample, picture)
            self._last = sample.key, picture
        return self._last[1]

    def _region(self, box: NDArray[np.float64]) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) of the part around a box, with its margin and the aspect ratio of `size`."""
        (left, top), (right, bottom) = box[:2], box[2:]
        fit = self._options.fit
        width, height = ((1 + 2 * self._cut.margin) * side for side in (right - left, bottom - top))
        is_padded = isinstance(fit, Fit) and fit.how == "pad"
        if isinstance(fit, Fit) and is_padded:  # wider or higher, so that no border is needed
            aspect = fit.size[1] / fit.size[0]
            height = math.ceil(max(height, width / aspect))
            width = max(1, round(height * aspect))
        x, y = (left + right) / 2, (top + bottom) / 2
        first_x, first_y = math.floor(x - width / 2), math.floor(y - height / 2)
        # A part of one pixel around a box of less may end before it.
        first_x = first_x if first_x + width > left else math.floor(left)
        first_y = first_y if first_y + height > top else math.floor(top)
        if is_padded:
            return first_x, first_y, first_x + int(width), first_y + int(height)
        return first_x, first_y, max(math.ceil(x + width / 2), first_x + 1), max(math.ceil(y + height / 2), first_y + 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def _objects(sample: Sample, size: tuple[int, int]) -> Objects:
    objects = sample.objects or {}
    return in_pixels(objects, size) if sample.relative else objects


def _fields(field: ObjectsField) -> dict[str, Field]:
    values = {name: spec for name, spec in field.values.items() if name != "rle"}
    objects = replace(field, values=values)
    labelled: dict[str, Field] = {"label": LabelField(classes=field.classes)} if field.classes else {}
    return {**labelled, "objects": objects, SOURCE_BOX: ArrayField(ArraySpec("float32", (4,)))}
