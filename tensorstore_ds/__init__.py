"""tensorstore-ds: image data sets as Zarr stores that are also memory maps.

Public names are imported when they are first used, so that opening a store loads neither Pillow nor zarr.

>>> import tensorstore_ds as tsds
>>> store = tsds.open("digits.tsds")                        # doctest: +SKIP
>>> store["train"]["image"].take([3, 1, 4]).shape           # doctest: +SKIP
(3, 8, 8, 1)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorstore_ds.columns import Column, Ragged, RaggedColumn
from tensorstore_ds.errors import (
    ConversionError,
    FormatError,
    OptionError,
    Problem,
    ResidencyError,
    SourceError,
    StoreExistsError,
    TrainingError,
    TrainingStopped,
    TsdsError,
)
from tensorstore_ds.store import Split, Store, open
from tensorstore_ds.version import __version__

if TYPE_CHECKING:
    from tensorstore_ds.conversion import Progress, Summary, convert
    from tensorstore_ds.estimation import Estimate, estimate
    from tensorstore_ds.eviction import Eviction, evict
    from tensorstore_ds.loading.augment import (
        ColorJitter,
        Compose,
        Normalize,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
    )
    from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
    from tensorstore_ds.loading.collate import PackedObjects, collate_objects
    from tensorstore_ds.loading.dataset import Batch, StoreDataset
    from tensorstore_ds.loading.device import DevicePrefetcher
    from tensorstore_ds.loading.loader import DataLoader
    from tensorstore_ds.loading.loader_stats import LoaderStats
    from tensorstore_ds.loading.samplers import ShuffleSampler, SubsetSampler
    from tensorstore_ds.loading.weighted import WeightedSampler
    from tensorstore_ds.loading.weights import class_balanced_weights, repeat_factors, weights_from_column
    from tensorstore_ds.locking import Lock, lock
    from tensorstore_ds.memory import memory_limit, memory_limits
    from tensorstore_ds.options import ConvertOptions
    from tensorstore_ds.page_cache import Residency, fits, residency
    from tensorstore_ds.repacking import repack
    from tensorstore_ds.schema import Keypoints
    from tensorstore_ds.training.bench.comparison import bench
    from tensorstore_ds.training.bench.options import BenchOptions
    from tensorstore_ds.training.bench.results import Comparison
    from tensorstore_ds.training.checkpoint import load_model
    from tensorstore_ds.training.doctor.diagnosis import diagnose
    from tensorstore_ds.training.doctor.findings import Diagnosis, Verdict
    from tensorstore_ds.training.doctor.options import DiagnoseOptions
    from tensorstore_ds.training.epoch_record import EpochRecord
    from tensorstore_ds.training.learner import Learner
    from tensorstore_ds.training.listeners import Listeners, TrainProgress
    from tensorstore_ds.training.options import TrainOptions, ViTOptions
    from tensorstore_ds.training.prediction import Prediction, predict
    from tensorstore_ds.training.report import TrainReport
    from tensorstore_ds.training.tasks import task_of
    from tensorstore_ds.training.trainer import train
    from tensorstore_ds.training.vit import ViT
    from tensorstore_ds.verification import verify
    from tensorstore_ds.warming import Warming, warm, warm_in_background

#: Name to the module that it is imported from when it is first used.
_LAZY = {
    "Batch": "loading.dataset",
    "BenchOptions": "training.bench.options",
    "BlockShuffleSampler": "loading.block_shuffle",
    "ColorJitter": "loading.augment",
    "Comparison": "training.bench.results",
    "Compose": "loading.augment",
    "ConvertOptions": "options",
    "DataLoader": "loading.loader",
    "DevicePrefetcher": "loading.device",
    "DiagnoseOptions": "training.doctor.options",
    "Diagnosis": "training.doctor.findings",
    "EpochRecord": "training.epoch_record",
    "Estimate": "estimation",
    "Eviction": "eviction",
    "Keypoints": "schema",
    "Learner": "training.learner",
    "Listeners": "training.listeners",
    "LoaderStats": "loading.loader_stats",
    "Lock": "locking",
    "Normalize": "loading.augment",
    "PackedObjects": "loading.collate",
    "Prediction": "training.prediction",
    "Progress": "conversion",
    "RandomCrop": "loading.augment",
    "RandomHorizontalFlip": "loading.augment",
    "RandomResizedCrop": "loading.augment",
    "Residency": "page_cache",
    "ShuffleSampler": "loading.samplers",
    "StoreDataset": "loading.dataset",
    "SubsetSampler": "loading.samplers",
    "Summary": "conversion",
    "TrainOptions": "training.options",
    "TrainProgress": "training.listeners",
    "TrainReport": "training.report",
    "Verdict": "training.doctor.findings",
    "ViT": "training.vit",
    "ViTOptions": "training.options",
    "Warming": "warming",
    "WeightedSampler": "loading.weighted",
    "bench": "training.bench.comparison",
    "class_balanced_weights": "loading.weights",
    "collate_objects": "loading.collate",
    "convert": "conversion",
    "diagnose": "training.doctor.diagnosis",
    "estimate": "estimation",
    "evict": "eviction",
    "fits": "page_cache",
    "load_model": "training.checkpoint",
    "lock": "locking",
    "memory_limit": "memory",
    "memory_limits": "memory",
    "predict": "training.prediction",
    "repack": "repacking",
    "repeat_factors": "loading.weights",
    "residency": "page_cache",
    "task_of": "training.tasks",
    "train": "training.trainer",
    "verify": "verification",
    "warm": "warming",
    "warm_in_background": "warming",
    "weights_from_column": "loading.weights",
}

__all__ = [
    "Batch",
    "BenchOptions",
    "BlockShuffleSampler",
    "ColorJitter",
    "Column",
    "Comparison",
    "Compose",
    "ConversionError",
    "ConvertOptions",
    "DataLoader",
    "DevicePrefetcher",
    "DiagnoseOptions",
    "Diagnosis",
    "EpochRecord",
    "Estimate",
    "Eviction",
    "FormatError",
    "Keypoints",
    "Learner",
    "Listeners",
    "LoaderStats",
    "Lock",
    "Normalize",
    "OptionError",
    "PackedObjects",
    "Prediction",
    "Problem",
    "Progress",
    "Ragged",
    "RaggedColumn",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Residency",
    "ResidencyError",
    "ShuffleSampler",
    "SourceError",
    "Split",
    "Store",
    "StoreDataset",
    "StoreExistsError",
    "SubsetSampler",
    "Summary",
    "TrainOptions",
    "TrainProgress",
    "TrainReport",
    "TrainingError",
    "TrainingStopped",
    "TsdsError",
    "Verdict",
    "ViT",
    "ViTOptions",
    "Warming",
    "WeightedSampler",
    "__version__",
    "bench",
    "class_balanced_weights",
    "collate_objects",
    "convert",
    "diagnose",
    "estimate",
    "evict",
    "fits",
    "load_model",
    "lock",
    "memory_limit",
    "memory_limits",
    "open",
    "predict",
    "repack",
    "repeat_factors",
    "residency",
    "task_of",
    "train",
    "verify",
    "warm",
    "warm_in_background",
    "weights_from_column",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torchvision"):
            raise
        message = f"tensorstore_ds.{name} needs {error.name}. Install it with: pip install 'tensorstore-ds[torch]'"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    return __all__
