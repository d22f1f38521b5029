"""Make stores from rows of other stores, and change stores in place, without decoding images."""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
