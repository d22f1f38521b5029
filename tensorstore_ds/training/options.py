"""What can be asked of a training run. No torch is imported here, so that ``tsds train --help`` answers at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tensorstore_ds.errors import OptionError

Task = Literal["auto", "classification", "multilabel", "keypoints", "classification+keypoints"]
Preset = Literal["auto", "seed", "tiny", "small", "base"]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Balance = Literal["none", "inverse", "effective", "repeat"]
Augment = Literal["none", "light", "strong"]
Mix = Literal["none", "mixup", "cutmix"]
Residency = Literal["auto", "page-cache", "locked", "device"]

#: The largest number in the shape of a model; what is beyond is a slip, or the card of a checkpoint that is damaged.
LARGEST = 2**16
#: Sides up to this many pixels get the preset `seed` where none is asked for.
SMALL_IMAGE = 64


@dataclass(frozen=True, slots=True)
class ViTOptions:
    """The shape of a vision transformer.

    Attributes:
        image_size: (height, width) in pixels; where `patch_size` does not divide them, the image is padded.
        channels: of the image.
        patch_size: side of a patch in pixels: an image is a sequence of its patches.
        width: numbers in a token.
        depth: encoder blocks.
        heads: of the attention; they divide `width`.
        mlp_width: of the hidden layer in each block.
        dropout: probability, in [0, 1).

    Raises:
        OptionError: one is out of its range.
    """

    image_size: tuple[int, int]
    channels: int
    patch_size: int
    width: int
    depth: int
    heads: int
    mlp_width: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("channels", "patch_size", "width", "depth", "heads", "mlp_width"):
            check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
            check(getattr(self, name) <= LARGEST, name, f"at most {LARGEST:,}", getattr(self, name))
        check(min(self.image_size) >= 1, "image_size", "at least 1 x 1", self.image_size)
        check(max(self.image_size) <= LARGEST, "image_size", f"at most {LARGEST:,} x {LARGEST:,}", self.image_size)
        check(0 <= self.dropout < 1, "dropout", "in [0, 1)", self.dropout)
        divisors = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
        expected = f"a divisor of the width {self.width}, such as {min(divisors, key=lambda n: abs(n - self.heads))}"
        check(self.width % self.heads == 0, "heads", expected, self.heads)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        height, width = self.image_size
        return math.ceil(height / self.patch_size), math.ceil(width / self.patch_size)


#: Shapes by name. `tiny`, `small` and `base` are those of DeiT (Touvron et al., ICML 2021, table 1) with patches of 16
#: pixels; `seed` is a small one for images of 28 x 28 pixels.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "seed": {"image_size": (28, 28), "patch_size": 7, "width": 64, "depth": 6, "heads": 8, "mlp_width": 128},
    "tiny": {"patch_size": 16, "width": 192, "depth": 12, "heads": 3, "mlp_width": 768},
    "small": {"patch_size": 16, "width": 384, "depth": 12, "heads": 6, "mlp_width": 1536},
    "base": {"patch_size": 16, "width": 768, "depth": 12, "heads": 12, "mlp_width": 3072},
}


def vit_options(preset: Preset, stored: tuple[int, int], channels: int, **changes: Any) -> ViTOptions:
    """A preset for images of a size, with some of its numbers changed.

    Args:
        preset: a name of `PRESETS`; ``auto`` is `seed` for images of at most 64 x 64 pixels, else `tiny`.
        stored: (height, width) of the images, which is the model's size, unless the preset has one of its own.
        channels: of the images.
        changes: attributes of `ViTOptions`; None leaves one as it is.

    >>> vit_options("auto", (32, 32), 3, depth=2).image_size
    (28, 28)
    """
    if preset == "auto":
        preset = "seed" if max(stored) <= SMALL_IMAGE else "tiny"
    check(preset in PRESETS, "model", f"one of {', '.join(PRESETS)}", preset)
    given = {name: value for name, value in changes.items() if value is not None}
    return ViTOptions(**{"image_size": stored, "channels": channels, **PRESETS[preset], **given})


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What a run is to do.

    Attributes:
        task: what is learned; ``auto``: labels if there are any, else keypoints, else the classes of objects.
        train_split, eval_split: names; None: `val`, `valid`, `validation` or `test`, the first that there is.
        model: a name of `PRESETS`, or ``auto``, by the images' size.
        image_size: (height, width) that images are resized to on the device; None: the preset's, or as they are stored.
        patch_size, width, depth, heads, mlp_width, dropout: change the preset; see `ViTOptions`.
        epochs: passes over the training split.
        batch_size: samples of a step, of each rank.
        accumulate: batches whose gradients are added up before the weights change.
        learning_rate: the highest, after the warm-up; it falls to 0 along half a cosine.
        warmup: share of the run in which the learning rate rises from 0.
        weight_decay: of matrices; biases, norms, class token and positions have none.
        clip: largest norm of the gradient; 0: as it is.
        label_smoothing: of classification, in [0, 1).
        mix: blend images of a batch: ``mixup`` or ``cutmix``, of torchvision.
        augment: random changes on the device: ``light`` crops and colours, ``strong`` more of it.
        flip: mirror images left to right, at random; not for digits, text or arrows.
        balance: draw samples by weight: rare classes more often, see `class_balanced_weights` and `repeat_factors`.
        ema: decay of the moving average of the weights, which is what is evaluated and kept; 0: none.
        precision: ``auto``: bf16 on a GPU that has it, else fp32.
        compile: through torch.compile.
        grad_checkpointing: compute blocks again in the backward pass, for less memory.
        device: ``cuda``, ``cpu``, ...; None: a GPU if there is one.
        residency: where rows are read from; see `DataLoader`.
        num_threads: of the loader.
        torch_threads: of torch's computations on the CPU; None: as torch has it.
        seed: of weights, order and augmentation.

    Raises:
        OptionError: one is out of its range.
    """

    task: Task = "auto"
    train_split: str = "train"
    eval_split: str | None = None
    model: Preset = "auto"
    image_size: tuple[int, int] | None = None
    patch_size: int | None = None
    width: int | None = None
    depth: int | None = None
    heads: int | None = None
    mlp_width: int | None = None
    dropout: float | None = None
    epochs: int = 20
    batch_size: int = 128
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: float = 0.05
    weight_decay: float = 0.05
    clip: float = 1.0
    label_smoothing: float = 0.0
    mix: Mix = "none"
    augment: Augment = "light"
    flip: bool = False
    balance: Balance = "none"
    ema: float = 0.0
    precision: Precision = "auto"
    compile: bool = False
    grad_checkpointing: bool = False
    device: str | None = None
    residency: Residency = "auto"
    num_threads: int | None = None
    torch_threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            check(getattr(self, name) in allowed, name, f"one of {', '.join(allowed)}", getattr(self, name))
        for name in ("epochs", "batch_size", "accumulate"):
            check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        check(0 < self.learning_rate < math.inf, "learning_rate", "a positive number", self.learning_rate)
        for name in ("weight_decay", "clip"):
            check(0 <= getattr(self, name) < math.inf, name, "0 or more", getattr(self, name))
        for name in ("warmup", "label_smoothing", "ema"):
            check(0 <= getattr(self, name) < 1, name, "in [0, 1)", getattr(self, name))
        for name in ("num_threads", "torch_threads"):
            value = getattr(self, name)
            check(value is None or value >= 1, name, "at least 1", value)
        check(self.seed >= 0, "seed", "0 or more", self.seed)

    def vit(self, image_size: tuple[int, int], channels: int) -> ViTOptions:
        """The model's shape for stored images of a size."""
        names = ("image_size", "patch_size", "width", "depth", "heads", "mlp_width", "dropout")
        return vit_options(self.model, image_size, channels, **{name: getattr(self, name) for name in names})

    def as_data(self) -> dict[str, Any]:
        """Names and values, for a checkpoint or JSON."""
        return dataclasses.asdict(self)


#: What a run may be resumed with that is not what it was begun with: it changes how fast, not what is computed.
FREE_TO_CHANGE = frozenset({"compile", "grad_checkpointing", "device", "residency", "num_threads", "torch_threads"})

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "task": get_args(Task),
    "model": get_args(Preset),
    "mix": get_args(Mix),
    "augment": get_args(Augment),
    "balance": get_args(Balance),
    "precision": get_args(Precision),
    "residency": get_args(Residency),
}


def check(valid: bool, name: str, expected: str, found: object) -> None:
    """Raise an `OptionError` unless an option is valid."""
    if not valid:
        raise OptionError(f"{name}: expected {expected}, found {found}.")
