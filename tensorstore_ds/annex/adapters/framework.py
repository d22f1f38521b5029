"""One clear line where the library of an adapter is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported(name: str) -> Iterator[None]:
    """Import an adapter's library within the block; raises ModuleNotFoundError with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        message = f"tensorstore_ds.annex.adapters.{name} needs {name}. Install it with: pip install {name}"
        raise ModuleNotFoundError(message, name=name) from error
