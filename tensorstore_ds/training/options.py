"""What can be asked of a training run. No torch is imported here, so that ``tsds train --help`` answers at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from tensorstore_ds.options import ANY_DEVICE, changed, check, declarations, declared, option, refusal

Task = Literal["auto", "classification", "multilabel", "keypoints", "classification+keypoints"]
Preset = Literal["auto", "seed", "tiny", "small", "base"]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Balance = Literal["none", "inverse", "effective", "repeat", "repeat-instance"]
Augment = Literal["none", "light", "strong"]
Mix = Literal["none", "mixup", "cutmix"]
Residency = Literal["auto", "page-cache", "locked", "device"]

#: The largest number in the shape of a model; what is beyond is a slip, or the card of a checkpoint that is damaged.
LARGEST = 2**16
#: Sides up to this many pixels get the preset `seed` where none is asked for.
SMALL_IMAGE = 64


@declared
class ViTOptions:
    """The shape of a vision transformer; an `OptionError` where a number is out of its range."""

    image_size: tuple[int, int] = option(
        "(height, width) of the images in pixels; where `patch_size` does not divide them, an image is padded.",
        at_least=1,
        at_most=LARGEST,
    )
    channels: int = option("Channels of the images.", at_least=1, at_most=LARGEST)
    patch_size: int = option(
        "Side of a patch in pixels: an image becomes a sequence of its patches. Smaller patches keep more detail and "
        "take more time.",
        at_least=1,
        at_most=LARGEST,
    )
    width: int = option("Width of the model: how many numbers represent a patch.", at_least=1, at_most=LARGEST)
    depth: int = option("Number of encoder blocks.", at_least=1, at_most=LARGEST)
    heads: int = option("Number of attention heads. `width` must be a multiple of it.", at_least=1, at_most=LARGEST)
    mlp_width: int = option("Width of the hidden layer in each block.", at_least=1, at_most=LARGEST)
    dropout: float = option(
        "Dropout probability in training, against overfitting.",
        default=0.0,
        at_least=0,
        below=1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.width % self.heads:
            divisors = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
            near = min(divisors, key=lambda n: abs(n - self.heads))
            raise refusal("heads", f"a divisor of the width {self.width}, such as {near}", self.heads)

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


def _of_vit(name: str) -> Any:
    """An option that changes the preset, as `ViTOptions` declares it."""
    return changed(declarations(ViTOptions)[name], default=None, shown="that of `model`")


#: Options of `TrainOptions` that are chosen where nobody gives them: None until then.
CHOSEN = ("batch_size", "learning_rate", "augment")


@declared
class TrainOptions:
    """What a run is to do; an `OptionError` where a value is out of its range."""

    task: Task = option(
        "What is learned: ``classification``, one label per image; ``multilabel``, the classes of its objects; "
        "``keypoints``; or ``classification+keypoints``. ``auto`` takes labels, else keypoints, else objects.",
        default="auto",
    )
    train_split: str = option("The split to learn from.", default="train")
    eval_split: str | None = option(
        "The split to evaluate on, after every epoch.",
        default=None,
        shown="the first of val, valid, validation and test that the store has",
    )
    model: Preset = option(
        "Size of the model, from small to large: ``seed`` (for 28 x 28 pixels), ``tiny``, ``small``, ``base``. "
        "``auto`` is ``seed`` for images of at most 64 x 64 pixels, else ``tiny``.",
        default="auto",
    )
    image_size: tuple[int, int] | None = option(
        "Resize images to this (height, width) in pixels.",
        default=None,
        at_least=1,
        at_most=LARGEST,
        shown="that of `model`, or as they are stored; 224x224 if they differ in size, less if most are smaller",
    )
    patch_size: int | None = _of_vit("patch_size")
    width: int | None = _of_vit("width")
    depth: int | None = _of_vit("depth")
    heads: int | None = _of_vit("heads")
    mlp_width: int | None = _of_vit("mlp_width")
    dropout: float | None = _of_vit("dropout")
    epochs: int = option("Passes over the training split.", default=20, at_least=1)
    batch_size: int = option(  # None where it is to be chosen, as those in `CHOSEN`: `recipe.py` puts a value there
        "Samples per step and per rank. Larger batches use a GPU better and take more memory.",
        default=None,
        at_least=1,
        shown="128, or less if the split is smaller or, on a CPU, if they do not fit in memory",
    )
    accumulate: int = option(
        "Number of batches whose gradients are added up for one update of the weights, which has the effect of a "
        "larger batch in the same memory.",
        default=1,
        at_least=1,
    )
    learning_rate: float = option(
        "The highest learning rate, after the warm-up; it falls to 0 along half a cosine. Lower it if the loss jumps "
        "or becomes NaN.",
        default=None,
        above=0,
        shown="by batch size and width: 0.002 for 128 samples per step and a width of 64, 0.01 at most",
    )
    warmup: float = option(
        "Fraction of the run in which the learning rate rises from 0.", default=0.1, at_least=0, below=1
    )
    weight_decay: float = option(
        "Weight decay of AdamW. It applies to matrices, not to biases, norms, the class token and positions.",
        default=0.05,
        at_least=0,
    )
    clip: float = option("Clip the gradient to this norm; 0 turns clipping off.", default=1.0, at_least=0)
    label_smoothing: float = option(
        "Label smoothing in classification: the fraction of a label that is spread over all classes.",
        default=0.0,
        at_least=0,
        below=1,
    )
    mix: Mix = option("Blend the images of a batch and their labels, with ``mixup`` or ``cutmix``.", default="none")
    augment: Augment = option(
        "Random changes of the images: ``light`` shifts them and changes brightness and contrast; "
        "``strong`` enlarges random parts and changes colors more.",
        default=None,
        shown="light, or none for fewer than 10 epochs",
    )
    flip: bool = option(
        "Mirror images left to right at random, with their boxes and keypoints. Not for digits, text or arrows.",
        default=False,
    )
    balance: Balance = option(
        "Draw samples of rare classes more often: by labels with ``inverse`` or ``effective``; by objects with "
        "``repeat``, if a class is in few images, or ``repeat-instance``, if few objects are of it.",
        default="none",
    )
    ema: float = option(
        "Decay of a moving average of the weights, such as 0.999. The average is then evaluated and saved; 0 turns "
        "it off.",
        default=0.0,
        at_least=0,
        below=1,
    )
    precision: Precision = option(
        "Precision of the computation; ``auto`` is ``bf16`` on a GPU that has it, else ``fp32``.", default="auto"
    )
    compile: bool = option(
        "Compile the model with torch.compile: the start is slower, then steps are faster.",
        default=False,
        decides=False,
    )
    cuda_graphs: bool = option(
        "Compile the model with torch.compile, and launch its kernels as CUDA graphs, which saves time where a GPU "
        "computes faster than Python launches: small models. Not tried on a GPU yet.",
        default=False,
        decides=False,
    )
    grad_checkpointing: bool = option(
        "Compute the blocks again in the backward pass, which gives the same gradients with less memory and more time.",
        default=False,
        decides=False,
    )
    device: str | None = option(
        "The device to train on, such as cuda or cpu.", default=None, shown=ANY_DEVICE, decides=False
    )
    residency: Residency = option(
        "Where rows are read from: ``page-cache``, ``locked`` in memory (RLIMIT_MEMLOCK must allow it), or a copy "
        "on the ``device``. ``auto`` is ``device`` if it fits on a GPU, else ``page-cache``.",
        default="auto",
        decides=False,
    )
    num_threads: int | None = option(
        "Number of threads of the loader.",
        default=None,
        at_least=1,
        shown="the number of cores, at most 8",
        decides=False,
    )
    torch_threads: int | None = option(
        "Number of threads that torch computes with on the CPU. They wait for each other: if other processes use the "
        "cores, fewer are faster. Results with another number differ in their last bits.",
        default=None,
        at_least=1,
        shown="OMP_NUM_THREADS, else what is measured to be fastest, again when steps become slow",
        decides=False,
    )
    seed: int = option("Seed of weights, order and augmentation.", default=0, at_least=0, at_most=2**63 - 1)

    def __post_init__(self) -> None:
        check(self)

    def vit(self, image_size: tuple[int, int], channels: int) -> ViTOptions:
        """The model's shape for stored images of a size, which is the model's too unless the preset has its own.

        >>> TrainOptions(model="auto", depth=2).vit((32, 32), 3).image_size
        (28, 28)
        """
        small = max(image_size) <= SMALL_IMAGE
        preset = PRESETS[("seed" if small else "tiny") if self.model == "auto" else self.model]
        names = ("image_size", "patch_size", "width", "depth", "heads", "mlp_width", "dropout")
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return ViTOptions(**{"image_size": image_size, "channels": channels, **preset, **changes})

    def as_data(self) -> dict[str, Any]:
        """Names and values, for a checkpoint or JSON."""
        return dataclasses.asdict(self)
