"""WebDataset: tar files of images, labels and JSON, of about a gigabyte each, and FIELDS with names."""

from __future__ import annotations

import io
import json
import tarfile
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names
from tensorstore_ds.annex.sources.webdataset import NAMES_FILE
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import LabelField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import of_kind

_NBYTES = 10**9


class WebDatasetExporter(Exporter):
    """A sample is NAME.jpg (or .png), NAME.cls (class index), NAME.txt (caption), and NAME.json (all the rest).

    `NAMES_FILE` contains all names of classes and keypoints. It is next to the archives, where readers ignore it.
    """

    name: ClassVar[str] = "webdataset"
    takes: ClassVar[tuple[type, ...]] = (LabelField, ObjectsField, TextField)

    def check(self) -> None:
        taken = {"class", "classes", *(self.objects.values if self.objects is not None else ())}
        if wrong := sorted(taken & of_kind(self.store.manifest.fields, TextField).keys()):
            message = f"expected texts whose name no other member of NAME.json has, found {wrong[0]!r}"
            raise OptionError(f"{self.store.path}: {message}. Export to parquet.")

    def export_split(self, split: str) -> None:
        archive: tarfile.TarFile | None = None
        count = 0
        names = Names()
        with ExitStack() as stack:
            for sample in self.samples(split, Names()):
                if archive is None or archive.offset > _NBYTES:
                    stack.close()
                    path = self.folder / f"{split}-{count:06d}.tar"
                    archive = stack.enter_context(tarfile.open(path, "x", format=tarfile.PAX_FORMAT))
                    count += 1
                    self.files += 1
                suffix = sample.name.rpartition(".")[2].lower()
                stem = sample.stem.replace(".", "_")  # readers take what is before the first dot for the key
                stem = names.new(f"{stem}.{suffix}", sample.row, (f".{suffix}",)).rpartition(".")[0]
                _add(archive, f"{stem}.{suffix}", sample.image)
                if sample.label is not None and sample.label >= 0:
                    _add(archive, f"{stem}.cls", str(sample.label).encode())
                texts = dict(sample.texts)
                if len(texts.get("captions", ())) == 1:
                    _add(archive, f"{stem}.txt", texts.pop("captions")[0].encode())
                if described := self._described(sample) | {name: each for name, each in texts.items() if each}:
                    _add(archive, f"{stem}.json", json.dumps(described, ensure_ascii=False).encode())

    def finish(self) -> None:
        """Write the fields as in the manifest, also if there are none: `WebDatasetSource.detect` looks for the file."""
        fields = {"label": self.label, "objects": self.objects}
        data = {name: field.dump() for name, field in fields.items() if field is not None}
        self.write(NAMES_FILE, f"{json.dumps(data, ensure_ascii=False, indent=1)}\n".encode())

    def _described(self, sample: ExportedSample) -> dict[str, Any]:
        described: dict[str, Any] = {}
        if sample.label is not None and sample.label >= 0 and self.label is not None:
            name = self.label.classes[sample.label]
            described |= {"class": name} if _is_text(name) else {}
        if sample.objects is not None:
            described |= {name: _plain(values) for name, values in sample.objects.items()}
            if "labels" in sample.objects and all(map(str.strip, self.classes)):
                described["classes"] = [self.classes[i] for i in sample.objects["labels"].tolist()]
        return described


def _is_text(name: str) -> bool:
    """Whether readers keep a class name as it is; they would take a number for a different label."""
    return name == name.strip() != "" and "\0" not in name and not name.lstrip("-").isdecimal()


def _plain(values: Any) -> Any:
    """Values for JSON, with null for NaN."""
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
