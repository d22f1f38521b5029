"""The files of the viewer's page, and what the page is told."""

from __future__ import annotations

import functools
import json
import mimetypes
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tensorstore_ds.annex.serving.served_files import Page
from tensorstore_ds.durable import write_file
from tensorstore_ds.errors import OptionError, OutputError, TsdsError
from tensorstore_ds.format.strict_json import load_object
from tensorstore_ds.regular_files import read_file

#: Of documents: `page/index.html` has the same policy, for servers that send no such header.
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob: data:; connect-src 'self'; "
_HEADERS = (
    ("Content-Security-Policy", f"{_POLICY}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
#: Bytes of findings or of a history.jsonl at most.
_MOST_NBYTES = 256 * 1024**2


@functools.cache
def page_files() -> Mapping[str, bytes]:
    """The files of the page by path: ``index.html``, and the others below ``viewer/``."""
    found = {}
    folder = resources.files("tensorstore_ds.annex.viewing") / "page"
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if file.name.endswith((".js", ".css", ".html")):
            found[file.name if file.name == "index.html" else f"viewer/{file.name}"] = file.read_bytes()
    return found


class ViewerPages:
    """Files that `tsds view` serves in addition to a store.

    `settings` are those of ``view.json``; see `main.js`. `files` are read for each request, by the name in the URL. The
    page stores tags in the file `tags`, and is told so, unless that is None.
    """

    def __init__(self, settings: Mapping[str, Any], files: Mapping[str, Path], tags: Path | None) -> None:
        self.settings = dict(settings) if tags is None else {**settings, "tags": "tags.json"}
        self._files = files
        self._tags = tags

    def find(self, name: str) -> Page | None:
        """The file at a path."""
        name = name or "index.html"
        if name in page_files():
            media_type = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or ""
            return Page(page_files()[name], f"{media_type}; charset=utf-8", _HEADERS)
        if name == "view.json":
            return Page(json.dumps(self.settings).encode(), "application/json", _HEADERS)
        if name == "tags.json" and self._tags is not None:
            tags = read_page_file(self._tags) or b""
            return Page(tags if are_tags(tags) else b"{}", "application/json", _HEADERS)
        data = read_page_file(self._files[name]) if name in self._files else None
        return None if data is None else Page(data, "text/plain; charset=utf-8", _HEADERS)

    def put(self, name: str, data: bytes) -> bool:
        """Store the tags."""
        if name != "tags.json" or self._tags is None or not are_tags(data):
            return False
        if os.path.lexists(self._tags) and not are_tags(read_page_file(self._tags) or b""):  # so it was not shown
            return False
        try:
            write_file(self._tags, data)
        except OutputError:  # the page says that they were not kept
            return False
        return True


def read_page_file(path: Path) -> bytes | None:
    """The bytes of a regular file that is not a link, else None."""
    try:
        if path.is_symlink():
            return None
        return read_file(path, str(path), _MOST_NBYTES)
    except TsdsError:
        return None


def are_tags(data: bytes) -> bool:
    """Whether data are valid tags: ``{"sha256": DIGEST, "tags": {TAG: {SPLIT: [ROW, ...]}}}``."""
    try:
        content = load_object(data)
        listed = [rows for splits in content["tags"].values() for rows in splits.values()]
        are_rows = all(isinstance(rows, list) for rows in listed) and all(
            type(row) is int and 0 <= row < 2**53 for rows in listed for row in rows
        )
        return content.keys() == {"sha256", "tags"} and isinstance(content["sha256"], str) and are_rows
    except (ValueError, KeyError, AttributeError):
        return False


def write_page(out: Path, settings: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write the page, its ``view.json`` and other files; raises `OptionError` if the folder has other files."""
    every = {**page_files(), "view.json": json.dumps(settings).encode(), **files}
    out.mkdir(parents=True, exist_ok=True)
    if os.listdir(out):
        raise OptionError(f"{out}: expected no such folder or an empty one, found files in it. Choose another folder.")
    for name, data in every.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_file(out / name, data)
