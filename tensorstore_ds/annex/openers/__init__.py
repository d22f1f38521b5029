"""Readers that open image files in parts with a library: `tensorstore_ds.imaging.picture.OPENERS` lists them."""
