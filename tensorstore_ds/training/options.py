"""What can be asked of a training run. No torch is imported here, so that ``tsds train --help`` answers at once."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import ANY_DEVICE, changed, check, declarations, declared, option, refusal

Task = Literal["auto", "classification", "multilabel", "keypoints", "classification+keypoints", "detection"]
Preset = Literal["auto", "seed", "tiny", "small", "base"]
DetectorName = Literal["ssdlite", "fasterrcnn_mobilenet"]
Model = Literal[Preset, DetectorName]
Optimizer = Literal["adamw", "sgd"]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Balance = Literal["none", "inverse", "effective", "repeat", "repeat-instance"]
Augment = Literal["none", "light", "strong"]
Mix = Literal["none", "mixup", "cutmix"]
Residency = Literal["auto", "page-cache", "locked", "device"]

#: The largest number in the shape of a model; what is beyond is a slip, or the card of a checkpoint that is damaged.
LARGEST = 2**16
#: Sides up to this many pixels get the preset `seed` where none is asked for.
SMALL_IMAGE = 64
#: The names of detectors; all other models are vision transformers.
DETECTORS: tuple[DetectorName, ...] = get_args(DetectorName)


@declared
class ViTOptions:
    """Shape of a vision transformer. Raises `OptionError` if a number is out of its range.

    >>> options = tsds.ViTOptions((32, 32), channels=3, patch_size=8, width=64, depth=2, heads=4, mlp_width=128)
    >>> model = tsds.ViT(options, outputs=10)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

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


@declared
class DetectorOptions:
    """Shape of a detector. Raises `OptionError` if a number is out of its range.

    >>> tsds.DetectorOptions("ssdlite", image_size=(320, 320)).channels
    3
    """

    model: DetectorName = option("Its architecture.")
    image_size: tuple[int, int] = option(
        "(height, width) of the images in pixels, with their borders.", default=(320, 320), at_least=32, at_most=LARGEST
    )
    channels: int = option("Channels of the images: 3, or 1, which are repeated.", default=3, at_least=1, at_most=3)
    frozen_norm: bool = option(
        "Keep the means and deviations of batch norm as they are, for weights of a training with larger batches.",
        default=False,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.channels == 2:
            raise refusal("channels", "1 or 3", self.channels)


#: The shape of a model.
ModelOptions = ViTOptions | DetectorOptions

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
    """Options of a training run. Raises `OptionError` if a value is out of its range.

    >>> options = tsds.TrainOptions(model="tiny", epochs=20, learning_rate=1e-3, mix="mixup")
    >>> options.epochs, options.optimizer
    (20, 'adamw')
    >>> try:
    ...     tsds.TrainOptions(epochs=0)
    ... except tsds.OptionError as error:
    ...     print(error)
    `epochs`: expected 1 or more, found 0.
    """

    task: Task = option(
        "What is learned: ``classification``, one label per image; ``multilabel``, the classes of its objects; "
        "``keypoints``; ``classification+keypoints``; or ``detection``, the boxes and classes of objects. ``auto`` is "
        "the first of classification, keypoints, detection and multilabel that the store and `model` are good for.",
        default="auto",
    )
    train_split: str = option("The split to learn from.", default="train")
    eval_split: str | None = option(
        "The split to evaluate on, after every epoch.",
        default=None,
        shown="the first of val, valid, validation and test that the store has",
    )
    fold: str | None = option(
        "Cross validation: evaluate on this fold of the training split, such as ``2/5``, the second of 5, and train on "
        "the others. `tsds folds` shows them.",
        default=None,
        shown="train on the whole split",
    )
    stratify: str | None = option(
        "With `fold`: a field of labels or objects, of whose classes each fold gets the same share.", default=None
    )
    groups: str | None = option(
        "With `fold`: rows of a group stay in one fold. A field of labels, integers or texts; or folder, duplicates "
        "or a regular expression for keys.",
        default=None,
    )
    fold_seed: int | None = option(
        "With `fold`: seed of the folds. `seed` does not change them.",
        default=None,
        shown="0",
        at_least=0,
        at_most=2**53 - 1,
    )
    model: Model = option(
        "The model: a vision transformer, from small to large ``seed`` (for 28 x 28 pixels), ``tiny``, ``small``, "
        "``base``; or a detector, ``ssdlite`` or ``fasterrcnn_mobilenet``, which is slower. ``auto`` is ``ssdlite`` "
        "for detection, else ``seed`` for images of at most 64 x 64 pixels, else ``tiny``.",
        default="auto",
    )
    weights: Path | None = option(
        "Begin with the weights in this file, a state dict of torch or safetensors, or a checkpoint of a run. If it "
        "has other classes, the layers that predict classes begin at random. Detectors only.",
        default=None,
        shown="random weights",
    )
    image_size: tuple[int, int] | None = option(
        "Resize images to this (height, width) in pixels.",
        default=None,
        at_least=1,
        at_most=LARGEST,
        shown="that of `model`, or as they are stored; 224x224 if they differ in size, less if most are smaller; "
        "320x320 for detection",
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
        shown="128, or 8 for detection; less if the split is smaller or, on a CPU, if they do not fit in memory",
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
        shown="by batch size and model: 0.002 for 128 samples per step and a width of 64, 0.01 at most; for detection "
        "0.001 for 8 samples per step with AdamW, 0.01 with SGD",
    )
    optimizer: Optimizer = option("The optimizer: ``adamw``, or ``sgd`` with a momentum of 0.9.", default="adamw")
    warmup: float = option(
        "Fraction of the run in which the learning rate rises from 0.", default=0.1, at_least=0, below=1
    )
    weight_decay: float = option(
        "Weight decay. It applies to matrices, not to biases, norms, the class token and positions.",
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
        if self.fold is not None:
            number, k = self.fold_number
            if self.eval_split is not None:
                raise refusal("eval_split", "none with `fold`, which evaluates on a fold", self.eval_split)
            object.__setattr__(self, "fold", f"{number}/{k}")
            return
        for name in ("stratify", "groups", "fold_seed"):
            if (value := getattr(self, name)) is not None:
                raise refusal(name, "none without `fold`, such as `fold=1/5`", value)

    @property
    def fold_number(self) -> tuple[int, int]:
        """The number of the fold, from 1, and how many there are; (0, 0) without `fold`.

        >>> TrainOptions(fold="2/5").fold_number
        (2, 5)
        """
        if self.fold is None:
            return 0, 0
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", self.fold, re.ASCII)
        number, k = (int(match[1]), int(match[2])) if match else (0, 0)
        if k < 2 or not 1 <= number <= k:
            raise refusal("fold", "a fold and how many there are, 2 or more, such as 1/5 to 5/5", self.fold)
        return number, k

    def vit(self, image_size: tuple[int, int], channels: int) -> ViTOptions:
        """The model's shape for stored images of a size, which is the model's too unless the preset has its own.

        >>> TrainOptions(model="auto", depth=2).vit((32, 32), 3).image_size
        (28, 28)
        """
        if self.model in DETECTORS:
            raise refusal("model", f"a vision transformer, one of {', '.join(get_args(Preset))}", self.model)
        small = max(image_size) <= SMALL_IMAGE
        preset = PRESETS[("seed" if small else "tiny") if self.model == "auto" else self.model]
        if self.weights is not None:
            raise refusal("weights", "a detector to load weights into", f"a vision transformer, `model={self.model}`")
        names = ("image_size", "patch_size", "width", "depth", "heads", "mlp_width", "dropout")
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return ViTOptions(**{"image_size": image_size, "channels": channels, **preset, **changes})

    def detector(self, channels: int) -> DetectorOptions:
        """The shape of a detector for images of so many channels.

        >>> TrainOptions().detector(3)
        DetectorOptions(model='ssdlite', image_size=(320, 320), channels=3, frozen_norm=False)
        """
        names = [name for name in DETECTORS if name == self.model]
        if not names and self.model != "auto":
            raise refusal("model", f"a detector, auto or one of {', '.join(DETECTORS)}", self.model)
        name = names[0] if names else DETECTORS[0]
        if channels not in (1, 3):
            raise OptionError(
                f'{name}: expected images of 1 or 3 channels, found {channels}. Convert with `color="rgb"`.'
            )
        for of_vit in ("patch_size", "width", "depth", "heads", "mlp_width", "dropout"):
            if (value := getattr(self, of_vit)) is not None:
                raise refusal(of_vit, f"no value for {name}, since vision transformers have it", value)
        if self.grad_checkpointing:
            raise refusal(
                "grad_checkpointing",
                f"False for {name}, whose batch norm would count each batch twice; a smaller `batch_size` with "
                "`accumulate` needs less memory",
                True,
            )
        for compiled in ("compile", "cuda_graphs"):
            if getattr(self, compiled):
                raise refusal(compiled, f"False for {name}, whose shapes depend on what it finds", True)
        frozen = self.weights is not None and name == "fasterrcnn_mobilenet"
        return DetectorOptions(name, self.image_size or (320, 320), channels, frozen)

    def as_data(self) -> dict[str, Any]:
        """Names and values, for a checkpoint or JSON."""
        return dataclasses.asdict(self)
