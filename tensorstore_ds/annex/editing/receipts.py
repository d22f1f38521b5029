"""Check a store, or a copy of it, with a receipt of `erase`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tensorstore_ds.annex.editing.tombstones import Pair, Tombstones
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.history import states_before_erasure
from tensorstore_ds.format.strict_json import load_object
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.regular_files import open_file, tidied

State = Literal["erased", "restored", "before", "other"]
#: Larger files are no receipts: `erase` keeps at most 10^6 tombstones.
_MAX_NBYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """Result of `check_receipt`.

    Attributes:
        state: ``erased`` if the erasure is in the history of the store; ``restored`` if it is, and tombstones of the
            samples are gone since; ``before`` if the store has the samples, such as a copy that was not refreshed;
            ``other`` if the receipt is the one of a different store.
        found: rows of samples with an erased key or image, by split.
        compared: number of samples whose keys and images were compared. It is 0 if receipt or store have no tombstones,
            or if the store is in the state before the erasure.
        erased: number of samples that were erased, by split.
        created: time of the erasure, in UTC.
    """

    state: State
    found: Mapping[str, list[int]]
    compared: int
    erased: Mapping[str, int]
    created: str

    @property
    def is_erased(self) -> bool:
        """Whether the store has the erasure in its history, and no sample with an erased key or image."""
        return self.state == "erased" and not self.found


def check_receipt(store: str | os.PathLike[str], receipt: str | os.PathLike[str]) -> ReceiptCheck:
    """Check that the samples of a receipt of `erase` are erased from a store, or from a copy of it.

    >>> tsds.erase("photos.tsds", keys=["train/cat/0.png"], receipt="receipt.json").erased
    {'train': 1}
    >>> found = tsds.editing.check_receipt("photos.tsds", "receipt.json")
    >>> found.state, found.found, found.compared, found.is_erased
    ('erased', {}, 11, True)

    Args:
        store: path or URL of the store. All keys and images of a store with tombstones are read.
        receipt: path of the JSON file that `erase` wrote.

    Raises:
        OptionError: the file is no receipt.
        SourceError: the file cannot be read.
        FormatError: the store is damaged.
    """
    known, pairs = _read(receipt)
    opened = open_store(store)
    provenance, before = opened.manifest.provenance, known["sha256_before"]
    own = Tombstones(provenance)
    state: State = "other"
    if before == opened.sha256:
        state = "before"
    elif known["sha256_after"] == opened.sha256 or before in states_before_erasure(provenance):
        state = "erased" if all(map(own.has, pairs)) else "restored"
    found = dict[str, list[int]]()
    samples = own.of(pairs if state != "before" else ())
    for name, row in samples.rows_of(opened):
        found.setdefault(name, []).append(row)
    compared = sum(len(opened[name]) for name in opened) if len(samples) else 0
    return ReceiptCheck(state, found, compared, known["erased"], known["created"])


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Pair]]:
    """The members of a receipt, and the hashes of its samples."""
    with open_file(tidied(path), str(path), limit=_MAX_NBYTES) as file:
        data = file.read()
    try:
        known = load_object(data)
        pairs = [(bytes.fromhex(each["key"]), bytes.fromhex(each["image"])) for each in known["samples"]]
        texts = {name: type(known[name]) for name in ("sha256_before", "sha256_after", "created")}
        counts = {name: type(count) for name, count in known["erased"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = f"no member {error}" if isinstance(error, KeyError) else "no JSON, or other values"
        raise OptionError(f"{path}: expected a receipt that tsds erase wrote, found {found}.") from error
    if {*texts.values()} != {str} or {*counts.values()} > {int}:
        raise OptionError(f"{path}: expected a receipt that tsds erase wrote, found members of other types.")
    return known, pairs
