"""A sample for each tile of an image, with the objects and masks in it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.crops import SOURCE_BOX, PartSource
from tensorstore_ds.conversion.encode import check_size, mask_of_image
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.pixels import PathInErrors
from tensorstore_ds.conversion.values import ImageTiles
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField, named, of_kind
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.imaging.objects import in_pixels, place_objects
from tensorstore_ds.imaging.picture import PicturePart, open_picture, read_header
from tensorstore_ds.imaging.placement import Placement, box_faults
from tensorstore_ds.imaging.resizing import resize_nearest
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.tiling import count_tiles, tile_corners

#: Maximum number of tiles of an image.
MOST_TILES = 10_000_000


class TileSource(PartSource):
    """The tiles of a source's images, row by row. A reference is the image's key, y, x and the image's number."""

    def __init__(self, source: Source, options: ConvertOptions, cut: ImageTiles) -> None:
        super().__init__(source.path, options)
        self.name = source.name  # of the format that it has
        self._source, self._options, self._cut, self._size = source, options, cut, cut.size
        self._images = []
        self._masks: dict[str, MaskField] = {}
        self._last: tuple[int, _Opened] | None = None  # the last image, and its number

    def scan(self) -> Contents:
        """Scan the source, and read the headers of all images and, to find empty tiles, all annotations."""
        contents = self._source.contents()
        objects, share = named(contents.fields, "objects", ObjectsField), self._cut.empty
        if share < 1 and (objects is None or "boxes" not in objects.values):
            raise OptionError("`empty_tiles`: expected objects with boxes, found none in the source. Leave it out.")
        self._masks = of_kind(contents.fields, MaskField)
        splits: dict[str, PackedStrings] = {}
        labels: dict[str, NDArray[np.int64]] = {}
        problems, first = list(contents.problems), 0
        for split, listed in contents.splits.items():
            self._images.append((first, split, listed))
            references, counts = PackedStrings(), list[int]()
            for number, own in enumerate(listed, first):
                corners: Sequence[Any] = ()
                try:
                    with quiet_pillow():
                        corners = self._kept(split, own)
                except SourceError as error:
                    problems += error.problems
                key = self._source.key(split, own)
                references.extend(f"{key}\0{y},{x}\0{number}" for y, x in corners)
                counts.append(len(corners))
            first += len(listed)
            if references:
                splits[split] = references
                if contents.labels is not None and split in contents.labels:
                    labels[split] = np.repeat(contents.labels[split], counts)
        if not splits:
            nothing = Problem(str(self.path), "empty-source", "expected tiles with objects, found none.")
            raise SourceError(problems or nothing)
        fields = {**contents.fields, SOURCE_BOX: ArrayField(ArraySpec("float32", (4,)))}
        has_labels = contents.labels is not None and labels.keys() == splits.keys()
        return replace(
            contents, fields=fields, splits=splits, labels=labels if has_labels else None, problems=tuple(problems)
        )

    def read(self, split: str, reference: Reference) -> Sample:
        """Read a tile; its image is opened once for consecutive tiles."""
        _, place, number = str(reference).split("\0")
        y, x = map(int, place.split(","))
        image = self._opened(int(number))
        placement = self._placement(image.size, y, x)
        left, top, right, bottom = placement.box
        objects, problems = image.sample.objects, image.sample.problems
        if objects is not None:
            objects, found = self._placed(image, placement)
            # Wrong boxes are reported once, with the first tile, unless they exclude the whole image.
            problems += found if (y, x) == (0, 0) or self._options.on_error == "skip-image" else ()
        masks = {name: resize_nearest(mask, placement, self._masks[name].ignored or 0) for name, mask in image.masks()}
        return replace(
            image.sample,
            key=self.key(split, reference),
            image=PicturePart(image.picture, (y, x), self._size),
            objects=objects,
            problems=problems,
            masks=masks,
            arrays={**image.sample.arrays, SOURCE_BOX: np.array([left, top, right, bottom], np.float32)},
            annotated_size=None,
            relative=False,
        )

    def key(self, split: str, reference: Reference) -> str:
        key, place, _ = str(reference).split("\0")
        return f"{key}#{','.join(each.zfill(5) for each in place.split(','))}"

    def _opened(self, number: int) -> _Opened:
        if self._last is None or self._last[0] != number:
            self._last = None  # before the next one takes memory
            self._last = number, _Opened(self._source.read(*self._numbered(number)), self._options, self._masks)
        return self._last[1]

    def _kept(self, split: str, reference: Reference) -> list[list[int]]:
        """(y, x) of the tiles of an image that become samples."""
        image = _Opened(self._source.read(split, reference), self._options)
        shares = (self._cut.overlap, self._cut.overlap)
        count = int(count_tiles([image.size], self._size, shares).prod())
        if count > MOST_TILES:
            message = f"expected at most {MOST_TILES:,} tiles of an image, found {count:,}: {image.size[1]}x"
            raise SourceError(
                Problem(image.sample.key, "too-many-pixels", f"{message}{image.size[0]} pixels."),
                "Choose larger tiles.",
            )
        corners = tile_corners([image.size], self._size, shares)[:, 1:]
        if self._cut.empty < 1:
            corners = corners[self._is_chosen(image, corners)]
        listed: list[list[int]] = corners.tolist()
        return listed

    def _is_chosen(self, image: _Opened, corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which tiles have an object, or belong to the kept share of empty tiles."""
        key, seed = image.sample.key, self._options.seed
        salt = seed.to_bytes(16, "little", signed=True)
        digests = (
            hashlib.blake2b(f"{key}#{y},{x}".encode("utf-8", "surrogateescape"), digest_size=8, salt=salt).digest()
            for y, x in corners.tolist()
        )
        chosen = np.frombuffer(b"".join(digests), "<u8") / 2.0**64 < self._cut.empty
        boxes = np.asarray((image.objects or {}).get("boxes", np.empty((0, 4))), np.float64)
        boxes = boxes[box_faults(boxes, image.size) == ""]
        if not len(boxes):
            return chosen
        tops, lefts = corners.T
        touched = np.zeros(len(corners), np.bool_)
        for x1, y1, x2, y2 in boxes:
            touched |= (lefts < x2) & (tops < y2) & (lefts + self._size[1] > x1) & (tops + self._size[0] > y1)
        for i in np.flatnonzero(touched & ~chosen):
            placement = self._placement(image.size, *corners[i].tolist())
            chosen[i] = len(place_objects(key, {"boxes": boxes}, image.size, placement)[0]["boxes"])
        return chosen

    def _placement(self, size: tuple[int, int], y: int, x: int) -> Placement:
        """Placement of an image's part in a tile: space beyond the image is at the right and below."""
        bottom, right = min(y + self._size[0], size[0]), min(x + self._size[1], size[1])
        box, inside = (x, y, right, bottom), (bottom - y, right - x)
        return Placement(box, inside, self._size, min_visibility=self._cut.min_visibility)

    def _placed(self, image: _Opened, placement: Placement) -> tuple[dict[str, Any], tuple[Problem, ...]]:
        """The objects in a tile, and the problems of the image's objects."""
        sample = image.sample
        placed, problems = place_objects(
            sample.key, image.objects or {}, image.size, placement, sample.annotation, is_tile=True
        )
        return dict(placed), problems

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


class _Opened:
    """An image that is being cut, with its sample in pixels; without `fields` only its header is read."""

    def __init__(self, sample: Sample, options: ConvertOptions, fields: dict[str, MaskField] | None = None) -> None:
        self._max_pixels, self._fields = options.max_pixels, fields or {}
        self._masks: dict[str, NDArray[Any]] | None = None
        how: Any = {"max_pixels": options.max_pixels, "key": sample.key, "whole": False}
        with PathInErrors(sample.key, sample.image):
            open_it = read_header if fields is None else open_picture
            self.picture = open_it(sample.image, color=options.color, **how)
            self.size = self.picture.size
            sample = replace(sample, left_out=sample.left_out + self.picture.left_out)
        self.sample = sample
        check_size(sample, self.picture)
        self.objects = sample.objects
        if sample.objects is not None and sample.relative:
            self.objects = in_pixels(sample.objects, self.size)

    def masks(self) -> Any:
        """The image's masks, (H, W), by name."""
        if self._masks is None:
            self._masks = {
                name: mask_of_image(self.sample, name, self.size, self._max_pixels)
                for name in self._fields
                if self.sample.masks.get(name) is not None
            }
        return self._masks.items()
