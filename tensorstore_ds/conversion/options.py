"""What can be asked of a conversion. Neither Pillow nor zarr is imported, so that ``tsds convert --help`` is quick."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from tensorstore_ds.conversion.encodings import Auto, Encoding, Jpeg, Raw, SourceFiles
from tensorstore_ds.conversion.keywords import ConvertKeywords, RepackKeywords
from tensorstore_ds.conversion.licenses import license_expression
from tensorstore_ds.conversion.values import Fit, ImageTiles, ObjectCrops, Shrink
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import LIMIT, Layout
from tensorstore_ds.imaging import MAX_PIXELS, Color
from tensorstore_ds.imaging.placement import Placement
from tensorstore_ds.options import Option, changed, check, deciding, declarations, declared, flags, option, refusal
from tensorstore_ds.sources import FORMATS
from tensorstore_ds.sources.base import SourceOptions

OnError = Literal["fail", "skip", "skip-image"]
OrientedBoxes = Literal["source", "polygons"]


@declared
class ImageOptions:
    """Options for the size, color and encoding of images."""

    #: Flat names, in the order in which stores record them.
    ORDER: ClassVar[tuple[str, ...]] = (
        *("size", "fit", "encoding", "quality", "subsampling", "check", "min_visibility", "oriented_boxes", "max_side"),
        *("color", "channels", "max_pixels", "format", "layout", "split_into", "seed", "split_by", "objects", "tiles"),
        *("overlap", "empty_tiles", "margin", "min_side", "shard_nbytes", "on_error", "strict", "workers", "license"),
        "citation",
    )
    #: Flat names that stay as shorthands of values.
    SHORT: ClassVar[tuple[str, ...]] = ("size",)

    fit: Fit | Shrink | None = option(
        "How images are resized: `Fit` gives all one size, `Shrink` reduces large ones. ``size=224`` is short for "
        "``fit=tsds.Fit(224)``.",
        default=None,
        shown="images keep their sizes",
        values=(Fit, Shrink),
    )
    encoding: Encoding = option(
        "How to store images: ``raw`` stores pixels, for training. ``jpeg`` encodes them again, which needs less "
        "space. ``source`` keeps the bytes of the source files, except that AVIF and HEIC become JPEG. ``auto`` is "
        "``raw`` if all images have one size or `size` is given, ``jpeg`` with `max_side`, and else ``source``. "
        "Without files it is ``raw``.",
        default=Auto(),
        values=(Auto, Raw, Jpeg, SourceFiles),
        group="Essential",
    )
    oriented_boxes: OrientedBoxes = option(
        "Objects that get an oriented box: ``source``, objects that have one in the source; ``polygons``, also "
        "objects with polygons, which get the smallest rectangle around them.",
        default="source",
        group="Objects",
    )
    color: Color = option(
        "Color channels to store. ``auto`` keeps gray or color images, stores a mixture of both as RGB, and drops "
        "alpha.",
        default="auto",
        group="Essential",
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

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[ConvertKeywords]) -> None: ...

    def __post_init__(self) -> None:
        check(self)
        if self.encoding.keeps_files and (self.fit is not None or self.color != "auto"):
            resized = "max_side" if isinstance(self.fit, Shrink) else "size"
            raise OptionError(
                f'`encoding="source"` keeps files as they are: leave out `{resized}` and `color`, '
                'or use `encoding="jpeg"`.'
            )
        if self.encoding.name == "jpeg" and self.color == "rgba":
            raise OptionError('JPEG has no alpha: use `encoding="raw"` with `color="rgba"`.')
        if self.size is not None and math.prod(self.size) > self.max_pixels:
            found = f"{self.size[0]}x{self.size[1]}"
            raise refusal("size", f"at most `max_pixels`, {self.max_pixels:,} pixels", found)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of all images, or None if `fit` does not give it."""
        return self.fit.size if isinstance(self.fit, Fit) else None

    def placement(self, size: tuple[int, int]) -> Placement | None:
        """Return how an image of `size` (height, width) is resized and placed, or None if it keeps its size."""
        return None if self.fit is None else self.fit.placement(size)


@declared
class ConvertOptions(ImageOptions, SourceOptions):
    """Options of `convert`, `estimate`, `plan` and `Writer`.

    >>> options = tsds.ConvertOptions(fit=tsds.Fit(24, "crop"), encoding=tsds.Jpeg(quality=95), workers=0)
    >>> options.size
    (24, 24)
    >>> tsds.convert("voc", "small.tsds", options).rows
    {'train': 4, 'val': 2}
    >>> try:
    ...     tsds.ConvertOptions(encoding=tsds.Jpeg(quality=101))
    ... except tsds.OptionError as error:
    ...     print(error)
    `quality`: expected 1 to 95, found 101.

    Raises:
        OptionError: options are out of their range, or contradict each other.
    """

    FLAGS: ClassVar[Mapping[str, Option]] = {
        "min_visibility": replace(
            declarations(Fit)["min_visibility"],
            help='Minimum fraction of a box\'s area that must remain after `fit="crop"`, or in a tile of `tiles`. '
            "Objects below it are removed, and the summary of a crop lists them. With 0, only boxes completely outside "
            "are removed.",
        ),
        "objects": Option(
            "``whole`` stores images with their objects. ``crops`` stores a sample for each object: its part of the "
            "image, its class as the label, and its keypoints in pixels of that part.",
            type=Literal["whole", "crops"],
            default="whole",
            group="Essential",
        ),
    }

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
        "Divide the only split of the source, or its split train, into splits with these names and fractions, such as "
        "train=0.9,val=0.1. Each class is divided in these proportions, by a hash of the paths of its samples. If you "
        "add data, almost all samples stay in their split.",
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
    cut: ImageTiles | ObjectCrops | None = option(
        "How images become samples: `ImageTiles` cuts them into tiles, `ObjectCrops` stores a sample for each object.",
        default=None,
        shown="each image is a sample",
        values=(ImageTiles, ObjectCrops),
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

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[ConvertKeywords]) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split_by is not None and self.split_into is None:
            raise OptionError("`split_by` belongs to `split_into`: add that, or leave it out.")
        if self.cut is not None and self.encoding.keeps_files:
            cut = "`tiles`" if isinstance(self.cut, ImageTiles) else '`objects="crops"`'
            raise OptionError(f'{cut} stores parts of images: use `encoding="raw"` or `encoding="jpeg"`.')
        if isinstance(self.cut, ImageTiles) and math.prod(self.cut.size) > self.max_pixels:
            found = f"{self.cut.size[0]}x{self.cut.size[1]}"
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
        noted = flags(type(self))
        return {name: value for name, value in self._deciding().items() if noted[name].recorded}


_CONVERT = declarations(ConvertOptions)


@declared
class RepackOptions:
    """Options of `repack`. `layout`, `encoding` or both must be given.

    >>> options = tsds.conversion.RepackOptions(encoding="jpeg", fit=tsds.conversion.Shrink(16), workers=0)
    >>> _ = tsds.repack("photos.tsds", "small.tsds", options)
    >>> tsds.open("small.tsds")["train"].image_shapes[0].tolist()  # height, width, channels
    [16, 16, 3]

    Raises:
        OptionError: options are out of their range, or contradict each other.
    """

    layout: Layout | None = changed(
        _CONVERT["layout"], default=None, shown="the layout of the store", group="Essential"
    )
    SHORT: ClassVar[tuple[str, ...]] = ("size",)
    ORDER: ClassVar[tuple[str, ...]] = (
        *("layout", "encoding", "quality", "subsampling", "size", "fit", "min_visibility", "max_side", "color"),
        "workers",
    )

    encoding: Raw | Jpeg | None = option(
        "How to store images: ``raw`` stores pixels. ``jpeg`` needs less space. All options but `layout` and "
        "`workers` need it.",
        default=None,
        values=(Raw, Jpeg),
        shown="the encoding of the store",
        group="Essential",
    )
    fit: Fit | Shrink | None = changed(_CONVERT["fit"], default=None)
    color: Color = changed(_CONVERT["color"], default="auto")
    workers: int | None = changed(
        _CONVERT["workers"], default=None, help="Number of worker processes. With 0, the main process encodes."
    )

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[RepackKeywords]) -> None: ...

    def __post_init__(self) -> None:
        check(self)
        resized = "" if self.fit is None else self.fit.asked[0]
        alone = resized or ("color" if self.color != "auto" else "")
        if isinstance(self.encoding, Raw) and self.encoding.channels is not None:
            raise OptionError("`channels`: a store keeps the names of its channels. Leave it out.")
        if self.encoding is None and alone:
            raise OptionError(f"`{alone}` belongs to an encoding: also give `encoding`.")
        self.image(MAX_PIXELS)

    def image(self, max_pixels: int) -> ImageOptions:
        """Return the options for images, with `max_pixels` as the limit of pixels per image."""
        return ImageOptions(fit=self.fit, encoding=self.encoding or Auto(), color=self.color, max_pixels=max_pixels)
