"""Commands about memory and disk: the page cache, and the copies of remote stores."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import tensorstore_ds as tsds
from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import Failure
from tsds_cli.options import json_option, nbytes, option, path, splits_option, store_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds.page_cache import Residency
    from tensorstore_ds.reading import CachedStore

_DIGITS = 12  # of a digest: enough to name it


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
    opened, chosen = tsds.open(store), splits or None
    before = tsds.residency(opened, splits=chosen)
    needed = sum(column.nbytes for column in before.values())
    resident = sum(column.resident or 0 for column in before.values())  # needs no more memory
    limit = max(tsds.page_cache.memory_limit(), resident) if budget is None else budget
    begun = time.monotonic()
    with ProgressBar() as bar:
        progress = partial(bar.update_bytes, "Warming")
        read = tsds.warm(opened, splits=chosen, budget=limit, threads=threads, progress=progress)
    seconds = time.monotonic() - begun
    after = tsds.residency(opened, splits=chosen)
    if as_json:
        found = {"path": words.shown_path(store), "budget": limit, "read": read, "seconds": seconds}
        text.echo_json({**found, "before": before, "after": after})
        return
    _show_change(before, after)
    rate = f" in {words.duration(seconds)}, {words.size(read / seconds)}/s" if read else ": all was there"
    text.echo(f"read {words.size(read)}{rate}")
    if limit < needed:
        why = "that is what this process may use" if budget is None else "that is the budget"
        text.echo(f"warmed the first {words.size(limit)} of {words.size(needed)}: {why}")


def _show_change(before: Mapping[str, Residency], after: Mapping[str, Residency]) -> None:
    """Print how much of each column was and is in memory."""
    rows: list[list[text.Text]] = [["", "size", "before", "after", ""]]
    for column, now in after.items():
        share, drawn = shown_share(now)
        rows.append([column, words.size(now.nbytes), shown_share(before[column])[0], share, drawn])
    text.echo_table(rows, right=[1, 2, 3])


def shown_share(column: Residency) -> tuple[str, text.Text]:
    """The share of a column in memory as a percentage and a bar, or why it is unknown."""
    if column.share is None:
        return "?", column.reason
    return f"{100 * column.share:.0f} %", text.Styled(text.bar(column.share, 10), fg="green")


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
    done = tsds.evict(tsds.open(store), splits=splits or None)
    if as_json:
        found = {"path": words.shown_path(store), "dropped": done.dropped, "left": done.left}
        text.echo_json({**found, "before": done.before, "after": done.after})
        return
    _show_change(done.before, done.after)
    if done.dropped is not None:
        text.echo(f"dropped {words.size(done.dropped)}")
    if done.left:
        text.echo(f"{words.size(done.left)} stay: a process has them mapped or locked; end it and evict again")


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
    if ctx.invoked_subcommand is not None:
        ctx.obj = cache_dir, as_json
        return
    stores = tsds.reading.cached_stores(cache_dir)
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
    if (store is None) != everything:
        raise click.UsageError("Give a STORE that tsds cache lists, or --all.")
    folder, as_json = cache_dir or ctx.obj[0], as_json or ctx.obj[1]
    if everything and not yes and not as_json and sys.stdin.isatty():
        stores = tsds.reading.cached_stores(folder)
        for each in stores:
            text.echo(f"{'open, and stays' if each.is_open else 'to be removed'}: {_described(each)}")
        if stores and not click.confirm("Remove these from this disk?"):
            raise Failure("nothing was removed")
    removed, left = tsds.reading.clear_cache(store, cache_dir=folder)
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
