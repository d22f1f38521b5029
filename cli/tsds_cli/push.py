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

    URL is s3://, gs://, az://, hf://datasets/NAME/PATH or file://. Credentials are those of the environment. The store
    appears at the URL in one step, when all of its files are there. The same command transfers nothing a second time,
    and after an interruption it goes on. Another store at the URL is never overwritten.

    With --update, a store that has grown or was changed replaces its earlier state at the URL. Programs that have that
    open go on with it. Only new files are sent.

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
