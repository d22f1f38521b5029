"""The models of a run: which shape one has for a task, and the model of a shape."""

from __future__ import annotations

from torch import nn

from tensorstore_ds.annex.training.detector import detector
from tensorstore_ds.annex.training.options import ModelOptions, TrainOptions, ViTOptions
from tensorstore_ds.annex.training.tasks import Detection, Task
from tensorstore_ds.annex.training.vit import ViT


def model_options(options: TrainOptions, task: Task, image_size: tuple[int, int], channels: int) -> ModelOptions:
    """The model options for a task and an image size; raises `OptionError` if options do not fit them."""
    if isinstance(task, Detection):
        return options.detector(channels)
    return options.vit(image_size, channels)


def build(options: ModelOptions, outputs: int, *, grad_checkpointing: bool = False) -> nn.Module:
    """A model with random weights."""
    if isinstance(options, ViTOptions):
        return ViT(options, outputs, grad_checkpointing=grad_checkpointing)
    return detector(options, outputs)
