"""``tsds repack``: the same store in the other layout."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import ConvertOptions
from tsds_cli import text
from tsds_cli.failure import Interrupted
from tsds_cli.options import json_option, option_of, path_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds.format.schema import Layout


@click.command()
@path_argument("source", "SRC")
@path_argument("out")
@option_of(ConvertOptions, "layout", required=True, default=None, show_default=False)
@json_option
def repack(source: Path, out: Path, layout: Layout, as_json: bool) -> None:
    """Write the store SRC again as OUT, in another layout.

    Every value stays the same, bit for bit. SRC is not touched.

    \b
    Examples:
      tsds repack photos.tsds photos-small.tsds --layout zarr
      tsds repack downloaded.tsds photos.tsds --layout memmap
    """
    from tensorstore_ds import repack as run

    try:
        with ProgressBar() as bar:
            summary = run(source, out, layout=layout, progress=bar.update)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {out} was not made") from None
    if as_json:
        text.echo_json(summary)
        return
    done = f"{layout}, {text.size(summary.nbytes)}, {text.duration(summary.seconds)}"
    text.echo(text.Styled(str(out), bold=True), f"  {done}")
    text.echo(f"next: {text.program()} verify {shlex.quote(str(out))}")
