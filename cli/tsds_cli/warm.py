"""``tsds warm``: a store is read into the page cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsds_cli import text
from tsds_cli.options import json_option, nbytes, path_argument, splits_option
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds.page_cache.residency import Residency

_BAR = 10


@click.command()
@path_argument("store")
@splits_option
@click.option(
    "--budget",
    type=nbytes,
    metavar="BYTES",
    help="Have at most this much of it in memory, such as 20GiB. [default: what this process may use]",
)
@click.option("--threads", type=click.IntRange(1, 256), default=2, show_default=True, help="Threads that read.")
@json_option
def warm(store: Path, splits: tuple[str, ...], budget: int | None, threads: int, as_json: bool) -> None:
    """Read a STORE into the page cache.

    All processes of the machine find it there. Small columns come first, then images; what is in memory already is
    skipped. Prints how much of each column was and is in memory.

    \b
    Examples:
      tsds warm photos.tsds
      tsds warm photos.tsds --split train --budget 20GiB
    """
    from tensorstore_ds import open as open_store
    from tensorstore_ds.page_cache.residency import requirement, residency_of, select_columns
    from tensorstore_ds.page_cache.warming import warm as run

    opened = open_store(store)
    columns = select_columns(opened, splits or None, None)
    needed, limits = requirement(opened, columns)
    limit = min(limits.values()) if budget is None else budget
    before = residency_of(opened, columns)
    begun = time.monotonic()
    with ProgressBar() as bar:
        read = run(
            opened,
            splits=splits or None,
            budget=limit,
            threads=threads,
            progress=partial(bar.update_bytes, stage="warm"),
        )
    seconds = time.monotonic() - begun
    after = residency_of(opened, columns)
    if as_json:
        found = {"path": str(store), "budget": limit, "read": read, "seconds": seconds}
        text.echo_json({**found, "before": before, "after": after})
        return
    show_change(before, after)
    rate = f" in {text.duration(seconds)}, {text.size(read / seconds)}/s" if read else ": all was there"
    text.echo(f"read {text.size(read)}{rate}")
    if limit < needed:
        why = "that is what this process may use" if budget is None else "that is the budget"
        text.echo(f"warmed the first {text.size(limit)} of {text.size(needed)}: {why}")


def show_change(before: Mapping[str, Residency], after: Mapping[str, Residency]) -> None:
    """Print what was and is in memory, a line a column."""
    rows: list[list[text.Text]] = [["", "size", "before", "after", ""]]
    for column, found in after.items():
        drawn = found.reason if found.share is None else text.Styled(text.bar(found.share, _BAR), fg="green")
        rows.append([column, text.size(found.nbytes), _percent(before[column]), _percent(found), drawn])
    text.echo_table(rows, right=[1, 2, 3])


def _percent(found: Residency) -> str:
    return "?" if found.share is None else f"{found.share:.0%}".replace("%", " %")
