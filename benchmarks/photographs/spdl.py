"""SPDL, as its documentation advises: its `DataLoader` with threads, in which FFmpeg decodes, crops and resizes files.

A filter of FFmpeg cuts a part of random area and shape out of the decoded image. Unlike `RandomResizedCrop`, it limits
a part that is too large, rather than to draw another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import spdl.io
import torch
from spdl.dataloader import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.photographs import RESIZED, SIDE

_PIXELS = "format=pix_fmts=rgb24"
_CENTER = f"scale={RESIZED}:{RESIZED}:force_original_aspect_ratio=increase:flags=bilinear,crop={SIDE}:{SIDE},{_PIXELS}"


@dataclass(frozen=True, slots=True)
class Files:
    """Path, label and filter of each image of an epoch; shuffled in training."""

    samples: list[tuple[str, int]]
    training: bool

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        rng = np.random.default_rng()
        places = rng.permutation(len(self.samples)) if self.training else range(len(self.samples))
        for place in places:
            yield *self.samples[place], random_part(rng) if self.training else _CENTER


def load(task: str, source: Path, target: Path, batch: int, mode: str, threads: int) -> DataLoader[Any, Any]:
    training = task == "train"
    return DataLoader(
        Files(ImageFolder(str(source)).samples, training),
        preprocessor=decode,
        aggregator=collate,
        batch_size=batch,
        num_threads=threads,
        output_order="completion" if training else "input",
    )


def decode(sample: tuple[str, int, str]) -> tuple[Any, int]:
    """The frame and the label."""
    path, label, crop = sample
    return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=crop), label


def random_part(rng: np.random.Generator) -> str:
    """A filter: `RandomResizedCrop(224)` with its usual ranges."""
    area, ratio = rng.uniform(0.08, 1), math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    width, height = (f"'min(i{side},sqrt(iw*ih*{area * factor}))'" for side, factor in (("w", ratio), ("h", 1 / ratio)))
    place = f"x='(iw-ow)*{rng.random()}':y='(ih-oh)*{rng.random()}'"
    return f"crop=w={width}:h={height}:{place},scale={SIDE}:{SIDE}:flags=bilinear,{_PIXELS}"


def collate(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, H, W, C)."""
    frames, labels = zip(*samples, strict=True)
    return spdl.io.to_torch(spdl.io.convert_frames(list(frames))), torch.tensor(labels)


def columns(batch: Any) -> dict[str, Any]:
    return {"image": batch[0].permute(0, 3, 1, 2), "label": batch[1]}
