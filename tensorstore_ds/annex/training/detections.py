"""What a detector found in a split: its metrics, COCO's results, a store, and a picture of the worst images."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.annex.checking.boxes import box_ious
from tensorstore_ds.annex.pictures.contact_sheet import Cell, magnified, picture_of, sheet_of
from tensorstore_ds.annex.pictures.drawing import draw_boxes
from tensorstore_ds.annex.training.coco_map import Precision, coco_boxes, coco_map
from tensorstore_ds.annex.training.detector import letterboxed_back
from tensorstore_ds.annex.training.prediction import check_classes, model_for, stored_batches
from tensorstore_ds.annex.training.recipe import DETECTOR_BATCH_SIZE
from tensorstore_ds.annex.training.tasks import Detection
from tensorstore_ds.conversion.writer import Writer
from tensorstore_ds.durable import write_file
from tensorstore_ds.errors import OptionError, TrainingError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.kinds.base import named
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.options import user_path
from tensorstore_ds.reading.store import Split
from tensorstore_ds.reading.store_files import check_outside_stores

#: A detection is right if it has this IoU with an object of its class.
OVERLAP = 0.5
#: Default minimum score if there is no data to choose it.
SCORE = 0.5
#: Number of images on the sheet of the worst.
WORST = 24
#: The longer side of a picture, in pixels.
SIDE = 360
#: Colors of detections that are right or wrong, of objects that are missed, and of those that are ignored.
RIGHT, WRONG, MISSED, IGNORED = "#22c55e", "#ff4b4b", "#ffd60a", "#9aa0a6"

BoxRows = NDArray[np.float32]


class Matches(NamedTuple):
    """Matches of the detections of an image with its objects; detections of lower scores do not affect the others."""

    found: BoxRows  #: (M, 7) the detections.
    truth: BoxRows  #: (N, 7) the objects.
    which: NDArray[np.int64]  #: (M,) index of the object that a detection is matched with, or -1.
    counts: NDArray[np.bool_]  #: (M,) whether a detection counts: it does not where half of it lies in an ignored one.

    def from_score(self, score: float) -> dict[str, BoxRows]:
        """Rows by color, in the order of drawing; in none are detections below a score, or in ignored objects."""
        kept, right, missed = self.found[:, 2] >= score, self.which >= 0, self.truth[:, 2] == 0
        missed[self.which[kept & right]] = False
        objects = {IGNORED: self.truth[self.truth[:, 2] != 0], MISSED: self.truth[missed]}
        return {**objects, RIGHT: self.found[kept & right], WRONG: self.found[kept & self.counts & ~right]}


@dataclass(frozen=True, eq=False)
class StoreDetections:
    """Result of `predict_store`: the objects that a detector found in a split of a store.

    Boxes are x1 y1 x2 y2 in pixels of the stored images. Classes are indices into `classes`.
    """

    split: Split  #: Split of the open store.
    classes: tuple[str, ...]  #: Names of the classes.
    detections: BoxRows  #: (M, 7) float32: row, class, score, and box.
    objects: BoxRows | None  #: (N, 7) float32: row, class, 1 if it is ignored, and box; None if the store has no boxes.

    def precision(self) -> Precision:
        """Return COCO's average precision.

        Raises:
            OptionError: the store has no objects to compare with.
        """
        return coco_map(self.detections, self._truth(), len(self.classes))

    def best_score(self) -> float:
        """Return the score threshold with the best F1 at an IoU of 0.5, or 0.5 if there are no objects."""
        if self.objects is None or not len(self.detections):
            return SCORE
        scores, right = [], []
        for found, _, which, counts in self._matched:
            scores.append(found[counts, 2])
            right.append(which[counts] >= 0)
        ranked = np.concatenate(scores)
        order = np.argsort(-ranked, kind="stable")
        hits = np.cumsum(np.concatenate(right)[order])
        total = int((self.objects[:, 2] == 0).sum())
        f1, ranked = 2 * hits / (np.arange(1, len(order) + 1) + total), ranked[order]
        f1[:-1][ranked[:-1] == ranked[1:]] = 0  # detections of one score are all chosen, or none
        return float(ranked[f1.argmax()]) if len(order) and hits[-1] else SCORE

    def coco_results(self) -> list[dict[str, Any]]:
        """Return the detections as COCO results: `image_id`, `category_id`, `bbox` (x, y, width, height) and `score`.

        The ids are the ids of ``tsds export --to coco``. They count from 1, for images in the order of rows, and for
        categories in the order of classes. Numbers are not rounded, so that pycocotools computes the same average
        precision as `precision`.
        """
        boxes = coco_boxes(self.detections).tolist()
        return [
            {"image_id": int(row) + 1, "category_id": int(label) + 1, "bbox": box, "score": score}
            for (row, label, score, *_), box in zip(self.detections.tolist(), boxes, strict=True)
        ]

    def write_results(self, path: str | os.PathLike[str]) -> None:
        """Write `coco_results` to a JSON file, which `loadRes` of pycocotools reads."""
        out = user_path(path)
        check_outside_stores(out)
        write_file(out, json.dumps(self.coco_results()).encode())

    def write_store(self, out: str | os.PathLike[str], *, score: float | None = None) -> None:
        """Write a new store with the same images and keys, whose objects are the detections.

        Images are written as they are stored, as pixels or as files. Detections beside the image, which have no area in
        it, are left out.

        Args:
            out: path of the new store, which must not exist.
            score: minimum score of the detections. None uses `best_score`.
        """
        least = self.best_score() if score is None else score
        split, sure = self.split, self.detections[self.detections[:, 2] >= least]
        kept = sure[(sure[:, 3:5] < sure[:, 5:]).all(1)]
        with Writer(out, classes=list(self.classes)) as writer:
            for row in range(len(split)):
                found = kept[kept[:, 0] == row]
                boxes, labels = found[:, 3:], found[:, 1].astype(np.int64)
                writer.append(split.name, image=split["image"][row], boxes=boxes, labels=labels, key=split.key(row))

    def draw(self, *, count: int = WORST, score: float | None = None) -> Image.Image:
        """Draw the images with the most mistakes as a contact sheet, an RGB image.

        Green boxes are correct detections: an object of the same class has an IoU of at least 0.5, and is matched only
        once. Red boxes are wrong detections, yellow boxes are missed objects, and gray boxes are ignored objects.

        Args:
            count: maximum number of images.
            score: minimum score of the drawn detections. None uses `best_score`.

        Raises:
            OptionError: the store has no objects to compare with.
        """
        self._truth()
        least = self.best_score() if score is None else score
        judged = [matches.from_score(least) for matches in self._matched]
        mistakes = [len(each[WRONG]) + len(each[MISSED]) for each in judged]
        worst = sorted(range(len(mistakes)), key=lambda row: (-mistakes[row], row))[:count]
        cells = []
        with quiet_pillow():
            for row in worst:
                right, wrong, missed = (len(judged[row][color]) for color in (RIGHT, WRONG, MISSED))
                picture, scale = magnified(picture_of(self.split, row, "image"), SIDE)
                self._draw(picture, scale, judged[row])
                cells.append(Cell(picture, [f"{wrong} wrong, {missed} missed, {right} right"], self.split.key(row)))
        names = {RIGHT: "right", WRONG: "wrong", MISSED: "missed"}
        legend = [(c, f"{name} {sum(len(judged[row][c]) for row in worst):,}") for c, name in names.items()]
        legend.append((IGNORED, "ignored"))
        title = f"{self.split.name}: the {len(cells):,} worst of {len(self.split):,} samples"
        return sheet_of(f"{title}, score {least:.2f} or more, IoU {OVERLAP}", cells, legend)

    def _draw(self, picture: Image.Image, scale: float, shown: dict[str, BoxRows]) -> None:
        boxes = np.concatenate([rows[:, 3:] for rows in shown.values()]) * scale
        colors = [color for color, rows in shown.items() for _ in rows]
        names = [
            f"{self.classes[int(row[1])]} {row[2]:.2f}" if color in (RIGHT, WRONG) else self.classes[int(row[1])]
            for color, rows in shown.items()
            for row in rows
        ]
        draw_boxes(picture, boxes, colors, names)

    def _truth(self) -> BoxRows:
        if self.objects is None:
            raise OptionError(f"{self.split.name}: expected objects with boxes to compare with, found none.")
        return self.objects

    @functools.cached_property
    def _matched(self) -> list[Matches]:
        """The matches of each image."""
        both = self.detections, self._truth()
        ends = [np.searchsorted(rows[:, 0], np.arange(1, len(self.split))) for rows in both]
        return list(map(matched, *(np.split(rows, end) for rows, end in zip(both, ends, strict=True))))


def matched(found: BoxRows, truth: BoxRows) -> Matches:
    """Match the detections of an image with its objects, by descending score, as COCO does."""
    other_class, crowds = found[:, 1][:, None] != truth[:, 1], truth[:, 2] != 0
    ious = box_ious(found[:, 3:], truth[:, 3:])
    ious[other_class | crowds] = 0
    which = np.full(len(found), -1)
    order = np.argsort(-found[:, 2], kind="stable")
    for i in order[np.any(ious >= OVERLAP, axis=1)[order]]:  # few overlap an object
        best = ious[i].argmax()
        if ious[i, best] >= OVERLAP:
            which[i], ious[:, best] = best, 0
    inside = ~other_class & crowds
    if crowds.any():
        corners = np.minimum(found[:, None, 5:], truth[:, 5:]) - np.maximum(found[:, None, 3:5], truth[:, 3:5])
        inside &= corners.clip(0).prod(2) >= OVERLAP * (found[:, 5:] - found[:, 3:5]).prod(1)[:, None]
    return Matches(found, truth, which, (which >= 0) | ~inside.any(axis=1))


def in_stored_pixels(rows: BoxRows, split: Split, canvas: tuple[int, int]) -> BoxRows:
    """Rows (M, 7) with boxes transformed from a letterbox to the stored images."""
    moved, sizes = rows.copy(), split.image_shapes[rows[:, 0].astype(np.int64), :2]
    moved[:, 3:] = letterboxed_back(rows[:, 3:].astype(np.float64), sizes, canvas)
    return moved


def stored_size(split: Split, row: int) -> tuple[int, int]:
    """(height, width) of a stored image."""
    height, width = split.image_shapes[row, :2].tolist()
    return height, width


def predict_store(
    checkpoint: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    split: str | None = None,
    device: str | None = None,
) -> StoreDetections:
    """Detect the objects in all images of a split of a store, with a checkpoint of ``train(..., task="detection")``.

    >>> found = tsds.training.predict_store("voc.run/best.pt", "voc.tsds", split="val")           # doctest: +SKIP
    >>> found.precision().metrics["map"], found.draw().save("worst.png")                 # doctest: +SKIP

    Args:
        checkpoint: path of `best.pt` or `last.pt` of a run.
        store: path of the store.
        split: name of the split. None uses the first of val, valid, validation and test, else the first split.
        device: device to compute on, such as ``cuda`` or ``cpu``. None uses a GPU if there is one.

    Raises:
        TrainingError: the checkpoint is damaged, or belongs to a different task.
        OptionError: the store does not contain the split, or has different channels or classes than the model.
        FormatError: the store is damaged.
    """
    model, card, opened, chosen, _ = model_for(checkpoint, store, split, device)
    if not isinstance(card.task, Detection):
        raise TrainingError(
            f"{os.fspath(checkpoint)}: expected a model for detection, found one for {card.task.name}. Its "
            "metrics are computed by tsds.training.evaluate, and by tsds predict without options of detections."
        )
    classes = card.task.classes
    table = named(chosen.fields, "objects", ObjectsField)
    truth_field = table if table is not None and {"boxes", "labels"} <= table.values.keys() else None
    has_truth = truth_field is not None
    if truth_field is not None:
        check_classes(chosen, truth_field.classes, card)
    fields = ("image", "objects") if has_truth else ("image",)
    loader = stored_batches(model, card, opened, chosen, fields=fields, batch_size=DETECTOR_BATCH_SIZE)
    found, truth = _found(model, card.task, loader, has_truth=has_truth)
    canvas = card.vit.image_size
    objects = in_stored_pixels(truth, chosen, canvas) if has_truth else None
    return StoreDetections(chosen, classes, in_stored_pixels(found, chosen, canvas), objects)


def _found(model: Any, task: Detection, loader: Any, *, has_truth: bool) -> tuple[BoxRows, BoxRows]:
    rows: dict[str, list[torch.Tensor]] = {"detections": [], "objects": []}
    with torch.inference_mode():
        for batch in loader:
            targets = task.targets(batch) if has_truth else _nothing(batch["row"])
            for name, values in task.sums(model(batch["image"]), targets).items():
                rows[name].append(values.cpu())
    found, truth = (torch.cat(rows[name]).numpy() for name in ("detections", "objects"))
    return found, truth


def _nothing(numbers: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Targets of images without objects."""
    none = torch.zeros(0, dtype=torch.int64, device=numbers.device)
    empty = {"boxes": torch.zeros(0, 4, device=numbers.device), "labels": none, "ignored": none.bool()}
    return [{**empty, "row": row} for row in torch.split(numbers, 1)]
