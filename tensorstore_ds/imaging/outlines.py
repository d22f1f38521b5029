"""Outlines of objects, as COCO's run-length encoding (RLE) or as polygons in one array."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError

#: Each character of a number in COCO's compressed form holds 5 bits, and a flag that another character follows.
_BITS, _MORE, _SIGN = 5, 0x20, 0x10
_FIRST = 48
_LONGEST = 7  # characters of a number: 35 bits
_LONGEST_OUTLINE = 10**7  # pixels of the edges of an object's polygons
_FARTHEST = 10**8  # pixels


def joined_polygons(polygons: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Join polygons (k, 2) to corners (n, 2), with a row of NaN between two.

    >>> joined_polygons([np.zeros((1, 2)), np.ones((1, 2))]).tolist()
    [[0.0, 0.0], [nan, nan], [1.0, 1.0]]
    """
    gap = np.full((1, 2), np.nan)
    parts = [part for polygon in polygons for part in (polygon, gap)]
    return np.concatenate([np.empty((0, 2)), *parts[:-1]])


def split_polygons(corners: NDArray[Any]) -> list[NDArray[Any]]:
    """Split joined corners (n, 2) into polygons (k, 2): the inverse of `joined_polygons`. Views."""
    gaps = np.flatnonzero(np.isnan(corners[:, 0]))
    starts, stops = np.concatenate([[0], gaps + 1]), np.concatenate([gaps, [len(corners)]])
    return [corners[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True) if b > a]


def draw_masks(objects: Mapping[str, Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Draw the masks of a sample's objects from their `rle` or `polygons`, with the same pixels as pycocotools.

    An object with neither has an empty mask.

    >>> corners = np.array([[0, 0], [2, 0], [2, 1], [0, 1]])
    >>> draw_masks({"polygons": [corners]}, (2, 3)).astype(int).tolist()
    [[[1, 1, 0], [0, 0, 0]]]

    Args:
        objects: the objects of a sample, as ``split["objects"][row]`` returns them.
        size: (height, width) of the image.

    Returns:
        (M, H, W) bool, a mask for each object.

    Raises:
        OptionError: pycocotools is not installed.
        SourceError: an RLE mask belongs to an image of another size, or the edges of polygons are many million pixels
            long.
    """
    polygons, runs = objects.get("polygons", ()), objects.get("rle", ())
    masks = np.zeros((max(len(polygons), len(runs), len(objects.get("boxes", ()))), *size), np.bool_)
    for mask, each in zip(masks, runs, strict=False):
        if len(each):
            mask[:] = mask_of_runs(each, size, "rle")
    for mask, corners in zip(masks, polygons, strict=False):
        if len(corners):
            mask |= fill_polygons(corners, size)
    return masks


def fill_polygons(corners: NDArray[Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask (H, W) of an object's joined polygons (n, 2), as pycocotools draws them.

    They may leave the image. Raises OptionError without pycocotools, and SourceError if they are so long, or so far
    from the image, that pycocotools would take all memory.
    """
    try:
        from pycocotools import mask as coco
    except ModuleNotFoundError:
        raise OptionError("pycocotools is not installed: pip install '.[coco]' in a clone of tensorstore-ds") from None
    polygons = [each.astype(np.float64) for each in split_polygons(corners)]
    # it keeps each pixel of an edge at 5 times the resolution, and does not check for available memory
    length = sum(float(np.abs(each - np.roll(each, 1, axis=0)).max(axis=1).sum()) for each in polygons)
    if not length < _LONGEST_OUTLINE or not all((np.abs(each) < _FARTHEST).all() for each in polygons):
        message = f"expected polygons of less than {_LONGEST_OUTLINE:,} pixels in all, found {length:,.0f}."
        raise SourceError(Problem("polygons", "annotation", message))
    rings = [each.reshape(-1).tolist() for each in polygons]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # how it makes arrays
        filled: NDArray[np.uint8] = coco.decode(coco.merge(coco.frPyObjects(rings, *size)))
    return filled.astype(np.bool_)


def mask_of_runs(runs: NDArray[np.uint32], size: tuple[int, int], key: str) -> NDArray[np.bool_]:
    """Return the mask (H, W) of an image of (height, width) `size`. Raises SourceError if `runs` do not fill it.

    >>> mask_of_runs(np.array([1, 2, 1], np.uint32), (2, 2), "a").tolist()
    [[False, True], [True, False]]
    """
    check_runs(runs, size, key)
    values = np.arange(len(runs)) % 2 == 1
    return np.repeat(values, runs).reshape(size[::-1]).T


def check_runs(runs: NDArray[np.uint32], size: tuple[int, int], key: str) -> None:
    """Raise SourceError if `runs` do not add up to the pixels of an image of (height, width) `size`."""
    total = int(runs.sum(dtype=np.uint64))
    if total != size[0] * size[1]:
        message = f"expected runs of {size[0] * size[1]} pixels in all, found {total}."
        raise SourceError(Problem(key, "annotation", message))


def runs_of_mask(mask: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return the lengths of the runs of a mask (H, W), (n,).

    >>> runs_of_mask(np.array([[False, True], [True, False]])).tolist()
    [1, 2, 1]
    """
    flat = mask.T.reshape(-1)
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    edges = np.concatenate([[0], changes, [len(flat)]])
    lengths = np.diff(edges)
    return np.concatenate([[0], lengths] if len(flat) and flat[0] else [lengths]).astype(np.uint32)


def parse_counts(text: str) -> NDArray[np.uint32]:
    """Parse COCO's compressed form to lengths of runs (n,). Raises ValueError with the problem.

    Each number but the first three is the difference to the number two before it. The form: ``rleFrString`` in
    https://github.com/cocodataset/cocoapi/blob/master/common/maskApi.c

    >>> parse_counts("121").tolist(), parse_counts("`0T3`000").tolist()
    ([1, 2, 1], [16, 100, 16, 100, 16])
    """
    counts: list[int] = []
    value = shift = 0
    for character in map(ord, text):
        bits = character - _FIRST
        if not 0 <= bits < 64 or shift >= _BITS * _LONGEST:
            raise ValueError(f"expected runs in COCO's compressed form, found {text[:40]!r}")
        value |= (bits & 0x1F) << shift
        shift += _BITS
        if bits & _MORE:
            continue
        if bits & _SIGN:
            value -= 1 << shift
        if len(counts) > 2:
            value += counts[-2]
        if not 0 <= value < 1 << 32:
            raise ValueError(f"expected lengths of runs, found {value}")
        counts.append(value)
        value = shift = 0
    if shift:
        raise ValueError(f"expected runs in COCO's compressed form, found {text[-40:]!r}, which ends in a number")
    return np.array(counts, np.uint32)


def dump_counts(runs: NDArray[np.uint32]) -> str:
    """Return the runs (n,) in COCO's compressed form, the inverse of `parse_counts`."""
    characters = bytearray()
    counts = runs.tolist()
    for i, count in enumerate(counts):
        value = count - counts[i - 2] if i > 2 else count
        more = True
        while more:
            bits = value & 0x1F
            value >>= _BITS
            more = value != (-1 if bits & _SIGN else 0)
            characters.append((bits | _MORE * more) + _FIRST)
    return characters.decode("ascii")
