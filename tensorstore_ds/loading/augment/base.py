"""What batch transforms have in common: random numbers that are a function of the sample, and batches in and out."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tensorstore_ds.loading.collate import PackedObjects

Keys = NDArray[np.uint64]
Params = dict[str, Tensor]
Rows = Tensor | NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW64 = (1 << 64) - 1


class BatchTransform(nn.Module):
    """A random transform of a whole batch, with parameters of its own for every sample.

    They are a function of (seed, kind of transform, epoch, row): not of the batch that a sample is in, its place there,
    the device, or what was drawn before. Whoever resumes a run sees the same augmentation. They are drawn on the CPU,
    since no two devices round alike, and follow the batch to its device without waiting for it.

    Args:
        seed: two transforms of one kind with the same seed draw the same numbers, unless `Compose` holds them.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, batch: Mapping[str, Any], rows: Rows | None = None, epoch: int | None = None) -> dict[str, Any]:
        """Transform a batch; what is not named here passes through as it is.

        Args:
            batch: ``image``: (B, C, H, W) uint8, or floating-point in [0, 1], in any memory format, which is kept;
                ``objects``, if there: `PackedObjects`, or the dict that ``collate="packed"`` makes of them. Its tensors
                are not changed.
            rows: (B,) integers, a tensor or an array, that name the samples, such as their rows in the split. On
                the CPU, or this waits for the device. If None, parameters come from torch's
                global generator, as torchvision's do.
            epoch: goes with `rows`.

        Raises:
            ValueError: the batch is not as above, or only one of `rows` and `epoch` is given.
        """
        images = check_images(batch)
        objects = batch.get("objects")
        packed = _unpacked(objects, len(images))
        params = self.make_params(self.keys(check_rows(rows, epoch, len(images)), epoch or 0), images.shape[-2:])
        image, moved = self.transform(images, packed, params)
        result = {**batch, "image": image}
        if moved is not None:
            result["objects"] = (
                moved if isinstance(objects, PackedObjects) else {"offsets": moved.offsets, **moved.values}
            )
        return result

    def keys(self, rows: Rows, epoch: int) -> Keys:
        """(B,) 64 random bits for each of `rows`, from which its parameters are drawn."""
        kind = zlib.crc32(type(self).__name__.encode())
        return fold(self.seed, kind, epoch, check_rows(rows, epoch, len(rows)).view(np.uint64))

    @abstractmethod
    def make_params(self, keys: Keys, size: tuple[int, int] | torch.Size) -> Params:
        """Parameters by name, each (B, ...) on the CPU, for samples with `keys` and images of (height, width)."""

    @abstractmethod
    def transform(
        self, images: Tensor, objects: PackedObjects | None, params: Params
    ) -> tuple[Tensor, PackedObjects | None]:
        """Images and objects after the transform with these parameters."""

    def extra_repr(self) -> str:
        """What it was made with."""
        shown = {k: v for k, v in self.__dict__.items() if not k.startswith("_") and k != "training"}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def check_images(batch: Mapping[str, Any]) -> Tensor:
    """The batch's images, if they are what batch transforms work on."""
    images = batch.get("image")
    if not isinstance(images, Tensor) or images.ndim != 4:
        found = f"{tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(
            f"batch['image']: expected a tensor (B, C, H, W), found {found}. Images of one size can be stacked."
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"batch['image']: expected uint8 or floating-point, found {images.dtype}. Convert it first.")
    return images


def check_rows(rows: Rows | None, epoch: int | None, samples: int) -> NDArray[np.int64]:
    """`rows` as an array, or random ones where there are neither rows nor an epoch."""
    if (rows is None) != (epoch is None):
        raise ValueError(
            "rows and epoch: expected both, or neither, found one. Rows alone would get the same augmentation in every "
            "epoch; pass epoch= too."
        )
    if rows is None:
        return torch.randint(-(2**63), 2**63 - 1, (samples,)).numpy()
    found = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    if found.shape != (samples,) or found.dtype.kind not in "iu":
        raise ValueError(f"rows: expected ({samples},) integers, found {found.shape} {found.dtype}. Pass one a sample.")
    return found.astype(np.int64, copy=False)


def _unpacked(objects: Any, samples: int) -> PackedObjects | None:
    if objects is None:
        return None
    if isinstance(objects, Mapping) and "offsets" in objects:
        objects = PackedObjects(objects["offsets"], {name: v for name, v in objects.items() if name != "offsets"})
    if not isinstance(objects, PackedObjects):
        raise ValueError(
            f"batch['objects']: expected PackedObjects, found {type(objects).__name__}. Load with collate='packed', "
            "and use collate_objects after the batch transforms."
        )
    if len(objects) != samples:
        raise ValueError(
            f"batch['objects']: expected objects of {samples} samples, as of images, found {len(objects)}."
        )
    return objects


# --- random numbers ---------------------------------------------------------------------------------------------


def splitmix64(state: Keys) -> Keys:
    """The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014; constants: Stafford's variant 13).

    A one-to-one map of 64 bits, of which every bit depends on every bit. The generator's n-th output from a seed is
    that of ``seed + n * 0x9E3779B97F4A7C15``.
    """
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def fold(*words: int | Keys) -> Keys:
    """64 random bits for each tuple of words: integers, modulo 2^64, or arrays of them that broadcast."""
    state = np.zeros(1, np.uint64)
    for word in words:
        state = splitmix64(state + _GOLDEN + (np.uint64(word & _LOW64) if isinstance(word, int) else word))
    return state


def uniforms(keys: Keys, count: int) -> NDArray[np.float64]:
    """(B, count) numbers in [0, 1), 53 bits each, from keys (B,)."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    bits: Keys = splitmix64(keys[:, None] + steps) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def on_device(params: Tensor, device: torch.device) -> Tensor:
    """Parameters moved to the batch's device, without a wait: CUDA copies pageable memory before the call returns."""
    return params.to(device, non_blocking=device.type == "cuda")
