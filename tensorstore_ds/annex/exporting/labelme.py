"""labelme: SPLIT/NAME.json beside SPLIT/NAME, and labels.txt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names, hull, short
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.imaging.oriented import as_corners
from tensorstore_ds.sources.base import FLAGS

_VERSION = "5.4.1"  # of labelme, which has written files of this form since 5.0


class LabelmeExporter(Exporter):
    """An object is its polygons, or a rectangle, rotated for an oriented box; all shapes of an object share a group."""

    name: ClassVar[str] = "labelme"
    takes: ClassVar[tuple[type, ...]] = (ObjectsField,)
    splits_are_folders: ClassVar[bool] = True

    def check(self) -> None:
        field = self.need_objects()
        for name in (*field.classes, *field.keypoints):
            if name.splitlines() != [name.strip()]:  # which labelme would change, or refuse
                message = f"expected names of one line, without white space around, found {name!r}. Export to parquet."
                raise OptionError(f"{self.store.path}: {message}")

    def export_split(self, split: str) -> None:
        for sample in self.samples(split, Names()):
            height, width = sample.size
            data: dict[str, Any] = {
                "version": _VERSION,
                "flags": {},
                "shapes": list(self._shapes(sample)),
                "imagePath": sample.name,
                "imageData": None,
                "imageHeight": height,
                "imageWidth": width,
            }
            self.write(f"{split}/{sample.name}", sample.image)
            self.write(f"{split}/{sample.stem}.json", f"{json.dumps(data, ensure_ascii=False, indent=1)}\n".encode())

    def finish(self) -> None:
        """Write the class names, one per line, as ``labelme --labels`` and ``tsds convert --classes`` read them."""
        if self.classes:
            self.write("labels.txt", "".join(f"{name}\n" for name in self.classes).encode())

    def _shapes(self, sample: ExportedSample) -> Iterator[dict[str, Any]]:
        """Shapes of a sample; counts the values of its objects that are not written."""
        field, values = self.need_objects(), sample.objects or {}
        self.leave_out(values, "boxes", "oriented_boxes", "labels", "keypoints", "polygons", *FLAGS)
        outlines = [_drawable(rings, sample.size) for rings in sample.polygons]
        self.leave_out_boxes(sample, outlines)
        if any(len(rings) > len(drawn) for rings, drawn in zip(sample.polygons, outlines, strict=True)):
            self.left_out["polygons without an area"] += 1
        corners = as_corners(sample.oriented_boxes)
        for i, (box, drawn) in enumerate(zip(values["boxes"], outlines, strict=True)):
            label = field.classes[int(values["labels"][i])] if "labels" in values else "object"
            points = values["keypoints"][i] if "keypoints" in values else np.empty((0, 2))
            named = [(name, at) for name, at in zip(field.keypoints, points, strict=False) if not np.isnan(at[0])]
            group = i + 1 if named or len(drawn) > 1 else None
            flags = {flag: bool(values[flag][i]) for flag in FLAGS if flag in values}
            for ring in drawn:
                yield _shape("polygon", label, ring, group, flags)
            if not drawn and not np.isnan(corners[i, 0, 0]):
                turned = _shape("rotation", label, corners[i], group, flags)
                yield {
                    **turned,
                    "direction": short(sample.oriented_boxes[i, 4] % (2 * np.pi)),
                }  # as X-AnyLabeling has it
            elif not drawn:
                yield _shape("rectangle", label, box.reshape(2, 2), group, flags)
            for name, at in named:
                yield _shape("point", name, at[None], group, {})


def _shape(form: str, label: str, places: NDArray[Any], group: int | None, flags: dict[str, bool]) -> dict[str, Any]:
    """A shape with points (n, 2) in pixels."""
    points = [[short(x), short(y)] for x, y in places.tolist()]
    return {"label": label, "points": points, "group_id": group, "shape_type": form, "flags": flags}


def _drawable(rings: list[NDArray[Any]], size: tuple[int, int]) -> list[NDArray[Any]]:
    """Polygons (k, 2) that labelme can draw; empty if together they cover nothing of the image."""
    drawn = [ring for ring in rings if len(ring) > 2]
    if not drawn:
        return []
    x1, y1, x2, y2 = hull(drawn, size)
    return drawn if x1 < x2 and y1 < y2 else []
