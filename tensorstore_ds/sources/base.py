"""What a source is: something that lists samples, and reads each of them in a worker process.

A new format is a class derived from `Source`, in a module or a package beside this one; its line in `FORMATS` of
`tensorstore_ds.sources`; and its page in ``formats/sources/``. Or it is in a package of its own: docs/plugins.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.objects import FLAGS as FLAGS, LISTS as LISTS
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.options import check, declared, meant, option

#: What a source hands to its own `read`: a path, a row number. It must be small: a data set has millions.
Reference = str | int

#: The objects of one sample, as the source has them: those of `OBJECT_VALUES` that there are, each with M rows.
#: `boxes` (M, 4) float64 are x1 y1 x2 y2 in pixels, x2 and y2 exclusive, unchecked; `oriented_boxes` (M, 4, 2) float64
#: are their corners x y in order, the first edge of length w, or (M, 5) as stored; `labels` (M,) int64 are class
#: indices; `keypoints` (M, K, 2) float64 are x y in pixels, NaN where one is absent; `visibility` (M, K) uint8; `FLAGS`
#: are (M,) uint8; `area` (M,) float64 in pixels. `LISTS` are lists of M arrays: `polygons` (n, 2) float64 x y in
#: pixels, a row of NaN between two polygons; `rle` (n,) uint32 lengths of runs, of an image as it is shown.
Objects = Mapping[str, Any]

#: Files that are taken for images, by their suffix in lower case.
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".hif", ".jpeg", ".jpg", ".jp2", ".pbm", ".pgm", ".png", ".ppm"}
    | {".tif", ".tiff", ".webp"}
)


@declared
class SourceOptions:
    """What the user may say about a source."""

    classes: tuple[str, ...] | None = option(
        "Names of the classes in order; the first is label 0. A single name is also the class of all objects in a "
        "source without labels, such as faces.",
        default=None,
        shown="the names in the source, sorted",
        recorded=False,
        group="Source",
    )
    keypoints: Keypoints | None = option(
        "Names of the keypoints in order, and the pairs to swap when an image is mirrored.",
        default=None,
        shown="the names in the source, sorted, with pairs such as left and right",
        recorded=False,
        group="Source",
    )
    images: Path | None = option(
        "Folder of the images, if it differs from the folder of the annotations.",
        default=None,
        shown="the folder of the annotations",
        recorded=False,
        group="Source",
    )

    key_prefix: str | None = option(
        "Prefix of the keys of all samples, such as ``june/``, to tell apart equal file names of several data sets.",
        default=None,
        shown="none",
        recorded=False,
        group="Source",
    )

    class_map: Mapping[str, str] | None = option(
        "New names of classes by old names. Classes with the same new name are merged. A class with an empty new name "
        "is removed with its objects.",
        default=None,
        shown="the names in the source",
        group="Source",
    )
    label_from: str | None = option(
        "Regular expression that finds the label of each image of a folder in its path. The label is the group named "
        "label, or else the first group, or else the whole match. An image without a match is a bad sample.",
        default=None,
        shown="the name of its folder",
        group="Source",
    )
    via: str | None = option(
        "Read boxes with the program panlabel (an extra), which supports 39 formats. Give the name of a format, such "
        "as kitti, create-ml or openimages, or auto.",
        default=None,
        shown="formats that are read without panlabel",
        recorded=False,
        group="Source",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(slots=True)  # not frozen, which would triple the time to make one
class Sample:
    """One sample as the source has it.

    Attributes:
        key: its path in the source, with ``/``, or its number: what people know it by.
        image: a file's path (as a string too: quicker, and it shows for small images), or pixels (H, W) or (H, W, C),
            or a PIL image, or a `Part` of an image.
        label: class index.
        objects: boxes and keypoints, in the pixels of the image as it is shown (orientation applied).
        masks: for each field of kind `mask` a file's path, class indices (H, W), or a PIL image: gray, or with a
            palette, whose indices are the classes. Of the image's size as it is shown.
        arrays: further fields, one array each.
        texts: any number of texts for each field of kind `text`, such as captions; none where a name is missing.
        annotated_size: (height, width) that the annotation gives; it is compared with the image.
        annotation: the file that the objects are from, which errors name, if it is theirs alone.
        left_out: what a Python object or an image file has besides, and is not stored.
        problems: objects that the source has dropped already, and why.
        relative: whether the coordinates in `objects` are fractions of the image's width and height, not pixels.
    """

    key: str
    image: str | Path | NDArray[Any] | Any
    label: int | None = None
    objects: Objects | None = None
    masks: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    annotated_size: tuple[int, int] | None = None
    annotation: str = ""
    left_out: tuple[Problem, ...] = ()
    problems: tuple[Problem, ...] = ()
    relative: bool = False


@dataclass(frozen=True)
class Contents:
    """The result of a scan.

    Attributes:
        fields: all fields but the image, its size and its key.
        splits: for each split the references of its samples, in stored order. Names match `schema.NAME`.
        labels: for each split the labels, (n,) int64, where the source knows them without reading the samples.
        problems: what is bad; a conversion stops at it, or leaves it out if `on_error` says so.
        left_out: what the source itself does not take in: a photograph not listed, a split that is a union.
        notes: what the user should know, though nothing is bad: a split that was renamed.
    """

    fields: Mapping[str, Field]
    splits: Mapping[str, Sequence[Reference]]
    labels: Mapping[str, NDArray[np.int64]] | None = None
    problems: tuple[Problem, ...] = ()
    left_out: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


class Match(IntEnum):
    """How sure a format is that a path is of it. The surest one reads it; two that are equally sure are an error."""

    NO = 0
    MAYBE = 1  #: as class folders and lists are: other files in the folder may say more
    YES = 2  #: what ``True`` means
    ONLY = 3  #: whatever else recognizes it

    @classmethod
    def of(cls, found: bool | int) -> Match:
        """What a `Source.detect` has said."""
        return cls.YES if found is True else cls(found)


@runtime_checkable
class Source(Protocol):
    """A data set in somebody else's format. Instances travel to worker processes once.

    What is wrong with a file is a `SourceError` with a reason code, wherever it is noticed; a disk that fails and
    memory that is short are a `ConversionError`, for no sample is bad then. `regular_files` sees to both.

    A reference that is text begins with the path of its image; what else `read` needs may follow a NUL, which no path
    can hold. One that is a number counts the samples of its split.
    """

    name: ClassVar[str]  # of the format
    #: Attributes that `scan` sets and `read` needs, if they are plain data. The plan of a planned conversion has them.
    #: None: every process of a planned conversion scans on its own.
    scanned: ClassVar[tuple[str, ...] | None] = None
    #: Whether several samples are parts of one image: a division into splits keeps them together.
    has_parts: bool = False
    path: Path
    options: SourceOptions
    images: Path  # the folder that the paths in references begin at

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = self.images = path
        self.options = options

    @classmethod
    def detect(cls, path: Path) -> bool | Match:
        """Whether `path` looks like this format, from names and first bytes alone: a `Match`, or True for ``YES``."""
        return False

    def scan(self) -> Contents:
        """List the samples; called once, before any `read`. Reads annotations, no pixels."""

    def read(self, split: str, reference: Reference) -> Sample:
        """One sample; called in worker processes, on a copy of this object as it was after `scan`."""

    def key(self, split: str, reference: Reference) -> str:
        """The `Sample.key` that `read` will give, without reading anything: a division into splits goes by it."""
        return reference.partition("\0")[0] if isinstance(reference, str) else f"{split}/{reference:05d}"

    def whole(self, split: str, reference: Reference) -> str:
        """The key of the image that a sample is a part of: its own where it is all of one."""
        return self.key(split, reference)

    def column(self, name: str) -> Callable[[str, Reference], str]:
        """The function that says what a sample of a split has in a column of the source, as text; nothing where it has
        nothing there. Known after `scan`; the column need not be stored.

        Raises:
            OptionError: there is no such column.
        """
        raise no_column(self, name)

    def files(self, reference: Reference) -> tuple[str, ...]:
        """The files that only this sample is made from, such as its image; none where samples share all files."""
        return (f"{self.images}/{self.key('', reference)}",) if isinstance(reference, str) else ()

    def common_files(self) -> tuple[Path, ...]:
        """The files that samples share and whose content their references do not hold; known after `scan`.

        A finished shard of an interrupted conversion is used again if its references are the same and neither its
        samples' own files nor these have changed. A list whose lines are the references is none of these: a line more
        changes no other sample. A source without any file, own or common, is always converted anew.
        """
        return ()


def no_column(source: Source, name: str, columns: Iterable[str] = ()) -> OptionError:
    """The error where samples are divided by a column that their source has not, but has others."""
    names = list(columns)
    found = f"the format {source.name} has none" if not names else f"{', '.join(names)[:200]} are there"
    message = f"`split_by`: expected a column of {source.path.name}, found {name!r}: {found}."
    return OptionError(message + meant(name, names))
