"""``tsds train``: a vision transformer or a detector, from a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import TrainOptions, words
from tsds_cli import text
from tsds_cli.messages import spelled
from tsds_cli.options import Command, json_option, option, options_of, out_option, store_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import EpochRecord, TrainReport


@click.command(cls=Command)
@store_argument()
@out_option(
    None,
    "Folder of the run.",
    shown="the name of STORE with the suffix .run, in the current folder",
    group="Essential",
)
@option(
    "--resume",
    is_flag=True,
    help="Continue the run in --out after its last checkpointed batch. Without a run there, start one.",
    group="Essential",
)
@options_of(TrainOptions)
@json_option
def train(store: str | Path, out: Path | None, resume: bool, options: TrainOptions, as_json: bool) -> None:
    """Train a vision transformer or a detector on a STORE.

    Learns the classes, keypoints or boxes in the store. Images are normalized with the mean and standard deviation in
    the store. The folder of the run contains history.jsonl, report.json, pictures, and the checkpoints last.pt and
    best.pt. SIGTERM and Ctrl-C end a run with a checkpoint. With torchrun, each process is a rank.

    \b
    Examples:
      tsds train digits.tsds --epochs 30 --batch-size 32 --lr 2e-3
      tsds train faces.tsds --task keypoints --model tiny --image-size 224 --out runs/faces
      tsds train voc.tsds --task detection --model ssdlite --flip --epochs 60
      tsds train photos.tsds --out runs/photos --resume
      torchrun --nproc-per-node 8 -m tsds_cli train photos.tsds --model small
    """
    from tensorstore_ds import Listeners, train as run

    def note(line: str) -> None:
        bar.clear()
        if not as_json:
            text.echo(spelled(line))

    def epoch(record: EpochRecord) -> None:
        bar.clear()
        if not as_json:
            _show_epoch(record)

    folder = out or Path(f"{Path(words.place(store)).name.removesuffix('.tsds')}.run")
    with ProgressBar() as bar:
        listeners = Listeners(note, bar.update_training, epoch)
        report = run(store, options, out=folder, resume=resume, listeners=listeners)
    if report is None:  # of another rank than the first
        return
    if as_json:
        text.echo_json(report)
    else:
        _show(report)


def _show_epoch(record: EpochRecord) -> None:
    parts = [
        f"epoch {record.epoch:>3}",
        f"train {_metrics(record.train)}",
        f"eval {_metrics(record.eval)}" if record.eval is not None else "",
        f"{record.samples_per_second:,.0f}/s",
        f"waited {record.wait_share:.1%}",
        f"on a core {record.core_share:.0%}" if record.core_share is not None else "",
        words.duration(record.seconds),
        f"{words.size(record.device_memory)} of GPU memory" if record.device_memory is not None else "",
    ]
    text.echo(" · ".join(filter(None, parts)))


def _metrics(metrics: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in metrics.items())


def _show(report: TrainReport) -> None:
    text.echo()
    if report.best_epoch is not None:
        best = f"best {report.metric} {report.best[report.metric]:.4f} in epoch {report.best_epoch}"
        text.echo(text.Styled(best, bold=True))
    if report.classes and "ap" in report.classes[0]:
        named = ", ".join(f"{c['class']} {c['ap']:.3f}" for c in report.classes[:12] if c["ap"] is not None)
        more = f" and {len(report.classes) - 12} more" if len(report.classes) > 12 else ""
        text.echo(f"  average precision: {named}{more}")
    elif report.classes:
        worst = sorted((c for c in report.classes if c["accuracy"] is not None), key=lambda c: c["accuracy"])[:3]
        named = ", ".join(f"{c['class']} {c['accuracy']:.1%} of {c['samples']:,}" for c in worst)
        text.echo(f"  hardest classes: {named}")
    rate = f"{report.samples_per_second:,.0f} samples/s"
    text.echo(f"  {words.duration(report.seconds)} of training, {rate}, waited {report.wait_share:.1%} for data")
    if not report.pictures:
        text.echo("  no pictures, matplotlib is not installed: pip install '.[plots]' in a clone of tensorstore-ds")
    kept = ("best.pt", "last.pt", "history.jsonl", "report.json", *report.pictures)
    text.echo(f"  {report.folder}: {', '.join(kept)}")
