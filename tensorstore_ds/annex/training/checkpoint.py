"""Checkpoints: plain values and tensors in torch's file format, loaded without executing anything.

A checkpoint may come from an untrusted source, so its content is validated before use.
"""

from __future__ import annotations

import dataclasses
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import torch
from torch import Tensor, nn

from tensorstore_ds.annex.training.history import first_line, plain
from tensorstore_ds.annex.training.models import build
from tensorstore_ds.annex.training.options import CHOSEN, DetectorOptions, ModelOptions, TrainOptions, ViTOptions
from tensorstore_ds.annex.training.tasks import Detection, Task, task_from_data
from tensorstore_ds.durable import replacing
from tensorstore_ds.errors import OptionError, TrainingError
from tensorstore_ds.imaging import MAX_PIXELS
from tensorstore_ds.imaging.placement import Fit
from tensorstore_ds.options import deciding, user_path, with_changes

#: What a checkpoint says that it is; the number changes when older ones can no longer be read.
FORMAT = ("tensorstore-ds checkpoint", 1)

#: What a checkpoint has of a run, beside the weights.
_STATE: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("learner", "options", "tally", "loader"), (dict,)),
    **dict.fromkeys(("epoch", "batch", "start", "ranks", "torch_threads", "block_rows", "window_blocks"), (int,)),
    **dict.fromkeys(("seconds", "wait", "computed"), (int, float)),
}
#: Advice about an unusable checkpoint that is given, and of a run that is to be resumed.
_GIVEN = "Use another checkpoint, best.pt or last.pt of a run."
_RESUMED = "Remove it to begin again, or begin another run with `weights` from the best.pt next to it."
#: Of a member's attributes in a zip archive.
_FOLDER = 0x10


@dataclass(frozen=True)
class _Images:
    """Members of a card about its images, whose types are checked."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    stored: tuple[int, int] | None
    fit: Fit
    dtype: Literal["uint8", "uint16"] = "uint8"


@dataclass(frozen=True)
class ModelCard:
    """Description of a trained model, with everything that is needed to use it."""

    vit: ModelOptions  #: Shape of the model, a vision transformer or a detector.
    task: Task  #: What the model has learned.
    mean: tuple[float, ...]  #: Mean of each channel, to normalize images; of values in [0, 1] for integers.
    std: tuple[float, ...]  #: Standard deviation of each channel, as `mean`.
    #: (height, width) of all images in the store; the size of the model may differ. None if images in the store have
    #: different sizes. Each image is then stretched to the size of the model while it is decoded.
    stored: tuple[int, int] | None
    fit: Fit = "pad"  #: ``pad``, ``crop`` or ``stretch``, the way in which images were fitted to the size `stored`.
    dtype: str = "uint8"  #: Data type of image files to predict, ``uint8`` or ``uint16``.

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) that images are resized to first. Predicted keypoints are in pixels of this size."""
        return self.stored or self.vit.image_size

    def as_data(self) -> dict[str, Any]:
        """Return the card as plain values."""
        data = {**dataclasses.asdict(self), "task": self.task.as_data()}
        if isinstance(self.vit, DetectorOptions):
            data["detector"] = data.pop("vit")
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ModelCard:
        """The inverse of `as_data`; raises an error of any type for invalid data."""
        name = "detector" if "detector" in data else "vit"
        kind: type[ModelOptions] = DetectorOptions if name == "detector" else ViTOptions
        vit = msgspec.convert(data[name], kind)
        task, images = task_from_data(data["task"]), msgspec.convert(data, _Images)
        are_known = set(data[name]) <= {field.name for field in dataclasses.fields(kind)}
        if not are_known or isinstance(task, Detection) != isinstance(vit, DetectorOptions):
            raise ValueError(f"{name}: expected a model for {task.name}")
        if not len(images.mean) == len(images.std) == vit.channels or not min(images.std) > 0:
            raise ValueError(f"mean, std: expected {vit.channels} numbers, and deviations of more than 0")
        if not all(map(math.isfinite, (*images.mean, *images.std))):
            raise ValueError("mean, std: expected finite numbers")
        if images.stored is not None and not (min(images.stored) >= 1 and math.prod(images.stored) <= MAX_PIXELS):
            raise ValueError(f"stored: expected 1 to {MAX_PIXELS} pixels")
        return cls(vit, task, **vars(images))


def save(path: Path, card: ModelCard, content: Mapping[str, Any]) -> None:
    """Write a checkpoint next to `path` and rename it, so that a failure leaves `path` unchanged."""
    with replacing(path) as file:
        torch.save({"format": list(FORMAT), "card": card.as_data(), **content}, file)


def load(path: Path, *, advice: str = _GIVEN) -> tuple[ModelCard, dict[str, Any]]:
    """Read the card and the content of a checkpoint, plain values and tensors; raises `TrainingError` or OSError."""
    with open(path, "rb") as file:
        try:
            check_sums(file)
            data = torch.load(file, map_location="cpu", weights_only=True)
            if not isinstance(data, dict) or data.get("format") != list(FORMAT):
                raise ValueError("not one of this library and version")
            return ModelCard.from_data(data["card"]), data
        except Exception as error:  # torch's reader raises whatever a damaged file makes it stumble over
            raise unusable(path, error, advice) from error


def unusable(path: Path, error: Exception, advice: str = _RESUMED) -> TrainingError:
    """The error for a checkpoint that cannot be used, with its cause."""
    return TrainingError(
        f"{path}: expected a checkpoint of tsds train, found something else or a damaged one ({first_line(error)}). "
        f"{advice}"
    )


def check_sums(file: BinaryIO) -> None:
    """Compare every part of a checkpoint with its CRC-32, which torch writes but does not verify."""
    with zipfile.ZipFile(file) as archive:
        packed = (m.filename for m in archive.infolist() if m.compress_type != zipfile.ZIP_STORED)
        if (name := next(packed, None)) is not None:  # torch packs none, and would unpack any amount
            raise ValueError(f"{name} is compressed")
        # torch takes a member that is marked as a folder for empty, and leaves its tensor as the memory was.
        folders = (member.filename for member in archive.infolist() if member.external_attr & _FOLDER)
        damaged = archive.testzip() or next(folders, None)
    if damaged is not None:
        raise ValueError(f"{damaged} is not what was written")
    file.seek(0)


@dataclass(frozen=True)
class LoadedState:
    """The state of a run in a checkpoint."""

    path: Path  #: Of the checkpoint.
    card: ModelCard  #: Of its model.
    state: Mapping[str, Any]  #: All that the run goes on with.

    def completed(self, options: TrainOptions) -> TrainOptions:
        """The options, with the run's own choices filled in; raises `TrainingError` if those are invalid."""
        chosen = {name: self.state["options"].get(name) for name in CHOSEN if getattr(options, name) is None}
        try:
            return with_changes(options, chosen)
        except OptionError as error:
            raise unusable(self.path, error) from error

    def check(self, card: ModelCard, options: TrainOptions, samples: int, *, ranks: int, is_elastic: bool) -> None:
        """Raise `TrainingError` if a run cannot continue with it; `is_elastic` allows other ranks in an epoch."""
        before = {"samples": self.state["loader"].get("num_rows"), **self.card.as_data()}
        difference = _difference(before, {"samples": samples, **card.as_data()})
        difference = difference or _difference(self.state["options"], deciding(options))
        if difference:
            longer = " To train longer, start another run with `weights`." if difference.startswith("`epochs`") else ""
            raise TrainingError(f"{self.path}: {difference}. Use the same store and options, or another `out`.{longer}")
        if self.state["loader"].get("batch") and self.state["ranks"] != ranks and not is_elastic:
            raise TrainingError(
                f"{self.path}: expected {self.state['ranks']} ranks to go on within an epoch, found {ranks}. "
                "In this order of samples, another number is possible between two epochs alone."
            )


def load_state(path: Path) -> LoadedState:
    """The state in a checkpoint; raises `TrainingError` if it has none."""
    card, state = load(path, advice=_RESUMED)
    wrong = [name for name, kinds in _STATE.items() if type(state.get(name)) not in kinds]
    if wrong or not all(map(_is_plain, state["options"].values())):
        raise unusable(path, ValueError(f"no state of a run: {wrong[0] if wrong else 'options'}"))
    return LoadedState(path, card, state)


def load_model(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> tuple[nn.Module, ModelCard]:
    """Load a trained model, a `ViT` or a detector of torchvision, for predictions.

    >>> model, about = tsds.training.load_model("photos.run/best.pt")
    >>> model(torch.zeros(1, 3, 28, 28)).shape, about.task.classes
    (torch.Size([1, 2]), ('cat', 'dog'))

    Args:
        path: path of `best.pt` or `last.pt` of a run.
        device: device of the model.

    Returns:
        The model, and its `ModelCard`.

    Raises:
        TrainingError: the file is damaged, or is not a checkpoint of this library.
        OSError: the file cannot be read.
    """
    model, card, _ = read_model(path, device=device)
    return model, card


def read_model(path: str | os.PathLike[str], *, device: torch.device | str) -> tuple[nn.Module, ModelCard, Any]:
    """Return `load_model`'s results, and what the file claims to be the rows that the run held out, or None."""
    path = user_path(path)
    if path.is_dir():
        best = path / "best.pt"
        name = best if best.exists() else "the file best.pt of a run"
        raise TrainingError(f"{path}: expected a checkpoint, found a folder. Name {name}.")
    card, content = load(path)
    try:
        _check_weights(card, content["weights"], path.stat().st_size)
        model = build(card.vit, card.task.outputs)
        model.load_state_dict(content["weights"])
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(f"{path}: expected the weights of the model that it describes, found others.") from error
    return model.to(device).eval(), card, content.get("held_out")


def _check_weights(card: ModelCard, weights: Mapping[str, Tensor], nbytes: int) -> None:
    """Raise ValueError unless a file of `nbytes` has the weights of the model that it describes.

    The model is not built before its file has as many weights as the card implies, so a card cannot exhaust memory.
    """
    depth = card.vit.depth if isinstance(card.vit, ViTOptions) else 0
    if depth > len(weights) or any(type(value) is not Tensor for value in weights.values()):
        raise ValueError("no weights")
    shapes = {name: value.shape for name, value in weights.items()}
    plain = all(v.layout == torch.strided and v.device.type == "cpu" and not v.is_complex() for v in weights.values())
    # A tensor can be larger than the memory that it refers to, again and again.
    if shapes != _shapes(card) or not plain or sum(value.nbytes for value in weights.values()) > nbytes:
        raise ValueError("other weights")


def _shapes(card: ModelCard) -> dict[str, torch.Size]:
    """Shapes of a model's weights by name, inferred from a model of one block, which needs little memory."""
    vit, outputs = card.vit, card.task.outputs
    with torch.device("meta"):
        if isinstance(vit, DetectorOptions):
            return {name: value.shape for name, value in build(vit, outputs).state_dict().items()}
        one = build(dataclasses.replace(vit, depth=1), outputs).state_dict()
    first = "encoder.layers.encoder_layer_0."
    shapes = {name: value.shape for name, value in one.items()}
    for name, shape in [item for item in shapes.items() if item[0].startswith(first)]:
        shapes.update((name.replace("_0.", f"_{i}.", 1), shape) for i in range(vit.depth))
    return shapes


def _is_plain(value: object) -> bool:
    """Whether an option is a number, a text, None, or a list of numbers."""
    members = value if isinstance(value, list) else [value]
    return all(member is None or type(member) in (bool, int, float, str) for member in members)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> str:
    """The first difference between two trees of plain values, in words; empty if they are equal."""
    for name in now:
        a, b = plain(before.get(name)), plain(now[name])
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := _difference(a, b, f"{where}{name}."):
                return inner
        elif a != b:
            return f"`{where}{name}`: expected {_brief(a)} as in the checkpoint, found {_brief(b)}"
    return ""


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
