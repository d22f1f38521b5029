"""tensorstore-ds: image data sets as Zarr stores that are also memory maps.

Public names are imported when they are first used, so that opening a store loads neither Pillow nor torch.
They are listed in ``__init__.pyi``. Those of a room, such as `training`, are listed in the room's own.

>>> import tensorstore_ds as tsds
>>> store = tsds.open("photos.tsds")
>>> store["train"]["image"].take([3, 1, 4]).shape
(3, 32, 32, 3)
"""

from __future__ import annotations

from typing import Any

from tensorstore_ds import public

_import, __dir__, __all__ = public.attach(__name__)


def __getattr__(name: str) -> Any:
    try:
        return _import(name)
    except ModuleNotFoundError as error:
        from tensorstore_ds.words import OF_TORCH

        if error.name not in OF_TORCH:
            raise
        advice = "Install it with: pip install '.[torch]' in a clone of tensorstore-ds"
        message = f"tensorstore_ds.{name} needs {error.name}. {advice}"
        raise ModuleNotFoundError(message, name=error.name) from error
