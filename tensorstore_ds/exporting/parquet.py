"""Parquet, with an image column as Hugging Face's data sets have it; and the layout of a data set on the Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from tensorstore_ds.errors import OptionError
from tensorstore_ds.exporting.base import Exporter
from tensorstore_ds.exporting.samples import ExportedSample, Names

_ROWS = 100  # of a group, so that a viewer reads the first without the others
_FILE_NBYTES = 500_000_000
_VALUES = ("keypoints", "difficult", "truncated", "occluded", "iscrowd", "area")


class ParquetExporter(Exporter):
    """Columns: `image` (bytes and path), `label`, and `objects` with bbox (x, y, width, height), category, ..."""

    name: ClassVar[str] = "parquet"
    _template: ClassVar[str] = "{split}-{index:05d}.parquet"

    def check(self) -> None:
        try:
            import pyarrow  # noqa: F401
        except ModuleNotFoundError:
            raise OptionError("pyarrow is not installed: pip install 'tensorstore-ds[hub]'") from None

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
        if self.objects is not None:
            values = sample.objects or {}
            self.leave_out(values, "boxes", "labels", *_VALUES)
            objects = {name: values[name].tolist() for name in _VALUES if name in values}
            if "boxes" in values:
                boxes = values["boxes"].copy()
                boxes[:, 2:] -= boxes[:, :2]
                objects["bbox"] = boxes.tolist()
            if "labels" in values:
                objects["category"] = values["labels"].tolist()
            row["objects"] = objects
        return row

    def _schema(self, pa: Any) -> Any:
        types: dict[str, Any] = {"image": pa.struct({"bytes": pa.binary(), "path": pa.string()})}
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        if self.label is not None:
            types["label"], features["label"] = pa.int64(), _class_label(self.label.classes)
        if self.objects is not None:
            own = dict(self._object_types(pa))
            types["objects"] = pa.struct({name: pa.list_(kind) for name, (kind, _) in own.items()})
            features["objects"] = {
                name: {"feature": feature, "_type": "Sequence"} for name, (_, feature) in own.items()
            }
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        return pa.schema([pa.field(name, kind) for name, kind in types.items()], metadata=metadata)

    def _object_types(self, pa: Any) -> Iterator[tuple[str, tuple[Any, dict[str, Any]]]]:
        """Arrow's type of each value of an object, and the feature of Hugging Face."""
        field = self.objects
        if field is None:
            return
        number = {"dtype": "float32", "_type": "Value"}
        numbers = {"feature": number, "_type": "Sequence"}
        if "boxes" in field.values:
            yield "bbox", (pa.list_(pa.float32()), numbers)
        if "labels" in field.values:
            yield "category", (pa.int64(), _class_label(field.classes))
        for name in (name for name in _VALUES if name in field.values):
            if name == "keypoints":
                yield name, (pa.list_(pa.list_(pa.float32())), {"feature": numbers, "_type": "Sequence"})
            elif name == "area":
                yield name, (pa.float32(), number)
            else:
                yield name, (pa.uint8(), {"dtype": "uint8", "_type": "Value"})


class HuggingFaceExporter(ParquetExporter):
    """The same files in ``data``, with a README whose front matter names them."""

    name: ClassVar[str] = "huggingface"
    _template: ClassVar[str] = "data/{split}-{index:05d}.parquet"

    def finish(self) -> None:
        """The README, which the Hub reads; `tsds card` writes a better one."""
        lines = ["---", "configs:", "- config_name: default", "  data_files:"]
        for split in self.splits:
            lines += [f"  - split: {split}", f"    path: data/{split}-*.parquet"]
        self.write("README.md", ("\n".join([*lines, "---"]) + "\n").encode())


def _class_label(classes: tuple[str, ...]) -> dict[str, Any]:
    return {"names": list(classes), "_type": "ClassLabel"} if classes else {"dtype": "int64", "_type": "Value"}
