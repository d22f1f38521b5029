"""CVAT for images 1.1: annotations.xml, and images/SPLIT."""

from __future__ import annotations

import math
from typing import Any, ClassVar
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names, short
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.sources.base import FLAGS

_FILE = "annotations.xml"
_ATTRIBUTES = tuple(flag for flag in FLAGS if flag not in ("iscrowd", "occluded"))  # CVAT has `occluded` itself


class CvatExporter(Exporter):
    """An object is its polygon, or a box, turned where it has an oriented one; its keypoints are points of its group.

    The split is the subset of an image.
    """

    name: ClassVar[str] = "cvat"
    takes: ClassVar[tuple[type, ...]] = (ObjectsField,)

    def check(self) -> None:
        field = self.need_objects_in_xml()
        self._names = Names()  # of all splits: CVAT knows an image by its name alone
        self._images = 0
        self._labels = field.classes or ("object",)

    def export_split(self, split: str) -> None:
        path = self.folder / _FILE
        if not path.exists():
            start = b'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n'
            self.write(_FILE, start + self._meta())
        with path.open("ab") as file:
            for sample in self.samples(split, self._names):
                self.write(f"images/{split}/{sample.name}", sample.image)
                file.write(tostring(self._image(sample), encoding="utf-8", xml_declaration=False) + b"\n")
                self._images += 1

    def finish(self) -> None:
        """Write the end of the file."""
        with (self.folder / _FILE).open("ab") as file:
            file.write(b"</annotations>\n")

    def _meta(self) -> bytes:
        """Labels of the task, with the flags as attributes."""
        field = self.need_objects()
        meta = Element("meta")
        labels = SubElement(SubElement(meta, "task"), "labels")
        for name in (*self._labels, *field.keypoints):
            label = SubElement(labels, "label")
            SubElement(label, "name").text = name
            attributes = SubElement(label, "attributes")
            for flag in (flag for flag in _ATTRIBUTES if flag in field.values and name in self._labels):
                attribute = SubElement(attributes, "attribute")
                for tag, text in (("name", flag), ("mutable", "False"), ("input_type", "checkbox")):
                    SubElement(attribute, tag).text = text
                SubElement(attribute, "default_value").text = SubElement(attribute, "values").text = "false"
        xml: bytes = tostring(meta, encoding="utf-8", xml_declaration=False)
        return xml + b"\n"

    def _image(self, sample: ExportedSample) -> Element:
        field, values = self.need_objects(), sample.objects or {}
        height, width = (str(side) for side in sample.size)
        root = Element("image", id=str(self._images), name=sample.name, subset=sample.split, width=width, height=height)
        self.leave_out(values, "boxes", "oriented_boxes", "labels", "keypoints", "polygons", "occluded", *_ATTRIBUTES)
        drawn = [rings if len(rings) == 1 and len(rings[0]) > 2 else [] for rings in sample.polygons]
        self.leave_out_boxes(sample, drawn)
        if any(len(rings) > len(some) for rings, some in zip(sample.polygons, drawn, strict=True)):
            self.left_out["polygons, where an object has several"] += 1
        for i, (box, oriented) in enumerate(zip(values["boxes"], sample.oriented_boxes, strict=True)):
            label = self._labels[int(values["labels"][i])] if "labels" in values else self._labels[0]
            points = values["keypoints"][i] if "keypoints" in values else np.empty((0, 2))
            named = [(name, at) for name, at in zip(field.keypoints, points, strict=False) if not np.isnan(at[0])]
            if drawn[i]:
                shape = SubElement(root, "polygon", points=_points(drawn[i][0]))
            else:
                shape = SubElement(root, "box", _turned(oriented) if not np.isnan(oriented[0]) else _edges(box))
            occluded = int(values["occluded"][i]) if "occluded" in values else 0
            shape.attrib |= {"label": label, "occluded": str(occluded), "z_order": "0"}
            for flag in (flag for flag in _ATTRIBUTES if flag in values):
                SubElement(shape, "attribute", name=flag).text = str(bool(values[flag][i])).lower()
            if named:
                shape.set("group_id", str(i + 1))
            for name, at in named:
                SubElement(root, "points", label=name, points=_points(at[None]), group_id=str(i + 1), occluded="0")
        return root


def _edges(box: NDArray[Any]) -> dict[str, str]:
    return {name: f"{short(edge):.10g}" for name, edge in zip(("xtl", "ytl", "xbr", "ybr"), box, strict=True)}


def _turned(oriented: NDArray[Any]) -> dict[str, str]:
    """Attributes of an oriented box: its edges before rotation, and degrees clockwise around its center."""
    x, y, width, height, angle = oriented.tolist()
    edges = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    numbers = dict(zip(("xtl", "ytl", "xbr", "ybr"), edges, strict=True))
    degrees = math.degrees(angle) % 360
    return {name: f"{number:.10g}" for name, number in (numbers | {"rotation": degrees}).items()}


def _points(places: NDArray[Any]) -> str:
    return ";".join(f"{short(x):.10g},{short(y):.10g}" for x, y in places.tolist())
