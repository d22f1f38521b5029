"""Parts of many stored JPEG files, decoded into one batch by the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import native
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.crew import Loop, share
from tensorstore_ds.reading.columns import Column, RaggedColumn

#: Most views that the kernel decodes together.
MOST_VIEWS = 32


class Crops:
    """Decode parts of the JPEG files of a column. `shapes` (n, 3) are height, width and channels of all rows."""

    def __init__(self, column: RaggedColumn, shapes: NDArray[np.int32]) -> None:
        self._column, self._files, self._shapes = column, column.values["bytes"], shapes
        # The later of the two is used if a file has both.
        self._marks = [
            (find, marks, next(iter(marks.values.values())))
            for find, name in ((native.FIND_RESTARTS, "restarts"), (native.FIND_ENTRIES, "entries"))
            if isinstance(marks := column.per_row.get(name), RaggedColumn)
        ]

    @classmethod
    def of(cls, column: Column | RaggedColumn, shapes: NDArray[np.int32]) -> Self | None:
        """Return a decoder, or None without kernels, or if images are not files."""
        is_files = isinstance(column, RaggedColumn) and "bytes" in column.values
        return cls(column, shapes) if native.core is not None and is_files else None  # type: ignore[arg-type]

    def into(
        self, views: Sequence[tuple[NDArray[np.uint8], Placements, NDArray[np.int64]]], rows: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Decode rows (B,) into each of the views, at most 32: `out`, (B, H, W, C), placements and scales.

        `out` is C-contiguous with C 1 or 3. Scales (B,) are 1, 2, 4 or 8: one pixel is decoded for this many, in both
        directions. Views of one scale are decoded once. Returns (B, views) bool, which images were decoded, already
        mirrored. The others are undefined: the kernels do not support their form, or they are damaged.
        """
        if native.core is None:
            return np.zeros((len(rows), len(views)), bool)
        begin, end = self._column.bounds(rows)
        shard, all_jobs = self._files._owners(begin), np.zeros((len(rows), len(views)), native.JOB)
        first_of, jobs = self._files.starts[shard], all_jobs[:, 0]
        used, jobs["shard"] = np.unique(shard, return_inverse=True)
        jobs["begin"], jobs["end"] = begin - first_of, end - first_of
        tables: dict[int, Sequence[Any]] = {}
        for find, marks, values in self._marks:
            first, last = marks.bounds(rows)
            some = last > first
            jobs["find"][some] = find
            jobs["marks"][some] = (first - values.starts[shard])[some]
            jobs["mark_count"][some] = (last - first)[some]
            tables[find] = _arrays(values, used)
        files, none = _arrays(self._files, used), [b""] * len(used)
        jobs["height"], jobs["width"], jobs["components"] = self._shapes[rows].T
        all_jobs[:, 1:] = jobs[:, None]
        for view, (out, placements, scales) in enumerate(views):
            jobs = all_jobs[:, view]
            jobs["scale"], jobs["flip"] = scales, placements.flip
            low, high = placements.window
            at = low.copy()
            at[:, 1] = np.where(placements.flip, out.shape[2] - high[:, 1], low[:, 1])
            for k, axis in enumerate("yx"):
                job = jobs[axis]
                for name in ("origin", "extent", "resized"):
                    job[name] = getattr(placements, name)[:, k]
                job["first"], job["count"], job["at"] = (low - placements.offset)[:, k], (high - low)[:, k], at[:, k]
        status: NDArray[np.int32] = np.empty(all_jobs.shape, np.int32)
        shards = tuple(
            zip(files, *(tables.get(find, none) for find in (native.FIND_RESTARTS, native.FIND_ENTRIES)), strict=True)
        )

        out, others = views[0][0], tuple((each, *each.shape[1:3]) for each, _, _ in views[1:])

        def decode(loop: Loop) -> None:
            shared = (loop.taken, loop.oldest, loop.number)
            native.core.crops(native.own_context(), shards, all_jobs, out, *out.shape[1:], status, *shared, others)

        share(len(rows), decode)
        done: NDArray[np.bool_] = status == 0
        return done


def _arrays(column: Column, shards: NDArray[np.int64]) -> Sequence[Any]:
    """Return the maps of some shards after fetching remote rows, or nothing for compressed shards."""
    return [b"" if (array := column._mapped(shard)) is None else array for shard in shards.tolist()]
