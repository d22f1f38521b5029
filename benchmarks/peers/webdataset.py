"""WebDataset: tar files of ``npy`` and ``cls``, shards shuffled, a buffer of 1,000 samples, batches made in workers.

``WebLoader(dataset.batched(n), batch_size=None, num_workers=2)``, as its documentation advises. It also advises to take
these batches apart and to mix those of different workers, which would cost more and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import webdataset as wds

from benchmarks.peers import workers
from benchmarks.samples import Arrays

_SHARDS = 16
_BUFFER = 1000


def write(source: Path, target: Path, mode: str) -> None:
    """Sixteen tar files; images (C, H, W)."""
    arrays = Arrays(source)
    with wds.ShardWriter(str(target / "%06d.tar"), maxcount=-(-len(arrays) // _SHARDS), verbose=0) as writer:
        for i, (image, label) in enumerate(arrays):
            writer.write({"__key__": f"{i:08d}", "npy": image.transpose(2, 0, 1).copy(), "cls": label})


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    shards = sorted(map(str, target.glob("*.tar")))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(_BUFFER).decode().to_tuple("npy", "cls")
    count = workers(mode)
    return wds.WebLoader(  # type: ignore[no-any-return]
        dataset.batched(batch), batch_size=None, num_workers=count, persistent_workers=True
    )
