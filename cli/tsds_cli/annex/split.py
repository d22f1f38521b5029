"""``tsds split``: the samples of a store in other splits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import tensorstore_ds
from tsds_cli.annex.editing import made
from tsds_cli.options import fractions, json_option, option, path_argument, store_argument


class _Split(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse the option of ``tsds convert``, and say how it is called here."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in ("--split", "--split-into"):
                raise
            example = "tsds split STORE OUT train=0.8,val=0.2"
            raise click.UsageError(f"SHARES is an argument here, without {error.option_name}: {example}", ctx) from None


@click.command(cls=_Split)
@store_argument()
@path_argument("out")
@click.argument("shares", type=fractions, metavar="SHARES")
@option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Random seed of the division.")
@option(
    "--group-by",
    metavar="GROUP",
    help="Keep related samples in one split: folder, images of one folder; duplicates, equal images; the name of a "
    "field with one number per sample; or a regular expression, samples in whose keys it finds the same text, in "
    "its first group if it has one.",
    show_default="each sample is assigned on its own",
)
@json_option
def split(
    store: str | Path, out: Path, shares: dict[str, float], seed: int, group_by: str | None, as_json: bool
) -> None:
    """Split a STORE into train, val and so on, as a store OUT.

    SHARES are names and fractions of the new splits. Each class is divided in these proportions, by a hash of the keys:
    the same samples always get the same split. No image is decoded.

    With --group-by, all samples of a group get the same split, whatever their classes.

    \b
    Examples:
      tsds split photos.tsds divided.tsds train=0.8,val=0.1,test=0.1
      tsds split photos.tsds again.tsds train=0.9,val=0.1 --seed 1
      tsds split scans.tsds apart.tsds train=0.9,val=0.1 --group-by 'patient([0-9]+)'
    """
    made(out, as_json, partial(tensorstore_ds.split_store, store, out, shares, seed=seed, group_by=group_by))
