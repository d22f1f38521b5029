"""The ways of loading that are compared: a row of the table each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorstore_ds.comparison.options import GROUPS, Group


@dataclass(frozen=True, slots=True)
class Way:
    """One way to load a split.

    Attributes:
        name: unique, for programs: ``files-2``.
        title: for people.
        group: what is read, and by whom: see `BenchOptions.ways`.
        workers: processes of torch's DataLoader.
        whole: a batch of a TensorDataset is one index operation.
    """

    name: str
    title: str
    group: Group
    workers: int = 0
    whole: bool = False

    @property
    def ours(self) -> bool:
        """Whether it is what this library advises."""
        return self.group in ("store", "device")


def ways_of(groups: Sequence[Group], cores: int) -> list[Way]:
    """All ways of some groups, on a machine of so many cores.

    torch's DataLoader is used with no workers, half as many as there are cores, and as many; over the store, whose
    samples need no decoding, with none and with as many.

    >>> [way.name for way in ways_of(("plain", "files", "store"), 8)]
    ['files-0', 'files-4', 'files-8', 'plain-0', 'plain-8', 'store']
    """
    several = sorted({0, max(1, cores // 2), cores})
    found = {
        "files": [Way(f"files-{n}", f"files, {_workers(n)}", "files", n) for n in several],
        "tensors": [
            Way("tensors", "TensorDataset", "tensors"),
            Way("tensors-whole", "TensorDataset, whole batches", "tensors", whole=True),
        ],
        "plain": [Way(f"plain-{n}", f"store, torch DataLoader, {_workers(n)}", "plain", n) for n in (0, cores)],
        "store": [Way("store", "store, tensorstore-ds", "store")],
        "device": [Way("device", "store, tensorstore-ds on the GPU", "device")],
    }
    return [way for group in GROUPS if group in groups for way in found[group]]


def _workers(n: int) -> str:
    return "1 worker" if n == 1 else f"{n} workers"
