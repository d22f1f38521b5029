"""Class folders: SPLIT/CLASS/NAME, or SPLIT/NAME in splits without labels."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import Names, is_safe
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.format.kinds.label import UNLABELLED


class FoldersExporter(Exporter):
    """A split without labels has no class folders. Otherwise, samples without a label are left out and counted."""

    name: ClassVar[str] = "folders"
    takes: ClassVar[tuple[type, ...]] = (LabelField,)
    splits_are_folders: ClassVar[bool] = True

    def check(self) -> None:
        classes = () if self.label is None else self.label.classes
        if wrong := [name for name in classes if not is_safe(name)]:
            message = f"expected classes whose names can be folders, found {wrong[0]!r}. Export to parquet."
            raise OptionError(f"{self.store.path}: {message}")

    def export_split(self, split: str) -> None:
        classes = self._classes(split)
        names = {label: Names() for label in range(UNLABELLED, len(classes))}
        for name in classes:  # a class without samples is a folder, too
            (self.folder / split / name).mkdir(parents=True, exist_ok=True)
        for sample in self.samples(split, names):
            if not classes:
                self.write(f"{split}/{sample.name}", sample.image)
            elif sample.label == UNLABELLED or sample.label is None:
                self.missing[split] += 1
            else:
                self.write(f"{split}/{classes[sample.label]}/{sample.name}", sample.image)

    def finish(self) -> None:
        """Count the missing samples."""
        if count := self.missing.total():
            self.left_out["samples without a label"] = count
            self.notes.append("to keep samples without a label beside others, export to parquet or webdataset.")

    def _classes(self, split: str) -> tuple[str, ...]:
        """Class folders of a split; empty if its samples have no labels."""
        for name, field in of_kind(self.store.manifest.fields, LabelField).items():
            labels = np.asarray(self.store[split][name])
            return () if len(labels) and (labels == UNLABELLED).all() else field.classes
        return ()
