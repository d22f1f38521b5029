"""One clear line where the library of an adapter is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported(name: str) -> Iterator[None]:
    """Context manager for the imports of an adapter's library.

    Args:
        name: name of the library, for import and for pip.

    Raises:
        ModuleNotFoundError: the library is not installed. The error contains the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        message = f"tensorstore_ds.annex.adapters.{name} needs {name}. Install it with: pip install {name}"
        raise ModuleNotFoundError(message, name=name) from error
