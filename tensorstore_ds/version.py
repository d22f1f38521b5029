"""The version of this library; the format has its own, in `format.manifest.FORMAT_VERSION`."""

__version__ = "0.1.0"
