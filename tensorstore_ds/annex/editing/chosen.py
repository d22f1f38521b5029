"""A selection of the samples of a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.sources.around import AroundSource
from tensorstore_ds.sources.base import Contents, Reference, Source


class ChosenSource(AroundSource):
    """Samples of a scanned source: `rows` of each split are their numbers, in order. Empty splits are left out."""

    def __init__(
        self, source: Source, contents: Contents, rows: Mapping[str, Sequence[int] | NDArray[np.int64]]
    ) -> None:
        super().__init__(source)
        taken = {name: np.asarray(some, np.int64) for name, some in rows.items() if len(some)}
        splits = {name: _Chosen(contents.splits[name], taken[name]) for name in contents.splits if name in taken}
        labels = None if contents.labels is None else {name: contents.labels[name][taken[name]] for name in splits}
        self._contents = replace(contents, splits=splits, labels=labels)

    def scan(self) -> Contents:
        """Contents of the selection."""
        return self._contents


class _Chosen(Sequence[Reference]):
    """Selected references of a split, created on access."""

    def __init__(self, listed: Sequence[Reference], rows: NDArray[np.int64]) -> None:
        self._listed, self._rows = listed, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._listed[row] for row in self._rows[index].tolist()]
        return self._listed[int(self._rows[index])]
