"""Show a store in a notebook."""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tensorstore_ds.annex.checking.findings import CheckFindings
from tensorstore_ds.annex.serving.served_files import ServedFiles
from tensorstore_ds.annex.viewing.pages import ViewerPages
from tensorstore_ds.annex.viewing.view import find_target, findings_file
from tensorstore_ds.errors import OptionError
from tensorstore_ds.reading.store import Store
from tensorstore_ds.remote.location import is_url

if TYPE_CHECKING:
    from tensorstore_ds.annex.viewing.widget import StoreWidget

_LEAST, _MOST = 200, 10_000


def show(
    target: Store | str | os.PathLike[str],
    *,
    split: str | None = None,
    findings: CheckFindings | str | os.PathLike[str] | None = None,
    height: int = 600,
) -> StoreWidget:
    """Show a store in a notebook, with the page of `view`.

    >>> widget = tsds.show("photos.tsds", split="val")  # the last line of a cell shows it
    >>> widget.rows  # the rows that are marked in the page
    []
    >>> tsds.open("photos.tsds")["val"]["label"].take(widget.rows)
    array([], dtype=int64)

    This needs the extra `notebook`. Make the result the last line of a cell, or call ``display``. The page requests its
    data from the kernel, which may be on a different machine, so it waits while a cell runs. Tags that you set in the
    page are saved in ``STORE.tags.json`` next to a local store.

    Args:
        target: an open store, or a target of `view`: the path or URL of a store, a folder written by `train`, or a
            folder of images.
        split: name of the split to show first. None shows the first split of the store.
        findings: result of `check_store` for the store, or path of a file written by `CheckFindings.save`.
        height: height of the viewer in pixels.

    Returns:
        An anywidget. ``widget.view`` is a text that describes the current view, such as ``split=val&view=scatter``, and
        can be set. ``widget.rows`` is a list of the rows of that split that you have marked in the page, with Ctrl and
        a click or with the space bar. ``widget.height`` can be set.

    Raises:
        FormatError: the store is damaged.
        OptionError: anywidget is not installed, or an argument cannot be used, see `view`.
        UnknownNameError: the split does not exist.
    """
    try:
        from tensorstore_ds.annex.viewing.widget import StoreWidget
    except ModuleNotFoundError as error:
        if error.name not in ("anywidget", "traitlets"):
            raise
        raise OptionError(
            "to show a store in a notebook, anywidget is needed: pip install '.[notebook]' in a clone of tensorstore-ds"
        ) from None
    if not _LEAST <= height <= _MOST:
        raise OptionError(f"`height`: expected {_LEAST} to {_MOST:,} pixels, found {height}.")
    with ExitStack() as stack:
        found = find_target(_place(target), (), None, stack)
        if found.store is None:
            files = None
        elif isinstance(target, Store):
            files = ServedFiles(target if target.is_remote else _place(target), target._meant)
        else:
            files = ServedFiles(_place(found.store))
        if split is not None and files is not None:
            _ = files.content.store[split]
        where = None if findings is None else _findings(findings, stack)
        pages = ViewerPages(found.settings(where), found.files(where), found.tags)
        view = "" if split is None else urlencode({"split": split})
        widget = StoreWidget(files, pages, view=view, height=height)
        weakref.finalize(widget, stack.pop_all().close)
    return widget


def _place(target: Store | str | os.PathLike[str]) -> str:
    """The URL of a store, or a path that stays valid after the notebook changes its folder."""
    if isinstance(target, Store):
        target = target.path if target.origin is None else target.origin.url
    text = os.fspath(target)
    return text if is_url(text) else str(Path(text).absolute())


def _findings(findings: CheckFindings | str | os.PathLike[str], stack: ExitStack) -> Path:
    if not isinstance(findings, CheckFindings):
        return findings_file(findings).absolute()
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tsds-show-")), "findings.json")
    findings.save(path)
    return path
