"""Commands about models: train one, predict with it, and divide a store into folds."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zipfile import is_zipfile

import click

import tensorstore_ds as tsds
from tensorstore_ds import words
from tensorstore_ds.annex.pictures import save_png
from tensorstore_ds.annex.training import TrainOptions
from tsds_cli import text
from tsds_cli.annex.edit import made, tell_added
from tsds_cli.annex.options import check_png, out_option, seed_option
from tsds_cli.messages import Failure, spelled
from tsds_cli.options import (
    Choice,
    Command,
    json_option,
    option,
    option_of,
    options_of,
    path,
    path_argument,
    store_argument,
)
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds.annex.training import EpochRecord, Prediction, TrainReport

#: Default for the smallest score of printed detections.
SCORE = 0.5
#: Options of predictions for a store.
_OF_STORE = ("split", "results", "picture", "out", "add", "probabilities", "fold")


@click.command(cls=Command)
@store_argument()
@out_option(
    None, "Folder of the run.", shown="the name of STORE with the suffix .run, in the current folder", group="Essential"
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

    def note(line: str) -> None:
        bar.clear()
        if not as_json:
            text.echo(spelled(line))

    def epoch(record: EpochRecord) -> None:
        bar.clear()
        if not as_json:
            _show_epoch(record)

    folder = out or Path(f"{Path(words.shown_path(store)).name.removesuffix('.tsds')}.run")
    with ProgressBar() as bar:
        listeners = tsds.training.Listeners(note, bar.update_training, epoch)
        report = tsds.train(store, options, out=folder, resume=resume, listeners=listeners)
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


@click.command(cls=Command)
@path_argument("checkpoint")
@click.argument("images", type=path, nargs=-1, required=True)
@option(
    "--split",
    metavar="NAME",
    help="Split of a store.",
    show_default="val or test, or else the first split",
    group="Essential",
)
@option(
    "--results", type=path, metavar="FILE", help="Write COCO results for a store to this JSON file.", group="Essential"
)
@option(
    "--picture",
    type=path,
    metavar="FILE",
    help="Draw the images of a store with the most mistakes (PNG).",
    group="Essential",
)
@option(
    "--out",
    type=path,
    metavar="STORE",
    help="Write a store with the same images and the detections as objects.",
    group="Essential",
)
@option(
    "--add",
    is_flag=True,
    help="Add predictions and the loss of each sample to the store as fields: for --split, or for all splits.",
    group="Essential",
)
@option("--prefix", default="", metavar="TEXT", help="Prefix of the names of the fields of --add.", group="Fields")
@option("--replace", is_flag=True, help="Let --add replace existing fields.", group="Fields")
@option(
    "--score",
    type=click.FloatRange(0, 1),
    help="Minimum score of detections that are printed, drawn, added, or written to --out.",
    show_default="for a store the score with the best F1, else 0.5; none with --add",
    group="Essential",
)
@option(
    "--probabilities",
    type=path,
    metavar="FILE",
    help="Write class probabilities for a store (.npy): a row for each sample. Rows of other folds keep the values in "
    "the file, or are NaN.",
    group="Output",
)
@option(
    "--fold",
    is_flag=True,
    help="With --probabilities: only the fold that the training run held out with its own --fold.",
    group="Output",
)
@option_of(TrainOptions, "device", help="Device to predict on, such as cuda or cpu.")
@option(
    "--on-error",
    type=Choice(("raise", "skip")),
    default="raise",
    show_default=True,
    help="For image files: skip those that cannot be decoded, or stop at the first one.",
    group="Essential",
)
@json_option
def predict(
    checkpoint: Path,
    images: tuple[Path, ...],
    score: float | None,
    device: str | None,
    on_error: Literal["raise", "skip"],
    as_json: bool,
    **given: Any,
) -> None:
    """Predict classes or objects with a trained CHECKPOINT.

    Images are converted to the size and channels that the model was trained with. Keypoints and boxes are printed in
    pixels of the image. A folder stands for its image files. If IMAGES is one store, the metrics of the model on a
    split are printed, as in the evaluation of tsds train. With --add, the predictions become fields of the store. With
    --probabilities, class probabilities of the store are written for tsds check --predictions.

    \b
    Examples:
      tsds predict digits.run/best.pt digits/test/3/*.png
      tsds predict faces.run/best.pt portrait.jpg --json
      tsds predict digits.run/best.pt digits.tsds --split test
      tsds predict voc.run/best.pt voc.tsds --split val --results results.json --picture worst.png
      tsds predict digits.run/best.pt digits.tsds --add
      tsds predict run1/best.pt photos.tsds --split train --fold --probabilities probabilities.npy
    """
    flags = {f"--{name.replace('_', '-')}": given[name] for name in _OF_STORE}
    flags = {flag: value for flag, value in flags.items() if value is not None and value is not False}
    add, store = given.pop("add"), images[0] if len(images) == 1 else None
    if given["fold"] and (number := next((str(each) for each in images if re.fullmatch(r"\d+/\d+", str(each))), None)):
        raise Failure(f"--fold: expected no value, since the checkpoint has its fold, found {number}. Leave it out.")
    if add and (others := [flag for flag in flags if flag not in ("--split", "--add")]):
        raise Failure(f"{others[0]}: expected it without --add, found both. Leave out {others[0]} or --add.")
    if not add and (given["prefix"] or given["replace"]):
        raise Failure("--prefix, --replace: expected --add with them, found none. Leave them out, or give --add.")
    is_store = store is not None and ((store / "zarr.json").exists() or is_zipfile(store))
    if on_error == "skip" and (add or is_store):
        raise Failure("--on-error: expected image files with it, found a store. Leave it out.")
    if store is not None and add:
        split = given["split"]
        chosen = {"splits": [split] if split else None, "prefix": given["prefix"], "replace": given["replace"]}
        run = partial(tsds.training.add_predictions, checkpoint, store, **chosen, score=score or 0.0, device=device)
        made(store, as_json, run, again="nothing was added", told=tell_added)
    elif store is not None and is_store:
        if given["probabilities"] is not None:
            if of_detector := [flag for flag in ("--results", "--picture", "--out") if flag in flags]:
                raise Failure(
                    f"{of_detector[0]}: expected it without --probabilities, found both. Leave out one of them."
                )
            options = {name: given[name] for name in ("split", "fold")}
            _write_probabilities(checkpoint, store, given["probabilities"], as_json, device=device, **options)
        elif given["fold"]:
            raise Failure("--fold: expected --probabilities with it. Add --probabilities FILE, or leave out --fold.")
        else:
            _of_store(checkpoint, store, score, device, as_json, given)
    elif flags:
        if store is not None and not store.exists():
            tsds.open(store)  # says that there is none
        flag = next(iter(flags))
        raise Failure(f"{flag}: expected one store, found images. Name a store, or leave out {flag}.")
    else:
        predictions = tsds.predict(checkpoint, images, device=device, on_error=on_error)
        if as_json:
            text.echo_json([{"path": str(prediction.path), **prediction.says} for prediction in predictions])
            return
        for prediction in predictions:
            text.echo(f"{prediction.path}: {_line(prediction, SCORE if score is None else score)}")


def _write_probabilities(checkpoint: Path, store: Path, out: Path, as_json: bool, **options: Any) -> None:
    tsds.reading.check_outside_stores(out)
    found = tsds.training.predict_probabilities(checkpoint, store, **options)
    predicted, absent = int((found == found).all(axis=1).sum()), tsds.training.write_probabilities(out, found)
    if as_json:
        text.echo_json({"samples": len(found), "predicted": predicted, "absent": absent, "written": [str(out)]})
        return
    left = f"; {absent:,} of {len(found):,} have none yet" if absent else ""
    text.echo(f"{out}: probabilities of {text.count(predicted, 'sample')}{left}")


def _of_store(
    checkpoint: Path, store: Path, score: float | None, device: str | None, as_json: bool, given: Mapping[str, Any]
) -> None:
    results, picture, out = (given[name] for name in ("results", "picture", "out"))
    if picture is not None:
        check_png(picture)
    for file in filter(None, (results, picture)):
        tsds.reading.check_outside_stores(file)
    of_detector = any(value is not None for value in (results, picture, out, score))
    if not of_detector and tsds.training.load_model(checkpoint)[1].task.name != "detection":
        told = tsds.training.evaluate(checkpoint, store, split=given["split"], device=device)
        if as_json:
            text.echo_json({"split": told.split, "samples": told.samples, **told.metrics})
            return
        text.echo(f"{store}, {told.split}: {text.count(told.samples, 'sample')}")
        text.echo("  " + " · ".join(f"{name} {value:.3f}" for name, value in told.metrics.items()))
        return
    found = tsds.training.predict_store(checkpoint, store, split=given["split"], device=device)
    least = found.best_score() if score is None else score
    if results is not None:
        found.write_results(results)
    if picture is not None:
        save_png(found.draw(score=least), picture)
    if out is not None:
        found.write_store(out, score=least)
    shown = int((found.detections[:, 2] >= least).sum())
    precision = None if found.objects is None else found.precision()
    written = [str(each) for each in (results, picture, out) if each is not None]
    classes = [] if precision is None else list(zip(found.classes, precision.ap.tolist(), strict=True))
    if as_json:
        metrics = {} if precision is None else precision.metrics
        data = {"split": found.split.name, "samples": len(found.split), "detections": len(found.detections)}
        text.echo_json({**data, "score": least, **metrics, "classes": dict(classes), "written": written})
        return
    text.echo(
        f"{store}, {found.split.name}: {len(found.split):,} samples, {shown:,} detections of {least:.2f} or more"
        f" ({len(found.detections):,} in all)"
    )
    if precision is not None:
        text.echo("  " + " · ".join(f"{name} {value:.3f}" for name, value in precision.metrics.items()))
        text.echo("  average precision: " + ", ".join(f"{name} {ap:.3f}" for name, ap in classes if ap == ap))
    for name in written:
        text.echo(f"  {name}")


def _nothing_of(objects: list[Any], score: float) -> str:
    """The text for an image whose objects are all below the score."""
    best = max((each["score"] for each in objects), default=None)
    if best is None:
        return f"no object of {score:.0%} or more"
    return f"no object of {score:.0%} or more, the best has {best:.1%}: pass --score {int(100 * best) / 100}"


def _line(prediction: Prediction, score: float) -> str:
    says, parts = prediction.says, []
    if "error" in says:
        parts.append(f"skipped: {says['error']}")
    if "class" in says:
        others = ", ".join(f"{o['class']} {o['probability']:.1%}" for o in says["best"][1:3])
        parts.append(f"{says['class']} {says['probability']:.1%}" + (f" ({others})" if others else ""))
    if "objects" in says:
        found = [each for each in says["objects"] if each["score"] >= score]
        named = (f"{o['class']} {o['score']:.1%} at ({', '.join(f'{v:.0f}' for v in o['box'])})" for o in found)
        parts.append(", ".join(named) or _nothing_of(says["objects"], score))
    if "classes" in says:
        parts.append(", ".join(f"{name} {says['probabilities'][name]:.1%}" for name in says["classes"]) or "none")
    if "keypoints" in says:
        parts.append(" ".join(f"{name}=({x:.1f}, {y:.1f})" for name, (x, y) in says["keypoints"].items()))
    return "; ".join(parts)


@click.command()
@store_argument()
@option("-k", "k", type=click.IntRange(2), default=5, show_default=True, help="Number of folds.")
@option("--split", metavar="NAME", default="train", show_default=True, help="Split to divide.")
@option(
    "--stratify",
    metavar="FIELD",
    help="Field of labels, or of objects with classes. Each fold gets the same fraction of each class.",
)
@option(
    "--groups",
    metavar="GROUP",
    help="Keep the rows of a group in one fold: a field of labels, integers or texts; folder, images of one folder; "
    "duplicates, equal images; or a regular expression for keys, as in tsds split.",
)
@option(
    "--repeats",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of divisions, each with different folds.",
)
@seed_option("the division")
@out_option(None, "Write the fold of each key, counted from 1, to this .csv or .json file.", "FILE")
@json_option
def folds(store: str | Path, out: Path | None, as_json: bool, **given: Any) -> None:
    """Show or write cross-validation folds of a STORE.

    The table shows the rows and groups of each fold, and the fraction of each class. The column deviation is the
    largest difference from an even division. No image is decoded, and no store is written.

    The folds depend on keys, the seed and the sizes of the classes. tsds train --fold uses the same folds.

    \b
    Examples:
      tsds folds photos.tsds -k 5 --stratify label
      tsds folds scans.tsds --groups 'patient([0-9]+)' --stratify label --out folds.csv
      tsds train photos.tsds --fold 2/5 --stratify label --out runs/fold2
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are printed below
        made = tsds.folds(store, **given)
    if out is not None:
        made.save(out)
    if as_json:
        text.echo_json(made.as_data())
        return
    text.echo_lines(str(made))
    for note in made.warnings:
        text.echo(f"note: {note}", err=True)
    if out is not None:
        text.echo()
        text.echo(f"{out}: {text.count(made.numbers.shape[1], 'key')}")
