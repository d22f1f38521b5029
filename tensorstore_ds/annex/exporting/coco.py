"""COCO: annotations/instances_SPLIT.json and captions_SPLIT.json, and a folder of images for each split."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names, extent, short
from tensorstore_ds.format.kinds import ObjectsField, TextField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.imaging.oriented import oriented_to_corners
from tensorstore_ds.imaging.outlines import dump_counts, split_polygons


class CocoExporter(Exporter):
    """Ids of categories, images and annotations count from 1; categories are in the order of the classes."""

    name: ClassVar[str] = "coco"
    takes: ClassVar[tuple[type, ...]] = (ObjectsField, TextField)

    def check(self) -> None:
        self._has_captions = bool(of_kind(self.store.manifest.fields, TextField))
        if not self._has_captions or self.objects is not None:
            self.need_objects()

    def export_split(self, split: str) -> None:
        images = list[dict[str, Any]]()
        folder = self.folder / "annotations"
        folder.mkdir(exist_ok=True)
        with ExitStack() as stack:
            instances = captions = None
            if self.objects is not None:
                instances = stack.enter_context(_File(folder / f"instances_{split}.json", self._categories()))
            if self._has_captions:
                captions = stack.enter_context(_File(folder / f"captions_{split}.json", []))
            for sample in self.samples(split, Names()):
                self.write(f"{split}/{sample.name}", sample.image)
                height, width = sample.size
                images.append({"id": len(images) + 1, "file_name": sample.name, "height": height, "width": width})
                if instances is not None:
                    instances.add(images[-1]["id"], self._annotations(sample))
                if captions is not None:
                    texts = chain.from_iterable(sample.texts.values())
                    captions.add(images[-1]["id"], ({"caption": text} for text in texts))
            for each in filter(None, (instances, captions)):
                each.finish(images)
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
        known = ("boxes", "oriented_boxes", "labels", "keypoints", "visibility", "iscrowd", "area", "polygons", "rle")
        self.leave_out(values, *known)
        lost = set[str]()
        lengths = map(len, values.get("rle", ()))
        for runs, rings, turned in zip_longest(lengths, sample.polygons, sample.oriented_boxes):
            lost |= {"polygons beside RLE"} if runs and rings else set()
            lost |= {"oriented boxes beside outlines"} if (runs or rings) and not np.isnan(turned[0]) else set()
        self.left_out.update(lost)
        return annotations_of(values, sample.size)


def annotations_of(values: Mapping[str, Any], size: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Annotations of an image, without ids; `values` are its objects as ``split["objects"][row]``."""
    oriented = np.asarray(values.get("oriented_boxes", np.full((len(values["boxes"]), 5), np.nan)), np.float64)
    corners = oriented_to_corners(oriented)
    for i, (x1, y1, x2, y2) in enumerate(values["boxes"].tolist()):
        width, height = extent(x1, x2), extent(y1, y2)
        area = float(values["area"][i]) if "area" in values else np.nan  # as it is also where it is not known
        rings = split_polygons(values["polygons"][i]) if "polygons" in values else []
        runs = values["rle"][i] if "rle" in values else np.empty(0, np.uint32)
        if is_turned := not len(runs) and not rings and not np.isnan(oriented[i, 0]):
            rings = [corners[i]]
        inside = int(runs[1::2].sum()) if len(runs) else sum(map(_area, rings)) if rings else width * height
        each: dict[str, Any] = {
            "category_id": int(values["labels"][i]) + 1 if "labels" in values else 1,
            "bbox": [short(x1), short(y1), width, height],
            "area": inside if np.isnan(area) else short(area),
            "iscrowd": int(values["iscrowd"][i]) if "iscrowd" in values else 0,
        }
        if len(runs):
            each["segmentation"] = {"counts": dump_counts(runs), "size": list(size)}
        elif is_turned or "polygons" in values:
            each["segmentation"] = [[short(v) for v in ring.reshape(-1).tolist()] for ring in rings]
        if "keypoints" in values:
            points = values["keypoints"][i]
            absent = np.isnan(points[:, 0])
            seen = np.where(absent, 0, values["visibility"][i] if "visibility" in values else 2)
            rows = zip(np.where(absent[:, None], 0, points).tolist(), seen.tolist(), strict=True)
            each["keypoints"] = [v for (x, y), visible in rows for v in (short(x), short(y), visible)]
            each["num_keypoints"] = int((seen > 0).sum())
        yield each


def _area(ring: NDArray[Any]) -> float:
    """Area of a polygon (k, 2), by the shoelace formula."""
    x, y = ring.T.astype(np.float64)
    return float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2)


class _File:
    """A COCO JSON file; annotations are written one after the other."""

    def __init__(self, path: Path, categories: list[dict[str, Any]]) -> None:
        self._file = path.open("x", encoding="utf-8")
        self._file.write(f'{{"info": {{}}, "categories": {json.dumps(categories)}, "annotations": [')
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, image: int, annotations: Iterable[dict[str, Any]]) -> None:
        """Write the annotations of an image, by its id."""
        for each in annotations:
            self._count += 1
            line = json.dumps({"id": self._count, "image_id": image, **each})
            self._file.write(f"{',' if self._count > 1 else ''}\n{line}")

    def finish(self, images: list[dict[str, Any]]) -> None:
        """Write all images, at the end of the file."""
        self._file.write(f'\n], "images": {json.dumps(images)}}}\n')
