"""Write a file in one step."""

from __future__ import annotations

from pathlib import Path

from tensorstore_ds.durable import replacing


def write_file(path: Path, data: bytes) -> None:
    """Write or replace a file; raises `OutputError`, also where it would go through a link."""
    with replacing(path) as file:
        file.write(data)
