"""Note in a store what people say of its data: license, citation, description. No byte of the data changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorstore_ds.annex.editing.in_place import locked
from tensorstore_ds.conversion.history import with_step
from tensorstore_ds.conversion.licenses import license_expression
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.durable import write_file
from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.root import change_root, parse_root
from tensorstore_ds.options import declarations
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES, open_file


def annotate(
    path: str | os.PathLike[str],
    *,
    license: str | None = None,
    citation: str | None = None,
    description: str | None = None,
) -> Store:
    """Set the license, the citation or the description of the data in the store at `path`.

    >>> store = tsds.annotate("photos.tsds", license="CC-BY-4.0", citation="Us, Our Photos, 2026")
    >>> store.manifest.license
    'CC-BY-4.0'

    Only the manifest is written again, in one step. This changes the digest of the store. If you have the store open,
    you can continue to read it. If you open it with the old digest, a `FormatError` is raised.

    Args:
        path: path of the store.
        license: SPDX expression, such as ``CC-BY-4.0``. None keeps the current value, an empty text removes it.
        citation: citation of the data. None keeps the current value, an empty text removes it.
        description: description of the data in a few sentences. None keeps the current value, an empty text removes it.

    Returns:
        The store, opened again, with its new `sha256`. If nothing changed, the digest stays the same.

    Raises:
        FormatError: there is no store, or it is damaged.
        OptionError: no argument was given, or the license is not an SPDX expression.
        OutputError: the manifest cannot be written. The store does not change.
        ConversionError: a different process is changing the store.
    """
    given = {"license": license, "citation": citation, "description": description}
    texts = {name: _text(name, value) for name, value in given.items() if value is not None}
    if not texts:
        raise OptionError("expected what is to be noted, found nothing: give `license`, `citation` or `description`.")
    store = open_store(path)
    with locked(store.path):
        return _replaced(open_store(path), texts)


def _replaced(store: Store, texts: Mapping[str, str]) -> Store:
    """Write the store with new texts, by name, in place of the old ones."""
    with open_file(store.path, "zarr.json") as file:
        data = file.read(MANIFEST_MAX_NBYTES + 1)
    if parse_root(data)[1] != store.sha256:
        raise FormatError(Problem(str(store.path), "replaced", "another store has taken its place just now."))

    def change(manifest: dict[str, Any]) -> None:
        manifest["provenance"] = with_step(
            manifest.get("provenance", {}), "annotate", changed=list(texts), before=[store.sha256]
        )
        for name, value in texts.items():
            place = manifest["provenance"] if name == "description" else manifest
            place.pop(name, None)
            if value:
                place[name] = value

    if all((_noted(store, name) or "") == value for name, value in texts.items()):
        return store
    changed = change_root(data, change)
    if len(changed) > MANIFEST_MAX_NBYTES:
        raise OptionError(f"{store.path}: expected a manifest of at most 64 MiB. Choose shorter texts.")
    parse_root(changed)
    write_file(Path(store.path, "zarr.json"), changed)
    return open_store(store.path)


def _text(name: str, value: str) -> str:
    """Validate a text; raises `OptionError`."""
    text: str = replace(declarations(ConvertOptions)["citation"], name=name).validated(value)
    return license_expression(text) if name == "license" and text else text


def _noted(store: Store, name: str) -> Any:
    manifest = store.manifest
    return manifest.provenance.get(name) if name == "description" else getattr(manifest, name)
