"""``tsds cache``: the stores by URL that are kept on this disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import Failure
from tsds_cli.options import json_option, option, path

if TYPE_CHECKING:
    from tensorstore_ds import CachedStore

_DIGITS = 12  # of a digest: enough to name it

cache_dir_option = option(
    "--cache-dir",
    type=path,
    metavar="DIR",
    help="Folder of the cache.",
    show_default="$TSDS_CACHE_DIR, or the user's cache folder",
)


@click.group(invoke_without_command=True)
@cache_dir_option
@json_option
@click.pass_context
def cache(ctx: click.Context, cache_dir: Path | None, as_json: bool) -> None:
    """List or remove the copies of remote stores on this disk.

    Data read from a store by URL is cached, so that it is downloaded once. The table shows how much of each store is on
    this disk, and when it was last used. tsds cache clear removes stores.

    \b
    Examples:
      tsds cache
      tsds cache clear s3://bucket/photos.tsds
      tsds cache clear --all
    """
    import tensorstore_ds as tsds

    if ctx.invoked_subcommand is not None:
        ctx.obj = cache_dir
        return
    stores = tsds.cached_stores(cache_dir)
    if as_json:
        text.echo_json(stores)
        return
    rows: list[list[text.Text]] = [["", "digest", "here", "of", "", "used"]]
    rows += [
        [
            store.url,
            store.sha256[:_DIGITS],
            words.size(store.nbytes_there),
            words.size(store.nbytes),
            "whole" if store.is_whole else "",
            "open now" if store.is_open else f"{words.duration(max(0.0, time.time() - store.last_used))} ago",
        ]
        for store in stores
    ]
    if stores:
        text.echo_table(rows, right=[2, 3])
    text.echo(f"{text.count(len(stores), 'store')}, {_total(stores)}")


@cache.command()
@click.argument("store", required=False)
@option("--all", "everything", is_flag=True, help="Remove all stores.")
@option("--yes", is_flag=True, help="Do not ask. On a terminal, --all asks for confirmation.")
@cache_dir_option
@json_option
@click.pass_context
def clear(
    ctx: click.Context, store: str | None, everything: bool, yes: bool, cache_dir: Path | None, as_json: bool
) -> None:
    """Remove the copy of a remote STORE from this disk.

    STORE is a digest, or a URL that the store was read from. Stores that a process has open stay, and also files that
    do not belong to the cache. Removed data is downloaded again when it is needed. With --all on a terminal, the
    command lists the stores and asks for confirmation.
    """
    import tensorstore_ds as tsds

    if (store is None) != everything:
        raise click.UsageError("Give a STORE, or --all.")
    folder = cache_dir or ctx.obj
    if everything and not yes and not as_json and sys.stdin.isatty():
        stores = tsds.cached_stores(folder)
        for each in stores:
            text.echo(f"{'open, and stays' if each.is_open else 'to be removed'}: {_described(each)}")
        if stores and not click.confirm("Remove these from this disk?"):
            raise Failure("nothing was removed")
    removed, left = tsds.clear_cache(store, cache_dir=folder)
    if as_json:
        text.echo_json({"removed": removed, "left": left})
        return
    for word, stores in (("removed", removed), ("open, and left", left)):
        for each in stores:
            text.echo(f"{word}: {_described(each)}")
    if not removed and not left:
        text.echo("no stores are kept")
    elif removed:
        text.echo(f"removed in all: {text.count(len(removed), 'store')}, {_total(removed)}")


def _total(stores: Sequence[CachedStore]) -> str:
    return words.size(sum(store.nbytes_there for store in stores))


def _described(store: CachedStore) -> str:
    return f"{store.url} ({store.sha256[:_DIGITS]}), {words.size(store.nbytes_there)}"
