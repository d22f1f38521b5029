"""Copy a store from a URL, or a path, into a folder."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from tensorstore_ds.durable import NOT_ALLOWED, unwritable
from tensorstore_ds.errors import OutputError, RemoteError, StoreExistsError
from tensorstore_ds.format.root import check_meant
from tensorstore_ds.options import refusal
from tensorstore_ds.progress import notebook_bytes
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sharing.origin import origin_of
from tensorstore_ds.sharing.receiving import Pull, has_parts
from tensorstore_ds.sharing.refresh import refresh
from tensorstore_ds.sharing.selection import FileSelection
from tensorstore_ds.sharing.transfer import Counter, OnBytes, Transfer

_GO_ON = "The files fetched so far are kept: run the same command again to continue."
_BEGIN = "Run the same command again."


def pull(
    url: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    splits: Collection[str] | None = None,
    fields: Collection[str] | None = None,
    sha256: str | None = None,
    update: bool = False,
    verify: bool = False,
    workers: int = 8,
    progress: OnBytes | None = None,
) -> Transfer:
    """Copy the store at a URL, or a part of it, to a folder on this machine.

    >>> url = Path("photos.tsds").absolute().as_uri()  # or s3://bucket/photos.tsds
    >>> found = tsds.pull(url, "labels.tsds", fields=["label", "key"])
    >>> list(tsds.open("labels.tsds")["train"].fields)
    ['label', 'key']

    The store is written to ``OUT.partial`` and renamed to `out` in one step when it is complete. Every file is compared
    with its SHA-256, and fetched once more if it differs. If the call is interrupted, the same call fetches the missing
    parts. With `splits` or `fields`, only the files of these are copied. The result is a complete store with a new
    digest.

    With `update`, `out` may be a copy of an earlier state of the store, before an `append`, `add_fields`, `update` or
    `erase`. Only files that it lacks are fetched, and the new state takes its place in one step. Programs that have it
    open continue with the state that they opened, unless its shards were removed, as after an erasure:

    >>> _ = tsds.erase("photos.tsds", keys=["train/cat/0.png"])
    >>> _ = tsds.pull(url, "labels.tsds", fields=["label", "key"], update=True)
    >>> len(tsds.open("labels.tsds")["train"])
    7

    Args:
        url: URL of the store: ``s3://``, ``gs://``, ``az://``, ``https://``, ``http://``, ``file://`` or
            ``hf://datasets/NAME[@REVISION][/PATH]``; or a path.
        out: path of the copy. It must not exist, or already be a copy of this store, or with `update` of an earlier
            state of it with the same `splits` and `fields`.
        splits: names of the splits. None copies all.
        fields: names of the fields. None copies all.
        sha256: the expected `Store.sha256`. None accepts any store.
        update: whether `out` may be an earlier state of the store, or lack files of it.
        verify: also check chunks and values by the rules of the format, as `tensorstore_ds.verify` does. A copy that
            already exists is checked too.
        workers: number of simultaneous requests, 1 to 256.
        progress: function that is called with (bytes done, bytes in total). It is called from several threads, but
            never from two at the same time. None shows a bar in a notebook.

    Raises:
        RemoteError: the server cannot be reached, rejects a request, or sends wrong bytes.
        FormatError: there is no store, it has a different digest than `sha256`, or it is damaged.
        OptionError: the store does not contain a split or field, `workers` is out of range, or ``OUT.partial`` contains
            parts of a different copy.
        OutputError: the disk is full, or `out` cannot be written.
        StoreExistsError: `out` contains something else, or an earlier state without `update`.
        ConversionError: a different process is copying to `out` or changing it, or the copy is complete but its folder
            could not be synced.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= 256:
        raise refusal("workers", "a number from 1 to 256", workers)
    target, origin = tidied(out), origin_of(url)
    counter = Counter(progress or notebook_bytes("Fetching"))
    root = origin.root()
    selection = FileSelection(root, splits, fields)
    check_meant(root, selection.sha256, sha256, origin.url)
    with _one_line(target):
        copying = Pull(origin, target, selection, counter, workers, verify)
        return refresh(copying) if update and target.is_dir() else copying.run()


@contextlib.contextmanager
def _one_line(out: Path) -> Iterator[None]:
    """Turn errors of the system into `OutputError`; received parts stay in ``OUT.partial``."""
    try:
        yield
    except (RemoteError, StoreExistsError):  # system errors to Python, too
        raise
    except OSError as error:
        if error.errno in NOT_ALLOWED:
            raise unwritable(Path(error.filename or out), error) from error
        advice = _GO_ON if has_parts(out) else _BEGIN
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"{out}: the disk is full. Make room. {advice}") from error
        raise OutputError(f"{error.filename or out}: {error.strerror or error}. {advice}") from error
