"""Several stores as one data set, concatenated or mixed in exact shares."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.joining import FieldsDifferError, Numbers, Side, class_numbers, join_fields
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.kinds.base import Field, first_of_kind
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Decode
from tensorstore_ds.loading.fields import Value, pair_of
from tensorstore_ds.loading.samplers import Order, RowSampler, at_least
from tensorstore_ds.loading.samples import Batch, Sample, Samples
from tensorstore_ds.options import refusal
from tensorstore_ds.page_cache.shortage import Loaded
from tensorstore_ds.reading.columns import checked_rows
from tensorstore_ds.reading.store import Asked, Store
from tensorstore_ds.reading.stored_images import check_depths
from tensorstore_ds.seeding import shuffled

#: A store as path, URL, open store, or data set of one of its splits.
MixShare = str | os.PathLike[str] | Store | StoreDataset
EpochLength = Literal["first", "shortest"] | int
Weights = Callable[[int], Sequence[float]]
T = TypeVar("T")


class MixedDataset(Samples):
    """The samples of several stores as one data set, from which `DataLoader` gathers batches like from one store.

    >>> stores = {"photos.tsds": 0.75, "voc.tsds": 0.25}
    >>> mixed = tsds.MixedDataset(stores, fields=["image"], decode=tsds.Resize((32, 32)))
    >>> len(mixed)  # 8 samples of photos.tsds, then 4 of voc.tsds
    12
    >>> loader = tsds.DataLoader(mixed, batch_size=4, shuffle=True)
    >>> next(iter(loader))["image"].shape  # 3 images of photos.tsds and 1 of voc.tsds
    torch.Size([4, 3, 32, 32])

    Indices run through all samples of the first store, then through all samples of the second, and so on. With shares,
    ``shuffle=True`` uses `MixedSampler`, which describes an epoch. Without shares, it shuffles all samples of all
    stores. ``len(mixed)`` is the number of all samples. With shares, `epoch_length` decides how many an epoch has.

    Classes are matched by name, so a class that occurs in several stores has one index. Images of differing sizes are a
    list, as with one store. A `decode` plan gives them one size. Gray images become RGB if others are.

    Args:
        stores: the stores, as a dict with the share of each, whose sum does not matter, or as a list, to concatenate
            them. A store is a path, a URL, a `Store`, or a `StoreDataset` without a transform, which may be a subset.
        split: name of the split, for each store that is not a `StoreDataset`.
        weights: function that replaces constant shares. It is called with the epoch and returns a share for each store.
            `epoch_length` must then be a number.
        epoch_length: end of an epoch. With ``first``, it ends when every sample of the first store was used once. With
            ``shortest``, this applies to the store that is the smallest relative to its share. A number is the number
            of samples.
        classes: names of the classes in their order. None takes the classes of the first store, followed by those that
            other stores add.
        fields: names of the fields. None takes the fields that the first store loads and all others contain.
        transform, transform_of, return_as, as_pil: as in `StoreDataset`.
        decode, on_error: as in `StoreDataset`, for each store that is not a `StoreDataset`.

    Raises:
        OptionError: stores differ in the dtype or the values of a field, a class is not in `classes`, or an argument is
            invalid. The message contains store and field.
    """

    def __init__(
        self,
        stores: Mapping[MixShare, float] | Sequence[MixShare],
        split: str = "train",
        *,
        weights: Weights | None = None,
        epoch_length: EpochLength = "first",
        classes: Sequence[str] | None = None,
        fields: Sequence[str] | None = None,
        transform: Callable[..., Sample] | None = None,
        transform_of: Literal["sample", "image"] = "sample",
        return_as: Literal["dict", "tuple", "torchvision"] = "dict",
        as_pil: bool = False,
        decode: Decode | None = None,
        on_error: Literal["raise", "replace"] = "raise",
    ) -> None:
        if isinstance(stores, str | os.PathLike) or not isinstance(stores, Mapping | Sequence) or not stores:
            raise refusal("stores", "several stores, in a list or with their shares in a dict", repr(stores))
        self.parts = tuple(_part(each, split, fields, decode, on_error) for each in stores)
        lengths = [*map(len, self.parts)]
        self.shares = _shares([*stores.values()], lengths) if isinstance(stores, Mapping) else None
        if isinstance(epoch_length, np.integer):
            epoch_length = int(epoch_length)
        if weights is not None and (self.shares is not None or not isinstance(epoch_length, int)):
            raise refusal("weights", "stores without shares, and a number as `epoch_length`", repr(epoch_length))
        if epoch_length not in ("first", "shortest") and (isinstance(epoch_length, bool) or int(epoch_length) < 1):
            raise refusal("epoch_length", "first, shortest, or a number of samples", repr(epoch_length))
        if epoch_length == "first" and self.shares is not None and not self.shares[0]:
            raise refusal("epoch_length", "shortest or a number, with the share 0 of the first store", "first")
        self.weights, self.epoch_length = weights, epoch_length
        first = self.parts[0]
        names = first.fields if fields is None else tuple(fields)
        common = [name for name in names if all(name in part.split.fields for part in self.parts)]
        if return_as == "tuple" and fields is None and not first.chosen:
            common = [*pair_of(first.split.fields, common)]
        self._fields = _joined(self.parts, common, classes)
        self._maps = [_class_maps(part, self._fields) for part in self.parts]
        self._starts = np.cumsum([0, *lengths])
        self.fields = tuple(common)
        super().__init__(transform, transform_of, return_as, as_pil, first.decode, on_error)
        views = {part.image_names: part.store_name for part in self.parts}
        if "image" in common and len(views) > 1:
            found = "; ".join(f"{', '.join(names)} in {name}" for names, name in views.items())
            raise refusal("decode", "as many views in all data sets: give it to the mixture", found)
        if "image" in common:
            own = ((part.store_name, part.split) for part in self.parts if len(part.split))
            check_depths((name, split.fields["image"], split["image"]) for name, split in own)
        if not common:
            raise refusal("fields", "a field that all stores have", "none")
        if return_as == "torchvision":
            self._check_detection()

    @property
    def split(self) -> Any:
        """Raises `AttributeError`, because several stores have no common split."""
        raise AttributeError("split: expected one store, found several. Ask the data sets in `parts`.")

    def subset(self, rows: ArrayLike) -> Any:
        """Raises `OptionError`, because there is more than one store."""
        raise OptionError("subset: expected one store. Mix subsets: MixedDataset({dataset.subset(rows): 0.7, ...}).")

    @property
    def schema(self) -> Mapping[str, Field]:
        """Fields that all stores contain, with the classes of all stores."""
        return self._with_views(self._fields)

    @property
    def store_name(self) -> str:
        """Names of all stores."""
        return " + ".join(part.store_name for part in self.parts)

    @property
    def replaced(self) -> list[int]:
        """Rows of damaged images that this process has replaced. Each row counts within its own data set."""
        return [row for part in self.parts for row in part.replaced]

    @property
    def targets(self) -> list[int]:
        """Class index of every sample in the joined classes, as in `StoreDataset`."""
        name = first_of_kind(self._fields, LabelField)
        if name is None:
            raise AttributeError(f"{self.store_name}: expected a field of labels, found none.")
        each = list[NDArray[np.int64]]()
        for part, maps in zip(self.parts, self._maps, strict=True):
            own = np.asarray(part.targets, np.int64)
            each.append(self._fields[name].renumbered(own, maps[name]) if name in maps else own)
        labels: list[int] = np.concatenate(each).tolist()
        return labels

    @property
    def image_sizes(self) -> NDArray[np.int32]:
        """(n, 2) int32, height and width of every sample's stored image."""
        return np.concatenate([part.image_sizes for part in self.parts])

    @property
    def _placed_sizes(self) -> NDArray[np.int32]:
        return np.concatenate([part._placed_sizes for part in self.parts])

    def _store_rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the indices themselves, because rows of a mixture are its indices."""
        return checked_rows(indices, len(self), self.store_name)

    def __len__(self) -> int:
        """Number of samples of all stores."""
        return int(self._starts[-1])

    def sampler(self, **order: Unpack[Order]) -> RowSampler | None:
        """Return the sampler for ``shuffle=True`` of `DataLoader`, or None to shuffle all samples."""
        return None if self.shares is None and self.weights is None else MixedSampler(self, **order)

    def key(self, row: int) -> str:
        """Return the name of a sample in its store, by its index."""
        row = self._index(row)
        part = int(self.part_of([row])[0])
        own = self.parts[part]
        return own.key(int(own._store_rows([row - int(self._starts[part])])[0]))

    def part_of(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the number of each sample's store, (n,) int64, from the indices, such as the `rows` of a batch."""
        owners: NDArray[np.int64] = np.searchsorted(self._starts, np.asarray(indices, np.int64), "right") - 1
        return owners

    def with_decode(self, decode: Decode | None) -> MixedDataset:
        """Return the same data set with a different decode plan, or with a list of plans for several views."""
        parts = tuple(part.with_decode(decode) for part in self.parts)
        return self._changed(parts=parts, decode=parts[0].decode)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all stores, as in `StoreDataset`."""
        self.epoch = epoch
        for part in self.parts:
            part.set_epoch(epoch)

    @property
    def loaded(self) -> Sequence[Loaded]:
        """Rows and fields that are loaded, of each store."""
        return [part.loaded[0]._replace(fields=self.fields) for part in self.parts]

    def _read_randomly(self, arrays: Sequence[Collection[str]]) -> None:
        """Advise random reads of arrays of each store."""
        for part, each in zip(self.parts, arrays, strict=True):
            part._read_randomly([each])

    def _will_need(self, indices: ArrayLike, *, every: bool) -> Asked:
        """Begin to read samples of each store."""
        owners, rows = self.part_of(indices), np.asarray(indices, np.int64)
        asked = [
            part._will_need(rows[owners == number] - self._starts[number], every=every, fields=self.fields)
            for number, part in enumerate(self.parts)
            if (owners == number).any()
        ]
        return Asked(*map(sum, zip((0, 0, 0), *asked, strict=True)))

    def _gather(self, names: Sequence[str], rows: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch:
        owners = self.part_of(rows)
        rows, pieces, places = rows.copy(), list[Batch](), list[NDArray[np.int64]]()
        for number in np.unique(owners).tolist():
            part, start = self.parts[number], int(self._starts[number])
            places.append(np.flatnonzero(owners == number))
            batch = part.gather(rows[places[-1]] - start, pool, draw, fields=names)
            if part.on_error == "replace":  # replacements of damaged samples have other rows
                for i in np.flatnonzero(batch.rows != part._store_rows(rows[places[-1]] - start)):
                    row = batch.rows[i] if part.rows is None else np.flatnonzero(part.rows == batch.rows[i])[0]
                    rows[places[-1][i]] = row + start
            maps = self._maps[number]
            columns = {
                each: _with_classes(batch.columns[each], maps.get(name), self._fields.get(name))
                for name in names
                for each in self._columns_of([name])
            }
            if "image" in names and self._is_widened:
                columns |= {each: _as_rgb(columns[each]) for each in self._columns_of(["image"])}
            pieces.append(batch.with_columns(columns))
        columns = {
            name: _interleaved([piece.columns[name] for piece in pieces], places, pool)
            for name in self._columns_of(names)
        }
        lost = [piece.dropped for piece in pieces if piece.dropped is not None]
        dropped = _interleaved(lost, places, BufferPool()) if len(lost) == len(pieces) and pieces else None
        return Batch(columns, rows, self, draw, dropped)

    @functools.cached_property
    def _is_widened(self) -> bool:
        """Whether gray images become RGB, because others are, as within one store."""
        return set().union(*(part.split._channels for part in self.parts)) == {1, 3}

    def _signature(self) -> Hashable | None:
        own, parts = super()._signature(), [part._signature() for part in self.parts]
        return None if own is None or None in parts else (own, *parts)

    def __repr__(self) -> str:
        named = [part.store_name for part in self.parts]
        if self.shares is not None:
            named = [f"{share:.3g} of {name}" for name, share in zip(named, self.shares, strict=True)]
        return f"<MixedDataset {', '.join(named)}: {len(self)} samples of {', '.join(self.fields)}>"


class MixedSampler(RowSampler):
    """Sample several stores in exact shares, each store shuffled separately.

    The k-th sample of a store with share w has the key (k + 1/2) / w, and an epoch contains the samples in the order of
    their keys. This is the Sainte-Laguë (Webster) method, which divides the seats of a parliament among parties. After
    any n samples, and therefore in every batch, each store has its share as nearly as integers allow::

        MixedSampler of {a: 0.7, b: 0.3}, where a has 7 samples
        a a b a a b a a b a      the epoch ends after all samples of a

    A store goes through all of its samples in random order before it starts again in a new order, also across epochs. A
    large store continues in the next epoch where the last one ended. The order depends only on (seed, epoch), and ranks
    take the rows in turn.

    >>> mixed = tsds.MixedDataset({"photos.tsds": 0.75, "voc.tsds": 0.25}, fields=["image"])
    >>> sampler = tsds.loading.MixedSampler(mixed)
    >>> len(sampler), (sampler.rows() < 8).tolist()  # rows below 8 are of photos.tsds
    (11, [True, True, False, True, True, True, False, True, True, True, False])

    Args:
        data: the stores, with shares or `weights`.
        order: `seed`, `rank`, `num_replicas`, `drop_last` and `even_batches`, see `Order`.
    """

    def __init__(self, data: MixedDataset, **order: Unpack[Order]) -> None:
        super().__init__(1, **order)
        self._mixed = data
        self._lengths = [len(part) for part in data.parts]
        self._before: list[NDArray[np.int64]] = [np.zeros(len(data.parts), np.int64)]  # see `_offsets`

    @property
    def size(self) -> int:
        """Number of samples of an epoch, all ranks together."""
        return int(self._counts(self.epoch).sum())

    @property
    def replacement(self) -> bool:
        """Whether a store starts again within an epoch, so that its rows are drawn several times."""
        return bool((self._counts(self.epoch) > self._lengths).any())

    def _own(self) -> list[Any] | None:
        shares, length = self._mixed.shares, self._mixed.epoch_length
        return None if shares is None else [*shares.tolist(), length, *self._lengths]  # else a function decides

    def _weights(self, epoch: int) -> NDArray[np.float64]:
        if self._mixed.shares is not None:
            return self._mixed.shares
        if self._mixed.weights is None:
            raise OptionError("data: expected a MixedDataset with shares, or with `weights`, found neither.")
        return _shares(self._mixed.weights(epoch), self._lengths)

    def _counts(self, epoch: int) -> NDArray[np.int64]:
        """Return the number of samples of each store in an epoch."""
        weights, length = self._weights(epoch), self._mixed.epoch_length
        if length in ("first", "shortest"):
            chosen = range(1) if length == "first" else range(len(weights))
            last = min((self._lengths[i] - 0.5) / weights[i] for i in chosen if weights[i])
            counted: NDArray[np.int64] = np.floor(np.nextafter(last * weights, math.inf) + 0.5).astype(np.int64)
            return counted
        total = at_least(1, length, "epoch_length")  # type: ignore[arg-type]  # a number
        counts = np.maximum(np.floor(total * weights).astype(np.int64) - 1, 0)
        while counts.sum() < total:
            counts[np.argmax(weights / (counts + 0.5))] += 1
        return counts

    def _offsets(self, epoch: int) -> NDArray[np.int64]:
        """Return the number of samples of each store in all earlier epochs."""
        if self._mixed.weights is None:
            return self._counts(0) * epoch
        while len(self._before) <= epoch:
            self._before.append(self._before[-1] + self._counts(len(self._before) - 1))
        return self._before[epoch]

    def _order(self) -> NDArray[np.int64]:
        weights, counts = self._weights(self.epoch), self._counts(self.epoch)
        keys = np.concatenate([(np.arange(n) + 0.5) / w if n else [] for n, w in zip(counts, weights, strict=True)])
        rows = np.concatenate([self._stream(i, int(n)) for i, n in enumerate(counts)])
        return rows[np.argsort(keys, kind="stable")]

    def _stream(self, part: int, count: int) -> NDArray[np.int64]:
        """Return the next rows of a store, from passes through all its rows, each in a different order."""
        length, first = self._lengths[part], int(self._offsets(self.epoch)[part])
        if not count:
            return np.empty(0, np.int64)
        passes = range(first // length, (first + count - 1) // length + 1)
        rows = np.concatenate([shuffled(length, self.seed, number, part) for number in passes])
        start = first % length
        return rows[start : start + count] + int(self._mixed._starts[part])


def _part(
    part: MixShare,
    split: str,
    fields: Sequence[str] | None,
    decode: Decode | None,
    on_error: Literal["raise", "replace"],
) -> StoreDataset:
    if not isinstance(part, Samples):
        return StoreDataset(part, split, fields=fields, decode=decode, on_error=on_error)
    if not isinstance(part, StoreDataset) or part._by_sample:
        raise refusal("stores", "data sets of one store, without a transform: give it to the mixture", repr(part))
    if part.outlines:
        raise refusal("outlines", "data sets without, because a mixture has no common split", repr(part))
    return part if decode is None else part.with_decode(decode)


def _shares(weights: Sequence[float], lengths: Sequence[int]) -> NDArray[np.float64]:
    """Normalize weights, of stores with these numbers of samples, to a sum of 1."""
    shares, count = np.asarray(weights, np.float64), len(lengths)
    if shares.shape != (count,) or not np.isfinite(shares).all() or (shares < 0).any() or not shares.sum() > 0:
        raise refusal("weights", f"{count} numbers, none negative and at least one positive", repr(weights))
    if shares[np.equal(lengths, 0)].any():
        raise refusal("weights", "0 for each store without samples", repr(weights))
    normal: NDArray[np.float64] = shares / shares.sum()
    return normal


def _joined(parts: Sequence[StoreDataset], names: Sequence[str], classes: Sequence[str] | None) -> dict[str, Field]:
    """Return these fields with the classes of all stores. Raises `OptionError` if they cannot be joined."""
    first, *_ = own = [{name: part.split.fields[name] for name in names} for part in parts]
    images = [name for name in names if all(fields[name].kind == "image" for fields in own)]  # of any size, as a list
    pairs = list(zip(parts, own, strict=True))
    sides = [Side(p.store_name, {n: f for n, f in fields.items() if n not in images}, len(p)) for p, fields in pairs]
    try:
        joined = join_fields(sides).fields
    except FieldsDifferError as error:
        raise OptionError(f"{parts[error.side].store_name}: {error} {_LEAVE_OUT}") from None
    for name, field in joined.items():
        _check_values(name, field, pairs)
        if classes is not None and field.joins_classes and field.classes:
            unknown = [each for each in field.classes if each not in classes]
            if unknown:
                where = next(part.store_name for part, fields in pairs if unknown[0] in fields[name].classes)
                raise OptionError(f"`classes`: expected all classes of {name}, missing {unknown[0]} of {where}.")
            joined[name] = field.with_classes(tuple(classes))
    return {name: joined.get(name, first[name]) for name in names}


def _check_values(name: str, joined: Field, pairs: Sequence[tuple[StoreDataset, Mapping[str, Field]]]) -> None:
    """Raise an error unless all stores have the same values of objects, and the same keypoints."""
    for part, fields in pairs:
        own = fields[name].names
        for what in [each for each in joined.names if each != "classes"]:
            if missing := [each for each in joined.names[what] if each not in own[what]]:
                found = f"expected {name} with the {what} {', '.join(missing)}, as others have, found none"
                raise OptionError(f"{part.store_name}: {found}. {_LEAVE_OUT}")
        if own.get("keypoints") != joined.names.get("keypoints"):
            raise OptionError(f"{part.store_name}: expected the keypoints of {name} in the others' order. {_LEAVE_OUT}")


#: Advice if fields differ. The command merge fills in missing fields.
_LEAVE_OUT = "Leave the field out, with `fields`, or unite the stores with tsds merge."


def _class_maps(part: StoreDataset, joined: Mapping[str, Field]) -> Numbers:
    """Return, by field, the joined index of each class of a store, if they differ."""
    numbers = class_numbers({name: part.split.fields[name] for name in joined}, joined, {})
    same = {name: joined[name].arrays == part.split.fields[name].arrays for name in numbers}
    return {name: new for name, new in numbers.items() if not same[name] or (new != np.arange(len(new))).any()}


def _with_classes(value: Value, numbers: NDArray[np.int64] | None, field: Field | None) -> Value:
    """Return labels with the class indices of a joined field."""
    if numbers is None or field is None:
        return value
    if isinstance(value, torch.Tensor):
        return torch.from_numpy(field.renumbered(value.numpy(), numbers)).to(value.dtype)
    if isinstance(value, PackedObjects) and field.class_value in value.values:
        labels = value.values[field.class_value]
        mapped = torch.from_numpy(numbers[labels.numpy()]).to(labels.dtype)
        return PackedObjects(value.offsets, {**value.values, field.class_value: mapped})
    return value


def _as_rgb(images: Any) -> Any:
    """Gray images, (B, 1, H, W) or a list of (1, H, W), with three equal channels."""
    if isinstance(images, list):
        return [each.expand(3, -1, -1) for each in images]
    return images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)


def _interleaved(pieces: Sequence[Any], places: Sequence[NDArray[np.int64]], pool: BufferPool) -> Any:
    """Put the rows of several stores at their positions in the batch."""
    if len(pieces) == 1:
        return pieces[0]
    order = torch.from_numpy(np.argsort(np.concatenate(places)))
    if isinstance(pieces[0], PackedObjects):
        ends = itertools.accumulate((piece.total for piece in pieces), initial=0)
        offsets = [piece.offsets[int(i > 0) :] + end for i, (piece, end) in enumerate(zip(pieces, ends, strict=False))]
        values = {name: torch.cat([piece.values[name] for piece in pieces]) for name in pieces[0].values}
        return PackedObjects(torch.cat(offsets), values).take(order)
    if all(isinstance(p, torch.Tensor) and p.shape[1:] == pieces[0].shape[1:] for p in pieces):
        first = pieces[0]
        is_image = first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)
        arrays = [(piece.permute(0, 2, 3, 1) if is_image else piece).numpy() for piece in pieces]
        # With NumPy: torch's index_copy_ takes 100 times as long for uint8.
        whole, array = pool.empty(sum(map(len, pieces)), ArraySpec(arrays[0].dtype.name, arrays[0].shape[1:]))
        for part, place in zip(arrays, places, strict=True):
            array[place] = part
        return whole.permute(0, 3, 1, 2) if is_image else whole
    joined = list(itertools.chain.from_iterable(pieces))
    return [joined[i] for i in order.tolist()]
