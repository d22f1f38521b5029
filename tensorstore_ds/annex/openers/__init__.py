"""Files of images that a library opens by parts: `tensorstore_ds.imaging.parts.OPENERS` lists them."""
