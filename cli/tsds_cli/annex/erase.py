"""``tsds erase``: samples are removed from a store, with every byte of them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tensorstore_ds
from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.annex.editing import listed_keys, listed_rows, made
from tsds_cli.messages import interrupted
from tsds_cli.options import json_option, option, path, sha256_option, splits_option, store_argument

if TYPE_CHECKING:
    from tensorstore_ds import ErasureSummary

_NAMED = 3  # keys that are printed; --json prints all


@click.command()
@store_argument()
@option("--where", metavar="CONDITION", help="Erase samples that meet this condition, as in tsds filter.")
@option("--keys", type=path, metavar="FILE", help="Erase samples whose keys a text file lists, one per line.")
@option(
    "--rows",
    type=path,
    metavar="FILE",
    help='Erase rows that a file lists: SPLIT ROW on each line, or JSON: {"drop": {"train": [3, 17]}}.',
)
@splits_option
@sha256_option
@option(
    "--tombstones/--no-tombstones",
    default=True,
    show_default=True,
    help="Keep hashes of the samples, so that tsds append, update and merge do not store them again.",
)
@option("--receipt", type=path, metavar="FILE", help="Write what was erased, without names, to a new JSON file.")
@option("--dry-run", is_flag=True, help="Change nothing. Print the samples to erase.")
@json_option
def erase(
    store: str | Path,
    where: str | None,
    keys: Path | None,
    rows: Path | None,
    splits: tuple[str, ...],
    sha256: str | None,
    tombstones: bool,
    receipt: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Erase samples from a STORE permanently, in place.

    Only the shards with these samples are rewritten. The manifest is replaced in one step. Then the old shards are
    removed. Rows after an erased sample move up, keys stay, and the digest of the store changes. The source, copies of
    the store, packed files, stores at URLs and backups still contain the samples.

    \b
    Examples:
      tsds erase photos.tsds --keys keys.txt --dry-run
      tsds erase photos.tsds --where "key == 'anna/001.jpg'"
      tsds erase photos.tsds --rows findings.json
      tsds erase photos.tsds --keys keys.txt --receipt receipt.json
    """
    if sum(each is not None for each in (where, keys, rows)) != 1:
        raise click.UsageError("Give one of --where, --keys and --rows.")
    if rows is not None and splits:
        raise click.UsageError("--rows names the splits itself: leave out --split.")
    listed = None if rows is None else listed_rows(rows, may_be_lines=True)
    chosen: dict[str, Any] = {
        "where": where,
        "keys": None if keys is None else listed_keys(keys),
        "rows": None if listed is None else listed.rows,
        "splits": splits or None,
        "sha256": sha256 or (None if listed is None else listed.sha256),
        "tombstones": tombstones,
        "receipt": receipt,
    }
    done: list[ErasureSummary] = []
    before = _digest(store)

    def run(**progress: Any) -> ErasureSummary:
        try:
            done.append(tensorstore_ds.erase(store, dry_run=dry_run, **chosen, **progress))
        except KeyboardInterrupt:
            raise interrupted(_interrupted(is_erased=_digest(store) != before)) from None
        return done[-1]

    again = shlex.join(each for each in _arguments() if each != "--dry-run") if dry_run else ""
    made(Path(store), as_json, run, told=lambda: _tell(done[-1], receipt, dry_run=dry_run), following=again)


def _arguments() -> tuple[str, ...]:
    found: tuple[str, ...] = click.get_current_context().meta[text.ARGUMENTS]
    return found


def _digest(store: str | Path) -> str:
    """Of the store as it is now; empty where there is none that can be opened."""
    try:
        return tensorstore_ds.open(store).sha256 if Path(store).is_dir() else ""
    except tensorstore_ds.TsdsError:
        return ""


def _interrupted(*, is_erased: bool) -> str:
    if is_erased:
        return "interrupted; the samples are erased, and the same command removes what is left of them"
    return "interrupted; nothing was erased"


def _tell(summary: ErasureSummary, receipt: Path | None, *, dry_run: bool) -> None:
    count = sum(summary.erased.values())
    if summary.completed:
        text.echo("completed: an erasure that was interrupted")
    if count:
        splits = ", ".join(f"{rows:,} of {name}" for name, rows in summary.erased.items())
        some = ", ".join(summary.keys[:_NAMED]) + (", ..." if count > _NAMED else "")
        text.echo(f"{'would erase' if dry_run else 'erased'}: {text.count(count, 'sample')} ({splits}): {some}")
    if dry_run:
        text.echo("dry run: nothing was changed")
        return
    if summary.removed_shards:
        text.echo(f"removed: {text.count(summary.removed_shards, 'shard')}, {words.size(summary.removed_nbytes)}")
    if count:
        text.echo("Rows behind the erased ones have moved up. Keys are the same. The digest of the store has changed.")
        first, *others = summary.receipt["not_reached"]
        text.echo(f"{first[0].upper()}{first[1:]}, {', '.join(others[:-1])} and {others[-1]} keep the samples.")
        if summary.receipt["samples"]:
            text.echo("Tombstones remain: tsds append, update and merge do not store the samples again.")
    if receipt is not None and summary.receipt:
        text.echo(f"receipt: {receipt}")
