"""Behaviors that torch's tests ask of torch's `DataLoader` and that our code takes part in: values, types, errors and
warnings must be equal.
"""

from __future__ import annotations

import collections
import itertools
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_convert,
    get_worker_info,
    random_split,
)

import tensorstore_ds as tsds

pytestmark = pytest.mark.usefixtures("one_thread")

Loader = Callable[..., Any]
BEHAVIORS: dict[str, Callable[[Loader], Any]] = {}


def behavior(function: Callable[[Loader], Any]) -> Callable[[Loader], Any]:
    BEHAVIORS[function.__name__] = function
    return function


def seeded(value: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def plain(value: Any) -> Any:
    """Tensors with their dtype as lists, and the names of types, so that results can be compared and printed."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict | collections.OrderedDict):
        return (type(value).__name__, {name: plain(each) for name, each in value.items()})
    if isinstance(value, list | tuple):
        return (type(value).__name__, [plain(each) for each in value])
    return value


def outcome(function: Callable[[Loader], Any], loader: Loader) -> Any:
    torch.manual_seed(11)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = plain(function(loader))
        except Exception as error:  # it is what is compared
            first = str(error).partition("\n")[0]  # a worker's traceback follows, with the lines of a file
            result = (type(error).__name__, first)
            # Else the garbage collector ends an iterator at some time, and its queues before: then torch waits five
            # seconds for each worker.
            traceback.clear_frames(error.__traceback__)
    said = [
        (w.category.__name__, re.sub("0x[0-9a-f]+", "", str(w.message)))
        for w in caught
        if issubclass(w.category, UserWarning)
    ]
    return result, said


# --- data sets ----------------------------------------------------------------------------------------------------


class Rows(Dataset[Any]):
    """Of a length, a function of the index."""

    def __init__(self, length: int = 10, make: Callable[[int], Any] = float) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(f"no row {index}")
        return self.make(index)


class Count(IterableDataset[int]):
    """Counts, and leaves to each worker its share."""

    def __init__(self, length: int = 10, *, shared: bool = False) -> None:
        self.length, self.shared = length, shared

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        step, first = (info.num_workers, info.id) if info is not None and self.shared else (1, 0)
        return iter(range(first, self.length, step))


class SizedCount(Count):
    def __len__(self) -> int:
        return self.length


class Fetches(Rows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [("together", i) for i in indices]


class Pair(NamedTuple):
    x: Any
    y: Any


def sum_of(samples: Any) -> Any:
    return sum(samples)


def fail_at_3(index: int) -> int:
    if index == 3:
        raise ValueError("row 3 is broken")
    return index


def process(index: int) -> int:
    return os.getpid()


# --- order and batches --------------------------------------------------------------------------------------------

for size, last in itertools.product([1, 3, 10, 11], [False, True]):
    BEHAVIORS[f"batches of {size}, drop_last={last}"] = lambda loader, size=size, last=last: (
        list(made := loader(Rows(), batch_size=size, drop_last=last)),
        len(made),
    )
for workers in (0, 2):
    for name, make in {
        "tensors": lambda i: torch.full((2,), i),
        "named tuples": lambda i: Pair(str(i), {"a": [np.full(2, i, np.int16)]}),
        "ragged": lambda i: torch.zeros(i),
    }.items():
        BEHAVIORS[f"{name}, {workers} workers"] = lambda loader, make=make, workers=workers: list(
            loader(
                Rows(4, make), batch_size=2, num_workers=workers, multiprocessing_context="fork" if workers else None
            )
        )
for name, sampler in {
    "sequential": SequentialSampler,
    "random": lambda rows: RandomSampler(rows, generator=seeded()),
    "weighted": lambda rows: WeightedRandomSampler([1.0] * 10, 8, generator=seeded()),
    "list": lambda rows: [5, 1, 1],
    "generator of indices": lambda rows: (i for i in (3, 2)),
}.items():
    BEHAVIORS[f"sampler {name}, two epochs"] = lambda loader, sampler=sampler: [
        list(made) for made in [loader(Rows(), 4, sampler=sampler(Rows()))] * 2
    ]
    BEHAVIORS[f"sampler {name}, no batches"] = lambda loader, sampler=sampler: list(
        loader(Rows(), batch_size=None, sampler=sampler(Rows()))
    )


@behavior
def shuffled_by_a_generator(loader: Loader) -> Any:
    made = loader(Rows(), 3, shuffle=True, generator=seeded())
    return list(made), list(made)


@behavior
def batch_samplers(loader: Loader) -> Any:
    of_lists = loader(Rows(), batch_sampler=[[0, 3], [9]])
    dropping = BatchSampler(SequentialSampler(Rows()), 4, True)
    return list(of_lists), len(of_lists), of_lists.batch_size, list(loader(Rows(), batch_sampler=dropping))


@behavior
def without_batches(loader: Loader) -> Any:
    made = loader(Rows(4, lambda i: np.arange(i)), batch_size=None)
    return [each.tolist() for each in made], len(made), made.batch_sampler, made.collate_fn is default_convert


@behavior
def a_collate_function(loader: Loader) -> Any:
    return list(loader(Rows(), 4, collate_fn=sum_of)), list(loader(Rows(), batch_size=None, collate_fn=float))


@behavior
def rows_fetched_together(loader: Loader) -> Any:
    return [list(loader(Fetches(5), 2, num_workers=workers)) for workers in (0, 1)]


@behavior
def a_data_set_that_grows(loader: Loader) -> Any:
    rows = Rows(4)
    made = loader(rows, 2)
    before = len(made), list(made)
    rows.length = 7
    return before, len(made), list(made)


@behavior
def data_sets_of_torch(loader: Loader) -> Any:
    tensors = TensorDataset(torch.arange(6), torch.arange(6) * 2)
    parts = random_split(Rows(6), [4, 2], generator=seeded())
    joined = [Subset(tensors, [5, 0]), ConcatDataset([Rows(2), Rows(1)]), *parts, StackDataset(Rows(2), Rows(2))]
    return list(loader(tensors, 4)), [list(loader(each, 2)) for each in joined]


@behavior
def empty(loader: Loader) -> Any:
    return list(loader(Rows(0))), len(loader(Rows(0))), list(loader(Rows(0), sampler=[]))


@behavior
def attributes(loader: Loader) -> Any:
    made = loader(Rows(), 4, drop_last=True, num_workers=1, prefetch_factor=3, timeout=5, persistent_workers=True)
    names = ("batch_size", "drop_last", "num_workers", "prefetch_factor", "timeout", "persistent_workers", "pin_memory")
    return [getattr(made, name) for name in names], type(made.sampler).__name__, type(made.batch_sampler).__name__


@behavior
def attributes_that_are_set_late(loader: Loader) -> Any:
    found = []
    for name, value in {
        "batch_size": 3,
        "sampler": [1],
        "batch_sampler": [[1]],
        "drop_last": True,
        "dataset": 1,
    }.items():
        try:
            setattr(loader(Rows()), name, value)
        except ValueError as error:
            found.append(str(error).replace("tensorstore_ds.loading.loader.", ""))
    return found


# --- iterable data sets -------------------------------------------------------------------------------------------

for workers in (0, 2):
    for size in (None, 1, 4):
        BEHAVIORS[f"iterable, {workers} workers, batch {size}"] = lambda loader, workers=workers, size=size: sorted(
            map(str, map(plain, loader(Count(shared=True), batch_size=size, num_workers=workers)))
        )


@behavior
def an_iterable_of_a_length(loader: Loader) -> Any:
    made = loader(SizedCount(10), 3)
    return len(made), list(made), len(loader(SizedCount(10), 3, drop_last=True))


@behavior
def an_iterable_longer_than_it_says(loader: Loader) -> Any:
    rows = SizedCount(10)
    made = loader(rows, 2, num_workers=1)
    first = list(made), len(made)
    rows.length = 4
    again = loader(SizedCount(3), 1, num_workers=2)
    return first, len(again), list(again)


for name, options in {
    "shuffle": {"shuffle": True},
    "no shuffle": {"shuffle": False},
    "sampler": {"sampler": [1]},
    "batch_sampler": {"batch_sampler": [[1]]},
}.items():
    BEHAVIORS[f"iterable with {name}"] = lambda loader, options=options: list(loader(Count(3), **options))

# --- wrong arguments ----------------------------------------------------------------------------------------------

for options in (
    {"num_workers": -1},
    {"timeout": -1},
    {"timeout": -1, "num_workers": 1},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"shuffle": True, "sampler": [0]},
    {"batch_sampler": [[0]], "batch_size": 2},
    {"batch_sampler": [[0]], "shuffle": True},
    {"batch_sampler": [[0]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": None, "shuffle": True, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -1},
    {"batch_size": 1.5},
    {"batch_size": True},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "bad", "num_workers": 1},
    {"multiprocessing_context": 3, "num_workers": 1},
    {"drop_last": 1},
):
    BEHAVIORS[f"refused: {options}"] = lambda loader, options=options: len(loader(Rows(), **options))

# --- worker processes ---------------------------------------------------------------------------------------------


@behavior
def errors_of_a_data_set(loader: Loader) -> Any:
    return list(loader(Rows(make=fail_at_3), 2))


@behavior
def errors_of_a_worker(loader: Loader) -> Any:
    return list(loader(Rows(make=fail_at_3), 2, num_workers=2))


@behavior
def an_iterator_goes_on_after_an_error(loader: Loader) -> Any:
    iterator = iter(loader(Rows(5, make=fail_at_3), 1, num_workers=1))
    return [next(iterator) for _ in range(3)]


@behavior
def persistent_workers_stay(loader: Loader) -> Any:
    def processes(persistent: bool) -> int:
        made = loader(Rows(4, process), 1, num_workers=2, persistent_workers=persistent)
        return len({int(pid) for _ in range(2) for pid in made})

    return processes(True), processes(False)


@behavior
def orders_of_workers(loader: Loader) -> Any:
    found = loader(Rows(), 2, num_workers=2, in_order=False)
    return sorted(int(v) for batch in found for v in batch), list(loader(Rows(), 2, num_workers=2, in_order=True))


@behavior
def seeds_of_workers_follow_the_generator(loader: Loader) -> Any:
    made = loader(Rows(4, lambda i: int(torch.randint(0, 2**20, ()))), 1, num_workers=2, generator=seeded())
    return list(made), list(made)


@behavior
def pinning_without_a_gpu(loader: Loader) -> Any:
    if torch.cuda.is_available():
        return None
    return [each.is_pinned() for each in loader(Rows(make=torch.tensor), 4, pin_memory=True)]


@pytest.mark.drawn(18)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", BEHAVIORS)
def test_our_loader_does_as_torchs(name: str) -> None:
    expected = outcome(BEHAVIORS[name], data.DataLoader)
    assert outcome(BEHAVIORS[name], tsds.DataLoader) == expected
