"""Measure what limits training on this machine with this store, and suggest what to change."""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
