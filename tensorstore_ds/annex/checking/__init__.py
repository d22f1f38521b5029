"""Find problems in a store's content: duplicates, leaks between splits, conflicting labels, blank images."""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
