"""The options of functions as keywords: what editors complete and type checkers check.

``python tests/keyword_types.py`` writes this module from the declarations of the options.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, TypedDict


class CheckKeywords(TypedDict, total=False):
    """`CheckOptions` as keywords."""

    distance: int
    similarity: float
    near: bool
    mirrored: bool
    min_class: int
    min_box: float
    max_box: float
    max_aspect: float
    min_overlap: float
    absent_keypoints: bool
    odd_images: bool
    min_sharpness: float
    min_lights: float
    max_shadows: float
    max_image_aspect: float
    prediction_score: float
    prediction_iou: float


class BenchKeywords(TypedDict, total=False):
    """`BenchOptions` as keywords."""

    raw: str | os.PathLike[str] | None
    split: str
    image_size: int | tuple[int, int] | None
    crop: Literal["random", "center"]
    batch_sizes: Sequence[int]
    ways: Sequence[Literal["files", "tensors", "plain", "store", "device"]]
    train: bool
    seconds: float | None
    device: str | None
    memory: int | None
    seed: int


class DiagnoseKeywords(TypedDict, total=False):
    """`DiagnoseOptions` as keywords."""

    split: str | None
    model: Literal["auto", "seed", "tiny", "small", "base", "none"]
    image_size: int | tuple[int, int] | None
    batch_size: int
    seconds: float
    device: str | None
    num_threads: int | None
    prefetch_factor: int | None
    memory: int | None


class TrainKeywords(TypedDict, total=False):
    """`TrainOptions` as keywords."""

    task: Literal["auto", "classification", "multilabel", "keypoints", "classification+keypoints", "detection"]
    train_split: str
    eval_split: str | None
    fold: str | None
    stratify: str | None
    groups: str | None
    fold_seed: int | None
    model: Literal["auto", "seed", "tiny", "small", "base", "ssdlite", "fasterrcnn_mobilenet"]
    weights: str | os.PathLike[str] | None
    image_size: int | tuple[int, int] | None
    patch_size: int | None
    width: int | None
    depth: int | None
    heads: int | None
    mlp_width: int | None
    dropout: float | None
    epochs: int
    batch_size: int
    accumulate: int
    learning_rate: float
    optimizer: Literal["adamw", "sgd"]
    warmup: float
    weight_decay: float
    clip: float
    label_smoothing: float
    mix: Literal["none", "mixup", "cutmix"]
    augment: Literal["none", "light", "strong"]
    flip: bool
    balance: Literal["none", "inverse", "effective", "repeat", "repeat-instance"]
    ema: float
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"]
    compile: bool
    cuda_graphs: bool
    grad_checkpointing: bool
    device: str | None
    residency: Literal["auto", "page-cache", "device"]
    num_threads: int | None
    torch_threads: int | None
    seed: int
