"""Train and validate models of Ultralytics on a store, without exported files.

>>> from ultralytics import YOLO                                                          # doctest: +SKIP
>>> from tensorstore_ds.annex.adapters.ultralytics import StoreTrainer, StoreValidator          # doctest: +SKIP
>>> model = YOLO("yolo11n.yaml")                                                          # doctest: +SKIP
>>> model.train(trainer=StoreTrainer, data="photos.tsds", epochs=3)                       # doctest: +SKIP
>>> model.val(validator=StoreValidator, data="photos.tsds")                               # doctest: +SKIP

The task is that of the model: detect, segment, pose, obb or classify. Importing this module imports Ultralytics, whose
license is AGPL-3.0.
"""

from __future__ import annotations

import warnings

from packaging.version import Version
from ultralytics import __version__ as _found

from tensorstore_ds.annex.adapters.ultralytics.dataset import StoreClassificationDataset, StoreYOLODataset, read_images
from tensorstore_ds.annex.adapters.ultralytics.trainers import StoreTrainer, StoreValidator

__all__ = ["TESTED_VERSIONS", "StoreClassificationDataset", "StoreTrainer", "StoreValidator", "StoreYOLODataset"]
__all__ += ["read_images"]

#: The first and the last version of Ultralytics that the tests ran with. Others cause a warning on import.
TESTED_VERSIONS = ("8.4.0", "8.4.190")


def _warn_untested(found: str) -> None:
    """Warn if a version of Ultralytics is outside of `TESTED_VERSIONS`."""
    first, last = TESTED_VERSIONS
    if not Version(first) <= Version(found) <= Version(last):
        message = f"ultralytics: expected a version from {first} to {last}, which were tested, found {found}."
        warnings.warn(f"{message} If training fails, install ultralytics=={last}.", stacklevel=3)


_warn_untested(_found)
