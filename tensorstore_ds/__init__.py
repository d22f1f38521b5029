"""tensorstore-ds: image data sets as Zarr stores that are also memory maps.

Public names are imported when they are first used, so that opening a store loads neither Pillow nor zarr.

>>> import tensorstore_ds as tsds
>>> store = tsds.open("digits.tsds")                        # doctest: +SKIP
>>> store["train"]["image"].take([3, 1, 4]).shape           # doctest: +SKIP
(3, 8, 8, 1)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorstore_ds.columns import Column, Ragged, RaggedColumn
from tensorstore_ds.errors import (
    ConversionError,
    FormatError,
    OptionError,
    Problem,
    SourceError,
    StoreExistsError,
    TsdsError,
)
from tensorstore_ds.store import Split, Store, open
from tensorstore_ds.version import __version__

if TYPE_CHECKING:
    from tensorstore_ds.conversion import Progress, Summary, convert
    from tensorstore_ds.estimation import Estimate, estimate
    from tensorstore_ds.options import ConvertOptions
    from tensorstore_ds.repacking import repack
    from tensorstore_ds.schema import Keypoints
    from tensorstore_ds.verification import verify

_LAZY = {
    "ConvertOptions": "options",
    "Estimate": "estimation",
    "Keypoints": "schema",
    "Progress": "conversion",
    "Summary": "conversion",
    "convert": "conversion",
    "estimate": "estimation",
    "repack": "repacking",
    "verify": "verification",
}

__all__ = [
    "Column",
    "ConversionError",
    "ConvertOptions",
    "Estimate",
    "FormatError",
    "Keypoints",
    "OptionError",
    "Problem",
    "Progress",
    "Ragged",
    "RaggedColumn",
    "SourceError",
    "Split",
    "Store",
    "StoreExistsError",
    "Summary",
    "TsdsError",
    "__version__",
    "convert",
    "estimate",
    "open",
    "repack",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__
