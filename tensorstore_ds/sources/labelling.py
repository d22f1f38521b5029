"""Folders that labelling tools made: what lies in them is more than images, and their lists are no labels."""

from __future__ import annotations

from pathlib import Path

from tensorstore_ds.sources.base import Source
from tensorstore_ds.sources.labelme import LabelmeSource
from tensorstore_ds.sources.labelstudio import LabelStudioSource
from tensorstore_ds.sources.pts import PtsSource
from tensorstore_ds.sources.yolo.source import YoloSource

_SOURCES: tuple[type[Source], ...] = (YoloSource, LabelmeSource, LabelStudioSource, PtsSource)


def is_labelled(path: Path) -> bool:
    """Whether a folder looks like one of these formats: then it is neither class folders nor a list."""
    return any(source.detect(path) for source in _SOURCES)
