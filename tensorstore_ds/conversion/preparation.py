"""Prepare a conversion without writing: scan the source, divide it into splits, and determine the format of the rows.

`survey` counts the sizes and colors of all images by their headers, without decoding a pixel.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tensorstore_ds.conversion.blocks import (
    ALL_AS_RGB,
    NOTHING_LEFT,
    SKIP,
    BlockRows,
    RowFormat,
    check_fields,
    check_objects,
    or_skipped,
)
from tensorstore_ds.conversion.crops import CropSource
from tensorstore_ds.conversion.encode import about, encode_sample
from tensorstore_ds.conversion.encodings import Auto, Encoding, Jpeg, Raw, SourceFiles, not_kept
from tensorstore_ds.conversion.groups import COLUMN, check_finds, source_group
from tensorstore_ds.conversion.options import ConvertOptions, ImageOptions, OnError
from tensorstore_ds.conversion.plan import ChosenRows, plan_splits
from tensorstore_ds.conversion.tiles import TileSource
from tensorstore_ds.conversion.values import ImageTiles
from tensorstore_ds.durable import check_room
from tensorstore_ds.errors import ConversionError, OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, LabelsField, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import named, of_kind
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.imaging.picture import PathInErrors, Picture, is_jpeg, read_header
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.mapping import note_of_maps
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.around import FractionSource
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source
from tensorstore_ds.sources.joined import JoinedSource, Sources
from tensorstore_ds.sources.ledger import UNUSED
from tensorstore_ds.sources.list.frames import FrameSource, has_frames
from tensorstore_ds.sources.sequence import Indexable, SequenceSource

#: Sources: a path, several, a sequence of samples, or for each split a sequence.
AnySource = str | os.PathLike[str] | Sources | Indexable | Mapping[str, Indexable]

#: A sample of a source, by its split there.
Place = tuple[str, Reference]

#: Channels of each color; those of other colors depend on the images.
_CHANNELS = {"rgb": 3, "rgba": 4}
#: A message names at most this many sizes.
NAMED = 5
#: Samples whose annotations are counted together.
_COUNTED = 1024
#: Remember the first image for at most this many sizes.
_FIRSTS = 1000


def open_any(source: AnySource, options: ConvertOptions) -> Source:
    """Open the source of a path, several paths, a sequence or data frames, with these options."""
    if options.images is not None:
        if not options.images.is_dir():
            raise refusal("images", "a folder", options.images)
        options = replace(options, images=tidied(options.images))
    if isinstance(source, Sources):
        if options.images is not None:
            raise OptionError("`images` is the folder of one source: leave it out, or convert each alone.")
        if options.label_from is not None:
            raise OptionError("`label_from` is for one source: leave it out, or convert each alone.")
        several = [open_source(tidied(path), options.format, options) for path in source.paths]
        return as_wanted(several, options)
    if isinstance(source, str | os.PathLike):
        opened = open_source(tidied(source), options.format, options)
    else:
        first = source[0] if isinstance(source, list) and source else None
        if isinstance(first, str | os.PathLike) and Path(first).is_dir():
            raise refusal("source", "a folder, or tsds.Sources(folder, ...) of several", "a list of folders")
        opened = FrameSource(source, options) if has_frames(source) else SequenceSource(source, options)
    if options.label_from is not None and "label_from" not in opened.takes:
        expected = "expected a folder of images without annotations, a list or Parquet"
        raise OptionError(f"`label_from`: {expected}, found the format {opened.name}. Leave it out.")
    if options.multi_label and "multi_label" not in opened.takes:
        message = f"expected class folders or a list, found {opened.name}. Leave it out."
        raise OptionError(f"`multi_label`: {message}")
    if options.images is not None and opened.images != options.images:
        expected = "expected annotations, whose images may be elsewhere"
        raise OptionError(f"`images`: {expected}, found the format {opened.name}. Leave it out.")
    return as_wanted([opened], options)


def as_wanted(sources: Sequence[Source], options: ConvertOptions) -> Source:
    """The source, or several joined, with the class names and objects that the options request."""
    if options.boxes == "fraction":
        sources = [FractionSource(source) for source in sources]
    source = sources[0]
    if len(sources) > 1 or options.class_map or options.key_prefix:
        source = JoinedSource(sources, options, options.class_map or {})
    if isinstance(options.cut, ImageTiles):
        return TileSource(source, options, options.cut)
    return source if options.cut is None else CropSource(source, options, options.cut)


@dataclass(frozen=True)
class Prepared:
    """A scanned source, and the plan of its store."""

    source: Source
    contents: Contents
    splits: Mapping[str, ChosenRows]  #: of the store
    format: RowFormat
    row_nbytes: int  #: of a sample in its largest field, about
    is_surveyed: bool = False  #: whether images differ, and a survey said how they are stored
    notes: tuple[str, ...] = ()  #: what the user should know of how images are stored
    bad: tuple[Problem, ...] = ()  #: of samples that were tried first, and are to be skipped
    lost: frozenset[Place] = frozenset()  #: these samples

    @property
    def samples(self) -> int:
        """Number of samples of all splits."""
        return sum(map(len, self.splits.values()))

    def surveyed(self, *, told_kept: bool = True) -> Prepared:
        """This object, or if images differ, a copy that stores them as a survey of all headers decides.

        `notes` describe the decision, with `told_kept` also how images of several sizes are kept.
        """
        found = survey(self)
        if found.differing is not None:
            raise SourceError(found.differing)
        return self.as_surveyed(found, told_kept=told_kept)

    def as_surveyed(self, found: Survey, *, told_kept: bool = True) -> Prepared:
        """As `surveyed`, of this survey."""
        if not found.notes:
            return self
        notes = [note for note in found.notes if told_kept or note != found.kept]
        problems = (*self.contents.problems, *found.odd.values())
        contents = replace(self.contents, problems=problems) if found.odd else self.contents
        splits = {name: _without(split, name, found.odd) for name, split in self.splits.items()}
        prepared = learn(self.source, contents, splits, found.image, self.format.on_error, found)
        return replace(prepared, notes=(*self.notes, *notes))

    def encoded(self, step: int, bad: list[Problem], lost: set[Place]) -> Iterator[EncodedSample]:
        """Yield every `step`-th sample as it will be stored; `bad` receives the problems of bad ones, `lost` these."""
        some = (split[::step] for split in self.splits.values())
        return _encoded(self.source, self.contents, some, self.format.image, "skip", bad, lost)


def prepare(source: Source, options: ConvertOptions, *, out: Path | None, is_part: bool = False) -> Prepared:
    """Scan a source, and determine the row format from its first samples. `is_part` is as in `plan_splits`.

    Raises `ConversionError` before decoding if the store cannot fit on the disk of `out`. None skips this check.
    """
    contents = source.contents()
    if options.oriented_boxes == "polygons":
        contents = _with_rectangles(contents, str(source.path))
    if contents.problems and options.on_error == "fail":
        raise SourceError(contents.problems, SKIP)
    if options.strict and (unused := [each for each in contents.left_out if each.reason in UNUSED]):
        raise SourceError(unused, "Remove or correct it, or convert without `strict`.")
    check_fields(contents.fields, options.image, str(source.path))
    group = source_group(source, options.split_by) if options.split_into else None
    if group is not None and options.split_by is not None:
        keys = (source.whole(name, each) for name, listed in contents.splits.items() for each in listed)
        check_finds(options.split_by, "split_by", keys, [f"{COLUMN}{options.split_by}"])
    if options.split_into and group is None and any(of_kind(contents.fields, LabelsField)):
        contents = replace(contents, notes=(*contents.notes, _NOT_STRATIFIED))
    splits = plan_splits(contents, options.split_into, options.seed, source.key, group, is_part=is_part)
    if options.size is not None:
        nbytes = math.prod(options.size) * _CHANNELS.get(options.color, 1)  # at least
        if out is not None and options.encoding.name == "raw" and options.layout == "memmap":
            check_fits_disk(out, sum(map(len, splits.values())) * nbytes)
        if nbytes > (limit := memory_limit()):
            needed = f"at least {nbytes:,} bytes of memory are needed for one image, {limit:,} may be used"
            raise ConversionError(f"{needed}. Choose a smaller `size`.")
    prepared = learn(source, contents, splits, options.image, options.on_error)
    field = prepared.format.fields["image"]
    row_nbytes = field.arrays[""].row_nbytes if field.one_shape else 0
    if options.layout == "zarr" and 4 * row_nbytes > memory_limit():
        found = f"found images of {row_nbytes:,} bytes"
        raise OptionError(
            f'`layout="zarr"`: expected images that can be compressed in memory, {found}. Use `encoding="jpeg"`, '
            '`tiles`, or `layout="memmap"`.'
        )
    arrays = [spec for each in prepared.format.fields.values() for spec in each.arrays.values()]
    mapped = sum((spec.layout or options.layout) == "memmap" for spec in arrays)
    rows = max(1, options.shard_nbytes // max(1, prepared.row_nbytes))  # in a shard
    notes = [note for name, split in splits.items() for note in note_of_maps(name, mapped * -(-len(split) // rows))]
    return replace(prepared, notes=(*prepared.notes, *notes)) if notes else prepared


_NOT_STRATIFIED = (
    "`split_into` does not stratify samples with several labels. tsds split does, by the rarest label of each sample."
)


def _with_rectangles(contents: Contents, where: str) -> Contents:
    """Add oriented boxes, which `encode_sample` makes of polygons."""
    field = named(contents.fields, "objects", ObjectsField)
    if field is None or "polygons" not in field.values:
        found = "none" if field is None else ", ".join(field.values)
        message = f"{where}: `oriented_boxes`: expected objects with polygons, found {found}. Leave it out."
        raise OptionError(message)
    every = {**field.values, **ObjectsField.of("oriented_boxes").values}
    values = {name: every[name] for name in (*OBJECT_VALUES, *every) if name in every}
    note = "objects with polygons have the smallest rectangle around them as their oriented box"
    others = ", unless they have one in the source" if "oriented_boxes" in field.values else ""
    fields = {**contents.fields, "objects": replace(field, values=values)}
    return replace(contents, fields=fields, notes=(*contents.notes, f"{note}{others}."))


def learn(
    source: Source,
    contents: Contents,
    splits: Mapping[str, ChosenRows],
    image: ImageOptions,
    on_error: OnError,
    surveyed: Survey | None = None,
) -> Prepared:
    """Determine the format of the rows from the first good sample, and the size of encoded images from some."""
    probed = image.encoding.probed
    some = (split if probed == 1 else split[:: max(1, len(split) // probed)] for split in splits.values())
    first: EncodedSample | None = None
    nbytes: list[int] = []
    bad: list[Problem] = []
    lost: set[Place] = set()
    notes: list[str] = []
    for encoded in islice(_encoded(source, contents, some, image, on_error, bad, lost), probed):
        first = first or encoded
        with or_skipped(on_error, bad):
            data, times = (b"", 1) if probed == 1 else about(encoded, image)
            nbytes.append(round(len(data) * times))
    if first is None:
        nothing = Problem(str(source.path), "empty-source", "no sample can be read here.")
        advice = NOTHING_LEFT if bad else "Name the files to be converted, or another `format`."
        raise SourceError([*contents.problems, *bad] or nothing, advice)
    is_ragged = surveyed is not None and surveyed.is_ragged
    row_nbytes = sum(nbytes) // max(1, len(nbytes))
    if (note := image.encoding.note_of_jpeg) and _is_encoded_again(source, splits, first):
        notes.append(note)
    format = RowFormat.of(contents.fields, first, image, on_error, is_ragged=is_ragged)
    if surveyed is not None and is_ragged:
        row_nbytes = surveyed.pixels // surveyed.images * first.shape[2] * first.dtype.itemsize
    row_nbytes = max(format.fixed_nbytes, row_nbytes)
    found = tuple(notes), tuple(bad), frozenset(lost)
    return Prepared(source, contents, splits, format, row_nbytes, surveyed is not None, *found)


def _without(split: ChosenRows, name: str, odd: Mapping[tuple[str, int], Problem]) -> ChosenRows:
    """A split of the store without the samples that a survey leaves out."""
    rows = [row for each, row in odd if each == name]
    return replace(split, rows=np.delete(np.asarray(split.rows), rows)) if rows else split


def _is_encoded_again(source: Source, splits: Mapping[str, ChosenRows], first: EncodedSample) -> bool:
    """Whether the first image is a JPEG file that is stored in its own size."""
    if first.size != first.shape[:2]:
        return False
    split = next(each for each in splits.values() if len(each))
    image = source.read(split.source_split, next(iter(split))).image
    return isinstance(image, bytes | str | Path) and is_jpeg(image, first.key)


def _encoded(
    source: Source,
    contents: Contents,
    selections: Iterable[ChosenRows],
    image: ImageOptions,
    on_error: OnError,
    bad: list[Problem],
    lost: set[Place],
) -> Iterator[EncodedSample]:
    """Samples as they will be stored; `bad` receives the problems of those that are skipped, and `lost` these."""
    masks = of_kind(contents.fields, MaskField)
    with quiet_pillow():
        for selection in selections:
            for reference in selection:
                before = len(bad)
                with or_skipped(on_error, bad):
                    sample = source.read(selection.source_split, reference)
                    encoded = encode_sample(sample, image, masks=masks, by_parts=True)
                    check_objects(encoded, on_error)
                    yield encoded
                if len(bad) > before:
                    lost.add((selection.source_split, reference))


def check_fits_disk(out: Path, nbytes: int) -> None:
    """Raise `ConversionError` if samples need more bytes than are free on the disk of `out`."""
    check_room(out, nbytes, ConversionError, "Make room, or for a new store, choose another disk or a smaller `size`.")


# --- all headers ------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Dtype and channels of an image with ``color="auto"``."""

    channels: int
    dtype: str

    def __str__(self) -> str:
        return _NAMES.get(self, f"{self.channels} x {self.dtype}")


GRAY, COLOR = Kind(1, "uint8"), Kind(3, "uint8")
_NAMES = {GRAY: "gray", COLOR: "color", Kind(1, "uint16"): "16-bit gray"}


@dataclass(slots=True)
class Survey:
    """Facts from the headers and annotations of all images."""

    sizes: Counter[str] = field(default_factory=Counter)  #: images of each "480x640", height x width, as shown
    kinds: Counter[Kind] = field(default_factory=Counter)
    first: dict[Kind | str, str] = field(default_factory=dict)  #: the key of the first image of each kind and size
    odd: dict[tuple[str, int], Problem] = field(default_factory=dict)  #: left out: by split of the store, and row
    problems: list[Problem] = field(default_factory=list)  #: with what is no image, and with boxes
    lost: set[Place] = field(default_factory=set)  #: samples that would be skipped because of these
    left_out: dict[Problem, None] = field(default_factory=dict)  #: what the samples have that is not stored
    #: Good samples of each split of the store, and their statistics but for pixels and masks.
    splits: dict[str, tuple[int, Statistics]] = field(default_factory=dict)
    stored_sizes: set[tuple[int, int]] = field(default_factory=set)  #: (height, width) as stored, of two at most
    files: int = 0  #: images that are files
    formats: set[str] = field(default_factory=set)  #: of these files, as Pillow names them
    recolored: bool = False  #: whether some of these have other colors than requested
    not_kept: list[Problem] = field(default_factory=list)  #: of these, files that no store holds
    pixels: int = 0  #: of all images, height times width
    differing: Problem | None = None  #: what keeps the images from being stored, with the way out of it all
    image: ImageOptions = field(default_factory=ImageOptions)  #: how they are stored
    is_ragged: bool = False  #: whether they are stored as pixels of differing sizes
    kept: str = ""  #: the note on how images of several sizes are kept, which is one of `notes`
    notes: tuple[str, ...] = ()  #: what the user is told of what follows from how they differ; if there is anything

    @property
    def images(self) -> int:
        """Number of images with readable headers."""
        return sum(self.sizes.values())

    @property
    def dtypes(self) -> Counter[str]:
        """Number of images of each dtype."""
        counts: Counter[str] = Counter()
        for kind, count in self.kinds.items():
            counts[kind.dtype] += count
        return counts


def survey(prepared: Prepared) -> Survey:
    """Count the sizes and kinds of all images, from their headers, and check their boxes and keypoints.

    If bad samples are skipped, images whose dtype is not the most frequent one are left out.
    """
    options = prepared.format.image
    surveyed = _count(prepared)
    dtypes = surveyed.dtypes
    if len(dtypes) > 1 and prepared.format.on_error != "fail" and options.encoding.name != "jpeg":
        surveyed = _count(prepared, dtypes.most_common(1)[0][0])
    decide(surveyed, options, str(prepared.source.path), bool(of_kind(prepared.format.fields, MaskField)))
    return surveyed


def _count(prepared: Prepared, only: str | None = None) -> Survey:
    """Survey all headers; images of a dtype other than `only` become `Survey.odd`, and do not count."""
    surveyed, options = Survey(), prepared.format.image
    on_error: OnError = "skip" if prepared.format.on_error == "fail" else prepared.format.on_error
    with quiet_pillow():
        for name, split in prepared.splits.items():
            block, images = BlockRows(replace(prepared.format, on_error=on_error), surveyed.problems), surveyed.images
            for row, reference in enumerate(split):
                before = len(surveyed.problems)
                with or_skipped(on_error, surveyed.problems):
                    sample = prepared.source.read(split.source_split, reference)
                    if only is not None and (dtype := _dtype(sample, options)) != only:
                        message = f"expected {only} pixels, as most images have, found {dtype}."
                        surveyed.odd[name, row] = Problem(sample.key, "unsupported-depth", message)
                        continue
                    _note(surveyed, *block.add_header(sample))
                    before = len(surveyed.problems)
                    if len(block) == _COUNTED:
                        block.statistics()
                if len(surveyed.problems) > before:
                    surveyed.lost.add((split.source_split, reference))
            surveyed.splits[name] = surveyed.images - images, block.statistics()
            surveyed.left_out.update(block.left_out)
    return surveyed


def _dtype(sample: Sample, options: ImageOptions) -> str:
    as_files = options.encoding.keeps_files
    with PathInErrors(sample.key, sample.image):
        return read_header(sample.image, max_pixels=options.max_pixels, key=sample.key, as_files=as_files).dtype.name


def _note(surveyed: Survey, image: EncodedSample, picture: Picture) -> None:
    (height, width), size = image.shape[:2], f"{image.size[0]}x{image.size[1]}"
    kind = Kind(image.shape[2], image.dtype.name)
    surveyed.sizes[size] += 1
    if len(surveyed.first) < _FIRSTS:
        surveyed.first.setdefault(size, image.key)
    surveyed.first.setdefault(kind, image.key)
    surveyed.stored_sizes |= {(height, width)} if len(surveyed.stored_sizes) < 2 else set()
    surveyed.kinds[kind] += 1
    surveyed.pixels += height * width
    surveyed.files += picture.is_file
    surveyed.recolored |= picture.is_recolored
    surveyed.formats.add(picture.format)
    if picture.is_file and not picture.is_storable:
        surveyed.not_kept.append(not_kept(image.key, picture))


def decide(surveyed: Survey, options: ImageOptions, where: str, masks: bool) -> None:
    """Decide how to store images after all headers were read."""
    surveyed.image, notes = options, []
    if options.encoding.name == "raw" and len(surveyed.stored_sizes) > 1 and not masks:
        if isinstance(options.encoding, Auto):
            kept: type[Encoding] = Raw
            recolored = surveyed.recolored
            loses = recolored and (options.color == "rgba" or surveyed.formats != {"JPEG"})
            if surveyed.files == surveyed.images and not loses:
                kept = Jpeg if recolored or options.fit is not None else SourceFiles
            color = "auto" if kept is SourceFiles else options.color
            surveyed.image = replace(options, encoding=options.encoding.chosen(kept), color=color)
        surveyed.is_ragged = surveyed.image.encoding.name == "raw"
        surveyed.kept = surveyed.image.encoding.note_of_sizes.format(f"{len(surveyed.sizes):,}")
        notes.append(surveyed.kept)
    if surveyed.odd:
        first = next(iter(surveyed.odd.values())).where
        many = "image has pixels" if len(surveyed.odd) == 1 else "images have pixels"
        what = "of a different type than most, such as" if len(surveyed.odd) > 1 else "of a different type than most:"
        notes.append(f"left out: {len(surveyed.odd):,} {many} {what} {first}.")
    mixed = _note_of_mixed_colors(surveyed, surveyed.image)
    if mixed:
        surveyed.image = replace(surveyed.image, color="rgb")
    surveyed.notes = (*notes, mixed) if mixed else tuple(notes)
    are_kept = surveyed.image.encoding.keeps_files
    if surveyed.image.encoding.name == "raw" or (are_kept and len(surveyed.dtypes) > 1):
        surveyed.differing = _differing(surveyed, options, where, masks, bool(mixed))


def _note_of_mixed_colors(surveyed: Survey, options: ImageOptions) -> str:
    kinds = [kind for kind in surveyed.kinds if options.encoding.name != "jpeg" or kind in (GRAY, COLOR)]
    if options.encoding.keeps_files or options.color != "auto" or len({kind.dtype for kind in kinds}) > 1:
        return ""
    if {kind.channels for kind in kinds} != {1, 3}:
        return ""
    note = ALL_AS_RGB.format(*(surveyed.kinds[kind] for kind in sorted(kinds)))
    return note if {*kinds} == {GRAY, COLOR} else note.partition(" `")[0]  # other numbers do not become gray


def _differing(surveyed: Survey, options: ImageOptions, where: str, masks: bool, mixed: bool) -> Problem | None:
    kinds = set(surveyed.kinds)
    sizes_differ = len(surveyed.stored_sizes) > 1
    colors_differ = len(kinds) > 1 and not mixed
    if not (sizes_differ and masks) and not colors_differ:
        return None
    are_kept = surveyed.image.encoding.keeps_files
    what = []
    if sizes_differ and not are_kept:
        what.append(f"sizes (height x width): {_named(surveyed.sizes, surveyed.first)}")
    if len(kinds) > 1:
        what.append(f"colors: {_named(surveyed.kinds, surveyed.first)}{' (stored as RGB)' if mixed else ''}")
    color = ' and `color="rgb"`' if colors_differ else ""
    if len(surveyed.dtypes) > 1:
        advice = 'Save all images with one bit depth, or leave out those that differ from most with `on_error="skip"`.'
    elif sizes_differ and masks:
        fits = '`fit="pad"`, `fit="crop"` or `fit="stretch"`'
        advice = f"Masks are stored as pixels of one size: pass `size`{color} with {fits}."
    elif max(kinds).channels > max(_CHANNELS.values()):
        advice = "Convert the images of each number of channels into a store of their own."
    else:
        advice = 'Pass `color="rgb"`.'
    return Problem(where, "shapes-differ", f"images are of differing {'; and of differing '.join(what)}. {advice}")


def _named(counts: Counter[Any], first: Mapping[Any, str]) -> str:
    """The counted kinds, with the first image of each that is not the most frequent."""
    shown = []
    for i, (name, count) in enumerate(counts.most_common(NAMED)):
        such = f", {'such as ' if count > 1 else ''}{first[name]}" if i and name in first else ""
        shown.append(f"{name} ({count:,}{such})")
    return ", ".join(shown) + (f" and {len(counts) - NAMED} more" if len(counts) > NAMED else "")
