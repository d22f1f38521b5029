"""A store whose images are encoded anew; what does not follow from their pixels is copied."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tensorstore_ds.annex.editing.stored_samples import StoredSamples, copy_arrays
from tensorstore_ds.conversion.history import with_step
from tensorstore_ds.conversion.options import RepackOptions
from tensorstore_ds.conversion.plan import ChosenRows, ShardName
from tensorstore_ds.conversion.preparation import Kind, Prepared, Survey, check_fits_disk, decide, learn
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, summarize
from tensorstore_ds.conversion.shard_conversion import write_shards
from tensorstore_ds.conversion.shard_writer import FinishedSplit, ShardWriter
from tensorstore_ds.conversion.workspace import Workspace
from tensorstore_ds.errors import OptionError, Problem, SourceError, one_line
from tensorstore_ds.format.arrays import CHUNK_SIZE
from tensorstore_ds.format.kinds import OBJECT_VALUES, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.format.kinds.image import PixelField
from tensorstore_ds.format.manifest import Manifest, SplitEntry, shard_path
from tensorstore_ds.imaging import MAX_PIXELS
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.options import deciding
from tensorstore_ds.reading.store import Store

#: Approximate maximum of memory for decoding, per pixel.
_PIXEL_NBYTES = 16
#: Rows whose shapes are counted together.
_ROWS = 100_000
_ADVICE = {
    "shapes-differ": "",
    "unsupported-depth": 'Use `encoding="raw"`, which keeps all depths and channels.',
    "": "A store is repacked with all of its samples: to leave some out, convert their source anew.",
}


class Reencoding:
    """Rewrites a verified store shard by shard with its images in a different encoding."""

    def __init__(
        self, store: Store, out: Path, options: RepackOptions, notify: OnProgress, skipped: Sequence[Problem]
    ) -> None:
        self._store = store
        self._options = options
        self._notify = notify
        self._skipped = skipped
        self._total, self._done = sum(len(store[name]) for name in store), 0
        self._workspace = Workspace(out, on_note=self._tell)
        self._layout = options.layout or store.layout

    def run(self) -> Summary:
        """Do the work of `repack`."""
        with self._workspace as workspace:
            try:
                prepared = self._prepared()
                for note in prepared.notes:
                    workspace.note(note)
                shards, resumed = self._shards(prepared)
            except SourceError as error:
                raise SourceError(error.problems, _ADVICE.get(error.reason, _ADVICE[""])) from error
            cropped = [problem for split in shards.values() for problem in split.skipped]
            manifest = workspace.commit(self._manifest(prepared, shards, cropped), [*self._skipped, *cropped])
            counts = dict(Counter(problem.reason for problem in cropped))
        return summarize(workspace.out, manifest, workspace.began, counts, (), resumed, tuple(workspace.notes))

    def _prepared(self) -> Prepared:
        """Specification of the rows, for the fields that change."""
        store, options = self._store, self._options
        fields = store.manifest.fields
        is_resized = options.size is not None or options.max_side is not None
        moved = {name: field for name, field in fields.items() if is_resized and field.moves}
        _check_objects(store, of_kind(moved, ObjectsField))
        source = StoredSamples(store, moved)
        contents = source.scan()
        surveyed = self._surveyed(bool(of_kind(fields, MaskField)))
        splits = {name: ChosenRows(name, rows, range(len(rows))) for name, rows in contents.splits.items()}
        prepared = learn(source, contents, splits, surveyed.image, "fail", surveyed)
        made = prepared.format.fields["image"]
        before = fields["image"]
        if isinstance(made, PixelField) and isinstance(before, PixelField) and options.color == "auto":
            made = replace(made, channels=before.channels, range=before.range)
        changed = {"image": made, **{name: prepared.format.fields[name] for name in moved}}
        notes = (*surveyed.notes, *prepared.notes)
        return replace(prepared, format=replace(prepared.format, fields=changed), notes=notes)

    def _surveyed(self, masks: bool) -> Survey:
        """The shapes of all images, which a store knows, and how images of each shape are stored."""
        store, surveyed, largest = self._store, Survey(), MAX_PIXELS
        field = store.manifest.fields["image"]
        dtype = field.dtype or "uint8"
        for (height, width, channels), count in _shapes(store):
            surveyed.sizes[f"{height}x{width}"] += count
            surveyed.kinds[Kind(channels, dtype)] += count
            largest = max(largest, height * width)
        # Images too large for memory raise an error: the store may be untrusted.
        image = self._options.image(max(MAX_PIXELS, min(largest, memory_limit() // 2 // _PIXEL_NBYTES)))
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

    def _shards(self, prepared: Prepared) -> tuple[dict[str, FinishedSplit], int]:
        """All shards, and the number that an earlier call had finished."""
        store, workspace = self._store, self._workspace
        plan = {"sha256": store.sha256, **deciding(self._options)}
        workspace.begin({"repacked": one_line(str(store.path)), **plan})
        shards = _as_they_are(store)
        missing = {name: shard for name, shard in shards.items() if workspace.finished(*name) is None}
        finished = shards.keys() - missing.keys()
        workspace.clean(finished)
        self._tell(done=sum(len(shards[name]) for name in finished))
        if self._layout == "memmap":
            check_fits_disk(workspace.out, sum(map(len, missing.values())) * prepared.row_nbytes)
        self._encode(prepared, missing)
        return workspace.added_up(store, shards), len(finished)

    def _encode(self, prepared: Prepared, shards: Mapping[ShardName, ChosenRows]) -> None:
        """Encode the images of all shards in blocks, and finish the shards in order."""
        store, workspace = self._store, self._workspace
        fields = {**store.manifest.fields, **prepared.format.fields}
        copied = [name for name in fields if name not in prepared.format.fields]
        writers = {name: ShardWriter(workspace.store / shard_path(*name), fields) for name in shards}
        written = write_shards(
            prepared, shards, writers, self._options.workers, on_rows=self._tell_rows, note=workspace.note
        )
        with contextlib.closing(written):
            for name, writer in written:
                copy_arrays(store, *name, copied, writer.partial)
                groups = [group for field in copied for group in fields[field].groups(field)]
                known = store.manifest.splits[name[0]].shards[name[1]].lengths
                lengths = {group: known[group] for group in groups}
                workspace.finish(*name, writer.finish(self._layout, len(shards[name]), store.sha256, lengths))

    def _manifest(
        self, prepared: Prepared, shards: Mapping[str, FinishedSplit], cropped: Sequence[Problem]
    ) -> Manifest:
        before, changed = self._store.manifest, prepared.format.fields
        splits = {}
        for name, split in before.splits.items():
            kept = {field: known for field, known in split.statistics.items() if field not in changed}
            own = shards[name]
            splits[name] = SplitEntry(tuple(own.shards), {**kept, **own.statistics.summary()})
        return replace(
            before,
            layout=self._layout,
            chunk_size=CHUNK_SIZE,
            fields={**before.fields, **changed},
            splits=splits,
            provenance=self._provenance(cropped),
        )

    def _provenance(self, cropped: Sequence[Problem]) -> dict[str, object]:
        before, options = self._store.manifest.provenance, deciding(self._options)
        given = {name: value for name, value in options.items() if value is not None}
        skipped = before.get("skipped")
        counts = Counter(skipped if isinstance(skipped, Mapping) else {})
        counts.update(problem.reason for problem in cropped)
        changed = {
            "options": {**self._store.manifest.conversion_options, **given},
            "skipped": dict(counts),
        }
        return with_step({**before, **changed}, "repack", sha256=self._store.sha256, options=given)

    def _tell_rows(self, rows: int) -> None:
        self._tell(done=rows)

    def _tell(self, note: str = "", done: int = 0) -> None:
        self._done += done
        self._notify(Progress("compress", self._done, self._total, note=note))


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
    shards = {}
    for name, split in store.manifest.splits.items():
        start = 0
        for index, shard in enumerate(split.shards):
            shards[name, index] = ChosenRows(name, range(split.rows), range(start, start + shard.rows))
            start += shard.rows
    return shards
