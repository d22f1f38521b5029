"""torchvision's `ImageFolder` over the PNG files themselves, with torch's `DataLoader` and two workers that stay.

`PILToTensor` is the least that makes a batch of the images. `ImageFolder` decodes to RGB, grey images too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import PILToTensor

from benchmarks.checksums import Columns
from benchmarks.peers import workers
from benchmarks.samples import FILES


def write(source: Path, target: Path, mode: str) -> None:
    """Nothing: it reads the files."""


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    """The class folders of the split."""
    dataset = ImageFolder(source / FILES, PILToTensor())
    return DataLoader(dataset, batch, shuffle=True, num_workers=workers(mode), persistent_workers=True)


def columns(batch: Any) -> Columns:
    """As they are; three equal channels count as one."""
    return Columns(*batch)
