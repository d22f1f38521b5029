"""Parquet with an image column, as in Hugging Face's data sets, and the layout of a data set on the Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names, extent, short
from tensorstore_ds.annex.sources.parquet import METADATA
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import LabelField, LabelsField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.imaging.outlines import split_polygons
from tensorstore_ds.sources.hugging_face import class_feature, features_metadata, sequence_feature, value_feature

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

        schema = self._schema(pa)
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

    def _schema(self, pa: Any) -> Any:
        types: dict[str, Any] = {"image": pa.struct({"bytes": pa.binary(), "path": pa.string()})}
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        if self.label is not None:
            types["label"], features["label"] = pa.int64(), class_feature(self.label.classes)
        if self.labels is not None:
            types["labels"] = pa.list_(pa.int64())
            features["labels"] = sequence_feature(class_feature(self.labels.classes))
        if self.objects is not None:
            own = dict(self._object_types(pa))
            types["objects"] = pa.struct({name: pa.list_(kind) for name, (kind, _) in own.items()})
            features["objects"] = {name: sequence_feature(feature) for name, (_, feature) in own.items()}
        for name in of_kind(self.store.manifest.fields, TextField):
            types[name], features[name] = pa.list_(pa.string()), sequence_feature(value_feature("string"))
        metadata = features_metadata(features)
        if self.objects is not None:
            metadata[METADATA] = json.dumps({"objects": self.objects.dump()})
        return pa.schema([pa.field(name, kind) for name, kind in types.items()], metadata=metadata)

    def _object_types(self, pa: Any) -> Iterator[tuple[str, tuple[Any, dict[str, Any]]]]:
        """Arrow type of each value of an object, and its Hugging Face feature."""
        field = self.objects
        if field is None:
            return
        numbers = pa.list_(pa.float32()), sequence_feature(value_feature("float32"))
        if "boxes" in field.values:
            yield "bbox", (pa.list_(pa.float64()), sequence_feature(value_feature("float64")))  # sums of them are exact
        if "labels" in field.values:
            yield "category", (pa.int64(), class_feature(field.classes))
        if "polygons" in field.values:  # of an object polygons, of each corners x y
            yield "polygons", (pa.list_(pa.list_(numbers[0])), sequence_feature(sequence_feature(numbers[1])))
        for name in (name for name in _VALUES if name in field.values):
            dtype = field.values[name].dtype
            if name == "keypoints":
                yield name, (pa.list_(numbers[0]), sequence_feature(numbers[1]))
            elif name in ("oriented_boxes", "visibility", "rle"):
                yield name, (pa.list_(getattr(pa, dtype)()), sequence_feature(value_feature(dtype)))
            else:
                yield name, (getattr(pa, dtype)(), value_feature(dtype))


class HuggingFaceExporter(ParquetExporter):
    """The same files in ``data``, with a README that lists them in its front matter."""

    name: ClassVar[str] = "huggingface"
    _template: ClassVar[str] = "data/{split}-{index:05d}.parquet"

    def finish(self) -> None:
        """Write a README for the Hub; `tsds card` writes a better one."""
        lines = ["---", "configs:", "- config_name: default", "  data_files:"]
        for split in self.splits:
            lines += [f"  - split: {split}", f"    path: data/{split}-*.parquet"]
        self.write("README.md", ("\n".join([*lines, "---"]) + "\n").encode())
