"""Rarer formats of data sets: `tensorstore_ds.sources.FORMATS` lists them."""
