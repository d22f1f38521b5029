"""What a format is that a store is exported to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tensorstore_ds.durable import sync
from tensorstore_ds.errors import OptionError
from tensorstore_ds.exporting.samples import ExportedSample, Names, samples_of
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import of_image, of_kind

if TYPE_CHECKING:
    from tensorstore_ds.reading.store import Store


class Exporter:
    """Writes the samples of a store into a new folder, split by split, each in one pass.

    A new format is a class derived from this one, in a module beside it, and its line in `EXPORT_FORMATS`.

    Attributes:
        folder: where it writes.
        splits: the names of those that are written.
        left_out: how many values are not written, by what they are.
        missing: how many samples of each split are not written.
        notes: what the user should know.
        files: how many files were written.
    """

    name: ClassVar[str]
    #: The kinds of fields that it writes, besides images and keys.
    takes: ClassVar[tuple[type, ...]] = (LabelField, ObjectsField)

    def __init__(
        self, store: Store, folder: Path, splits: Sequence[str], advance: Callable[[int], None] = lambda samples: None
    ) -> None:
        self.store = store
        self.folder = folder
        self.splits = splits
        self.advance = advance
        self.left_out: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.notes: list[str] = []
        self.files = 0
        fields = store.manifest.fields
        self.label = next(iter(of_kind(fields, LabelField).values()), None)
        self.objects = next(iter(of_image(fields, ObjectsField).values()), None)
        self.check()

    def check(self) -> None:
        """Raise `OptionError` if the store lacks what the format is about."""

    def export_split(self, split: str) -> None:
        """Write the samples of a split."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what belongs to all splits."""

    # --- for those that derive from it ---

    def samples(self, split: str, names: Mapping[int, Names] | Names) -> Iterator[ExportedSample]:
        """As `samples_of`; tells how far it is."""
        for sample in samples_of(self.store[split], names):
            yield sample
            self.advance(1)

    def write(self, name: str, data: bytes) -> None:
        """A new file below the folder; all of them are synced at the end."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
        self.files += 1

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, of the objects where there are some."""
        field = self.objects or self.label
        return () if field is None else field.classes

    def need_objects(self) -> ObjectsField:
        """The field of objects, which must have boxes."""
        if self.objects is None or "boxes" not in self.objects.values:
            found = "none" if self.objects is None else ", ".join(self.objects.values)
            raise OptionError(f"{self.store.path}: expected objects with boxes, found {found}. Export to folders.")
        return self.objects

    def leave_out(self, values: Mapping[str, Any], *known: str) -> None:
        """Count the values of a sample's objects that the format has no place for; those that are 0 say nothing."""
        for name, value in values.items():
            is_there = any(len(each) for each in value) if isinstance(value, list) else np.any(value)
            if name not in known and is_there:
                self.left_out[name] += 1


def sync_all(folder: Path) -> None:
    """Wait until all files and folders are on disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        sync(path)
    sync(folder)
