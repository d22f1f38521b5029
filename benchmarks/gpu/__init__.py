"""``python -m benchmarks gpu``: what needs a GPU to be measured, in parts that are processes of their own.

A part is a generator: it is given `Settings`, and yields rows (dicts) of its table, and `Figure`s that must be met for
the library to be right on this GPU. `run.PARTS` lists the parts, and `data` makes what they read.
"""
