"""Ultralytics' YOLO: data.yaml, images/SPLIT and labels/SPLIT."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tensorstore_ds.exporting.base import Exporter
from tensorstore_ds.exporting.samples import ExportedSample, Names
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.imaging.outlines import split_polygons


class YoloExporter(Exporter):
    """Keypoints make it a data set for poses; else polygons, where every object has one, make it one for segments."""

    name: ClassVar[str] = "yolo"
    takes: ClassVar[tuple[type, ...]] = (ObjectsField,)

    def check(self) -> None:
        field = self.need_objects()
        self._as_polygons = not field.keypoints and "polygons" in field.values and self._all_have_polygons()

    def _all_have_polygons(self) -> bool:
        """Whether each object of all splits has one polygon: a row can only have one."""
        for split in (self.store[name] for name in self.splits):
            column = next(split[name] for name in split.fields if split.fields[name] is self.objects)
            for row in range(len(split)):
                if any(len(split_polygons(corners)) != 1 for corners in column[row]["polygons"]):
                    return False
        return True

    def export_split(self, split: str) -> None:
        for sample in self.samples(split, Names()):
            self.write(f"images/{split}/{sample.name}", sample.image)
            self.write(f"labels/{split}/{sample.stem}.txt", "".join(self._rows(sample)).encode())

    def finish(self) -> None:
        """``data.yaml``: JSON's texts, lists and mappings are YAML's."""
        field = self.need_objects()
        lines = [f"{split}: images/{split}" for split in self.splits]
        if "val" not in self.splits:  # Ultralytics wants one
            lines.append(f"val: images/{'test' if 'test' in self.splits else self.splits[0]}")
        names = field.classes or ("object",)
        lines += ["names:", *(f"  {i}: {json.dumps(name, ensure_ascii=False)}" for i, name in enumerate(names))]
        if field.keypoints:
            partners = {a: b for pair in field.flip_pairs for a, b in (pair, pair[::-1])}
            count = len(field.keypoints)
            lines += [f"kpt_shape: [{count}, 3]", f"flip_idx: {[partners.get(i, i) for i in range(count)]}"]
            lines.append(f"kpt_names: {json.dumps({0: list(field.keypoints)}, ensure_ascii=False)}")
        self.write("data.yaml", ("\n".join(lines) + "\n").encode())

    def _rows(self, sample: ExportedSample) -> Iterator[str]:
        values, (height, width) = sample.objects or {}, sample.size
        known = ("boxes", "labels", "keypoints", *(("visibility",) if "keypoints" in values else ()))
        self.leave_out(values, *known, *(("polygons", "area") if self._as_polygons else ()))
        scale = np.array([width, height], np.float64)
        for i, box in enumerate(values["boxes"].astype(np.float64)):
            label = int(values["labels"][i]) if "labels" in values else 0
            corners = box.reshape(2, 2) / scale
            numbers = [*corners.mean(0), *(corners[1] - corners[0])]
            if self._as_polygons:
                numbers = list((values["polygons"][i].astype(np.float64) / scale).reshape(-1).clip(0, 1))
            elif "keypoints" in values:
                points = values["keypoints"][i].astype(np.float64) / scale
                absent = np.isnan(points[:, 0]) | ((points < 0) | (points > 1)).any(axis=1)
                seen = values["visibility"][i] if "visibility" in values else np.full(len(points), 2)
                for point, is_absent, visible in zip(points, absent, seen, strict=True):
                    numbers += [0, 0, 0] if is_absent else [*point, int(visible)]
            yield f"{label} {' '.join(f'{number:.10g}' for number in numbers)}\n"
