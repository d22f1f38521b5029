"""What a data set has, as parsers say that share nothing with this library: minidom, ElementTree, json, csv, Pillow."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.dom import minidom
from xml.etree import ElementTree

from PIL import Image

from journeys.photographs import upright

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
SPLITS = {"train", "val", "test", "training", "valid", "validation", "testing"}
FLAGS = ("difficult", "truncated", "occluded")
Point = tuple[float, float]


@dataclass
class Thing:
    """An object: its box x1 y1 x2 y2, and what else the annotation says of it."""

    box: tuple[float, float, float, float]
    name: str | None = None
    flags: dict[str, int] = field(default_factory=dict)
    points: dict[str, Point] = field(default_factory=dict)  # only those that are there
    seen: dict[str, int] = field(default_factory=dict)
    polygons: list[list[float]] = field(default_factory=list)
    runs: list[int] | None = None
    area: float | None = None


@dataclass
class Sample:
    """An image's file with all that is said of it. `things` is None where the format has no objects."""

    path: Path
    label: str | None = None
    things: list[Thing] | None = None
    captions: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str | None]:
        """The class of the image, or those of its objects."""
        return [self.label] if self.things is None else [thing.name for thing in self.things]


@dataclass
class Facts:
    """A whole data set.

    Attributes:
        splits: samples by key.
        classes: names in the order of their indices, of labels or of objects.
        points: names of the keypoints, in order.
        flags: that some object has.
        bad: keys of images that Pillow cannot decode.
        bad_boxes: objects whose box has no area.
    """

    splits: dict[str, dict[str, Sample]]
    classes: list[str]
    points: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    bad_boxes: int = 0

    @property
    def samples(self) -> dict[str, Sample]:
        return {f"{split}: {key}": each for split, some in self.splits.items() for key, each in some.items()}

    def followed_by(self, later: Facts, *, adds: bool) -> Facts:
        """Of these samples, as a later state of their source has them; with its other samples, if `adds`.

        Samples that it lacks stay as they are. New classes and keypoints come after the others: of samples that are
        taken, and classes that no sample has.
        """
        splits: dict[str, dict[str, Sample]] = {}
        for name in [*self.splits, *(later.splits.keys() - self.splits.keys() if adds else ())]:
            before, after = self.splits.get(name, {}), later.splits.get(name, {})
            splits[name] = {key: after.get(key, sample) for key, sample in before.items()} | (after if adds else {})
        classes = later.classes
        if not adds:
            keys = {key for samples in self.splits.values() for key in samples}
            every = [(key, sample) for samples in later.splits.values() for key, sample in samples.items()]
            kept, others = (
                {n for k, s in every if (k in keys) == is_kept for n in s.names} for is_kept in (True, False)
            )
            classes = [name for name in classes if name in kept or name not in others]
        lists = zip((self.classes, self.points, self.flags), (classes, later.points, later.flags), strict=True)
        return Facts(splits, *(list(dict.fromkeys([*ours, *theirs])) for ours, theirs in lists))

    def counts(self, split: str) -> list[int]:
        """Samples, or objects, of each class."""
        names = Counter[str | None]()
        for sample in self.splits[split].values():
            names.update(sample.names)
        return [names[name] for name in self.classes]


def checked(facts: Facts) -> Facts:
    """Without images that cannot be decoded and boxes that have no area; boxes clipped to their images."""
    for samples in facts.splits.values():
        for key, sample in list(samples.items()):
            try:
                height, width = upright(sample.path).shape[:2]
            except OSError:
                facts.bad.add(key)
                del samples[key]
                continue
            things = []
            for thing in sample.things or []:
                x1, y1, x2, y2 = thing.box
                if x1 == x2 or y1 == y2:
                    facts.bad_boxes += 1
                    continue
                thing.box = max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height))
                things.append(thing)
            sample.things = None if sample.things is None else things
    return facts


def names_of(samples: Iterable[Sample]) -> tuple[list[str], list[str], list[str]]:
    """Classes, keypoints and flags of objects."""
    things = [thing for sample in samples for thing in sample.things or []]
    classes = sorted({thing.name for thing in things if thing.name is not None})
    points = sorted({name for thing in things for name in thing.points})
    return classes, points, [name for name in FLAGS if any(name in thing.flags for thing in things)]


def of_things(splits: dict[str, dict[str, Sample]]) -> Facts:
    return checked(Facts(splits, *names_of(each for some in splits.values() for each in some.values())))


def class_folders(root: Path) -> Facts:
    """`ROOT/[SPLIT/]CLASS/.../FILE`."""
    tops = {path.name for path in root.iterdir() if path.is_dir()}
    has_splits = tops <= SPLITS
    splits: dict[str, dict[str, Sample]] = {}
    classes = set()
    for folder, _, files in os.walk(root, followlinks=True):
        for name in files:
            path = Path(folder, name)
            parts = path.relative_to(root).parts
            if path.suffix.lower() in IMAGES:
                split, label = (parts[0], parts[1]) if has_splits else ("train", parts[0])
                classes.add(label)
                splits.setdefault(split, {})["/".join(parts)] = Sample(path, label)
    return checked(Facts(splits, sorted(classes)))


def voc(root: Path) -> Facts:
    """`Annotations`, `JPEGImages`, and the lists of `ImageSets/Main` that are no union of others."""
    listed = {path.stem: path.read_text().split() for path in (root / "ImageSets/Main").glob("*.txt")}
    splits = {
        split: {}
        for split, ids in listed.items()
        if not any(
            set(ids) == set(a) | set(b) for x, a in listed.items() for y, b in listed.items() if split not in (x, y)
        )
    }
    for split in splits:
        for name in listed[split]:
            document = minidom.parse(str(root / "Annotations" / f"{name}.xml"))  # noqa: S318  # the test's own
            path = root / "JPEGImages" / text_of(document, "filename")
            things = [voc_object(element) for element in document.getElementsByTagName("object")]
            splits[split][f"JPEGImages/{path.name}"] = Sample(path, things=things)
    return of_things(splits)


def voc_object(element: Any) -> Thing:
    box = element.getElementsByTagName("bndbox")[0]
    flags = {}
    for name in FLAGS:
        for written in (name, name.capitalize()):
            if element.getElementsByTagName(written):
                flags[name] = int(text_of(element, written) == "1")
    x1, y1, x2, y2 = (float(text_of(box, name)) for name in ("xmin", "ymin", "xmax", "ymax"))
    parts = [*element.getElementsByTagName("part"), *element.getElementsByTagName("keypoint")]
    points = {
        part.getAttribute("name"): (float(part.getAttribute("x")), float(part.getAttribute("y")))
        for part in parts
        if part.getAttribute("visible") != "0"
    }
    return Thing((x1, y1, x2, y2), text_of(element, "name"), flags, points)


def text_of(element: Any, tag: str) -> str:
    return element.getElementsByTagName(tag)[0].firstChild.data.strip()


def imglab(root: Path, files: dict[str, str]) -> Facts:
    """dlib's XML: a file for each split."""
    splits = {}
    for split, file in files.items():
        splits[split] = {
            image.get("file", ""): Sample(
                root / image.get("file", ""), things=[imglab_box(box) for box in image.iter("box")]
            )
            for image in ElementTree.parse(root / file).iter("image")  # noqa: S314  # the test's own
        }
    return of_things(splits)


def imglab_box(box: ElementTree.Element) -> Thing:
    left, top, width, height = (float(box.get(name, "nan")) for name in ("left", "top", "width", "height"))
    points = {part.get("name", ""): (float(part.get("x", "")), float(part.get("y", ""))) for part in box.iter("part")}
    return Thing((left, top, left + width, top + height), box.findtext("label"), points=points)


def coco(root: Path, files: dict[str, tuple[str, str | None, str]]) -> Facts:
    """COCO's JSON: for each split, the file of instances, that of captions, and the folder of the images."""
    splits: dict[str, dict[str, Sample]] = {}
    classes: dict[int, str] = {}
    points: dict[int, list[str]] = {}
    for split, (instances, captions, folder) in files.items():
        data = json.loads((root / instances).read_text())
        classes |= {each["id"]: each["name"] for each in data["categories"]}
        points |= {each["id"]: each.get("keypoints", []) for each in data["categories"]}
        images = {each["id"]: Sample(root / folder / each["file_name"], things=[]) for each in data["images"]}
        for each in data["annotations"]:
            images[each["image_id"]].things.append(coco_object(each, classes, points))  # type: ignore[union-attr]
        for each in json.loads((root / captions).read_text())["annotations"] if captions else []:
            images[each["image_id"]].captions.append(each["caption"])
        splits[split] = {f"{folder}/{each.path.name}": each for each in images.values()}
    facts = of_things(splits)
    facts.classes = [classes[id] for id in sorted(classes)]
    facts.points = list(dict.fromkeys(name for names in points.values() for name in names))
    crowds = any("iscrowd" in thing.flags for sample in facts.samples.values() for thing in sample.things or [])
    facts.flags = ["iscrowd"] if crowds else []
    return facts


def coco_object(each: dict[str, Any], classes: dict[int, str], points: dict[int, list[str]]) -> Thing:
    x, y, width, height = each["bbox"]
    thing = Thing((x, y, x + width, y + height), classes[each["category_id"]], area=each.get("area"))
    if "iscrowd" in each:
        thing.flags["iscrowd"] = each["iscrowd"]
    for i, name in enumerate(points[each["category_id"]] if each.get("keypoints") else []):
        x, y, seen = each["keypoints"][3 * i : 3 * i + 3]
        thing.seen[name] = seen
        if seen:
            thing.points[name] = (x, y)
    outline = each.get("segmentation")
    if isinstance(outline, dict):
        thing.runs = outline["counts"]
    elif outline:
        thing.polygons = outline
    return thing


def csv_list(root: Path, name: str) -> Facts:
    """A line `path,label,split` for each image; an empty label is none."""
    splits: dict[str, dict[str, Sample]] = {}
    with open(root / name, newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            splits.setdefault(line["split"], {})[line["path"]] = Sample(root / line["path"], line["label"] or None)
    classes = sorted({each.label for some in splits.values() for each in some.values() if each.label is not None})
    return checked(Facts(splits, classes))


def mode_of(path: Path) -> str:
    """``L`` or ``RGB``: what an image file has without its alpha."""
    with Image.open(path) as image:
        return "L" if image.mode in ("L", "LA", "1") else "RGB"
