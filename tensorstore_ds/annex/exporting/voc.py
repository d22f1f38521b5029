"""Pascal VOC: JPEGImages, Annotations and ImageSets/Main."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import ExportedSample, Names, short
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.sources.base import FLAGS

_FLAGS = tuple(flag for flag in FLAGS if flag != "iscrowd")


class VocExporter(Exporter):
    """Boxes keep their fractions, oriented ones are as in roLabelImg; keypoints are named parts."""

    name: ClassVar[str] = "voc"
    takes: ClassVar[tuple[type, ...]] = (ObjectsField,)

    def check(self) -> None:
        self.need_objects_in_xml()
        self._names = Names()  # of all splits: they share the folder

    def export_split(self, split: str) -> None:
        stems = []
        for sample in self.samples(split, self._names):
            self.write(f"JPEGImages/{sample.name}", sample.image)
            self.write(f"Annotations/{sample.stem}.xml", self._annotation(sample))
            stems.append(sample.stem)
        self.write(f"ImageSets/Main/{split}.txt", "".join(f"{stem}\n" for stem in stems).encode())

    def _annotation(self, sample: ExportedSample) -> bytes:
        field, values = self.need_objects(), sample.objects or {}
        root = Element("annotation")
        SubElement(root, "folder").text = "JPEGImages"
        SubElement(root, "filename").text = sample.name
        size = SubElement(root, "size")
        for tag, number in zip(("width", "height", "depth"), (*sample.size[::-1], sample.channels), strict=True):
            SubElement(size, tag).text = str(number)
        self.leave_out(values, "boxes", "oriented_boxes", "labels", "keypoints", *_FLAGS)
        for i, box in enumerate(values["boxes"].tolist()):
            each = SubElement(root, "object")
            SubElement(each, "name").text = field.classes[int(values["labels"][i])] if "labels" in values else "object"
            for flag in (flag for flag in _FLAGS if flag in values):
                SubElement(each, flag).text = str(int(values[flag][i]))
            _numbers(each, "bndbox", ("xmin", "ymin", "xmax", "ymax"), box)
            if "oriented_boxes" in values:
                oriented = values["oriented_boxes"][i]
                SubElement(each, "type").text = "bndbox" if np.isnan(oriented[0]) else "robndbox"
                if not np.isnan(oriented[0]):
                    _numbers(each, "robndbox", ("cx", "cy", "w", "h", "angle"), oriented.tolist())
            if "keypoints" in values:
                points = SubElement(each, "keypoints")
                for name, (x, y) in zip(field.keypoints, values["keypoints"][i].tolist(), strict=True):
                    point = SubElement(points, "keypoint", name=name, visible=str(int(not np.isnan(x))))
                    if not np.isnan(x):
                        point.attrib |= {"x": f"{short(x):.10g}", "y": f"{short(y):.10g}"}
        xml: bytes = tostring(root, encoding="utf-8")
        return xml


def _numbers(parent: Element, tag: str, names: Sequence[str], values: Sequence[float]) -> None:
    """Append an element with a child for each number."""
    element = SubElement(parent, tag)
    for name, value in zip(names, values, strict=True):
        SubElement(element, name).text = f"{short(value):.10g}"
