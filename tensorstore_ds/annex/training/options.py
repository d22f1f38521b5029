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
Residency = Literal["auto", "page-cache", "device"]

#: Largest number in the shape of a model; larger ones are typing errors or damaged checkpoints.
LARGEST = 2**16
#: Images with sides up to this many pixels get the preset `seed` by default.
SMALL_IMAGE = 64
#: The names of detectors; all other models are vision transformers.
DETECTORS: tuple[DetectorName, ...] = get_args(DetectorName)


@declared
class ViTOptions:
    """Shape of a vision transformer.

    >>> sizes = {"width": 64, "depth": 2, "heads": 4, "mlp_width": 128}
    >>> options = tsds.training.ViTOptions((32, 32), channels=3, patch_size=8, **sizes)
    >>> model = tsds.training.ViT(options, outputs=10)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Raises:
        OptionError: a number is out of its range.
    """

    image_size: tuple[int, int] = option(
        "(height, width) of the images in pixels; where `patch_size` does not divide them, an image is padded.",
        at_least=1,
        at_most=LARGEST,
        group="Model",
    )
    channels: int = option("Channels of the images.", at_least=1, at_most=LARGEST, group="Model")
    patch_size: int = option(
        "Side of a patch in pixels. The image is divided into patches. Smaller patches keep more detail and need more "
        "time.",
        at_least=1,
        at_most=LARGEST,
        group="Model",
    )
    width: int = option("Width of the model: number of features per patch.", at_least=1, at_most=LARGEST, group="Model")
    depth: int = option("Number of encoder blocks.", at_least=1, at_most=LARGEST, group="Model")
    heads: int = option(
        "Number of attention heads. It must divide `width`.", at_least=1, at_most=LARGEST, group="Model"
    )
    mlp_width: int = option("Width of the hidden layer in each block.", at_least=1, at_most=LARGEST, group="Model")
    dropout: float = option(
        "Dropout probability in training, against overfitting.", default=0.0, at_least=0, below=1, group="Model"
    )

    def __post_init__(self) -> None:
        check(self)
        if self.width % self.heads:
            divisors = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
            near = min(divisors, key=lambda n: abs(n - self.heads))
            raise refusal("heads", f"a divisor of the width {self.width}, such as {near}", self.heads)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches per column and per row."""
        height, width = self.image_size
        return math.ceil(height / self.patch_size), math.ceil(width / self.patch_size)


@declared
class DetectorOptions:
    """Shape of a detector.

    >>> tsds.training.DetectorOptions("ssdlite", image_size=(320, 320)).channels
    3

    Raises:
        OptionError: a number is out of its range.
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
    """An option that overrides the preset, declared in `ViTOptions`."""
    return changed(declarations(ViTOptions)[name], default=None, shown="the value of `model`")


#: Options of `TrainOptions` that are chosen automatically if they are None.
CHOSEN = ("batch_size", "learning_rate", "augment")


@declared
class TrainOptions:
    """Options of `train`.

    >>> options = tsds.training.TrainOptions(model="tiny", epochs=20, learning_rate=1e-3, mix="mixup")
    >>> options.epochs, options.optimizer
    (20, 'adamw')
    >>> try:
    ...     tsds.training.TrainOptions(epochs=0)
    ... except tsds.OptionError as error:
    ...     print(error)
    `epochs`: expected 1 or more, found 0.

    Raises:
        OptionError: a value is out of its range.
    """

    task: Task = option(
        "What to learn: ``classification``, one label per image; ``multilabel``, several labels per image, or the "
        "classes of its objects; ``keypoints``; ``classification+keypoints``; or ``detection``, boxes and classes of "
        "objects. ``auto`` is the first of classification, multilabel of labels, keypoints, detection and multilabel "
        "of objects that the store and `model` support.",
        default="auto",
        group="Essential",
    )
    train_split: str = option("Split to train on.", default="train", shown="train, or else training", group="Splits")
    eval_split: str | None = option(
        "Split to evaluate on after every epoch.",
        default=None,
        shown="the first of val, valid, validation and test in the store",
        group="Splits",
    )
    fold: str | None = option(
        "Cross-validation: evaluate on this fold of the training split, such as ``2/5`` for the second of 5, and "
        "train on the others. `tsds folds` shows the folds.",
        default=None,
        shown="no cross-validation",
        group="Splits",
    )
    stratify: str | None = option(
        "With `fold`: field of labels or objects. Each fold gets the same fraction of each class.",
        default=None,
        group="Splits",
    )
    groups: str | None = option(
        "With `fold`: keep the rows of a group in one fold. A field of labels, integers or texts; or folder, "
        "duplicates or a regular expression for keys.",
        default=None,
        group="Splits",
    )
    fold_seed: int | None = option(
        "With `fold`: random seed of the folds, which is independent of `seed`.",
        default=None,
        shown="0",
        at_least=0,
        at_most=2**53 - 1,
        group="Splits",
    )
    model: Model = option(
        "Model to train. Vision transformers, from small to large: ``seed`` (for 28 x 28 pixels), ``tiny``, "
        "``small``, ``base``. Detectors: ``ssdlite``, and ``fasterrcnn_mobilenet``, which is slower. ``auto`` is "
        "``ssdlite`` for detection, else ``seed`` for images of at most 64 x 64 pixels, else ``tiny``.",
        default="auto",
        group="Essential",
    )
    weights: Path | None = option(
        "Start from the weights in this file: a state dict of torch or safetensors, or the checkpoint of a run. If "
        "its classes differ, the layers that predict classes start from random weights.",
        default=None,
        shown="random weights",
        group="Essential",
    )
    image_size: tuple[int, int] | None = option(
        "Resize images to this (height, width) in pixels.",
        default=None,
        at_least=1,
        at_most=LARGEST,
        shown="the size of `model`, or the stored size; 224x224 if sizes differ, less if most images are smaller; "
        "320x320 for detection",
        group="Essential",
    )
    patch_size: int | None = _of_vit("patch_size")
    width: int | None = _of_vit("width")
    depth: int | None = _of_vit("depth")
    heads: int | None = _of_vit("heads")
    mlp_width: int | None = _of_vit("mlp_width")
    dropout: float | None = _of_vit("dropout")
    epochs: int = option("Passes over the training split.", default=20, at_least=1, group="Essential")
    batch_size: int = option(  # None like those in `CHOSEN`: `recipe.py` fills it in
        "Samples per step and per rank. Larger batches use a GPU better and take more memory.",
        default=None,
        at_least=1,
        shown="128, or 8 for detection; less if the split is smaller",
        group="Essential",
    )
    accumulate: int = option(
        "Number of batches whose gradients are added for each update of the weights. This has the effect of a larger "
        "batch in the same memory.",
        default=1,
        at_least=1,
        group="Optimization",
    )
    learning_rate: float = option(
        "Peak learning rate, after the warm-up. It then falls to 0 along half a cosine. Lower it if the loss jumps or "
        "becomes NaN.",
        default=None,
        above=0,
        shown="depends on batch size and model: 0.002 for 128 samples per step and a width of 64, at most 0.01; for "
        "detection 0.001 for 8 samples per step with AdamW, 0.01 with SGD",
        group="Essential",
    )
    optimizer: Optimizer = option(
        "Optimizer: ``adamw``, or ``sgd`` with momentum 0.9.", default="adamw", group="Optimization"
    )
    warmup: float = option(
        "Fraction of the run in which the learning rate rises from 0.",
        default=0.1,
        at_least=0,
        below=1,
        group="Optimization",
    )
    weight_decay: float = option(
        "Weight decay of matrices. It is not applied to biases, norms, the class token and positions.",
        default=0.05,
        at_least=0,
        group="Optimization",
    )
    clip: float = option(
        "Maximum norm of the gradient. 0 turns clipping off.", default=1.0, at_least=0, group="Optimization"
    )
    label_smoothing: float = option(
        "Label smoothing in classification: fraction of a label that is spread over all classes.",
        default=0.0,
        at_least=0,
        below=1,
        group="Optimization",
    )
    mix: Mix = option(
        "Blend images and labels within a batch with ``mixup`` or ``cutmix``.", default="none", group="Augmentation"
    )
    augment: Augment = option(
        "Random augmentation: ``light`` shifts images and changes brightness and contrast; ``strong`` also enlarges "
        "random parts and changes colors more.",
        default=None,
        shown="light, or none for fewer than 10 epochs",
        group="Essential",
    )
    flip: bool = option(
        "Flip images left to right at random, with their boxes and keypoints. Not for digits, text or arrows.",
        default=False,
        group="Essential",
    )
    balance: Balance = option(
        "Sample rare classes more often: by labels with ``inverse`` or ``effective``; by objects or several labels "
        "with ``repeat``, if few images contain a class, or ``repeat-instance``, if a class has few objects.",
        default="none",
        group="Augmentation",
    )
    ema: float = option(
        "Decay of an exponential moving average of the weights, such as 0.999. The average is evaluated and saved. 0 "
        "turns it off.",
        default=0.0,
        at_least=0,
        below=1,
        group="Optimization",
    )
    precision: Precision = option(
        "Floating-point precision. ``auto`` is ``bf16`` on a GPU that supports it, else ``fp32``.",
        default="auto",
        group="Speed",
    )
    compile: bool = option(
        "Compile the model with torch.compile: the start is slower, steps are faster.",
        default=False,
        decides=False,
        group="Speed",
    )
    cuda_graphs: bool = option(
        "Compile the model with torch.compile, and launch its kernels as CUDA graphs. This saves time for small "
        "models. Not tested on a GPU yet.",
        default=False,
        decides=False,
        group="Speed",
    )
    grad_checkpointing: bool = option(
        "Recompute the blocks in the backward pass: the same gradients with less memory and more time.",
        default=False,
        decides=False,
        group="Speed",
    )
    device: str | None = option(
        "Device to train on, such as cuda or cpu.", default=None, shown=ANY_DEVICE, decides=False, group="Essential"
    )
    residency: Residency = option(
        "Where to read rows from: ``page-cache``, or a copy on the ``device``. ``auto`` is ``device`` if the data fits "
        "on a GPU, else ``page-cache``.",
        default="auto",
        decides=False,
        group="Speed",
    )
    num_threads: int | None = option(
        "Number of loader threads.",
        default=None,
        at_least=1,
        shown="the number of cores, less one if there are more than 4",
        decides=False,
        group="Speed",
    )
    torch_threads: int | None = option(
        "Number of CPU threads of torch. If other processes use the cores, fewer threads are faster. The number "
        "changes the last bits of the results.",
        default=None,
        at_least=1,
        shown="OMP_NUM_THREADS, else the fastest number in a measurement after the first batches",
        decides=False,
        group="Speed",
    )
    seed: int = option(
        "Random seed of weights, order and augmentation.",
        default=0,
        at_least=0,
        at_most=2**63 - 1,
        group="Optimization",
    )

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
        """Number of the fold, from 1, and number of folds; (0, 0) without `fold`.

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
        """Return the shape of the vision transformer for stored images of `image_size` (height, width).

        The model has the same size, unless `image_size` or the preset sets a different one.

        >>> TrainOptions(model="auto", depth=2).vit((32, 32), 3).image_size
        (28, 28)
        """
        if self.model in DETECTORS:
            raise refusal("model", f"a vision transformer, one of {', '.join(get_args(Preset))}", self.model)
        small = max(image_size) <= SMALL_IMAGE
        preset = PRESETS[("seed" if small else "tiny") if self.model == "auto" else self.model]
        names = ("image_size", "patch_size", "width", "depth", "heads", "mlp_width", "dropout")
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return ViTOptions(**{"image_size": image_size, "channels": channels, **preset, **changes})

    def detector(self, channels: int) -> DetectorOptions:
        """Return the shape of the detector for images with `channels` channels.

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
        """Return names and values, for a checkpoint or JSON."""
        return dataclasses.asdict(self)
