"""Encode large images by parts: their bytes go to disk as they are made, and are never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.durable import write_at
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.format.statistics import ImageSums
from tensorstore_ds.imaging.codecs import bad_image
from tensorstore_ds.imaging.jpeg import DamagedJpegError, encode_jpeg, write_jpeg

_T = TypeVar("_T")
_COPY_NBYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Spool:
    """Values of a table in a separate file, until they are appended to those of their shard."""

    path: Path

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes in pieces, then remove the file."""
        with self.path.open("rb", buffering=0) as file:
            while data := file.read(_COPY_NBYTES):
                yield data
        self.path.unlink()


#: Values of a table: as one array, or in several pieces.
Values = NDArray[Any] | Sequence[NDArray[Any] | Spool]


def data_of(values: Values) -> Iterator[bytes | memoryview]:
    """Yield the bytes of values in order, and remove the files that contain some."""
    for piece in [values] if isinstance(values, np.ndarray) else values:
        if isinstance(piece, Spool):
            yield from piece.pieces()
        else:
            yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


def sums_of(sample: EncodedSample) -> ImageSums:
    """The statistics of a large image; raises `SourceError` if it is damaged."""
    return sum(map(ImageSums.of_pixels, _bands(sample)), ImageSums())


def write_pixels(sample: EncodedSample, path: Path, offset: int) -> ImageSums:
    """Write the pixels of a large image into a file that exists; raises `SourceError` if it is damaged."""

    def put(data: memoryview) -> None:
        nonlocal offset
        write_at(path, data, offset)
        offset += data.nbytes

    sums = ImageSums()
    for band in _bands(sample):
        put(np.ascontiguousarray(band).reshape(-1).view(np.uint8).data)
        sums += ImageSums.of_pixels(band)
    return sums


def spool_pixels(sample: EncodedSample, path: Path) -> ImageSums:
    """Write the pixels of a large image into a new file, which is removed if this fails."""
    path.touch()
    return _or_removed(path, lambda: write_pixels(sample, path, 0))


def spool_jpeg(sample: EncodedSample, path: Path, options: ImageOptions) -> ImageSums:
    """Encode a large image as a JPEG file, which is removed if this fails; notes its restart markers in `sample`."""
    sums = ImageSums()

    def bands() -> Iterator[NDArray[Any]]:
        nonlocal sums
        for band in _bands(sample):
            sums += ImageSums.of_pixels(band)
            yield band

    def write() -> None:
        with path.open("wb") as file:
            try:
                sample.restarts = write_jpeg(file, bands(), sample.size, options.quality, options.subsampling)
            except DamagedJpegError as error:
                raise bad_image(sample.key, "too-many-pixels", f"{error}.") from error

    _or_removed(path, write)
    return sums


def about(sample: EncodedSample, options: ImageOptions) -> tuple[bytes, float]:
    """The stored bytes of the first rows of a large image, and the factor to the size of the whole image."""
    band = next(sample.parts.bands())
    share = len(band) / sample.shape[0]
    data = encode_jpeg(band, options.quality, options.subsampling) if options.encoding == "jpeg" else band.tobytes()
    return data, 1 / share


def _bands(sample: EncodedSample) -> Iterator[NDArray[Any]]:
    for band in sample.parts.bands():
        if band.dtype.kind == "f" and not np.isfinite(band).all():
            raise bad_image(sample.key, "pixel-nan", "expected finite numbers as pixels, found NaN or infinity.")
        yield band


def _or_removed(path: Path, write: Callable[[], _T]) -> _T:
    try:
        return write()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
