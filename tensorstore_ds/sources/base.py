"""What a source is: something that lists samples, and reads each of them in a worker process.

A new format is a class derived from `Source`, in a module or a package beside this one; its line in `FORMATS` of
`tensorstore_ds.sources`; and its page in ``formats/sources/``. Or it is in a package of its own: docs/writing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.objects import FLAGS as FLAGS, LISTS as LISTS
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.options import declared, meant, option
from tensorstore_ds.packed_strings import PackedStrings
from tensorstore_ds.regular_files import archive_of
from tensorstore_ds.sources.ledger import Ledger
from tensorstore_ds.sources.splits import folder_splits

#: Identifies a sample in `Source.read`, such as a path or a row number. Keep it small: a data set has millions.
Reference = str | int

#: The M objects of one sample, as read from the source. It contains any of the values in `OBJECT_VALUES`.
#: `boxes` (M, 4) float64 are x1 y1 x2 y2 in pixels, x2 and y2 exclusive, unchecked; `oriented_boxes` (M, 4, 2) float64
#: are corners x y in order, with a first edge of length w, or (M, 5) as stored; `labels` (M,) int64 are class
#: indices; `keypoints` (M, K, 2) float64 are x y in pixels, NaN if absent; `visibility` (M, K) uint8; `FLAGS`
#: are (M,) uint8; `area` (M,) float64 in pixels. `LISTS` are lists of M arrays: `polygons` (n, 2) float64 x y in
#: pixels, with a row of NaN between two polygons; `rle` (n,) uint32 run lengths of the image after its orientation.
Objects = Mapping[str, Any]

#: Unit of the coordinates of objects.
BoxUnit = Literal["auto", "pixels", "fraction"]

#: Suffixes of image files, in lower case.
IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".hif", ".jfif", ".jpeg", ".jpg", ".jp2", ".pbm", ".pgm", ".png"}
    | {".ppm", ".tif", ".tiff", ".webp"}
)


@declared
class SourceOptions:
    """Options for reading a source."""

    classes: tuple[str, ...] | None = option(
        "Names of the classes in order; the first is label 0. A single name is also the class of all objects in a "
        "source without labels, such as faces.",
        default=None,
        shown="the names in the source, sorted",
        recorded=False,
        group="Essential",
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
        "New names of classes by old names, in a file a line ``old = new`` for each. Classes with the same new name "
        "are merged. A class with an empty new name is removed with its objects.",
        default=None,
        shown="the names in the source",
        group="Source",
    )
    label_from: str | None = option(
        "Where labels come from. For a list or Parquet, the name of a column. For a folder, a regular expression that "
        "finds the label of each image in its path: the group named label, or else the first group, or else the whole "
        "match. An image without a match is a bad sample.",
        default=None,
        shown="a column such as label, or the folder of the image",
        group="Source",
    )
    boxes: BoxUnit = option(
        "Unit of the boxes, keypoints and polygons: ``pixels``, or ``fraction`` of the image's width and height. "
        "``auto`` uses the format's unit, and prints a note if all boxes of an image are within 0 and 1.",
        default="auto",
        group="Source",
    )
    multi_label: bool = option(
        "Give every image a number for each class, also if a list has one label for each. An image whose file is in "
        "several class folders, with the same name and the same bytes, gets several labels.",
        default=False,
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


@dataclass(slots=True)  # not frozen, which would triple the time to make one
class Sample:
    """One sample as read from the source.

    Attributes:
        key: path of the sample in the source, with ``/``, or its number.
        image: path of a file, pixels (H, W) or (H, W, C), a PIL image, or a `Part` of an image. For small images, a
            path as a string is noticeably faster than a `Path`.
        label: class index. None means no label.
        objects: boxes and keypoints, in pixels of the image after its orientation is applied. None means no objects.
        masks: for each field of kind `mask`, the path of a file, class indices (H, W), or a PIL image, either gray or
            with a palette whose indices are the classes. The size is the size of the image after its orientation is
            applied.
        arrays: further fields, one array each. A field of the kind `labels` (several classes at once) is among them:
            (C,) int8, 1 for a class that applies, 0 for one that does not, -1 if that is not known.
            `LabelsField.row_of` makes it from class indices.
        texts: any number of texts for each field of kind `text`, such as captions. A missing name means no texts.
        annotated_size: (height, width) in the annotation, which is compared with the image.
        annotation: file of the objects, for error messages, if it belongs to this sample only.
        left_out: values of a Python object or an image file that are not stored.
        problems: objects that the source has already removed, and why.
        relative: whether the coordinates in `objects` are fractions of the image's width and height instead of pixels.
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
    """Result of a scan.

    Attributes:
        fields: all fields except the image, its size and its key.
        splits: references of the samples of each split, in stored order. Names match `schema.NAME`.
        labels: labels of each split, (n,) int64, if the source knows them without reading the samples.
        problems: bad samples and files. A conversion stops at them, or skips them, depending on ``on_error``.
        left_out: parts that the source itself leaves out, such as an unlisted image or a split that is a union.
        notes: remarks that are not problems, such as a renamed split.
    """

    fields: Mapping[str, Field]
    splits: Mapping[str, Sequence[Reference]]
    labels: Mapping[str, NDArray[np.int64]] | None = None
    problems: tuple[Problem, ...] = ()
    left_out: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def by_folder(self, where: str) -> Contents:
        """Divide the only split, which nothing in the source names, by the folders of its images: `folder_splits`.

        `where` is the source in errors.
        """
        ((split, references),) = self.splits.items()
        rows, notes = folder_splits((str(each).partition("\0")[0] for each in references), where)
        splits = {
            name: references if len(rows) == 1 else PackedStrings(str(references[i]) for i in some)
            for name, some in rows.items()
        }
        labels = self.labels and {name: self.labels[split][some] for name, some in rows.items()}
        return replace(self, splits=splits, labels=labels, notes=self.notes + notes)


class Match(IntEnum):
    """How certain a format is that it can read a path.

    The format with the highest certainty reads the path. If two are equal, an error is raised.
    """

    NO = 0
    MAYBE = 1  #: for example class folders and lists; other files in the folder may tell more
    YES = 2  #: the same as ``True``
    ONLY = 3  #: even if other formats also recognize the path

    @classmethod
    def of(cls, found: bool | int) -> Match:
        """Convert the result of `Source.detect` to a `Match`."""
        return cls.YES if found is True else cls(found)


@runtime_checkable
class Source(Protocol):
    """A data set in a foreign format. Derive from it to add your own format.

    Each worker process gets a pickled copy of the instance, once. A number as a reference is the index of the sample in
    its split. A text as a reference begins with the path of its image. If `read` needs more, append it after a NUL
    character, which paths cannot contain.

    Raise a `SourceError` with a reason code for bad data. A failing disk or too little memory is a `ConversionError`,
    because the sample itself is not bad. The functions of `regular_files` raise both.
    """

    name: ClassVar[str]  # of the format
    #: Attributes that `scan` sets and `read` needs, if they are plain data. `plan` stores them for all processes.
    #: With None, every process of a planned conversion scans by itself.
    scanned: ClassVar[tuple[str, ...] | None] = None
    #: Whether several samples can be parts of one image. `split_into` then keeps them in one split.
    has_parts: bool = False
    #: Whether `contents` looks for files that the scan did not use. False if other sources are inside, which do so.
    is_audited: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset()  #: options that it reads, of those that only some formats read
    path: Path
    options: SourceOptions
    images: Path  # the folder that the paths in references begin at
    ledger: Ledger  # of the scan: what it used, and what it did not

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = self.images = path
        self.options = options
        self.ledger = Ledger(path)

    @classmethod
    def detect(cls, path: Path) -> bool | Match:
        """Return how certain it is that `path` has this format, from file names and first bytes only.

        Returns:
            A `Match`, or True for ``YES``.
        """
        return False

    def scan(self) -> Contents:
        """List the samples. Reads annotations, but no pixels. It is called once, before any `read`.

        Note each file that is used, but is not one of `files` or `common_files`, with ``self.ledger.use``, and data
        that is not used with ``self.ledger.unread``.
        """
        raise NotImplementedError

    def contents(self) -> Contents:
        """Scan, and report everything in the source that the scan did not use as left out."""
        contents = self.scan()
        if not self.is_audited:
            return contents
        contents = replace(contents, notes=(*contents.notes, *_note_of_names(self.path)))
        self.ledger.use(*self.common_files())
        told = {problem.where for problem in (*contents.problems, *contents.left_out)}
        self.ledger.use(*told.difference([str(self.path)]))  # what is said of all is said of no file
        references = (each for listed in contents.splits.values() for each in listed if isinstance(each, str))
        self.ledger.check_files(file for reference in references for file in self.files(reference))
        unread, self.ledger = self.ledger.problems(), Ledger(self.path)  # a copy for each worker
        return replace(contents, left_out=(*contents.left_out, *unread)) if unread else contents

    def read(self, split: str, reference: Reference) -> Sample:
        """Return one sample. It is called in worker processes, on a copy of this object as it was after `scan`."""

    def key(self, split: str, reference: Reference) -> str:
        """Return the `Sample.key` that `read` will set, without reading anything. `split_into` uses it."""
        return reference.partition("\0")[0] if isinstance(reference, str) else f"{split}/{reference:05d}"

    def whole(self, split: str, reference: Reference) -> str:
        """Return the key of the image that a sample is a part of. It is the sample's own key if it is a whole image."""
        return self.key(split, reference)

    def column(self, name: str) -> Callable[[str, Reference], str]:
        """Return a function that gives a sample's value in a column of the source, as text, empty if there is no value.

        It can be called after `scan`. The column need not be stored.

        Raises:
            OptionError: the column does not exist.
        """
        raise no_column(self, name)

    def files(self, reference: Reference) -> tuple[str, ...]:
        """Return the files that only this sample is made from, its image first.

        It is empty if samples share all files.
        """
        return (f"{self.images}/{self.key('', reference)}",) if isinstance(reference, str) else ()

    def common_files(self) -> tuple[Path, ...]:
        """Return the files that samples share, unless references contain their content. It can be called after `scan`.

        An interrupted conversion uses a finished shard again if its references are equal, and if neither the samples'
        own files nor these files have changed. Do not return a list whose lines are the references: a new line changes
        no other sample. A source without any files, own or common, is always converted again from the start.
        """
        return ()


def _note_of_names(path: Path) -> tuple[str, ...]:
    """A note about an archive whose names may have been decoded with the wrong encoding."""
    place = archive_of(path) if ".zip" in str(path).lower() else None
    if place is None or not place[0].undeclared[0]:
        return ()
    count, example = place[0].undeclared
    names = f"{count:,} names in {place[0].path.name} are not marked as UTF-8, and are read as code page 437: {example}"
    return (f"{names}. If they look wrong, unpack the archive with their encoding, and convert the folder.",)


def no_column(source: Source, name: str, columns: Iterable[str] = (), option: str = "split_by") -> OptionError:
    """Error for a column that the source does not have; it lists the columns that exist."""
    names = list(columns)
    found = f"the format {source.name} has none" if not names else f"{', '.join(names)[:200]} are there"
    message = f"`{option}`: expected a column of {source.path.name}, found {name!r}: {found}."
    return OptionError(message + meant(name, names))
