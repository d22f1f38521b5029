"""From the bytes of an image file to pixels, from pixels to bytes, and to another size."""
