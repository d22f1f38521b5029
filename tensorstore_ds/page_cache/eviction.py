"""Drop a store from the page cache: to measure a cold start, or to make room for another one."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tensorstore_ds.errors import ResidencyError
from tensorstore_ds.page_cache.residency import (
    Names,
    Residency,
    data_files,
    residency_of,
    select_columns,
    total_residency,
)
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import open_file


@dataclass(frozen=True, slots=True)
class Eviction:
    """What was in memory before and after, by column.

    Attributes:
        before: as `residency` has it.
        after: the same, later. What is still there is mapped or locked, by this process or another one.
    """

    before: Mapping[str, Residency]
    after: Mapping[str, Residency]

    @property
    def dropped(self) -> int | None:
        """Bytes that are no longer in memory; None if not known."""
        before, left = total_residency(self.before).resident, self.left
        return None if before is None or left is None else max(0, before - left)

    @property
    def left(self) -> int | None:
        """Bytes that are still in memory; None if not known."""
        return total_residency(self.after).resident


def evict(store: Store, *, splits: Names = None, fields: Names = None) -> Eviction:
    """Ask the system to drop a store's bytes from the page cache. Nothing is lost: they are read again when needed.

    Pages that a process has mapped and used stay, those that an open store of this process has read among them; pages
    that are locked stay too. What a copy has not yet written to disk is written first, as only such pages can go.

    Args:
        store: to be dropped.
        splits: the name of one, or several; all if None.
        fields: the same.

    Raises:
        OptionError: no such split or field.
        FormatError: a file is gone, or is a symbolic link.
        ResidencyError: this is not Linux.
    """
    columns = select_columns(store, splits, fields)
    if sys.platform != "linux":
        raise ResidencyError(f"{store.path}: expected Linux to drop a file's pages, found {sys.platform}.")
    before = residency_of(store, columns)
    for data_file in (file for column in columns for file in data_files(store, *column)):
        with open_file(store.path, data_file.path) as file:
            _write_back(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return Eviction(before, residency_of(store, columns))


def _write_back(descriptor: int) -> None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):  # a read-only file system: there is nothing to write
            raise
