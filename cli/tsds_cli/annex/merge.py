"""``tsds merge``: several stores as one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import tensorstore_ds
from tsds_cli.annex.editing import made
from tsds_cli.options import json_option, option, path_argument, store_place


@click.command()
@click.argument("stores", nargs=-1, required=True, type=store_place, metavar="STORE STORE ...")
@path_argument("out")
@option("--restore-erased", is_flag=True, help="Keep samples that tsds erase has removed from another of the stores.")
@json_option
def merge(stores: tuple[str | Path, ...], out: Path, restore_erased: bool, as_json: bool) -> None:
    """Merge several stores into a new store OUT.

    Splits with the same name are joined, and classes are matched by name. All stores need the same fields, and images
    of the same shape or encoding. No image is decoded.

    \b
    Examples:
      tsds merge monday.tsds tuesday.tsds week.tsds
      tsds merge a.tsds b.tsds c.tsds all.tsds --json
    """
    made(out, as_json, partial(tensorstore_ds.merge_stores, stores, out, restore_erased=restore_erased))
