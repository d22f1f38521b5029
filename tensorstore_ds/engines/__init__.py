"""Engines of others that run the tasks of a planned conversion: one module each, imported when it is asked for.

An engine is told which shards are to be converted, and by which function; no array passes through it.
"""
