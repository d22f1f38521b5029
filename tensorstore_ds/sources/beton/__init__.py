"""FFCV's .beton files: formats/sources/beton.md."""
