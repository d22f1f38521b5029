"""How much memory a training step takes, reckoned before any is taken: a step on tensors that have no content."""

from __future__ import annotations

import contextlib
import copy
import weakref
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # no public name in torch leads there
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tensorstore_ds.annex.training.models import build, dense_outputs
from tensorstore_ds.annex.training.options import ModelOptions, Precision, TrainOptions
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.batches import StoreCollate
from tensorstore_ds.loading.dataset import StoreDataset

#: What torch computes in where a precision has 16 bits.
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class AllocatedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no type for its base
    """Adds up the bytes of tensors that are made while it lasts, without those that are gone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no type for it
        self.peak: int = 0  #: The most.
        self._now: int = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage not in self._seen:  # views have that of another tensor
                self._seen.add(storage)
                weakref.finalize(storage, self._free, storage.nbytes())
                self._now += storage.nbytes()
        self.peak = max(self.peak, self._now)
        return made

    def _free(self, nbytes: int) -> None:
        self._now -= nbytes


class Footprint:
    """The memory that a run on the CPU takes at most, beside what this process has already, by the size of its batches.

    What counts: weights, the optimizer's moments, a moving average; activations, gradients and what is made in between;
    batches that wait ready, and a batch while it is transformed. An evaluation takes less than a step.

    Args:
        vit: the model's shape.
        outputs: numbers that it computes for an image.
        options: of the run.
        precision: it computes in.
        waiting: batches that the loader holds ready.
        dataset: the samples, of which one is transformed.
        transform: what a batch goes through.
    """

    def __init__(
        self,
        vit: ModelOptions,
        outputs: int,
        options: TrainOptions,
        precision: Precision,
        *,
        waiting: int,
        dataset: StoreDataset,
        transform: Compose,
    ) -> None:
        self.vit, self.outputs, self.options, self.precision = vit, outputs, options, precision
        with torch.device("meta"):
            self._model = build(vit, outputs, grad_checkpointing=options.grad_checkpointing)
        weights = sum(w.numel() * w.element_size() for w in self._model.parameters())
        self._fixed = weights * (3 + bool(options.ema))  # gradients are made in a step
        stored = StoreCollate("packed", dataset)(dataset.gather(np.zeros(1, np.int64)))
        with AllocatedBytes() as transforming:
            image = transform(stored, np.zeros(1, np.int64), 0)["image"]
        self._waiting: int = waiting * stored["image"].nbytes
        self._transforming: int = transforming.peak + image.nbytes  # while the batch before is still there

    def nbytes(self, batch_size: int) -> int:
        """Bytes at most, with batches of that many samples; takes about a second, and no memory to speak of."""
        most = max(self._step(batch_size), batch_size * self._transforming)
        return int(self._fixed + batch_size * self._waiting + most)

    def _step(self, batch_size: int) -> int:
        model = copy.deepcopy(self._model)
        half = HALF.get(self.precision)
        # Tensors say that they are on the CPU, and so choose the operators that a real step there goes through.
        with FakeTensorMode(allow_non_fake_inputs=True), contextlib.ExitStack() as step:
            model.to_empty(device="cpu").train()
            allocated = step.enter_context(AllocatedBytes())
            images = torch.empty(batch_size, self.vit.channels, *self.vit.image_size, device="cpu")
            with torch.autocast("cpu", half, enabled=half is not None):
                outputs = dense_outputs(model, self.vit, images)
            torch.autograd.backward(outputs)
        return int(allocated.peak)
