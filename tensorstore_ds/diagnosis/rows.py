"""The rows to measure with: how many of them are in memory, what can be brought there, how large a batch may be."""

from __future__ import annotations

import time

import numpy as np

from tensorstore_ds.diagnosis.findings import Memory
from tensorstore_ds.diagnosis.subject import Subject
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.page_cache.residency import requirement, residency_of, total_residency
from tensorstore_ds.page_cache.warming import warm_in_background

#: Bytes that are brought into memory to measure with, at most.
WARM_NBYTES = 4 * 1024**3
#: Samples by which the time of a batch is estimated.
PILOT = 4
#: Samples are taken to be there up to this part of what was read: two threads read at once, and not at the same pace.
SURELY = 0.9


def memory_of(subject: Subject, given: int | None) -> tuple[Memory, str]:
    """What the samples take and may take, and why it is not known how much is in memory; empty if it is.

    Args:
        subject: whose bytes count.
        given: a limit that stands for the system's.
    """
    nbytes, limits = requirement(subject.store, subject.columns)
    total = total_residency(residency_of(subject.store, subject.columns))
    if given is not None:
        limits = {"the option memory": given}
    limited_by = min(limits, key=lambda who: limits[who])
    return Memory(nbytes, limits[limited_by], limited_by, total.share), total.reason


def warmed(subject: Subject, memory: Memory, *, seconds: float) -> StoreDataset:
    """The samples that are in memory: all of them, or the first ones, as many as can be brought there in that time.

    What is there of others' files may be dropped by the system in turn, so that it is not more than half of the memory
    that this process may use, and not more than is needed to measure.
    """
    dataset = subject.dataset
    if memory.resident == 1:
        return dataset
    budget = min(WARM_NBYTES, memory.limit // 2, memory.nbytes)
    fields = dataset.fields
    with warm_in_background(subject.store, splits=dataset.split_name, fields=fields, budget=budget) as warming:
        warming.wait(seconds)
        done = warming.nbytes_done
    if done >= memory.nbytes:
        return dataset
    rows = dataset.store_rows(np.arange(len(dataset)))
    there = np.flatnonzero(rows < SURELY * len(dataset.split) * done / memory.nbytes)
    return dataset.subset(there if len(there) else [0])


def loadable_batch(dataset: StoreDataset, wanted: int, *, seconds: float) -> int:
    """The batch that can be loaded in some seconds: less than wanted where a transform or an image takes very long."""
    pilot = np.arange(min(PILOT, wanted))
    for _ in range(2):  # the first one may come from storage
        began = time.perf_counter()
        for _ in dataset.__getitems__(pilot):
            pass
        spent = time.perf_counter() - began
    return max(1, min(wanted, int(seconds * len(pilot) / spent)))
