"""The encoding ``smart``: which images are worth their space as pixels, which need not be decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from tensorstore_ds import words
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.machine import memory_limit

#: Seconds that decoding a JPEG file takes: for itself, for each pixel, and for each byte. They are constants and not
#: measured, so that the same source gives the same store everywhere. Only their ratios matter.
_FILE, _PIXEL, _BYTE = 3e-5, 4e-9, 12e-9
#: Bytes of a row besides its image, about: size, shape, key, offsets.
_ROW_NBYTES = 100
#: So much of the budget is aimed at: where the sizes of all files are estimated from some, and where all are known.
_AIM, _AIM_OF_ALL = 0.975, 0.99


def usual_budget() -> int:
    """Half of the memory that is free, rounded down to a power of two, so that a run that goes on has the same."""
    return 1 << (memory_limit() // 2).bit_length() - 1


def pixel_file(pixels: NDArray[Any]) -> bytes:
    """A PGM or PPM file of uint8 pixels (H, W, C), gray or RGB."""
    height, width, channels = pixels.shape
    return b"P%d\n%d %d\n255\n" % (5 if channels == 1 else 6, width, height) + pixels.tobytes()


def jpeg_size(sample: EncodedSample) -> tuple[tuple[int, ...], int, int]:
    """Shape, bytes as a JPEG file, and bytes that this takes besides, as `least_worth` takes them."""
    return sample.shape, len(sample.image or b""), 0 if sample.restarts is None else sample.restarts.nbytes


def worth(shape: tuple[int, ...], nbytes: int) -> float:
    """Seconds of decoding that each byte saves by which an image is larger as pixels than as a JPEG file."""
    more = math.prod(shape) - nbytes
    return math.inf if more <= 0 else (_FILE + _PIXEL * math.prod(shape[:2]) + _BYTE * nbytes) / more


def least_worth(images: Sequence[tuple[tuple[int, ...], int, int]], samples: int, budget: int) -> tuple[float, int]:
    """The least `worth` of an image that is kept as pixels, so that a store stays within its budget.

    Args:
        images: shape, bytes as a JPEG file, and bytes that this file takes besides; of all images or of some of them.
        samples: how many there are in all.
        budget: bytes of the store.

    Returns:
        The least worth, and the bytes of the store, about.

    Raises:
        OptionError: not even the JPEG files fit.
    """
    each = samples / max(1, len(images))  # so many are like one of these
    room = budget * (_AIM_OF_ALL if samples == len(images) else _AIM)
    nbytes = samples * _ROW_NBYTES + each * sum(size + more for _, size, more in images)
    if nbytes > room:
        least = words.size(math.ceil(nbytes / room * budget))
        expected = f"expected at least {least}, which all images take as JPEG files, found {words.size(budget)}"
        raise OptionError(f"`budget`: {expected}. Choose more, a smaller `max_side`, or a lower `quality`.")
    least_of_all = math.inf
    growing = ((worth(shape, size), math.prod(shape) - size - more) for shape, size, more in images)
    for value, more in sorted(growing, reverse=True):
        if nbytes + each * more > room:
            return least_of_all, round(nbytes)
        nbytes += each * more
        least_of_all = value
    return 0.0, round(nbytes)
