"""``tsds demo``: try everything on real digits, in about a minute."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.annex.options import out_option
from tsds_cli.messages import Failure
from tsds_cli.options import option
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds.annex.training import EpochRecord


@click.command()
@out_option("demo", "Folder to work in. Files of an earlier demo there are replaced.")
@option("--train/--no-train", default=True, help="Also train a vision transformer on the digits.", show_default=True)
def demo(out: Path, train: bool) -> None:
    """Try everything on real digits: convert, check and train.

    Writes a folder of PNG images per class and a Pascal VOC data set. Then converts both into stores, verifies them,
    draws contact sheets, and trains a small vision transformer, which takes most of a minute. The digits come with
    scikit-learn (pip install '.[demo]' in a clone of tensorstore-ds). Nothing is downloaded.

    \b
    Examples:
      tsds demo
      tsds demo --out /tmp/demo --no-train
    """
    from tensorstore_ds.annex.demo import run

    total = 0.0
    for step in run(out):
        total += step.seconds
        _show(step.seconds, step.done, step.path)
    if train:
        total += _train(out)
    _show(total, "in all")
    digits, scenes = (shlex.quote(str(out / name)) for name in ("digits", "scenes"))
    tsds, python = text.program(), text.program("python")
    shown = f"print(tsds.open({str(out / 'digits.tsds')!r})['train']['image'])"
    text.head(f"Look at the contact sheets{' and the curves' if train else ''}, then type:")
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


def _show(seconds: float | None, done: str, path: object = "") -> None:
    taken = "" if seconds is None else words.duration(seconds)
    text.echo(f"{taken:>7}  {done:<52}  {path}".rstrip())


def _train(out: Path) -> float:
    """Train, print the result with the curve, and return the time."""
    from tensorstore_ds.annex.demo import train_digits
    from tensorstore_ds.annex.training import Listeners
    from tensorstore_ds.errors import TrainingStopped

    records: list[EpochRecord] = []
    with ProgressBar() as progress:
        try:
            report = train_digits(out, Listeners(progress=progress.update_training, epoch=records.append))
        except TrainingStopped as error:  # whose advice is for tsds train
            raise Failure(
                "interrupted. The same command starts again from the beginning.", 128 + error.signal
            ) from error
    if report is None:
        return 0.0
    rate = f"{report.samples_per_second:,.0f} images per second"
    _show(report.seconds, f"trained {report.epochs} epochs, {rate}", report.folder)
    curve = text.sparkline([(record.eval or {})[report.metric] for record in records])
    _show(None, f"{report.metric} of images not seen  {curve}  {report.best[report.metric]:.3f}")
    if not report.pictures:
        _show(None, "no curves drawn, matplotlib is not installed: pip install '.[plots]' in a clone of tensorstore-ds")
    for name in report.pictures:
        _show(None, f"drew {name}", report.folder / name)
    return report.seconds
