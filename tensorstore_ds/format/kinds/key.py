"""Keys: what each sample is called in its source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from tensorstore_ds.errors import one_line
from tensorstore_ds.format.kinds.base import BytesField, Field, Finding, ImageSizes, StoredTable
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.machine import check_fits

#: Keys looked at together.
_ROWS = 100_000


@dataclass(frozen=True)
class KeyField(BytesField):
    """A text a sample, in UTF-8; no two samples of a split have the same."""

    kind: ClassVar[str] = "key"

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        specs, per_row = cls.parse_arrays(values, where, data)
        return cls(specs, per_row=per_row)

    def describe(self) -> str:
        return "text"

    def data(self, sample: EncodedSample) -> bytes:
        return sample.key.encode()

    def value(self, values: Mapping[str, Any], per_row: Callable[[str], Any], where: str) -> str:
        data: bytes = values["bytes"].tobytes()
        return data.decode("utf-8", "backslashreplace")

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        check_fits(self.kind, 64 * len(table))
        digests = bytearray()  # 16 bytes a key, so that millions of them fit in memory
        for start in range(0, len(table), _ROWS):
            ends = table.offsets[start : start + _ROWS + 1].tolist()
            check_fits(self.kind, 3 * (ends[-1] - ends[0]))
            data = table["bytes"][ends[0] : ends[-1]].tobytes()
            for row, (begin, end) in enumerate(pairwise(ends), start):
                key = data[begin - ends[0] : end - ends[0]]
                try:
                    key.decode("utf-8")
                except UnicodeDecodeError:
                    yield "key-text", f"expected UTF-8, found other bytes at row {row}."
                    return
                digests += hashlib.blake2b(key, digest_size=16).digest()
        halves = np.frombuffer(bytes(digests), np.uint64).reshape(-1, 2)
        if len(np.unique(halves, axis=0)) != len(halves):
            order = np.lexsort(halves.T)
            same = np.flatnonzero((halves[order[1:]] == halves[order[:-1]]).all(axis=1))[0]
            first, second = sorted(order[same : same + 2].tolist())
            begin, end = table.offsets[first : first + 2].tolist()
            twice = one_line(table["bytes"][begin:end].tobytes().decode())
            yield "key-text", f"expected keys that differ, found {twice} twice: in rows {first} and {second}."
