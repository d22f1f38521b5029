"""Images that are blurred, dark, overexposed, or of an odd aspect ratio."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.annex.checking.options import CheckOptions
from tensorstore_ds.format.kinds import ImageField, SizeField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.reading.verification import image_sizes

#: What `qualities` measures, in its order.
MEASURES = ("sharpness", "lights", "shadows")
#: Pixels of a side of the images that are measured, at most.
SIDE = 64
#: An image is odd only if its measure is at most this share of the median of the store.
_SHARE = 0.5
_WHITE = 255


def reduced(gray: Image.Image) -> NDArray[np.uint8]:
    """Reduce a gray image (h, w) to at most 64 x 64 pixels with Pillow's bilinear filter; shorter sides stay."""
    size = min(SIDE, gray.width), min(SIDE, gray.height)
    return np.asarray(gray if gray.size == size else gray.resize(size, Image.Resampling.BILINEAR, reducing_gap=2))


def qualities(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 3) measures of gray images (n, h, w): sharpness, and the luminance of lights and of shadows, 0 to 255.

    Lights and shadows are the 99th and the 5th percentile of luminance. The sharpness is the 99th percentile of the
    absolute Laplacian, divided by the difference between the 99th and the 1st percentile of luminance: about 1 at a
    sharp edge between two areas, and small if all edges are soft. The Laplacian as a measure of focus: J. L.
    Pech-Pacheco et al., Diatom autofocusing in brightfield microscopy, ICPR 2000, which takes its variance. A
    percentile depends less on the number of edges, and the division makes it independent of the contrast.

    Percentiles use the nearest rank. The sharpness is NaN for images of fewer than 3 pixels in a direction, and if
    nearly all pixels have one color.
    """
    count = len(images)
    ordered = np.sort(images.reshape(count, -1), axis=1, kind="stable")  # a radix sort, faster than a partition
    darkest, shadows, lights = (_percentile(ordered, percent).astype(np.float32) for percent in (1, 5, 99))
    sharpness = np.full(count, np.nan, np.float32)
    if min(images.shape[1:]) > 2:
        values = images.astype(np.int16)
        inner = values[:, 1:-1, 1:-1]
        around = values[:, :-2, 1:-1] + values[:, 2:, 1:-1] + values[:, 1:-1, :-2] + values[:, 1:-1, 2:]
        edges = np.sort(np.abs(around - 4 * inner).reshape(count, -1), axis=1, kind="stable")
        np.divide(_percentile(edges, 99), lights - darkest, out=sharpness, where=lights > darkest)
    return np.stack([sharpness, lights, shadows], axis=1)


def _percentile(ordered: NDArray[np.generic], percent: int) -> NDArray[np.generic]:
    count = ordered.shape[1]
    return ordered[:, -(-count * percent // 100) - 1]


def odd_images(measured: NDArray[np.float32], store: Store, options: CheckOptions) -> Iterator[tuple[int, str, float]]:
    """Numbers of odd images in order, each with the reason and the value.

    `measured` are the (n, 3) `qualities` of the images of all splits; NaN for images that are not judged.
    """
    aspects = np.concatenate([_aspects(store[name]) for name in store] or [np.empty(0)])
    sharpness, lights, shadows = measured.T.astype(np.float64)
    away = np.abs(np.log(aspects) - np.log(np.median(aspects))) if len(aspects) else aspects
    found = {
        "blurred": (sharpness, (sharpness < options.min_sharpness) & _is_unlike(sharpness)),
        "dark": (lights, (lights < options.min_lights) & _is_unlike(lights)),
        "bright": (shadows, (shadows > options.max_shadows) & _is_unlike(_WHITE - shadows)),
        "aspect": (aspects, away > np.log(options.max_image_aspect)),
    }
    is_odd = np.logical_or.reduce([odd for _, odd in found.values()])
    for number in np.flatnonzero(is_odd).tolist():
        for why, (values, odd) in found.items():
            if odd[number]:
                yield number, why, round(float(values[number]), 3)


def _is_unlike(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(n,) whether values are at most half of their median; without this, a whole store could be listed."""
    known = values[~np.isnan(values)]
    return values <= _SHARE * np.median(known) if len(known) else np.zeros(len(values), np.bool_)


def _aspects(split: Split) -> NDArray[np.float64]:
    """(n,) width / height of images before the conversion, or as stored if the store does not have these sizes."""
    if (sizes := split.first(SizeField)) is not None:
        found = np.asarray(split[sizes][:], np.float64)
    else:
        found = image_sizes(split, next(iter(of_kind(split.fields, ImageField))), np.arange(len(split)))
    aspects: NDArray[np.float64] = found[:, 1] / found[:, 0].clip(1)
    return aspects.clip(1 / _WHITE**2)
