"""The public names, each with the module that it is imported from when it is first used."""

from . import (
    conversion as conversion,
    errors as errors,
    loading as loading,
    page_cache as page_cache,
    reading as reading,
    sharing as sharing,
    transforms as transforms,
)
from .annex import (
    checking as checking,
    clusters as clusters,
    editing as editing,
    exporting as exporting,
    measuring as measuring,
    publishing as publishing,
    training as training,
    viewing as viewing,
)
from .annex.checking.check import check_store as check_store
from .annex.editing.append import append as append, update as update
from .annex.editing.erase import erase as erase
from .annex.editing.folds import folds as folds
from .annex.editing.repack import repack as repack
from .annex.exporting.export import export as export
from .annex.measuring.bench import bench as bench
from .annex.measuring.diagnosis import diagnose as diagnose
from .annex.measuring.forecast import forecast as forecast
from .annex.pictures.contact_sheet import preview as preview
from .annex.publishing.annotate import annotate as annotate
from .annex.publishing.card import card as card
from .annex.serving.serve import serve as serve
from .annex.tiles import Tiles as Tiles, merge_tiles as merge_tiles
from .annex.training.prediction import predict as predict
from .annex.training.train import train as train
from .annex.viewing.show import show as show
from .annex.viewing.view import view as view
from .conversion.convert import convert as convert
from .conversion.encodings import Jpeg as Jpeg
from .conversion.estimate import estimate as estimate
from .conversion.options import ConvertOptions as ConvertOptions
from .conversion.values import Fit as Fit
from .conversion.writer import Writer as Writer
from .errors import (
    FormatError as FormatError,
    OptionError as OptionError,
    RemoteError as RemoteError,
    SourceError as SourceError,
    TsdsError as TsdsError,
)
from .format.schema import Keypoints as Keypoints
from .loading.augment.compose import Compose as Compose
from .loading.augment.fitting import CenterCrop as CenterCrop, Resize as Resize
from .loading.augment.geometry import (
    RandomCrop as RandomCrop,
    RandomHorizontalFlip as RandomHorizontalFlip,
    RandomResizedCrop as RandomResizedCrop,
)
from .loading.augment.normalize import Normalize as Normalize
from .loading.block_shuffle import BlockShuffleSampler as BlockShuffleSampler
from .loading.dataset import StoreDataset as StoreDataset
from .loading.loader import DataLoader as DataLoader
from .loading.mixed import MixedDataset as MixedDataset
from .loading.samplers import ShuffleSampler as ShuffleSampler
from .loading.size_buckets import SizeBucketSampler as SizeBucketSampler
from .loading.weighted import WeightedSampler as WeightedSampler, class_balanced_weights as class_balanced_weights
from .page_cache.residency import evict as evict, residency as residency
from .page_cache.warming import warm as warm
from .reading.columns import Column as Column, RaggedColumn as RaggedColumn
from .reading.store import Split as Split, Store as Store, open as open
from .reading.verification import verify as verify
from .sharing.pack import pack as pack, unpack as unpack
from .sharing.pull import pull as pull
from .sharing.push import copy as copy, push as push
from .sources.joined import Sources as Sources
from .version import Installation as Installation, __version__ as __version__, installation as installation
