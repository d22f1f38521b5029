"""``tsds serve``: a store over HTTP."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

from tsds_cli import text
from tsds_cli.options import json_option, option, path_argument, sha256_option


@click.command()
@path_argument("store")
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on. 0 chooses a free port.",
)
@option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on, such as 0.0.0.0 for all networks. Any address but 127.0.0.1 needs a token.",
)
@option(
    "--token",
    metavar="TEXT",
    help="First part of every path: 16 to 128 letters, digits, - and _.",
    show_default="a new token, if one is needed",
)
@sha256_option
@json_option
def serve(store: Path, port: int, host: str, token: str | None, sha256: str | None, as_json: bool) -> None:
    """Serve a STORE over HTTP.

    Clients can read the files of the store, by ranges, and nothing else. With --host, other machines can connect. They
    need the token in the URL: share the URL only with those who may read the store. The connection is not encrypted.
    Stop the command with Ctrl-C.

    \b
    Examples:
      tsds serve photos.tsds
      tsds serve photos.tsds --host 0.0.0.0 --port 9000
    """
    from tensorstore_ds import serve as run

    def notify(line: str) -> None:
        text.echo(text.Styled(f"note: {line}", fg="yellow"), err=True)

    try:
        with run(store, host=host, port=port, token=token, sha256=sha256, notify=notify) as url:
            if as_json:
                text.echo_json({"path": str(store), "url": url})
            else:
                text.echo(f"serving {store} at ", text.Styled(url, bold=True))
                text.echo(f"next: {text.program()} info {shlex.quote(url)}")
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        if not as_json:
            text.echo("stopped")
