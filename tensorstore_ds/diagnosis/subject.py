"""What is examined: a split of a store, as a data set."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.reading.store import Store, open as open_store


@dataclass(frozen=True)
class Subject:
    """A data set, and what it was made of.

    Attributes:
        store: that holds it.
        dataset: its samples, with their transform.
        path: of the store, as it was given; None where the user has a data set of his own.
    """

    store: Store
    dataset: StoreDataset
    path: str | None

    @property
    def plain(self) -> StoreDataset:
        """The same samples without the transform."""
        return remade(self.dataset, None, self.dataset.fields)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(split, field) of all that is read."""
        return [(self.dataset.split_name, field) for field in self.dataset.fields]

    def with_fields(self, fields: tuple[str, ...] | None) -> Subject:
        """The same with these fields alone; None: as it is."""
        if fields is None:
            return self
        return Subject(self.store, remade(self.dataset, self.dataset.transform, fields), self.path)


def subject_of(
    examined: Store | StoreDataset | str | os.PathLike[str],
    split: str | None,
    transform: Callable[[Any], Any] | None,
) -> Subject:
    """What is to be examined.

    Args:
        examined: a store, its path, or a data set.
        split: of a store; None: `train`, or the first one.
        transform: of samples; None: the data set's own.

    Raises:
        OptionError: there is no such split, or it is empty.
        FormatError: the store cannot be opened.
    """
    if isinstance(examined, StoreDataset):
        store, path = open_store(examined.path), None
        if split not in (None, examined.split_name):
            raise OptionError(
                f"split: expected {examined.split_name}, that of the data set, found {split}. Leave it out."
            )
        dataset = examined if transform is None else remade(examined, transform, examined.fields)
    else:
        store = examined if isinstance(examined, Store) else open_store(examined)
        path = str(store.path) if isinstance(examined, Store) else os.fspath(examined)
        name = split or ("train" if "train" in store else next(iter(store.splits), ""))
        if name not in store:
            raise OptionError(
                f"split: expected one of {', '.join(store.splits) or 'none at all'}, found {name or 'none'}."
            )
        dataset = StoreDataset(store.path, name, transform=transform)
    if not len(dataset):
        raise OptionError(f"split: expected samples, found none in {dataset.split_name}. Choose another split.")
    return Subject(store, dataset, path)


def remade(dataset: StoreDataset, transform: Callable[[Any], Any] | None, fields: tuple[str, ...]) -> StoreDataset:
    """The same samples with another transform and other fields."""
    made = StoreDataset(
        dataset.path, dataset.split_name, fields=fields, transform=transform, return_as=dataset.return_as
    )
    made.rows = dataset.rows
    return made
