"""Plan a conversion: the samples of each split, and the rows of each shard."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import NAME
from tensorstore_ds.sources.base import Contents, Reference

#: A block, the unit of work of one process, has about this many bytes of pixels and at most this many samples.
BLOCK_NBYTES = 2 * 1024**2
BLOCK_ROWS = 512
#: The same if samples are parts of images, so that an image is decoded for few blocks.
BLOCK_OF_PARTS_NBYTES = 32 * 1024**2

S = TypeVar("S")
_ORDER = {name: i for i, name in enumerate(("train", "val", "valid", "validation", "test"))}


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Some samples of a split of the source, which form a split of the store or a shard of it."""

    source_split: str
    listed: Sequence[Reference]  #: all of the source's split; it may make each when it is asked for
    rows: range | NDArray[np.int64]  #: the numbers of these among them

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> ChosenRows:
        return ChosenRows(self.source_split, self.listed, self.rows[part])

    def __iter__(self) -> Iterator[Reference]:
        for start in range(0, len(self), BLOCK_ROWS):  # never all at once: there may be millions
            rows = self.rows[start : start + BLOCK_ROWS]
            if isinstance(rows, range):  # a slice is several times as quick as one after the other
                yield from self.listed[rows.start : rows.stop : rows.step]
            else:
                yield from (self.listed[int(row)] for row in rows)


#: Identifies a shard: the split of the store, and the shard's number in it.
ShardName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive samples of a shard, and the position of their rows."""

    source_split: str
    references: Sequence[Reference]
    folder: Path  #: of the shard's files
    first_row: int  #: in the shard


def plan_splits(
    contents: Contents,
    fractions: Mapping[str, float] | None,
    seed: int,
    key: Callable[[str, Reference], str],
    group: Callable[[str, Reference], str] | None = None,
    *,
    is_part: bool = False,
) -> dict[str, ChosenRows]:
    """The source's own splits, or its only one (or its `train` or `training`) divided by `fractions`.

    The division is by a hash of the seed and a sample's key, within each class if labels are known: each class is
    ordered by the hash and cut at the fractions, so that every split has its exact share of each class. Other changes
    to a sample do not move it. `n` more samples in a class move at most `n` others across each cut, those next to it,
    and usually one or none. With `group`, the samples of a group stay together. Parts without samples are left out of
    what `is_part` of a store. Raises as `share_rows`.
    """
    splits = {
        name: ChosenRows(name, references, range(len(references))) for name, references in contents.splits.items()
    }
    if fractions is None:
        return in_order(splits)
    _check_shares(fractions, "split_into")
    divided = next((name for name in splits if len(splits) == 1 or name in ("train", "training")), "train")
    others = {name: split for name, split in splits.items() if name != divided}
    if divided not in splits or others.keys() & fractions.keys():
        raise OptionError(
            f"`split_into` divides a source's only split, or its split train; here the source has {', '.join(splits)}, "
            f"and {', '.join(fractions)} are asked for. Leave out `split_into`, choose other names, or divide the "
            "store that is made, with tsds split."
        )
    references = contents.splits[divided]
    labels = None if contents.labels is None else contents.labels.get(divided)
    names = ((group or key)(divided, each) for each in references)
    where, are_groups = f" in {divided}", group is not None
    parts = share_rows(fractions, names, len(references), labels, seed, where, are_groups=are_groups, is_part=is_part)
    chosen = {n: ChosenRows(divided, references, rows) for n, rows in parts.items() if len(rows) or not is_part}
    return in_order(chosen | others)


def share_rows(
    fractions: Mapping[str, float],
    keys: Iterable[str],
    count: int,
    labels: NDArray[np.int64] | None,
    seed: int,
    where: str = "",
    *,
    are_groups: bool = False,
    is_part: bool = False,
    option: str = "split_into",
) -> dict[str, NDArray[np.int64]]:
    """The rows of each part, ascending, as `plan_splits` divides the samples with these keys, (count,).

    With `are_groups`, keys are those of groups. They are ordered by the hash, and each goes as a whole to the part with
    its middle, whatever its classes: parts have their fractions up to a group. Raises `OptionError`, with the name of
    `option`, if the fractions do not add up to 1, or a name cannot be that of a split. A part without samples is also
    an error, but not with `is_part`.
    """
    _check_shares(fractions, option)
    hashes = key_hashes((key.encode("utf-8", "surrogateescape") for key in keys), seed)
    shares = list(fractions.values())
    divided = _divide_groups(hashes, shares) if are_groups else _divide(hashes, labels, shares)
    parts = dict(zip(fractions, divided, strict=True))
    for name, rows in parts.items():
        if fractions[name] > 0 and not len(rows) and not is_part:
            if are_groups and (groups := len(np.unique(hashes))) < count:
                found = f"the {count:,} samples{where} are {groups:,} group{'s' * (groups > 1)}, which stay whole"
                raise OptionError(
                    f"`{option}`: expected a group for {name}, found none: {found}. Group them by something finer, or "
                    f"leave {name} out."
                )
            of = f"{count:,}{where}"
            if labels is not None and not are_groups:
                largest = int(np.unique(labels, return_counts=True)[1].max(initial=0))
                of = f"each class{where}, of at most {largest:,} sample{'s' * (largest != 1)}"
            raise OptionError(
                f"`{option}`: expected a sample for {name}, found none: {fractions[name]:g} of {of}. "
                f"Choose a larger fraction, or leave {name} out."
            )
    return parts


def key_hashes(keys: Iterable[bytes], seed: int) -> NDArray[np.uint64]:
    """64 bits of each key that also depend on the seed, (n,)."""
    salt, digests = seed.to_bytes(16, "little", signed=True), bytearray()
    for key in keys:
        digests += hashlib.blake2b(key, digest_size=8, salt=salt).digest()
    return np.frombuffer(digests, "<u8")


def _check_shares(fractions: Mapping[str, float], option: str) -> None:
    if not math.isclose(sum(fractions.values()), 1, abs_tol=1e-6) or min(fractions.values()) < 0:
        advice = "Write 80 percent as 0.8."
        raise OptionError(
            f"`{option}`: expected fractions that add up to 1, found {sum(fractions.values()):g}. {advice}"
        )
    for name in fractions:
        if not NAME.fullmatch(name):
            raise OptionError(f"`{option}`: expected names of a-z, 0-9, _ and -, such as train, found {name!r}.")


def in_order(splits: Mapping[str, S]) -> dict[str, S]:
    """Splits in the order train, val, test, followed by others."""
    return dict(sorted(splits.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER))))


def _divide(
    hashes: NDArray[np.uint64], labels: NDArray[np.int64] | None, fractions: Sequence[float]
) -> list[NDArray[np.int64]]:
    """Row numbers of each part, ascending."""
    groups = np.zeros(len(hashes), np.int64) if labels is None else labels
    order = np.lexsort((hashes, groups))
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    cuts = np.cumsum(fractions)[:-1]
    parts: list[list[NDArray[np.int64]]] = [[] for _ in fractions]
    for group in np.split(order, starts):
        for part, rows in zip(parts, np.split(group, np.rint(cuts * len(group)).astype(np.int64)), strict=True):
            part.append(rows)
    return [np.sort(np.concatenate(part)) for part in parts]


def _divide_groups(hashes: NDArray[np.uint64], fractions: Sequence[float]) -> list[NDArray[np.int64]]:
    """Row numbers of each part, ascending; rows of the same hash stay together."""
    _, groups, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - counts / 2
    parts = np.searchsorted(np.cumsum(fractions)[:-1] * len(hashes), middles, "right")[groups]
    return [np.flatnonzero(parts == i) for i in range(len(fractions))]


def plan_shards(splits: Mapping[str, ChosenRows], rows_per_shard: int) -> dict[ShardName, ChosenRows]:
    """Cut every split into shards of `rows_per_shard`, the last one shorter; an empty split has none."""
    return {
        (name, i): split[start : start + rows_per_shard]
        for name, split in splits.items()
        for i, start in enumerate(range(0, len(split), rows_per_shard))
    }


def block_rows(row_nbytes: int, nbytes: int = BLOCK_NBYTES) -> int:
    """Maximum number of samples in a block of about `nbytes`; `row_nbytes` is the row of the largest field."""
    return max(1, min(BLOCK_ROWS, nbytes // max(1, row_nbytes)))


def plan_blocks(shard: ChosenRows, rows: int, folder: Path) -> Iterator[Block]:
    """Cut a shard, whose files are in `folder`, into blocks of `rows` rows, the last one shorter."""
    for start in range(0, len(shard), rows):
        yield Block(shard.source_split, list(shard[start : start + rows]), folder, start)
