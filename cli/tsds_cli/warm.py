"""``tsds warm``: a store is read into the page cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.options import json_option, nbytes, option, splits_option, store_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import Residency


@click.command()
@store_argument()
@splits_option
@option(
    "--budget",
    type=nbytes,
    metavar="SIZE",
    help="Maximum amount of the store to keep in memory, such as 20GiB.",
    show_default="the memory available to this process",
)
@option(
    "--threads",
    type=click.IntRange(1, 256),
    default=2,
    show_default=True,
    help="Number of reading threads. 2 are enough for most disks. More can help on network storage.",
)
@json_option
def warm(store: str | Path, splits: tuple[str, ...], budget: int | None, threads: int, as_json: bool) -> None:
    """Load a STORE into memory (the page cache).

    All processes on the machine can then read it from memory. Small columns are loaded first, then images. Parts that
    are already in memory are skipped. Prints how much of each column is in memory before and after.

    \b
    Examples:
      tsds warm photos.tsds
      tsds warm photos.tsds --split train --budget 20GiB
    """
    import tensorstore_ds as tsds

    opened, chosen = tsds.open(store), splits or None
    before = tsds.residency(opened, splits=chosen)
    needed = sum(column.nbytes for column in before.values())
    resident = sum(column.resident or 0 for column in before.values())  # needs no more memory
    limit = max(tsds.memory_limit(), resident) if budget is None else budget
    begun = time.monotonic()
    with ProgressBar() as bar:
        progress = partial(bar.update_bytes, "Warming")
        read = tsds.warm(opened, splits=chosen, budget=limit, threads=threads, progress=progress)
    seconds = time.monotonic() - begun
    after = tsds.residency(opened, splits=chosen)
    if as_json:
        found = {"path": words.place(store), "budget": limit, "read": read, "seconds": seconds}
        text.echo_json({**found, "before": before, "after": after})
        return
    show_change(before, after)
    rate = f" in {words.duration(seconds)}, {words.size(read / seconds)}/s" if read else ": all was there"
    text.echo(f"read {words.size(read)}{rate}")
    if limit < needed:
        why = "that is what this process may use" if budget is None else "that is the budget"
        text.echo(f"warmed the first {words.size(limit)} of {words.size(needed)}: {why}")


def show_change(before: Mapping[str, Residency], after: Mapping[str, Residency]) -> None:
    """Print how much of each column was and is in memory."""
    rows: list[list[text.Text]] = [["", "size", "before", "after", ""]]
    for column, now in after.items():
        share, drawn = shown_share(now)
        rows.append([column, words.size(now.nbytes), shown_share(before[column])[0], share, drawn])
    text.echo_table(rows, right=[1, 2, 3])


def shown_share(column: Residency) -> tuple[str, text.Text]:
    """How much of a column is in memory, as a percentage and a bar, or why that is not known."""
    if column.share is None:
        return "?", column.reason
    return f"{100 * column.share:.0f} %", text.Styled(text.bar(column.share, 10), fg="green")
