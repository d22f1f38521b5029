"""The options of functions as keywords: what editors complete and type checkers check.

``python tests/keyword_types.py`` writes this module from the declarations of the options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from tensorstore_ds.conversion.encodings import Auto, Jpeg, Raw, SourceFiles
from tensorstore_ds.conversion.values import Fit, ImageTiles, ObjectCrops, Shrink
from tensorstore_ds.format.schema import Keypoints


class ConvertKeywords(TypedDict, total=False):
    """`ConvertOptions` as keywords."""

    classes: Sequence[str] | None
    keypoints: Keypoints | None
    images: str | os.PathLike[str] | None
    key_prefix: str | None
    class_map: Mapping[str, str] | None
    label_from: str | None
    boxes: Literal["auto", "pixels", "fraction"]
    multi_label: bool
    via: str | None
    size: int | tuple[int, int] | None
    fit: Fit | Shrink | None
    encoding: Auto | Raw | Jpeg | SourceFiles | Literal["auto", "raw", "jpeg", "source"]
    quality: int
    subsampling: Literal["4:2:0", "4:4:4"]
    check: Literal["full", "headers"]
    min_visibility: float
    oriented_boxes: Literal["source", "polygons"]
    max_side: int | None
    color: Literal["auto", "gray", "rgb", "rgba"]
    channels: str | None
    max_pixels: int
    format: str
    layout: Literal["memmap", "zarr"]
    split_into: Mapping[str, float] | None
    seed: int
    split_by: str | None
    objects: Literal["whole", "crops"]
    tiles: int | tuple[int, int] | None
    overlap: float
    empty_tiles: float
    margin: float
    min_side: int
    shard_nbytes: int
    on_error: Literal["fail", "skip", "skip-image"]
    strict: bool
    workers: int | None
    license: str | None
    citation: str | None
    cut: ImageTiles | ObjectCrops | None


class RepackKeywords(TypedDict, total=False):
    """`RepackOptions` as keywords."""

    layout: Literal["memmap", "zarr"] | None
    encoding: Raw | Jpeg | Literal["raw", "jpeg"] | None
    quality: int
    subsampling: Literal["4:2:0", "4:4:4"]
    size: int | tuple[int, int] | None
    fit: Fit | Shrink | None
    min_visibility: float
    max_side: int | None
    color: Literal["auto", "gray", "rgb", "rgba"]
    workers: int | None
