"""``tsds sample``: some samples of each class of a store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import tensorstore_ds
from tsds_cli.annex.editing import made
from tsds_cli.options import json_option, option, path_argument, splits_option, store_argument


@click.command()
@store_argument()
@path_argument("out")
@option("--per-class", required=True, type=click.IntRange(1), help="Number of samples per class.")
@option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Random seed of the sample.")
@splits_option
@json_option
def sample(store: str | Path, out: Path, per_class: int, seed: int, splits: tuple[str, ...], as_json: bool) -> None:
    """Sample N images of each class into a new store OUT.

    Samples are chosen at random in each split, and keep their order. Without labels, N samples of each split are
    chosen. No image is decoded.

    \b
    Examples:
      tsds sample photos.tsds small.tsds --per-class 100
      tsds sample photos.tsds small.tsds --per-class 100 --seed 1 --split train
    """
    run = partial(tensorstore_ds.sample_store, store, out, per_class, seed=seed, splits=splits or None)
    made(out, as_json, run)
