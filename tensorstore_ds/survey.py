"""Look at the headers of all images: their sizes and colours, without decoding a pixel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tensorstore_ds.encode import ImageOptions, color_of, open_image, oriented_size, own_pixel_limit
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.plan import PlannedSplit
from tensorstore_ds.sources.base import Sample, Source
from tensorstore_ds.sources.reading import open_file

#: An image is not of the shape that the first one had; never skipped, because it may be most of them.
SHAPES_DIFFER = "shapes-differ"
#: So many sizes are named in a message.
NAMED = 5


def survey(
    source: Source, splits: Mapping[str, PlannedSplit], options: ImageOptions
) -> tuple[Counter[str], Counter[str], list[Problem]]:
    """Count the sizes ("480x640", height x width, as shown) and colour modes of all images, from their headers.

    Returns:
        Counts of sizes, counts of modes, and what cannot be opened.
    """
    sizes: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    problems: list[Problem] = []
    with own_pixel_limit():
        for split in splits.values():
            for reference in split.references:
                try:
                    height, width, mode = header(source.read(split.source_split, reference), options)
                except SourceError as error:
                    problems += error.problems
                    continue
                sizes[f"{height}x{width}"] += 1
                modes[mode] += 1
    return sizes, modes, problems


def header(sample: Sample, options: ImageOptions) -> tuple[int, int, str]:
    """(height, width, colour mode) of a sample's image; raises `SourceError`."""
    image = sample.image
    if isinstance(image, np.ndarray):
        channels = image.shape[2] if image.ndim == 3 else 1
        return image.shape[0], image.shape[1], f"{channels} x {image.dtype}"
    if isinstance(image, str | Path):
        with open_file(image, sample.key) as file:
            opened = open_image(file, max_pixels=options.max_pixels, key=sample.key)
            return (*oriented_size(opened, sample.key), color_of(opened.mode))
    return (*oriented_size(image, sample.key), color_of(image.mode))


def shapes_problem(source: Source, sizes: Counter[str], modes: Counter[str], options: ImageOptions) -> Problem | None:
    """What keeps images from being rows of one array, if anything does: what shapes there are, and the ways out."""
    if options.encoding != "raw":
        return None
    if len(sizes) > 1 and options.size is None:
        what, counts = "sizes (height x width)", sizes
        advice = "Pass --size 224 or HxW with --fit pad, crop or stretch, or keep sizes with --encoding jpeg or source."
    elif len(modes) > 1 and options.color == "auto":
        what, counts = "colours", modes
        advice = "Pass --color rgb or gray, or keep each image as it is with --encoding source."
    else:
        return None
    named = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(NAMED))
    more = f" and {len(counts) - NAMED} more" if len(counts) > NAMED else ""
    return Problem(str(source.path), SHAPES_DIFFER, f"images are of differing {what}: {named}{more}. {advice}")
