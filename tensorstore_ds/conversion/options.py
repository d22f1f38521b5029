"""What can be asked of a conversion. Neither Pillow nor zarr is imported, so that ``tsds convert --help`` is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, Literal

from tensorstore_ds.conversion.encodings import Check, Encoding, Jpeg, Raw, SourceFiles, Subsampling
from tensorstore_ds.conversion.licenses import license_expression
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import LIMIT, Layout
from tensorstore_ds.imaging import MAX_PIXELS, Color
from tensorstore_ds.imaging.placement import Fit, Placement, fit_box, shrink
from tensorstore_ds.options import changed, check, deciding, declarations, declared, option, refusal
from tensorstore_ds.sources import FORMATS
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.tiling import MOST_SIDE

OnError = Literal["fail", "skip", "skip-image"]
EncodingName = Literal["auto", "raw", "jpeg", "source"]
Objects = Literal["whole", "crops"]
OrientedBoxes = Literal["source", "polygons"]


@declared
class ImageOptions:
    """Options for the size, color and encoding of images."""

    size: tuple[int, int] | None = option(
        "Resize every image to this (height, width) in pixels. Boxes, keypoints and masks are resized with it.",
        default=None,
        at_least=1,
        shown="the size in the source",
        group="Essential",
    )
    fit: Fit = option(
        "How to fit an image to `size`: ``pad`` adds black borders, ``crop`` cuts off the longer side, ``stretch`` "
        "changes the aspect ratio.",
        default="pad",
        group="Essential",
    )
    encoding: EncodingName = option(
        "How to store images: ``raw`` stores pixels, for training. ``jpeg`` encodes them again, which needs less "
        "space. ``source`` keeps the bytes of the source files, except that AVIF and HEIC become JPEG. ``auto`` is "
        "``raw`` if all images have one size or `size` is given, ``jpeg`` with `max_side`, and else ``source``. "
        "Without files it is ``raw``.",
        default="auto",
        group="Essential",
    )
    quality: int = option(
        'JPEG quality with `encoding="jpeg"`. A higher quality needs more space.',
        default=90,
        at_least=1,
        at_most=95,
        group="Essential",
    )
    subsampling: Subsampling = option(
        'Chroma subsampling with `encoding="jpeg"`. ``4:2:0`` halves the color resolution in both directions, as '
        "cameras do. ``4:4:4`` keeps it, and needs more space and time.",
        default="4:2:0",
        group="Encoding",
    )
    check: Check = option(
        'How to check files with `encoding="source"`: ``full`` decodes every pixel. ``headers`` decodes no pixels: '
        "it misses damage, and the store has no mean and standard deviation of pixels, which normalization needs.",
        default="full",
        group="Encoding",
    )
    min_visibility: float = option(
        'Minimum fraction of a box\'s area that must remain after `fit="crop"`, or in a tile of `tiles`. Objects '
        "below it are removed, and the summary of a crop lists them. With 0, only boxes completely outside are "
        "removed.",
        default=0.0,
        at_least=0,
        at_most=1,
        group="Objects",
    )
    oriented_boxes: OrientedBoxes = option(
        "Objects that get an oriented box: ``source``, objects that have one in the source; ``polygons``, also "
        "objects with polygons, which get the smallest rectangle around them.",
        default="source",
        group="Objects",
    )
    max_side: int | None = option(
        "Downscale larger images so that the longer side has at most this many pixels. Boxes, keypoints and masks are "
        "resized with them. The aspect ratio is kept.",
        default=None,
        at_least=1,
        shown="the size in the source",
        group="Encoding",
    )
    color: Color = option(
        "Color channels to store. ``auto`` keeps gray or color images, stores a mixture of both as RGB, and drops "
        "alpha.",
        default="auto",
        group="Essential",
    )
    channels: str | None = option(
        "Names of the channels of images stored as pixels, such as ``red,green,blue,near infrared``.",
        default=None,
        shown="gray, RGB or RGBA, by their number",
        group="Encoding",
    )
    max_pixels: int = option(
        "Reject images with more pixels before they are decoded. This protects memory from small files that expand to "
        "huge images.",
        default=MAX_PIXELS,
        at_least=1,
        at_most=LIMIT - 1,
        shown="89.5 million, the limit of Pillow",
        group="Source",
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
            if self.encoding in ("jpeg", "source"):
                raise OptionError(
                    f'`channels` is for pixels: use `encoding="raw"`, found `encoding="{self.encoding}"`.'
                )
        if self.encoding == "jpeg" and self.color == "rgba":
            raise OptionError('JPEG has no alpha: use `encoding="raw"` with `color="rgba"`.')
        if self.size is not None and math.prod(self.size) > self.max_pixels:
            found = f"{self.size[0]}x{self.size[1]}"
            raise refusal("size", f"at most `max_pixels`, {self.max_pixels:,} pixels", found)

    @property
    def channel_names(self) -> tuple[str, ...] | None:
        """Names of the channels, from `channels`. None if `channels` is not given."""
        return None if self.channels is None else tuple(name.strip() for name in self.channels.split(","))

    @cached_property
    def kept_as(self) -> Encoding:
        """How images are kept. ``auto`` is pixels, unless a plan has chosen another encoding."""
        if self.encoding in ("auto", "raw"):
            return Raw(self.channel_names)
        jpeg = Jpeg(self.quality, self.subsampling)
        return jpeg if self.encoding == "jpeg" else SourceFiles(self.check, jpeg)

    def placement(self, size: tuple[int, int]) -> Placement | None:
        """Return how an image of `size` (height, width) is resized and placed, or None if it keeps its size."""
        if self.max_side is not None:
            return shrink(size, self.max_side)
        if self.size is None:
            return None
        return replace(fit_box(size, self.size, self.fit), min_visibility=self.min_visibility)


@declared
class ConvertOptions(ImageOptions, SourceOptions):
    """Options of `convert`, `estimate`, `plan` and `Writer`.

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
        "Format of the source. ``auto`` detects it from file names and the first bytes.",
        default="auto",
        among=("auto", *FORMATS),
        recorded=False,
        group="Essential",
    )
    layout: Layout = option(
        "``memmap`` is uncompressed, for training. ``zarr`` is compressed, for sharing.",
        default="memmap",
        group="Encoding",
    )
    split_into: Mapping[str, float] | None = option(
        "Divide the samples into splits with these names and fractions, such as train=0.9,val=0.1. Each class is "
        "divided in these proportions, by a hash of the paths of its samples. If you add data and convert again, "
        "almost all samples stay in their split.",
        default=None,
        shown="the splits of the source",
        group="Essential",
    )
    seed: int = option(
        "Random seed of `split_into`. The same seed always gives the same splits.",
        default=0,
        at_least=0,
        at_most=LIMIT - 1,
        group="Splits",
    )
    split_by: str | None = option(
        "Keep related samples in one split, so that splits do not leak into each other: ``folder``, images of one "
        "folder; ``duplicates``, files with equal bytes; ``column:NAME``, samples with the same value in a column of "
        "a list, a data frame or Parquet, or in the .json of WebDataset; or a regular expression, samples in whose "
        "keys it finds the same text, in its first group if it has one.",
        default=None,
        shown="each sample is assigned on its own",
        group="Splits",
    )
    objects: Objects = option(
        "``whole`` stores images with their objects. ``crops`` stores a sample for each object: its part of the "
        "image, its class as the label, and its keypoints in pixels of that part.",
        default="whole",
        group="Essential",
    )
    tiles: tuple[int, int] | None = option(
        "Cut every image into tiles of this (height, width) in pixels. Each tile is a sample, with the parts of "
        "objects and masks inside it. Tiles that are larger than the image are padded with black.",
        default=None,
        at_least=1,
        at_most=MOST_SIDE,
        shown="whole images",
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
    empty_tiles: float = option(
        "With `tiles`: fraction of the tiles without objects to store, chosen by a hash of their keys and `seed`.",
        default=1.0,
        at_least=0,
        at_most=1,
        group="Objects",
    )
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
    shard_nbytes: int = option(
        "Approximate size of a shard, a folder of files in the store. An interrupted conversion continues after the "
        "last complete shard: smaller shards repeat less work, larger shards make fewer files.",
        default=4 * 1024**3,
        at_least=1,
        at_most=LIMIT - 1,
        unit="bytes",
        shown="4GiB",
        group="Encoding",
    )
    on_error: OnError = option(
        "What to do with a bad sample: ``fail`` stops and reports it. ``skip`` continues without it and lists it in "
        "skipped.jsonl in the store; if only the box of an object is bad, ``skip`` removes that object, and its place "
        "in the image counts as background. ``skip-image`` then skips the whole image.",
        default="fail",
        decides=False,
        group="Essential",
    )
    strict: bool = option(
        "Stop if the source contains files, annotations or columns that are not read or not stored. Without it, the "
        "summary and skipped.jsonl list them.",
        default=False,
        decides=False,
        recorded=False,
        group="Source",
    )
    workers: int | None = option(
        "Number of worker processes. With 0, the main process converts.",
        default=None,
        at_least=0,
        shown="the cores available to this process",
        decides=False,
        group="Essential",
    )
    license: str | None = option(
        "License of the data, as an SPDX expression such as CC-BY-4.0, or LicenseRef-NAME for a license that SPDX "
        "does not list. It is stored in the store.",
        default=None,
        decides=False,
        group="Metadata",
    )
    citation: str | None = option(
        "Citation of the data. It is stored in the store.", default=None, decides=False, group="Metadata"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split_by is not None and self.split_into is None:
            raise OptionError("`split_by` belongs to `split_into`: add that, or leave it out.")
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
        """The options for images only."""
        return ImageOptions(**{each.name: getattr(self, each.name) for each in fields(ImageOptions)})

    def _deciding(self) -> dict[str, Any]:
        """Return the options that can change the bytes of a shard. They must be equal when a conversion is resumed."""
        whole = {"on_error": self.on_error} if self.on_error == "skip-image" else {}
        return deciding(self) | whole

    def _recorded(self) -> dict[str, Any]:
        """Return the deciding options that the store records. Paths are private, and fields record the names."""
        noted = declarations(type(self))
        return {name: value for name, value in self._deciding().items() if noted[name].recorded}


_CONVERT = declarations(ConvertOptions)


@declared
class RepackOptions:
    """Options of `repack`. `layout`, `encoding` or both must be given.

    >>> options = tsds.conversion.RepackOptions(encoding="jpeg", max_side=16, workers=0)
    >>> _ = tsds.repack("photos.tsds", "small.tsds", options)
    >>> tsds.open("small.tsds")["train"].image_shapes[0].tolist()  # height, width, channels
    [16, 16, 3]

    Raises:
        OptionError: options are out of their range, or contradict each other.
    """

    layout: Layout | None = changed(
        _CONVERT["layout"], default=None, shown="the layout of the store", group="Essential"
    )
    encoding: Literal["raw", "jpeg"] | None = option(
        "How to store images: ``raw`` stores pixels. ``jpeg`` needs less space. All options but `layout` and "
        "`workers` need it.",
        default=None,
        shown="the encoding of the store",
        group="Essential",
    )
    quality: int = changed(_CONVERT["quality"], default=90)
    subsampling: Subsampling = changed(_CONVERT["subsampling"], default="4:2:0")
    size: tuple[int, int] | None = changed(_CONVERT["size"], default=None)
    fit: Fit = changed(_CONVERT["fit"], default="pad")
    min_visibility: float = changed(
        _CONVERT["min_visibility"],
        default=0.0,
        help='Minimum fraction of a box\'s area that must remain after `fit="crop"`. Objects below it are removed. '
        "With 0, only boxes completely outside are removed.",
    )
    max_side: int | None = changed(_CONVERT["max_side"], default=None)
    color: Color = changed(_CONVERT["color"], default="auto")
    workers: int | None = changed(
        _CONVERT["workers"], default=None, help="Number of worker processes. With 0, the main process encodes."
    )

    def __post_init__(self) -> None:
        check(self)
        given = [each.name for each in declarations(type(self)).values() if getattr(self, each.name) != each.default]
        alone = [name for name in given if name not in ("layout", "encoding", "workers")]
        if self.encoding is None and alone:
            raise OptionError(f"`{alone[0]}` belongs to an encoding: also give `encoding`.")
        self.image(MAX_PIXELS)

    def image(self, max_pixels: int) -> ImageOptions:
        """Return the options for images, with `max_pixels` as the limit of pixels per image."""
        names = ("encoding", "quality", "subsampling", "size", "fit", "min_visibility", "max_side", "color")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return ImageOptions(**given, max_pixels=max_pixels)
