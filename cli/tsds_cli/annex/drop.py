"""``tsds drop``: fields are removed from a store, with their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tensorstore_ds
from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.annex.editing import made
from tsds_cli.options import json_option, path_argument

if TYPE_CHECKING:
    from tensorstore_ds import FieldsSummary


@click.command()
@path_argument("store")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
def drop(store: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Remove the fields NAME from a STORE, in place.

    Other fields are neither read nor written. The manifest is replaced in one step. Then the old files are removed.
    Processes with the store open can still read what they have mapped, and must open the store again for anything else.

    \b
    Examples:
      tsds drop photos.tsds loss
      tsds drop photos.tsds embedding score
    """
    done: list[FieldsSummary] = []

    def run(**progress: Any) -> FieldsSummary:
        done.append(tensorstore_ds.drop_fields(store, names, **progress))
        return done[-1]

    def told() -> None:
        summary = done[-1]
        text.echo(f"{'completed' if summary.completed else 'dropped'}: {', '.join(summary.fields)}")
        text.echo(f"removed: {text.count(summary.removed_shards, 'shard')}, {words.size(summary.removed_nbytes)}")

    made(store, as_json, run, again="the same command completes it, unless nothing was dropped", told=told)
