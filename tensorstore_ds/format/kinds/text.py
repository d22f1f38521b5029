"""Texts: any number per sample, such as the captions of an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import Field, Finding, ImageSizes, StoredTable, TableField
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec, EncodedSample
from tensorstore_ds.machine import check_fits

_BYTES = ArraySpec("uint8", is_ragged=True)
#: Bytes of texts that are checked at a time, more if one text is longer.
_NBYTES = 16 * 1024**2


@dataclass(frozen=True)
class TextField(TableField):
    """A table of UTF-8 texts. Its one value is `text`, each a list of bytes."""

    kind: ClassVar[str] = "text"
    values: Mapping[str, ArraySpec] = field(default_factory=lambda: {"text": _BYTES})

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        specs, per_row = values.table(where, data)
        found = specs.get("text")
        if len(specs) != 1 or found is None or (found.dtype, found.shape, found.is_ragged) != ("uint8", (), True):
            values.wrong(where, f"expected the one value text (lists of uint8, []), found {sorted(specs)}.")
            specs = {"text": _BYTES}
        return cls(specs, per_row=per_row)

    def describe(self) -> str:
        return "texts"

    @property
    def absent_as(self) -> str:
        return "" if self.per_row else "unknown, stored as no texts"

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        return np.array([len(sample.texts.get(name, ())) for sample in samples], np.int64), {}

    def lists(
        self, name: str, samples: Sequence[EncodedSample]
    ) -> dict[str, tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        texts = [text.encode() for sample in samples for text in sample.texts.get(name, ())]
        lengths = np.array([len(text) for text in texts], np.int64)
        return {"text": (lengths, {"items": np.frombuffer(b"".join(texts), np.uint8)})}

    def value(self, values: Mapping[str, Any], per_row: Callable[[str], Any], where: str) -> list[str]:
        return [text.tobytes().decode("utf-8", "backslashreplace") for text in values["text"]]

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        texts = table.lists["text"]
        ends: NDArray[np.int64] = texts.offsets
        first, count = 0, len(ends) - 1
        while first < count:
            last = min(max(first + 1, int(ends.searchsorted(ends[first] + _NBYTES, "right")) - 1), count)
            begin, end = int(ends[first]), int(ends[last])
            check_fits(self.kind, 3 * (end - begin))
            data = texts["items"][begin:end].tobytes()
            starts = ends[first:last] - begin
            starts = starts[starts < len(data)]  # without empty texts at the end
            wrong = len(data)
            try:
                data.decode("utf-8")
            except UnicodeDecodeError as error:
                wrong = error.start
            # If all bytes up to here are valid, and a text begins within a character, the text before it is not valid.
            is_inside = (np.frombuffer(data, np.uint8)[starts] & 0xC0) == 0x80
            wrong = min([wrong, *(starts[is_inside & (starts < wrong)][:1] - 1).tolist()])
            if wrong < len(data):
                text = int(ends.searchsorted(begin + wrong, "right")) - 1
                row = int(table.offsets.searchsorted(text, "right")) - 1
                yield "text", f"expected texts in UTF-8, found other bytes in row {row}."
                return
            first = last
