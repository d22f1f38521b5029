"""Encode large images by parts: their bytes go to disk as they are made, and are never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.durable import write_at
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.format.statistics import ImageSums
from tensorstore_ds.imaging.codecs import OnDecode, bad_image
from tensorstore_ds.imaging.jpeg import DamagedJpegError, encode_jpeg, write_jpeg
from tensorstore_ds.imaging.picture import Picture

_COPY_NBYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Spool:
    """Values of a table in a separate file, until they are appended to those of their shard."""

    path: Path

    def __len__(self) -> int:
        """Its bytes."""
        return self.path.stat().st_size

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes in pieces, then remove the file."""
        with self.path.open("rb", buffering=0) as file:
            while data := file.read(_COPY_NBYTES):
                yield data
        self.path.unlink()


#: Values of a table: as one array, or in several pieces.
Values = NDArray[Any] | Sequence[NDArray[Any] | bytes | Spool]


def data_of(values: Values) -> Iterator[bytes | memoryview]:
    """Yield the bytes of values in order, and remove the files that contain some."""
    for piece in [values] if isinstance(values, np.ndarray) else values:
        if isinstance(piece, Spool):
            yield from piece.pieces()
        elif isinstance(piece, bytes):
            yield piece
        else:
            yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


def sums_of(key: str, image: Picture | NDArray[Any] | ImageSums | None, on_decode: OnDecode | None) -> ImageSums:
    """The statistics of an image whose file is kept, from its pixels; raises `SourceError` if it is damaged."""
    if isinstance(image, ImageSums):
        return image
    if isinstance(image, Picture):
        return sum(map(ImageSums.of_pixels, _bands(key, image, on_decode)), ImageSums())
    return ImageSums() if image is None else ImageSums.of_pixels(image)


def write_pixels(sample: EncodedSample, path: Path, offset: int, on_decode: OnDecode | None) -> ImageSums:
    """Write the pixels of a large image into a file that exists; raises `SourceError` if it is damaged."""
    sums = ImageSums()
    for band in _bands(sample.key, sample.image, on_decode):
        write_at(path, np.ascontiguousarray(band).reshape(-1).view(np.uint8).data, offset)
        offset += band.nbytes
        sums += ImageSums.of_pixels(band)
    return sums


def spool(sample: EncodedSample, path: Path, options: ImageOptions, on_decode: OnDecode | None) -> ImageSums:
    """Write a large image into a new file, which becomes its `image`, as pixels or encoded as JPEG.

    The file is removed if this fails.
    """
    sums = ImageSums()

    def bands() -> Iterator[NDArray[Any]]:
        nonlocal sums
        for band in _bands(sample.key, sample.image, on_decode):
            sums += ImageSums.of_pixels(band)
            yield band

    try:
        path.touch()
        if options.encoding != "jpeg":
            sums = write_pixels(sample, path, 0, on_decode)
        else:
            with path.open("wb") as file:
                sample.restarts = write_jpeg(file, bands(), sample.size, options.quality, options.subsampling)
    except DamagedJpegError as error:
        path.unlink(missing_ok=True)
        raise bad_image(sample.key, "too-many-pixels", f"{error}.") from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    sample.image = Spool(path)
    return sums


def about(sample: EncodedSample, options: ImageOptions) -> tuple[bytes, float]:
    """The stored bytes of an image, or of its first rows if it is large, and the factor to the size of all of it."""
    if not isinstance(sample.image, Picture):
        is_file = isinstance(sample.image, bytes)
        return sample.image if is_file else np.ascontiguousarray(sample.image).tobytes(), 1.0
    band = next(sample.image.bands())
    data = encode_jpeg(band, options.quality, options.subsampling) if options.encoding == "jpeg" else band.tobytes()
    return data, sample.shape[0] / len(band)


def _bands(key: str, picture: Picture, on_decode: OnDecode | None = None) -> Iterator[NDArray[Any]]:
    for band in picture.bands(on_decode):
        if band.dtype.kind == "f" and not np.isfinite(band).all():
            raise bad_image(key, "pixel-nan", "expected finite numbers as pixels, found NaN or infinity.")
        yield band
