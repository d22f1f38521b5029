"""``tsds update``: what has changed in a data set, in a store that was made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import tensorstore_ds
from tsds_cli.annex.growing import dry_run_option, from_source, grown, restore_erased_option
from tsds_cli.options import Command, json_option, path_argument


@click.command(cls=Command)
@path_argument("store")
@path_argument("source", "SRC")
@from_source("format", "images", "classes", "keypoints", "key_prefix", "size", "fit", "color", "class_map")
@restore_erased_option
@dry_run_option
@json_option
@click.pass_context
def update(ctx: click.Context, /, store: Path, source: Path, as_json: bool, **given: Any) -> None:
    """Update a STORE with the changes in its data set SRC.

    Labels, boxes, keypoints, captions, masks and images of samples with the same keys are replaced if they differ.
    Samples, fields and values that are not in SRC are kept. Samples that are not in the store are counted, but not
    added: use tsds append --update for that.

    The manifest is replaced last, in one step. Processes with the store open keep the old view.

    \b
    Examples:
      tsds update voc.tsds voc
      tsds update voc.tsds corrected/voc --dry-run
    """
    grown(ctx, tensorstore_ds.update, store, source, as_json, given)
