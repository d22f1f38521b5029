"""The models of a run: which shape one has for a task, and the model of a shape."""

from __future__ import annotations

from torch import nn

from tensorstore_ds.annex.training.detector import detector
from tensorstore_ds.annex.training.options import ModelOptions, TrainOptions, ViTOptions
from tensorstore_ds.annex.training.tasks import Detection, Task
from tensorstore_ds.annex.training.vit import ViT


def model_options(options: TrainOptions, task: Task, image_size: tuple[int, int], channels: int) -> ModelOptions:
    """The shape of the model for a task and stored images of a size; an `OptionError` where options do not fit it."""
    if isinstance(task, Detection):
        return options.detector(channels)
    return options.vit(image_size, channels)


def build(options: ModelOptions, outputs: int, *, grad_checkpointing: bool = False) -> nn.Module:
    """A model of a shape with random weights."""
    if isinstance(options, ViTOptions):
        return ViT(options, outputs, grad_checkpointing=grad_checkpointing)
    return detector(options, outputs)
