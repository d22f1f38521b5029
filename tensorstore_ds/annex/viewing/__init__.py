"""A viewer in the browser: a page of plain JavaScript that reads a store by ranges."""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
