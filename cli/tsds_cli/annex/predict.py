"""``tsds predict``: what a trained model says about images, or about a split of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorstore_ds import TrainOptions
from tsds_cli import text
from tsds_cli.annex.editing import made, tell_added
from tsds_cli.messages import Failure
from tsds_cli.options import Command, json_option, option, option_of, path, path_argument

if TYPE_CHECKING:
    from tensorstore_ds import Prediction

#: The least score of detections that are printed, where nothing is known to choose it by.
SCORE = 0.5


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
    "--results",
    type=path,
    metavar="FILE",
    help="Write COCO results for a store to this JSON file.",
    group="Essential",
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
@option(
    "--prefix",
    default="",
    metavar="TEXT",
    help="Prefix of the names of the fields of --add.",
    group="Fields",
)
@option(
    "--replace",
    is_flag=True,
    help="Let --add replace existing fields.",
    group="Fields",
)
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
@option_of(TrainOptions, "fold", help="With --probabilities: only this fold of the split, as in the training run.")
@option_of(TrainOptions, "stratify", help="With --fold: as in the training run.")
@option_of(TrainOptions, "groups", help="With --fold: as in the training run.")
@option_of(TrainOptions, "fold_seed", help="With --fold: as in the training run.")
@option_of(TrainOptions, "device", help="Device to predict on, such as cuda or cpu.")
@json_option
def predict(
    checkpoint: Path,
    images: tuple[Path, ...],
    split: str | None,
    results: Path | None,
    picture: Path | None,
    out: Path | None,
    add: bool,
    prefix: str,
    replace: bool,
    score: float | None,
    probabilities: Path | None,
    fold: str | None,
    stratify: str | None,
    groups: str | None,
    fold_seed: int | None,
    device: str | None,
    as_json: bool,
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
      tsds predict run1/best.pt photos.tsds --split train --fold 1/5 --probabilities probabilities.npy
    """
    from tensorstore_ds import predict as run

    others: dict[str, Any] = {"--results": results, "--picture": picture, "--out": out}
    folds = {"fold": fold, "stratify": stratify, "groups": groups, "fold_seed": fold_seed}
    of_folds = {"--probabilities": probabilities, **{f"--{k.replace('_', '-')}": v for k, v in folds.items()}}
    others |= of_folds
    if add and (given := [flag for flag, value in others.items() if value is not None]):
        raise Failure(f"{given[0]}: expected it without --add, found both. Leave out {given[0]} or --add.")
    if not add and (prefix or replace):
        raise Failure("--prefix, --replace: expected --add with them, found none. Leave them out, or give --add.")
    of_store: dict[str, Any] = {"--split": split, "--results": results, "--picture": picture, "--out": out}
    of_store |= {"--add": add or None, **of_folds}
    if add and len(images) == 1:
        _add(checkpoint, images[0], split, prefix, replace, score, device, as_json)
        return
    if len(images) == 1 and ((images[0] / "zarr.json").exists() or images[0].name.endswith(".tsds.zip")):
        if probabilities is not None:
            _write_probabilities(checkpoint, images[0], probabilities, as_json, split=split, device=device, **folds)
            return
        if given := [name for name, value in folds.items() if value is not None]:
            flag = f"--{given[0].replace('_', '-')}"
            raise Failure(f"{flag}: expected --probabilities with it. Add --probabilities FILE, or leave out {flag}.")
        _of_store(checkpoint, images[0], split, results, picture, out, score, device, as_json)
        return
    if given := [flag for flag, value in of_store.items() if value is not None]:
        raise Failure(f"{given[0]}: expected one store, found images. Name a store, or leave out {given[0]}.")
    predictions = run(checkpoint, images, device=device)
    if as_json:
        text.echo_json([{"path": str(prediction.path), **prediction.says} for prediction in predictions])
        return
    for prediction in predictions:
        text.echo(f"{prediction.path}: {_line(prediction, SCORE if score is None else score)}")


def _add(
    checkpoint: Path,
    store: Path,
    split: str | None,
    prefix: str,
    replace: bool,
    score: float | None,
    device: str | None,
    as_json: bool,
) -> None:
    import tensorstore_ds as tsds

    done: list[tsds.FieldsSummary] = []

    def run(**progress: Any) -> tsds.FieldsSummary:
        chosen: dict[str, Any] = {
            "splits": [split] if split else None,
            "prefix": prefix,
            "replace": replace,
            "score": score or 0.0,
            "device": device,
        }
        done.append(tsds.add_predictions(checkpoint, store, **chosen, **progress))
        return done[-1]

    made(store, as_json, run, again="nothing was added", told=lambda: tell_added(done[-1]))


def _write_probabilities(checkpoint: Path, store: Path, out: Path, as_json: bool, **options: Any) -> None:
    import tensorstore_ds as tsds

    tsds.check_outside_stores(out)
    made = tsds.predict_probabilities(checkpoint, store, **options)
    predicted, absent = int((made == made).all(axis=1).sum()), tsds.write_probabilities(out, made)
    if as_json:
        text.echo_json({"samples": len(made), "predicted": predicted, "absent": absent, "written": [str(out)]})
        return
    left = f"; {absent:,} of {len(made):,} have none yet" if absent else ""
    text.echo(f"{out}: probabilities of {text.count(predicted, 'sample')}{left}")


def _of_store(
    checkpoint: Path,
    store: Path,
    split: str | None,
    results: Path | None,
    picture: Path | None,
    out: Path | None,
    score: float | None,
    device: str | None,
    as_json: bool,
) -> None:
    import tensorstore_ds as tsds

    if picture is not None and picture.suffix.lower() != ".png":
        raise Failure(f"{picture}: expected a name that ends in .png. Choose another name.")
    for file in filter(None, (results, picture)):
        tsds.check_outside_stores(file)
    detector: dict[str, Any] = {"--results": results, "--picture": picture, "--out": out, "--score": score}
    if all(value is None for value in detector.values()) and tsds.load_model(checkpoint)[1].task.name != "detection":
        told = tsds.evaluate(checkpoint, store, split=split, device=device)
        if as_json:
            text.echo_json({"split": told.split, "samples": told.samples, **told.metrics})
            return
        text.echo(f"{store}, {told.split}: {text.count(told.samples, 'sample')}")
        text.echo("  " + " · ".join(f"{name} {value:.3f}" for name, value in told.metrics.items()))
        return
    found = tsds.predict_store(checkpoint, store, split=split, device=device)
    least = found.best_score() if score is None else score
    if results is not None:
        found.write_results(results)
    if picture is not None:
        found.draw(score=least).save(picture, "PNG")
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
    """What stands for the objects of an image where none reaches the score."""
    best = max((each["score"] for each in objects), default=None)
    if best is None:
        return f"no object of {score:.0%} or more"
    return f"no object of {score:.0%} or more, the best has {best:.1%}: pass --score {int(100 * best) / 100}"


def _line(prediction: Prediction, score: float) -> str:
    says, parts = prediction.says, []
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
