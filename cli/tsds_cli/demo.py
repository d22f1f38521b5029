"""``tsds demo``: everything once, on real digits, in a few seconds."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tsds_cli import text


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="demo",
    show_default=True,
    help="The folder to work in; what an earlier demo left there is replaced.",
)
def demo(out: Path) -> None:
    """Convert, verify and draw real handwritten digits.

    Writes class folders of PNG images and a Pascal VOC data set, as people have them, then the stores and their contact
    sheets. The digits come with scikit-learn (pip install 'tensorstore-ds[demo]'); nothing is downloaded.

    \b
    Examples:
      tsds demo
      tsds demo --out /tmp/demo
    """
    from tensorstore_ds.demo import run

    total = 0.0
    for step in run(out):
        total += step.seconds
        click.echo(f"{text.duration(step.seconds):>7}  {step.done:<52}  {step.path}")
    click.echo(f"{text.duration(total):>7}  in all")
    digits, scenes = (shlex.quote(str(out / name)) for name in ("digits", "scenes"))
    tsds, python = text.program(), text.program("python")
    shown = f"print(tsds.open({str(out / 'digits.tsds')!r})['train']['image'])"
    text.head("Look at the contact sheets, then type:")
    for command in (
        f"{tsds} info {digits}.tsds",
        f"{tsds} stats {scenes}.tsds",
        f"{tsds} preview {scenes}.tsds --split val",
        f"{tsds} convert {scenes} {scenes}-64.tsds --size 64x64 --fit stretch",
        f'{python} -c "import tensorstore_ds as tsds; {shown}"',
    ):
        click.echo(f"  {command}")
