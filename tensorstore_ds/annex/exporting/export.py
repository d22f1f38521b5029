"""Export a store to other formats."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tensorstore_ds.annex.editing.edit import chosen_splits
from tensorstore_ds.annex.exporting.base import Exporter, sync_all
from tensorstore_ds.annex.exporting.formats import EXPORT_FORMATS
from tensorstore_ds.conversion.partial import Partial, check_new
from tensorstore_ds.durable import partial_of, writing
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import KeyField, SizeField
from tensorstore_ds.format.kinds.base import ArrayField
from tensorstore_ds.options import meant
from tensorstore_ds.progress import adding, notebook_bar
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.verification import require_whole
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sources.splits import SPLIT_NAMES


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """Result of `export`."""

    path: Path  #: Path of the new folder.
    samples: Mapping[str, int]  #: Number of samples written, by split.
    files: int  #: Number of files.
    #: Number of samples by the name of a field or value that the format cannot store.
    left_out: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0  #: Wall time.
    notes: tuple[str, ...] = ()  #: Remarks that are not errors.


def export(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str,
    *,
    splits: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportSummary:
    """Write the samples of a store as files in a common format. It is the inverse of `convert`.

    >>> tsds.export("photos.tsds", "exported", "folders").files
    12
    >>> sorted(path.name for path in Path("exported/train").iterdir())
    ['cat', 'dog']

    Images are written as the stored files, or as PNG files of the stored pixels. The name of a file is the key without
    its folders. If this name is unsafe, the number of the row replaces it. If it is taken, the number of the row is
    appended. Boxes, keypoints and polygons are in pixels of the written image. The store and the checksums of its data
    are verified first.

    Args:
        store: path or URL of the store.
        out: path of the new folder, which must not exist. It is written to ``OUT.partial`` and renamed when it is
            complete.
        to: one of `EXPORT_FORMATS`: ``folders``, ``voc``, ``coco``, ``yolo``, ``dota``, ``cvat``, ``labelme``, ``csv``,
            ``npy``, ``webdataset``, ``parquet``, ``huggingface``.
        splits: names of the splits to write. None writes all.
        progress: function that is called with (samples done, samples in total).

    Raises:
        OptionError: the format or a split does not exist, or the store lacks a field that the format requires.
        FormatError: the store is damaged.
        StoreExistsError: `out` exists.
        OutputError: a file cannot be written, for example because the disk is full.
    """
    if to not in EXPORT_FORMATS:
        known = ", ".join(EXPORT_FORMATS)
        raise OptionError(f"`to`: expected one of {known}, found {to!r}.{meant(to, EXPORT_FORMATS)}")
    began, opened, target = time.monotonic(), open_store(store), tidied(out)
    names = chosen_splits(opened, splits)
    work = Partial(partial_of(target), "export")
    check_new(target, work)
    draw = notebook_bar()
    notify = progress or (lambda done, total: draw(f"Exporting {done:,}/{total:,} samples", done, total))
    advance = adding(sum(len(opened[name]) for name in names), notify)
    require_whole(opened, "Copy the store again; nothing was exported.")
    made: type[Exporter] = EXPORT_FORMATS[to].load()
    with writing(target), work:
        folder = work.new_store()
        exporter = made(opened, folder, names, advance)
        for name in names:
            exporter.export_split(name)
        exporter.finish()
        if exporter.turned:
            what = "are turned by their EXIF orientation, to which boxes and sizes belong"
            exporter.notes.append(f"{exporter.turned:,} images {what}. Programs that ignore it show them otherwise.")
        if made.splits_are_folders and (odd := [name for name in names if name not in SPLIT_NAMES]):
            what = "are no usual names of splits, so readers take their folders for classes or for one split"
            exporter.notes.append(f"{', '.join(odd)} {what}. Export to parquet to keep them.")
        sync_all(folder)
        note = work.put_store(target)
    left_out = Counter(exporter.left_out)
    for name, each in opened.manifest.fields.items():
        firsts = exporter.label, exporter.labels, exporter.objects
        is_second = each.joins_classes and all(each is not own for own in firsts)
        is_second = is_second and ArrayField not in exporter.takes
        if is_second or not (name == "image" or isinstance(each, (*exporter.takes, KeyField, SizeField))):
            left_out[name] += sum(len(opened[split]) for split in names)
    left_out |= dict.fromkeys(opened.manifest.unreadable, sum(len(opened[split]) for split in names))
    samples = {name: len(opened[name]) - exporter.missing[name] for name in names}
    notes = (*exporter.notes, note) if note else tuple(exporter.notes)
    return ExportSummary(target, samples, exporter.files, dict(left_out), time.monotonic() - began, notes)
