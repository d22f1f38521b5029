"""JPEG files of all sorts for tests."""

import numpy as np
from PIL import Image

from stores import image_file


def drawn(height, width, channels=3, seed=0):
    """(H, W, C) uint8: smooth colors with edges and some noise, so that errors of chroma show."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 90 * np.sin(x / rng.uniform(3, 20) + y / rng.uniform(3, 20) + c) for c in range(channels)]
    pixels = np.stack(planes, 2) + rng.normal(0, 6, (height, width, channels))
    top, left = (int(rng.integers(0, n)) for n in (height, width))
    pixels[top : top + height // 3 + 1, left : left + width // 3 + 1] = rng.integers(0, 255, channels)
    return pixels.clip(0, 255).astype(np.uint8)


def jpeg(pixels, mode=None, **options):
    """The bytes of a JPEG file; options are Pillow's."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels, mode)
    return image_file(image, "JPEG", **{"quality": 90, **options})


def exif_of(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def oriented(pixels, orientation, **options):
    """A JPEG file that is to be shown turned."""
    exif = exif_of(orientation)
    return jpeg(pixels, exif=exif, **options)
