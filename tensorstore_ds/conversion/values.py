"""Options that are values: how images are fitted to a size, and cut into samples."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tensorstore_ds.imaging.placement import Fit as How, Placement, fit_box, shrink
from tensorstore_ds.options import declared, option
from tensorstore_ds.tiling import MOST_SIDE


@declared
class Fit:
    """Resize every image to one size.

    >>> tsds.convert("photos", "small.tsds", fit=tsds.Fit((24, 32), "crop"), workers=0).rows
    {'train': 8, 'val': 4}
    >>> tsds.open("small.tsds")["train"]["image"].shape
    (8, 24, 32, 3)
    """

    asked: ClassVar[tuple[str, str]] = "size", ""

    size: tuple[int, int] = option(
        "Resize every image to this (height, width) in pixels. Boxes, keypoints and masks are resized with it.",
        at_least=1,
        shown="the size in the source",
        group="Essential",
    )
    how: How = option(
        "How to fit an image to `size`: ``pad`` adds black borders, ``crop`` cuts off the longer side, ``stretch`` "
        "changes the aspect ratio.",
        default="pad",
        flag="fit",
        group="Essential",
    )
    min_visibility: float = option(
        'Minimum fraction of a box\'s area that must remain after `fit="crop"`. Objects below it are removed. '
        "With 0, only boxes completely outside are removed.",
        default=0.0,
        at_least=0,
        at_most=1,
        group="Objects",
    )

    def placement(self, size: tuple[int, int]) -> Placement | None:
        """Return how an image of `size` (height, width) is resized and placed."""
        return replace(fit_box(size, self.size, self.how), min_visibility=self.min_visibility)


@declared
class Shrink:
    """Downscale images that are larger than a limit, and keep the others.

    >>> summary = tsds.convert("photos", "small.tsds", fit=tsds.conversion.Shrink(16), encoding="jpeg", workers=0)
    >>> tsds.open("small.tsds")["train"].image_shapes[0].tolist()  # height, width, channels
    [16, 16, 3]
    """

    asked: ClassVar[tuple[str, str]] = "max_side", ""

    max_side: int = option(
        "Downscale larger images so that the longer side has at most this many pixels. Boxes, keypoints and masks are "
        "resized with them. The aspect ratio is kept.",
        at_least=1,
        shown="the size in the source",
        group="Encoding",
    )

    def placement(self, size: tuple[int, int]) -> Placement | None:
        """Return how an image of `size` (height, width) is resized, or None if it keeps its size."""
        return shrink(size, self.max_side)


@declared
class ImageTiles:
    """Cut every image into tiles. Each tile is a sample, with the parts of objects and masks inside it.

    >>> tsds.convert("photos", "tiles.tsds", cut=tsds.conversion.ImageTiles(16, overlap=0), workers=0).rows
    {'train': 32, 'val': 16}
    """

    asked: ClassVar[tuple[str, str]] = "tiles", ""

    size: tuple[int, int] = option(
        "Cut every image into tiles of this (height, width) in pixels. Each tile is a sample, with the parts of "
        "objects and masks inside it. Tiles that are larger than the image are padded with black.",
        at_least=1,
        at_most=MOST_SIDE,
        shown="whole images",
        flag="tiles",
        group="Objects",
    )
    overlap: float = option(
        "With `tiles`: fraction of a tile that the next tile repeats. The last tile in a row ends at the edge of the "
        "image.",
        default=0.2,
        at_least=0,
        below=1,
        group="Objects",
    )
    empty: float = option(
        "With `tiles`: fraction of the tiles without objects to store, chosen by a hash of their keys and `seed`.",
        default=1.0,
        at_least=0,
        at_most=1,
        flag="empty_tiles",
        group="Objects",
    )
    min_visibility: float = option(
        "Minimum fraction of a box's area that must be in a tile. Objects below it are removed from the tile. With 0, "
        "only boxes completely outside are removed.",
        default=0.0,
        at_least=0,
        at_most=1,
        group="Objects",
    )


@declared
class ObjectCrops:
    """Store a sample for each object: its part of the image, its class as the label, and its keypoints.

    >>> tsds.convert("voc", "crops.tsds", cut=tsds.conversion.ObjectCrops(margin=0.2), size=24, workers=0).rows
    {'train': 6, 'val': 3}
    """

    asked: ClassVar[tuple[str, str]] = "objects", "crops"

    margin: float = option(
        'With `objects="crops"`: margin on each side of a box, as a fraction of its width and height. Parts outside '
        "of the image are black.",
        default=0.1,
        at_least=0,
        at_most=10,
        group="Objects",
    )
    min_side: int = option(
        'With `objects="crops"`: skip objects whose box has a side shorter than this many pixels.',
        default=1,
        at_least=1,
        group="Objects",
    )
