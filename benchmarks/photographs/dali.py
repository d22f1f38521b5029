"""NVIDIA DALI on the CPU, as its example for ImageNet: the files, `decoders.image_random_crop`, `resize`.

It decodes only the part that a crop needs. The batches of an epoch are scheduled by hand: DALI would begin with the
next epoch while other loaders are measured. The last batch is filled up with copies of its last sample, which DALI
decodes, too; they are cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def

from benchmarks.photographs import RESIZED, SIDE

_AHEAD = 2  # batches, DALI's default


class Epochs:
    """Each iteration is one epoch of a pipeline."""

    def __init__(self, pipeline: Any, batch: int) -> None:
        self._pipeline, self._batch = pipeline, batch
        self._samples: int = pipeline.reader_meta("files")["epoch_size"]
        self._first = True

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        batches = -(-self._samples // self._batch)
        scheduled = 0
        for place in range(batches):
            while scheduled < min(place + _AHEAD, batches):
                self._pipeline.schedule_run()
                scheduled += _AHEAD if self._first else 1  # the first call of all schedules as many as are ahead
                self._first = False
            size = min(self._batch, self._samples - place * self._batch)
            images, labels = (torch.from_dlpack(one.as_tensor())[:size] for one in self._pipeline.share_outputs())
            yield images.permute(0, 3, 1, 2), labels[:, 0]
            self._pipeline.release_outputs()


def load(task: str, source: Path, target: Path, batch: int, mode: str, threads: int) -> Epochs:
    pipeline = crops(
        *(str(source), task == "train"),
        batch_size=batch,
        num_threads=threads,
        device_id=None,
        prefetch_queue_depth=_AHEAD,
    )
    pipeline.build()
    return Epochs(pipeline, batch)


@pipeline_def  # type: ignore[untyped-decorator]
def crops(source: str, training: bool) -> Any:
    """Images (H, W, C) uint8, and labels."""
    files, labels = fn.readers.file(
        name="files", file_root=source, shuffle_after_epoch=training, pad_last_batch=True, initial_fill=1
    )
    if training:
        images = fn.decoders.image_random_crop(
            files, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        return fn.resize(images, size=(SIDE, SIDE)), labels
    images = fn.resize(fn.decoders.image(files, device="cpu"), resize_shorter=RESIZED)
    return fn.crop(images, crop=(SIDE, SIDE)), labels


def columns(batch: Any) -> dict[str, Any]:
    return {"image": batch[0], "label": batch[1]}
