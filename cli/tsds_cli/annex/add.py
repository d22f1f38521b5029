"""``tsds add``: a field from a file, in a store that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tensorstore_ds
from tsds_cli.annex.editing import made, tell_added
from tsds_cli.options import json_option, option, path_argument

if TYPE_CHECKING:
    from tensorstore_ds import FieldsSummary


@click.command()
@path_argument("store")
@path_argument("file")
@option(
    "--name",
    help="Name of the field.",
    show_default="the name of FILE, or of its column",
    metavar="NAME",
)
@option(
    "--split", metavar="NAME", help="Split that the values belong to. Other splits keep their values, or have none."
)
@option("--key", metavar="COLUMN", help="Column of a table with the keys of samples.", show_default="key")
@option(
    "--column",
    "columns",
    metavar="COLUMN",
    multiple=True,
    help="Use only this column of a table. Repeat the option for several columns.",
)
@option(
    "--missing",
    metavar="VALUE",
    help="Value for samples without a row in the table: a number, such as nan, or a text.",
)
@option(
    "--classes",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Store the values as labels of the classes in this file.",
)
@option("--replace", is_flag=True, help="Replace the values of an existing field.")
@json_option
def add(store: Path, file: Path, columns: tuple[str, ...], classes: Path | None, as_json: bool, **given: Any) -> None:
    """Add a field, such as losses or tags, to a STORE.

    FILE is an array (.npy) with a row for each sample, in the order of the store, or a table (.csv, .tsv or .parquet)
    with a column of keys. Images are neither read nor written. The manifest is replaced last, in one step. Processes
    with the store open keep the old view.

    \b
    Examples:
      tsds add photos.tsds losses.npy --name loss --split train
      tsds add photos.tsds tags.csv --missing ""
      tsds add photos.tsds scores.parquet --key file_name --column score --replace
    """
    names = None if classes is None else tensorstore_ds.read_classes(classes)
    chosen = {"columns": columns or None, "classes": names, **given}
    done: list[FieldsSummary] = []

    def run(**progress: Any) -> FieldsSummary:
        done.append(tensorstore_ds.add_file(store, file, **chosen, **progress))
        return done[-1]

    made(store, as_json, run, again="nothing was added", told=lambda: tell_added(done[-1]))
