"""``tsds demo``: everything once, on real digits, in about a minute."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsds_cli import text
from tsds_cli.options import out_option
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import EpochRecord


@click.command()
@out_option("demo", "The folder to work in; what an earlier demo left there is replaced.")
@click.option("--train/--no-train", default=True, help="Whether to train a vision transformer on them, too.")
def demo(out: Path, train: bool) -> None:
    """Convert, verify, draw and train on real handwritten digits.

    Writes class folders of PNG images and a Pascal VOC data set, as people have them, then the stores and their contact
    sheets; then trains a small vision transformer, which takes most of a minute. The digits come with scikit-learn
    (pip install 'tensorstore-ds[demo]'); nothing is downloaded.

    \b
    Examples:
      tsds demo
      tsds demo --out /tmp/demo --no-train
    """
    from tensorstore_ds.demo import run

    total = 0.0
    for step in run(out):
        total += step.seconds
        text.echo(f"{text.duration(step.seconds):>7}  {step.done:<52}  {step.path}")
    if train:
        total += _train(out)
    text.echo(f"{text.duration(total):>7}  in all")
    digits, scenes = (shlex.quote(str(out / name)) for name in ("digits", "scenes"))
    tsds, python = text.program(), text.program("python")
    shown = f"print(tsds.open({str(out / 'digits.tsds')!r})['train']['image'])"
    text.head(
        "Look at the contact sheets and the curves, then type:" if train else "Look at the contact sheets, then type:"
    )
    commands = [
        f"{tsds} info {digits}.tsds",
        f"{tsds} stats {scenes}.tsds",
        f"{tsds} preview {scenes}.tsds --split val",
        f"{tsds} convert {scenes} {scenes}-64.tsds --size 64x64 --fit stretch",
        f'{python} -c "import tensorstore_ds as tsds; {shown}"',
    ]
    if train:
        commands.append(f"{tsds} predict {digits}.run/best.pt {digits}/test/3/*.png")
    for command in commands:
        text.echo(f"  {command}")


def _train(out: Path) -> float:
    """Train, print what came of it with the curve, and say how long it took."""
    from tensorstore_ds import Listeners
    from tensorstore_ds.demo import train_digits

    records: list[EpochRecord] = []
    with ProgressBar() as progress:
        report = train_digits(out, Listeners(progress=progress.update_training, epoch=records.append))
    if report is None:
        return 0.0
    done = f"trained {report.epochs} epochs, {report.samples_per_second:,.0f} images a second"
    text.echo(f"{text.duration(report.seconds):>7}  {done:<52}  {report.folder}")
    curve = text.sparkline([(record.eval or {})[report.metric] for record in records])
    text.echo(f"{'':>7}  {report.metric} of images not seen  {curve}  {report.best[report.metric]:.3f}")
    if not report.pictures:
        text.echo(f"{'':>7}  no curves drawn, matplotlib is not installed: pip install 'tensorstore-ds[plots]'")
    for name in report.pictures:
        text.echo(f"{'':>7}  {'drew ' + name:<52}  {report.folder / name}")
    return report.seconds
