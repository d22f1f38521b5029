"""tensorstore-ds: image data sets as Zarr stores that are also memory maps.

Public names are imported when they are first used, so that opening a store loads neither Pillow nor torch.
They are listed in ``__init__.pyi``. Those of a room, such as `training`, are listed in the room's own.

>>> import tensorstore_ds as tsds
>>> store = tsds.open("photos.tsds")
>>> store["train"]["image"].take([3, 1, 4]).shape
(3, 32, 32, 3)
"""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
