"""``tsds evict``: a store is dropped from the page cache."""

from __future__ import annotations

from pathlib import Path

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.options import json_option, splits_option, store_argument
from tsds_cli.warm import show_change


@click.command()
@store_argument()
@splits_option
@json_option
def evict(store: str | Path, splits: tuple[str, ...], as_json: bool) -> None:
    """Remove a STORE from memory (the page cache).

    Use it to measure a cold start, or to free memory. The files of the store are not changed. Pages that a running
    process uses or has locked stay in memory. Prints how much of each column is in memory before and after.

    \b
    Examples:
      tsds evict photos.tsds
      tsds evict photos.tsds --split val --json
    """
    import tensorstore_ds as tsds

    done = tsds.evict(tsds.open(store), splits=splits or None)
    if as_json:
        found = {"path": words.place(store), "dropped": done.dropped, "left": done.left}
        text.echo_json({**found, "before": done.before, "after": done.after})
        return
    show_change(done.before, done.after)
    if done.dropped is not None:
        text.echo(f"dropped {words.size(done.dropped)}")
    if done.left:
        text.echo(f"{words.size(done.left)} stay: a process has them mapped or locked; end it and evict again")
