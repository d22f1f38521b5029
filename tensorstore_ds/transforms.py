"""All transforms of batches, which are also the steps of decode plans. `tensorstore_ds` has the most used."""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
