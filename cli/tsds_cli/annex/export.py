"""``tsds export``: a store as files in the format of others."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

import tensorstore_ds
from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import not_made
from tsds_cli.options import Choice, json_option, option, path_argument, splits_option, store_argument
from tsds_cli.progress import ProgressBar


@click.command()
@store_argument()
@path_argument("out")
@option(
    "--to",
    required=True,
    type=Choice(list(tensorstore_ds.EXPORT_FORMATS)),
    help="Format to write.",
    metavar="FORMAT",
)
@splits_option
@json_option
def export(store: str | Path, out: Path, to: str, splits: tuple[str, ...], as_json: bool) -> None:
    """Export a STORE to COCO, YOLO, VOC or another format.

    Images are written as stored: the original files, or pixels as PNG files. OUT appears when it is complete. The
    command counts samples with fields that the format cannot represent.

    \b
    Examples:
      tsds export photos.tsds photos --to folders
      tsds export voc.tsds cells --to coco
      tsds export voc.tsds cells-yolo --to yolo --split train --split val
    """
    try:
        with ProgressBar() as bar:

            def show(done: int, total: int) -> None:
                bar.show("Exporting", done, total, f"{done:,}/{total:,}", words.rate)

            summary = tensorstore_ds.export(store, out, to, splits=splits or None, progress=show)
    except KeyboardInterrupt:
        raise not_made(out) from None
    if as_json:
        text.echo_json(summary)
        return
    files = f"{text.count(sum(summary.samples.values()), 'sample')} in {text.count(summary.files, 'file')}"
    text.echo(text.Styled(str(out), bold=True), f"  {files}, {words.duration(summary.seconds)}")
    if summary.left_out:
        what = ", ".join(f"{name} ({text.count(n, 'sample')})" for name, n in summary.left_out.items())
        text.echo(text.Styled(f"not written: {what}; {to} has no place for it", fg="yellow"))
    for note in summary.notes:
        text.echo(text.Styled(f"note: {note}", fg="yellow"), err=True)
    text.echo(f"next: {text.program()} convert {shlex.quote(str(out))} again.tsds")
