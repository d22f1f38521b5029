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
    """A sample that findings refer to.

    Attributes:
        split, row: split, and row in it.
        key: key of the sample.
        label: name of its class, or None if it has none.
    """

    split: str
    row: int
    key: str
    label: str | None = None

    @property
    def place(self) -> str:
        """The split and the key, in one."""
        return self.key if self.key.startswith(f"{self.split}/") else f"{self.split}/{self.key}"


@dataclass(frozen=True)
class Copies:
    """Samples whose images are the same.

    Attributes:
        exact: whether all have the same bytes. Otherwise some were changed.
        samples: two or more samples, of which the first one is to be kept.
        is_leak: whether they are in more than one split.
        labels_disagree: whether they have labels that differ.
    """

    exact: bool
    samples: tuple[CheckedSample, ...]
    is_leak: bool
    labels_disagree: bool


@dataclass(frozen=True)
class OddImage:
    """An image that is blurred, dark, overexposed, or of an odd aspect ratio.

    Attributes:
        why: ``blurred``, ``dark``, ``bright`` or ``aspect``.
        value: sharpness, the 99th (dark) or 5th (bright) percentile of luminance, 0 to 255, or width / height.
    """

    sample: CheckedSample
    why: str
    value: float


@dataclass(frozen=True)
class OddBox:
    """An object whose box is not plausible.

    Attributes:
        object: number of the object in the sample.
        box: x1 y1 x2 y2 in pixels of the stored image.
        why: ``small``, ``large``, ``long``, or ``apart`` from its oriented box.
    """

    sample: CheckedSample
    object: int
    box: tuple[float, float, float, float]
    why: str


@dataclass(frozen=True)
class AbsentKeypoints:
    """An object that has some of its keypoints, but not all.

    Attributes:
        object: number of the object in the sample.
        names: names of the absent keypoints.
    """

    sample: CheckedSample
    object: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class FewSamples:
    """A class with few samples, or objects, in a split."""

    field: str
    name: str
    split: str
    count: int


@dataclass(frozen=True)
class SuspectLabel:
    """A label that is probably wrong, because predictions contradict it.

    Attributes:
        label: class of the sample in the store.
        suggested: the class that it probably has.
        self_confidence: the predicted probability of the label.
        margin: this probability, less the largest one of other classes: -1 to 1.
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
        object: number of the object in the sample, or None if it is missing.
        why: ``overlooked``: there is no object where the detection is; ``misplaced``: the boxes overlap too little;
            ``swapped``: the classes differ.
        label: class of the object; None if it is missing.
        suggested: class of the detection.
        score: score of the detection.
        iou: intersection over union of detection and object; of the nearest object if it is missing.
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
    """Findings of `check_store`.

    Attributes:
        samples: number of samples that were checked, in all splits.
        copies: groups of images that are the same, the largest first.
        constant: images all of whose pixels are the same.
        unreadable: images that cannot be decoded, each with the reason.
        boxes: objects whose boxes are not plausible.
        classes: classes with few samples.
        keypoints: objects that lack some of their keypoints.
        notes: remarks about how the check was done.
        drop: rows of each split to be left out, so that of copies one stays, and no image is constant or unreadable.
            Of copies in several splits that in the split other than ``train`` stays.
        images: images that are blurred, dark, overexposed, or of an odd aspect ratio.
        labels: labels that predictions contradict, the least probable first (the smallest margin).
        objects: objects that detections contradict, in the order of rows.
        sha256: digest of the store, whose rows these are.
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
        """Whether nothing was found."""
        named = "copies", "constant", "unreadable", "boxes", "classes", "keypoints", "images", "labels", "objects"
        return not any(getattr(self, name) for name in named)

    @property
    def leaks(self) -> tuple[Copies, ...]:
        """Copies in more than one split."""
        return tuple(each for each in self.copies if each.is_leak)

    def dump(self) -> dict[str, Any]:
        """As JSON has it."""
        unreadable = [{**asdict(sample), "message": message} for sample, message in self.unreadable]
        return {**asdict(self), "unreadable": unreadable, "clean": self.is_clean}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them as a JSON file, which ``tsds filter --without`` takes.

        Raises:
            OptionError: it would lie inside a store.
            OutputError: it cannot be written.
        """
        check_outside_stores(Path(path))
        write_file(path, json.dumps(self.dump(), indent=2).encode())
