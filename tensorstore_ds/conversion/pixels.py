"""The pixels of an image as a store has them, whole or in bands, and values that are in files until they are stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.format.statistics import ImageSums
from tensorstore_ds.imaging.codecs import OnDecode, bad_image
from tensorstore_ds.imaging.picture import Picture
from tensorstore_ds.imaging.placement import Placement
from tensorstore_ds.regular_files import archive_of
from tensorstore_ds.sources.base import Sample

_COPY_NBYTES = 8 * 1024**2
#: Largest number of characters of a path in an error.
_SHOWN = 100


@dataclass(slots=True, repr=False)
class Pixels:
    """The pixels of a sample's image as a store has them: placed, finite, and if `is_widened`, gray as RGB."""

    picture: Picture
    _placement: Placement | None
    _is_widened: bool
    _sample: Sample
    _on_decode: OnDecode | None

    @property
    def are_large(self) -> bool:
        """Whether they should be read in bands, which cannot be placed."""
        return self.picture.is_large and self._placement is None

    def whole(self, row: EncodedSample) -> NDArray[Any]:
        """Return all pixels, (H, W, C), and note in their row what they tell of it. Raises `SourceError` for damage."""
        with PathInErrors(row.key, self._sample.image):
            pixels = self.picture.pixels_in(self._placement, self._on_decode)
        pixels = self._checked(pixels)
        row.shape, row.dtype, row.left_out = pixels.shape, pixels.dtype, row.left_out + self.picture.left_out
        return pixels

    def walk(self) -> tuple[NDArray[np.uint32], Callable[[], ImageSums]] | None:
        """Return the entries and the sums of a sound JPEG file, or None if only its pixels can tell."""
        with PathInErrors(self._sample.key, self._sample.image):
            found = self.picture.walk(self._on_decode)
        return None if found is None else (found[0], lambda: found[1])

    def bands(self, sums: list[ImageSums]) -> Iterator[NDArray[Any]]:
        """Yield the pixels from top to bottom, (h, W, C), and add the sums of each band to `sums`."""
        for band in self.picture.bands(self._on_decode):
            checked = self._checked(band)
            sums.append(ImageSums.of_pixels(checked))
            yield checked

    def sums(self) -> ImageSums:
        """Return the sums of all pixels."""
        sums: list[ImageSums] = []
        for _ in self.bands(sums):
            pass
        return sum(sums, ImageSums())

    def _checked(self, pixels: NDArray[Any]) -> NDArray[Any]:
        if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
            resized = ", or numbers too large to be resized" if self._placement is not None else ""
            raise bad_image(
                self._sample.key, "pixel-nan", f"expected finite numbers as pixels, found NaN or infinity{resized}."
            )
        return np.repeat(pixels, 3, axis=2) if self._is_widened else pixels


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


class PathInErrors:
    """Adds the path of a sample's image to errors, unless the key contains it."""

    def __init__(self, key: str, image: Any) -> None:
        self._key, self._image = key, image

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if not isinstance(error, SourceError) or not isinstance(self._image, str | Path):
            return
        path, advice = str(self._image), error.advice
        is_missing = error.reason == "unreadable-file" and not os.path.lexists(path) and archive_of(path) is None
        if path.endswith(self._key) and not is_missing:
            return
        if is_missing:
            advice = "If the images are in another folder, name it with `images`."
        shown = path if len(path) <= _SHOWN else f"...{path[-_SHOWN:]}"
        problems = [replace(problem, message=f"{shown}: {problem.message}") for problem in error.problems]
        raise SourceError(problems, advice) from error
