"""``tsds predict``: what a trained model says about images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import TrainOptions
from tsds_cli import text
from tsds_cli.options import json_option, option_of, path, path_argument

if TYPE_CHECKING:
    from tensorstore_ds import Prediction


@click.command()
@path_argument("checkpoint")
@click.argument("images", type=path, nargs=-1, required=True)
@option_of(TrainOptions, "device", help="The device to predict on, such as cuda or cpu.")
@json_option
def predict(checkpoint: Path, images: tuple[Path, ...], device: str | None, as_json: bool) -> None:
    """Print what the model of a CHECKPOINT predicts for IMAGES.

    Images are converted to the size and the color channels of the store that the model was trained on. Keypoints are
    printed in pixels of the image.

    \b
    Examples:
      tsds predict digits.run/best.pt digits/test/3/*.png
      tsds predict faces.run/best.pt portrait.jpg --json
    """
    from tensorstore_ds import predict as run

    predictions = run(checkpoint, images, device=device)
    if as_json:
        text.echo_json([{"path": str(prediction.path), **prediction.says} for prediction in predictions])
        return
    for prediction in predictions:
        text.echo(f"{prediction.path}: {_line(prediction)}")


def _line(prediction: Prediction) -> str:
    says, parts = prediction.says, []
    if "class" in says:
        others = ", ".join(f"{o['class']} {o['probability']:.1%}" for o in says["best"][1:3])
        parts.append(f"{says['class']} {says['probability']:.1%}" + (f" ({others})" if others else ""))
    if "classes" in says:
        parts.append(", ".join(f"{name} {says['probabilities'][name]:.1%}" for name in says["classes"]) or "none")
    if "keypoints" in says:
        parts.append(" ".join(f"{name}=({x:.1f}, {y:.1f})" for name, (x, y) in says["keypoints"].items()))
    return "; ".join(parts)
