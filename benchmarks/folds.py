"""Rows that keep their fold when a data set grows: ``python -m benchmarks.folds`` prints the table of docs/folds.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks import measure
from tensorstore_ds.annex.editing.fold_numbers import Members, divide_groups, divide_rows

K = 5
SEED = 0
#: Data sets of each kind.
REPEATS = 10
GROWTH = (0.1, 0.5)
#: A row has 1 to so many objects. Class i of n has the weight 1 / (i + 1).
MOST_OBJECTS = 10


@dataclass(frozen=True)
class Case:
    """A kind of data set.

    Attributes:
        rows: before it grows.
        classes: of the rows, or of their objects; 0: it is not stratified.
        groups: before it grows; 0: each row is divided alone. New rows are of new groups of the same size.
    """

    name: str
    rows: int
    classes: int = 0
    groups: int = 0
    has_objects: bool = False


CASES = (
    Case("plain", 1_000),
    Case("plain", 10_000),
    Case("stratified, 10 classes", 1_000, 10),
    Case("stratified, 10 classes", 10_000, 10),
    Case("stratified, 100 classes", 10_000, 100),
    Case("100 groups", 1_000, 0, 100),
    Case("1,000 groups", 10_000, 0, 1_000),
    Case("100 groups, stratified, 3 classes", 1_000, 3, 100),
    Case("1,000 groups, stratified, 3 classes", 10_000, 3, 1_000),
    Case("objects of 20 classes", 5_000, 20, 0, True),
)


def staying(case: Case, growth: float, rng: Generator) -> float:
    """The share of the rows that keep their fold when so many more are appended to random ones."""
    rows = round(case.rows * (1 + growth))
    units = case.groups or case.rows
    size = case.rows // units
    bits = rng.integers(0, 2**64, -(-rows // size), np.uint64)  # as the hashes of keys are
    weights = 1 / (np.arange(max(1, case.classes)) + 1)
    counts = rng.integers(1, MOST_OBJECTS + 1, rows) if case.has_objects else np.ones(rows, np.int64)
    owners = np.repeat(np.arange(rows), counts)
    labels = rng.choice(weights.size, owners.size, p=weights / weights.sum())

    def divided(first: int) -> NDArray[np.int64]:
        known, unit_of = (owners < first) & (case.classes > 0), np.arange(first) // size
        if not case.groups and not case.has_objects:
            return divide_rows(bits[:first], labels[:first], K)
        count = int(unit_of[-1]) + 1
        members = Members.of(owners[known] // size, labels[known], count)
        return divide_groups(bits[:count], np.bincount(unit_of), members, K)[unit_of]

    return float(np.mean(divided(rows)[: case.rows] == divided(case.rows)))


def table() -> str:
    """The table in Markdown: the mean over `REPEATS` data sets, and the lowest share."""
    rows = []
    for number, case in enumerate(CASES):
        shown = []
        for growth in GROWTH:
            found = [staying(case, growth, np.random.default_rng([SEED, number, each])) for each in range(REPEATS)]
            shown.append(f"{np.mean(found):.1%} (at least {min(found):.1%})")
        rows.append((case.name, f"{case.rows:,}", *(cell.replace("%", " %") for cell in shown)))
    return "\n".join(measure.table(("division", "rows before", "10 % more rows", "50 % more rows"), rows))


if __name__ == "__main__":
    print(table())
