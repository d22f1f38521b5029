"""What a checkpoint says of its model. It may come from anywhere: nothing in it is believed before it was looked at."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorstore_ds.imaging.codecs import MAX_PIXELS
from tensorstore_ds.imaging.placement import FITS, Fit
from tensorstore_ds.training.options import ViTOptions
from tensorstore_ds.training.task_base import Task
from tensorstore_ds.training.tasks import task_from_data


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
        """The inverse of `as_data`.

        Raises:
            ValueError, TypeError, KeyError, OverflowError: it describes no model.
        """
        vit = _vit(data["vit"])
        mean, std = (_numbers(name, data[name], vit.channels) for name in ("mean", "std"))
        _expect(min(std) > 0, "std", "more than 0", std)
        height, width = (_integer("stored", side) for side in data["stored"])
        small = min(height, width) >= 1 and height * width <= MAX_PIXELS
        _expect(small, "stored", f"1 to {MAX_PIXELS} pixels", (height, width))
        fits = [fit for fit in FITS if isinstance(data["fit"], str) and fit == data["fit"]]
        _expect(bool(fits), "fit", f"one of {', '.join(FITS)}", data["fit"])
        return cls(vit, task_from_data(data["task"]), mean, std, (height, width), fits[0])


def _vit(data: Mapping[str, Any]) -> ViTOptions:
    numbers = {name: _integer(name, value) for name, value in data.items() if name not in ("image_size", "dropout")}
    height, width = (_integer("image_size", side) for side in data["image_size"])
    (dropout,) = _numbers("dropout", [data["dropout"]], 1)
    return ViTOptions(image_size=(height, width), dropout=dropout, **numbers)


def _integer(name: str, value: object) -> int:
    _expect(type(value) is int, name, "a whole number", value)
    return value  # type: ignore[return-value]  # as just seen


def _numbers(name: str, values: Any, count: int) -> tuple[float, ...]:
    plain = isinstance(values, list | tuple) and all(type(value) in (int, float) for value in values)
    _expect(plain and len(values) == count and all(map(math.isfinite, values)), name, f"{count} numbers", values)
    return tuple(values)


def _expect(valid: bool, name: str, expected: str, found: object) -> None:
    if not valid:
        plain = isinstance(found, str | int | float | tuple) and len(repr(found)) <= 60
        raise ValueError(f"{name}: expected {expected}, found {repr(found) if plain else type(found).__name__}")
