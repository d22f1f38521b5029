"""``tsds push``: a store is copied to a URL."""

from __future__ import annotations

from functools import partial

import click

from tsds_cli.options import json_option, option
from tsds_cli.progress import ProgressBar
from tsds_cli.transfers import going_on, place_argument, show


@click.command()
@place_argument("store", "STORE")
@place_argument("url", "URL")
@option("--update", is_flag=True, help="Replace an earlier version of the store at the URL.")
@json_option
def push(store: str, url: str, update: bool, as_json: bool) -> None:
    """Upload a STORE to a URL.

    URL is s3://, gs://, az://, hf://datasets/NAME/PATH or file://. Credentials are read from the environment. The store
    appears at the URL in one step, when all files are uploaded. After an interruption, the same command continues with
    the remaining files. A different store at the URL is never overwritten.

    With --update, the store replaces its earlier state at the URL, not with file://. Only new files are uploaded.
    Programs that have the earlier state open continue until they read a shard that was removed.

    \b
    Examples:
      tsds push photos.tsds s3://bucket/photos.tsds
      tsds push photos.tsds s3://bucket/photos.tsds --update
      tsds push photos.tsds hf://datasets/me/photos/photos.tsds
    """
    import tensorstore_ds as tsds

    with going_on(), ProgressBar() as bar:
        done = tsds.push(store, url, update=update, progress=partial(bar.update_bytes, "Pushing"))
    show(done, as_json)
