"""What is done once for each way: the first epoch, and the proof of what it delivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorstore_ds.comparison.delivery import marks_of_split
from tensorstore_ds.comparison.lane import Lane
from tensorstore_ds.comparison.limits import Limit
from tensorstore_ds.comparison.options import middle
from tensorstore_ds.comparison.results import First
from tensorstore_ds.format.schema import ArrayField
from tensorstore_ds.reading.store import Store

#: Seconds for an answer: of listing files, copying into memory, a first epoch.
PATIENCE = 900.0
#: Of what should be cold, at most this share may still be in memory.
WARM = 0.02
#: Pixels of splits up to this size are compared, in bytes.
COMPARED_NBYTES = 4 * 1024**3

#: What was found of each way, by the names of `Row`'s attributes; with a `reason` it is not measured any more.
Found = dict[str, dict[str, Any]]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Split:
    """The split that is loaded.

    Attributes:
        store: that holds it.
        name: of the split.
        fields: name of the field of each kind that is loaded: ``image``, and ``label`` or ``objects``.
        sizes: batch sizes, rising.
        seconds: for a measurement.
    """

    store: Store
    name: str
    fields: Mapping[str, str]
    sizes: Sequence[int]
    seconds: float

    @property
    def rows(self) -> int:
        """Samples."""
        return len(self.store[self.name])

    @property
    def nbytes(self) -> int:
        """Bytes of its columns of fixed shape: nearly all."""
        known = self.store.manifest.fields
        columns = [self.store[self.name][n] for n in self.fields.values() if isinstance(known[n], ArrayField)]
        return sum(column.nbytes for column in columns)


def first_epochs(split: Split, lanes: Sequence[Lane], found: Found, limits: dict[str, Limit], say: Say) -> None:
    """Before anything else is read: pages that a process has mapped cannot be dropped.

    Args:
        split: to be loaded.
        lanes: each in turn.
        found: gets `first`, or a `reason`.
        limits: get the rate that was seen.
        say: is told what is done.
    """
    size = middle(split.sizes)
    for lane in lanes:
        say(f"first epoch, {lane.way.title}")
        answer = lane.ask("cold", PATIENCE, batch_size=size, seconds=4 * split.seconds)
        if answer["state"] != "ok":
            found[lane.way.name]["reason"] = answer["reason"]
            continue
        found[lane.way.name]["first"] = _first(split, size, answer)
        limits[lane.way.name] = Limit(answer["rows"] / answer["epochs"][0])


def _first(split: Split, size: int, answer: Mapping[str, Any]) -> First:
    left = answer["left"]
    if left is None:
        return First(size, reason=answer["why"] or "the system does not tell what is in memory")
    if left > WARM * split.nbytes:
        return First(size, reason=f"{left / 1e6:.1f} MB of its files could not be dropped from the page cache")
    seconds = answer["epochs"][0] * split.rows / answer["rows"]
    return First(size, answer["opened"], seconds, answer["batches"], answer["of"])


def verify(split: Split, lanes: Sequence[Lane], found: Found, scratch: Path, say: Say) -> None:
    """Compare what each way delivers with what is stored.

    Args:
        split: to be loaded.
        lanes: each in turn.
        found: gets `delivered`, `correct` and `reader`, or a `reason`.
        scratch: a folder for marks.
        say: is told what is done.
    """
    field = split.store.manifest.fields[split.fields["image"]]
    comparable = isinstance(field, ArrayField) and field.spec.dtype == "uint8" and split.nbytes <= COMPARED_NBYTES
    marks: dict[bool, Path] = {}
    # Backwards: if there is memory for one copy of all only, the quicker use of a TensorDataset gets it.
    for lane in reversed(lanes):
        pixels = comparable and not (lane.way.group == "files" and _resized(split.store))
        if pixels not in marks:
            say("reading what is stored")
            marks[pixels] = scratch / f"marks-{pixels}.npy"
            np.save(marks[pixels], marks_of_split(split.store[split.name], split.fields, pixels=pixels))
        say(f"checking {lane.way.title}")
        details = {"seconds": max(5.0, 8 * split.seconds), "marks": str(marks[pixels]), "pixels": pixels}
        answer = lane.ask("verify", PATIENCE, weigh=True, batch_size=middle(split.sizes), **details)
        of_way = found[lane.way.name]
        if answer["state"] != "ok":
            of_way["reason"] = answer["reason"]
            continue
        of_way["reader"] = answer["reader"]
        of_way["correct"] = answer["same"] and answer["of"] == split.rows
        of_way["delivered"] = in_words(answer, split.rows, pixels=pixels, labels=len(split.fields) > 1)


def _resized(store: Store) -> bool:
    """Whether the stored pixels are not those of the files."""
    options = store.manifest.provenance.get("options", {})
    return options.get("size") is not None or options.get("encoding", "raw") == "jpeg"


def in_words(answer: Mapping[str, Any], stored: int, *, pixels: bool, labels: bool) -> str:
    """What was seen of the samples that a way delivers.

    >>> in_words({"of": 9, "rows": 9, "whole": True, "same": True}, 9, pixels=False, labels=True)
    'all 9 samples: labels as stored'
    """
    what = " and ".join([*(["pixels"] if pixels else []), *(["labels"] if labels else [])]) or "number"
    if answer["of"] != stored:
        return f"{answer['of']:,} samples, the store has {stored:,}"
    looked = f"all {stored:,} samples" if answer["whole"] else f"{answer['rows']:,} of {stored:,} samples"
    return f"{looked}: {what} {'as stored' if answer['same'] else 'differ from what is stored'}"
