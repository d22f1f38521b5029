"""Wrappers of sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

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
