"""What a trained model says about image files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensorstore_ds.errors import Problem, SourceError, TrainingError
from tensorstore_ds.imaging import Color
from tensorstore_ds.imaging.codecs import decode_image
from tensorstore_ds.imaging.placement import Placement, place
from tensorstore_ds.imaging.resizing import resize
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.augment.fitting import Resize
from tensorstore_ds.loading.augment.normalize import Normalize
from tensorstore_ds.loading.decoding import decode_resized
from tensorstore_ds.options import user_path
from tensorstore_ds.regular_files import read_file
from tensorstore_ds.training.checkpoint import ModelCard, load_model
from tensorstore_ds.training.process import device_of

#: Images that are predicted together.
BATCH = 64
_COLORS: Mapping[int, Color] = {1: "gray", 3: "rgb", 4: "rgba"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says about an image."""

    path: Path  #: Of the image's file.
    #: Of a classification: `class`, `probability` and the `best` five; of several labels: `classes`, those with a
    #: probability over one half, and all `probabilities`; of keypoints: `keypoints`, x and y by name, in pixels of the
    #: image as it is shown.
    says: Mapping[str, Any]


def predict(
    checkpoint: str | os.PathLike[str], images: Iterable[str | os.PathLike[str]], *, device: str | None = None
) -> Iterator[Prediction]:
    """Predict image files with a checkpoint of `train`.

    They are brought to the size and the colors of the store that the model was trained on, as the conversion did it;
    if its images have sizes of their own, to the size of the model, as they are decoded.

    Args:
        checkpoint: `best.pt` or `last.pt` of a run.
        images: paths of image files.
        device: ``cuda``, ``cpu``, ...; None: a GPU if there is one.

    Yields:
        A prediction per image, in their order.

    Raises:
        TrainingError: the checkpoint is damaged, or none of `train`; or its model says NaN.
        SourceError: an image cannot be read or decoded.
        ConversionError: memory is short, or the disk fails, while one is read.
        OSError: the checkpoint cannot be read.
    """
    place_of = device_of(device)
    model, card = load_model(checkpoint, device=place_of)
    if max(card.mean) > 1:
        raise TrainingError(
            f"{os.fspath(checkpoint)}: expected a mean of at most 1, of values that are divided by 255, found "
            f"{max(card.mean):g}. Use a checkpoint of a run on 8-bit images."
        )
    prepare = Compose([Resize(card.vit.image_size), Normalize(card.mean, card.std)])
    paths = [user_path(path) for path in images]
    for first in range(0, len(paths), BATCH):
        part = paths[first : first + BATCH]
        read = [_read(path, card) for path in part]
        batch = torch.from_numpy(np.stack([pixels for pixels, _ in read])).permute(0, 3, 1, 2).to(place_of)
        with torch.inference_mode():
            outputs = model(prepare({"image": batch})["image"])
        numbers = (outputs.float() * max(card.image_size)).isfinite().all(1).tolist()
        if not all(numbers):
            raise TrainingError(
                f"{os.fspath(checkpoint)}: expected a model that says numbers, found NaN or infinity of "
                f"{part[numbers.index(False)]}. Use another checkpoint, of a run whose loss is a number."
            )
        answers = card.task.predictions(outputs, card.image_size)
        for path, answer, (_, placement) in zip(part, answers, read, strict=True):
            yield Prediction(path, _placed_back(answer, placement))


def _read(path: Path, card: ModelCard) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Placement]:
    """An image's pixels as the store would have them, and how they came there."""
    data, key, channels = read_file(path, str(path)), str(path), card.vit.channels
    if card.stored is None:
        pixels, size = decode_resized(data, card.image_size, is_gray=channels == 1, key=key)
    else:
        pixels = decode_image(data, color=_COLORS.get(channels, "auto"), key=key)
        size = pixels.shape[0], pixels.shape[1]
    if pixels.shape[2] != card.vit.channels or pixels.dtype != np.uint8:
        message = f"expected uint8 with {card.vit.channels} channels, found {pixels.dtype} with {pixels.shape[2]}."
        problem = Problem(str(path), "unsupported-depth", message)
        raise SourceError(problem, "Give images such as the model was trained on.")
    placement = place(size, card.image_size, card.fit if card.stored else "stretch")
    return np.ascontiguousarray(pixels if card.stored is None else resize(pixels, placement)), placement


def _placed_back(answer: Mapping[str, Any], placement: Placement) -> Mapping[str, Any]:
    """Keypoints in pixels of the image, where they were in pixels of the stored one: `Placement.move` backwards."""
    if "keypoints" not in answer:
        return answer
    left, top, right, bottom = placement.box
    zoom = np.array([(right - left) / placement.resized[1], (bottom - top) / placement.resized[0]])
    stored = np.array([*answer["keypoints"].values()], np.float64).reshape(-1, 2)
    keypoints = (stored - placement.offset[::-1]) * zoom + (left, top)
    return {**answer, "keypoints": dict(zip(answer["keypoints"], keypoints.tolist(), strict=True))}
