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
    """A sample that a finding refers to."""

    split: str  #: Name of the split.
    row: int  #: Row of the sample in the split.
    key: str  #: Key of the sample.
    label: str | None = None  #: Name of its class, or None if it has none.
    store: str = ""  #: Path or URL of its store if that is one of `others` of `check_store`.

    @property
    def place(self) -> str:
        """Split and key as one path, such as ``train/cat/1.png``, behind the store if it is another one."""
        place = self.key if self.key.startswith(f"{self.split}/") else f"{self.split}/{self.key}"
        return f"{self.store}: {place}" if self.store else place


@dataclass(frozen=True)
class Copies:
    """A group of samples that show the same image."""

    exact: bool  #: Whether the stored bytes of all images are equal. Otherwise some are modified copies.
    samples: tuple[CheckedSample, ...]  #: Two or more samples. The first is the one to keep.
    is_leak: bool  #: Whether the samples are in splits of different names.
    labels_disagree: bool  #: Whether labels of the same store differ.

    @property
    def is_across(self) -> bool:
        """Whether the samples are in several stores."""
        return len({each.store for each in self.samples}) > 1


@dataclass(frozen=True)
class SharedImages:
    """Images of a split that a split of another store also has."""

    split: str  #: Name of the split.
    store: str  #: Path or URL of the other store.
    other: str  #: Name of the other store's split.
    count: int  #: Number of samples of `split` with a copy there.


@dataclass(frozen=True)
class OddImage:
    """An image that is blurred, dark, overexposed, or of an unusual aspect ratio."""

    sample: CheckedSample  #: The sample of the image.
    why: str  #: ``blurred``, ``dark``, ``bright`` or ``aspect``.
    #: Sharpness (blurred), 99th percentile (dark) or 5th percentile (bright) of luminance, 0 to 255, or width / height
    #: (aspect).
    value: float


@dataclass(frozen=True)
class OddBox:
    """An object with an implausible box."""

    sample: CheckedSample  #: The sample of the object.
    object: int  #: Index of the object in the sample.
    box: tuple[float, float, float, float]  #: x1 y1 x2 y2 in pixels of the stored image.
    why: str  #: ``small``, ``large``, ``long``, or ``apart`` if it does not match its oriented box.


@dataclass(frozen=True)
class AbsentKeypoints:
    """An object that has some of its keypoints, but not all."""

    sample: CheckedSample  #: The sample of the object.
    object: int  #: Index of the object in the sample.
    names: tuple[str, ...]  #: Names of the absent keypoints.


@dataclass(frozen=True)
class FewSamples:
    """A class with few samples, or objects, in a split."""

    field: str  #: Name of the field with the classes.
    name: str  #: Name of the class.
    split: str  #: Name of the split.
    count: int  #: Number of samples or objects of the class.


@dataclass(frozen=True)
class SuspectLabel:
    """A label that is probably wrong, because predictions contradict it."""

    sample: CheckedSample  #: The sample of the label.
    label: str  #: Class of the sample in the store.
    suggested: str  #: The class that the sample probably has.
    self_confidence: float  #: Predicted probability of the label.
    margin: float  #: `self_confidence` minus the largest probability of any other class, -1 to 1.


@dataclass(frozen=True)
class SuspectObject:
    """An object that is missing or probably wrong, because a detection contradicts it."""

    sample: CheckedSample  #: The sample of the object.
    object: int | None  #: Index of the object in the sample, or None if it is missing.
    #: ``overlooked`` if there is no object at the detection, ``misplaced`` if the boxes overlap too little, or
    #: ``swapped`` if the classes differ.
    why: str
    label: str | None  #: Class of the object, or None if it is missing.
    suggested: str  #: Class of the detection.
    score: float  #: Score of the detection.
    iou: float  #: Intersection over union of the detection and the object, or the nearest object if it is missing.
    box: tuple[float, float, float, float]  #: Box of the detection, x1 y1 x2 y2 in pixels of the stored image.


@dataclass(frozen=True)
class CheckFindings:
    """Result of `check_store`."""

    samples: int  #: Number of samples that were checked, in all splits.
    copies: tuple[Copies, ...] = ()  #: Groups of samples with the same image, the largest group first.
    constant: tuple[CheckedSample, ...] = ()  #: Images in which all pixels are equal.
    unreadable: tuple[tuple[CheckedSample, str], ...] = ()  #: Images that cannot be decoded, each with the reason.
    boxes: tuple[OddBox, ...] = ()  #: Objects with implausible boxes.
    classes: tuple[FewSamples, ...] = ()  #: Classes with few samples.
    notes: tuple[str, ...] = ()  #: Remarks about how the check was done.
    #: Rows to remove, by split. Without them, one sample of each group of copies remains, and no image is constant or
    #: unreadable. If copies are in several splits, the one outside ``train`` remains, also if it is in another store.
    drop: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    keypoints: tuple[AbsentKeypoints, ...] = ()  #: Objects that lack some of their keypoints.
    sha256: str = ""  #: Digest of the store that the rows refer to.
    images: tuple[OddImage, ...] = ()  #: Images that are blurred, dark, overexposed, or of an unusual aspect ratio.
    labels: tuple[SuspectLabel, ...] = ()  #: Labels that predictions contradict, by ascending margin.
    objects: tuple[SuspectObject, ...] = ()  #: Objects that detections contradict, in the order of rows.
    shared: tuple[SharedImages, ...] = ()  #: Numbers of images that other stores also have, by pairs of splits.

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
