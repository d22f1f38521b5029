"""``tsds pull``: a store is copied from a URL."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from tsds_cli.options import json_option, option, path_argument, sha256_option
from tsds_cli.progress import ProgressBar
from tsds_cli.transfers import going_on, names, place_argument, show


@click.command()
@place_argument("url", "URL")
@path_argument("out")
@option("--only", "splits", type=names, metavar="NAME,...", help="Download only these splits.")
@option("--fields", type=names, metavar="NAME,...", help="Download only these fields.")
@option("--verify", is_flag=True, help="Also check chunks and values, as tsds verify does. SHA-256 is always compared.")
@option("--workers", type=click.IntRange(1, 256), default=8, show_default=True, help="Number of parallel requests.")
@sha256_option
@json_option
def pull(
    url: str,
    out: Path,
    splits: tuple[str, ...] | None,
    fields: tuple[str, ...] | None,
    verify: bool,
    workers: int,
    sha256: str | None,
    as_json: bool,
) -> None:
    """Download a store, or parts of it, from a URL to OUT.

    URL is s3://, gs://, az://, https://, http://, hf://datasets/NAME[@REVISION][/PATH] or file://. Every file is
    compared with its SHA-256. OUT appears in one step. Until then, the copy is in OUT.partial. After an interruption,
    the same command downloads the remaining files.

    \b
    Examples:
      tsds pull s3://bucket/photos.tsds photos.tsds
      tsds pull https://example.org/photos.tsds labels.tsds --only train --fields label,key
    """
    import tensorstore_ds as tsds

    with going_on(), ProgressBar() as bar:
        done = tsds.pull(
            url,
            out,
            splits=splits,
            fields=fields,
            sha256=sha256,
            verify=verify,
            workers=workers,
            progress=partial(bar.update_bytes, "Fetching"),
        )
    show(done, as_json)
