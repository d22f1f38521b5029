"""``tsds filter``: the samples of a store that meet a condition."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

import tensorstore_ds
from tensorstore_ds.errors import OptionError
from tsds_cli.editing import made
from tsds_cli.options import json_option, path, path_argument, store_argument

_LIMIT = 1 << 28


@click.command(name="filter")
@store_argument()
@path_argument("out")
@click.option("--where", metavar="CONDITION", help="Keep the samples that meet this; see the examples.")
@click.option("--split", "splits", multiple=True, metavar="NAME", help="Only this split; may be given several times.")
@click.option(
    "--without",
    type=path,
    metavar="FILE",
    help='Leave out the rows that a JSON file lists: {"drop": {"train": [3, 17]}}.',
)
@json_option
def filter(
    store: str | Path, out: Path, where: str | None, splits: tuple[str, ...], without: Path | None, as_json: bool
) -> None:
    """Write the samples of a STORE that meet a condition as the store OUT.

    A condition is written as in Python. It can name key, label, width, height, objects (their number), classes (of the
    objects), and each field that is one number a sample. No image is decoded.

    \b
    Examples:
      tsds filter photos.tsds cats.tsds --where "label == 'cat' and width > 200"
      tsds filter voc.tsds dogs.tsds --where "'dog' in classes or objects > 5"
      tsds filter photos.tsds train.tsds --split train
    """
    if where is None and not splits and without is None:
        raise click.UsageError("Give --where, --split, --without, or several of them.")
    drop = None if without is None else _listed(without)
    run = partial(tensorstore_ds.filter_store, store, out, where, splits=splits or None, drop=drop)
    made(out, as_json, run)


def _listed(file: Path) -> dict[str, list[int]]:
    """The rows that a file lists."""
    expected = f'{file}: expected {{"drop": {{"train": [3, 17]}}}}'
    try:
        if file.stat().st_size > _LIMIT:
            raise OptionError(f"{expected}, found a file of more than {_LIMIT:,} bytes.")
        data: Any = json.loads(file.read_bytes())
        drop = data["drop"]
        listed = {str(split): list(rows) for split, rows in drop.items()}
    except OSError as error:
        raise OptionError(f"{expected}, found no file that can be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(f"{expected}, found something else ({type(error).__name__}).") from error
    if any(type(row) is not int for rows in listed.values() for row in rows):
        raise OptionError(f"{expected}, found rows that are no whole numbers.")
    return listed
