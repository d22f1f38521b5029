"""What a trained model says about image files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tensorstore_ds.annex.training.augmentation import fitted, gray_of, placed
from tensorstore_ds.annex.training.checkpoint import ModelCard, load_model, read_model
from tensorstore_ds.annex.training.data import EVAL_SPLITS, class_counts, image_shape, split_of
from tensorstore_ds.annex.training.detector import letterboxed_back
from tensorstore_ds.annex.training.process import device_of
from tensorstore_ds.errors import OptionError, Problem, SourceError, TrainingError
from tensorstore_ds.imaging import Color
from tensorstore_ds.imaging.codecs import begins_as_image, decode_image, encode_png, is_storable, quiet_pillow
from tensorstore_ds.imaging.placement import Placement, fit_box
from tensorstore_ds.imaging.resizing import resize
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.augment.normalize import Normalize
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import decode_resized
from tensorstore_ds.loading.fields import is_decoded
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.options import user_path
from tensorstore_ds.reading.store import Split, Store, open as open_store
from tensorstore_ds.regular_files import read_file
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import walk_files

#: Images that are predicted together.
BATCH = 64
_COLORS: Mapping[int, Color] = {1: "gray", 3: "rgb", 4: "rgba"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Result of `predict` for an image."""

    path: Path  #: Path of the image file.
    #: The result, by name. For classification, it contains `class`, `probability` and the `best` five classes. For
    #: several labels, it contains `classes`, with a probability above 0.5, and all `probabilities`. For keypoints, it
    #: contains `keypoints`, x and y by name, in pixels of the image after its orientation is applied. For detection, it
    #: contains `objects`, each with `class`, `score` and `box`, x1 y1 x2 y2 in these pixels. Of a skipped image, it
    #: contains only `error`.
    says: Mapping[str, Any]


def predict(
    checkpoint: str | os.PathLike[str],
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    device: str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> Iterator[Prediction]:
    """Predict image files with a checkpoint of `train`.

    >>> found = list(tsds.predict("photos.run/best.pt", ["photos/val/cat/0.png", "photos/val/dog/0.png"], device="cpu"))
    >>> len(found), found[0].path.name, sorted(found[0].says)
    (2, '0.png', ['best', 'class', 'probability'])

    Images are converted to the size and the colors of the store that the model was trained on, as in `convert`. If the
    images of that store have different sizes, they are decoded at the size of the model. For the images of a store, use
    `evaluate`, `add_predictions` or `predict_store`.

    Args:
        checkpoint: path of `best.pt` or `last.pt` of a run.
        images: path of an image file, or of a folder, whose image files are predicted in the order of their names. Or
            several such paths.
        device: device to compute on, such as ``cuda`` or ``cpu``. None uses a GPU if there is one.
        on_error: how to treat an image that cannot be read or decoded. ``raise`` raises the error. ``skip`` yields the
            message as `error`, and continues.

    Yields:
        A prediction per image, in this order.

    Raises:
        TrainingError: the checkpoint is damaged, is not a checkpoint of `train`, or its model returns NaN.
        SourceError: an image cannot be read or decoded.
        OptionError: a folder contains no image files.
        ConversionError: there is not enough memory, or the disk fails, while an image is read.
        OSError: the checkpoint cannot be read.
    """
    place_of = device_of(device)
    model, card = load_model(checkpoint, device=place_of)
    if max(card.mean) > 1:
        raise TrainingError(
            f"{os.fspath(checkpoint)}: expected a mean of at most 1, of values that are divided by 255, found "
            f"{max(card.mean):g}. Use a checkpoint of a run on 8-bit images."
        )
    prepare = Compose([fitted(card.vit), Normalize(card.mean, card.std)])
    several = [images] if isinstance(images, str | os.PathLike) else images
    paths = [path for given in several for path in _files(user_path(given))]
    for first in range(0, len(paths), BATCH):
        part = paths[first : first + BATCH]
        with quiet_pillow():
            tried = [_tried(path, card, on_error) for path in part]
        good = [(path, *each) for path, each in zip(part, tried, strict=True) if not isinstance(each, str)]
        answers: Iterator[Mapping[str, Any]] = iter(())
        if good:
            pixels = torch.from_numpy(np.stack([each for _, each, _ in good])).permute(0, 3, 1, 2).to(place_of)
            with torch.inference_mode():
                outputs = model(prepare({"image": pixels})["image"])
            values = outputs if isinstance(outputs, torch.Tensor) else [out["scores"] for out in outputs]
            numbers = [bool((each.float() * max(card.image_size)).isfinite().all()) for each in values]
            if not all(numbers):
                raise TrainingError(
                    f"{os.fspath(checkpoint)}: expected a model that says numbers, found NaN or infinity of "
                    f"{good[numbers.index(False)][0]}. Use another checkpoint, of a run whose loss is a number."
                )
            answers = iter(card.task.predictions(outputs, card.image_size))
        for path, each in zip(part, tried, strict=True):
            says = {"error": each} if isinstance(each, str) else _placed_back(next(answers), each[1], card)
            yield Prediction(path, says)


def _files(path: Path) -> list[Path]:
    """The image files of a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    found = [path / name for name in walk_files(path, IMAGE_SUFFIXES)]
    if not found:
        raise OptionError(f"{path}: expected image files, found none. Give files, a folder of images, or a store.")
    return found


def first_split(store: Store) -> str:
    """The default split for predictions: the evaluation split, or the first one with samples."""
    names = [name for name in EVAL_SPLITS if name in store and len(store[name])]
    return (names or [name for name in store if len(store[name])] or list(store))[0]


def model_for(
    checkpoint: str | os.PathLike[str], store: str | os.PathLike[str], split: str | None, device: str | None
) -> tuple[nn.Module, ModelCard, Store, Split, Any]:
    """The model of a checkpoint on a device, the split of a store to predict, and the third result of `read_model`."""
    model, card, held_out = read_model(checkpoint, device=device_of(device))
    opened = open_store(store)
    return model, card, opened, split_of(opened, split or first_split(opened), "split"), held_out


def stored_batches(
    model: nn.Module,
    card: ModelCard,
    store: Store,
    split: Split,
    *,
    fields: Sequence[str] = ("image",),
    rows: NDArray[np.int64] | None = None,
    batch_size: int = BATCH,
) -> DataLoader[Any]:
    """Batches of a split, or of some rows, in order, with model inputs."""
    channels = image_shape(split)[2]
    if channels != card.vit.channels:
        raise OptionError(f"{split.name}: expected images of {card.vit.channels} channels, found {channels}.")
    whole = fitted(card.vit, gray=gray_of(split, card.mean))
    plan = whole if is_decoded(split.fields["image"]) else None
    dataset = StoreDataset(store, split.name, fields=fields, decode=plan)
    prepare = Compose([*([] if plan else [whole]), Normalize(card.mean, card.std)])
    chosen, device = dataset if rows is None else dataset.subset(rows), next(model.parameters()).device
    return DataLoader(chosen, batch_size, collate="packed", device=device, batch_transform=placed(prepare, split))


def check_classes(split: Split, known: Sequence[str], card: ModelCard) -> None:
    """Raise `OptionError` if a split has other classes than the model, or `FormatError` for a label of no class."""
    classes = card.task.classes
    if known != classes:
        first = next(i for i, pair in enumerate(zip_longest(classes, known)) if len(set(pair)) == 2)
        expected, found = (", ".join(names[first : first + 5]) or "no more" for names in (classes, known))
        advice = "Bring them together with tsds relabel."
        if set(known) == set(classes):
            advice = "Convert the source again with its classes in the order of the model."
        raise OptionError(f"{split.name}: expected the classes of the model, {expected}, found {found}. {advice}")
    class_counts(card.task, split)


def _tried(path: Path, card: ModelCard, on_error: Literal["raise", "skip"]) -> tuple[NDArray[Any], Placement] | str:
    """Pixels and placement of an image, or the message of its error if that is skipped."""
    try:
        return _read(path, card)
    except SourceError as error:
        if on_error != "skip":
            raise
        return error.problems[0].message


def _read(path: Path, card: ModelCard) -> tuple[NDArray[Any], Placement]:
    """Pixels of an image as the store would have them, and their placement."""
    data, key, channels = read_file(path, str(path)), str(path), card.vit.channels
    if card.stored is None:
        if not is_storable(data) and begins_as_image(data):  # AVIF and HEIC, which no store holds
            data = encode_png(decode_image(data, key=key))
        pixels, size = decode_resized(data, card.image_size, is_gray=channels == 1, key=key, how=fitted(card.vit))
    else:
        pixels = decode_image(data, color=_COLORS.get(channels, "auto"), key=key)
        size = pixels.shape[0], pixels.shape[1]
    if pixels.shape[2] != card.vit.channels or pixels.dtype != card.dtype:
        message = (
            f"expected {card.dtype} with {card.vit.channels} channels, found {pixels.dtype} with {pixels.shape[2]}."
        )
        problem = Problem(str(path), "unsupported-depth", message)
        raise SourceError(problem, "Give images such as the model was trained on.")
    placement = fit_box(size, card.image_size, card.fit if card.stored else "stretch")
    return np.ascontiguousarray(pixels if card.stored is None else resize(pixels, placement)), placement


def _placed_back(answer: Mapping[str, Any], placement: Placement, card: ModelCard) -> Mapping[str, Any]:
    """Keypoints and boxes in pixels of the original image, by the inverse of `Placement.move`."""
    left, top, right, bottom = placement.box
    zoom = np.array([(right - left) / placement.resized[1], (bottom - top) / placement.resized[0]])

    def back(points: NDArray[np.float64]) -> NDArray[np.float64]:
        moved: NDArray[np.float64] = (points - placement.offset[::-1]) * zoom + (left, top)
        return moved

    if "objects" in answer:
        boxes = np.array([each["box"] for each in answer["objects"]], np.float64).reshape(-1, 4)
        if card.stored is None:  # the canvas is the model's
            placed = letterboxed_back(boxes, (int(bottom), int(right)), card.vit.image_size)
        else:
            stored = letterboxed_back(boxes, card.stored, card.vit.image_size).reshape(-1, 2)
            placed = back(stored).clip((left, top), (right, bottom)).reshape(-1, 4)
        objects = [{**each, "box": box} for each, box in zip(answer["objects"], placed.tolist(), strict=True)]
        return {**answer, "objects": objects}
    if "keypoints" not in answer:
        return answer
    keypoints = back(np.array([*answer["keypoints"].values()], np.float64).reshape(-1, 2))
    return {**answer, "keypoints": dict(zip(answer["keypoints"], keypoints.tolist(), strict=True))}
