"""Run the tasks of a planned conversion on Dask, Ray or Slurm.

An engine is told which shards are to be converted, and by which function; no array passes through it.
"""
