"""The public names, each with the module that it is imported from when it is first used."""

from .annex.augment.affine import RandomAffine as RandomAffine, RandomPerspective as RandomPerspective
from .annex.augment.blur import GaussianBlur as GaussianBlur
from .annex.augment.color import (
    AutoContrast as AutoContrast,
    ColorJitter as ColorJitter,
    Equalize as Equalize,
    Posterize as Posterize,
    RandomGrayscale as RandomGrayscale,
    Solarize as Solarize,
)
from .annex.augment.erasing import RandomErasing as RandomErasing
from .annex.augment.mixing import CutMix as CutMix, Mixup as Mixup
from .annex.augment.mosaic import Mosaic as Mosaic
from .annex.augment.policies import RandAugment as RandAugment, TrivialAugment as TrivialAugment
from .annex.checking.check import check_store as check_store
from .annex.checking.findings import (
    AbsentKeypoints as AbsentKeypoints,
    CheckedSample as CheckedSample,
    CheckFindings as CheckFindings,
    Copies as Copies,
    FewSamples as FewSamples,
    OddBox as OddBox,
    OddImage as OddImage,
    SuspectLabel as SuspectLabel,
    SuspectObject as SuspectObject,
)
from .annex.checking.options import CheckOptions as CheckOptions
from .annex.checking.picture import draw_copies as draw_copies
from .annex.clusters.convert import convert_on as convert_on
from .annex.clusters.planned import Plan as Plan
from .annex.clusters.slurm import SlurmJobs as SlurmJobs, slurm_script as slurm_script, submit_slurm as submit_slurm
from .annex.clusters.tasks import (
    TaskSummary as TaskSummary,
    commit as commit,
    convert_task as convert_task,
    plan as plan,
)
from .annex.comparison.bench import bench as bench
from .annex.comparison.chart import draw_comparison as draw_comparison
from .annex.comparison.forecast import Forecast as Forecast, forecast as forecast
from .annex.comparison.options import BenchOptions as BenchOptions
from .annex.comparison.results import Comparison as Comparison
from .annex.diagnosis.any_loader import LoaderDiagnosis as LoaderDiagnosis
from .annex.diagnosis.diagnosis import diagnose as diagnose
from .annex.diagnosis.options import DiagnoseOptions as DiagnoseOptions
from .annex.diagnosis.results import Diagnosis as Diagnosis, Verdict as Verdict
from .annex.editing.add import FieldsSummary as FieldsSummary, add_fields as add_fields, drop_fields as drop_fields
from .annex.editing.append import GrowthSummary as GrowthSummary, append as append, update as update
from .annex.editing.compare import (
    SampleCount as SampleCount,
    SplitDifference as SplitDifference,
    StoreDifference as StoreDifference,
    compare_stores as compare_stores,
)
from .annex.editing.compare_folder import FolderDifference as FolderDifference, compare_folder as compare_folder
from .annex.editing.edit import (
    filter_store as filter_store,
    merge_stores as merge_stores,
    relabel_store as relabel_store,
    sample_store as sample_store,
    split_store as split_store,
)
from .annex.editing.erase import ErasureSummary as ErasureSummary, erase as erase
from .annex.editing.field_files import add_file as add_file
from .annex.editing.folds import Fold as Fold, Folds as Folds, folds as folds
from .annex.editing.repack import repack as repack
from .annex.exporting import EXPORT_FORMATS as EXPORT_FORMATS
from .annex.exporting.export import ExportSummary as ExportSummary, export as export
from .annex.pictures.contact_sheet import preview as preview
from .annex.publishing.annotate import annotate as annotate
from .annex.publishing.card import Card as Card, card as card
from .annex.serving.serve import serve as serve
from .annex.tiles import Tiles as Tiles, merge_tiles as merge_tiles
from .annex.training.checkpoint import load_model as load_model
from .annex.training.data import task_of as task_of
from .annex.training.detections import StoreDetections as StoreDetections, predict_store as predict_store
from .annex.training.history import EpochRecord as EpochRecord, Listeners as Listeners, TrainProgress as TrainProgress
from .annex.training.learner import Learner as Learner
from .annex.training.options import (
    DetectorOptions as DetectorOptions,
    TrainOptions as TrainOptions,
    ViTOptions as ViTOptions,
)
from .annex.training.prediction import Prediction as Prediction, predict as predict
from .annex.training.probabilities import (
    predict_probabilities as predict_probabilities,
    write_probabilities as write_probabilities,
)
from .annex.training.report import TrainReport as TrainReport
from .annex.training.row_predictions import (
    Evaluation as Evaluation,
    add_predictions as add_predictions,
    evaluate as evaluate,
)
from .annex.training.train import train as train
from .annex.training.vit import ViT as ViT
from .annex.viewing.show import show as show
from .annex.viewing.view import export_view as export_view, view as view
from .conversion.convert import convert as convert
from .conversion.estimate import Estimate as Estimate, estimate as estimate
from .conversion.options import ConvertOptions as ConvertOptions, RepackOptions as RepackOptions
from .conversion.result import Progress as Progress, Summary as Summary
from .conversion.writer import Writer as Writer
from .errors import (
    ConversionError as ConversionError,
    FormatError as FormatError,
    OptionError as OptionError,
    OutputError as OutputError,
    Problem as Problem,
    RemoteError as RemoteError,
    ResidencyError as ResidencyError,
    ResourceError as ResourceError,
    SourceError as SourceError,
    StoreExistsError as StoreExistsError,
    TrainingError as TrainingError,
    TrainingStopped as TrainingStopped,
    TsdsError as TsdsError,
    UnfinishedError as UnfinishedError,
    UnknownNameError as UnknownNameError,
)
from .format.schema import Keypoints as Keypoints
from .imaging.oriented import corners_to_oriented as corners_to_oriented, oriented_to_corners as oriented_to_corners
from .imaging.outlines import draw_masks as draw_masks
from .loading.augment.compose import Compose as Compose
from .loading.augment.fitting import (
    CenterCrop as CenterCrop,
    Letterbox as Letterbox,
    Pad as Pad,
    Resize as Resize,
)
from .loading.augment.geometry import (
    RandomCrop as RandomCrop,
    RandomHorizontalFlip as RandomHorizontalFlip,
    RandomResizedCrop as RandomResizedCrop,
)
from .loading.augment.normalize import Normalize as Normalize
from .loading.block_shuffle import BlockShuffleSampler as BlockShuffleSampler
from .loading.collate import PackedObjects as PackedObjects, collate_objects as collate_objects
from .loading.dataset import StoreDataset as StoreDataset
from .loading.device import DevicePrefetcher as DevicePrefetcher
from .loading.epoch import LoaderStats as LoaderStats
from .loading.loader import DataLoader as DataLoader
from .loading.mixed import MixedDataset as MixedDataset, MixedSampler as MixedSampler
from .loading.outlines import draw_class_masks as draw_class_masks, draw_instance_masks as draw_instance_masks
from .loading.padding import PaddedImages as PaddedImages, pad_images as pad_images
from .loading.samplers import ShuffleSampler as ShuffleSampler, SubsetSampler as SubsetSampler
from .loading.samples import Batch as Batch
from .loading.size_buckets import SizeBucketSampler as SizeBucketSampler
from .loading.weighted import (
    WeightedSampler as WeightedSampler,
    class_balanced_weights as class_balanced_weights,
    repeat_factors as repeat_factors,
    weights_from_column as weights_from_column,
)
from .machine import memory_limit as memory_limit, memory_limits as memory_limits
from .page_cache.residency import (
    Eviction as Eviction,
    Residency as Residency,
    evict as evict,
    fits as fits,
    residency as residency,
)
from .page_cache.warming import Warming as Warming, warm as warm, warm_in_background as warm_in_background
from .reading.columns import Column as Column, Ragged as Ragged, RaggedColumn as RaggedColumn
from .reading.mirror_cache import (
    CachedStore as CachedStore,
    cached_stores as cached_stores,
    clear_cache as clear_cache,
)
from .reading.store import Split as Split, Store as Store, open as open
from .reading.store_files import check_outside_stores as check_outside_stores
from .reading.verification import verify as verify
from .sharing.pack import pack as pack, unpack as unpack
from .sharing.pull import pull as pull
from .sharing.push import copy as copy, push as push
from .sharing.transfer import Transfer as Transfer
from .sources.joined import Sources as Sources
from .sources.names import (
    read_class_map as read_class_map,
    read_classes as read_classes,
    read_keypoints as read_keypoints,
)
from .version import (
    Installation as Installation,
    __version__ as __version__,
    installation as installation,
)
