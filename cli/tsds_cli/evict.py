"""``tsds evict``: a store is dropped from the page cache."""

from __future__ import annotations

from pathlib import Path

import click

from tsds_cli import text
from tsds_cli.options import json_option, path_argument, splits_option
from tsds_cli.warm import show_change


@click.command()
@path_argument("store")
@splits_option
@json_option
def evict(store: Path, splits: tuple[str, ...], as_json: bool) -> None:
    """Drop a STORE from the page cache.

    To measure a cold start, or to make room. No data is lost. Pages that a running process has mapped and used, or has
    locked, stay. Prints how much of each column was and is in memory.

    \b
    Examples:
      tsds evict photos.tsds
      tsds evict photos.tsds --split val --json
    """
    from tensorstore_ds import open as open_store
    from tensorstore_ds.page_cache.residency import evict as run

    done = run(open_store(store), splits=splits or None)
    if as_json:
        text.echo_json(
            {"path": str(store), "dropped": done.dropped, "left": done.left, "before": done.before, "after": done.after}
        )
        return
    show_change(done.before, done.after)
    if done.dropped is not None:
        text.echo(f"dropped {text.size(done.dropped)}")
    if done.left:
        text.echo(f"{text.size(done.left)} stay: a process has them mapped or locked; end it and evict again")
