"""Parquet with an image column, as in Hugging Face's data sets, and the layout of a data set on the Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from tensorstore_ds.annex.arrow_features import (
    IMAGE_FEATURE,
    arrow_schema,
    class_feature,
    sequence_feature,
    value_feature,
)
from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names, extent, short
from tensorstore_ds.annex.sources.parquet import METADATA
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import LabelField, LabelsField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.imaging.outlines import split_polygons

_ROWS = 100  # of a group, so that a viewer reads the first without the others
_FILE_NBYTES = 500_000_000
_VALUES = ("oriented_boxes", "keypoints", "visibility", "difficult", "truncated", "occluded", "iscrowd", "area", "rle")


class ParquetExporter(Exporter):
    """Columns: `image` (bytes and path), `label`, `labels` (a list of classes), texts, and `objects`.

    Objects have bbox (x y width height), category, ... Names of keypoints are in the schema's metadata, under
    `METADATA`.
    """

    name: ClassVar[str] = "parquet"
    takes: ClassVar[tuple[type, ...]] = (LabelField, LabelsField, ObjectsField, TextField)
    _template: ClassVar[str] = "{split}-{index:05d}.parquet"

    def check(self) -> None:
        try:
            import pyarrow  # noqa: F401
        except ModuleNotFoundError:
            raise OptionError("pyarrow is not installed: pip install '.[hub]' in a clone of tensorstore-ds") from None

    def export_split(self, split: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self._schema()
        samples = self.samples(split, Names())
        index = 0
        while group := list(islice(samples, _ROWS)):
            path = self.folder / self._template.format(split=split, index=index)
            path.parent.mkdir(exist_ok=True)
            written = 0
            with path.open("xb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
                while group and written < _FILE_NBYTES:
                    rows = [self._row(sample) for sample in group]
                    columns = {name: [row[name] for row in rows] for name in schema.names}
                    writer.write_table(pa.table(columns, schema=schema))
                    written += sum(len(sample.image) for sample in group)
                    group = list(islice(samples, _ROWS)) if written < _FILE_NBYTES else []
            self.files += 1
            index += 1

    def _row(self, sample: ExportedSample) -> dict[str, Any]:
        row: dict[str, Any] = {"image": {"bytes": sample.image, "path": sample.name}}
        if self.label is not None:
            row["label"] = sample.label
        if sample.labels is not None:
            row["labels"] = np.flatnonzero(sample.labels > 0).tolist() if (sample.labels >= 0).any() else None
            if row["labels"] is not None and (sample.labels < 0).any():
                self.left_out["unknown labels"] += 1
        if self.objects is not None:
            values = sample.objects or {}
            self.leave_out(values, "boxes", "labels", "polygons", *_VALUES)
            objects = {name: [each.tolist() for each in values[name]] for name in _VALUES if name in values}
            if "polygons" in values:
                objects["polygons"] = [
                    [ring.tolist() for ring in split_polygons(corners)] for corners in values["polygons"]
                ]
            if "boxes" in values:
                objects["bbox"] = [
                    [short(x1), short(y1), extent(x1, x2), extent(y1, y2)]
                    for x1, y1, x2, y2 in values["boxes"].tolist()
                ]
            if "labels" in values:
                objects["category"] = values["labels"].tolist()
            row["objects"] = objects
        return {**row, **sample.texts}

    def _schema(self) -> Any:
        features: dict[str, Any] = {"image": IMAGE_FEATURE}
        if self.label is not None:
            features["label"] = class_feature(self.label.classes)
        if self.labels is not None:
            features["labels"] = sequence_feature(class_feature(self.labels.classes))
        if self.objects is not None:
            features["objects"] = {name: sequence_feature(each) for name, each in _of_object(self.objects)}
        texts = of_kind(self.store.manifest.fields, TextField)
        features |= dict.fromkeys(texts, sequence_feature(value_feature("string")))
        return arrow_schema(
            features, {} if self.objects is None else {METADATA: json.dumps({"objects": self.objects.dump()})}
        )


def _of_object(field: ObjectsField) -> Iterator[tuple[str, dict[str, Any]]]:
    """Hugging Face's feature of each value of an object."""
    numbers = sequence_feature(value_feature("float32"))
    if "boxes" in field.values:
        yield "bbox", sequence_feature(value_feature("float64"))  # sums of them are exact
    if "labels" in field.values:
        yield "category", class_feature(field.classes)
    if "polygons" in field.values:  # of an object polygons, of each corners x y
        yield "polygons", sequence_feature(sequence_feature(numbers))
    for name in (name for name in _VALUES if name in field.values):
        own = value_feature(field.values[name].dtype)
        is_list = name in ("oriented_boxes", "visibility", "rle")
        yield name, sequence_feature(numbers) if name == "keypoints" else sequence_feature(own) if is_list else own


class HuggingFaceExporter(ParquetExporter):
    """The same files in ``data``, with a README that lists them in its front matter."""

    name: ClassVar[str] = "huggingface"
    _template: ClassVar[str] = "data/{split}-{index:05d}.parquet"

    def finish(self) -> None:
        """Write a README for the Hub; `tsds card` writes a better one."""
        lines = ["---", "configs:", "- config_name: default", "  data_files:"]
        for split in (name for name in self.splits if len(self.store[name])):  # a pattern without files is an error
            lines += [f"  - split: {split}", f"    path: data/{split}-*.parquet"]
        self.write("README.md", ("\n".join([*lines, "---"]) + "\n").encode())
