"""``tsds append``: the samples of a data set at the end of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import tensorstore_ds
from tsds_cli.annex.growing import dry_run_option, from_source, grown, restore_erased_option
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
@restore_erased_option
@dry_run_option
@json_option
@click.pass_context
def append(ctx: click.Context, /, store: Path, source: Path, as_json: bool, **given: Any) -> None:
    """Append the samples of a data set SRC to a STORE.

    Samples that are already in the store are skipped, so SRC can be the folder that the store was made from, with new
    files. If a key is used by a different sample, the command fails, unless you pass --update or --key-prefix. Fields,
    flags, keypoints and classes that only one side has are added. Images are stored in the same form as in the store.

    The manifest is replaced last, in one step. Processes with the store open keep the old view.

    \b
    Examples:
      tsds append photos.tsds photos
      tsds append photos.tsds more/photos --on-error skip
      tsds append photos.tsds june --key-prefix june/
    """
    grown(ctx, tensorstore_ds.append, store, source, as_json, given)
