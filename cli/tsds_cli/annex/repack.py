"""``tsds repack``: the same store in another layout, or with its images in another encoding."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tensorstore_ds import RepackOptions, words
from tsds_cli import text
from tsds_cli.messages import interrupted, not_made
from tsds_cli.options import Command, json_option, options_of, path_argument, store_argument
from tsds_cli.progress import ProgressBar


@click.command(cls=Command)
@store_argument("source", "SRC")
@path_argument("out")
@options_of(RepackOptions)
@json_option
def repack(source: str | Path, out: Path, options: RepackOptions, as_json: bool) -> None:
    """Change the encoding or layout of a store SRC, as OUT.

    A new layout keeps every value, bit for bit. A new encoding changes the images. If they are resized, boxes,
    keypoints and masks are resized with them. SRC is not changed.

    \b
    Examples:
      tsds repack photos.tsds photos-small.tsds --layout zarr
      tsds repack downloaded.tsds photos.tsds --layout memmap
      tsds repack photos.tsds small.tsds --encoding jpeg --max-side 512
      tsds repack small.tsds pixels.tsds --encoding raw --size 224 --fit crop
    """
    from tensorstore_ds import repack as run

    if options.layout is None and options.encoding is None:
        raise click.UsageError("Give --layout, --encoding or both.")
    try:
        with ProgressBar() as bar:
            summary = run(source, out, options, progress=bar.update)
    except KeyboardInterrupt:
        partial = out.with_name(f"{out.name}.partial")
        if options.encoding is not None and partial.exists():
            done = f"interrupted; finished shards are kept in {partial}, the same command goes on from there"
            raise interrupted(done) from None
        raise not_made(out) from None
    if as_json:
        text.echo_json(summary)
        return
    made = [each for each in (options.layout, options.encoding) if each is not None]
    done = f"{', '.join(made)}, {words.size(summary.nbytes)}, {words.duration(summary.seconds)}"
    text.echo(text.Styled(str(out), bold=True), f"  {done}")
    if summary.resumed:
        text.echo(f"used again: {text.count(summary.resumed, 'shard')} that an earlier run had finished")
    if summary.skipped:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in summary.skipped.items())
        text.echo(text.Styled(f"skipped: {reasons}, each named in {out / 'skipped.jsonl'}", fg="yellow"))
    text.echo(f"next: {text.program()} verify {shlex.quote(str(out))}")
