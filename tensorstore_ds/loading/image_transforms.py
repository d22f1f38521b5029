"""Transforms of single images, recognized by their classes: torchvision's first generation, and timm's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

#: Modules of torchvision transforms that take an image, but no sample. Its `v2` takes both.
_OF_TORCHVISION = tuple(
    f"torchvision.transforms.{name}" for name in ("transforms", "autoaugment", "functional", "_presets")
)
#: Classes that apply transforms. A `Lambda` may take anything.
_CONTAINERS = ("Compose", "Sequential", "RandomApply", "RandomChoice", "RandomOrder")
#: Transforms of a PIL image or an array, and those that also take a tensor but return other values for it.
_OF_PIL = ("ToTensor", "PILToTensor", "to_tensor", "pil_to_tensor")
_WITH_PIL = ("timm.", "torchvision.transforms._presets")


class ImageTransform(NamedTuple):
    """Input that a transform of single images expects."""

    #: Its first member from torchvision's first generation or timm, such as ``torchvision's ToTensor``.
    name: str
    #: Whether it takes PIL images, as in torchvision's ImageFolder.
    of_pil: bool


def image_transform(transform: Any) -> ImageTransform | None:
    """Return the input of a transform of single images, or None for any other transform, which gets samples."""
    steps = list(_steps(transform))
    ours = [step for step in steps if _is_of_images(step)]
    if not ours:
        return None
    library = "timm" if _module(ours[0]).startswith("timm.") else "torchvision"
    of_pil = any(_name(step) in _OF_PIL or _module(step).startswith(_WITH_PIL) for step in ours)
    return ImageTransform(f"{library}'s {_name(ours[0])}", of_pil and _name(steps[0]) != "ToPILImage")


def _steps(transform: Any) -> Iterator[Any]:
    inner = getattr(transform, "transforms", transform)
    if _name(transform) in _CONTAINERS and _module(transform).startswith(("torch.", "torchvision.", "timm.")):
        for step in inner:
            yield from _steps(step)
    else:
        yield transform


def _is_of_images(step: Any) -> bool:
    module = _module(step)
    return (module in _OF_TORCHVISION or module.startswith("timm.")) and _name(step) != "Lambda"


def _module(step: Any) -> str:
    return str(step.__module__ if hasattr(step, "__qualname__") else type(step).__module__)


def _name(step: Any) -> str:
    return str(getattr(step, "__name__", type(step).__name__))
