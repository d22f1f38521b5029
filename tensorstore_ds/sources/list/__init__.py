"""Lists of images in text or CSV files: formats/sources/list.md."""
