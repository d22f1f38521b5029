from ..sources.names import (
    read_class_map as read_class_map,
    read_classes as read_classes,
    read_keypoints as read_keypoints,
)
from .estimate import Estimate as Estimate
from .options import RepackOptions as RepackOptions
from .result import Progress as Progress, Summary as Summary
