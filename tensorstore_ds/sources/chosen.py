"""Wrappers of sources: a selection of samples, and coordinates as fractions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.sources.base import Contents, Reference, Sample, Source


class AroundSource(Source):
    """A source that delegates to the source inside."""

    is_audited: ClassVar[bool] = False

    def __init__(self, source: Source) -> None:
        super().__init__(source.path, source.options)
        self.name = source.name
        self.images, self.has_parts, self._source = source.images, source.has_parts, source

    def scan(self) -> Contents:
        return self._source.contents()

    def read(self, split: str, reference: Reference) -> Sample:
        return self._source.read(split, reference)

    def key(self, split: str, reference: Reference) -> str:
        return self._source.key(split, reference)

    def whole(self, split: str, reference: Reference) -> str:
        return self._source.whole(split, reference)

    def column(self, name: str) -> Callable[[str, Reference], str]:
        return self._source.column(name)

    def files(self, reference: Reference) -> tuple[str, ...]:
        return self._source.files(reference)

    def common_files(self) -> tuple[Path, ...]:
        return self._source.common_files()


class FractionSource(AroundSource):
    """A source whose coordinates are fractions of the image, although its format uses pixels."""

    def read(self, split: str, reference: Reference) -> Sample:
        sample = self._source.read(split, reference)
        sample.relative = True
        return sample


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
