"""The interface of formats for export."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.exporting.samples import ExportedSample, Names, is_hull, samples_of
from tensorstore_ds.durable import sync
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ImageField, LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.base import of_image, of_kind
from tensorstore_ds.imaging.codecs import read_image_header
from tensorstore_ds.imaging.oriented import as_corners

if TYPE_CHECKING:
    from tensorstore_ds.reading.store import Store

_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Exporter:
    """Write the samples of a store into a new folder, split by split. Derive from it to add your own format.

    Attributes:
        folder: folder to write to.
        splits: names of the splits to write.
        left_out: number of values that are not written, by kind.
        missing: number of samples of each split that are not written.
        notes: remarks for the user.
        turned: number of images that are shown turned or mirrored, as their EXIF says.
        files: number of files written.
    """

    name: ClassVar[str]
    #: Kinds of fields that this format can store, besides images and keys.
    takes: ClassVar[tuple[type, ...]] = (LabelField, ObjectsField)
    #: Whether only the names of folders tell the splits.
    splits_are_folders: ClassVar[bool] = False

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
        self.files = self.turned = 0
        fields = store.manifest.fields
        if not isinstance(fields.get("image"), ImageField):
            advice = "tsds table writes the other fields as one Parquet file."
            raise OptionError(f"{store.path}: expected images, found none. {advice}")
        self.label = next(iter(of_kind(fields, LabelField).values()), None)
        self.labels = next(iter(of_kind(fields, LabelsField).values()), None)
        self.objects = next(iter(of_image(fields, ObjectsField).values()), None)
        self.check()

    def check(self) -> None:
        """Raise `OptionError` if the store lacks a field that the format requires."""

    def export_split(self, split: str) -> None:
        """Write the samples of a split."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write files that belong to all splits. It is called once, after the last split."""

    # --- for those that derive from it ---

    def samples(self, split: str, names: Mapping[int, Names] | Names) -> Iterator[ExportedSample]:
        """Iterate over the samples of a split, as `samples_of`, and report the progress."""
        for sample in samples_of(self.store[split], names):
            height, width = sample.size
            self.turned += read_image_header(sample.image, max_pixels=height * width).orientation != 1
            yield sample
            self.advance(1)

    def write(self, name: str, data: bytes) -> None:
        """Write a new file below the folder. All files are synced to disk at the end."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
        self.files += 1

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the objects, or else of the labels."""
        field = self.objects or self.label or self.labels
        return () if field is None else field.classes

    def need_objects(self) -> ObjectsField:
        """Return the field of objects, which must have boxes.

        Raises:
            OptionError: the store has no objects with boxes.
        """
        if self.objects is None or "boxes" not in self.objects.values:
            found = "none" if self.objects is None else ", ".join(self.objects.values)
            raise OptionError(f"{self.store.path}: expected objects with boxes, found {found}. Export to folders.")
        return self.objects

    def need_objects_in_xml(self) -> ObjectsField:
        """Return the field of objects, whose names of classes and keypoints XML must be able to contain."""
        field = self.need_objects()
        if wrong := next(filter(_NOT_IN_XML.search, (*field.classes, *field.keypoints)), None):
            message = f"expected names without control characters, which XML lacks, found {wrong!r}"
            raise OptionError(f"{self.store.path}: {message}. Change it with tsds relabel, or export to parquet.")
        return field

    def leave_out_boxes(self, sample: ExportedSample, polygons: Sequence[Sequence[NDArray[Any]]] = ()) -> None:
        """Count boxes and oriented boxes that do not follow from what is written of an object.

        This is its polygons in `polygons`, or else its oriented box if it has one.
        """
        values = sample.objects or {}
        boxes, unlike = values["boxes"], set[str]()
        for box, rings, turned in zip_longest(boxes, polygons, as_corners(sample.oriented_boxes)):
            is_turned = not np.isnan(turned).any()
            if rings and is_turned:
                unlike.add("oriented boxes beside polygons")
            if (rings or is_turned) and not is_hull(box, rings or [turned], sample.size):
                unlike.add(f"boxes that are not the hulls of their {'polygons' if rings else 'oriented boxes'}")
        self.left_out.update(unlike)

    def leave_out(self, values: Mapping[str, Any], *known: str) -> None:
        """Count the values of a sample's objects that the format cannot store.

        The values in `known`, and values that are 0 for all objects, do not count.
        """
        for name, value in values.items():
            is_there = any(len(each) for each in value) if isinstance(value, list) else np.any(value)
            if name not in known and is_there:
                self.left_out[name] += 1


def sync_all(folder: Path) -> None:
    """Wait until all files and folders are on disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        sync(path)
    sync(folder)
