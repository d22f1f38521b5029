"""``tsds unpack``: the folder of a packed store."""

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
@path_argument("packed")
@path_argument("out")
@sha256_option
@json_option
def unpack(packed: Path, out: Path, sha256: str | None, as_json: bool) -> None:
    """Unpack a PACKED store into a folder OUT.

    Only the files of the store are written, and each is compared with its checksum. OUT appears when it is complete.
    You can also use a packed store without unpacking it.

    \b
    Examples:
      tsds unpack photos.tsds.zip photos.tsds
      tsds unpack photos.tsds.zip photos.tsds --json
    """
    from tensorstore_ds import unpack as run

    try:
        with ProgressBar() as bar:
            store = run(packed, out, sha256=sha256, progress=partial(bar.update_bytes, "Unpacking"))
    except KeyboardInterrupt:
        raise not_made(out) from None
    if as_json:
        text.echo_json({"path": str(out), "sha256": store.sha256, "nbytes": store.nbytes})
        return
    text.echo(text.Styled(str(out), bold=True), f"  {words.size(store.nbytes)}, the store {store.sha256}")
    text.echo(f"next: {text.program()} info {shlex.quote(str(out))}")
