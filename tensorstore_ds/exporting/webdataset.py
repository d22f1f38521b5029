"""WebDataset: tar files of images, labels and JSON, of about a gigabyte each."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any, ClassVar

import numpy as np

from tensorstore_ds.exporting.base import Exporter
from tensorstore_ds.exporting.samples import ExportedSample, Names

_NBYTES = 10**9


class WebDatasetExporter(Exporter):
    """A sample is NAME.jpg (or .png), NAME.cls with the class index, and NAME.json with class names and objects."""

    name: ClassVar[str] = "webdataset"

    def export_split(self, split: str) -> None:
        archive: tarfile.TarFile | None = None
        count = 0
        try:
            for sample in self.samples(split, Names()):
                if archive is None or archive.offset > _NBYTES:
                    if archive is not None:
                        archive.close()
                    path = self.folder / f"{split}-{count:06d}.tar"
                    archive = tarfile.open(path, "x", format=tarfile.PAX_FORMAT)  # noqa: SIM115
                    count += 1
                    self.files += 1
                stem = sample.stem.replace(".", "_")  # readers take what is before the first dot for the key
                suffix = sample.name.rpartition(".")[2].lower()
                _add(archive, f"{stem}.{suffix}", sample.image)
                if sample.label is not None and sample.label >= 0:
                    _add(archive, f"{stem}.cls", str(sample.label).encode())
                if described := self._described(sample):
                    _add(archive, f"{stem}.json", json.dumps(described, ensure_ascii=False).encode())
        finally:
            if archive is not None:
                archive.close()

    def _described(self, sample: ExportedSample) -> dict[str, Any]:
        described: dict[str, Any] = {}
        if sample.label is not None and sample.label >= 0 and self.label is not None:
            described["class"] = self.label.classes[sample.label]
        if sample.objects is not None:
            described |= {name: _plain(values) for name, values in sample.objects.items()}
            if "labels" in sample.objects:
                described["classes"] = [self.classes[i] for i in sample.objects["labels"].tolist()]
        return described


def _plain(values: Any) -> Any:
    """Numbers as JSON has them: null where one is NaN."""
    if isinstance(values, list):
        return [_plain(each) for each in values]
    if values.dtype.kind == "f":
        objects = values.astype(np.float64).astype(object)
        objects[np.isnan(values)] = None
        return objects.tolist()
    return values.tolist()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)  # of time 0 and no owner, so that the same store gives the same bytes
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
