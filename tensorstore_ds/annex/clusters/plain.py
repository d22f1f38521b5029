"""A plan as plain JSON, and back: numbers, texts, paths, collections, and the few classes named here.

This replaces pickle, because untrusted data can only become these types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tensorstore_ds.annex.sources.row_table import ClassNames, RowTable
from tensorstore_ds.annex.sources.yolo.config import Config
from tensorstore_ds.conversion.encodings import Auto, Jpeg, Raw, SourceFiles
from tensorstore_ds.conversion.options import ConvertOptions, ImageOptions
from tensorstore_ds.conversion.values import Fit, ImageTiles, ObjectCrops, Shrink
from tensorstore_ds.errors import Problem
from tensorstore_ds.format.kinds.labels import LabelsField
from tensorstore_ds.format.schema import ArraySpec, Keypoints
from tensorstore_ds.sources.annotations import ObjectReader
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.list.table import Columns, Flag

_CLASSES = {
    cls.__name__: cls
    for cls in (
        *(ArraySpec, ClassNames, Columns, Config, Flag, ConvertOptions, ImageOptions, Keypoints, LabelsField),
        *(
            ObjectReader,
            Problem,
            RowTable,
            SourceOptions,
            Auto,
            Raw,
            Jpeg,
            SourceFiles,
            Fit,
            Shrink,
            ImageTiles,
            ObjectCrops,
        ),
    )
}


def dump(value: Any) -> Any:
    """Convert a value to JSON types. Raises `TypeError` for an unknown type.

    >>> load(dump({"a": (1, Path("b")), 2: {3.5, None}})) == {"a": (1, Path("b")), 2: {3.5, None}}
    True
    """
    if value is None or isinstance(value, bool | int) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, str):  # a file name that is not UTF-8 has its bytes as surrogates
        return value if value.isprintable() else {"str": value.encode("utf-8", "surrogateescape").hex()}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, list):
        return [dump(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [dump(each) for each in value]}
    if isinstance(value, set | frozenset):
        return {type(value).__name__: sorted((dump(each) for each in value), key=repr)}
    if isinstance(value, Mapping):
        return {"dict": [[dump(key), dump(each)] for key, each in value.items()]}
    if isinstance(value, Path):
        return {"Path": dump(str(value))}
    if _CLASSES.get(type(value).__name__) is not type(value):
        raise TypeError(f"expected plain data, found {type(value).__name__}")
    names = [each.name for each in fields(value)] if is_dataclass(value) else list(vars(value))
    return {type(value).__name__: {name: dump(getattr(value, name)) for name in names}}


def load(data: Any) -> Any:
    """Convert the output of `dump` back; raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    if isinstance(data, list):
        return [load(each) for each in data]
    if not isinstance(data, dict):
        return data
    ((kind, inner),) = data.items()
    if kind == "float":
        return float(inner)
    if kind == "str":
        return bytes.fromhex(inner).decode("utf-8", "surrogateescape")
    if kind == "Path":
        return Path(load(inner))
    if kind == "dict":
        return {load(key): load(each) for key, each in inner}
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(load, inner))
    value = object.__new__(_CLASSES[kind])
    for name, each in inner.items():
        object.__setattr__(value, name, load(each))  # of frozen classes, too
    return value
