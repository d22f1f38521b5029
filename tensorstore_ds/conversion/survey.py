"""Look at the headers of all images: their sizes and colours, without decoding a pixel."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tensorstore_ds.conversion.blocks import SHAPES_DIFFER
from tensorstore_ds.conversion.options import ImageOptions
from tensorstore_ds.conversion.preparation import Prepared
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.imaging.codecs import color_of, open_image, oriented_size, own_pixel_limit
from tensorstore_ds.regular_files import open_file
from tensorstore_ds.sources.base import Sample

#: So many sizes are named in a message.
NAMED = 5


class Kind(NamedTuple):
    """What an image's pixels are, by ``color="auto"``."""

    channels: int
    dtype: str

    def __str__(self) -> str:
        return _NAMES.get(self, f"{self.channels} x {self.dtype}")


GRAY, COLOUR = Kind(1, "uint8"), Kind(3, "uint8")
_NAMES = {GRAY: "gray", COLOUR: "colour", Kind(1, "uint16"): "16-bit gray"}


@dataclass(slots=True)
class Survey:
    """How many images there are of each size ("480x640", height x width, as shown) and kind, and what is no image."""

    sizes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[Kind] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)


def survey(prepared: Prepared) -> Survey:
    """Count the sizes and kinds of all images, from their headers."""
    result = Survey()
    with own_pixel_limit():
        for split in prepared.splits.values():
            for reference in split.references:
                try:
                    sample = prepared.source.read(split.source_split, reference)
                    height, width, kind = _header(sample, prepared.format.image)
                except SourceError as error:
                    result.problems += error.problems
                    continue
                result.sizes[f"{height}x{width}"] += 1
                result.kinds[kind] += 1
    return result


def _header(sample: Sample, options: ImageOptions) -> tuple[int, int, Kind]:
    """Height, width and kind of a sample's image; raises `SourceError`."""
    image = sample.image
    if isinstance(image, np.ndarray):
        dtype = "uint8" if image.dtype == np.bool_ else image.dtype.newbyteorder("=").name
        return image.shape[0], image.shape[1], Kind(image.shape[2] if image.ndim == 3 else 1, dtype)
    if isinstance(image, bytes | str | Path):
        with io.BytesIO(image) if isinstance(image, bytes) else open_file(image, sample.key) as file:
            opened = open_image(file, max_pixels=options.max_pixels, key=sample.key)
            return (*oriented_size(opened, sample.key), _kind(opened))
    return (*oriented_size(image, sample.key), _kind(image))


def _kind(image: Image.Image) -> Kind:
    color = color_of(image.mode)
    if color != image.mode:
        return GRAY if color == "gray" else COLOUR
    return Kind(1, {"I": "int32", "F": "float32"}.get(color, "uint16"))


def mixed_colors(surveyed: Survey, options: ImageOptions) -> str | None:
    """What the user is told where gray and colour images are mixed, which are all stored as RGB then; else None."""
    kinds = [kind for kind in surveyed.kinds if options.encoding == "raw" or kind in (GRAY, COLOUR)]
    if options.encoding == "source" or options.color != "auto" or len({kind.dtype for kind in kinds}) > 1:
        return None
    if {kind.channels for kind in kinds} != {1, 3}:
        return None
    counts = " and ".join(f"{surveyed.kinds[kind]:,} {kind}" for kind in sorted(kinds))
    return f"{counts} images: all are stored as RGB. Pass `color=gray` or `color=rgb` to choose."


def shapes_problem(prepared: Prepared, surveyed: Survey) -> Problem | None:
    """What keeps images from being rows of one array, if anything does: all that differs, and the way out of it all."""
    options = prepared.format.image
    if options.encoding != "raw":
        return None
    kinds = Counter[Kind]()
    for kind, count in surveyed.kinds.items():
        kinds[_stored(kind, options)] += count
    becomes_rgb = mixed_colors(surveyed, options) is not None
    sizes_differ = len(surveyed.sizes) > 1 and options.size is None
    colors_differ = len(kinds) > 1 and not becomes_rgb
    if not sizes_differ and not colors_differ:
        return None
    what = [f"sizes (height x width): {_named(surveyed.sizes)}"] if sizes_differ else []
    if len(kinds) > 1:
        what.append(f"colours: {_named(surveyed.kinds)}{' (stored as RGB)' if becomes_rgb else ''}")
    color = " and `color=rgb`" if colors_differ else ""
    if len({kind.dtype for kind in kinds}) > 1:
        advice = "Keep each as it is with `encoding=source`, or bring all to one depth first."
    elif sizes_differ:
        advice = f"Pass one `size`{color} with `fit=pad`, `fit=crop` or `fit=stretch`, "
        advice += f"or keep sizes with `encoding=jpeg`{color}, or all as it is with `encoding=source`."
    else:
        advice = "Pass `color=rgb`, or keep each as it is with `encoding=source`."
    message = f"images are of differing {'; and of differing '.join(what)}. {advice}"
    return Problem(str(prepared.source.path), SHAPES_DIFFER, message)


def _stored(kind: Kind, options: ImageOptions) -> Kind:
    """What becomes of an image by the option for colour."""
    if options.color == "rgb":
        return Kind(3, kind.dtype)
    if options.color == "gray" and kind.channels in (3, 4):
        return Kind(1, kind.dtype)
    return Kind(4, kind.dtype) if options.color == "rgba" else kind


def _named(counts: Counter[Any]) -> str:
    named = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(NAMED))
    return named + (f" and {len(counts) - NAMED} more" if len(counts) > NAMED else "")
