"""DOTA: SPLIT/images and SPLIT/labelTxt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.imaging.oriented import as_corners, upright_corners


class DotaExporter(Exporter):
    """A row is ``x1 y1 x2 y2 x3 y3 x4 y4 class difficult``, in pixels; the first edge is w.

    White space and commas in the name of a class become ``-``. An object without an oriented box has the corners
    of its box.
    """

    name: ClassVar[str] = "dota"
    takes: ClassVar[tuple[type, ...]] = (ObjectsField,)
    splits_are_folders: ClassVar[bool] = True

    def check(self) -> None:
        classes = self.need_objects().classes or ("object",)
        self._names = ["-".join(name.replace(",", " ").split()) for name in classes]
        self._upright = 0  # objects without an oriented box
        if len(set(self._names)) < len(classes) or "" in self._names:
            message = "expected classes that differ without white space and commas, as DOTA has them, found others"
            raise OptionError(f"{self.store.path}: {message}. Change their names with tsds relabel.")
        if self._names != list(classes):
            self.notes.append("white space and commas in the names of classes are written as -")

    def export_split(self, split: str) -> None:
        for sample in self.samples(split, Names()):
            self.write(f"{split}/images/{sample.name}", sample.image)
            self.write(f"{split}/labelTxt/{sample.stem}.txt", "".join(self._rows(sample)).encode())

    def finish(self) -> None:
        """Report how many objects have the corners of their boxes."""
        if self._upright:
            self.notes.append(f"{self._upright:,} objects have no oriented box: the corners of their boxes are written")

    def _rows(self, sample: ExportedSample) -> Iterator[str]:
        values = sample.objects or {}
        self.leave_out(values, "boxes", "oriented_boxes", "labels", "difficult")
        self.leave_out_boxes(sample)
        corners = upright_corners(values["boxes"].astype(np.float64))
        if "oriented_boxes" in values:
            oriented = as_corners(values["oriented_boxes"])
            corners = np.where(np.isnan(oriented), corners, oriented)
            self._upright += int(np.isnan(oriented).any(axis=(1, 2)).sum())
        else:
            self._upright += len(corners)
        for i, places in enumerate(corners.reshape(-1, 8).tolist()):
            label = int(values["labels"][i]) if "labels" in values else 0
            difficult = int(values["difficult"][i]) if "difficult" in values else 0
            yield f"{' '.join(f'{place:.10g}' for place in places)} {self._names[label]} {difficult}\n"
