"""Show a store, a training run or a folder of images in the browser."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorstore_ds import words
from tensorstore_ds.annex.editing.skipped import skipped_in
from tensorstore_ds.annex.serving.serve import serve_pages
from tensorstore_ds.annex.viewing.pages import ViewerPages, read_page_file, write_page
from tensorstore_ds.conversion.convert import convert
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.errors import OptionError
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.store_files import check_outside_stores
from tensorstore_ds.remote.location import is_url
from tensorstore_ds.sharing.pack import unpack
from tensorstore_ds.sharing.pull import pull

#: Lines of what was left out that the page shows.
_NOTES = 2000
_HISTORY = "history.jsonl"


@dataclass(frozen=True, slots=True)
class Target:
    """What to view.

    `store` is a path or URL, or None for a run whose store is not known. `runs` are folders with a ``history.jsonl``.
    `notes` are about samples that the conversion left out. `tags` is None if the store is not local. With `is_run`, the
    curves of a training run are shown first.
    """

    store: str | None
    runs: tuple[Path, ...]
    title: str
    notes: tuple[str, ...]
    tags: Path | None
    is_run: bool = False

    def settings(self, findings: Path | None) -> dict[str, Any]:
        """Settings for ``view.json``, with URLs relative to the page."""
        runs = [{"name": run.name, "url": f"run{number}.jsonl"} for number, run in enumerate(self.runs)]
        found: dict[str, Any] = {"title": self.title, "runs": runs, "notes": self.notes}
        if self.store is not None:
            found |= {"store": "store/", "path": words.shown_path(self.store)}
        if findings is not None:
            return {**found, "findings": "findings.json", "view": "findings"}
        return {**found, "view": "training"} if self.is_run else found

    def files(self, findings: Path | None) -> dict[str, Path]:
        """The files that the page reads, by the names in the URL."""
        found = {f"run{number}.jsonl": run / _HISTORY for number, run in enumerate(self.runs)}
        return found if findings is None else {**found, "findings.json": findings}


@contextmanager
def view(
    target: str | os.PathLike[str],
    *,
    runs: Sequence[str | os.PathLike[str]] = (),
    findings: str | os.PathLike[str] | None = None,
    rows: Mapping[str, Sequence[int]] | None = None,
    options: ConvertOptions | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    notify: Callable[[str], None] = lambda _: None,
) -> Iterator[str]:
    """Serve the viewer's page for a store, a training run or a folder of images, until the block ends.

    >>> with tsds.view("photos.tsds") as url:  # webbrowser.open(url) shows it
    ...     url.startswith("http://127.0.0.1:")
    True

    Only clients that know the URL get an answer, because it contains a token. Tags that you set in the page are saved
    in ``STORE.tags.json`` next to a local store.

    Args:
        target: path of a store, a folder or a packed one; URL of a store; folder written by `train`, which is shown
            with its store; or folder of images, which is converted into a temporary store first.
        runs: folders of additional training runs, to compare their curves.
        findings: path of a file that `CheckFindings.save` has written for the store.
        rows: rows to show first, by split, such as the result of `find_keys`. A button shows all samples.
        options: options for converting a folder of images. None keeps the files as they are, and skips bad ones.
        host: address of the server. If it is not a loopback address, other machines can open the page.
        port: port of the server. 0 uses any free port.
        notify: function that is called with a line when a file cannot be served, from other threads.

    Yields:
        The URL of the page.

    Raises:
        FormatError: the store is damaged.
        OptionError: `target` is not a store, run or data set, or the host, the port or a different argument cannot be
            used.
    """
    with ExitStack() as stack:
        found = find_target(target, runs, options, stack)
        where = None if findings is None else findings_file(findings)
        settings = found.settings(where)
        if rows is not None:
            settings["rows"] = {name: list(some) for name, some in rows.items()}
        pages = ViewerPages(settings, found.files(where), found.tags)
        url = stack.enter_context(serve_pages(found.store, pages, host=host, port=port, notify=notify))
        yield f"{url}/"


def export_view(
    target: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    runs: Sequence[str | os.PathLike[str]] = (),
    findings: str | os.PathLike[str] | None = None,
    options: ConvertOptions | None = None,
) -> Path:
    """Write the viewer's page and its data into a folder, for any static web server that supports range requests.

    >>> folder = tsds.viewing.export_view("photos.tsds", "site")
    >>> (folder / "index.html").is_file()
    True

    Args:
        target: as in `view`. For a training run, only the curves are written. To write its store also, pass the store
            as `target` and the run in `runs`.
        out: path of the new folder. It will contain ``index.html``, and the store in ``store/``.
        runs: as in `view`.
        findings: as in `view`.
        options: as in `view`.

    Returns:
        The path of the folder.

    Raises:
        FormatError: the store is damaged.
        OptionError: as in `view`, or `out` contains files or is inside a store.
        OutputError: the files cannot be written.
    """
    out = Path(out)
    check_outside_stores(out)
    with ExitStack() as stack:
        found = find_target(target, runs, options, stack, is_shown_here=False)
        where = None if findings is None else findings_file(findings)
        files = {name: read_page_file(path) or b"" for name, path in found.files(where).items()}
        settings = {**found.settings(where), "path": found.title}
        write_page(out, settings, files)
        if found.store is not None:
            (unpack if Path(found.store).is_file() else pull)(found.store, out / "store")
    return out


def find_target(
    target: str | os.PathLike[str],
    runs: Sequence[str | os.PathLike[str]],
    options: ConvertOptions | None,
    stack: ExitStack,
    *,
    is_shown_here: bool = True,
) -> Target:
    """Find what `view` shows; `stack` removes the temporary store that this may create.

    With `is_shown_here`, the store that a run names is shown with it. A run may come from a stranger, so its store must
    not be exported unasked.
    """
    others = tuple(_run(each) for each in runs)
    text = os.fspath(target)
    path = Path(text)
    if is_url(text):
        return Target(text, others, words.shown_path(text).rpartition("/")[2], (), None)
    if not path.exists():
        raise OptionError(f"{text}: expected a store, a training run or a folder of images, found nothing.")
    if path.is_dir() and (path / _HISTORY).is_file():
        store = _store_of(path) if is_shown_here else None
        if store is None:
            return Target(None, (path, *others), path.name, (), None, is_run=True)
        title = f"{path.name}, {store.name}"
        return Target(str(store), (path, *others), title, _notes(store), _tags(store), is_run=True)
    if path.is_file() or (path / "zarr.json").exists():
        return Target(text, others, path.name, _notes(path), _tags(path))
    made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tsds-view-")), f"{path.name or 'folder'}.tsds")
    convert(path, made, options or ConvertOptions(encoding="source", on_error="skip"))
    return Target(str(made), others, f"{path.name}, not converted yet", _notes(made), None)


def _run(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder)
    if not (path / _HISTORY).is_file():
        raise OptionError(f"{path}: expected a folder of a training run, found no {_HISTORY} in it.")
    return path


def _store_of(run: Path) -> Path | None:
    """The store of a finished run, if it still exists."""
    try:
        report = json.loads((run / "report.json").read_text("utf-8"))
        path = Path(report["facts"]["store"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return path if (path / "zarr.json").is_file() or path.is_file() else None


def _tags(store: Path) -> Path:
    name = store.resolve().name
    return store.resolve().with_name(f"{name}.tags.json")


def findings_file(path: str | os.PathLike[str]) -> Path:
    """The path of a file of findings; raises `OptionError` if it is not one."""
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise OptionError(f"{os.fspath(path)}: expected findings of a check, found: {error.strerror}.") from error
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("copies"), (list, tuple)):
        message = f"{os.fspath(path)}: expected findings that `CheckFindings.save` has written, found other text."
        raise OptionError(message)
    return Path(path)


def _notes(path: Path) -> tuple[str, ...]:
    """A line for each reason why the conversion left samples out."""
    return tuple(f"{each.where}: {each.message}" for each in skipped_in(open_store(path))[:_NOTES])
