"""``tsds add``: a field from a file, in a store that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tensorstore_ds
from tsds_cli.editing import made, tell_added
from tsds_cli.options import json_option, path_argument

if TYPE_CHECKING:
    from tensorstore_ds import FieldsSummary


@click.command()
@path_argument("store")
@path_argument("file")
@click.option("--name", help="The name of the field.", show_default="the name of FILE, or of its column")
@click.option("--split", metavar="NAME", help="The values are for this split. Others keep theirs, or have none.")
@click.option("--key", metavar="COLUMN", help="The column of a table with the keys of samples.", show_default="key")
@click.option(
    "--column", "columns", metavar="COLUMN", multiple=True, help="Only this column of a table; repeat it for several."
)
@click.option(
    "--missing",
    metavar="VALUE",
    help="The value of samples that a table lacks: a number, such as nan, or a text.",
)
@click.option(
    "--classes", type=click.Path(path_type=Path), metavar="FILE", help="Store the values as labels of these classes."
)
@click.option("--replace", is_flag=True, help="Replace the values of a field that the STORE has.")
@json_option
def add(store: Path, file: Path, columns: tuple[str, ...], classes: Path | None, as_json: bool, **given: Any) -> None:
    """Add a field to a STORE, such as losses or tags, from a FILE.

    FILE is .npy with a row for each sample, in the order of the store, or a table, .csv, .tsv or .parquet, with a
    column of keys. Images are neither read nor written: the new files are beside the others. The manifest is replaced
    last, in one step, so that processes that have the store open keep reading it as it was.

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
