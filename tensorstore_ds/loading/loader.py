"""torch's `DataLoader` for a store. Threads gather whole batches, which are then copied to a device."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import data
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, SequentialSampler, Subset

from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.augment.base import OfBatches
from tensorstore_ds.loading.augment.compose import Redrawn, Views
from tensorstore_ds.loading.batches import (
    Index,
    IndexBatch,
    PersistentBatches,
    StoreCollate,
    TransformsBatches,
    collate_samples,
    with_workers,
)
from tensorstore_ds.loading.buffers import PINNED_NBYTES, BufferPool, pinned
from tensorstore_ds.loading.collate import COLLATES, Collate, map_tensors
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Decode
from tensorstore_ds.loading.device import Copies, DevicePrefetcher, GpuTimer, IdleTime, checked_device, with_index
from tensorstore_ds.loading.epoch import Epoch, LoaderStats, Position
from tensorstore_ds.loading.feed import LEAST_AHEAD, Feed, Group, Run, grouped, maker, row_batches, sliced
from tensorstore_ds.loading.mixed import MixedDataset
from tensorstore_ds.loading.order import (
    deciding_sampler,
    describe,
    drawn,
    dump_generator,
    epoch_of,
    generator_of,
    has_epochs,
    is_known,
    load_generator,
)
from tensorstore_ds.loading.packing import Pinning
from tensorstore_ds.loading.padding import (
    COLLATES_IMAGES,
    CollateImages,
    PackedPatches,
    PaddedImages,
    pad_columns,
    patch_columns,
)
from tensorstore_ds.loading.read_ahead import ReadAhead
from tensorstore_ds.loading.resident import DeviceSplit, ResidencyChoice, choose
from tensorstore_ds.loading.samplers import Order, RowSampler, ShuffleSampler
from tensorstore_ds.loading.samples import Batch, Samples
from tensorstore_ds.loading.size_buckets import SizeBucketSampler
from tensorstore_ds.loading.static_batch import StaticBatch
from tensorstore_ds.loading.transformed import DECODERS, Decoder, Transformed
from tensorstore_ds.machine import threads_for_loading
from tensorstore_ds.options import check_choice, refusal
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.seeding import EachDraw

#: Number of prefetched tasks for each thread, unless `prefetch_factor` is set.
PREFETCH_FACTOR = 2
#: Members of a state that decide the order within an epoch, and may change between two.
_OF_ORDER = ("samples", "num_rows", "order")


#: Type of a batch, as torch declares it. Batches of a `StoreDataset` may be of any type.
Batches = TypeVar("Batches", covariant=True)


class DataLoader(data.DataLoader[Batches]):
    """torch's `DataLoader`, with threads that gather whole batches of a `StoreDataset`.

    Arguments have torch's names and meanings. With ``num_workers > 0``, ``batch_size=None``, or another data set,
    torch's own code loads the samples.

    A batch is a dict by field. Images of one size are one uint8 tensor (B, C, H, W), labels an int64 tensor (B,):

    >>> dataset = tsds.StoreDataset("photos.tsds", "train")
    >>> loader = tsds.DataLoader(dataset, batch_size=4, shuffle=True)
    >>> for epoch in range(2):
    ...     for batch in loader:  # the order of each epoch follows from the seed and the epoch
    ...         images, labels = batch["image"], batch["label"]
    >>> images.shape, images.dtype, labels.shape, labels.dtype
    (torch.Size([4, 3, 32, 32]), torch.uint8, torch.Size([4]), torch.int64)
    >>> len(loader)
    2

    If images differ in size, ``batch["image"]`` is a list of tensors (C, H, W). A decode plan gives them one size:

    >>> voc = tsds.StoreDataset("voc.tsds", "train")
    >>> batch = next(iter(tsds.DataLoader(voc, batch_size=4)))
    >>> [tuple(image.shape) for image in batch["image"]]
    [(3, 60, 80), (3, 80, 60), (3, 60, 80), (3, 80, 60)]
    >>> batch = next(iter(tsds.DataLoader(voc, batch_size=4, decode=tsds.transforms.Letterbox(64))))
    >>> batch["image"].shape
    torch.Size([4, 3, 64, 64])

    Objects are a list with a dict of tensors for each image, unless you choose another form with `collate`:

    >>> [tuple(objects["boxes"].shape) for objects in batch["objects"]]
    [(1, 4), (2, 4), (1, 4), (2, 4)]

    Args:
        dataset: a `StoreDataset`, or any other data set. A `Subset` of a `StoreDataset`, as torch's `random_split`
            returns it, is replaced by `StoreDataset.subset`.
        batch_size, sampler, batch_sampler: as in torch's `DataLoader`.
        drop_last, timeout, worker_init_fn, multiprocessing_context, generator: as in torch.
        persistent_workers, pin_memory_device, in_order: as in torch.
        shuffle: whether to shuffle all samples. The order of `ShuffleSampler`, or of `MixedSampler` for a
            `MixedDataset` with shares, depends only on (seed, epoch). With a `generator`, torch's `RandomSampler` is
            used. If False, samples keep their order. In both cases, the ranks of `torch.distributed` divide the samples
            among them.
        num_workers: number of torch's worker processes, for transforms that hold the GIL. 0 uses threads.
        collate_fn: function that is called with a list of samples. Without it and without a transform, whole columns
            become a batch.
        pin_memory: whether batches are in pinned memory. Data that needs no decoding is gathered there directly. None
            pins if `device` is a GPU.
        prefetch_factor: largest number of batches (or groups of small ones) that are prefetched for each thread. There
            are fewer if they would take more than 1 GiB of pinned memory. None takes 2, or fewer if that keeps all
            threads at work.
        num_threads: number of threads that gather and decode. None takes the cores that this process may use, divided
            by the ranks that torchrun starts on this machine. If there are more than 4, one is left to your script.
        device: device of the batches. They are copied on a separate stream while the model computes.
        seed: seed of the order and of the random numbers of `transform`. ``torch.manual_seed`` does not change it. None
            draws a seed from torch's global generator when the loader is created, so that ``torch.manual_seed`` decides
            the order, as with torch's loader. `load_state_dict` then takes the seed of the state.
        even_batches: whether every rank of `torch.distributed` has the same number of samples. Some samples are then
            repeated if the number of ranks does not divide the number of samples. If False, every sample is loaded
            exactly once, as exact metrics need it, and a rank may have one batch less than another. Operations in the
            loop must then not wait for all ranks.
        collate: form of the objects in a batch, ``list``, ``padded`` or ``packed``. `collate_objects` describes them.
        collate_images: form of the images in a batch. With ``list``, images of one size are a tensor (B, C, H, W), and
            images of differing sizes are a list of tensors (C, H, W). With ``padded``, images are always (B, C, H, W),
            in the largest height and width of the batch, with zeros on the right and below. The batch then also
            contains `image_mask` (B, H, W) bool, true inside the image, and `image_size` (B, 2) int64, height and width
            of every image. In tuples, the first member is the `PaddedImages` of these three. Each view is padded to its
            own size, with ``image_0_mask`` and ``image_0_size`` in addition to ``image_0``. Masks are padded with their
            ignored value. Boxes and keypoints keep their coordinates. With ``patches``, all images are cut into the
            patches (T, C, P, P) of `PackedPatches`, without padding, and `image_position` and `image_offsets` are
            added. Masks become patches (T, P, P). `ResizeToPatches` makes images that can be cut.
        size_divisor: padded heights and widths are multiples of this number, which is the height and width of patches.
        residency: source of the rows. ``page-cache`` reads the page cache, which all processes share. ``device`` makes
            a copy of the whole split on `device` and gathers there. ``auto`` is ``device`` if it takes at most half of
            a GPU's free memory, else ``page-cache``. The attribute `residency` contains the choice, and the log the
            reason.
        batch_transform: function that is called for every batch on its device, with the batch, the rows of its samples
            in the split, (B,) int64, and the epoch. This library's batch transforms and a `Compose` of them are such
            functions. Their random numbers depend on each sample's row and the epoch, and with a sampler that draws
            with replacement, on the batch. On a CPU, the loader's threads call them. Other functions are called by the
            thread that iterates. With several views, a transform of this library is applied to each view, with
            different random numbers. A list has a transform for each view.
        decode: plan that crops and resizes the images of a `StoreDataset` before they are decoded, like its own
            `decode`, or a list of plans for several views. With ``device``, JPEG files (of the encodings ``jpeg`` and
            ``source``) are copied to an NVIDIA GPU, where nvJPEG decodes them, with torchcodec 0.17 or later, or else
            torchvision.
        into: tensors for all batches, as CUDA graphs need them. ``first`` takes copies of the tensors of the first
            batch. You can also pass your own tensors in dicts, lists and tuples, with the names, shapes, types and
            device of a batch after `batch_transform`. Each batch overwrites the one before, in the order of the current
            stream. Run the step on the stream on which you ask for batches, and use one iterator at a time.

    Attributes:
        last_epoch: number of the last epoch that your script asks for, if you set it. Nothing is prepared after it.

    Raises:
        OptionError: arguments contradict each other, or this machine has no such device. It is a `ValueError`.
    """

    last_epoch: int | None = None

    def __init__(
        self,
        dataset: Dataset[Batches],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Sequence[int] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
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
        pin_memory_device: str = "",
        in_order: bool = True,
        # What torch's has not: the order, ...
        seed: int | None = 0,
        even_batches: bool = True,
        # ... how samples become a batch, ...
        collate: Collate = "list",
        collate_images: CollateImages = "list",
        size_divisor: int = 1,
        batch_transform: TransformsBatches | Sequence[nn.Module] | None = None,
        decode: Decode | Literal["device"] | None = None,
        # ... and from where to where it goes.
        num_threads: int | None = None,
        residency: ResidencyChoice = "page-cache",
        device: torch.device | str | None = None,
        into: Any = None,
    ) -> None:
        dataset = _without_subsets(dataset)
        if decode is not None and decode != "device":
            if not isinstance(dataset, Samples):
                raise refusal("decode", "a StoreDataset", _found(dataset))
            dataset = dataset.with_decode(decode)
        if not isinstance(dataset, StoreDataset):
            if residency not in ("page-cache", "auto"):
                raise refusal("dataset", f"a StoreDataset, for `residency={residency!r}`", _found(dataset))
            residency = "page-cache"
        if isinstance(batch_size, np.integer):  # torch takes no numbers of NumPy
            batch_size = int(batch_size)
        in_batches = batch_size is not None or batch_sampler is not None
        if isinstance(collate_fn, StoreCollate):  # of a loader that Lightning makes again
            collate_fn = collate_fn.collate_fn
        batch_transform = _of_views(batch_transform, dataset)
        numbers = {"num_workers": num_workers, "prefetch_factor": prefetch_factor, "seed": seed}
        _check(dataset, sampler, shuffle, in_batches, collate, batch_transform, batch_size, num_threads, **numbers)
        _check_buckets(dataset, sampler, batch_sampler)
        _check_padding(dataset, in_batches, collate_fn, collate_images, size_divisor)
        if isinstance(dataset, Subset) and _is_of_samples(dataset) and in_batches and collate_fn is None:
            collate_fn = functools.partial(collate_samples, how=collate)  # torch's own stacks no objects
        self.device = None if device is None else with_index(checked_device(device))
        workers = num_workers
        self._decoder: Decoder | None = None
        if decode == "device":
            of_loader: dict[str, object] = {"workers": workers, "collate_fn": collate_fn}
            of_loader |= {
                f"collate_images={collate_images}": collate_images != "list",
                "batch_size=None": not in_batches,
            }
            self._decoder = DECODERS[decode].load()(dataset, self.device, of_loader)
        on_gpu = self.device is not None and self.device.type == "cuda"
        pin_memory = on_gpu if pin_memory is None else pin_memory
        self._draws_seed = seed is None
        self.seed = seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.collate: Collate = collate
        self.collate_images: CollateImages = collate_images
        self.size_divisor = size_divisor
        self.batch_transform = batch_transform
        self.num_threads = num_threads
        self.residency = residency
        if isinstance(dataset, StoreDataset):
            self.residency = choose(residency, dataset, self.device, workers=workers, in_batches=in_batches)
        self._position = Position()  # of the iterator that began last, or where the next one will begin
        self._current_position: Position | None = None  # by persistent workers
        self._resident: DeviceSplit | None = None
        self._read_ahead: ReadAhead | None = None
        self._stats = LoaderStats()
        self._copies = GpuTimer()
        self._idle = IdleTime(self.device) if self.device is not None and on_gpu else None
        self._pool = BufferPool(pinned=pin_memory and torch.cuda.is_available())
        self._pinning = Pinning(self._pool, packs=on_gpu)
        self._feed: Feed | None = None
        self._ranked_sampler: RowSampler | None = None
        has_own_order = sampler is not None or batch_sampler is not None or generator is not None
        if not even_batches and has_own_order:
            given = "`sampler`" if sampler is not None else "`batch_sampler`" if batch_sampler else "`generator`"
            raise refusal("even_batches", "True with an order of your own: give it to the sampler", f"{given}")
        self._makes_order = not has_own_order
        if not has_own_order and isinstance(dataset, Sized) and not isinstance(dataset, IterableDataset):
            order: Order = {"seed": seed, "even_batches": even_batches}
            mixing = dataset.sampler(**order) if isinstance(dataset, MixedDataset) and shuffle else None
            if mixing is None:  # an empty sampler of this rank is still not None
                mixing = ShuffleSampler(dataset, shuffle=bool(shuffle), **order)
            sampler, shuffle = mixing, None
        if isinstance(sampler, RowSampler):
            # Only this loader's own iteration divides rows among ranks. Accelerate takes the sampler out of it and
            # divides the rows itself, so it gets the order of all ranks.
            self._ranked_sampler, sampler = sampler, sampler._undivided()
            if type(sampler) is ShuffleSampler and not sampler.shuffle:
                sampler = SequentialSampler(sampler)  # Lightning sees from it that the order is not shuffled
        self._repeats = bool(getattr(sampler, "replacement", False))
        if self._repeats and isinstance(batch_transform, OfBatches):
            batch_transform = Redrawn(batch_transform)
        self._transform: TransformsBatches | None = None  # of batches on their device, in the script's thread
        self._in_threads: OfBatches | None = None  # of batches in memory, in the threads that gather them
        self._collated: Callable[[Batch, list[int]], list[Any]] = Batch.parts  # how it divides and collates a batch
        if isinstance(dataset, Samples) and in_batches:
            pad = None
            if collate_images != "list":
                made = patch_columns if collate_images == "patches" else pad_columns
                pad = functools.partial(made, size_divisor=size_divisor, pool=BufferPool() if workers else self._pool)
            whole = StoreCollate(collate, dataset, collate_fn, pad=pad)
            on_cpu = self.device is None or self.device.type == "cpu"
            by_threads = not workers and self.residency != "device"
            if batch_transform is not None and on_cpu and by_threads and whole.commutes_with(batch_transform):
                self._in_threads = cast(OfBatches, batch_transform)
            else:
                self._transform = batch_transform
            collate_fn = replace(whole, keeps_rows=self._transform is not None)
            self._collated = replace(collate_fn, defers=by_threads and not on_cpu).for_loader
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor if workers else None,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._prefetch = prefetch_factor
        self.into = into
        self._static = None if into is None else StaticBatch(into)
        if into is not None and self.batch_size and not drop_last:
            _check_whole_batches(
                self.sampler if self._ranked_sampler is None else self._ranked_sampler, self.batch_size
            )
        if isinstance(self.collate_fn, StoreCollate) and batch_transform is not None:
            self.collate_fn = replace(self.collate_fn, batch_transform=batch_transform, sampler=self.sampler)
        self._sampler_epoch: int | None = epoch_of(self._ordering)  # when this loader last read it
        self._position.epoch = self._sampler_epoch or 0

    # --- position

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterator. Without it, epochs are counted from 0.

        The epoch of a state that was just loaded continues with the next batch, so a loop may call this at the
        beginning of every epoch, also of the resumed one. A different epoch drops the loaded position and begins with
        its first batch.

        >>> loader = tsds.DataLoader(tsds.StoreDataset("photos.tsds", "train"), batch_size=2, shuffle=True)
        >>> first = next(iter(loader))
        >>> again = tsds.DataLoader(tsds.StoreDataset("photos.tsds", "train"), batch_size=2, shuffle=True)
        >>> again.load_state_dict(loader.state_dict())
        >>> for epoch in range(loader.state_dict()["epoch"], 2):
        ...     again.set_epoch(epoch)
        ...     print(len(list(again)))
        3
        4
        """
        if self._position.begun or self._position.epoch != epoch:
            self._position = Position(epoch)
        if has_epochs(self._ordering):
            self._ordering.set_epoch(epoch)
        self._sampler_epoch = epoch_of(self._ordering)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader. You can call this after any batch.

        A loader that loads this state with `load_state_dict` continues with the next batch. The state contains numbers
        and names. If the sampler uses a `torch.Generator`, it also contains the generator's state, as text of about 7
        kB.

        If several iterators exist, the state is the position of the most recent one. To resume all of them, use one
        loader for each.

        >>> loader = tsds.DataLoader(tsds.StoreDataset("photos.tsds", "train"), batch_size=2, shuffle=True)
        >>> first = next(iter(loader))
        >>> again = tsds.DataLoader(tsds.StoreDataset("photos.tsds", "train"), batch_size=2, shuffle=True)
        >>> again.load_state_dict(loader.state_dict())
        >>> len(list(again))  # of 4 batches, the first one was seen
        3
        """
        position, setting = self._position, self._setting()
        batches = len(self._index_batches(position.start)) if position.start else setting["batches"]
        ended = position.ended or 0 < position.batch >= (batches or math.inf)
        state = {"epoch": position.epoch + ended, "batch": 0 if ended else position.batch, **setting}
        if self._ranked_sampler is not None:
            state["start"] = 0 if ended else position.start
        state["sampler_epoch"] = epoch_of(self._ordering)
        generator = generator_of(self._ordering)
        if generator is not None and position.drawn is not None and not ended:
            state["drawn_from"] = dump_generator(position.drawn)
        elif generator not in (None, torch.default_generator):
            state["generator"] = dump_generator(generator.get_state())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with any number of threads or workers.

        Batches that were already returned are skipped, and no data is read for them. The state of torch's global
        generator is not restored. If you need it, restore it in your script.

        The number of ranks may change, and with it the batch size, if a sampler of this library assigns rows to ranks
        in turn. All of its samplers do, except `BlockShuffleSampler` and `SizeBucketSampler`. The ranks then divide the
        rest of the epoch. Each remaining sample is used exactly once, except for a remainder, which `drop_last`
        controls. Load states of the same batch on all ranks.

        Raises:
            OptionError: the state is from a different loader (another seed, batch size, sampler, number of batches or
                of ranks), or from the middle of an epoch whose order cannot be computed again.
        """
        if not isinstance(state, Mapping):
            raise refusal("state", "the dict that state_dict() of a loader returned", f"a {type(state).__name__}")
        drawn = state["seed"] if self._draws_seed and type(state.get("seed")) is int else self.seed
        setting, start = self._setting(), state.get("start", 0)
        setting.update({name: drawn for name in ("seed", "sampler_seed") if setting.get(name) == self.seed})
        is_begun = state.get("batch") != 0 or start != 0
        is_free = self.is_elastic or state.get("batch") == 0  # any number of ranks begins an epoch
        is_divided_anew = is_free and state.get("num_replicas") != setting.get("num_replicas")
        if is_divided_anew:
            shared = ("seed", "sampler", "sampler_seed", *_OF_ORDER)
            setting = {name: setting[name] for name in shared if name in setting}
        elif not getattr(self._ranked_sampler, "even_batches", True):
            del setting["batches"]  # differs among ranks in this case
        if not is_begun:  # a store may grow between two epochs, and weights may change
            setting = {name: value for name, value in setting.items() if name not in _OF_ORDER}
        for name, value in setting.items():
            if name not in state or state[name] != value:
                found = repr(state[name]) if name in state else "none"
                raise OptionError(
                    f"state: expected the state of a loader with {name} {value!r}, found {found}. "
                    "Make the loader as it was when the state was saved."
                )
        epoch, batch, sampler_epoch, most = (state.get(n) for n in ("epoch", "batch", "sampler_epoch", "batches"))
        most = most if type(most) is int else math.inf
        if type(epoch) is not int or type(batch) is not int or epoch < 0 or not 0 <= batch <= most:
            raise OptionError(f"state: expected an epoch, and a batch of it, found {epoch!r} and {batch!r}.")
        if type(start) is not int or not 0 <= start <= getattr(self._ranked_sampler, "size", 0):
            raise OptionError(f"state: expected how many samples came before, found {start!r}.")
        if is_divided_anew:
            each, ranks = state.get("batch_size"), state.get("num_replicas")
            each = 1 if each is None else each
            if type(each) is not int or type(ranks) is not int or min(each, ranks) < 1:
                raise OptionError(f"state: expected a batch size, and a number of ranks, found {each!r} and {ranks!r}.")
            start, batch = min(start + batch * each * ranks, state.get("samples", 0)), 0
        if sampler_epoch is not None and type(sampler_epoch) is not int:
            raise OptionError(f"state: expected the epoch of the sampler, found {sampler_epoch!r}.")
        generator = generator_of(self._ordering)
        if batch and (not is_known(self._ordering) or (generator is not None and "drawn_from" not in state)):
            raise OptionError(
                f"state: expected the beginning of an epoch, found batch {batch}: the order of "
                f"{type(self._ordering).__name__} cannot be computed again. Give it a method set_epoch, by which alone "
                "its order changes, or save the state between epochs."
            )
        kept = next((each for each in ("drawn_from", "generator") if each in state), None)
        drawn_from = load_generator(state[kept]) if generator is not None and kept is not None else None
        # Nothing changes before this line: a rejected state leaves the loader where it was.
        if drawn != self.seed:
            self._reseed(drawn)
        self._position = Position(epoch, batch, start)
        self.set_epoch(epoch)  # sets the sampler's epoch
        if sampler_epoch is not None and has_epochs(self._ordering):
            self._ordering.set_epoch(sampler_epoch)
            self._sampler_epoch = sampler_epoch
        if kept == "drawn_from":
            self._position.drawn = drawn_from
        elif generator is not None and drawn_from is not None:
            generator.set_state(drawn_from)

    def _reseed(self, seed: int) -> None:
        self.seed = seed
        for sampler in (self._ranked_sampler, self.sampler):
            if self._makes_order and isinstance(sampler, RowSampler):
                sampler.seed = seed

    @property
    def is_elastic(self) -> bool:
        """Whether a different number of ranks can resume in the middle of an epoch (see `load_state_dict`)."""
        return self._ranked_sampler is not None and self._ranked_sampler.is_elastic

    def stats(self) -> LoaderStats:
        """Return a copy of the loader's time statistics since it was created. Call this in the thread that iterates.

        >>> loader = tsds.DataLoader(tsds.StoreDataset("photos.tsds", "train"), batch_size=4)
        >>> for batch in loader:
        ...     pass
        >>> loader.stats().batches
        2
        """
        replaced = len(self.dataset.replaced) if isinstance(self.dataset, Samples) else 0
        idle = 0.0 if self._idle is None else self._idle.seconds()
        is_by_torch = self._feed is None and self._resident is None  # whose iterator tells no more than that it waits
        late = self._stats.wait if is_by_torch else self._stats.late
        return replace(self._stats, copy=self._copies.seconds(), replaced=replaced, idle=idle, late=late)

    def starved(self, stats: LoaderStats) -> float:
        """Seconds in which training waited for a batch. With a GPU, its idle time counts, else the time of the host."""
        return stats.wait if self._idle is None else stats.idle

    def __repr__(self) -> str:
        """Batches, sampler, threads or workers, and the data set with its fields."""
        setting = self._setting()
        counted = "" if setting["batches"] is None else f"{setting['batches']:,} "
        batches = f"batches of {self.batch_size}" if self.batch_size else "batches" if self.batch_sampler else "samples"
        by = f"{self.num_workers} workers" if self.num_workers else f"{self._width} threads"
        device = "" if self.device is None else f" to {self.device}"
        return f"<DataLoader, {counted}{batches}{device}, {setting['sampler']}, {by}, of {self.dataset!r}>"

    def _setting(self) -> dict[str, Any]:
        """Settings that must be the same when a state is loaded."""
        iterable = isinstance(self.dataset, IterableDataset)  # torch wants to know who asks for its length
        batches = None if iterable or not isinstance(self._index_batches(), Sized) else len(self)
        setting = {"seed": self.seed, "batch_size": self.batch_size, "batches": batches, **describe(self._ordering)}
        rows = len(self.dataset) if isinstance(self.dataset, Sized) and not iterable else None
        return {**setting, "num_rows": rows}

    def _next_position(self) -> Position:
        """Return the next position. Epochs are counted here, unless DDP scripts or Lightning set one on the sampler."""
        last = self._position
        position = Position(last.epoch + 1) if last.begun else last
        epoch = epoch_of(self._ordering)
        if epoch is not None and epoch != self._sampler_epoch:
            position = Position(epoch)
        if self._ranked_sampler is not None or isinstance(self.batch_sampler, SizeBucketSampler):
            self._ordering.set_epoch(position.epoch)
        self._sampler_epoch = epoch_of(self._ordering)
        return position

    # --- iteration

    def __iter__(self) -> Epoch:  # type: ignore[override]
        """Return an iterator over one epoch.

        It starts when you request the first batch. Near its end, the threads begin with the next epoch if its order is
        known. They end with the loader. A second iterator of the same loader has the next epoch, even while the first
        one is in use. ``zip(loader, loader)`` iterates over two whole epochs, just as two of torch's iterators shuffle
        separately. Persistent workers serve one iterator at a time. After another iterator has begun, the earlier one
        raises RuntimeError. An iterator also raises RuntimeError in a different process than the one that created it.
        """
        if self._in_threads is not None and cast(Samples, self.dataset)._by_sample:  # their transform was set later
            self._transform, self._in_threads = self._in_threads, None
            self.collate_fn = replace(cast(StoreCollate, self.collate_fn), keeps_rows=True)
            self._collated = self.collate_fn.for_loader
        return Epoch(self._begin, self._stats, self._transform, self._count, self._idle, self._static)

    def _count(self) -> int:
        """Return the number of batches of the epoch that the last iterator began."""
        return len(self._index_batches(self._position.start))

    def _begin(self) -> tuple[Position, Iterator[Any]]:
        """Return an iterator's position and batches at its first batch: Lightning sets the epoch after `iter`."""
        if self._draws_seed and self._ranked_sampler is not None and self._ranked_sampler.num_replicas > 1:
            raise refusal("seed", "a number that all ranks share", "None")
        position = self._position = self._next_position()
        position.begun = True
        dataset = self.dataset
        if isinstance(dataset, Samples) and self.residency == "page-cache" and self._read_ahead is None:
            speaks = getattr(self._ordering, "rank", 0) == 0
            self._read_ahead = ReadAhead(dataset, self._ranked_sampler, speaks=speaks)
        if not isinstance(dataset, Samples) or self.num_workers or self.batch_sampler is None:
            batches = self._worker_batches(position)
            return position, batches if self.device is None else iter(
                DevicePrefetcher(batches, self.device, timer=self._copies)
            )
        if generator_of(self._ordering) is not None and position.drawn is None:
            # torch's iterators draw a seed for workers before the order: then both loaders have one order.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        if self.residency == "device":
            if self._resident is None:
                self._resident = DeviceSplit(cast(StoreDataset, dataset), self.device or torch.device("cpu"))
            return position, (
                self._collated(self._resident.gather(rows), [len(rows)])[0] for rows in self._batches(position)
            )
        feed = self._threads()
        key = self._key(dataset, position)
        group, first = self._grouping(dataset), position.batch * (self.batch_size or 1)
        run = feed.begin(key, lambda: self._run(dataset, position, key, lambda: group(self._batches(position), first)))
        return position, feed.batches(run, functools.partial(self._following, dataset, position))

    def _threads(self) -> Feed:
        """The threads of this process."""
        width, pinning = self._width, self._pinning
        most = width * (self._prefetch or PREFETCH_FACTOR)
        if self._feed is None or not self._feed.is_of_this_process or self._feed.width != width:
            has_budget = self._pool.pinned and self._decoder is None

            def most_ahead() -> int:
                budget = max(1, PINNED_NBYTES // pinning.nbytes) if pinning.nbytes else width
                return min(most, budget) if has_budget else most

            copies = None if self.device is None else Copies(self.device, timer=self._copies)
            decode = None if self._decoder is None else self._decoder.decode
            least = most if self._prefetch else LEAST_AHEAD
            self._feed = Feed(width, most_ahead, self._stats, least_ahead=least, copies=copies, decode=decode)
        self._feed.timeout = self.timeout
        return self._feed

    def _run(
        self, dataset: Samples, position: Position, key: Hashable | None, groups: Callable[[], Iterable[Group]]
    ) -> Run:
        """The batches of an epoch, which refer to the data set, and not to this loader."""
        # A user's function may wrap memory anew, as `torch.from_numpy` does. If it were pinned, torch's allocator would
        # not know that a copy still reads it, and would reuse it.
        by_user = dataset._by_sample or cast(StoreCollate, self.collate_fn).collate_fn is not None
        pool = BufferPool() if by_user and self._pool.pinned else self._pool
        source = self._decoder or dataset if self._in_threads is None else Transformed(dataset, self._in_threads)
        finish: Callable[[list[Any]], list[Any]] = list
        if self._pool.pinned:  # files are taken out of the batches before they are packed
            finish = self._pinning if self._decoder is None else functools.partial(map_tensors, change=pinned)
        return Run(key, maker(source, pool, self._draw(position), self._collated, finish), groups)

    def _draw(self, position: Position) -> tuple[int, int]:
        """The (seed, epoch) that the random numbers of a position follow from."""
        draw = self.seed, position.epoch
        return EachDraw(draw) if self._repeats else draw

    def _grouping(self, dataset: Samples) -> Callable[[Iterable[NDArray[np.int64]], int], Iterator[Group]]:
        """Return a function that groups batches from a row on. It does not refer to this loader."""
        mixed, read_ahead = self._in_threads is not None and self._in_threads._mixes_samples, self._read_ahead

        def group(batches: Iterable[NDArray[np.int64]], first: int) -> Iterator[Group]:
            groups = grouped(batches, dataset, mixed=mixed)
            return groups if read_ahead is None else read_ahead.before(groups, np.concatenate, first)

        return group

    def _key(self, dataset: Samples, position: Position) -> Hashable | None:
        """What the batches from a position on follow from, or None if this is not known."""
        sampler = self._ranked_sampler
        order, data = None if sampler is None else sampler.signature(), dataset._signature()
        by_user = cast(StoreCollate, self.collate_fn).collate_fn is not None
        if order is None or data is None or by_user or type(self.batch_sampler) is not BatchSampler:
            return None
        return position.epoch, position.batch, position.start, self.seed, order, data, repr(self._in_threads)

    def _following(self, dataset: Samples, position: Position) -> Run | None:
        """The next epoch's batches, or None if they are not known or are the same as this epoch's."""
        then = Position(position.epoch + 1)
        if self.last_epoch is not None and then.epoch > self.last_epoch:
            return None
        key, sampler = self._key(dataset, then), self._ranked_sampler
        if key is None or sampler is None or self._position is not position or not getattr(sampler, "shuffle", True):
            return None
        size, drop_last, group = self.batch_size or 1, self.drop_last, self._grouping(dataset)
        later = sampler._at(then.epoch)
        return self._run(dataset, then, key, lambda: group(row_batches(later, size, drop_last=drop_last), 0))

    @property
    def _width(self) -> int:
        """Number of threads that gather."""
        return self.num_threads or threads_for_loading()

    def _worker_batches(self, position: Position) -> Iterator[Any]:
        """Iterate with torch's own workers, which also return each batch's rows if a batch transform needs them."""
        if getattr(self._iterator, "_shutdown", False):  # workers of the parent process, or ended ones
            self._iterator = None
        batches = super().__iter__()
        if self.num_workers:
            with_workers.add(batches)
        if not self.persistent_workers:
            return batches
        self._current_position = position
        return PersistentBatches(batches, lambda: self._current_position is position)

    # --- order

    @property
    def _ordering(self) -> Any:
        """The sampler of this rank that determines the order."""
        return (
            deciding_sampler(self.sampler, self.batch_sampler) if self._ranked_sampler is None else self._ranked_sampler
        )

    def _index_batches(self, start: int = 0) -> Any:
        """The batch sampler, or the sampler without batching, after `start` samples of the epoch, of all ranks."""
        if self._ranked_sampler is None:
            return super()._index_sampler
        dealt = self._ranked_sampler.after(start)
        return BatchSampler(dealt, self.batch_size, self.drop_last) if self.batch_size else dealt

    @property
    def _index_sampler(self) -> Any:
        """The sampler that torch's own loader uses in this process."""
        return _IndexBatches(self)

    def _dealing(self, position: Position) -> Iterator[Any]:
        """Iterate over the indices of a position's epoch, from its batch on."""
        position.drawn, batches = drawn(self._index_batches(position.start), self._ordering, position.drawn)
        return itertools.islice(batches, position.batch, None)

    def _batches(self, position: Position) -> Iterator[NDArray[np.int64]]:
        """Iterate over the indices of every batch from a position on, as slices of larger pieces if possible."""
        if self.batch_size is not None and type(self.batch_sampler) is BatchSampler:
            first = position.batch * self.batch_size
            if self._ranked_sampler is not None:
                rest = self._ranked_sampler.after(position.start)
                return row_batches(rest, self.batch_size, first, drop_last=self.drop_last)
            if type(self.sampler) is SequentialSampler:
                rows = np.arange(first, len(self.sampler))
                return sliced([rows], self.batch_size, drop_last=self.drop_last)
        return (np.asarray(batch, np.int64) for batch in self._dealing(position))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_feed": None}  # a copy has threads of its own


class _IndexBatches:
    """Indices for torch's own loader, with the (seed, epoch) of the iteration."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        # torch's iterator and persistent workers keep this: a cycle would end workers only at the next garbage
        # collection, which is late.
        self._loader: DataLoader[Any] = weakref.proxy(loader)

    def __len__(self) -> int:
        return len(self._loader._index_batches())

    def __iter__(self) -> Iterator[Any]:
        loader, position = self._loader, self._loader._position
        draw, batches = loader._draw(position), loader._dealing(position)
        if loader._read_ahead is not None:
            first = position.batch * (loader.batch_size or 1)
            batches = loader._read_ahead.before(batches, lambda batch: np.atleast_1d(np.array(batch)), first)
        for batch in batches:
            if isinstance(batch, list):
                yield IndexBatch(batch, draw)
            elif isinstance(loader.dataset, Samples) and hasattr(batch, "__index__"):
                index = Index(batch)
                index.draw = draw
                yield index
            else:
                yield batch


def _of_views(
    transform: TransformsBatches | Sequence[nn.Module] | None, dataset: Dataset[Any]
) -> TransformsBatches | None:
    """Return the transforms of all views as one, also a single one for each view. Others do not change."""
    views = len(dataset.image_names) if isinstance(dataset, Samples) and isinstance(dataset.decode, tuple) else 0
    if views and isinstance(transform, OfBatches) and not isinstance(transform, Views):
        return Views([transform] * views)
    if not isinstance(transform, Sequence) or not views:
        return cast(TransformsBatches | None, transform)
    if len(transform) != views or not all(isinstance(each, nn.Module) for each in transform):
        raise refusal("batch_transform", f"one, or a list for {views} views of `decode`", f"a list of {len(transform)}")
    return Views(transform)


def _check(
    dataset: Dataset[Any],
    sampler: Any,
    shuffle: Any,
    in_batches: bool,
    collate: Collate,
    batch_transform: TransformsBatches | None,
    batch_size: Any,
    num_threads: int | None,
    **numbers: Any,
) -> None:
    """Raise an `OptionError` for arguments whose errors would appear late, elsewhere, or never."""
    if isinstance(dataset, str | os.PathLike | Store | Split):
        raise refusal("dataset", "a data set, such as StoreDataset(path, split)", f"a {type(dataset).__name__}")
    weights = getattr(sampler, "weights", None)
    if weights is not None and isinstance(dataset, Sized) and len(weights) != len(dataset):
        raise refusal("sampler", f"a weight for each of {len(dataset):,} samples", f"{len(weights):,}")
    check_choice("collate", collate, COLLATES)
    if not isinstance(batch_size, int | float | None):  # torch itself rejects other numbers
        raise refusal("batch_size", "a whole number, at least 1, or None", repr(batch_size))
    for name, value in {**numbers, "num_threads": num_threads}.items():  # torch and the sampler check their ranges
        if value is not None and not isinstance(value, Integral):
            raise refusal(name, "an integer", repr(value))
    if shuffle is not None and not isinstance(shuffle, bool | np.bool_):
        raise refusal("shuffle", "True or False", repr(shuffle))
    if sampler is not None and not hasattr(sampler, "__iter__") and not hasattr(sampler, "__getitem__"):
        raise refusal("sampler", "a sampler, or a list of rows", repr(sampler))
    if num_threads is not None and num_threads < 1:
        raise refusal("num_threads", "at least 1", f"{num_threads}")
    if batch_transform is None:
        return
    if isinstance(batch_transform, type) or not callable(batch_transform):
        is_class = isinstance(batch_transform, type)
        found = f"the class {batch_transform.__name__}" if is_class else f"a {type(batch_transform).__name__}"
        raise refusal("batch_transform", "a callable, such as Compose of several transforms", found)
    if type(batch_transform).__module__.startswith("torchvision."):
        found = f"torchvision's {type(batch_transform).__name__}, which takes one argument"
        expected = f"a function (batch, rows, epoch), or tsds.{type(batch_transform).__name__} if there is one"
        raise refusal("batch_transform", expected, f"{found}: give it to StoreDataset as `transform`")
    if arguments := _other_arguments(batch_transform):
        expected = "a function that is called as batch_transform(batch, rows, epoch)"
        raise refusal("batch_transform", expected, f"one with {arguments}: use `lambda batch, rows, epoch: ...`")
    if not in_batches:
        raise refusal("batch_transform", "batches", "`batch_size=None`")
    if not isinstance(dataset, Samples):
        raise refusal("batch_transform", "a StoreDataset, whose rows it draws by", _found(dataset))
    if isinstance(batch_transform, OfBatches):
        moves = (getattr(each, "_moves_objects", False) for each in batch_transform.modules())
        dataset._check_moved(by_name=any(moves))


def _without_subsets(dataset: Dataset[Any]) -> Dataset[Any]:
    """Replace torch's `Subset` of a `StoreDataset`, which `random_split` makes, by the data set's own subset."""
    if type(dataset) is not Subset:
        return dataset
    whole = _without_subsets(dataset.dataset)
    if not isinstance(whole, StoreDataset):
        return _SubsetOfSamples(whole, dataset.indices) if _is_of_samples(whole) else dataset
    indices = np.asarray(dataset.indices, np.int64)
    return whole.subset(np.where(indices < 0, indices + len(whole), indices))


class _SubsetOfSamples(Subset[Any]):
    """A subset of a mixture, which gets the (seed, epoch) of random transforms."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        draw = getattr(indices, "draw", None)
        chosen = [self.indices[i] for i in indices]
        return list(cast(Samples, self.dataset).__getitems__(chosen if draw is None else IndexBatch(chosen, draw)))


def _is_of_samples(dataset: Dataset[Any]) -> bool:
    return isinstance(dataset, Samples) or (isinstance(dataset, Subset) and _is_of_samples(dataset.dataset))


def _found(dataset: Dataset[Any]) -> str:
    """Describe what was passed instead of a `StoreDataset`, and what to pass for torch's `Subset`."""
    what = "a Subset" if isinstance(dataset, _SubsetOfSamples) else f"a {type(dataset).__name__}"
    mixed = isinstance(dataset, Subset) and _is_of_samples(dataset)
    return f"{what}: mix subsets, MixedDataset({{dataset.subset(rows): 0.7, ...}})" if mixed else what


def _other_arguments(transform: TransformsBatches) -> str:
    """Return the arguments of a function that cannot be called with a batch, rows and an epoch, or an empty string."""
    called: Callable[..., Any] = transform.forward if isinstance(transform, torch.nn.Module) else transform
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # a callable written in C has no signature
        return ""
    try:
        signature.bind(None, None, None)
    except TypeError:
        return f"({', '.join(map(str, signature.parameters.values()))})"
    return ""


def _check_buckets(dataset: Dataset[Any], sampler: Any, batch_sampler: Any) -> None:
    """Raise an `OptionError` for a batch sampler that is passed as a sampler, or belongs to other data."""
    if isinstance(sampler, SizeBucketSampler):
        raise refusal("sampler", "a sampler of rows", "a SizeBucketSampler: pass it as `batch_sampler`")
    if isinstance(batch_sampler, SizeBucketSampler):
        images = len(dataset) if isinstance(dataset, Sized) else 0
        if batch_sampler.num_images != images:
            raise refusal("batch_sampler", f"one of {images:,} images", f"{batch_sampler.num_images:,}")


def _check_whole_batches(sampler: Any, batch_size: int) -> None:
    """Raise an `OptionError` if the last batch of an epoch would be short."""
    samples = len(sampler) if isinstance(sampler, Sized) else 0
    if short := samples % batch_size:
        found = f"{short:,} in the last one of {samples:,} samples: use `drop_last=True`"
        raise refusal("into", f"{batch_size:,} samples in every batch", found)


def _check_padding(
    dataset: Dataset[Any],
    in_batches: bool,
    collate_fn: Callable[[Any], Any] | None,
    collate_images: CollateImages,
    size_divisor: int,
) -> None:
    """Raise an `OptionError` where images cannot be padded or cut into patches, or would not be."""
    check_choice("collate_images", collate_images, COLLATES_IMAGES)
    if type(size_divisor) is not int or size_divisor < 1:
        raise refusal("size_divisor", "an integer, at least 1", repr(size_divisor))
    how = f"collate_images={collate_images}"
    if collate_images == "list":
        if size_divisor != 1:
            raise refusal("size_divisor", '1 without `collate_images="padded"` or `"patches"`', size_divisor)
        return
    if not isinstance(dataset, Samples) or "image" not in dataset.fields:
        found = ", ".join(dataset.fields) if isinstance(dataset, Samples) else _found(dataset)
        raise refusal(how, "a StoreDataset with the field image", found)
    if not in_batches or collate_fn is not None:
        found = "a `collate_fn`, which gets samples" if in_batches else "`batch_size=None`"
        raise refusal(how, "batches that this loader makes", found)
    kind = PackedPatches if collate_images == "patches" else PaddedImages
    added = [each.replace("image", n, 1) for n in dataset.image_names for each in kind._fields[1:]]
    taken = [name for name in added if name in dataset.fields]
    if taken and dataset.return_as == "dict":
        raise refusal(how, f"no field {taken[0]}, which is added: choose other `fields`", taken[0])
