"""``tsds preview``: a contact sheet of some samples."""

from __future__ import annotations

from pathlib import Path

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import Failure
from tsds_cli.options import option, out_option, rows as row_numbers, store_argument


@click.command()
@store_argument()
@option("--split", metavar="NAME", help="Split to show.", show_default="train, or the first split with samples")
@option("--count", type=click.IntRange(1, 1000), default=24, show_default=True, help="Number of random samples.")
@option("--rows", type=row_numbers, metavar="N,N,...", help="Show these rows instead of random samples.")
@option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed of the samples.")
@out_option("preview.png", "PNG file to write. An existing file is replaced.", "FILE")
def preview(
    store: str | Path, split: str | None, count: int, rows: tuple[int, ...] | None, seed: int, out: Path
) -> None:
    """Draw samples of a STORE as a contact sheet (PNG).

    Samples are drawn with their classes, boxes, keypoints and masks, from the bytes that training reads.

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
