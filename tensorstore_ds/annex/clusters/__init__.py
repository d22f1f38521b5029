"""Run the tasks of a planned conversion on Dask, Ray or Slurm.

An engine is told which shards are to be converted, and by which function; no array passes through it.
"""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
