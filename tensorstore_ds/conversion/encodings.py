"""How images are kept: their pixels, and a class for each encoding, with its options, its field, and what it keeps.

Pillow is imported when the first image is encoded, so that ``tsds convert --help`` is quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.durable import write_at
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import EncodedImageField, ImageField, RaggedImageField, RawImageField
from tensorstore_ds.format.schema import ArraySpec, EncodedSample
from tensorstore_ds.format.statistics import ImageSums
from tensorstore_ds.options import Option, changed, check, declarations, declared, option

if TYPE_CHECKING:
    from tensorstore_ds.imaging.picture import Picture, PlacedPicture

Check = Literal["full", "headers"]
Name = Literal["raw", "jpeg", "source"]
Subsampling = Literal["4:2:0", "4:4:4"]

#: Reason of a file of a format that stores do not hold.
NOT_KEPT = "file-not-kept"
#: Number of samples that estimate the size of a row of files.
PROBED = 32


_QUALITY = Option(
    'JPEG quality with `encoding="jpeg"`. A higher quality needs more space.', at_least=1, at_most=95, group="Essential"
)
_SUBSAMPLING = Option(
    'Chroma subsampling with `encoding="jpeg"`. ``4:2:0`` halves the color resolution in both directions, as cameras '
    "do. ``4:4:4`` keeps it, and needs more space and time.",
    group="Encoding",
)


class Encoding:
    """How images are kept.

    Attributes:
        asked: the flat option that asks for it, and its value.
        name: its name in a store.
        keeps_files: whether files stay as they are, if a store can hold them.
        mixes_colors: whether gray images become RGB if the first one is.
        probed: number of samples that estimate the size of a row.
        shared: what all images of a store have in common, and its unit.
        note_of_sizes: what the user is told of images of several sizes.
        note_of_jpeg: what the user is told if JPEG files keep their size.
    """

    asked: ClassVar[tuple[str, str]]
    name: ClassVar[Name]
    keeps_files: ClassVar[bool] = False
    mixes_colors: ClassVar[bool] = False
    probed: ClassVar[int] = PROBED
    shared: ClassVar[tuple[str, str]]
    note_of_sizes: ClassVar[str]
    note_of_jpeg: ClassVar[str] = ""

    def field(self, first: EncodedSample, max_pixels: int, *, is_ragged: bool) -> ImageField:
        """The field for images like the first one. `is_ragged` means pixels of differing sizes."""
        return EncodedImageField.of(self.name, max_pixels)

    def check_row(self, row: EncodedSample, picture: Picture) -> None:
        """Raise an error if no image of the row's shape and dtype can be kept, and note if its file is not."""

    def encode(self, row: EncodedSample, placed: PlacedPicture, *, by_parts: bool) -> None:
        """Set what a row keeps of an image. `by_parts` leaves the pixels of a large one to `write`."""
        whole = None if by_parts and placed.is_large else placed.whole(row)
        self.check_row(row, placed.picture)
        if whole is None:
            row.image = placed
        else:
            self.encode_whole(row, whole)

    def encode_whole(self, row: EncodedSample, pixels: NDArray[Any]) -> None:
        """Set what a row keeps of pixels, (H, W, C)."""
        raise NotImplementedError

    def write(self, row: EncodedSample, bands: Iterator[NDArray[Any]], path: Path, offset: int) -> None:
        """Write the bands of a large image into a file that exists, from `offset`."""
        raise NotImplementedError


@declared
class Raw(Encoding):
    """Pixels, for training.

    >>> tsds.convert("photos", "raw.tsds", encoding=tsds.conversion.Raw(channels="r,g,b"), workers=0).rows
    {'train': 8, 'val': 4}
    """

    channels: str | None = option(
        "Names of the channels of images stored as pixels, such as ``red,green,blue,near infrared``.",
        default=None,
        shown="gray, RGB or RGBA, by their number",
        group="Encoding",
    )

    asked: ClassVar[tuple[str, str]] = "encoding", "raw"
    name: ClassVar[Name] = "raw"
    probed: ClassVar[int] = 1
    shared: ClassVar[tuple[str, str]] = "{shape} {dtype}", ""
    note_of_sizes: ClassVar[str] = (
        "images have {} sizes: each is kept as pixels of its own size. "
        "Pass `size` for one size, or choose another `encoding`."
    )

    def __post_init__(self) -> None:
        check(self)
        names = self.names or ()
        if self.channels is not None and (len(set(names)) != len(names) or "" in names):
            raise OptionError(
                f"`channels`: expected names that differ, with commas between them, found {self.channels}."
            )

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the channels, or None."""
        return None if self.channels is None else tuple(name.strip() for name in self.channels.split(","))

    def field(self, first: EncodedSample, max_pixels: int, *, is_ragged: bool) -> ImageField:
        """Pixels of one size, or of differing ones."""
        names = self.names
        if names is not None and len(names) != first.shape[2]:
            message = f"expected {len(names)} channels for the names {', '.join(names)}, found {first.shape[2]}."
            raise SourceError(Problem(first.key, "array-shape", message), "Name each channel, or leave out `channels`.")
        if is_ragged:
            return replace(RaggedImageField.of(first.dtype.name, max_pixels), channels=names)
        return RawImageField(ArraySpec(first.dtype.name, first.shape), channels=names)

    def encode_whole(self, row: EncodedSample, pixels: NDArray[Any]) -> None:
        """Keep the pixels."""
        row.image, row.sums = pixels, partial(ImageSums.of_pixels, pixels)

    def write(self, row: EncodedSample, bands: Iterator[NDArray[Any]], path: Path, offset: int) -> None:
        """Write the pixels."""
        for band in bands:
            write_at(path, np.ascontiguousarray(band).reshape(-1).view(np.uint8).data, offset)
            offset += band.nbytes


@declared
class Jpeg(Encoding):
    """JPEG files, which are made of all images. They need less space than pixels.

    >>> tsds.convert("photos", "small.tsds", encoding=tsds.Jpeg(quality=80), workers=0).rows
    {'train': 8, 'val': 4}
    """

    quality: int = changed(_QUALITY, default=90)
    subsampling: Subsampling = changed(_SUBSAMPLING, default="4:2:0")

    asked: ClassVar[tuple[str, str]] = "encoding", "jpeg"
    name: ClassVar[Name] = "jpeg"
    mixes_colors: ClassVar[bool] = True
    shared: ClassVar[tuple[str, str]] = "{channels}", " channels"
    note_of_sizes: ClassVar[str] = (
        "images have {} sizes: each is kept as a JPEG file of its own size, which is decoded whenever it is "
        'loaded. Pass `size` for pixels of one size, or `encoding="raw"` for pixels of each.'
    )
    note_of_jpeg: ClassVar[str] = (
        "JPEG files are decoded and encoded again, which takes time and loses some quality. "
        'A conversion with `encoding="source"` keeps them as they are.'
    )

    def check_row(self, row: EncodedSample, picture: Picture) -> None:
        """JPEG has 8 bits, gray or RGB, and a limited number of pixels in a row."""
        from tensorstore_ds.imaging.jpeg import MOST_SIDE

        height, width, channels = row.shape
        if row.dtype != np.uint8 or channels not in (1, 3):
            message = f"JPEG keeps 8-bit gray or RGB, this image is {row.dtype} with {channels} channels."
            raise SourceError(Problem(row.key, "unsupported-depth", message))
        if max(height, width) > MOST_SIDE:
            message = f"JPEG has at most {MOST_SIDE:,} pixels in a row and rows, this image has {width}x{height}."
            raise SourceError(Problem(row.key, "too-many-pixels", message), 'Use `encoding="raw"`, or `tiles`.')

    def encode_whole(self, row: EncodedSample, pixels: NDArray[Any]) -> None:
        """Encode pixels as a JPEG file."""
        from tensorstore_ds.imaging.jpeg import encode_with_restarts

        row.image, row.restarts = encode_with_restarts(pixels, self.quality, self.subsampling)
        row.sums = partial(ImageSums.of_pixels, pixels)

    def write(self, row: EncodedSample, bands: Iterator[NDArray[Any]], path: Path, offset: int) -> None:
        """Write a JPEG file."""
        from tensorstore_ds.imaging.jpeg import DamagedJpegError, write_jpeg

        try:
            with path.open("wb") as file:
                row.restarts = write_jpeg(file, bands, row.size, self.quality, self.subsampling)
        except DamagedJpegError as error:
            raise SourceError(Problem(row.key, "too-many-pixels", f"{error}.")) from error


@declared
class SourceFiles(Encoding):
    """The bytes of the source files, except that AVIF and HEIC become JPEG.

    >>> tsds.convert("photos", "kept.tsds", encoding=tsds.conversion.SourceFiles(check="headers"), workers=0).rows
    {'train': 8, 'val': 4}
    """

    check: Check = option(
        'How to check files with `encoding="source"`: ``full`` decodes every pixel. ``headers`` decodes no pixels: '
        "it misses damage, and the store has no mean and standard deviation of pixels, which normalization needs.",
        default="full",
        group="Encoding",
    )
    quality: int = changed(_QUALITY, default=90)
    subsampling: Subsampling = changed(_SUBSAMPLING, default="4:2:0")

    asked: ClassVar[tuple[str, str]] = "encoding", "source"
    name: ClassVar[Name] = "source"
    keeps_files: ClassVar[bool] = True
    shared: ClassVar[tuple[str, str]] = "{dtype}", " pixels"
    note_of_sizes: ClassVar[str] = (
        "images have {} sizes: they are kept as their files, which are decoded whenever they are loaded. "
        'Pass `size` for pixels of one size, or `encoding="raw"` for pixels of each.'
    )

    @cached_property
    def jpeg(self) -> Jpeg:
        """The encoding of images whose files stores do not hold."""
        return Jpeg(self.quality, self.subsampling)

    def check_row(self, row: EncodedSample, picture: Picture) -> None:
        """Only files of some formats can be kept."""
        if not picture.is_file:
            advice = 'Use `encoding="raw"` or `encoding="jpeg"`.'
            raise OptionError(f"{row.key}: this source has no image files to keep. {advice}")
        if not picture.is_storable:
            row.left_out += (not_kept(row.key, picture),)
            if row.dtype != np.uint16:
                self.jpeg.check_row(row, picture)

    def encode(self, row: EncodedSample, placed: PlacedPicture, *, by_parts: bool) -> None:
        """Keep the file of an image, and decode all of its pixels for a full check."""
        from tensorstore_ds.imaging.jpeg import find_entries, find_restarts

        picture, left_out = placed.picture, row.left_out
        if picture.file is None or not picture.is_storable:
            super().encode(row, placed, by_parts=False)
            row.entries = find_entries(row.image)
            return
        row.sums, walked = ImageSums, None
        if self.check == "full" and by_parts and placed.is_large:
            row.sums = placed.sums
        elif self.check == "full" and (walked := placed.walk()) is None:
            row.sums = partial(ImageSums.of_pixels, placed.whole(row))
        row.restarts = find_restarts(picture.file)
        row.entries, row.sums = (find_entries(picture.file), row.sums) if walked is None else walked
        row.image, row.left_out = picture.file, left_out  # a file has what its pixels lack

    def encode_whole(self, row: EncodedSample, pixels: NDArray[Any]) -> None:
        """Encode pixels as a PNG file if they have 16 bits, or else as JPEG."""
        from tensorstore_ds.imaging.codecs import encode_png

        if pixels.dtype != np.uint16:
            self.jpeg.encode_whole(row, pixels)
        else:
            row.image, row.sums = encode_png(pixels), partial(ImageSums.of_pixels, pixels)


@declared
class Auto(Raw):
    """Pixels if all images have one size or `fit` gives them one, JPEG with `Shrink`, and else the source files.

    Without files it is pixels. Each option belongs to the encoding that is chosen.

    >>> tsds.convert("photos", "small.tsds", encoding=tsds.conversion.Auto(quality=80), workers=0).rows
    {'train': 8, 'val': 4}
    """

    quality: int = changed(_QUALITY, default=90)
    subsampling: Subsampling = changed(_SUBSAMPLING, default="4:2:0")
    check: Check = changed(declarations(SourceFiles)["check"], default="full")

    asked: ClassVar[tuple[str, str]] = "encoding", "auto"

    def chosen(self, cls: type[Encoding]) -> Encoding:
        """This encoding as one of the others, with the options that belong to it."""
        return cls(**{name: getattr(self, name) for name in declarations(cls)})


def not_kept(key: str, picture: Picture) -> Problem:
    """What is said of a file that no store can hold, if files are kept."""
    what = f"this {picture.format} file is not kept: stores hold no files of this format"
    becomes = "PNG" if picture.dtype == "uint16" else "JPEG"
    return Problem(key, NOT_KEPT, f"{what}. Its image is stored as a {becomes} file.")
