"""``tsds copy``: a store is copied from anywhere to anywhere."""

from __future__ import annotations

from functools import partial

import click

from tsds_cli.options import json_option
from tsds_cli.progress import ProgressBar
from tsds_cli.transfers import going_on, place_argument, show


@click.command()
@place_argument("source", "SRC")
@place_argument("target", "DST")
@json_option
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy a store from SRC to DST, each a path or a URL.

    Every file is compared with its SHA-256. DST appears in one step, when it is complete, and is never overwritten.
    After an interruption, the same command continues.

    \b
    Examples:
      tsds copy /mnt/share/photos.tsds /scratch/photos.tsds
      tsds copy s3://bucket/photos.tsds gs://bucket/photos.tsds
    """
    import tensorstore_ds as tsds

    with going_on(), ProgressBar() as bar:
        done = tsds.copy(source, target, progress=partial(bar.update_bytes, "Copying"))
    show(done, as_json)
