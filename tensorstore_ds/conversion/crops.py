"""A sample for each annotated object: its part of the image, its class and its keypoints."""

from __future__ import annotations

import hashlib
import math
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.encode import Opener, picture_of
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.values import Fit, ObjectCrops
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField, Field, named
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.imaging.objects import in_pixels
from tensorstore_ds.imaging.oriented import as_corners
from tensorstore_ds.imaging.picture import PathInErrors, open_picture, read_header
from tensorstore_ds.imaging.placement import box_faults, clip
from tensorstore_ds.sources.around import AroundSource
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.forms import noted

#: The field with the box of a crop in the image that it is from.
SOURCE_BOX = "source_box"
_FAULTS = {
    "box-nan": "a box of finite numbers",
    "box-reversed": "a box that begins before it ends",
    "box-empty": "a box with an area",
    "box-outside": "a box inside of the image",
}


class OpenImage:
    """An image that is being cut, and its sample, whose objects are in pixels; `masks` are (H, W), by name."""

    def __init__(self, sample: Sample, options: ConvertOptions, open_it: Opener = open_picture, **how: Any) -> None:
        self.picture = picture_of(sample, options, open_it, **how)
        self.size = self.picture.size
        self.sample = replace(sample, left_out=sample.left_out + self.picture.left_out)
        self.objects = in_pixels(sample.objects, self.size) if sample.relative and sample.objects else sample.objects
        self.masks: Mapping[str, NDArray[Any]] = {}


class PartSource(AroundSource):
    """Samples are parts of the images of another source.

    A reference ends with ``\\0`` and the number of the image, followed by a digest of the image's own reference if that
    holds annotations: a finished shard with other ones is not used again.
    """

    def __init__(self, source: Source, options: ConvertOptions) -> None:
        super().__init__(source)
        self.has_parts, self._options = True, options
        self._images: list[tuple[int, str, Any]] = []  # the first image of each split, its name, and its references
        self._problems: list[Problem] = []  # of the scan
        self._last: tuple[tuple[int, int], OpenImage] | None = None  # the last image, its number and its process

    def _parts(self, split: str, reference: Reference) -> Sequence[str]:
        """The parts of an image that become samples, as they are in references; they contain no NUL."""
        raise NotImplementedError

    def _open(self, sample: Sample) -> OpenImage:
        return OpenImage(sample, self._options)

    def _scanned(self, contents: Contents, expected: str) -> tuple[Contents, dict[str, list[int]]]:
        """The contents with the references of all parts, and the number of parts of each image of each split."""
        splits: dict[str, PackedStrings] = {}
        counts: dict[str, list[int]] = {}
        problems, number = self._problems, 0
        problems += contents.problems
        for split, listed in contents.splits.items():
            self._images.append((number, split, listed))
            references, counts[split] = PackedStrings(), []
            for own in listed:
                parts: Sequence[str] = ()
                with noted(problems), quiet_pillow():
                    parts = self._parts(split, own)
                key, known = self._source.key(split, own), str(own).encode("utf-8", "surrogateescape")
                end = f"{number} {hashlib.blake2b(known, digest_size=8).hexdigest()}" if b"\0" in known else f"{number}"
                references.extend(f"{key}\0{part}\0{end}" for part in parts)
                counts[split].append(len(parts))
                number += 1
            if references:
                splits[split] = references
        if not splits:
            nothing = Problem(str(self.path), "empty-source", f"expected {expected}, found none.")
            raise SourceError(problems or nothing)
        return replace(contents, splits=splits, labels=None, problems=tuple(problems)), counts

    def whole(self, split: str, reference: Reference) -> str:
        return self._source.whole(*self._image(reference))

    def column(self, name: str) -> Callable[[str, Reference], str]:
        value = self._source.column(name)
        return lambda split, reference: value(*self._image(reference))

    def files(self, reference: Reference) -> tuple[str, ...]:
        return self._source.files(self._image(reference)[1])

    def _image(self, reference: Reference) -> tuple[str, Reference]:
        """The source's split and reference of the image that a part is from."""
        number = _number(reference)
        first, split, listed = self._images[bisect_right(self._images, number, key=lambda each: each[0]) - 1]
        return split, listed[number - first]

    def _opened(self, reference: Reference) -> OpenImage:
        """The image that a part is from, which is opened once for consecutive parts.

        A forked process opens it again: it would move the position in the parent's file.
        """
        wanted = _number(reference), os.getpid()
        if self._last is None or self._last[0] != wanted:
            self._last = None  # before the next one takes memory
            self._last = wanted, self._open(self._source.read(*self._image(reference)))
        return self._last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def _number(reference: Reference) -> int:
    return int(str(reference).rpartition("\0")[2].partition(" ")[0])


class CropSource(PartSource):
    """The objects of a source, image by image. A reference is the image's key, the object's and the image's number."""

    def __init__(self, source: Source, options: ConvertOptions, cut: ObjectCrops) -> None:
        super().__init__(source, options)
        self._cut = cut
        self._values: frozenset[str] = frozenset()
        self._labels: dict[str, list[int]] = {}  # of the scan
        self._left_out = Counter[str]()

    def scan(self) -> Contents:
        """Scan the source, and read all of its annotations, for the number and size of their objects."""
        contents = self._source.contents()
        field = named(contents.fields, "objects", ObjectsField)
        if field is None or "boxes" not in field.values:
            raise OptionError('`objects="crops"`: expected objects with boxes, found none in the source. Leave it out.')
        self._values = frozenset(field.values) - {"rle"}
        found, _ = self._scanned(contents, "objects that are large enough")
        where, others = str(self.path), [name for name in contents.fields if name != "objects"]
        counts = ((reason, n) for reason, n in self._left_out.items() if n)
        not_stored = [Problem(where, reason, f"not stored: {n:,} objects.") for reason, n in counts]
        not_stored += [Problem(where, "not-listed", f"{name}: not stored with crops.") for name in others]
        labels = {split: np.array(self._labels[split], np.int64) for split in found.splits} if field.classes else None
        self._labels = {}  # there is a copy for each worker
        return replace(found, fields=_fields(field), labels=labels, left_out=(*contents.left_out, *not_stored))

    def read(self, split: str, reference: Reference) -> Sample:
        """Read a crop; its image is decoded once for consecutive crops."""
        key, text, _ = str(reference).split("\0")
        i, image = int(text), self._opened(reference)
        picture, size, objects = image.picture, image.size, image.objects or {}
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
            with PathInErrors(image.sample.key, image.sample.image):
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

    def _parts(self, split: str, reference: Reference) -> list[str]:
        """The numbers of the objects of an image that are stored; notes their labels, and counts the others."""
        labels = self._labels.setdefault(split, [])
        sample = self._source.read(split, reference)
        if not sample.objects or not len(sample.objects["boxes"]):
            return []
        objects = sample.objects
        if sample.relative:
            header = read_header(sample.image, max_pixels=self._options.max_pixels, key=sample.key)
            objects = in_pixels(objects, header.size)
        boxes = np.asarray(objects["boxes"], np.float64)
        with np.errstate(invalid="ignore"):  # what is no box is found when it is read
            is_small = np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]) < self._cut.min_side
        is_small &= box_faults(boxes, (2**62, 2**62)) == ""
        is_crowd = np.asarray(objects.get("iscrowd", np.zeros(len(boxes))), np.bool_)
        self._left_out.update({"small-objects": int((is_small & ~is_crowd).sum()), "crowds": int(is_crowd.sum())})
        kept = np.flatnonzero(~(is_small | is_crowd))
        if "labels" in self._values:
            labels += np.asarray(objects["labels"], np.int64)[kept].tolist()
        return list(map(str, kept.tolist()))

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


def _fields(field: ObjectsField) -> dict[str, Field]:
    values = {name: spec for name, spec in field.values.items() if name != "rle"}
    objects = replace(field, values=values)
    labelled: dict[str, Field] = {"label": LabelField(classes=field.classes)} if field.classes else {}
    return {**labelled, "objects": objects, SOURCE_BOX: ArrayField(ArraySpec("float32", (4,)))}
