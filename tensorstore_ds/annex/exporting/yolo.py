"""Ultralytics' YOLO: data.yaml, images/SPLIT and labels/SPLIT."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.imaging.oriented import as_corners
from tensorstore_ds.imaging.outlines import split_polygons

#: Ultralytics' task by the value that rows are made of.
_TASKS = {"oriented_boxes": "obb", "polygons": "segment"}
_CORNERS = 3  # minimum of a polygon
#: Splits that may be used for validation, the first one first.
_VALIDATION = ("val", "valid", "validation", "test")


class YoloExporter(Exporter):
    """Rows are poses if there are keypoints, else oriented boxes or segments if all objects have them, else boxes."""

    name: ClassVar[str] = "yolo"
    takes: ClassVar[tuple[type, ...]] = (ObjectsField,)

    def check(self) -> None:
        field = self.need_objects()
        forms = (name for name in _TASKS if name in field.values and not field.keypoints)
        self._form = next((name for name in forms if self._all_have(name)), "boxes")

    def _all_have(self, form: str) -> bool:
        """Whether each object of all splits has an oriented box, or one polygon: a row can only have one.

        A row of 2 corners would be a box.
        """
        for split in (self.store[name] for name in self.splits):
            column = next(split[name] for name in split.fields if split.fields[name] is self.objects)
            for row in range(len(split)):
                values = column[row][form]
                lacks = (
                    np.isnan(values).any()
                    if form == "oriented_boxes"
                    else any(len(rings) != 1 or len(rings[0]) < _CORNERS for rings in map(split_polygons, values))
                )
                if lacks:
                    return False
        return True

    def export_split(self, split: str) -> None:
        for sample in self.samples(split, Names()):
            self.write(f"images/{split}/{sample.name}", sample.image)
            self.write(f"labels/{split}/{sample.stem}.txt", "".join(self._rows(sample)).encode())

    def finish(self) -> None:
        """Write ``data.yaml``, as JSON texts, lists and mappings, which are valid YAML."""
        field = self.need_objects()
        lines = [f"{split}: images/{split}" for split in self.splits]
        used = next((name for name in _VALIDATION if name in self.splits), self.splits[0])
        if used != "val":  # Ultralytics wants one
            lines.append(f"val: images/{used}")
            self.notes.append(
                f"no split val, which Ultralytics needs to choose the best epoch: data.yaml names {used} for it. "
                "tsds split divides a store."
            )
        if unread := [name for name in self.splits if name not in ("train", "test", used)]:
            self.notes.append(f"YOLO's splits are train, val and test: {', '.join(unread)} will not be read.")
        names = field.classes or ("object",)
        lines += ["names:", *(f"  {i}: {json.dumps(name, ensure_ascii=False)}" for i, name in enumerate(names))]
        if self._form in _TASKS:  # a row of 4 corners may be either
            lines.append(f"task: {_TASKS[self._form]}")
        if field.keypoints:
            lines += [f"kpt_shape: [{len(field.keypoints)}, 3]", f"flip_idx: {flip_indices(field)}"]
            lines.append(f"kpt_names: {json.dumps({0: list(field.keypoints)}, ensure_ascii=False)}")
        self.write("data.yaml", ("\n".join(lines) + "\n").encode())

    def _rows(self, sample: ExportedSample) -> Iterator[str]:
        values, (height, width) = sample.objects or {}, sample.size
        known = ("boxes", "labels", "keypoints", *(("visibility",) if "keypoints" in values else ()))
        self.leave_out(values, *known, *(("polygons", "area") if self._form == "polygons" else (self._form,)))
        scale = np.array([width, height], np.float64)
        rows: Sequence[NDArray[Any]] | NDArray[Any] = centered_boxes(values["boxes"], scale)
        if self._form == "oriented_boxes":
            self.leave_out_boxes(sample)
            corners = as_corners(values["oriented_boxes"]) / scale
            inside = corners_inside(corners)
            if cut := int((inside != corners).any((1, 2)).sum()):
                self.left_out["parts of oriented boxes outside of the image"] += cut
            rows = inside.reshape(-1, 8)
        elif "keypoints" in values:
            triples = keypoint_triples(values, scale)
            if (~np.isnan(values["keypoints"]).any(2) & ~triples.any(2)).any():
                self.left_out["keypoints outside of the image"] += 1
            rows = np.concatenate([rows, triples.reshape(len(rows), 3 * triples.shape[1])], axis=1)
        if self._form == "polygons":
            self.leave_out_boxes(sample, sample.polygons)
            rings = [(ring / scale).reshape(-1) for (ring,) in sample.polygons]
            rows = [ring.clip(0, 1) for ring in rings]
            if any(map(np.any, map(np.not_equal, rings, rows))):
                self.left_out["parts of polygons outside of the image"] += 1
        for i, row in enumerate(rows):
            label = int(values["labels"][i]) if "labels" in values else 0
            yield f"{label} {' '.join(f'{number:.10g}' for number in row)}\n"


def centered_boxes(boxes: NDArray[Any], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Boxes (M, 4) x1 y1 x2 y2 in pixels as center x, y and sides in fractions of the images.

    `scale` is width and height of the image, (2,), or of each box's image, (M, 2).
    """
    low, high = boxes[:, :2] / scale, boxes[:, 2:] / scale
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def keypoint_triples(values: Mapping[str, Any], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """(M, K, 3) x and y in fractions of the images and the visibility, from `keypoints` and `visibility`.

    `scale` is as in `centered_boxes`. Keypoints that are absent, or outside of the image, which Ultralytics rejects,
    are 3 zeros.
    """
    points = values["keypoints"] / scale.reshape(-1, 1, 2)
    seen = values["visibility"] if "visibility" in values else np.full(points.shape[:2], 2)
    triples = np.concatenate([points, seen[..., None]], axis=2)
    triples[~((points >= 0) & (points <= 1)).all(axis=2)] = 0
    return triples


def corners_inside(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corners (M, 4, 2) in fractions of the image, clipped to it if Ultralytics would reject them.

    Ultralytics checks the center and the sides of the box around them.
    """
    low, high = corners.min(1), corners.max(1)
    refused = ((low + high < 0) | (low + high > 2) | (high - low > 1)).any(axis=1)
    return np.where(refused[:, None, None], corners.clip(0, 1), corners)


def flip_indices(field: ObjectsField) -> list[int]:
    """For each keypoint, its index in a mirrored image: Ultralytics' `flip_idx`."""
    partners = {a: b for pair in field.flip_pairs for a, b in (pair, pair[::-1])}
    return [partners.get(i, i) for i in range(len(field.keypoints))]
