"""Class folders: SPLIT/CLASS/NAME, or SPLIT/NAME without labels."""

from __future__ import annotations

from typing import ClassVar

from tensorstore_ds.errors import OptionError
from tensorstore_ds.exporting.base import Exporter
from tensorstore_ds.exporting.samples import Names, is_safe
from tensorstore_ds.format.kinds import LabelField


class FoldersExporter(Exporter):
    """Images that have no label, where others have one, are left out, and counted."""

    name: ClassVar[str] = "folders"
    takes: ClassVar[tuple[type, ...]] = (LabelField,)

    def check(self) -> None:
        classes = () if self.label is None else self.label.classes
        if wrong := next((name for name in classes if not is_safe(name)), None):
            message = f"expected classes whose names can be folders, found {wrong!r}. Export to parquet."
            raise OptionError(f"{self.store.path}: {message}")

    def export_split(self, split: str) -> None:
        classes = () if self.label is None else self.label.classes
        names = {label: Names() for label in range(-1, len(classes))}
        for name in classes:  # a class without samples is a folder, too
            (self.folder / split / name).mkdir(parents=True, exist_ok=True)
        for sample in self.samples(split, names):
            if sample.label == -1:
                self.left_out["samples without a label"] += 1
                continue
            above = "" if sample.label is None else f"{classes[sample.label]}/"
            self.write(f"{split}/{above}{sample.name}", sample.image)
