"""``tsds relabel``: a store with other class names."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import tensorstore_ds
from tsds_cli.annex.editing import made
from tsds_cli.options import json_option, option, path, path_argument, store_argument


@click.command()
@store_argument()
@path_argument("out")
@option(
    "--class-map",
    required=True,
    type=path,
    metavar="FILE",
    help="Text file with a line OLD = NEW for each class. An empty NEW removes the class.",
)
@json_option
def relabel(store: str | Path, out: Path, class_map: Path, as_json: bool) -> None:
    """Rename, merge or remove classes in a new store OUT.

    Classes with the same new name are merged. If a class is removed, its objects are removed, and its samples have no
    label. Classes that are not in the file keep their names. No image is decoded.

    \b
    Examples:
      tsds relabel voc.tsds animals.tsds --class-map names.txt
      tsds relabel photos.tsds named.tsds --class-map names.txt --json
    """
    names = tensorstore_ds.read_class_map(class_map)
    made(out, as_json, partial(tensorstore_ds.relabel_store, store, out, names))
