"""``tsds pack``: a store as one file."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import not_made
from tsds_cli.options import json_option, path_argument, sha256_option
from tsds_cli.progress import ProgressBar


@click.command()
@path_argument("store")
@path_argument("out")
@sha256_option
@json_option
def pack(store: Path, out: Path, sha256: str | None, as_json: bool) -> None:
    """Pack a STORE into a single file OUT.

    OUT is an uncompressed ZIP file. Every command reads it like the store, without unpacking. Every file is compared
    with its checksum while it is copied. The same store gives the same bytes.

    \b
    Examples:
      tsds pack photos.tsds photos.tsds.zip
      tsds pack photos.tsds photos.tsds.zip --json
      tsds verify photos.tsds.zip
    """
    from tensorstore_ds import pack as run

    try:
        with ProgressBar() as bar:
            packed = run(store, out, sha256=sha256, progress=partial(bar.update_bytes, "Packing"))
    except KeyboardInterrupt:
        raise not_made(out) from None
    nbytes = out.stat().st_size
    if as_json:
        text.echo_json({"path": str(out), "sha256": packed.sha256, "nbytes": nbytes})
        return
    text.echo(text.Styled(str(out), bold=True), f"  {words.size(nbytes)}, the store {packed.sha256}")
    text.echo(f"next: {text.program()} info {shlex.quote(str(out))}")
