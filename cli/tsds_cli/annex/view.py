"""``tsds view``: a store, a training run or a folder of images in the browser."""

from __future__ import annotations

import shlex
import time
import webbrowser
from pathlib import Path

import click

from tsds_cli import text
from tsds_cli.options import json_option, option, path, store_argument

#: What a store or a training run has, and a folder of images has not.
_KNOWN = ("zarr.json", "history.jsonl")


@click.command()
@store_argument("target")
@option("--run", "runs", multiple=True, type=path, metavar="DIR", help="Also show the curves of this training run.")
@option("--findings", type=path, metavar="FILE", help="Also show the findings in this file of tsds check --out.")
@option(
    "--export",
    "out",
    type=path,
    metavar="DIR",
    help="Write the page and the store to this folder, instead of serving them.",
)
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="a free port",
    help="Port to listen on.",
)
@option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on, such as 0.0.0.0 for all networks. The connection is not encrypted.",
)
@option(
    "--open/--no-open",
    "is_opened",
    default=True,
    help="Open the page in the browser of this machine.",
    show_default=True,
)
@json_option
def view(
    target: str | Path,
    runs: tuple[Path, ...],
    findings: Path | None,
    out: Path | None,
    port: int,
    host: str,
    is_opened: bool,
    as_json: bool,
) -> None:
    """View a store, a training run or images in the browser.

    TARGET is a path, or the URL of a store. You can scroll through all samples, filter and sort them, look at boxes and
    masks, and save the rows of a selection. A folder of images is first converted into a temporary store. Tags are
    saved in STORE.tags.json. The address contains a token, without which the page cannot be opened. Stop the command
    with Ctrl-C.

    \b
    Examples:
      tsds view photos.tsds
      tsds view photos.tsds --findings findings.json
      tsds view runs/vit --run runs/other
      tsds view photos.tsds --export site
    """
    import tensorstore_ds
    from tensorstore_ds.words import place

    if out is not None:
        made = tensorstore_ds.export_view(target, out, runs=runs, findings=findings)
        if as_json:
            text.echo_json({"path": str(made)})
        else:
            text.echo(f"wrote {made}; any web server that answers ranges can serve this folder")
        return

    def notify(line: str) -> None:
        text.echo(text.Styled(f"note: {line}", fg="yellow"), err=True)

    if isinstance(target, Path) and target.is_dir() and not any((target / n).exists() for n in _KNOWN):
        text.echo(f"converting {target} into a temporary store", err=True)
    try:
        with tensorstore_ds.view(target, runs=runs, findings=findings, host=host, port=port, notify=notify) as url:
            if as_json:
                text.echo_json({"target": place(target), "url": url})
            else:
                text.echo(f"showing {shlex.quote(place(target))} at ", text.Styled(url, bold=True))
            if is_opened:
                webbrowser.open(url)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        if not as_json:
            text.echo("stopped")
