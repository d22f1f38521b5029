"""COCO: annotations/instances_SPLIT.json, and a folder of images for each split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from tensorstore_ds.exporting.base import Exporter
from tensorstore_ds.exporting.samples import ExportedSample, Names, extent, short
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.imaging.outlines import dump_counts, split_polygons


class CocoExporter(Exporter):
    """Ids of categories count from 1, in the order of the classes; those of images and annotations too."""

    name: ClassVar[str] = "coco"
    takes: ClassVar[tuple[type, ...]] = (ObjectsField,)

    def check(self) -> None:
        self.need_objects()

    def export_split(self, split: str) -> None:
        images = list[dict[str, Any]]()
        count = 0
        path = self.folder / "annotations" / f"instances_{split}.json"
        path.parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(f'{{"info": {{}}, "categories": {json.dumps(self._categories())}, "annotations": [')
            for sample in self.samples(split, Names()):
                self.write(f"{split}/{sample.name}", sample.image)
                number = len(images) + 1
                height, width = sample.size
                images.append({"id": number, "file_name": sample.name, "height": height, "width": width})
                for each in self._annotations(sample):
                    count += 1
                    file.write(f"{',' if count > 1 else ''}\n{json.dumps({'id': count, 'image_id': number, **each})}")
            file.write(f'\n], "images": {json.dumps(images)}}}\n')
        self.files += 1

    def _categories(self) -> list[dict[str, Any]]:
        field = self.need_objects()
        shared: dict[str, Any] = {}
        if field.keypoints:
            lines = [[a + 1, b + 1] for a, b in field.skeleton]
            shared = {"keypoints": list(field.keypoints), "skeleton": lines}
        names = field.classes or ("object",)
        return [{"id": i, "name": name, **shared} for i, name in enumerate(names, 1)]

    def _annotations(self, sample: ExportedSample) -> Iterator[dict[str, Any]]:
        values = sample.objects or {}
        known = ("boxes", "labels", "keypoints", "visibility", "iscrowd", "area", "polygons", "rle")
        self.leave_out(values, *known)
        for i, (x1, y1, x2, y2) in enumerate(values["boxes"].tolist()):
            width, height = extent(x1, x2), extent(y1, y2)
            each: dict[str, Any] = {
                "category_id": int(values["labels"][i]) + 1 if "labels" in values else 1,
                "bbox": [short(x1), short(y1), width, height],
                "area": short(float(values["area"][i])) if "area" in values else width * height,
                "iscrowd": int(values["iscrowd"][i]) if "iscrowd" in values else 0,
            }
            if "rle" in values and len(values["rle"][i]):
                each["segmentation"] = {"counts": dump_counts(values["rle"][i]), "size": list(sample.size)}
            elif "polygons" in values:
                rings = split_polygons(values["polygons"][i])
                each["segmentation"] = [[short(v) for v in ring.reshape(-1).tolist()] for ring in rings]
            if "keypoints" in values:
                points = values["keypoints"][i]
                absent = np.isnan(points[:, 0])
                seen = values["visibility"][i] if "visibility" in values else np.where(absent, 0, 2)
                rows = zip(np.where(absent[:, None], 0, points).tolist(), seen.tolist(), strict=True)
                each["keypoints"] = [v for (x, y), visible in rows for v in (short(x), short(y), visible)]
                each["num_keypoints"] = int((~absent).sum())
            yield each
