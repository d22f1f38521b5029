"""Keys: the name of each sample in its source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tensorstore_ds.errors import one_line
from tensorstore_ds.format.kinds.base import BytesField, Field, Finding, ImageSizes, StoredTable
from tensorstore_ds.format.kinds.key_index import Keys, KeyTable, key_pieces, repeated_key
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.machine import check_fits


@dataclass(frozen=True)
class KeyField(BytesField):
    """One UTF-8 text per sample, unique within a split."""

    kind: ClassVar[str] = "key"
    is_key: ClassVar[bool] = True

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
        keys: KeyTable = table  # type: ignore[assignment]  # whose one value is of bytes
        for start, some in key_pieces(keys):
            check_fits(self.kind, 3 * len(some.data))
            if (place := _not_utf8(some)) is not None:
                yield "key-text", f"expected UTF-8, found other bytes at row {start + place}."
                return
        if (found := repeated_key(keys)) is not None:
            first, second = found
            begin, end = table.offsets[first : first + 2].tolist()
            twice = one_line(table["bytes"][begin:end].tobytes().decode())
            yield "key-text", f"expected keys that differ, found {twice} twice: in rows {first} and {second}."


def _not_utf8(keys: Keys) -> int | None:
    """Return the position of the first key that is not UTF-8."""
    starts = keys.data[keys.offsets[:-1][np.diff(keys.offsets) > 0]]
    if not (starts & 0xC0 == 0x80).any():  # no key begins within a character: all are UTF-8 if the whole is
        with contextlib.suppress(UnicodeDecodeError):
            keys.data.tobytes().decode()
            return None
    for place in range(len(keys)):
        try:
            keys[place].decode()
        except UnicodeDecodeError:
            return place
    return None
