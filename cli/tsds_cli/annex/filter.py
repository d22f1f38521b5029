"""``tsds filter``: the samples of a store that meet a condition."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import tensorstore_ds
from tsds_cli.annex.editing import listed_rows, made
from tsds_cli.options import json_option, option, path, path_argument, splits_option, store_argument


@click.command(name="filter")
@store_argument()
@path_argument("out")
@option("--where", metavar="CONDITION", help="Keep samples that meet this condition. See the examples.")
@splits_option
@option(
    "--without",
    type=path,
    metavar="FILE",
    help='Remove rows that a JSON file lists, such as the output of tsds check --out: {"drop": {"train": [3, 17]}}.',
)
@json_option
def filter(
    store: str | Path, out: Path, where: str | None, splits: tuple[str, ...], without: Path | None, as_json: bool
) -> None:
    """Filter the samples of a STORE into a new store OUT.

    A condition is written as in Python. It can use key, label, width, height, objects (their number), classes (of the
    objects), and each field with one number per sample. No image is decoded.

    \b
    Examples:
      tsds filter photos.tsds cats.tsds --where "label == 'cat' and width > 200"
      tsds filter voc.tsds dogs.tsds --where "'dog' in classes or objects > 5"
      tsds filter photos.tsds train.tsds --split train
    """
    if where is None and not splits and without is None:
        raise click.UsageError("Give --where, --split, --without, or several of them.")
    listed = None if without is None else listed_rows(without)
    drop, sha256 = (None, None) if listed is None else (listed.rows, listed.sha256)
    run = partial(tensorstore_ds.filter_store, store, out, where, splits=splits or None, drop=drop, sha256=sha256)
    made(out, as_json, run)
