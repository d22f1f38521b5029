"""Write a store again: in the other layout, exactly; or with its images in another encoding."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from tensorstore_ds.annex.editing.reencode import reencode
from tensorstore_ds.annex.editing.rows import Piece, ShardRows, opened_for_editing, reading_progress, write_splits
from tensorstore_ds.conversion.build import Build, one_line_for_failures
from tensorstore_ds.conversion.history import with_step
from tensorstore_ds.conversion.keywords import RepackKeywords
from tensorstore_ds.conversion.options import RepackOptions
from tensorstore_ds.conversion.result import OnProgress, Summary, in_notebook
from tensorstore_ds.conversion.skipped import skipped_in
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.arrays import CHUNK_SIZE
from tensorstore_ds.format.schema import Layout
from tensorstore_ds.options import chosen, takes_options
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import damage
from tensorstore_ds.reading.verification import verify
from tensorstore_ds.regular_files import tidied


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
            return reencode(store, target, options, notify, skipped_in(store))
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
