"""What to say where a device's memory is full."""

from __future__ import annotations

import gc

import torch

from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.errors import TsdsError

#: What errors of torch on a CPU, of C++, of oneDNN and of CUDA's libraries say.
_FULL = (
    *("can't allocate memory", "std::bad_alloc", "out of memory"),
    *("could not create a primitive", "CUBLAS_STATUS_ALLOC_FAILED"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a device's memory is full; torch has a type for this on GPUs only."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):  # NumPy's, where a batch is gathered, is the latter
        return True
    foreign = isinstance(error, RuntimeError) and not isinstance(error, TsdsError)
    return foreign and any(text in str(error) for text in _FULL)


def memory_advice(device: torch.device, options: TrainOptions, *, resident: bool, is_detector: bool) -> str:
    """Options that reduce memory; `resident` tells whether the split was on the device as well."""
    size, ways = options.batch_size, ['`residency="page-cache"`'] if resident else []
    if size and size > 1:
        ways.append(f"`batch_size={size // 2}` with `accumulate={2 * options.accumulate}`")
    if not is_detector and not options.grad_checkpointing:
        ways.append("`grad_checkpointing=True`")
    if options.precision in ("fp32", "tf32"):
        ways.append('`precision="bf16"`')
    ways.append("a smaller `image_size` or `model`")
    batches = f"batches of {size:,}" if size else "the model"
    return f"{device}: expected memory for {batches}, found too little. Try, in this order: {', '.join(ways)}."


def let_go(device: torch.device) -> None:
    """Free unused memory: reference cycles, and torch's cache on a GPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
