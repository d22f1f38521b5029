"""``tsds folds``: the folds of a split for cross validation, and how even they are."""

from __future__ import annotations

import warnings
from pathlib import Path

import click

import tensorstore_ds
from tsds_cli import text
from tsds_cli.options import json_option, option, out_option, store_argument


@click.command()
@store_argument()
@option("-k", "k", type=click.IntRange(2), default=5, show_default=True, help="Number of folds.")
@option("--split", metavar="NAME", default="train", show_default=True, help="Split to divide.")
@option(
    "--stratify",
    metavar="FIELD",
    help="Field of labels, or of objects with classes. Each fold gets the same fraction of each class.",
)
@option(
    "--groups",
    metavar="GROUP",
    help="Keep the rows of a group in one fold: a field of labels, integers or texts; folder, images of one folder; "
    "duplicates, equal images; or a regular expression for keys, as in tsds split.",
)
@option(
    "--repeats",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of divisions, each with different folds.",
)
@option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Random seed of the division.")
@out_option(None, "Write the fold of each key, counted from 1, to this .csv or .json file.", "FILE")
@json_option
def folds(
    store: str | Path,
    k: int,
    split: str,
    stratify: str | None,
    groups: str | None,
    repeats: int,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Show or write cross-validation folds of a STORE.

    The table shows the rows and groups of each fold, and the fraction of each class. The column deviation is the
    largest difference from an even division. No image is decoded, and no store is written.

    The folds depend on keys, the seed and the sizes of the classes. tsds train --fold uses the same folds.

    \b
    Examples:
      tsds folds photos.tsds -k 5 --stratify label
      tsds folds scans.tsds --groups 'patient([0-9]+)' --stratify label --out folds.csv
      tsds train photos.tsds --fold 2/5 --stratify label --out runs/fold2
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are printed below
        made = tensorstore_ds.folds(store, k, stratify=stratify, groups=groups, repeats=repeats, seed=seed, split=split)
    if out is not None:
        made.save(out)
    if as_json:
        text.echo_json(made.as_data())
        return
    for line in str(made).splitlines():
        text.echo(line)
    for note in made.warnings:
        text.echo(f"note: {note}", err=True)
    if out is not None:
        text.echo()
        text.echo(f"{out}: {text.count(made.numbers.shape[1], 'key')}")
