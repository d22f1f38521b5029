"""Base class of data sets from which the loader gathers whole batches."""

from __future__ import annotations

import functools
import inspect
import itertools
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from tensorstore_ds.format.kinds import MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, image_of, of_kind
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.crew import Loop, share
from tensorstore_ds.loading.decoding import Decode, plans_of
from tensorstore_ds.loading.fields import ReturnAs, Value, as_sample, classes_of, images_in, visible_keypoints
from tensorstore_ds.loading.image_transforms import image_transform
from tensorstore_ds.options import refusal
from tensorstore_ds.page_cache.shortage import Loaded, Shortage, large_arrays, shortage
from tensorstore_ds.reading.store import Asked
from tensorstore_ds.seeding import EachDraw, draws_of, torch_seeds

TransformOf = Literal["sample", "image"]
OnError = Literal["raise", "replace"]
#: A dict of fields, a tuple, or the result of a transform.
Sample = Any


class Batch(Sequence[Sample]):
    """A batch of samples, as a sequence of samples for any ``collate_fn``, and as whole columns.

    >>> dataset = tsds.StoreDataset("photos.tsds", "train")
    >>> batch = dataset.__getitems__([7, 0])  # as torch's DataLoader asks for a batch
    >>> batch.columns["image"].shape, batch.rows.tolist()
    (torch.Size([2, 3, 32, 32]), [7, 0])
    >>> len(batch), batch[0]["image"].shape, batch[0]["label"]
    (2, torch.Size([3, 32, 32]), tensor(1))

    Attributes:
        columns: values by field, with a row for each sample. Images are (B, C, H, W), in channels-last memory.
        rows: (B,) int64, the samples' rows in the split.
        draw: (seed, epoch). Together with its row, they determine the random transforms of a sample.
        dropped: (B,) int64, the number of objects of each image that are outside the decoded part. None without
            `decode`.
    """

    def __init__(
        self,
        columns: Mapping[str, Value],
        rows: NDArray[np.int64],
        dataset: Samples,
        draw: tuple[int, int],
        dropped: torch.Tensor | None = None,
    ) -> None:
        self.columns = columns
        self.rows = rows
        self.draw = draw
        self.dropped = dropped
        self.is_of_loader = False  # of this library, which transforms batches itself
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int | slice) -> Sample:
        """Return one sample, or a list of samples for a slice.

        The values are views of the columns, to which the data set's transform is applied.
        """
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        if not -len(self) <= item < len(self):
            raise IndexError(f"sample {item} is outside of a batch of {len(self)}")
        item %= len(self)
        sample = {name: value[item] for name, value in self.columns.items()}
        return self._dataset.finish(sample, int(self.rows[item]), lambda: self._seeds[item])

    def __iter__(self) -> Iterator[Sample]:  # Sequence's own would take a transform's IndexError for the end
        return (self[i] for i in range(len(self)))

    def finished(self) -> list[Sample]:
        """Return all samples. The transform is called by all threads of a loader that are free."""
        if self._dataset.transform is None:
            return list(self)
        samples: list[Sample] = [None] * len(self)

        def finish(loop: Loop) -> None:
            for i in loop:
                samples[i] = self[i]

        share(len(self), finish)
        return samples

    def parts(self, lengths: Sequence[int]) -> list[Batch]:
        """Divide the batch into views with these lengths, which must add up to its length."""
        if len(lengths) == 1:
            return [self]
        pieces = [divided(value, lengths) for value in self.columns.values()]
        dropped = [None] * len(lengths) if self.dropped is None else divided(self.dropped, lengths)
        return [
            Batch(dict(zip(self.columns, values, strict=True)), rows, self._dataset, self.draw, lost)
            for rows, lost, *values in zip(divided(self.rows, lengths), dropped, *pieces, strict=True)
        ]

    def with_columns(self, columns: Mapping[str, Value]) -> Batch:
        """Return the same samples with other columns."""
        return Batch(columns, self.rows, self._dataset, self.draw, self.dropped)

    @functools.cached_property
    def _seeds(self) -> list[int]:
        by = draws_of(self.rows) if isinstance(self.draw, EachDraw) else self.rows
        return torch_seeds(*self.draw, by.view(np.uint64))


def divided(value: Value | NDArray[np.int64], lengths: Sequence[int]) -> Sequence[Any]:
    """Divide the values of a batch into views with these lengths, which must add up to its length."""
    if isinstance(value, torch.Tensor):
        return torch.split_with_sizes(value, list(lengths))  # takes half the time of slices
    places = itertools.pairwise(itertools.accumulate(lengths, initial=0))
    if isinstance(value, PackedObjects):
        return [value.part(start, stop) for start, stop in places]
    return [value[start:stop] for start, stop in places]


class TransformedSamples(list[Sample]):
    """The transformed samples of a batch, with their rows in the split."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.rows = batch.rows


class Samples(Dataset[Sample]):
    """Base class of data sets that return whole batches with one gather for each column.

    `fields` are the names of the loaded fields. `epoch` is for the random numbers of `decode` and `transform`, if the
    loader does not pass one.
    """

    fields: tuple[str, ...]

    def __init__(
        self,
        transform: Callable[..., Sample] | None,
        transform_of: TransformOf,
        return_as: ReturnAs,
        as_pil: bool,
        decode: Decode | None,
        on_error: OnError,
    ) -> None:
        self.transform_of: TransformOf = transform_of
        self.return_as: ReturnAs = return_as
        self.as_pil, self.decode = as_pil, frozen(decode)
        self.on_error: OnError = on_error
        self.epoch = 0
        self._is_judged, self._shortage = False, cast(Shortage | None, None)
        self._pool = BufferPool()
        self.transform = transform

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, Field]:
        """All fields by name, including those that are not in `fields`."""

    @property
    @abstractmethod
    def store_name(self) -> str:
        """Name of the store in messages."""

    @property
    def title(self) -> str:
        """Name of the data set in messages."""
        return self.store_name

    @property
    @abstractmethod
    def replaced(self) -> list[int]:
        """Rows of damaged images that this process has replaced, in no particular order."""

    @property
    @abstractmethod
    def targets(self) -> list[int]:
        """Class index of every sample, as in torchvision's data sets, or -1 for a sample without a label.

        Raises:
            AttributeError: there is no field of labels.
        """

    @property
    def nbytes(self) -> int:
        """Number of bytes of the loaded fields in all rows of their splits, as stored.

        Encoded images count with the size of their files.
        """
        return sum(part.split[name].nbytes for part in self.loaded for name in part.fields)

    @property
    def row_nbytes(self) -> float:
        """Mean number of bytes of the loaded fields in one row."""
        return self.nbytes / max(1, sum(len(part.split) for part in self.loaded))

    @property
    @abstractmethod
    def image_sizes(self) -> NDArray[np.int32]:
        """(n, 2) int32, height and width of every sample's stored image."""

    @property
    @abstractmethod
    def _placed_sizes(self) -> NDArray[np.int32]:
        """(n, 2) int32, height and width of every sample's image after a decode plan, or as stored with several."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def key(self, row: int) -> str:
        """Return the name of a sample by its row, as in `Batch.rows`."""

    @abstractmethod
    def _store_rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the rows for the data set's `indices`, (n,) int64."""

    @abstractmethod
    def with_decode(self, decode: Decode | None) -> Self:
        """Return the same data set with a different decode plan, or with a list of plans for several views."""

    @property
    @abstractmethod
    def loaded(self) -> Sequence[Loaded]:
        """Rows and fields that are loaded, of each split."""

    @abstractmethod
    def _read_randomly(self, arrays: Sequence[Collection[str]]) -> None:
        """Advise random reads of each split, also in processes that get a copy of this data set."""

    @abstractmethod
    def _will_need(self, indices: ArrayLike, *, every: bool) -> Asked:
        """Begin to read the samples of some indices, (n,), so that gathering them waits less."""

    def _expect_epochs(self, loaded: Sequence[Loaded] | None = None) -> Shortage | None:
        """Advise random reads if `loaded`, by default the data set's, exceeds memory, and return the shortage."""
        loaded = self.loaded if loaded is None else loaded
        found = self._shortage = shortage(loaded)
        self._is_judged = True
        if found is not None:
            self._read_randomly(large_arrays(loaded, found.limit))
        return found

    @abstractmethod
    def _gather(self, names: Sequence[str], rows: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch:
        """Gather some fields of some rows into memory of `pool`."""

    @property
    def transform(self) -> Callable[..., Sample] | None:
        """Function that is applied to each sample. You can also set it later, as timm does."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[..., Sample] | None) -> None:
        self._transform = transform
        self._of_images = image_transform(transform)
        if transform is not None and not callable(transform):
            raise refusal("transform", "a function of samples, or None", repr(transform))
        self._check_transform()
        self._draws = transform is not None and _takes_generator(transform)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the labels, or of the objects."""
        return classes_of(self.schema)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Index of each class by its name, as in torchvision's data sets."""
        return {name: index for index, name in enumerate(self.classes)}

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(key, class index) of every sample, like ImageFolder's (path, class index). -1 if there is no label."""
        return list(zip(map(self.key, self._store_rows(np.arange(len(self))).tolist()), self.targets, strict=True))

    imgs = samples

    @property
    def image_names(self) -> tuple[str, ...]:
        """Names of a sample's images, which are `image`, or `image_0`, `image_1` and so on if it has several views."""
        if not isinstance(self.decode, tuple):
            return ("image",)
        return views_of("image", len(self.decode))

    def _columns_of(self, names: Sequence[str]) -> list[str]:
        """Return the names of a batch's columns for these fields."""
        views = len(self.decode) if isinstance(self.decode, tuple) else 0
        fields = self.schema if views else {}
        several = {name for name in names if views and (name == "image" or fields[name].moves)}
        return [each for name in names for each in (views_of(name, views) if name in several else (name,))]

    def _with_views(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        """Return fields, with the views of the images, and of what has places in them, by their names."""
        if not isinstance(self.decode, tuple) or "image" not in fields:
            return fields
        seen = {name: field for name, field in fields.items() if name == "image" or field.moves}
        return {**fields, **{view: seen[name] for name in seen for view in views_of(name, len(self.decode))}}

    @property
    def _by_sample(self) -> bool:
        """Whether samples are created one by one, not in whole columns."""
        return self._transform is not None or self.as_pil

    def _signature(self) -> Hashable | None:
        """What batches follow from, beside rows, seed and epoch; None if a function of the user has a part in it."""
        if self._by_sample or not type(self).__module__.startswith("tensorstore_ds."):
            return None
        plans = plans_of(self.decode)
        if not all(plan is None or plan._has_no_state for plan in plans):
            return None
        return self.fields, self.return_as, self.on_error, repr(plans)

    @property
    def _gives_pil(self) -> bool:
        return self.as_pil or (self._of_images is not None and self._of_images.of_pil)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample. Its tensors are copies."""
        return self.gather([self._index(index)], draw=getattr(index, "draw", None))[0]

    def _index(self, index: int) -> int:
        """Return the non-negative index of a sample. Raises IndexError if there is none."""
        if not hasattr(index, "__index__"):
            raise TypeError(f"sample: expected a number, found {index!r}. For several samples use subset().")
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} is outside of [0, {len(self)})")
        return index % len(self)

    def __getitems__(self, indices: ArrayLike) -> Batch | TransformedSamples:
        """Return a whole batch with one gather for each column. Loaders call this.

        This library's loader passes (seed, epoch) as the attribute `draw` of the indices. If there is a transform,
        other loaders get a list, because the transform may return tensors, and torch stacks only the items of a list or
        a tuple.
        """
        draw = getattr(indices, "draw", None)
        if draw is None:
            if not self._is_judged:
                self._expect_epochs()
            if self._shortage is not None:  # all rows at once, because copying waits for one after the other
                self._will_need(indices, every=False)
        batch = self.gather(indices, draw=draw)
        batch.is_of_loader = draw is not None
        return TransformedSamples(batch) if self._by_sample and draw is None else batch

    def gather(
        self,
        indices: ArrayLike,
        pool: BufferPool | None = None,
        draw: tuple[int, int] | None = None,
        *,
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """Gather a whole batch into buffers of `pool`. None takes the data set's own pool.

        Random numbers depend on `draw`, which is (seed, epoch). With `fields`, the batch contains only these fields.
        With ``on_error="replace"``, the batch's `rows` are the rows that were loaded in place of damaged ones.
        """
        names = self.fields if fields is None else fields
        return self._gather(names, self._store_rows(indices), pool or self._pool, draw or (0, self.epoch))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for the random numbers of `decode` and `transform`, as this library's `DataLoader` does."""
        self.epoch = epoch

    def finish(self, sample: dict[str, Any], row: int, seed: Callable[[], int]) -> Sample:
        """Finish a sample and apply the transform. Exceptions get a note with the sample's key."""
        transform = self.transform
        wrap = transform is not None
        finished = as_sample(sample, self.schema, self.return_as, row, wrap=wrap, as_pil=self._gives_pil)
        if transform is None:
            return finished
        draws = {"generator": torch.Generator().manual_seed(seed())} if self._draws else {}
        try:
            if self.transform_of == "sample" and self._of_images is None:
                return self._finished(transform(finished, **draws))
            if isinstance(finished, dict):
                images = {name: transform(finished[name], **draws) for name in images_in(finished, self.schema)}
                return self._finished({**finished, **images})
            count = len(self.image_names)
            return self._finished((*(transform(image, **draws) for image in finished[:count]), *finished[count:]))
        except Exception as error:
            error.add_note(f"in the transform of the sample {self.key(row)!r} of {self.title}")
            if isinstance(error, TypeError | AttributeError | ValueError) and not self._gives_pil:
                whole = f'a sample, a {type(finished).__name__}. If it takes images, pass `transform_of="image"`, and'
                got = (
                    whole if self.transform_of == "sample" and self._of_images is None else "an image as a tensor. Pass"
                )
                error.add_note(f"It was called with {got} `as_pil=True` if it takes PIL images.")
            raise

    @property
    def _chosen(self) -> dict[str, Field]:
        """The loaded fields by name."""
        return {name: self.schema[name] for name in self.fields}

    def _finished(self, result: Sample) -> Sample:
        """Return the result of a transform, with keypoints and oriented boxes in the form of `return_as`."""
        objects = of_kind(self._chosen, ObjectsField)
        if not any({"keypoints", "oriented_boxes"} & field.values.keys() for field in objects.values()):
            return result
        from tensorstore_ds.loading.paired_keypoints import unpaired  # `as_sample` has loaded torchvision

        result = unpaired(result, in_degrees=self.return_as == "torchvision")
        if self.return_as == "torchvision" and isinstance(result, tuple) and isinstance(result[-1], dict):
            result[-1].update(visible_keypoints(result[-1]))
        return result

    def _check_moved(self, *, by_name: bool = False) -> None:
        """Raise `OptionError` if there are objects or masks that belong to a field of images other than `image`.

        With `by_name`, also for objects and masks whose names batch transforms do not know.
        """
        chosen = self._chosen
        for name, each in (of_kind(chosen, ObjectsField) | of_kind(chosen, MaskField)).items():
            if "image" in chosen and image_of(each) != "image":
                refused = f"{name}, which lies in {image_of(each)}: name all other `fields`"
                raise refusal("fields", "objects and masks of the images that are transformed", refused)
            if by_name and name not in ("objects", "mask"):
                refused = f"{name}, which would not move: name all other `fields`, or use `decode`"
                raise refusal("fields", "objects and mask alone, for a `batch_transform` that moves pixels", refused)

    def _check_detection(self) -> None:
        objects = of_kind(self._chosen, ObjectsField)
        name, values = next(((name, field.values) for name, field in objects.items()), ("", {}))
        if "image" not in self.fields or not {"boxes", "labels"} <= values.keys():
            found = ", ".join(self.fields) + (f"; {name} has {', '.join(values)}" if values else "")
            if "boxes" in values and "labels" not in values:
                found += ": convert with `classes`; a single name, such as face, is the class of all of them"
            raise refusal("return_as=torchvision", "images and objects with boxes and labels", found)

    def _check_moving_views(self) -> None:
        """Raise an `OptionError` if fields with coordinates would have several views in a form for one."""
        moving = [name for name, field in self._chosen.items() if field.moves]
        if isinstance(self.decode, tuple) and moving and (self.return_as != "dict" or self._by_sample):
            others = [name for name in self.fields if name not in moving]
            expected = 'several views of boxes and masks with `return_as="dict"` and without a `transform` of samples'
            raise refusal("decode", expected, f"{', '.join(moving)}: use fields={others}")

    def _check_transform(self) -> None:
        """Raise an `OptionError` if samples cannot pass through `transform`."""
        if hasattr(self, "fields"):
            self._check_moving_views()
        if self._of_images is None or self.transform_of == "image" or not hasattr(self, "fields"):
            return
        chosen = self._chosen
        moving = [*of_kind(chosen, ObjectsField), *of_kind(chosen, MaskField)]
        if moving or "image" not in chosen:
            what = f"with {moving[0]}, such as torchvision.transforms.v2" if moving else ", because no image is loaded"
            found = f'{self._of_images.name}, which takes images: pass `transform_of="image"` if it moves no pixel'
            raise refusal("transform", f"one of samples {what}", found if moving else self._of_images.name)

    def _changed(self, **changes: Any) -> Self:
        """Return the same data set with other attributes, which shares no open file."""
        changed = type(self).__new__(type(self))
        changed.__setstate__(self.__getstate__() | {"_is_judged": False, "_random": ()} | changes)
        return changed

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pool"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pool=BufferPool())


def views_of(name: str, count: int) -> tuple[str, ...]:
    """Return the names of a field's views, such as ``image_0`` and ``image_1``."""
    return tuple(f"{name}_{view}" for view in range(count))


def frozen(decode: Decode | None) -> Decode | None:
    """Return the plans of several views as a tuple, or one plan unchanged."""
    return tuple(decode) if isinstance(decode, list) else decode


def _takes_generator(transform: Callable[..., Any]) -> bool:
    try:
        return "generator" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a callable written in C has no signature
        return False
