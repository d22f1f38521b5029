"""Batches of a store, gathered ahead by threads, in order, and copied to a device.

Threads, not processes: NumPy's take and Pillow's decoders release the GIL, and processes would add a second copy
through shared memory and a pipe.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data
from torch.utils.data import BatchSampler, Dataset, Sampler, SequentialSampler

from tensorstore_ds.format.schema import TableField
from tensorstore_ds.loading.batches import ColumnCollate, IndexBatches, SampleCollate, Transformed, WithRows
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import COLLATES, Collate
from tensorstore_ds.loading.dataset import Batch, StoreDataset
from tensorstore_ds.loading.device import CopyTimer, DevicePrefetcher
from tensorstore_ds.loading.epoch import Epoch, Place
from tensorstore_ds.loading.loader_stats import LoaderStats
from tensorstore_ds.loading.read_ahead import advise
from tensorstore_ds.loading.resident import DeviceSplit, ResidencyChoice, choose
from tensorstore_ds.loading.samplers import RowSampler, ShuffleSampler
from tensorstore_ds.machine import usable_cores
from tensorstore_ds.page_cache.locking import Lock, lock
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import open as open_store

#: Batches smaller than this are gathered several at a time and cut apart: a gather has a cost of its own.
GROUP_NBYTES = 1024**2
#: Tasks that wait ready for each thread, where nothing else is said.
PREFETCH_FACTOR = 2
#: What the names of threads begin with.
THREADS = "tsds-loader"

#: torch's iterators with worker processes. A forked child has copies of them, whose end, or whose next epoch, would end
#: or confuse the workers of the parent.
_with_workers: weakref.WeakSet[Any] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for iterator in list(_with_workers):
        iterator._shutdown = True  # torch's own mark of one whose workers have been seen off


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


class DataLoader(data.DataLoader[Any]):
    """torch's `DataLoader`, which gathers whole batches of a `StoreDataset` in threads.

    Arguments have torch's names and meanings. With ``num_workers > 0``, ``batch_size=None``, or another data set,
    torch's own machinery does the work.

    Args:
        dataset: a `StoreDataset`, or any other.
        batch_size, sampler, batch_sampler, collate_fn, drop_last: as torch's. A `collate_fn` gets a list of samples;
            without one, and without a transform, columns are taken as they are.
        shuffle: a full shuffle by `ShuffleSampler`, which follows from (seed, epoch) and knows the ranks of
            `torch.distributed`; with a `generator`, torch's `RandomSampler`.
        num_workers: torch's worker processes, for transforms that hold the GIL; 0 for threads.
        prefetch_factor: batches (or groups of small ones) that wait ready for each thread.
        pin_memory: page-locked batches, gathered into them directly; None: where `device` is a GPU.
        num_threads: None for the cores that this process may use, at most 8.
        device: where batches shall arrive: copied on a stream of their own while the model works.
        seed: of the order and of transforms.
        collate: objects as ``list``, ``padded``, ``packed`` or ``nested``: see `collate_objects`.
        residency: where rows are read from. ``page-cache``: the files' pages, shared by all processes; ``locked``: the
            same, locked in memory while this loader lives; ``device``: a copy of the whole split on `device`, gathered
            there; ``auto``: ``device`` where it takes at most half of a GPU's free memory, else ``page-cache``. The
            attribute `residency` says what was chosen, and the log why.
        batch_transform: called as ``batch_transform(batch, rows, epoch)`` with every batch on its device, such as a
            `Compose` of this library's batch transforms; what it draws follows from each sample's row and the epoch.

    Raises:
        ValueError: arguments contradict each other.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Sequence[int] | None = None,
        batch_sampler: Sampler[list[Any]] | Any | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        num_threads: int | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        collate: Collate = "list",
        residency: ResidencyChoice = "page-cache",
        batch_transform: Callable[..., Any] | None = None,
    ) -> None:
        if collate not in COLLATES:
            raise ValueError(f"collate: expected one of {', '.join(COLLATES)}, found {collate!r}.")
        if num_threads is not None and num_threads < 1:
            raise ValueError(f"num_threads: expected at least 1, found {num_threads}.")
        self.device = None if device is None else torch.device(device)
        on_gpu = self.device is not None and self.device.type == "cuda"
        pinned = bool(pin_memory) if pin_memory is not None else on_gpu
        self.seed = seed
        self.collate: Collate = collate
        self.batch_transform = batch_transform
        self.num_threads = num_threads
        self.residency = choose(residency, dataset, self.device) if isinstance(dataset, StoreDataset) else residency
        self._resident: DeviceSplit | Lock | None = None
        self._place = Place()  # of the iterator that began last, or where the next one will begin
        self._told = 0
        self._turn = 0
        self._stats = LoaderStats()
        self._copies = CopyTimer()
        self._dealt: RowSampler | None = None
        if shuffle and sampler is None and batch_sampler is None and generator is None:
            sampler, shuffle = ShuffleSampler(dataset, seed=seed), None  # type: ignore[arg-type]
        if isinstance(sampler, RowSampler):
            # Ranks are dealt their rows by this loader's own iteration alone. Who takes the sampler out of it
            # (Accelerate) divides it among the ranks himself: what he finds is the order of all ranks.
            self._dealt, sampler = sampler, sampler.undivided()
            self._place.epoch = self._told = self._dealt.epoch
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            self._collate_for(dataset, collate_fn, pinned and not num_workers),
            pinned,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers,
        )
        self._prefetch = prefetch_factor or PREFETCH_FACTOR
        self._gathered = self.collate_fn
        if batch_transform is not None and isinstance(dataset, StoreDataset):
            self.collate_fn = Transformed(self.collate_fn, batch_transform, self.sampler)
        self._pool = BufferPool(pinned=pinned and torch.cuda.is_available())

    def _collate_for(self, dataset: Dataset[Any], collate_fn: Callable[[Any], Any] | None, pinned: bool) -> Any:
        if not isinstance(dataset, StoreDataset):
            return collate_fn
        if isinstance(collate_fn, Transformed):  # of a loader that Lightning makes again
            collate_fn = collate_fn.collate
        if isinstance(collate_fn, ColumnCollate | SampleCollate):
            return collate_fn
        if collate_fn is not None:
            return SampleCollate(collate_fn)
        return ColumnCollate(self.collate, dataset, pinned and torch.cuda.is_available())

    # --- iteration

    def __iter__(self) -> Epoch:  # type: ignore[override]
        """One epoch. It begins with the first batch that is asked for; leaving the loop early ends the threads.

        Another iterator of the same loader is of the next epoch, also while this one lives: ``zip(loader, loader)``
        goes through two whole epochs side by side, as two of torch's iterators shuffle twice. Persistent workers serve
        one iterator at a time: when another begins, the one before raises RuntimeError. So does an iterator that is
        asked for a batch in another process than it was made in.
        """
        return Epoch(self)

    def _begin(self) -> tuple[Place, Iterator[Any]]:
        """The epoch whose turn it is, and its batches: Lightning sets it after it has made the iterator."""
        place = self._place = self._next_place()
        place.begun = True
        batches: Iterator[Any]
        if self._uses_threads:
            batches = self._on_device(place) if self.residency == "device" else self._threaded(place)
        else:
            batches = self._torchs()
        if self.device is not None and self.residency != "device":
            batches = iter(DevicePrefetcher(batches, self.device, timer=self._copies))
        return place, batches

    @property
    def _uses_threads(self) -> bool:
        return isinstance(self.dataset, StoreDataset) and self.num_workers == 0 and self.batch_sampler is not None

    def _next_place(self) -> Place:
        """Epochs are counted here, unless somebody has set one on the sampler: DDP scripts and Lightning do."""
        place = Place(self._place.epoch + 1) if self._place.begun else self._place
        if self._dealt is None or not isinstance(self.sampler, RowSampler):
            return place
        for sampler in (self.sampler, self._dealt):
            if sampler.epoch != self._told:
                place = Place(sampler.epoch)  # another epoch has a beginning of its own
        self._told = place.epoch
        for sampler in (self.sampler, self._dealt):
            sampler.set_epoch(place.epoch)
        return place

    def _torchs(self) -> Iterator[Any]:
        """torch's own iteration. Its workers bring each batch's rows along, where a batch transform wants them."""
        if getattr(self._iterator, "_shutdown", False):  # its workers are the parent's
            self._iterator = None
        found = self.collate_fn
        if isinstance(found, Transformed):
            self.collate_fn = WithRows(found.collate)
        try:
            batches = super().__iter__()
        finally:
            self.collate_fn = found
        if self.num_workers:
            _with_workers.add(batches)
        return self._in_turn(batches) if self.persistent_workers else batches

    def _in_turn(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches of persistent workers, which torch hands from one iterator to the next."""
        self._turn += 1
        turn = self._turn
        for batch in batches:
            yield batch
            if turn != self._turn:
                raise RuntimeError(
                    "loader: expected one iterator at a time, which is all that persistent workers serve, found "
                    "another that began meanwhile. Use persistent_workers=False, or a loader for each."
                )

    @property
    def _index_sampler(self) -> Any:
        """What torch's own machinery asks for indices, in this process."""
        batches = super()._index_sampler
        if self._dealt is not None:
            batches = BatchSampler(self._dealt, self.batch_size, self.drop_last) if self.batch_size else self._dealt
        # torch's iterator keeps this, and persistent workers keep it: a cycle would end them only with the next garbage
        # collection, and then late.
        me = weakref.proxy(self)
        return IndexBatches(batches, lambda: (me.seed, me._place.epoch), lambda: me._place.batch)

    def _on_device(self, place: Place) -> Iterator[Any]:
        if not isinstance(self._resident, DeviceSplit):
            self._resident = DeviceSplit(self._store, self.device or torch.device("cpu"))
        return (self._collated(self._resident.gather(batch)) for batch in self._batches(place.batch))

    def _collated(self, batch: Batch) -> Any:
        collate: Callable[[Any], Any] = self._gathered
        return collate(batch) if self.batch_transform is None else (collate(batch), batch.rows)

    def _threaded(self, place: Place) -> Iterator[Any]:
        process, epoch, start = os.getpid(), place.epoch, place.batch
        if self.residency == "locked" and self._resident is None:
            store = open_store(self._store.path)
            self._resident = lock(store, splits=self._store.split_name, fields=self._store.fields)
        groups = advise(self._groups(start), self._store, self._dealt, start * (self.batch_size or 1))
        width = self.num_threads or min(8, usable_cores())
        depth = width * self._prefetch
        waiting: deque[Future[tuple[list[Any], float]]] = deque()
        threads = ThreadPoolExecutor(width, thread_name_prefix=THREADS)
        try:
            for group in groups:
                waiting.append(threads.submit(self._make, group, epoch))
                if len(waiting) > depth:
                    yield from self._take(waiting)
            while waiting:
                yield from self._take(waiting)
        finally:
            if os.getpid() == process:  # a forked child has none of them
                # A garbage collection, and with it this, may run in one of them, which cannot wait for itself.
                inside = threading.current_thread().name.startswith(THREADS)
                threads.shutdown(wait=not inside, cancel_futures=True)

    def _take(self, waiting: deque[Future[tuple[list[Any], float]]]) -> list[Any]:
        self._stats.requests += 1
        self._stats.ready += sum(future.done() for future in waiting)
        batches, seconds = waiting.popleft().result()
        self._stats.gather += seconds  # here, not in the threads, which would lose some of each other's
        return batches

    def _groups(self, start: int) -> Iterator[list[NDArray[np.int64]]]:
        """Batches of indices, small ones several at a time."""
        group: list[NDArray[np.int64]] = []
        size = 0.0
        row_nbytes = self._row_nbytes()
        # What takes long waits for no other batch, however few bytes it has.
        one_by_one = self._store.transform is not None or self._decodes
        for batch in self._batches(start):
            group.append(batch)
            size += len(batch) * row_nbytes
            if size >= GROUP_NBYTES or one_by_one:
                yield group
                group, size = [], 0.0
        if group:
            yield group

    def _batches(self, start: int) -> Iterator[NDArray[np.int64]]:
        """Indices of every batch from `start` on: slices of a whole order, where the sampler has one."""
        order = self._order()
        if order is None:
            for number, listed in enumerate(self.batch_sampler or ()):
                if number >= start:
                    yield np.asarray(listed, np.int64)
            return
        size = self.batch_size or 1
        for first in range(start * size, len(order), size):
            batch = order[first : first + size]
            if len(batch) == size or not self.drop_last:
                yield batch

    def _order(self) -> NDArray[np.int64] | None:
        """All indices of the epoch, where they can be had at once."""
        if self.batch_size is None or type(self.batch_sampler) is not BatchSampler:
            return None
        if self._dealt is not None:
            return self._dealt.rows()
        if type(self.sampler) is SequentialSampler:
            return np.arange(len(self.dataset))  # type: ignore[arg-type]
        rows = getattr(self.sampler, "rows", None)
        return rows() if callable(rows) else None

    def _row_nbytes(self) -> float:
        """What a sample's fields take in the store, on average."""
        columns = [self._store.split[name] for name in self._store.fields]
        tables = [column for column in columns if isinstance(column, RaggedColumn)]
        arrays = [column for column in columns if not isinstance(column, RaggedColumn)]
        for table in tables:
            arrays += [table.offset_column, *table.values.values()]
        nbytes: int = sum(array.nbytes for array in arrays)
        return nbytes / max(1, len(self._store.split))

    @property
    def _decodes(self) -> bool:
        """Whether there are encoded images."""
        fields = (self._store.split.fields[name] for name in self._store.fields)
        return any(field.kind == "image" and isinstance(field, TableField) for field in fields)

    @property
    def _store(self) -> StoreDataset:
        if not isinstance(self.dataset, StoreDataset):
            raise TypeError(f"expected a StoreDataset, found {type(self.dataset).__name__}")
        return self.dataset

    # --- a group, in a thread

    def _make(self, group: list[NDArray[np.int64]], epoch: int) -> tuple[list[Any], float]:
        began = time.perf_counter()
        whole = self._store.gather(np.concatenate(group) if len(group) > 1 else group[0], self._pool)
        whole.draw = (self.seed, epoch)
        ends = np.cumsum([len(batch) for batch in group]).tolist()
        batches = [whole] if len(group) == 1 else [whole.part(e - len(b), e) for b, e in zip(group, ends, strict=True)]
        made = [self._collated(batch) for batch in batches]
        return made, time.perf_counter() - began

    # --- state

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration is of; without it they are counted from 0."""
        self._place = Place(epoch)
        for sampler in (self.sampler, self._dealt):
            setter = getattr(sampler, "set_epoch", None)
            if callable(setter):
                setter(epoch)
        self._told = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after any batch: a later `load_state_dict` goes on with the very next one.

        Of several iterators at once it is where the one is that began last; who wants to resume them all makes a
        loader for each.
        """
        place = self._place
        ended = place.ended or 0 < place.batch >= len(self)
        epoch, batch = (place.epoch + 1, 0) if ended else (place.epoch, place.batch)
        return {"epoch": epoch, "batch": batch, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called, with any number of threads; the order is computed, not replayed.

        Raises:
            ValueError: the state is of another seed, and so of another order.
        """
        if state["seed"] != self.seed:
            raise ValueError(
                f"state: expected that of seed {self.seed}, found seed {state['seed']}. Pass the same seed."
            )
        self.set_epoch(int(state["epoch"]))
        self._place.batch = int(state["batch"])

    def stats(self) -> LoaderStats:
        """Where the time went since the loader was made: a copy, to be asked for by the thread that iterates."""
        return replace(self._stats, copy=self._copies.seconds())
