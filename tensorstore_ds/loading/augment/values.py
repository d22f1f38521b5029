"""Values of pixels: black is 0, and white is the largest integer, or 1 in floating-point images."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorstore_ds.options import refusal

#: Bits of integers. Where torch lacks operations on uint16, transforms get its values in int32.
BITS = {torch.uint8: 8, torch.uint16: 16, torch.int32: 16}


def white_of(dtype: torch.dtype, bits: int | None = None) -> int:
    """Return the largest value of images of a dtype, or of integers that use only `bits`; 1 if floating-point.

    Raises `OptionError` if the dtype has fewer bits.
    """
    most = BITS.get(dtype, 0)
    if most and bits is not None and not 1 <= bits <= most:
        raise refusal("bits", f"1 to {most} for {dtype} images", bits)
    return 2 ** (bits or most) - 1 if most else 1


def floating(images: Tensor) -> Tensor:
    """Convert to the dtype of computations: float64, or float32 for any other."""
    return images if images.dtype == torch.float64 else images.to(torch.float32)


def as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert values to the dtype of images. Values of integers are whole, from black to white."""
    if dtype == torch.uint8 and values.device.type == "cpu":
        values = values.to(torch.int16)  # torch converts many floats to int16 at once, but to bytes one by one
    return values.to(dtype)


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round computed values to the dtype of images. `values` are overwritten."""
    return as_dtype(values.round_() if dtype in BITS else values, dtype)


def unit(values: Tensor, white: float) -> Tensor:
    """Divide floating-point values by white, in place, with equal bits on all devices."""
    # A tensor, because GPUs multiply by the reciprocal of a number, which rounds differently.
    return values.div_(torch.full((), float(white), device=values.device))
