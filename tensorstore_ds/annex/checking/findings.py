"""What a check has found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tensorstore_ds.durable import write_file
from tensorstore_ds.reading.store_files import check_outside_stores


@dataclass(frozen=True)
class CheckedSample:
    """A sample that a finding refers to.

    Attributes:
        split: name of the split.
        row: row of the sample in the split.
        key: key of the sample.
        label: name of its class, or None if it has none.
    """

    split: str
    row: int
    key: str
    label: str | None = None

    @property
    def place(self) -> str:
        """Split and key as one path, such as ``train/cat/1.png``."""
        return self.key if self.key.startswith(f"{self.split}/") else f"{self.split}/{self.key}"


@dataclass(frozen=True)
class Copies:
    """A group of samples that show the same image.

    Attributes:
        exact: whether the stored bytes of all images are equal. Otherwise some are modified copies.
        samples: two or more samples. The first is the one to keep.
        is_leak: whether the samples are in more than one split.
        labels_disagree: whether their labels differ.
    """

    exact: bool
    samples: tuple[CheckedSample, ...]
    is_leak: bool
    labels_disagree: bool


@dataclass(frozen=True)
class OddImage:
    """An image that is blurred, dark, overexposed, or of an unusual aspect ratio.

    Attributes:
        sample: the sample of the image.
        why: ``blurred``, ``dark``, ``bright`` or ``aspect``.
        value: sharpness (blurred), 99th percentile (dark) or 5th percentile (bright) of luminance, 0 to 255, or width /
            height (aspect).
    """

    sample: CheckedSample
    why: str
    value: float


@dataclass(frozen=True)
class OddBox:
    """An object with an implausible box.

    Attributes:
        sample: the sample of the object.
        object: index of the object in the sample.
        box: x1 y1 x2 y2 in pixels of the stored image.
        why: ``small``, ``large``, ``long``, or ``apart`` if it does not match its oriented box.
    """

    sample: CheckedSample
    object: int
    box: tuple[float, float, float, float]
    why: str


@dataclass(frozen=True)
class AbsentKeypoints:
    """An object that has some of its keypoints, but not all.

    Attributes:
        sample: the sample of the object.
        object: index of the object in the sample.
        names: names of the absent keypoints.
    """

    sample: CheckedSample
    object: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class FewSamples:
    """A class with few samples, or objects, in a split.

    Attributes:
        field: name of the field with the classes.
        name: name of the class.
        split: name of the split.
        count: number of samples or objects of the class.
    """

    field: str
    name: str
    split: str
    count: int


@dataclass(frozen=True)
class SuspectLabel:
    """A label that is probably wrong, because predictions contradict it.

    Attributes:
        sample: the sample of the label.
        label: class of the sample in the store.
        suggested: the class that the sample probably has.
        self_confidence: predicted probability of the label.
        margin: `self_confidence` minus the largest probability of any other class, -1 to 1.
    """

    sample: CheckedSample
    label: str
    suggested: str
    self_confidence: float
    margin: float


@dataclass(frozen=True)
class SuspectObject:
    """An object that is missing or probably wrong, because a detection contradicts it.

    Attributes:
        sample: the sample of the object.
        object: index of the object in the sample, or None if it is missing.
        why: ``overlooked`` if there is no object at the detection, ``misplaced`` if the boxes overlap too little, or
            ``swapped`` if the classes differ.
        label: class of the object, or None if it is missing.
        suggested: class of the detection.
        score: score of the detection.
        iou: intersection over union of the detection and the object, or the nearest object if it is missing.
        box: box of the detection, x1 y1 x2 y2 in pixels of the stored image.
    """

    sample: CheckedSample
    object: int | None
    why: str
    label: str | None
    suggested: str
    score: float
    iou: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class CheckFindings:
    """Result of `check_store`.

    Attributes:
        samples: number of samples that were checked, in all splits.
        copies: groups of samples with the same image, the largest group first.
        constant: images in which all pixels are equal.
        unreadable: images that cannot be decoded, each with the reason.
        boxes: objects with implausible boxes.
        classes: classes with few samples.
        notes: remarks about how the check was done.
        drop: rows to remove, by split. Without them, one sample of each group of copies remains, and no image is
            constant or unreadable. If copies are in several splits, the one outside ``train`` remains.
        keypoints: objects that lack some of their keypoints.
        sha256: digest of the store that the rows refer to.
        images: images that are blurred, dark, overexposed, or of an unusual aspect ratio.
        labels: labels that predictions contradict, by ascending margin.
        objects: objects that detections contradict, in the order of rows.
    """

    samples: int
    copies: tuple[Copies, ...] = ()
    constant: tuple[CheckedSample, ...] = ()
    unreadable: tuple[tuple[CheckedSample, str], ...] = ()
    boxes: tuple[OddBox, ...] = ()
    classes: tuple[FewSamples, ...] = ()
    notes: tuple[str, ...] = ()
    drop: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    keypoints: tuple[AbsentKeypoints, ...] = ()
    sha256: str = ""
    images: tuple[OddImage, ...] = ()
    labels: tuple[SuspectLabel, ...] = ()
    objects: tuple[SuspectObject, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether the check found no problem."""
        named = "copies", "constant", "unreadable", "boxes", "classes", "keypoints", "images", "labels", "objects"
        return not any(getattr(self, name) for name in named)

    @property
    def leaks(self) -> tuple[Copies, ...]:
        """Copies in more than one split."""
        return tuple(each for each in self.copies if each.is_leak)

    def dump(self) -> dict[str, Any]:
        """Return the findings as plain values for JSON."""
        unreadable = [{**asdict(sample), "message": message} for sample, message in self.unreadable]
        return {**asdict(self), "unreadable": unreadable, "clean": self.is_clean}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the findings to a JSON file, which ``tsds filter --without`` reads.

        Raises:
            OptionError: the file would be inside a store.
            OutputError: the file cannot be written.
        """
        check_outside_stores(Path(path))
        write_file(path, json.dumps(self.dump(), indent=2).encode())
