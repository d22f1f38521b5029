"""What decides the order of an epoch, and what of it a loader's state keeps, so that it goes on exactly there.

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
from tensorstore_ds.loading.size_buckets import SizeBucketSampler

#: Each draws all that it needs from its generator, or else from torch's global one, when it is first asked.
_DRAWING = {sampler.__iter__ for sampler in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)}
_FIXED = (SequentialSampler, Sequence, np.ndarray, Tensor)


def deciding_sampler(sampler: Any, batch_sampler: Any) -> Any:
    """Of a loader's two samplers, the one that decides the order: torch's `BatchSampler` only cuts it."""
    if batch_sampler is None:
        return sampler
    return batch_sampler.sampler if type(batch_sampler).__iter__ is BatchSampler.__iter__ else batch_sampler


def generator_of(sampler: Any) -> torch.Generator | None:
    """The generator that the order is drawn from; None if it is not drawn, or not by a sampler of torch."""
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
    """The epoch that the sampler is at; None if its order does not follow from one, or it does not say."""
    epoch = getattr(sampler, "epoch", None)
    return epoch if has_epochs(sampler) and isinstance(epoch, int) else None


def describe(sampler: Any) -> dict[str, Any]:
    """What must be the same for the same order: the sampler's class, its seed, and how many ranks share an epoch."""
    algorithm = getattr(sampler, "algorithm", "fisher-yates")
    how = "" if algorithm == "fisher-yates" else f", {algorithm}"
    if getattr(sampler, "shuffle", None) is False:
        how = ", in order"
    description: dict[str, Any] = {"sampler": type(sampler).__name__ + how}
    if isinstance(sampler, DistributedSampler):
        description |= {"sampler_seed": sampler.seed, "num_replicas": sampler.num_replicas}
    elif isinstance(sampler, SizeBucketSampler):
        description |= sampler._setting()
    return description


def drawn(batches: Iterable[Any], sampler: Any, state: Tensor | None) -> tuple[Tensor | None, Iterator[Any]]:
    """Iterate over a sampler's batches, in the order that its generator draws from `state`, or from where it is.

    torch's global generator goes on as if nothing had been drawn a second time.

    Returns:
        The generator's state before it drew the order, None if there is no generator; and the batches.
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
        first = list(itertools.islice(iterator, 1))  # all is drawn with the first
    return state, itertools.chain(first, iterator)


def dump_generator(state: Tensor) -> str:
    """The state of a generator as text, for JSON."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def load_generator(text: str) -> Tensor:
    """The inverse of `dump_generator`; `OptionError` if the text is no such state."""
    try:
        state = torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
        torch.Generator().set_state(state)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError("state: expected the state of a torch.Generator, found other bytes. Save again.") from error
    return state
