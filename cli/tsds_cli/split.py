"""``tsds split``: the samples of a store in other splits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import tensorstore_ds
from tsds_cli.editing import made
from tsds_cli.options import fractions, json_option, path_argument, store_argument


@click.command()
@store_argument()
@path_argument("out")
@click.argument("shares", type=fractions, metavar="SHARES")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), metavar="INTEGER", help="Of the division."
)
@json_option
def split(store: str | Path, out: Path, shares: dict[str, float], seed: int, as_json: bool) -> None:
    """Divide the samples of a STORE anew, as the store OUT.

    SHARES are names and fractions of the new splits. Each class is divided in these shares, by a hash of the keys:
    the same samples always come into the same splits. No image is decoded.

    \b
    Examples:
      tsds split photos.tsds divided.tsds train=0.8,val=0.1,test=0.1
      tsds split photos.tsds again.tsds train=0.9,val=0.1 --seed 1
    """
    made(out, as_json, partial(tensorstore_ds.split_store, store, out, shares, seed=seed))
