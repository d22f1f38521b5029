"""NumPy's files: SPLIT/images.npy, labels.npy, and the arrays of other fields."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import SizeField
from tensorstore_ds.format.kinds.base import ArrayField
from tensorstore_ds.reading.columns import Column

_NAMES = {"image": "images", "label": "labels"}
_NBYTES = 16 * 1024**2


class NpyExporter(Exporter):
    """Fields of a fixed shape; others, such as objects and keys, are left out."""

    name: ClassVar[str] = "npy"
    takes: ClassVar[tuple[type, ...]] = (ArrayField,)

    def check(self) -> None:
        if self.store.manifest.fields["image"].one_shape is None:
            message = (
                "expected images as pixels of one size, found others. Write such a store first: "
                "tsds repack with an `encoding` of raw and a `size`."
            )
            raise OptionError(f"{self.store.path}: {message}")

    def export_split(self, split: str) -> None:
        (self.folder / split).mkdir()
        for name, field in self.store.manifest.fields.items():
            column = self.store[split][name]
            plural = _NAMES.get(name, name)
            file_name = name if plural in self.store.manifest.fields else plural
            if not isinstance(column, Column) or isinstance(field, SizeField):
                continue
            step = max(1, _NBYTES // max(1, column.spec.row_nbytes))
            with (self.folder / split / f"{file_name}.npy").open("xb") as file:
                header = {"descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False}
                shape = (len(column), *column.spec.shape)
                np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
                for start in range(0, len(column), step):
                    file.write(np.ascontiguousarray(column[start : start + step]).tobytes())
            self.files += 1
        self.advance(len(self.store[split]))

    def finish(self) -> None:
        """Write the class names, one per line."""
        label = self.label or self.labels
        if label is not None and label.classes:
            self.write("classes.txt", "".join(f"{name}\n" for name in label.classes).encode())
