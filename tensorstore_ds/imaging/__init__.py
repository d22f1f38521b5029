"""Decode, encode, resize and place images."""

from typing import Literal

Color = Literal["auto", "gray", "rgb", "rgba"]

#: More pixels than this are taken for a decompression bomb; Pillow's own threshold for a warning.
MAX_PIXELS = 1024**3 // 4 // 3
