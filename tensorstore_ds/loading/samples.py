"""What the loader gathers whole batches of: the samples of one store, or of several."""

from __future__ import annotations

import functools
import inspect
import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from tensorstore_ds.format.kinds import MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, image_of, of_kind
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.decoding import Decode
from tensorstore_ds.loading.fields import ReturnAs, Value, as_sample, classes_of, images_in
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import torch_seeds

TransformOf = Literal["sample", "image"]
OnError = Literal["raise", "replace"]
#: A dict of fields, a tuple, or whatever a transform makes of it.
Sample = Any


class Batch(Sequence[Sample]):
    """Samples in whole columns: a sequence of samples for any ``collate_fn``, and the columns for ours.

    >>> dataset = tsds.StoreDataset("photos.tsds", "train")
    >>> batch = dataset.__getitems__([7, 0])  # as torch's DataLoader asks for a batch
    >>> batch.columns["image"].shape, batch.rows.tolist()
    (torch.Size([2, 3, 32, 32]), [7, 0])
    >>> len(batch), batch[0]["image"].shape, batch[0]["label"]
    (2, torch.Size([3, 32, 32]), tensor(1))

    Attributes:
        columns: values by field, with a row for each sample. Images are (B, C, H, W), in channels-last memory.
        rows: (B,) int64, the samples' rows in the split.
        draw: (seed, epoch), which determine the random transforms of a sample, with its row.
        dropped: (B,) int64, how many objects of each image are not in the part that was decoded; None without `decode`.
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
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int | slice) -> Sample:
        """One sample: views of the batch's columns, through the data set's transform. Of a slice, a list of them."""
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        if not -len(self) <= item < len(self):
            raise IndexError(f"sample {item} is outside of a batch of {len(self)}")
        item %= len(self)
        sample = {name: value[item] for name, value in self.columns.items()}
        return self._dataset.finish(sample, int(self.rows[item]), lambda: self._seeds[item])

    def __iter__(self) -> Iterator[Sample]:  # Sequence's own would take a transform's IndexError for the end
        return (self[i] for i in range(len(self)))

    def parts(self, lengths: Sequence[int]) -> list[Batch]:
        """The samples as several batches of these lengths, which come to all of them: views of this one."""
        if len(lengths) == 1:
            return [self]
        ends = list(itertools.accumulate(lengths, initial=0))
        places = list(itertools.pairwise(ends))
        pieces: list[Iterable[Any]] = []
        for value in self.columns.values():
            if isinstance(value, torch.Tensor):
                pieces.append(torch.split_with_sizes(value, list(lengths)))  # takes half as long as slices
            elif isinstance(value, PackedObjects):
                pieces.append([value.part(start, stop) for start, stop in places])
            else:
                pieces.append([value[start:stop] for start, stop in places])
        dropped = [None if self.dropped is None else self.dropped[start:stop] for start, stop in places]
        return [
            Batch(dict(zip(self.columns, values, strict=True)), self.rows[start:stop], self._dataset, self.draw, lost)
            for (start, stop), lost, *values in zip(places, dropped, *pieces, strict=True)
        ]

    def with_columns(self, columns: Mapping[str, Value]) -> Batch:
        """The same samples in other columns."""
        return Batch(columns, self.rows, self._dataset, self.draw, self.dropped)

    @functools.cached_property
    def _seeds(self) -> list[int]:
        return torch_seeds(*self.draw, self.rows.view(np.uint64))


class TransformedSamples(list[Sample]):
    """The samples of a batch, and their rows in the split."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.rows = batch.rows


class Samples(Dataset[Sample]):
    """A data set that gives whole batches, each with one gather for each column: a `StoreDataset` or a `MixedDataset`.

    Attributes:
        fields: names of the fields that are loaded.
        decode, transform, transform_of, return_as, as_pil, on_error: see `StoreDataset`.
        epoch: the one by which `decode` and `transform` draw, where a loader does not say it.
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
        self.transform = transform
        self.transform_of: TransformOf = transform_of
        self.return_as: ReturnAs = return_as
        self.as_pil, self.decode = as_pil, frozen(decode)
        self.on_error: OnError = on_error
        self.epoch = 0
        self._pool = BufferPool()

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, Field]:
        """Every field that there is, by its name; `fields` are those that are loaded."""

    @property
    @abstractmethod
    def store_name(self) -> str:
        """What the store is called in messages."""

    @property
    def title(self) -> str:
        """What the data set is called in messages."""
        return self.store_name

    @property
    @abstractmethod
    def replaced(self) -> list[int]:
        """Rows of damaged images that this process has replaced, in no certain order."""

    @property
    @abstractmethod
    def targets(self) -> list[int]:
        """The class index of every sample, as torchvision's data sets have it, -1 where a sample has no label.

        AttributeError without a field of labels.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of its fields where they are stored."""

    @property
    @abstractmethod
    def row_nbytes(self) -> float:
        """Bytes of its fields in one row, on average."""

    @property
    @abstractmethod
    def image_sizes(self) -> NDArray[np.int32]:
        """(n, 2) int32, height and width of every sample's image as it is stored."""

    @abstractmethod
    def __len__(self) -> int:
        """Samples."""

    @abstractmethod
    def key(self, row: int) -> str:
        """The name of a sample, by its row: see `Batch.rows`."""

    @abstractmethod
    def store_rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Rows that the data set's `indices` stand for, (n,) int64."""

    @abstractmethod
    def with_decode(self, decode: Decode | None) -> Self:
        """The same data set with another decode plan, or with a list of plans for several views."""

    @abstractmethod
    def _gather(self, names: Sequence[str], rows: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch:
        """Some fields of some rows, in memory of `pool`."""

    @property
    def transform(self) -> Callable[..., Sample] | None:
        """What makes samples of those of the store; it may be set later, as timm does."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[..., Sample] | None) -> None:
        self._transform = transform
        self._check_transform()
        self._draws = transform is not None and _takes_generator(transform)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the labels, or of the objects."""
        return classes_of(self.schema)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The index of each class by its name, as torchvision's data sets have it."""
        return {name: index for index, name in enumerate(self.classes)}

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(key, class index) of every sample, as ImageFolder has paths and indices; -1 where there is no label."""
        return list(zip(map(self.key, self.store_rows(np.arange(len(self))).tolist()), self.targets, strict=True))

    imgs = samples

    @property
    def image_names(self) -> tuple[str, ...]:
        """The names of the images of a sample, which are `image`, or `image_0`, `image_1` and so on if it has views."""
        if not isinstance(self.decode, tuple):
            return ("image",)
        return tuple(f"image_{view}" for view in range(len(self.decode)))

    def columns_of(self, names: Iterable[str]) -> list[str]:
        """The columns of a batch that has these fields."""
        return [each for name in names for each in (self.image_names if name == "image" else (name,))]

    def _with_views(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        """Fields, and the views of the images by their names."""
        if not isinstance(self.decode, tuple) or "image" not in fields:
            return fields
        return {**fields, **dict.fromkeys(self.image_names, fields["image"])}

    @property
    def by_sample(self) -> bool:
        """Whether samples are made one by one, not in whole columns."""
        return self._transform is not None or self.as_pil

    def __getitem__(self, index: int) -> Sample:
        """One sample: tensors of their own memory."""
        return self.gather([self._index(index)])[0]

    def _index(self, index: int) -> int:
        """The number of a sample from the beginning; raises where there is none."""
        if not hasattr(index, "__index__"):
            raise TypeError(f"sample: expected a number, found {index!r}. For several samples use subset().")
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} is outside of [0, {len(self)})")
        return index % len(self)

    def __getitems__(self, indices: ArrayLike) -> Batch | TransformedSamples:
        """A whole batch for any loader, with one gather for each column.

        Indices may bring their (seed, epoch) as `draw`, as those of our loader do. Others get a list where there is a
        transform: what it returns may be a tensor, and torch stacks only those of a list or a tuple.
        """
        draw = getattr(indices, "draw", None)
        batch = self.gather(indices, draw=draw)
        return TransformedSamples(batch) if self.by_sample and draw is None else batch

    def gather(
        self,
        indices: ArrayLike,
        pool: BufferPool | None = None,
        draw: tuple[int, int] | None = None,
        *,
        fields: Sequence[str] | None = None,
    ) -> Batch:
        """A whole batch in memory of `pool`, the data set's own by default; what is drawn follows from (seed, epoch).

        With some `fields`, it has only these.

        With ``on_error="replace"``, the batch's `rows` are those that took the place of damaged ones.
        """
        names = self.fields if fields is None else fields
        return self._gather(names, self.store_rows(indices), pool or self._pool, draw or (0, self.epoch))

    def set_epoch(self, epoch: int) -> None:
        """The epoch by which `decode` and `transform` draw, where this library's `DataLoader` does not say it."""
        self.epoch = epoch

    def finish(self, sample: dict[str, Any], row: int, seed: Callable[[], int]) -> Sample:
        """A sample as it is asked for, through the transform. An exception there gets a note with the sample's key."""
        transform = self.transform
        wrap = transform is not None
        finished = as_sample(sample, self.schema, self.return_as, row, wrap=wrap, as_pil=self.as_pil)
        if transform is None:
            return finished
        draws = {"generator": torch.Generator().manual_seed(seed())} if self._draws else {}
        try:
            if self.transform_of == "sample":
                return transform(finished, **draws)
            if isinstance(finished, dict):
                images = {name: transform(finished[name], **draws) for name in images_in(finished, self.schema)}
                return {**finished, **images}
            count = len(self.image_names)
            return (*(transform(image, **draws) for image in finished[:count]), *finished[count:])
        except Exception as error:
            error.add_note(f"in the transform of the sample {self.key(row)!r} of {self.title}")
            raise

    def check_moved(self) -> None:
        """Raise `OptionError` if there are objects or masks that do not move with the field `image`."""
        chosen = {name: self.schema[name] for name in self.fields}
        for name, each in (of_kind(chosen, ObjectsField) | of_kind(chosen, MaskField)).items():
            if "image" in chosen and image_of(each) != "image":
                refused = f"{name}, which lies in {image_of(each)}: name all other `fields`"
                raise refusal("fields", "objects and masks of the images that are transformed", refused)

    def _check_detection(self) -> None:
        objects = of_kind({name: self.schema[name] for name in self.fields}, ObjectsField)
        name, values = next(((name, field.values) for name, field in objects.items()), ("", {}))
        if "image" not in self.fields or not {"boxes", "labels"} <= values.keys():
            found = ", ".join(self.fields) + (f"; {name} has {', '.join(values)}" if values else "")
            if "boxes" in values and "labels" not in values:
                found += ": convert with `classes`; a single name, such as face, is the class of all of them"
            raise refusal("return_as=torchvision", "images and objects with boxes and labels", found)

    def _check_transform(self) -> None:
        """Raise an `OptionError` where samples cannot go through `transform`."""

    def _changed(self, **changes: Any) -> Self:
        """The same data set with other attributes, which shares nothing that is opened."""
        changed = type(self).__new__(type(self))
        changed.__setstate__(self.__getstate__() | changes)
        return changed

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pool"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pool=BufferPool())


def frozen(decode: Decode | None) -> Decode | None:
    """The plans of several views as a tuple; one plan as it is."""
    return tuple(decode) if isinstance(decode, list) else decode


def _takes_generator(transform: Callable[..., Any]) -> bool:
    try:
        return "generator" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a callable written in C tells nothing
        return False
