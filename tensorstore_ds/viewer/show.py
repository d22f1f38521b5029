"""Show a store in a notebook."""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tensorstore_ds.checking.findings import CheckFindings
from tensorstore_ds.errors import OptionError
from tensorstore_ds.reading.store import Store
from tensorstore_ds.remote.location import is_url
from tensorstore_ds.sharing.served_files import ServedFiles
from tensorstore_ds.viewer.pages import ViewerPages
from tensorstore_ds.viewer.view import find_target, findings_file

if TYPE_CHECKING:
    from tensorstore_ds.viewer.widget import StoreWidget

_LEAST, _MOST = 200, 10_000


def show(
    target: Store | str | os.PathLike[str],
    *,
    split: str | None = None,
    findings: CheckFindings | str | os.PathLike[str] | None = None,
    height: int = 600,
) -> StoreWidget:
    """Show a store in a notebook: the page of `view`, which gets its bytes from the kernel, also from a remote one.

    It needs the extra `notebook`. Show the result as the last line of a cell, or with ``display``. The page asks the
    kernel for what it shows, so it waits while a cell runs. Tags that are set in it are kept in ``STORE.tags.json``
    beside a local store.

    >>> widget = tsds.show("photos.tsds", split="val")  # the last line of a cell shows it
    >>> widget.rows  # the rows that are marked in the page
    []
    >>> tsds.open("photos.tsds")["val"]["label"].take(widget.rows)
    array([], dtype=int64)

    Args:
        target: an open store, or what `view` takes: the path or URL of a store, a folder that `train` has written, or a
            folder of images.
        split: name of the split that is shown first. None takes the first one.
        findings: result of `check_store` for the store, or path of the file that `CheckFindings.save` has written.
        height: height of the viewer in pixels.

    Returns:
        An anywidget. ``widget.view`` is the text of what is shown, such as ``split=val&view=scatter``, and can be set.
        ``widget.rows`` is a list of the rows of that split that are marked in the page, with Ctrl and a click or with
        the space bar. ``widget.height`` can be set.

    Raises:
        FormatError: the store is damaged.
        OptionError: anywidget is not installed, or an argument cannot be used; see `view`.
        UnknownNameError: there is no such split.
    """
    try:
        from tensorstore_ds.viewer.widget import StoreWidget
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
            files = ServedFiles(target if target.is_remote else _place(target), target.meant)
        else:
            files = ServedFiles(_place(found.store))
        if split is not None and files is not None:
            _ = files.content.store[split]
        where = None if findings is None else _findings(findings, stack)
        settings = found.settings("store/", where)
        if found.tags is not None:
            settings["tags"] = "tags.json"
        pages = ViewerPages(settings, found.files(where), found.tags)
        view = "" if split is None else urlencode({"split": split})
        widget = StoreWidget(files, pages, settings, view=view, height=height)
        weakref.finalize(widget, stack.pop_all().close)
    return widget


def _place(target: Store | str | os.PathLike[str]) -> str:
    """The URL of a store, or a path that is the same one after the notebook has changed its folder."""
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
