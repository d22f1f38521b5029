"""One module per source format, found by being here; the protocol is in `base`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import unreadable
from tensorstore_ds.sources.base import Source, SourceOptions


@functools.cache
def registry() -> Mapping[str, type[Source]]:
    """Every source format by its name: the modules of this package that set ``SOURCE``."""
    found: dict[str, type[Source]] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        source = getattr(importlib.import_module(f"{__name__}.{module.name}"), "SOURCE", None)
        if source is not None:
            found[source.name] = source
    return found


def open_source(path: Path, format: str = "auto", options: SourceOptions | None = None) -> Source:
    """The source at `path`, of the format named, or of the one format that recognises it.

    Raises:
        SourceError: `no-such-source`, `unreadable-file`, `unknown-format`, or `ambiguous-format` when several
            recognise it.
    """
    options = options or SourceOptions()
    try:
        exists = path.exists()
    except OSError as error:  # such as a name that is too long
        raise SourceError(unreadable(str(path), error)) from error
    if not exists:
        raise SourceError(Problem(str(path), "no-such-source", "there is no such file or folder."))
    formats = registry()
    if format != "auto":
        return formats[format](path, options)
    matches = [name for name, source in formats.items() if source.detect(path)]
    if len(matches) == 1:
        return formats[matches[0]](path, options)
    names = ", ".join(sorted(formats))
    if not matches:
        found = Problem(str(path), "unknown-format", "no known data set format was recognised here.")
        raise SourceError(found, f"Name the format with --format ({names}).")
    found = Problem(str(path), "ambiguous-format", f"this could be {' or '.join(matches)}.")
    raise SourceError(found, "Name the format with --format.")
