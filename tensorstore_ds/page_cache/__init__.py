"""Find which bytes of a store are in memory; warm and evict them."""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
