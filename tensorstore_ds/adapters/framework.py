"""One clear line where the library of an adapter is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported(name: str) -> Iterator[None]:
    """The imports of an adapter's library. ModuleNotFoundError says what to install, if the library is missing.

    Args:
        name: of the library, as it is imported and as pip calls it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        message = f"tensorstore_ds.adapters.{name} needs {name}. Install it with: pip install {name}"
        raise ModuleNotFoundError(message, name=name) from error
