"""``tsds append``: the samples of a data set at the end of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import tensorstore_ds
from tsds_cli.growing import dry_run_option, from_source, grown
from tsds_cli.options import Command, json_option, option, path_argument


@click.command(cls=Command)
@path_argument("store")
@path_argument("source", "SRC")
@from_source(
    "format", "images", "classes", "keypoints", "key_prefix", "size", "fit", "color", "split_into", "class_map"
)
@option(
    "--update",
    is_flag=True,
    help="Replace samples of the STORE with different samples of SRC that have the same keys.",
    group="Essential",
)
@option(
    "--compare/--no-compare",
    default=True,
    show_default=True,
    help="Compare samples with the same keys in SRC and the STORE. Without it, they are skipped unread, which is "
    "faster.",
    group="Essential",
)
@dry_run_option
@json_option
@click.pass_context
def append(ctx: click.Context, /, store: Path, source: Path, as_json: bool, **given: Any) -> None:
    """Append the samples of a data set SRC to a STORE.

    Samples that the store has already are left out: SRC may be the folder that it was made of, which has grown. A
    sample with the key of another one is an error, unless --update or --key-prefix is given. Fields, flags, keypoints
    and classes that one side lacks are added. Images are stored in the same form as in the store. New shards are
    written first. The manifest is replaced last, in one step: processes that have the store open keep reading it as it
    was.

    \b
    Examples:
      tsds append photos.tsds photos
      tsds append photos.tsds more/photos --on-error skip
      tsds append photos.tsds june --key-prefix june/
    """
    grown(ctx, tensorstore_ds.append, store, source, as_json, given)
