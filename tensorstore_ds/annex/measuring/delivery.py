"""Proof of what a way delivers: every sample once, with its own labels.

A sample's mark is 64 bits of its pixels, labels and boxes. A way's marks, in any order, must equal those of the store;
marks of a part of an epoch must be among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.reading.store import Split
from tensorstore_ds.seeding import GOLDEN

Marks = NDArray[np.uint64]
#: Of a batch: some of `image` (B, H, W, C), `label` (B,), `offsets` (B + 1,), `labels` (M,) and `boxes` (M, 4).
Columns = Mapping[str, NDArray[Any]]

#: Bytes of images that are read at a time.
_PIECE_NBYTES = 64 * 1024**2


def marks_of_images(images: NDArray[Any]) -> Marks:
    """(B,) marks of (B, ...) images or other rows: 64 bits of a hash of each row's bytes."""
    digests = (blake2b(image.tobytes(), digest_size=8).digest() for image in images)
    return np.frombuffer(b"".join(digests), np.uint64)


def marks_of_labels(labels: NDArray[np.int64]) -> Marks:
    """(B,) marks of (B,) class numbers."""
    return (labels + 1).astype(np.uint64) * GOLDEN


def marks_of_objects(
    offsets: NDArray[np.int64], labels: NDArray[np.int64] | None, boxes: NDArray[np.float32] | None = None
) -> Marks:
    """(B,) marks of the number of objects of each sample, their classes and rounded boxes, in any order."""
    classes = np.zeros(offsets[-1], np.int64) if labels is None else labels
    marks = marks_of_labels(classes)
    if boxes is not None and len(boxes):
        marks *= marks_of_images(np.rint(boxes).astype(np.int32)) | np.uint64(1)
    sums = np.zeros(len(classes) + 1, np.uint64)
    np.cumsum(marks, out=sums[1:])
    return sums[offsets[1:]] - sums[offsets[:-1]]


def marks_of(batch: Columns, *, pixels: bool) -> Marks:
    """(B,) marks of all columns of a batch, of its images only if `pixels` is set."""
    size = len(batch["offsets"]) - 1 if "offsets" in batch else len(batch["label" if "label" in batch else "image"])
    marks = np.zeros(size, np.uint64)
    if pixels:
        marks += marks_of_images(batch["image"])
    if "label" in batch:
        marks ^= marks_of_labels(batch["label"])
    if "offsets" in batch:
        marks ^= marks_of_objects(batch["offsets"], batch.get("labels"), batch.get("boxes"))
    return marks


def marks_of_split(split: Split, fields: Mapping[str, str], *, pixels: bool, boxes: bool = False) -> Marks:
    """Marks of a whole split, read with NumPy only.

    `fields` are names by kind: ``image``, and ``label`` or ``objects``. With `pixels`, images must be stored as pixels.
    """
    spec = getattr(split.fields[fields["image"]], "spec", None)
    step = max(1, _PIECE_NBYTES // spec.row_nbytes) if spec is not None else 10_000
    marks = [np.zeros(0, np.uint64)]
    for start in range(0, len(split), step):
        rows = np.arange(start, min(start + step, len(split)))
        batch: dict[str, NDArray[Any]] = {"image": split.column(fields["image"]).take(rows) if pixels else rows}
        if "label" in fields:
            batch["label"] = split.column(fields["label"]).take(rows)
        if "objects" in fields:
            objects = split.table(fields["objects"]).take(rows)
            names = {"labels", "boxes"} if boxes else {"labels"}
            batch |= {"offsets": objects.offsets, **{n: v for n, v in objects.values.items() if n in names}}
        marks.append(marks_of(batch, pixels=pixels))
    return np.concatenate(marks)


def agree(delivered: Marks, stored: Marks, *, whole: bool) -> bool:
    """Whether marks are those of the store: all of them if an epoch is `whole`, else each at most as often.

    >>> marks = np.array([1, 2, 2], np.uint64)
    >>> agree(marks[::-1], marks, whole=True), agree(marks[1:], marks, whole=False), agree(marks[1:], marks, whole=True)
    (True, True, False)
    """
    found, known = Counter(delivered.tolist()), Counter(stored.tolist())
    return found == known if whole else found <= known
