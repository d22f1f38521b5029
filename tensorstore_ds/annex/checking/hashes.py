"""What images look like, in few bytes: thumbnails, and a perceptual hash made of each."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.imaging.resizing import as_image

#: Pixels of a side of a thumbnail.
SIDE = 32
_LOW = 8  # frequencies of each direction that a hash is made of


def as_gray(pixels: NDArray[Any]) -> Image.Image:
    """Convert pixels (H, W, C) to a gray image.

    16-bit values are divided by 256, and other types are scaled from their range. The last of four channels is opacity,
    which is ignored.
    """
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        values = np.nan_to_num(pixels.astype(np.float64))
        low, high = float(values.min()), float(values.max())
        pixels = np.rint((values - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    image = as_image(pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, :1])
    return image if image.mode == "L" else image.convert("L")


def thumbnail(gray: Image.Image) -> NDArray[np.uint8]:
    """A gray image (32, 32), by Pillow's bilinear filter, whose support grows with the reduction."""
    return np.asarray(gray if gray.size == (SIDE, SIDE) else gray.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def is_constant(pixels: NDArray[Any]) -> bool:
    """Whether all pixels (H, W, C) are the same."""
    flat = pixels.reshape(-1, pixels.shape[-1])
    return bool((flat == flat[:1]).all())


def perceptual_hashes(thumbnails: NDArray[np.uint8], *, mirrored: bool = False) -> NDArray[np.uint64]:
    """pHash of thumbnails (n, 32, 32), mirrored left to right on request: (n,) of 63 bits.

    A bit is set where one of the 8 x 8 lowest frequencies of the discrete cosine transform (type II), except the mean,
    is larger than their median. Copies that were resized, encoded again or made brighter differ in few bits. Source: C.
    Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010, section 3.2.
    """
    basis = _cosines()
    low = (basis @ thumbnails.astype(np.float32) @ basis.T).reshape(len(thumbnails), _LOW, _LOW)
    if mirrored:
        low[:, :, 1::2] *= -1
    values = low.reshape(len(low), -1)[:, 1:]
    bits = values > np.median(values, axis=1, keepdims=True)
    padded = np.zeros((len(bits), _LOW * _LOW), np.uint8)
    padded[:, 1:] = bits
    return np.packbits(padded, axis=1).view(">u8").ravel().astype(np.uint64)


@functools.cache
def _cosines() -> NDArray[np.float32]:
    """(8, 32) the lowest basis functions of the DCT-II of 32 values, orthonormal."""
    n, k = np.arange(SIDE), np.arange(_LOW)[:, None]
    basis: NDArray[np.float64] = np.cos(np.pi * (2 * n + 1) * k / (2 * SIDE)) * np.sqrt(2 / SIDE)
    basis[0] /= np.sqrt(2)
    return basis.astype(np.float32)


def correlations(
    thumbnails: NDArray[np.uint8], others: NDArray[np.uint8], *, mirrored: bool = False
) -> NDArray[np.float32]:
    """(n,) normalized correlation of thumbnails (n, 32, 32) with others, mirrored on request; 0 if one is constant."""
    if mirrored:
        others = others[:, :, ::-1]
    a, b = (each.reshape(len(each), -1).astype(np.float32) for each in (thumbnails, others))
    a, b = (each - each.mean(axis=1, keepdims=True) for each in (a, b))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products: NDArray[np.float32] = np.einsum("ij,ij->i", a, b)
    return np.where(norms > 0, products / np.where(norms > 0, norms, 1), 0).astype(np.float32)
