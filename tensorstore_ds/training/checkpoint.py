"""Checkpoints: plain values and tensors in torch's file format, loaded without executing anything."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tensorstore_ds.errors import TrainingError
from tensorstore_ds.geometry import Fit
from tensorstore_ds.training.options import ViTOptions
from tensorstore_ds.training.replacing import replacing
from tensorstore_ds.training.task_base import Task
from tensorstore_ds.training.tasks import task_from_data
from tensorstore_ds.training.vit import ViT

#: What a checkpoint says that it is; the number changes when older ones can no longer be read.
FORMAT = ("tensorstore-ds checkpoint", 1)

#: Of a member's attributes in a zip archive.
_FOLDER = 0x10


@dataclass(frozen=True)
class ModelCard:
    """All that is needed to use a trained model.

    Attributes:
        vit: its shape.
        task: what it has learned.
        mean, std: of each channel, by which images are normalised; of values in [0, 1] for uint8.
        stored: (height, width) of the images in the store; the model's own size may be another.
        fit: how images were brought to that size: ``pad``, ``crop`` or ``stretch``.
    """

    vit: ViTOptions
    task: Task
    mean: tuple[float, ...]
    std: tuple[float, ...]
    stored: tuple[int, int]
    fit: Fit = "pad"

    def as_data(self) -> dict[str, Any]:
        """As plain values."""
        plain = {name: getattr(self, name) for name in ("mean", "std", "stored", "fit")}
        return {"task": self.task.as_data(), "vit": dataclasses.asdict(self.vit), **plain}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ModelCard:
        """The inverse of `as_data`."""
        vit = {**data["vit"], "image_size": tuple(data["vit"]["image_size"])}
        numbers = {name: tuple(data[name]) for name in ("mean", "std", "stored")}
        return cls(vit=ViTOptions(**vit), task=task_from_data(data["task"]), fit=data["fit"], **numbers)


def save(path: Path, card: ModelCard, content: Mapping[str, Any]) -> None:
    """Write a checkpoint beside `path` and rename it: at no moment is there half a one.

    Raises:
        TrainingError: it cannot be written; what was at `path` is as it was.
    """
    with replacing(path) as file:
        torch.save({"format": list(FORMAT), "card": card.as_data(), **content}, file)


def load(path: Path, *, device: torch.device | str = "cpu") -> tuple[ModelCard, dict[str, Any]]:
    """Read a checkpoint: what model it is of, and its content. Only plain values and tensors are loaded.

    Raises:
        TrainingError: it is damaged, or no checkpoint of this library.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            _check_sums(file)
            data = torch.load(file, map_location=device, weights_only=True)
            if not isinstance(data, dict) or data.get("format") != list(FORMAT):
                raise ValueError("not one of this library and version")
            return ModelCard.from_data(data["card"]), data
        except Exception as error:  # torch's reader raises whatever a damaged file makes it stumble over
            reason = str(error).splitlines()[0].rstrip(".")[:120] if str(error) else type(error).__name__
            raise TrainingError(
                f"{path}: expected a checkpoint of tsds train, found something else or a damaged one ({reason}). "
                "Use another checkpoint, best.pt or last.pt of a run."
            ) from error


def _check_sums(file: BinaryIO) -> None:
    """Compare every part of a checkpoint with its CRC-32, which torch writes and does not look at."""
    with zipfile.ZipFile(file) as archive:
        # torch takes a member that is marked as a folder for empty, and leaves its tensor as the memory was.
        folders = (member.filename for member in archive.infolist() if member.external_attr & _FOLDER)
        damaged = archive.testzip() or next(folders, None)
    if damaged is not None:
        raise ValueError(f"{damaged} is not what was written")
    file.seek(0)


def load_model(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> tuple[ViT, ModelCard]:
    """A trained model, for predictions, and what it needs to know.

    Raises:
        TrainingError: the file is damaged, or no checkpoint of this library.
        OSError: it cannot be read.
    """
    card, content = load(Path(path))
    try:
        model = ViT(card.vit, card.task.outputs)
        model.load_state_dict(content["weights"])
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(f"{path}: expected the weights of the model that it describes, found others.") from error
    return model.to(device).eval(), card
