"""``tsds repack``: the same store in the other layout."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import click

from tensorstore_ds import ConvertOptions, words
from tsds_cli import text
from tsds_cli.messages import interrupted
from tsds_cli.options import json_option, option_of, path_argument
from tsds_cli.progress import ProgressBar


@click.command()
@path_argument("source", "SRC")
@path_argument("out")
@option_of(ConvertOptions, "layout", required=True, show_default=False)
@json_option
def repack(source: Path, out: Path, layout: Literal["memmap", "zarr"], as_json: bool) -> None:
    """Write the store SRC again as OUT, in another layout.

    Every value stays the same, bit for bit. SRC is not changed.

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
        raise interrupted(f"interrupted; {out} was not made") from None
    if as_json:
        text.echo_json(summary)
        return
    done = f"{layout}, {words.size(summary.nbytes)}, {words.duration(summary.seconds)}"
    text.echo(text.Styled(str(out), bold=True), f"  {done}")
    text.echo(f"next: {text.program()} verify {shlex.quote(str(out))}")
