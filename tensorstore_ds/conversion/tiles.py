"""A sample for each tile of an image, with the objects and masks in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.crops import SOURCE_BOX, OpenImage, PartSource
from tensorstore_ds.conversion.encode import mask_of_image
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import key_hashes
from tensorstore_ds.conversion.values import ImageTiles
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField, named, of_kind
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.imaging.objects import place_objects
from tensorstore_ds.imaging.picture import PicturePart, read_header
from tensorstore_ds.imaging.placement import Placement, box_faults
from tensorstore_ds.imaging.resizing import resize_nearest
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source
from tensorstore_ds.tiling import count_tiles, tile_corners

#: Maximum number of tiles of an image.
MOST_TILES = 10_000_000


class TileSource(PartSource):
    """The tiles of a source's images, row by row. A reference is the image's key, y, x and the image's number."""

    def __init__(self, source: Source, options: ConvertOptions, cut: ImageTiles) -> None:
        super().__init__(source, options)
        self._cut, self._size = cut, cut.size
        self._masks: dict[str, MaskField] = {}

    def scan(self) -> Contents:
        """Scan the source, and read the headers of all images and, to find empty tiles, all annotations."""
        contents = self._source.contents()
        objects, share = named(contents.fields, "objects", ObjectsField), self._cut.empty
        if share < 1 and (objects is None or "boxes" not in objects.values):
            raise OptionError("`empty_tiles`: expected objects with boxes, found none in the source. Leave it out.")
        self._masks = of_kind(contents.fields, MaskField)
        found, counts = self._scanned(contents, "tiles with objects")
        fields, known = {**contents.fields, SOURCE_BOX: ArrayField(ArraySpec("float32", (4,)))}, contents.labels
        if known is not None and found.splits.keys() <= known.keys():
            labels = {split: np.repeat(known[split], counts[split]) for split in found.splits}
            found = replace(found, labels=labels)
        return replace(found, fields=fields)

    def read(self, split: str, reference: Reference) -> Sample:
        """Read a tile; its image is opened once for consecutive tiles."""
        _, place, _ = str(reference).split("\0")
        y, x = map(int, place.split(","))
        image = self._opened(reference)
        placement = self._placement(image.size, y, x)
        left, top, right, bottom = placement.box
        sample, objects, problems = image.sample, image.objects, image.sample.problems
        if objects is not None:
            how: Any = {"annotation": sample.annotation, "is_tile": True}
            objects, found = place_objects(sample.key, objects, image.size, placement, **how)
            # Wrong boxes are reported once, by the scan or with the first tile, unless they exclude the whole image.
            is_told = (y, x) != (0, 0) or self._cut.empty < 1
            problems += found if not is_told or self._options.on_error == "skip-image" else ()
        masks = {
            name: resize_nearest(mask, placement, self._masks[name].ignored or 0) for name, mask in image.masks.items()
        }
        return replace(
            sample,
            key=self.key(split, reference),
            image=PicturePart(image.picture, (y, x), self._size),
            objects=objects,
            problems=problems,
            masks=masks,
            arrays={**sample.arrays, SOURCE_BOX: np.array([left, top, right, bottom], np.float32)},
            annotated_size=None,
            relative=False,
        )

    def key(self, split: str, reference: Reference) -> str:
        key, place, _ = str(reference).split("\0")
        return f"{key}#{','.join(each.zfill(5) for each in place.split(','))}"

    def _open(self, sample: Sample) -> OpenImage:
        image, limit = OpenImage(sample, self._options, whole=False), self._options.max_pixels
        has_masks = (name for name in self._masks if sample.masks.get(name) is not None)
        image.masks = {name: mask_of_image(sample, name, image.size, limit) for name in has_masks}
        return image

    def _parts(self, split: str, reference: Reference) -> list[str]:
        """The places y,x of the tiles of an image that become samples."""
        image = OpenImage(self._source.read(split, reference), self._options, read_header, whole=False)
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
            if not len(corners) or self._options.on_error != "skip-image":  # else each tile reports them
                sample = image.sample
                self._problems += place_objects(sample.key, image.objects or {}, image.size, None, sample.annotation)[1]
        return [f"{y},{x}" for y, x in corners.tolist()]

    def _is_chosen(self, image: OpenImage, corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which tiles have an object, or belong to the kept share of empty tiles."""
        key = image.sample.key
        keys = (f"{key}#{y},{x}".encode("utf-8", "surrogateescape") for y, x in corners.tolist())
        chosen = key_hashes(keys, self._options.seed) / 2.0**64 < self._cut.empty
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
