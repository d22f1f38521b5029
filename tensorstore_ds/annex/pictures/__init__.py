"""Contact sheets, and what all pictures share."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from tensorstore_ds.durable import write_file

if TYPE_CHECKING:
    from PIL import Image


def save_png(picture: Image.Image, path: str | os.PathLike[str]) -> None:
    """Write or replace a PNG file, atomically; raises `OutputError`."""
    content = io.BytesIO()
    picture.save(content, "PNG")
    write_file(path, content.getvalue())
