"""Progress and result of a conversion, and the provenance in its store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tensorstore_ds import words
from tensorstore_ds.conversion.blocks import ALL_AS_RGB, OWN_FIELDS
from tensorstore_ds.conversion.encodings import NOT_KEPT, Auto
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.values import ImageTiles, ObjectCrops
from tensorstore_ds.errors import Problem
from tensorstore_ds.format.kinds import ImageField, LabelField, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, of_kind
from tensorstore_ds.format.statistics import ImageSums, MaskSums, ObjectSums, Statistics, add_doubtful
from tensorstore_ds.imaging.objects import CUT, FRACTIONS
from tensorstore_ds.options import flat
from tensorstore_ds.progress import notebook_bar

#: A store gets a note if it is this many times larger than the image files of its source, and this many bytes.
LARGER, LARGER_NBYTES = 1.5, 64 * 1024**2
#: A note names at most this many keypoints.
NAMED = 5

RECODED = (
    "AVIF and HEIC files are stored as JPEG files of the same size, with `quality` {1}: {0:,}. "
    "Stores hold files that every reader can decode."
)

_DOING = {
    "scan": "Scanning",
    "convert": "Converting",
    "compress": "Repacking",
    "checksum": "Checking",
    "copy": "Copying",
    "compare": "Comparing",
    "check": "Checking",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a conversion. Its text is, for example, ``Converting 1,200/60,000 · 3.7 MB``.

    >>> stages = []
    >>> _ = tsds.convert("photos", "out.tsds", workers=0, progress=lambda event: stages.append(event.stage))
    >>> stages[0], stages[-1]
    ('scan', 'convert')
    >>> str(tsds.conversion.Progress("convert", done=1200, total=60000, nbytes=3_700_000))
    'Converting 1,200/60,000 · 3.7 MB'

    Attributes:
        stage: ``scan`` or ``convert``; in `repack` also ``checksum`` and ``compress``; in functions that read or edit
            stores also ``copy``, ``compare`` and ``check``.
        done: number of samples done, or of bytes in ``checksum``.
        total: number of samples in total, or of bytes in ``checksum``. It is 0 for an iterator, whose length is
            unknown.
        nbytes: bytes of the store written so far, before compression.
        note: message to show to the user now. It is empty in all other events.
    """

    stage: str
    done: int
    total: int
    nbytes: int = 0
    note: str = ""

    @property
    def doing(self) -> str:
        """The stage in words, such as ``Converting``."""
        return _DOING.get(self.stage, self.stage)

    def __str__(self) -> str:
        size = words.size if self.stage == "checksum" else "{:,}".format
        counted = f"{size(self.done)}/{size(self.total)}" if self.total else size(self.done)
        return f"{self.doing} {counted}" + (f" · {words.size(self.nbytes)}" if self.nbytes else "")


OnProgress = Callable[[Progress], None]


def in_notebook() -> OnProgress:
    """Return a function that shows events in a notebook, notes on separate lines; elsewhere it does nothing."""
    draw = notebook_bar()

    def show(event: Progress) -> None:
        if event.note:
            notebook_bar()(f"note: {event.note}", 0, 0)
        draw(str(event), event.done, event.total)

    return show


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a conversion.

    Attributes:
        path: path of the store.
        rows: number of samples of each split.
        nbytes: size of the store on disk in bytes.
        seconds: wall time.
        skipped: number of problems by reason, for skipped images and removed boxes.
        left_out: parts that are not samples, such as a split that only repeats others.
        resumed: number of shards that an earlier, interrupted call had finished.
        notes: remarks that are not errors. Each was also the `note` of a `Progress`.
        skipped_images: number of images that were skipped.
        skipped_boxes: number of boxes that were removed from stored images.
    """

    path: Path
    rows: Mapping[str, int]
    nbytes: int
    seconds: float
    skipped: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[Problem, ...] = ()
    resumed: int = 0
    notes: tuple[str, ...] = ()
    skipped_images: int = 0
    skipped_boxes: int = 0


def notes_of_store(
    options: ConvertOptions,
    fields: Mapping[str, Field],
    splits: Mapping[str, tuple[int, Statistics]],
    left_out: Iterable[Problem],
    nbytes: int,
) -> Iterator[str]:
    """Yield what the user should know of a store that was made, or that a dry run foresees.

    `splits` are rows and statistics of each. `nbytes` is the size of the store, or 0.
    """
    whole = Statistics()
    for _, statistics in splits.values():
        whole.add(statistics)
    summaries = {name: (rows, statistics.summary()) for name, (rows, statistics) in splits.items()}
    encoding, of_images = cast(ImageField, fields["image"]).encoding, cast(ImageSums, whole["image"])
    yield from notes_of_classes(options, fields)
    yield from note_of_unlabelled(fields, summaries)
    yield from note_of_swapped(options, (summary.get("size", {}).get("distinct") for _, summary in summaries.values()))
    yield from note_of_keypoints(fields, whole)
    for name, mask in of_kind(fields, MaskField).items():
        of_masks = whole.get(name)  # a dry run reads none
        if isinstance(of_masks, MaskSums) and of_masks.ignored and not any(of_masks.class_counts[1:]):
            numbers = f"0 and {mask.ignored}" if any(of_masks.class_counts) else mask.ignored
            what = f"{name} has the numbers {numbers} alone, and {mask.ignored} means ignored"
            yield f"{what}. If it is the class 1, write 1 in its place."
    doubtful: dict[str, list[Any]] = {}
    for sums in whole.values():
        doubtful = add_doubtful(doubtful, sums.doubtful if isinstance(sums, ObjectSums) else {})
    yield from notes_of_doubtful(doubtful, options)
    if emptied := sum(sums.emptied for sums in whole.values() if isinstance(sums, ObjectSums)):
        yield (
            f"images that lost all their boxes, and are stored as images without objects: {emptied:,}. "
            'Pass `on_error="skip-image"` to leave them out.'
        )
    if recoded := sum(problem.reason == NOT_KEPT for problem in left_out):
        yield RECODED.format(recoded, flat(options)["quality"])
    yield from notes_of_unused(options, encoding, makes_jpeg=encoding == "jpeg" or recoded > 0)
    if not isinstance(options.cut, ObjectCrops):
        yield from note_of_size(nbytes, of_images.file_nbytes)
    if encoding != "raw":
        yield from note_of_channels(of_images.images_of, is_kept=encoding == "source")


def notes_of_unused(options: ConvertOptions, encoding: str, *, makes_jpeg: bool) -> Iterator[str]:
    """Options for another encoding than the one that was chosen."""
    given, usual = options.encoding, Auto()
    if isinstance(given, Auto):
        for name in ("quality", "subsampling"):
            if not makes_jpeg and getattr(given, name) != getattr(usual, name):
                yield f"`{name}` changes nothing here: images are not encoded as JPEG."
        if encoding != "source" and given.check != usual.check:
            yield "`check` changes nothing here: images are decoded anyway."


def notes_of_classes(options: ConvertOptions, fields: Mapping[str, Field]) -> Iterator[str]:
    """Class names that were given for values that have none."""
    if options.classes and not any(field.classes for field in fields.values()):
        names = ", ".join(name for name in fields if name not in OWN_FIELDS) or "none but the image"
        what = "no sample has a label, a mask or labels of objects"
        yield f"`classes` was not used: {what}. Found the fields {names}: check their names."
    mask = fields.get("mask")
    if options.classes and mask is not None and mask.kind != MaskField.kind:
        expected = "a mask with classes has whole numbers (H, W)"
        yield f"mask is stored as an array, {mask.describe()}: {expected}."


def notes_of_doubtful(doubtful: Mapping[str, list[Any]], options: ConvertOptions) -> Iterator[str]:
    """The `doubtful_boxes` of all samples."""
    if (
        FRACTIONS in doubtful and options.boxes == "auto" and not isinstance(options.cut, ImageTiles)
    ):  # a tile may have a corner of a box
        n, example = doubtful[FRACTIONS]
        which = "1 object is" if n == 1 else f"{n:,} objects are"
        advice = 'Pass `boxes="fraction"` if they are fractions of the image, or `boxes="pixels"` if they are pixels.'
        yield f"{which} within 0 and 1 pixel, such as {example}. {advice}"
    if CUT in doubtful:
        n, example = doubtful[CUT]
        which = "1 box is" if n == 1 else f"{n:,} boxes are"
        yield f"{which} cut at the edge of the image to less than half of the area, such as {example}."


def note_of_swapped(options: ConvertOptions, sizes: Iterable[Mapping[str, int] | None]) -> list[str]:
    """A note if `size` is the shape of all images with height and width exchanged; `sizes` are "480x640" by split."""
    if options.size is None or options.size[0] == options.size[1] or options.cut is not None:
        return []
    height, width = options.size
    each = list(sizes)
    shapes = [tuple(map(int, size.split("x"))) for distinct in each for size in distinct or ()]
    if not shapes or None in each or any(h * height != w * width for h, w in shapes):
        return []
    h, w = shapes[0]
    what = f"`size` is {height}x{width} (height x width), the images are {h}x{w}"
    return [f"{what}: pass {width}x{height} if height and width were mixed up."]


def note_of_keypoints(fields: Mapping[str, Field], whole: Statistics) -> Iterator[str]:
    """Keypoints that are absent, and in how many objects that have others."""
    for name, each in of_kind(fields, ObjectsField).items():
        objects, *counts = cast(ObjectSums, whole[name]).keypoints or [0]
        of_each = Counter(dict(zip(each.keypoints, counts, strict=False)))
        absent = [f"{keypoint} in {n:,}" for keypoint, n in of_each.most_common() if n]
        shown = ", ".join(absent[:NAMED]) + (f", and {len(absent) - NAMED} more" if len(absent) > NAMED else "")
        if absent:
            yield f"keypoints that are absent, of {objects:,} objects with keypoints: {shown}."


def note_of_unlabelled(
    fields: Mapping[str, Field], splits: Mapping[str, tuple[int, Mapping[str, Any]]]
) -> Iterator[str]:
    """Number of samples without a label, if others have one or could; `splits` are rows and statistics of each."""
    for each in of_kind(fields, LabelField):
        bare = {name: rows - sum(found[each]["class_counts"]) if rows else 0 for name, (rows, found) in splits.items()}
        shown = ", ".join(f"{count:,} of {splits[name][0]:,} in {name}" for name, count in bare.items() if count)
        if shown:
            yield f"samples without {'a label' if each == 'label' else each}: {shown}."


def note_of_size(nbytes: int, file_nbytes: int) -> list[str]:
    """A note if a store is much larger than the image files that it was made of."""
    if not file_nbytes or nbytes <= LARGER * file_nbytes or nbytes - file_nbytes < LARGER_NBYTES:
        return []
    what = (
        f"the store has {words.size(nbytes)}, {nbytes / file_nbytes:.1f}x the {words.size(file_nbytes)} of its images"
    )
    advice = '`encoding="source"` keeps the files as they are; with `size` or `color`, `encoding="jpeg"` takes less'
    return [f"{what} as files. {advice}."]


def note_of_channels(images_of: Mapping[str, int], *, is_kept: bool = True) -> list[str]:
    """A note on encoded images of different channels, ``images_of[channels]``; `is_kept`: each keeps its own."""
    if len(images_of) < 2:
        return []
    if not is_kept:
        return [ALL_AS_RGB.format(images_of["1"], images_of["3"])]
    counts = " and ".join(f"{images_of[channels]:,} with {channels}" for channels in sorted(images_of))
    what = f"images keep their channels, {counts}: the loader gives batches of both as RGB"
    if not images_of.keys() <= {"1", "3"}:
        what += ", and their mean and standard deviation are not known"
    return [f'{what}. Pass `encoding="jpeg"` and `color="rgb"` to store all as RGB.']
