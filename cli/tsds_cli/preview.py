"""``tsds preview``: a contact sheet of some samples."""

from __future__ import annotations

from pathlib import Path

import click

from tsds_cli import text
from tsds_cli.failure import Failure
from tsds_cli.options import out_option, path_argument, rows as row_numbers


@click.command()
@path_argument("store")
@click.option("--split", metavar="NAME", help="The split to show. [default: train, or else the first]")
@click.option(
    "--count", type=click.IntRange(1, 1000), default=24, show_default=True, help="How many samples to draw at random."
)
@click.option("--rows", type=row_numbers, metavar="N,N,...", help="Show these rows, instead of a draw.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the draw.")
@out_option("preview.png", "The PNG file to write; one that exists is replaced.", "FILE")
def preview(store: Path, split: str | None, count: int, rows: tuple[int, ...] | None, seed: int, out: Path) -> None:
    """Draw samples of a STORE as a contact sheet (PNG).

    With their classes, boxes, landmarks and masks. Everything is drawn from the packed bytes: what you see is what
    training reads.

    \b
    Examples:
      tsds preview photos.tsds
      tsds preview voc.tsds --split val --count 12 --out val.png
      tsds preview voc.tsds --rows 0,17,204
    """
    from tensorstore_ds.pictures.contact_sheet import choose_rows, contact_sheet
    from tensorstore_ds.reading.store import open as open_store

    opened = open_store(store)
    if split is not None and split not in opened:
        raise Failure(f"{store}: there is no split {split}. Choose one of {', '.join(opened.splits)}.")
    filled = [name for name in opened if len(opened[name])]
    if split is None and not filled:
        raise Failure(f"{store}: it has no samples to show.")
    chosen = opened[split or ("train" if "train" in filled else filled[0])]
    sheet = contact_sheet(chosen, choose_rows(chosen, count, seed=seed) if rows is None else rows)
    sheet.save(out, "PNG")
    shown = text.count(min(count, len(chosen)) if rows is None else len(rows), "sample")
    text.echo(f"{out}: {shown} of {chosen.name}, {sheet.width} x {sheet.height} pixels")
