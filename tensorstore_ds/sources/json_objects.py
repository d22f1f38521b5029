"""Strict reading of JSON objects."""

from __future__ import annotations

from typing import Any

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.strict_json import MAX_VALUES, load_object
from tensorstore_ds.regular_files import as_utf8


def parse_object(data: bytes, where: str, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Parse a JSON object in any Unicode encoding; raises `SourceError` `json`."""
    check_not_empty(data, where)
    try:
        return load_object(as_utf8(data, where, "json"), max_values)
    except SourceError:
        raise
    except (ValueError, RecursionError) as error:
        message = f"expected JSON in UTF-8, found: {' '.join(str(error).split())[:200]}."
        raise SourceError(Problem(where, "json", message), "Write the file again.") from error


def check_not_empty(data: bytes, where: str) -> None:
    """Raise `SourceError` `json` for a file without JSON."""
    if not data[:64].strip(b"\0 \t\r\n") and not data.strip(b"\0 \t\r\n"):
        raise SourceError(Problem(where, "json", "expected JSON, found an empty file."), "Write the file again.")
