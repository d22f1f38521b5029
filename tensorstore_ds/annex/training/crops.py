"""Images that differ in size are compared as crops of one size: the same ones by this library and by torchvision."""

from __future__ import annotations

import inspect
from typing import Any, Literal, cast

from torchvision.transforms import v2

from tensorstore_ds.annex.training.data import image_shape
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.augment.fitting import CenterCrop, Resize
from tensorstore_ds.loading.augment.geometry import RandomHorizontalFlip, RandomResizedCrop
from tensorstore_ds.loading.decoding import Plan
from tensorstore_ds.reading.store import Split

Size = tuple[int, int]
#: What becomes of an image.
How = Literal["resize", "random", "center"]


def image_size_of(split: Split, asked: Size | None) -> Size | None:
    """(height, width) of the crops: as given, else as `tsds train` chooses if sizes differ; None keeps images whole."""
    if asked is not None or split.fields["image"].one_shape is not None:
        return asked
    sizes = split.image_shapes[:, :2]
    if (sizes == sizes[0]).all():
        return None
    height, width, _ = image_shape(split)
    return height, width


def how_of(crop: Literal["random", "center"], *, objects: bool) -> How:
    """Images with `objects` are resized whole, so that none is cut away."""
    return "resize" if objects else crop


def _shorter(size: Size) -> int:
    """The shorter side of a validation image before its center is cropped: 256 for crops of 224."""
    return round(max(size) * 8 / 7)


def decode_plan(size: Size | None, how: How, *, seed: int = 0) -> Compose | None:
    """The plan of a data set for crops of a size."""
    if size is None:
        return None
    steps: dict[How, list[Any]] = {
        "resize": [Resize(size)],
        "random": [RandomResizedCrop(size), RandomHorizontalFlip()],
        "center": [Resize(_shorter(size)), CenterCrop(size)],
    }
    return Compose(steps[how], seed=seed)


def plan_in_code(plan: Plan) -> str:
    """Python code that creates a plan.

    >>> plan_in_code(Compose([Resize(56), RandomHorizontalFlip(seed=2)]))
    'tsds.Compose([tsds.Resize(size=56), tsds.RandomHorizontalFlip(seed=2)])'
    """
    if isinstance(plan, Compose):
        seed = f", seed={plan.seed}" if plan.seed else ""
        return f"tsds.Compose([{', '.join(plan_in_code(cast(Plan, step)) for step in plan.transforms)}]{seed})"
    known = inspect.signature(type(plan)).parameters.values()
    values = {each.name: getattr(plan, each.name) for each in known}
    given = (f"{each.name}={values[each.name]!r}" for each in known if values[each.name] != each.default)
    return f"tsds.{type(plan).__name__}({', '.join(given)})"


def torchvision_steps(size: Size, how: How) -> list[Any]:
    """The equivalent torchvision transforms for a PIL image."""
    if how == "resize":
        return [v2.Resize(size, antialias=True)]
    if how == "center":
        return [v2.Resize(_shorter(size), antialias=True), v2.CenterCrop(size)]
    return [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]


def crops_in_words(size: Size, how: How) -> str:
    """The crops in words.

    >>> crops_in_words((224, 224), "resize"), crops_in_words((224, 224), "center")
    ('224x224 by Resize', '224x224 by Resize(256) and CenterCrop')
    """
    names = {"resize": "Resize", "random": "RandomResizedCrop and RandomHorizontalFlip"}
    return f"{'x'.join(map(str, size))} by {names.get(how, f'Resize({_shorter(size)}) and CenterCrop')}"
