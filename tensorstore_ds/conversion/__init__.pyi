from ..sources.names import (
    read_class_map as read_class_map,
    read_classes as read_classes,
    read_keypoints as read_keypoints,
)
from ..sources.samples import RaggedRows as RaggedRows
from .encodings import Auto as Auto, Raw as Raw, SourceFiles as SourceFiles
from .estimate import Estimate as Estimate
from .options import RepackOptions as RepackOptions
from .result import Progress as Progress, Summary as Summary
from .values import ImageTiles as ImageTiles, ObjectCrops as ObjectCrops, Shrink as Shrink
