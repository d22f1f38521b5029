"""A CSV file with a line for each image, and the images in a folder for each split."""

from __future__ import annotations

from typing import Any, ClassVar

from tensorstore_ds.annex.csv_files import csv_text
from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import Names
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import LabelField, LabelsField

_COLUMNS = ("path", "split")


class CsvExporter(Exporter):
    """The columns `path` and `split`, and `label`, or a column for each class if several can apply to an image.

    In these columns, 1 is a class that applies, 0 one that does not, and -1 one of which this is not known.
    """

    name: ClassVar[str] = "csv"
    takes: ClassVar[tuple[type, ...]] = (LabelField, LabelsField)

    def check(self) -> None:
        """Begin the table."""
        if self.label is None and self.labels is None:
            message = "expected labels of images, found none. Export to parquet."
            raise OptionError(f"{self.store.path}: {message}")
        columns = ("label",) if self.label is not None else () if self.labels is None else self.labels.classes
        if taken := [each for each in columns if each in _COLUMNS]:
            message = f"expected classes that are not called {' or '.join(_COLUMNS)}, found {taken[0]!r}"
            raise OptionError(f"{self.store.path}: {message}. Export to parquet, or rename it with tsds relabel.")
        self._rows: list[tuple[Any, ...]] = [(*_COLUMNS, *columns)]

    def export_split(self, split: str) -> None:
        for sample in self.samples(split, Names()):
            path = f"{split}/{sample.name}"
            self.write(path, sample.image)
            if self.label is not None:
                known = sample.label is not None and sample.label >= 0
                values: list[Any] = [self.label.classes[sample.label or 0] if known else ""]
            else:
                values = [] if sample.labels is None else sample.labels.tolist()
            self._rows.append((path, split, *values))

    def finish(self) -> None:
        """Write the table."""
        text = csv_text(self._rows, "labels.csv", "Rename the class with tsds relabel, or export to parquet.")
        self.write("labels.csv", text.encode())
