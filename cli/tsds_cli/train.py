"""``tsds train``: a vision transformer, from a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tsds_cli import options, text
from tsds_cli.options import json_option, path_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import EpochRecord, TrainReport

_TASKS = ("auto", "classification", "multilabel", "keypoints", "classification+keypoints")
_MODELS = ("auto", "seed", "tiny", "small", "base")


@click.command()
@path_argument("store")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="The run's folder.  [STORE's name + .run]"
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out at the very next batch; begin it if none is.")
@click.option("--task", type=click.Choice(_TASKS), default="auto", help="What to learn.  [what the store has]")
@click.option("--train-split", default="train", show_default=True, help="The split to learn from.")
@click.option("--eval-split", help="The split to evaluate on.  [val or test, the first there is]")
@click.option("--model", type=click.Choice(_MODELS), default="auto", help="The size of the model.  [seed, or tiny]")
@click.option("--image-size", type=options.size, help="Resize on the device: 224 or 480x640.  [as stored; seed: 28]")
@click.option("--patch-size", type=int, help="Side of a patch, in pixels.")
@click.option("--width", type=int, help="Numbers in a token.")
@click.option("--depth", type=int, help="Encoder blocks.")
@click.option("--heads", type=int, help="Of the attention.")
@click.option("--mlp-width", type=int, help="Of the hidden layer in each block.")
@click.option("--dropout", type=float, help="Probability.  [0]")
@click.option("--epochs", type=int, default=20, show_default=True, help="Passes over the data.")
@click.option("--batch-size", type=int, default=128, show_default=True, help="Samples of a batch, of each rank.")
@click.option("--accumulate", type=int, default=1, show_default=True, help="Batches for one change of the weights.")
@click.option("--lr", "learning_rate", type=float, default=1e-3, show_default=True, help="Highest learning rate.")
@click.option("--warmup", type=float, default=0.05, show_default=True, help="Share of the run in which it rises.")
@click.option("--weight-decay", type=float, default=0.05, show_default=True, help="Of matrices.")
@click.option("--clip", type=float, default=1.0, show_default=True, help="Largest norm of the gradient; 0: any.")
@click.option("--label-smoothing", type=float, default=0.0, show_default=True, help="Of classification, in [0, 1).")
@click.option("--mix", type=click.Choice(["none", "mixup", "cutmix"]), default="none", help="Blend images.  [none]")
@click.option(
    "--augment", type=click.Choice(["none", "light", "strong"]), default="light", help="On the device.  [light]"
)
@click.option("--flip", is_flag=True, help="Mirror images left to right, too: not for digits or text.")
@click.option(
    "--balance",
    type=click.Choice(["none", "inverse", "effective", "repeat"]),
    default="none",
    help="Draw rare classes more often: labels inverse or effective, objects repeat.  [none]",
)
@click.option("--ema", type=float, default=0.0, help="Decay of an average of the weights, such as 0.999.  [0: none]")
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp32", "tf32", "bf16", "fp16"]),
    default="auto",
    help="Of the computation.  [bf16 on a GPU that has it, else fp32]",
)
@click.option("--compile", "compile_", is_flag=True, help="Through torch.compile.")
@click.option("--grad-checkpointing", is_flag=True, help="Less memory, one more forward pass, the same gradients.")
@click.option("--device", help="cuda, cpu, ...  [a GPU if there is one]")
@click.option(
    "--residency",
    type=click.Choice(["auto", "page-cache", "locked", "device"]),
    default="auto",
    help="Where rows are read from.  [device if it fits on a GPU, else page-cache]",
)
@click.option("--threads", "num_threads", type=int, help="Of the loader.  [cores, at most 8]")
@click.option("--torch-threads", type=int, help="Of torch on the CPU: 1 where other processes need the cores.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights, order and augmentation.")
@json_option
def train(store: Path, out: Path | None, resume: bool, compile_: bool, as_json: bool, **given: Any) -> None:
    """Train a vision transformer on a STORE.

    Classes, keypoints or both, whatever the store has; its normalisation and its classes are used. The run's folder
    gets history.jsonl, curves.png, confusion.png, report.json, and the checkpoints last.pt and best.pt. SIGTERM and
    Ctrl-C end a run with a checkpoint. Under torchrun each process is a rank.

    \b
    Examples:
      tsds train digits.tsds --epochs 30 --batch-size 32 --lr 2e-3
      tsds train faces.tsds --task keypoints --model tiny --image-size 224 --out runs/faces
      tsds train photos.tsds --out runs/photos --resume
      torchrun --nproc-per-node 8 -m tsds_cli train photos.tsds --model small
    """
    from tensorstore_ds import Listeners, TrainOptions, train as run

    chosen = TrainOptions(compile=compile_, **given)
    folder = out or Path(f"{store.name.removesuffix('.tsds')}.run")
    lines = _Lines(as_json)
    with ProgressBar() as progress:
        listeners = Listeners(lines.note, progress.update_training, lambda record: lines.epoch(record, progress))
        report = run(store, chosen, out=folder, resume=resume, listeners=listeners)
    if report is None:  # of another rank than the first
        return
    if as_json:
        text.echo_json(report)
    else:
        _show(report)


class _Lines:
    """What is printed while a run goes on; nothing before JSON."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def note(self, line: str) -> None:
        if not self._quiet:
            text.echo(line)

    def epoch(self, record: EpochRecord, progress: ProgressBar) -> None:
        progress.clear()
        if self._quiet:
            return
        parts = [
            f"epoch {record.epoch:>3}",
            f"train {_metrics(record.train)}",
            f"eval {_metrics(record.eval)}" if record.eval is not None else "",
            f"{record.samples_per_second:,.0f}/s",
            f"waited {record.wait_share:.1%}",
            text.duration(record.seconds),
            f"{text.size(record.device_memory)} of GPU memory" if record.device_memory is not None else "",
        ]
        text.echo(" · ".join(part for part in parts if part))


def _metrics(metrics: Mapping[str, float]) -> str:
    """
    >>> _metrics({"loss": 0.12345, "accuracy": 0.98765})
    'loss 0.123 accuracy 0.988'
    """
    return " ".join(f"{name} {value:.3f}" for name, value in metrics.items())


def _show(report: TrainReport) -> None:
    text.echo()
    if report.best_epoch is not None:
        best = f"best {report.metric} {report.best[report.metric]:.4f} in epoch {report.best_epoch}"
        text.echo(text.Styled(best, bold=True))
    if report.classes:
        worst = sorted((c for c in report.classes if c["accuracy"] is not None), key=lambda c: c["accuracy"])[:3]
        named = ", ".join(f"{c['class']} {c['accuracy']:.1%} of {c['samples']:,}" for c in worst)
        text.echo(f"  hardest classes: {named}")
    rate = f"{report.samples_per_second:,.0f} samples/s"
    text.echo(f"  {text.duration(report.seconds)} of training, {rate}, waited {report.wait_share:.1%} for data")
    if not report.pictures:
        text.echo("  no pictures, matplotlib is not installed: pip install 'tensorstore-ds[plots]'")
    kept = ("best.pt", "last.pt", "history.jsonl", "report.json", *report.pictures)
    text.echo(f"  {report.folder}: {', '.join(kept)}")
