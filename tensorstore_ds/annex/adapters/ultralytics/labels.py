"""What Ultralytics knows of a store: the field of each task, and the labels of each image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from ultralytics.data.converter import merge_multi_segment
from ultralytics.utils.ops import segments2boxes

from tensorstore_ds.annex.exporting.yolo import centered_boxes, corners_inside, keypoint_triples
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import of_image
from tensorstore_ds.imaging.oriented import oriented_to_corners, upright_corners
from tensorstore_ds.imaging.outlines import mask_of_runs, split_polygons
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import Split

#: By task of Ultralytics, the values of objects that it needs beside `boxes`: one of them.
OBJECT_TASKS: Mapping[str, tuple[str, ...]] = {
    "detect": ("boxes",),
    "segment": ("polygons", "rle"),
    "pose": ("keypoints",),
    "obb": ("oriented_boxes",),
}
#: Flags of objects that are left out, as in Ultralytics' own conversions of COCO and Pascal VOC.
IGNORED = ("iscrowd", "difficult")


def fields_of_tasks(split: Split) -> dict[str, str]:
    """Return the field of each task that a split supports."""
    found: dict[str, str] = {}
    for name, field in of_image(split.fields, ObjectsField).items():
        for task, values in OBJECT_TASKS.items():
            if "boxes" in field.values and not field.values.keys().isdisjoint(values):
                found.setdefault(task, name)
    label = split.first(LabelField)
    return found if label is None else {**found, "classify": label}


def field_of(split: Split, task: str, where: object) -> str:
    """The name of the field that a task needs; raises `OptionError` if the split has none."""
    found = fields_of_tasks(split)
    if task in found:
        return found[task]
    others = " or ".join(name for name in OBJECT_TASKS[task] if name != "boxes") if task in OBJECT_TASKS else ""
    needs = f"objects with boxes{' and ' if others else ''}{others}" if task in OBJECT_TASKS else "labels"
    fields = ((name, field) for name, field in split.fields.items() if name not in ("key", "size"))
    has = ", ".join(f"{name} ({field.describe()})" for name, field in fields)
    advice = f"Use a model for {' or '.join(found)}." if found else "Convert images with annotations."
    raise OptionError(f"{where}: expected {needs} for the task {task}, found {has}. {advice}")


def labels_of(split: Split, name: str, task: str, files: Sequence[str]) -> list[dict[str, Any]]:
    """Labels of the first images of a split, one for each of `files`, in the form of `YOLODataset.get_labels`.

    A dict for each image: `cls` (m, 1), `bboxes` (m, 4) as center and sides, `segments` (m times (k, 2)) and
    `keypoints` (m, K, 3) or None, all float32 and in fractions of the image; and its `shape` (height, width).
    """
    table, rows = split.table(name), np.arange(len(files))
    taken = table.take(rows)
    owners = np.repeat(rows, np.diff(taken.offsets))
    ignored = sum((taken[flag] != 0 for flag in IGNORED if flag in taken.values), np.zeros(len(owners), np.bool_))
    kept = np.flatnonzero(~ignored)
    owners, values = owners[kept], {value: array[kept] for value, array in taken.values.items()}
    sizes = np.asarray(split.image_shapes[: len(files), :2])
    scale = sizes[owners, ::-1].astype(np.float64)
    classes = values["labels"] if "labels" in values else np.zeros(len(owners))
    boxes, segments, keypoints = centered_boxes(values["boxes"], scale).astype(np.float32), list[Any](), None
    if task == "obb":
        segments = list(_corners(values, scale))
    elif task == "segment":
        segments = list(_outlines(table, kept, values["boxes"], sizes[owners]))
    elif task == "pose":
        keypoints = keypoint_triples(values, scale).astype(np.float32)
    if segments:
        boxes = segments2boxes(segments)
    every = {"cls": classes.astype(np.float32)[:, None], "bboxes": boxes, "segments": segments, "keypoints": keypoints}
    starts = owners.searchsorted(np.arange(len(files) + 1)).tolist()
    same = {"normalized": True, "bbox_format": "xywh"}
    return [
        {"im_file": file, "shape": tuple(size), **_once(every, start, stop), **same}
        for file, size, start, stop in zip(files, sizes.tolist(), starts[:-1], starts[1:], strict=True)
    ]


def _once(every: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    """The values of the objects [start, stop); equal ones only once, in the order of their numbers."""
    own: dict[str, Any] = {name: value if value is None else value[start:stop] for name, value in every.items()}
    if stop - start < 2:
        return own
    numbers = [own[name].reshape(stop - start, -1) for name in ("cls", "bboxes", "keypoints") if own[name] is not None]
    index = np.unique(np.concatenate(numbers, axis=1), axis=0, return_index=True)[1]
    if len(index) < stop - start and own["segments"]:
        texts = [label.tobytes() + each.tobytes() for label, each in zip(own["cls"], own["segments"], strict=True)]
        index = np.unique(np.array(texts, object), return_index=True)[1]
    if len(index) == stop - start:
        return own
    chosen = {name: value[index] for name, value in own.items() if isinstance(value, np.ndarray)}
    return {**own, **chosen, "segments": [own["segments"][i] for i in index if own["segments"]]}


def _corners(values: Mapping[str, NDArray[Any]], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    """(M, 4, 2) corners of the oriented boxes in fractions of the images; corners of the box if there is none."""
    oriented = values["oriented_boxes"].astype(np.float64)
    present = np.isfinite(oriented).all(axis=1).reshape(-1, 1, 1)
    corners = np.where(present, oriented_to_corners(oriented), upright_corners(values["boxes"])) / scale[:, None]
    return corners_inside(corners).astype(np.float32)


def _outlines(
    table: RaggedColumn, objects: NDArray[np.int64], boxes: NDArray[Any], sizes: NDArray[np.int32]
) -> Iterator[NDArray[np.float32]]:
    """The outline (k, 2) of each object in fractions of its image; its box if it has no outline.

    Several polygons become one, joined by thin lines, as in Ultralytics' conversion of COCO.
    """
    lists = table.lists
    for i, upright, size in zip(objects.tolist(), upright_corners(boxes), sizes.tolist(), strict=True):
        parts = split_polygons(lists["polygons"][i]) if "polygons" in lists else []
        if not parts and "rle" in lists and len(lists["rle"][i]):
            mask = mask_of_runs(lists["rle"][i], (size[0], size[1]), f"object {i}").astype(np.uint8)
            found, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
            parts = [each.reshape(-1, 2) for each in found]
        parts = [each.astype(np.float64) for each in parts if len(each) >= 3] or [upright.astype(np.float64)]
        whole = parts[0] if len(parts) == 1 else np.concatenate(merge_multi_segment(parts))
        yield (whole / size[::-1]).clip(0, 1).astype(np.float32)
