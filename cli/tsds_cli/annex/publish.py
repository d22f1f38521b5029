"""Commands that publish a store: a card, other formats, and a server."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import click

import tensorstore_ds as tsds
from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.annex.options import server_options
from tsds_cli.options import (
    Choice,
    json_option,
    option,
    path,
    path_argument,
    sha256_option,
    splits_option,
    store_argument,
)
from tsds_cli.progress import ProgressBar, working


@click.command()
@path_argument("store")
@click.argument("out", type=path, metavar="[OUT_DIR]", required=False)
@option(
    "--from",
    "answers",
    type=path,
    metavar="FILE",
    help="Answers to the questions of the card, as YAML.",
    show_default="card.yaml in OUT_DIR, which the first call creates",
)
@option("--croissant", is_flag=True, help="Also write croissant.json, and small samples as Parquet in preview/.")
@option("--strict", is_flag=True, help="Fail if answers are missing, and list them.")
@json_option
def card(store: Path, out: Path | None, answers: Path | None, croissant: bool, strict: bool, as_json: bool) -> None:
    """Write a dataset card for a STORE, with a preview.

    OUT_DIR is by default the folder NAME-card next to the store. README.md describes the data, how it was made and its
    known problems. CITATION.cff contains the citation. The command writes questions that only you can answer to
    card.yaml. Answer them, and run the command again.

    \b
    Examples:
      tsds card photos.tsds
      tsds card photos.tsds photos-card --croissant --strict
      tsds card photos.tsds hub --from card.yaml --croissant
    """
    written = tsds.card(store, out, answers=answers, croissant=croissant, strict=strict)
    if as_json:
        text.echo_json(written)
        return
    text.title(written.path, ", ".join(written.files))
    if written.missing:
        shown = ", ".join(written.missing)
        text.echo(text.Styled(f"missing: {shown}", fg="yellow"))
        text.echo(f"next: fill in {written.questions}, and run this again")


def _show(bar: ProgressBar, label: str, done: int, total: int) -> None:
    bar.show(label, done, total, f"{done:,}/{total:,}", words.rate)


@click.command()
@store_argument()
@path_argument("out")
@option(
    "--to", required=True, type=Choice(list(tsds.exporting.EXPORT_FORMATS)), help="Format to write.", metavar="FORMAT"
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
    with working(out) as bar:
        summary = tsds.export(store, out, to, splits=splits or None, progress=partial(_show, bar, "Exporting"))
    if as_json:
        text.echo_json(summary)
        return
    files = f"{text.count(sum(summary.samples.values()), 'sample')} in {text.count(summary.files, 'file')}"
    text.title(out, f"{files}, {words.duration(summary.seconds)}")
    if summary.left_out:
        what = ", ".join(f"{name} ({text.count(n, 'sample')})" for name, n in summary.left_out.items())
        text.echo(text.Styled(f"not written: {what}; {to} has no place for it", fg="yellow"))
    for note in summary.notes:
        text.note(note, err=True)
    text.echo(f"next: {text.call('convert', out)} again.tsds")


@click.command()
@store_argument()
@path_argument("out")
@splits_option
@json_option
def table(store: str | Path, out: Path, splits: tuple[str, ...], as_json: bool) -> None:
    """Write the samples of a STORE as a table, without images.

    OUT is a Parquet file with a row for each sample: key, split, row, class names, objects with their boxes, texts,
    numbers and sizes. DuckDB, pandas and polars read it. tsds filter, tsds view and tsds add take tables with a column
    key back.

    \b
    Examples:
      tsds table photos.tsds photos.parquet
      tsds table voc.tsds train.parquet --split train
    """
    with working(out) as bar:
        progress = partial(_show, bar, "Writing")
        summary = tsds.exporting.write_table(store, out, splits=splits or None, progress=progress)
    if as_json:
        text.echo_json(summary)
        return
    text.title(out, f"{text.count(sum(summary.samples.values()), 'sample')}, {words.duration(summary.seconds)}")
    if summary.left_out:
        text.echo(text.Styled(f"not written: {', '.join(summary.left_out)}", fg="yellow"))


@click.command()
@path_argument("store")
@server_options(port=8000, note="Any address but 127.0.0.1 needs a token.")
@option(
    "--token",
    metavar="TEXT",
    help="First part of every path: 16 to 128 letters, digits, - and _.",
    show_default="a new token, if one is needed",
)
@sha256_option
@json_option
def serve(store: Path, as_json: bool, **given: Any) -> None:
    """Serve a STORE over HTTP.

    Clients can read the files of the store, by ranges, and nothing else. With --host, other machines can connect. They
    need the token in the URL: share the URL only with those who may read the store. The connection is not encrypted.
    Stop the command with Ctrl-C.

    \b
    Examples:
      tsds serve photos.tsds
      tsds serve photos.tsds --host 0.0.0.0 --port 9000
    """
    try:
        with tsds.serve(store, **given, notify=partial(text.note, err=True)) as url:
            if as_json:
                text.echo_json({"path": str(store), "url": url})
            else:
                text.echo(f"serving {store} at ", text.Styled(url, bold=True))
                text.echo(f"next: {text.call('info', url)}")
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        if not as_json:
            text.echo("stopped")
