from ..imaging.oriented import corners_to_oriented as corners_to_oriented, oriented_to_corners as oriented_to_corners
from ..imaging.outlines import draw_masks as draw_masks
from .collate import PackedObjects as PackedObjects, collate_objects as collate_objects
from .device import DevicePrefetcher as DevicePrefetcher
from .epoch import LoaderStats as LoaderStats
from .mixed import MixedSampler as MixedSampler
from .outlines import draw_class_masks as draw_class_masks, draw_instance_masks as draw_instance_masks
from .padding import (
    PackedPatches as PackedPatches,
    PaddedImages as PaddedImages,
    pack_patches as pack_patches,
    pad_images as pad_images,
)
from .samplers import SubsetSampler as SubsetSampler
from .samples import Batch as Batch
from .weighted import repeat_factors as repeat_factors, weights_from_column as weights_from_column
