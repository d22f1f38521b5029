"""The order of an epoch, and the part of it that a loader's state contains, so that it resumes exactly there.

There are four kinds of order:

- a function of the epoch: this library's samplers, torch's `DistributedSampler`, and any other with a `set_epoch`;
- fixed: `SequentialSampler`, or a list;
- drawn from a `torch.Generator`: torch's random samplers. Kept is the generator's state from before the epoch;
- unknown: any other sampler. It can be resumed only where an epoch begins.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.samplers import RowSampler
from tensorstore_ds.loading.size_buckets import SizeBucketSampler

#: These samplers draw everything from their generator, or torch's global one, at the first request.
_DRAWING = {sampler.__iter__ for sampler in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)}
_FIXED = (SequentialSampler, Sequence, np.ndarray, Tensor)


def deciding_sampler(sampler: Any, batch_sampler: Any) -> Any:
    """Return the sampler that determines the order. torch's `BatchSampler` only divides it into batches."""
    if batch_sampler is None:
        return sampler
    return batch_sampler.sampler if type(batch_sampler).__iter__ is BatchSampler.__iter__ else batch_sampler


def generator_of(sampler: Any) -> torch.Generator | None:
    """Return the generator of the order, or None if torch's samplers do not shuffle it."""
    if type(sampler).__iter__ not in _DRAWING:
        return None
    return sampler.generator or torch.default_generator


def is_known(sampler: Any) -> bool:
    """Whether the order of an epoch can be computed again."""
    return isinstance(sampler, _FIXED) or has_epochs(sampler) or generator_of(sampler) is not None


def has_epochs(sampler: Any) -> bool:
    """Whether the order is a function of the epoch."""
    return callable(getattr(sampler, "set_epoch", None))


def epoch_of(sampler: Any) -> int | None:
    """Return the sampler's epoch, or None if its order does not depend on one, or it is unknown."""
    epoch = getattr(sampler, "epoch", None)
    return epoch if has_epochs(sampler) and isinstance(epoch, int) else None


def describe(sampler: Any) -> dict[str, Any]:
    """Return the settings that determine the order: the sampler's class, its seed, and the number of ranks."""
    algorithm = getattr(sampler, "algorithm", "fisher-yates")
    how = "" if algorithm == "fisher-yates" else f", {algorithm}"
    if getattr(sampler, "shuffle", None) is False:
        how = ", in order"
    description: dict[str, Any] = {"sampler": type(sampler).__name__ + how}
    if isinstance(sampler, DistributedSampler):
        description |= {"sampler_seed": sampler.seed, "num_replicas": sampler.num_replicas}
    elif isinstance(sampler, SizeBucketSampler):
        description |= sampler._setting()
    if isinstance(sampler, RowSampler):
        description |= {"samples": sampler.size, "order": sampler._own()}
    return description


def drawn(batches: Iterable[Any], sampler: Any, state: Tensor | None) -> tuple[Tensor | None, Iterator[Any]]:
    """Iterate over a sampler's batches, in the order that its generator draws from `state`, or from where it is.

    Returns the generator's state before the order, or None without a generator, and the batches. torch's global
    generator continues as if the order had been computed once.
    """
    generator = generator_of(sampler)
    if generator is None:
        return None, iter(batches)
    if state is None:
        return generator.get_state(), iter(batches)
    if generator is not torch.default_generator:
        generator.set_state(state)
        return state, iter(batches)
    with torch.random.fork_rng(devices=()):
        generator.set_state(state)
        iterator = iter(batches)
        first = list(itertools.islice(iterator, 1))  # the whole order is computed with the first batch
    return state, itertools.chain(first, iterator)


def dump_generator(state: Tensor) -> str:
    """Return the state of a generator as text, for JSON."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def load_generator(text: str) -> Tensor:
    """Load the text of `dump_generator`. Raises `OptionError` for other texts."""
    try:
        state = torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
        torch.Generator().set_state(state)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError("state: expected the state of a torch.Generator, found other bytes. Save again.") from error
    return state
