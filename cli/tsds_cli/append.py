"""``tsds append``: the samples of a data set at the end of a store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

import tensorstore_ds
from tensorstore_ds import ConvertOptions
from tsds_cli.editing import made
from tsds_cli.options import F, json_option, option_of, path_argument

#: The options that may differ from those of the store.
_OPTIONS = ("format", "images", "split", "class_map", "on_error", "workers")


def _conversion_options(command: F) -> F:
    for name in reversed(_OPTIONS):
        command = option_of(ConvertOptions, name)(command)
    return command


@click.command()
@path_argument("store")
@path_argument("source", "SRC")
@_conversion_options
@json_option
def append(store: Path, source: Path, as_json: bool, **given: Any) -> None:
    """Convert the data set SRC, and append its samples to a STORE.

    Samples that the store has already are left out: SRC may be the folder that it was made of, which has grown. Images
    are stored as those of the store are. New shards are written, and after them the manifest, in one step: whoever has
    the store open goes on with what it was.

    \b
    Examples:
      tsds append photos.tsds photos
      tsds append photos.tsds more/photos --on-error skip
    """
    changes = {name: value for name, value in given.items() if value is not None}
    if "class_map" in changes:
        changes["class_map"] = tensorstore_ds.read_class_map(changes["class_map"])
    run = partial(tensorstore_ds.append, store, source, **changes)
    made(store, as_json, run, again="the same command goes on, unless all was done")
