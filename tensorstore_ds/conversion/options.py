"""What can be asked of a conversion. Neither Pillow nor zarr is imported, so that ``tsds convert --help`` is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from tensorstore_ds.conversion.licenses import license_expression
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import LIMIT, Layout
from tensorstore_ds.imaging import MAX_PIXELS, Color
from tensorstore_ds.imaging.placement import Fit, Placement, place, shrink
from tensorstore_ds.options import changed, check, deciding, declarations, declared, option, refusal
from tensorstore_ds.sources import FORMATS
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.tiling import MOST_SIDE

OnError = Literal["fail", "skip", "skip-image"]
Subsampling = Literal["4:2:0", "4:4:4"]
Check = Literal["eighth", "full", "headers"]
Encoding = Literal["auto", "raw", "jpeg", "source", "smart"]
Objects = Literal["whole", "crops"]
OrientedBoxes = Literal["source", "polygons"]


@declared
class ImageOptions:
    """How images are kept."""

    encoding: Encoding = option(
        "How images are stored: ``raw`` pixels, for training; ``jpeg``, encoded again, which takes less space; "
        "``source``, the bytes of the source files, but AVIF and HEIC as JPEG files; or ``smart``, each as ``jpeg`` or "
        "as pixels, whichever saves more decoding for its space, within `budget`. ``auto`` is ``raw`` if all images "
        "have one size or `size` is given, else ``source``, or ``jpeg`` with `max_side`, or ``raw`` where there are no "
        "files.",
        default="auto",
    )
    budget: int | None = option(
        'Bytes that the store may take with `encoding="smart"`.',
        default=None,
        at_least=1,
        at_most=LIMIT - 1,
        unit="bytes",
        shown="half of the memory that is free, rounded down to a power of two",
    )
    quality: int = option(
        'Quality of `encoding="jpeg"`: higher is better and takes more space.', default=90, at_least=1, at_most=95
    )
    subsampling: Subsampling = option(
        'Color resolution of `encoding="jpeg"`: ``4:2:0`` halves it in both directions, as cameras do; ``4:4:4`` keeps '
        "it, and takes more space and time.",
        default="4:2:0",
    )
    check: Check = option(
        'How files are checked with `encoding="source"`: ``eighth`` decodes JPEG at an eighth of its size, which reads '
        "all of the file in half of the time; ``full`` decodes every pixel; ``headers`` decodes nothing, so that "
        "damage is not found, and mean and standard deviation of the pixels are not known.",
        default="eighth",
    )
    size: tuple[int, int] | None = option(
        "Resize every image to this (height, width) in pixels, together with its boxes, keypoints and masks.",
        default=None,
        at_least=1,
        shown="as they are",
    )
    fit: Fit = option(
        "How an image is fitted to `size`: ``pad`` adds black borders, ``crop`` cuts off the longer side, ``stretch`` "
        "changes the aspect ratio.",
        default="pad",
    )
    min_visibility: float = option(
        'Minimum share of a box\'s area that must remain after `fit="crop"`, or in a tile of `tiles`. Objects below it '
        "are left out, and after a crop they are listed. With 0, only boxes that are completely outside are left out.",
        default=0.0,
        at_least=0,
        at_most=1,
    )
    oriented_boxes: OrientedBoxes = option(
        "Which objects have an oriented box: ``source``, those that have one in the source; ``polygons``, also those "
        "with polygons, around which it is the smallest rectangle.",
        default="source",
    )
    max_side: int | None = option(
        "Make images whose longer side has more pixels smaller, to so many, together with their boxes, keypoints and "
        "masks. The aspect ratio stays.",
        default=None,
        at_least=1,
        shown="as they are",
    )
    color: Color = option(
        "The color channels to store. ``auto`` keeps gray or color images as they are, stores a mixture of both as "
        "RGB, and drops alpha.",
        default="auto",
    )
    channels: str | None = option(
        "Names of the channels of images that are stored as pixels, such as ``red,green,blue,near infrared``.",
        default=None,
        shown="gray, RGB or RGBA by their number",
    )
    max_pixels: int = option(
        "Refuse images with more pixels before they are decoded, because a small file can expand to more than fits "
        "into memory.",
        default=MAX_PIXELS,
        at_least=1,
        at_most=LIMIT - 1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.size is not None and self.max_side is not None:
            raise OptionError("`size` gives all images one size, `max_side` each its own: leave out one of them.")
        resized = "max_side" if self.max_side is not None else "size"
        if self.encoding == "source" and (self.size or self.max_side or self.color != "auto"):
            raise OptionError(
                f'`encoding="source"` keeps files as they are: leave out `{resized}` and `color`, '
                'or use `encoding="jpeg"`.'
            )
        if self.channels is not None:
            names = self.channel_names or ()
            if len(set(names)) != len(names) or "" in names:
                raise OptionError(
                    f"`channels`: expected names that differ, with commas between them, found {self.channels}."
                )
            if self.encoding in ("jpeg", "smart", "source"):
                raise OptionError(
                    f'`channels` is for pixels: use `encoding="raw"`, found `encoding="{self.encoding}"`.'
                )
        if self.budget is not None and self.encoding != "smart":
            raise OptionError('`budget` is for `encoding="smart"`: add that, or leave it out.')
        if self.encoding in ("jpeg", "smart") and self.color == "rgba":
            raise OptionError('JPEG has no alpha: use `encoding="raw"` with `color="rgba"`.')
        if self.size is not None and math.prod(self.size) > self.max_pixels:
            found = f"{self.size[0]}x{self.size[1]}"
            raise refusal("size", f"at most `max_pixels`, {self.max_pixels:,} pixels", found)

    @property
    def channel_names(self) -> tuple[str, ...] | None:
        """The names in `channels`."""
        return None if self.channels is None else tuple(name.strip() for name in self.channels.split(","))

    def placement(self, size: tuple[int, int]) -> Placement | None:
        """Where an image of (height, width) comes to lie; None: it is stored in its own size."""
        if self.max_side is not None:
            return shrink(size, self.max_side)
        if self.size is None:
            return None
        return replace(place(size, self.size, self.fit), min_visibility=self.min_visibility)


@declared
class ConvertOptions(ImageOptions, SourceOptions):
    """Options of a conversion.

    >>> options = tsds.ConvertOptions(size=24, fit="crop", encoding="jpeg", quality=95, workers=0)
    >>> options.size
    (24, 24)
    >>> tsds.convert("voc", "small.tsds", options).rows
    {'train': 4, 'val': 2}
    >>> try:
    ...     tsds.ConvertOptions(quality=101)
    ... except tsds.OptionError as error:
    ...     print(error)
    `quality`: expected 1 to 95, found 101.

    Raises:
        OptionError: options are out of their range, or contradict each other.
    """

    format: str = option(
        "Format of the source; ``auto`` recognizes it by file names and the first bytes.",
        default="auto",
        among=("auto", *FORMATS),
        recorded=False,
    )
    layout: Layout = option(
        "``memmap`` is uncompressed, for training; ``zarr`` is compressed, for sharing.", default="memmap"
    )
    split: Mapping[str, float] | None = option(
        "Divide the samples into splits with these names and fractions, such as train=0.9,val=0.1. Each class is "
        "divided in these proportions, by a hash of the paths of its samples: if you add data and convert again, "
        "almost all samples stay in their split.",
        default=None,
        shown="the splits of the source",
    )
    seed: int = option(
        "Seed of `split`: the same seed always gives the same division.", default=0, at_least=0, at_most=LIMIT - 1
    )
    split_by: str | None = option(
        "What `split` keeps together, so that no sample has a near relative in another split: ``folder``, the images "
        "of a folder; ``duplicates``, files of equal bytes; ``column:NAME``, samples with the same value in a column "
        "of a list, a data frame or Parquet, or in the .json of WebDataset; or a regular expression, and samples are "
        "together if what it finds in their keys, in its first group if it has one, is the same.",
        default=None,
        shown="every sample is divided on its own",
    )
    objects: Objects = option(
        "``whole`` stores images with the objects in them; ``crops`` makes a sample of each object: its part of the "
        "image, its class as the label, and its keypoints in the pixels of that part.",
        default="whole",
    )
    tiles: tuple[int, int] | None = option(
        "Cut every image into tiles of this (height, width) in pixels, and make a sample of each, with the part of the "
        "objects and masks that is in it. Tiles that reach beyond a smaller image are black there.",
        default=None,
        at_least=1,
        at_most=MOST_SIDE,
        shown="images as they are",
    )
    overlap: float = option(
        "With `tiles`, the share of a tile that the next one shows again. The last one in a row ends with the image.",
        default=0.2,
        at_least=0,
        below=1,
    )
    empty_tiles: float = option(
        "With `tiles`, the share of the tiles without objects that is stored, chosen by a hash of their keys and "
        "`seed`.",
        default=1.0,
        at_least=0,
        at_most=1,
    )
    margin: float = option(
        'With `objects="crops"`, how much of a box\'s width and height is added at each of its sides. Where that lies '
        "outside of the image it is black.",
        default=0.1,
        at_least=0,
        at_most=10,
    )
    min_side: int = option(
        'With `objects="crops"`, leave out objects whose box is narrower or lower than so many pixels.',
        default=1,
        at_least=1,
    )
    shard_nbytes: int = option(
        "Approximate size of a shard, a folder of files in the store. An interrupted conversion continues after the "
        "last complete shard: choose less to repeat less, or more to have fewer files.",
        default=4 * 1024**3,
        at_least=1,
        at_most=LIMIT - 1,
        unit="bytes",
        shown="4GiB",
    )
    workers: int | None = option(
        "Number of worker processes; 0 converts in the main process.",
        default=None,
        at_least=0,
        shown="the cores that this process may use",
        decides=False,
    )
    on_error: OnError = option(
        "What to do with a bad sample: ``fail`` stops and names it; ``skip`` leaves it out and lists it in "
        "skipped.jsonl in the store. Where only the box of an object is bad, ``skip`` leaves out that object, whose "
        "place in the image then counts as background; ``skip-image`` leaves out the image.",
        default="fail",
        decides=False,
    )
    license: str | None = option(
        "The license of the data, to be noted in the store: an SPDX expression, such as CC-BY-4.0, or LicenseRef-NAME "
        "for one that SPDX does not list.",
        default=None,
        decides=False,
    )
    citation: str | None = option("How to cite the data, to be noted in the store.", default=None, decides=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split_by is not None and self.split is None:
            raise OptionError("`split_by` belongs to `split`: add that, or leave it out.")
        if self.objects == "crops" and self.encoding == "source":
            raise OptionError('`objects="crops"` stores parts of images: use `encoding="raw"` or `encoding="jpeg"`.')
        if self.objects != "crops" and (self.margin != 0.1 or self.min_side != 1):
            raise OptionError('`margin` and `min_side` belong to `objects="crops"`: add that, or leave them out.')
        if self.tiles is None and (self.overlap != 0.2 or self.empty_tiles != 1):
            raise OptionError("`overlap` and `empty_tiles` belong to `tiles`: add that, or leave them out.")
        if self.tiles is not None:
            if self.objects == "crops":
                raise OptionError('`tiles` and `objects="crops"` cut images differently: leave out one of them.')
            if self.encoding == "source":
                raise OptionError('`tiles` stores parts of images: use `encoding="raw"` or `encoding="jpeg"`.')
            if math.prod(self.tiles) > self.max_pixels:
                found = f"{self.tiles[0]}x{self.tiles[1]}"
                raise refusal("tiles", f"at most `max_pixels`, {self.max_pixels:,} pixels", found)
        if self.license is not None:
            object.__setattr__(self, "license", license_expression(self.license))

    @property
    def image(self) -> ImageOptions:
        """The options that concern images, alone."""
        return ImageOptions(**{each.name: getattr(self, each.name) for each in fields(ImageOptions)})

    def deciding(self) -> dict[str, Any]:
        """All that may decide the bytes of a shard: what must be the same in the run that a conversion goes on from."""
        whole = {"on_error": self.on_error} if self.on_error == "skip-image" else {}
        return deciding(self) | whole

    def recorded(self) -> dict[str, Any]:
        """What is noted in the store of how it was made; names of fields say the rest, and paths are private."""
        noted = declarations(type(self))
        return {name: value for name, value in self.deciding().items() if noted[name].recorded}


_CONVERT = declarations(ConvertOptions)


@declared
class RepackOptions:
    """Options of `repack`, which need a `layout`, an `encoding` or both.

    >>> options = tsds.RepackOptions(encoding="jpeg", max_side=16, workers=0)
    >>> _ = tsds.repack("photos.tsds", "small.tsds", options)
    >>> tsds.open("small.tsds")["train"].image_shapes[0].tolist()  # height, width, channels
    [16, 16, 3]

    Raises:
        OptionError: options are out of their range, or contradict each other.
    """

    layout: Layout | None = changed(_CONVERT["layout"], default=None, shown="that of the store")
    encoding: Literal["raw", "jpeg", "smart"] | None = option(
        "How images are to be stored: ``raw`` pixels; ``jpeg``, which takes less space; or ``smart``, each as ``jpeg`` "
        "or as pixels, whichever saves more decoding for its space, within `budget`. The options that follow belong to "
        "it.",
        default=None,
        shown="as they are",
    )
    budget: int | None = changed(_CONVERT["budget"], default=None)
    quality: int = changed(_CONVERT["quality"], default=90)
    subsampling: Subsampling = changed(_CONVERT["subsampling"], default="4:2:0")
    size: tuple[int, int] | None = changed(_CONVERT["size"], default=None)
    fit: Fit = changed(_CONVERT["fit"], default="pad")
    min_visibility: float = changed(_CONVERT["min_visibility"], default=0.0)
    max_side: int | None = changed(_CONVERT["max_side"], default=None)
    color: Color = changed(_CONVERT["color"], default="auto")
    workers: int | None = changed(
        _CONVERT["workers"], default=None, help="Number of worker processes; 0 encodes in the main process."
    )

    def __post_init__(self) -> None:
        check(self)
        given = [each.name for each in declarations(type(self)).values() if getattr(self, each.name) != each.default]
        alone = [name for name in given if name not in ("layout", "encoding", "workers")]
        if self.encoding is None and alone:
            raise OptionError(f"`{alone[0]}` belongs to an encoding: give `encoding`, too.")
        self.image(MAX_PIXELS)

    def image(self, max_pixels: int) -> ImageOptions:
        """The options of images, of at most so many pixels."""
        names = ("encoding", "budget", "quality", "subsampling", "size", "fit", "min_visibility", "max_side", "color")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return ImageOptions(**given, max_pixels=max_pixels)
