"""Write a store again: in the other layout, exactly; or with its images in another encoding."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from tensorstore_ds.annex.editing.rows import Piece, ShardRows, opened_for_editing, reading_progress, write_splits
from tensorstore_ds.annex.editing.skipped import skipped_in
from tensorstore_ds.annex.editing.stored_samples import StoredSamples, copy_arrays
from tensorstore_ds.conversion.build import Build, one_line_for_failures
from tensorstore_ds.conversion.history import with_step
from tensorstore_ds.conversion.keywords import RepackKeywords
from tensorstore_ds.conversion.options import RepackOptions
from tensorstore_ds.conversion.plan import ChosenRows, ShardName
from tensorstore_ds.conversion.preparation import Kind, Prepared, Survey, decide, learn
from tensorstore_ds.conversion.result import OnProgress, Summary, in_notebook
from tensorstore_ds.conversion.shard_conversion import write_shards
from tensorstore_ds.conversion.shard_writer import FinishedShard, ShardWriter
from tensorstore_ds.errors import OptionError, Problem, SourceError, one_line
from tensorstore_ds.format.arrays import CHUNK_SIZE
from tensorstore_ds.format.kinds import OBJECT_VALUES, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, of_image, of_kind
from tensorstore_ds.format.kinds.image import PixelField
from tensorstore_ds.format.manifest import SplitEntry, shard_path
from tensorstore_ds.format.schema import Layout
from tensorstore_ds.imaging import MAX_PIXELS
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.options import chosen, deciding, takes_options
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import damage
from tensorstore_ds.reading.verification import verify
from tensorstore_ds.regular_files import tidied

#: Approximate maximum of memory for decoding, per pixel.
_PIXEL_NBYTES = 16
#: Rows whose shapes are counted together.
_ROWS = 100_000
_ADVICE = {
    "shapes-differ": "",
    "unsupported-depth": 'Use `encoding="raw"`, which keeps all depths and channels.',
    "": "A store is repacked with all of its samples: to leave some out, convert their source anew.",
}


@takes_options(RepackOptions)
def repack(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: RepackOptions | None = None,
    *,
    progress: OnProgress | None = None,
    **keywords: Unpack[RepackKeywords],
) -> Summary:
    """Write the store at `path` again at `out`, in a different layout or with its images in a different encoding.

    >>> _ = tsds.repack("photos.tsds", "shared.tsds", layout="zarr")
    >>> tsds.open("shared.tsds").layout
    'zarr'
    >>> _ = tsds.repack("photos.tsds", "small.tsds", encoding=tsds.Jpeg(quality=80), workers=0)
    >>> tsds.open("small.tsds")["train"].fields["image"].encoding
    'jpeg'

    A change of `layout` alone keeps every value, statistic and name. A change of `encoding` changes the images and the
    statistics of their pixels. If images are resized, boxes, keypoints and masks are transformed with them. Everything
    else stays equal, including splits, shards and order. JPEG files that are encoded as JPEG again lose some quality,
    and a note reports it. The new store records how it was made.

    The store is verified first, so that damaged data do not get valid checksums. If a call is interrupted, the
    same call continues after the finished shards.

    Args:
        path: path or URL of the store, which is not changed. A store given by URL is fetched completely first.
        out: path of the new store, which must not exist.
        options: all options as one object.
        progress: function that is called with the progress, as in `convert`.
        keywords: options by name. Each overrides `options`.

    Raises:
        FormatError: the store is damaged.
        StoreExistsError: `out` exists.
        OptionError: nothing would change, or options contradict each other, the store, or the interrupted conversion.
        SourceError: an image cannot be decoded, or cannot be stored in the encoding.
        RemoteError, OutputError: a store given by URL cannot be fetched, see `tensorstore_ds.open`.
        ConversionError: the disk or the memory is full, or a worker process died.
    """
    options, notify = chosen(options, RepackOptions, keywords), progress or in_notebook()
    if options.layout is None and options.encoding is None:
        raise OptionError("expected what is to change, found nothing: give `layout`, `encoding` or both.")
    store, target = opened_for_editing(path, notify), tidied(out)
    store._check_rewritable()
    is_encoded = _changes_images(store, options)
    if not is_encoded and options.layout in (None, store.layout):
        have = f"layout {store.layout}" if options.encoding is None else f"encoding {options.encoding.name}"
        raise OptionError(f"{store.path}: this store has the {have} already. Copy it as it is.")
    Build(target).check_free()
    if problems := verify(store.path, progress=reading_progress(notify)):
        raise damage(problems, "Copy the store again; a damaged one is not repacked.")
    with one_line_for_failures(target):
        if is_encoded:
            return _reencoded(store, target, options, notify, skipped_in(store))
        return _with_layout(store, target, options.layout or store.layout, notify)


def _changes_images(store: Store, options: RepackOptions) -> bool:
    """Whether images change; pixels that stay pixels do not."""
    if options.encoding is None:
        return False
    image = store.manifest.fields.get("image")
    if image is None or not image.encoding:
        found = "none" if image is None else image.describe()
        raise OptionError(f"{store.path}: expected images that can be encoded, found {found}. Give `layout` alone.")
    is_same = options.fit is None and options.color == "auto"
    return not (options.encoding.name == image.encoding == "raw" and is_same)


def _with_layout(store: Store, out: Path, layout: Layout, notify: OnProgress) -> Summary:
    skipped = skipped_in(store)  # first: a damaged list of them leaves nothing behind
    with Build(out, notify, "compress") as build:
        build.total = sum(len(store[name]) for name in store)
        shards = {
            name: [ShardRows([Piece(store, name, np.arange(*ends))]) for ends in pairwise(store[name].starts.tolist())]
            for name in store
        }
        fields = store.manifest.fields
        uncounted: dict[str, dict[str, Any]] = {name: {field: {} for field in fields} for name in store}
        splits = write_splits(build, shards, fields, layout, uncounted)
        splits = {name: replace(entry, statistics=store[name].statistics) for name, entry in splits.items()}
        provenance = with_step(store.manifest.provenance, "repack", sha256=store.sha256, options={"layout": layout})
        manifest = replace(store.manifest, layout=layout, chunk_size=CHUNK_SIZE, splits=splits, provenance=provenance)
        return build.commit(manifest, skipped)


def _reencoded(
    store: Store, out: Path, options: RepackOptions, notify: OnProgress, skipped: Sequence[Problem]
) -> Summary:
    """Rewrite a verified store shard by shard with its images in a different encoding."""
    layout = options.layout or store.layout
    with Build(out, notify, "compress") as build:
        build.total = sum(len(store[name]) for name in store)
        try:
            prepared = _prepared(store, options)
            for note in prepared.notes:
                build.note(note)
            plan = {"repacked": one_line(str(store.path)), "sha256": store.sha256, **deciding(options)}
            encoded = partial(_encoded, build, store, prepared, layout, options.workers)
            row_nbytes = prepared.row_nbytes if layout == "memmap" else 0
            shards = build.make(plan, store, _as_they_are(store), encoded, row_nbytes=row_nbytes)
        except SourceError as error:
            raise SourceError(error.problems, _ADVICE.get(error.reason, _ADVICE[""])) from error
        cropped = [problem for split in shards.values() for problem in split.skipped]
        counts = Counter(problem.reason for problem in cropped)
        before, changed = store.manifest, prepared.format.fields
        splits = {}
        for name, split in before.splits.items():
            kept = {field: known for field, known in split.statistics.items() if field not in changed}
            splits[name] = SplitEntry(tuple(shards[name].shards), {**kept, **shards[name].statistics.summary()})
        manifest = replace(
            before,
            layout=layout,
            chunk_size=CHUNK_SIZE,
            fields={**before.fields, **changed},
            splits=splits,
            provenance=_provenance(store, options, counts),
        )
        return build.commit(manifest, [*skipped, *cropped], skipped=dict(counts))


def _encoded(
    build: Build,
    store: Store,
    prepared: Prepared,
    layout: Layout,
    workers: int | None,
    shards: Mapping[ShardName, ChosenRows],
) -> Generator[tuple[ShardName, FinishedShard]]:
    """Encode the images of shards in blocks, copy all other fields, and finish the shards in order."""
    fields = {**store.manifest.fields, **prepared.format.fields}
    copied = [name for name in fields if name not in prepared.format.fields]
    groups = [group for name in copied for group in fields[name].groups(name)]
    writers = {name: ShardWriter(build.store / shard_path(*name), fields) for name in shards}
    written = write_shards(prepared, shards, writers, workers, on_rows=build.advance, note=build.note)
    with contextlib.closing(written):
        for name, writer, _ in written:
            copy_arrays(store, *name, copied, writer.partial)
            known = store.manifest.splits[name[0]].shards[name[1]].lengths
            lengths = {group: known[group] for group in groups}
            yield name, writer.finish(layout, len(shards[name]), store.sha256, lengths)


def _prepared(store: Store, options: RepackOptions) -> Prepared:
    """Specification of the rows, for the fields that change."""
    fields = store.manifest.fields
    is_resized = options.fit is not None
    moved = {name: each for name, each in of_image(fields, Field).items() if is_resized and each.moves}
    _check_objects(store, of_kind(moved, ObjectsField))
    source = StoredSamples(store, moved)
    contents = source.scan()
    surveyed = _surveyed(store, options, bool(of_image(fields, MaskField)))
    splits = {name: ChosenRows(name, rows, range(len(rows))) for name, rows in contents.splits.items()}
    prepared = learn(source, contents, splits, surveyed.image, "fail", surveyed)
    made = prepared.format.fields["image"]
    before = fields["image"]
    if isinstance(made, PixelField) and isinstance(before, PixelField) and options.color == "auto":
        made = replace(made, channels=before.channels, range=before.range)
    changed = {"image": made, **{name: prepared.format.fields[name] for name in moved}}
    notes = (*surveyed.notes, *prepared.notes)
    return replace(prepared, format=replace(prepared.format, fields=changed), notes=notes)


def _surveyed(store: Store, options: RepackOptions, masks: bool) -> Survey:
    """The shapes of all images, which a store knows, and how images of each shape are stored."""
    surveyed, largest = Survey(), MAX_PIXELS
    field = store.manifest.fields["image"]
    dtype = field.dtype or "uint8"
    for (height, width, channels), count in _shapes(store):
        surveyed.sizes[f"{height}x{width}"] += count
        surveyed.kinds[Kind(channels, dtype)] += count
        largest = max(largest, height * width)
    # Images too large for memory raise an error: the store may be untrusted.
    image = options.image(max(MAX_PIXELS, min(largest, memory_limit() // 2 // _PIXEL_NBYTES)))
    for size, count in surveyed.sizes.items():
        height, width = map(int, size.split("x"))
        placement = image.placement((height, width))
        stored = (height, width) if placement is None else placement.size
        surveyed.stored_sizes |= {stored} if len(surveyed.stored_sizes) < 2 else set()
        surveyed.pixels += count * math.prod(stored)
    decide(surveyed, image, str(store.path), masks)
    if surveyed.differing is not None:
        raise SourceError(surveyed.differing)
    return surveyed


def _provenance(store: Store, options: RepackOptions, cropped: Counter[str]) -> dict[str, object]:
    """The provenance with this step, and with the problems of `cropped` boxes."""
    before = store.manifest.provenance
    given = {name: value for name, value in deciding(options).items() if value is not None}
    skipped = before.get("skipped")
    counts = Counter(skipped if isinstance(skipped, Mapping) else {})
    counts.update(cropped)
    changed = {"options": {**store.manifest.conversion_options, **given}, "skipped": dict(counts)}
    return with_step({**before, **changed}, "repack", sha256=store.sha256, options=given)


def _check_objects(store: Store, moved: Mapping[str, ObjectsField]) -> None:
    """Raise an error for resizing if this version cannot transform the objects."""
    for name, field in moved.items():
        unknown = [value for value in (*field.values, *field.per_row) if value not in OBJECT_VALUES]
        if unknown or len(moved) > 1:
            found = f"{unknown[0]} in {name}" if unknown else f"the fields {', '.join(moved)}"
            expected = f"one field of objects with {', '.join(OBJECT_VALUES)}"
            raise OptionError(f"{store.path}: to resize images, expected {expected}, found {found}. Keep their size.")


def _shapes(store: Store) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Shapes of images, (H, W, C), and the number of images for each; shapes may repeat."""
    for split in (store[name] for name in store):
        for start in range(0, len(split), _ROWS):
            found, counts = np.unique(split.image_shapes[start : start + _ROWS], axis=0, return_counts=True)
            yield from zip(found.tolist(), counts.tolist(), strict=True)


def _as_they_are(store: Store) -> dict[ShardName, ChosenRows]:
    """The unchanged rows of each shard of a store."""
    return {
        (name, index): ChosenRows(name, range(len(store[name])), range(*ends))
        for name in store
        for index, ends in enumerate(pairwise(store[name].starts.tolist()))
    }
