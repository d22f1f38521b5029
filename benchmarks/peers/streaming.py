"""MosaicML Streaming: local MDS shards, `StreamingDataset(shuffle=True)` with `StreamingDataLoader`, two workers.

Images are ``ndarray`` of fixed type and shape, its most compact encoding without loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from benchmarks.peers import workers
from benchmarks.samples import Arrays


def write(source: Path, target: Path, mode: str) -> None:
    """Shards of the default size, not compressed; images (C, H, W)."""
    arrays = Arrays(source)
    h, w, c = arrays[0][0].shape
    with MDSWriter(out=str(target), columns={"image": f"ndarray:uint8:{c},{h},{w}", "label": "int"}) as writer:
        for image, label in arrays:
            writer.write({"image": image.transpose(2, 0, 1).copy(), "label": label})


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    dataset = StreamingDataset(local=str(target), shuffle=True, batch_size=batch)
    return StreamingDataLoader(dataset, batch_size=batch, num_workers=workers(mode), persistent_workers=True)  # type: ignore[no-any-return]
