"""``tsds preview``: a contact sheet of some samples."""

from __future__ import annotations

from pathlib import Path

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import Failure
from tsds_cli.options import out_option, rows as row_numbers, store_argument


@click.command()
@store_argument()
@click.option("--split", metavar="NAME", help="The split to show.", show_default="train, or the first with samples")
@click.option(
    "--count", type=click.IntRange(1, 1000), default=24, show_default=True, help="How many samples to draw at random."
)
@click.option("--rows", type=row_numbers, metavar="N,N,...", help="Show these rows, instead of random ones.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random choice.")
@out_option("preview.png", "The PNG file to write; one that exists is replaced.", "FILE")
def preview(
    store: str | Path, split: str | None, count: int, rows: tuple[int, ...] | None, seed: int, out: Path
) -> None:
    """Draw samples of a STORE as a contact sheet (PNG).

    Draws them with their classes, boxes, keypoints and masks, from the bytes that training reads.

    \b
    Examples:
      tsds preview photos.tsds
      tsds preview voc.tsds --split val --count 12 --out val.png
      tsds preview voc.tsds --rows 0,17,204
    """
    import tensorstore_ds as tsds

    if out.suffix.lower() != ".png":
        raise Failure(
            f"{out}: expected a name that ends in .png, because the picture is a PNG file. Choose another name."
        )
    tsds.check_outside_stores(out)
    opened = tsds.open(store)
    filled = sorted((name for name in opened if len(opened[name])), key=lambda name: name != "train")
    if split is None and not filled:
        raise Failure(f"{words.place(store)}: it has no samples to show.")
    chosen = opened[split or filled[0]]
    sheet = tsds.preview(chosen, rows, count=count, seed=seed)
    sheet.save(out, "PNG")
    shown = text.count(min(count, len(chosen)) if rows is None else len(rows), "sample")
    text.echo(f"{out}: {shown} of {chosen.name}, {sheet.width} x {sheet.height} pixels")
