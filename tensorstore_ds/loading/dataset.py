"""A split of a store as a torch data set, sample by sample, or in whole batches with one gather for each column."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, ClassVar, Self, cast, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from tensorstore_ds import words
from tensorstore_ds.errors import FormatError, SourceError, UnknownNameError
from tensorstore_ds.format.kinds import LabelField, ObjectsField, UnknownField
from tensorstore_ds.format.kinds.base import Field, UnknownTableField, named, of_kind
from tensorstore_ds.format.kinds.objects import LISTS
from tensorstore_ds.format.root import OtherStoreError
from tensorstore_ds.loading.augment.geometry import RandomHorizontalFlip
from tensorstore_ds.loading.augment.objects import place_objects, stored_pairs
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.crew import when_used
from tensorstore_ds.loading.decoding import (
    DamagedImageError,
    Decode,
    ImageReader,
    Images,
    fixes_size,
    place_masks,
    place_on,
    plans_of,
    steps_of,
)
from tensorstore_ds.loading.fields import ReturnAs, Value, gatherer_of, is_decoded, pair_of, view_field
from tensorstore_ds.loading.moving import move, only_moves
from tensorstore_ds.loading.outlines import FRAME, OUTLINE, with_frames
from tensorstore_ds.loading.samples import Batch, OnError, Sample, Samples, TransformOf, frozen
from tensorstore_ds.options import check_choice, refusal, unknown_name
from tensorstore_ds.page_cache.shortage import Loaded
from tensorstore_ds.reading.columns import Column, checked_rows
from tensorstore_ds.reading.store import Asked, Split, Store, open as open_store
from tensorstore_ds.reading.store_files import AGAIN, Origin
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.remote.location import is_url
from tensorstore_ds.seeding import EachDraw, draws_of, fold, torch_seeds

#: Number of replacements to try for a damaged image. The limit ends the search if all images are damaged.
_MOST_REPLACED = 64


class StoreDataset(Samples):
    """The samples of one split of a store.

    A sample is a dict by field. Images are uint8 tensors (C, H, W), and labels are numbers:

    >>> dataset = tsds.StoreDataset("photos.tsds", "train")
    >>> len(dataset)
    8
    >>> sample = dataset[0]
    >>> sample["image"].shape, sample["image"].dtype, sample["label"]
    (torch.Size([3, 32, 32]), torch.uint8, tensor(0))
    >>> dataset.split.fields["label"].classes
    ('cat', 'dog')

    Objects are a dict of tensors with a row for each object of the image:

    >>> sample = tsds.StoreDataset("voc.tsds", "train")[1]
    >>> {name: value.shape for name, value in sample["objects"].items()}
    {'boxes': torch.Size([2, 4]), 'labels': torch.Size([2])}

    If several classes can apply to a sample, `labels` has a number for each class: 1, 0, or NaN where it is unknown.

    With ``return_as="tuple"`` a sample is (image, label), as in torchvision, or (image, labels):

    >>> image, label = tsds.StoreDataset("photos.tsds", "train", return_as="tuple")[7]
    >>> image.shape, int(label)
    (torch.Size([3, 32, 32]), 1)

    A data set pickles as its arguments, so each process that uses it maps the files itself.

    Args:
        path: path of the store, its URL, or an open `Store`. From an open store, the data set keeps the path or URL and
            the arguments of `open`. With ``tsds.open(path, sha256=...)``, every process opens this store or raises
            `FormatError`.
        split: name of the split, such as ``train``.
        fields: names of the fields to load. None loads all fields except `size`, `key`, and fields of kinds that this
            version does not know. With ``return_as="tuple"``, None loads the image and its label alone.
        transform: function that is called with every sample, in the thread or process that makes the sample. If it has
            a keyword `generator`, it gets a `torch.Generator` that depends only on (seed, epoch, row). Its random
            numbers do not depend on the number of threads or on the batch. Otherwise, all threads share torch's global
            generator.
        transform_of: argument of `transform`. ``sample`` is the whole sample, in the form of `return_as`. ``image`` is
            the image alone, as in torchvision's ImageFolder and in timm. With several views, it is each view in turn.
            Transforms of ``torchvision.transforms`` (not ``v2``), of torchvision's weights and of timm take images
            alone, and get them without this argument. If one of them needs a PIL image, such as ``ToTensor``, it gets
            PIL images.
        return_as: form of a sample. ``dict`` is a dict by field. ``tuple`` is (image, label) as in torchvision,
            whatever other fields the store contains: name those in `fields`, and they follow the image in this order.
            Without a label, it is (image, target) with objects, (image, mask) with a mask, and otherwise the image
            followed by all other fields. With objects and further fields, the target is a dict by field.
            ``torchvision`` is (image, target) as torchvision's detection models and references take it, with images as
            float32 in [0, 1] if there is no transform, `labels` from 1 (0 is the background), `area`, `iscrowd`, which
            is also 1 for objects that are `difficult`, keypoints as (M, K, 3) with x, y and 1 if known, oriented boxes
            in degrees, counterclockwise, and the row as `image_id` (in batches if `collate` is ``list``).
        as_pil: whether images are PIL images, for transforms that need them. See `transform_of`.
        zero_copy: whether single samples are views of the read-only map instead of copies. This is faster for large
            images, but dangerous, because torch does not support read-only memory. Writing to such a tensor crashes the
            process.
        decode: plan that crops and resizes images before they are decoded. It is a `RandomResizedCrop`, `RandomCrop`,
            `CenterCrop`, `Resize`, `Letterbox`, `Pad`, `RandomHorizontalFlip`, or a `Compose` of these. Only the part
            of an image that is needed is decoded. Boxes, keypoints and masks are transformed with it. Random steps
            depend on (their seed, epoch, row). With other loaders than this library's, and inside of another data set,
            such as torch's `ConcatDataset`, call `set_epoch`. A list of plans creates several views of each image, one
            for each plan. Samples then have ``image_0``, ``image_1`` and so on instead of ``image``, and tuples begin
            with them. Each file is read once. View 0 uses the random numbers of its plan alone. The other views also
            use their number, so that two equal plans differ. Objects and masks are placed in each view, as
            ``objects_0``, ``mask_0`` and so on.
        on_error: how to treat an image that cannot be decoded. ``raise`` raises a `SourceError` with the name of the
            sample. ``replace`` takes a random other sample, which depends on (seed, epoch, row), and counts it in
            `replaced`. If 64 such samples are also damaged, the error is raised.
        outlines: whether objects contain the values with which `draw_instance_masks` and `draw_class_masks` draw their
            polygons and RLE masks in pixels of the batch. These are `outline` (M, 2) int64, row and number of the
            object, and `frame` (M, 2, 2) float32, the corners of the stored image in pixels of the batch's image. They
            cannot be combined with a `transform`, which would not move them.

    Attributes:
        path: path of the store. For a store by URL, the URL as a string without user, password and query.
        chosen: whether `fields` were given.
    """

    #: Whether a sample is a row of the split, not a part of one.
    whole_images: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str] | Store,
        split: str = "train",
        *,
        fields: Sequence[str] | None = None,
        transform: Callable[..., Sample] | None = None,
        transform_of: TransformOf = "sample",
        return_as: ReturnAs = "dict",
        as_pil: bool = False,
        zero_copy: bool = False,
        decode: Decode | None = None,
        on_error: OnError = "raise",
        outlines: bool = False,
    ) -> None:
        if isinstance(path, Split):
            raise refusal("path", "a store, its path or its URL", f"a Split: use StoreDataset(store, {path.name!r})")
        self.path: Path | str
        self._origin: Origin | None = None
        self._sha256: str | None = None  # of the store that all processes open
        if isinstance(path, Store):
            self.path, self._origin = path.place, path.origin
            self._sha256 = path._meant if path.origin is None else path.sha256
        elif is_url(path):
            self._origin = Origin(os.fspath(path))
            self.path = words.shown_path(os.fspath(path))
        else:
            self.path = tidied(path)
        self.split_name = split
        self.outlines = False  # false until all checks have passed
        super().__init__(transform, transform_of, return_as, as_pil, decode, on_error)
        self.zero_copy = zero_copy
        self._replaced: list[int] = []
        self.rows: NDArray[np.int64] | None = None
        self._split: Split | None = None
        self._random: Collection[str] = ()
        self._images: ImageReader | None = None
        if isinstance(fields, str):
            raise refusal("fields", "a list of names", repr(fields))
        known, as_pair = self.split.fields, return_as == "tuple"
        self.chosen = fields is not None
        usual = [name for name in known if name not in ("size", "key", *of_kind(known, UnknownField))]
        self.fields = tuple(fields) if fields is not None else pair_of(known, usual) if as_pair else tuple(usual)
        unknown = [name for name in self.fields if name not in known]
        if unknown:
            raise unknown_name(f"split {split}", "field", unknown[0], known)
        for name in self.fields:
            if named(known, name, UnknownTableField):
                raise refusal("fields", "fields of kinds that this version knows", f"{name}: {known[name].describe()}")
        check_choice("return_as", return_as, get_args(ReturnAs))
        check_choice("transform_of", transform_of, get_args(TransformOf))
        if transform_of == "image" and "image" not in self.fields:
            raise refusal("transform_of=image", "a field image", ", ".join(self.fields))
        check_choice("on_error", on_error, get_args(OnError))
        if return_as == "torchvision":
            self._check_detection()
        if transform is not None or decode is not None or return_as != "dict":
            self._check_moved()
        self._check_plan()
        self.outlines = outlines
        self._check_transform()
        for note in self.split.notes(self.fields):
            warnings.warn(f"{self.store_name}: {note}", stacklevel=2)

    @property
    def schema(self) -> Mapping[str, Field]:
        """Fields of the split by name, including the views of its images."""
        return self._with_views(self.split.fields)

    @property
    def title(self) -> str:
        """Name of the store and of the split."""
        return f"{self.store_name}, {self.split_name}"

    @property
    def split(self) -> Split:
        """The split, which each process opens at first use."""
        if self._split is None:
            store = self._open_store()
            if self.split_name not in store and len(store) == 1:
                only = repr(next(iter(store)))
                expected = f"{store.name}: expected its only split {only}, found {self.split_name!r}"
                raise UnknownNameError(f"{expected}. Pass `split={only}`.")
            self._split, self._sha256 = store[self.split_name], store.sha256
            self._split._read_randomly(self._random)
        return self._split

    def _open_store(self) -> Store:
        """Open the store again, with the errors of `tensorstore_ds.open`."""
        if self._origin is None:
            try:
                return open_store(self.path, sha256=self._sha256)
            except OtherStoreError as error:
                if not hasattr(self, "fields"):  # it was never open
                    raise
                raise FormatError(replace(error.problems[0], reason="replaced"), AGAIN) from error
        where = self._origin
        return open_store(where.url, sha256=self._sha256, cache_dir=where.cache_dir, cache_limit=where.cache_limit)

    @functools.cached_property
    def store_name(self) -> str:  # each batch asks for it
        """The last part of the store's path or URL."""
        return PurePath(self.path).name

    @property
    def replaced(self) -> list[int]:
        """Rows of damaged images that this process has replaced, in no particular order."""
        return self._replaced

    @property
    def targets(self) -> list[int]:
        """Class index of every sample, as in torchvision's data sets, or -1 for a sample without a label.

        Raises:
            AttributeError: the split has no field of labels.
        """
        name = self.split.first(LabelField)
        if name is None:
            raise AttributeError(f"{self.title}: expected a field of labels, found none.")
        labels: list[int] = self.split.column(name).take(self._image_rows).tolist()
        return labels

    @property
    def image_sizes(self) -> NDArray[np.int32]:
        """(n, 2) int32, height and width of every sample's stored image."""
        return self.split.image_shapes[self._image_rows, :2]

    @property
    def _placed_sizes(self) -> NDArray[np.int32]:
        if self.decode is None or isinstance(self.decode, Sequence):
            return self.image_sizes
        rows = self._store_rows(np.arange(len(self)))
        return place_on(self.placed(rows), self.decode, rows, 0).size.astype(np.int32)

    def __len__(self) -> int:
        return len(self.split) if self.rows is None else len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample. Its tensors are copies, unless `zero_copy` is set."""
        if not self.zero_copy or self._places:
            return super().__getitem__(index)
        rows, draw = self._store_rows([self._index(index)]), getattr(index, "draw", (0, self.epoch))
        views = {name: view_field(self.split, name, int(rows[0])) for name in self.fields}
        batch = self._gather([name for name, view in views.items() if view is None], rows, self._pool, draw)
        sample = {name: batch.columns[name][0] if view is None else view for name, view in views.items()}
        row = int(batch.rows[0])
        return self.finish(sample, row, lambda: torch_seeds(*draw, row)[0])

    @property
    def _image_rows(self) -> NDArray[np.int64]:
        """Return `rows_of_images` of all samples, (n,)."""
        return self._rows_of_images(self._store_rows(np.arange(len(self))))

    def _rows_of_images(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the split with the images, labels and objects of samples, from the `rows` of a batch."""
        return rows

    @property
    def loaded(self) -> Sequence[Loaded]:
        """Rows and fields that are loaded."""
        return (Loaded(self.split, self.fields, None if self.rows is None else self._image_rows),)

    def _read_randomly(self, arrays: Sequence[Collection[str]]) -> None:
        """Advise random reads of arrays, also in processes that get a copy of this data set."""
        (self._random,) = arrays
        self.split._read_randomly(self._random)

    def _will_need(self, indices: ArrayLike, *, every: bool, fields: Sequence[str] | None = None) -> Asked:
        """Begin to read samples, by their indices, from a disk or by URL."""
        names, rows = self.fields if fields is None else fields, self._rows_of_images(self._store_rows(indices))
        self.split.fetch(names, rows)
        return self.split._will_need(names, rows, every=every)

    def placed(self, rows: NDArray[np.int64]) -> Placements:
        """Return the part of its image that each sample covers, before any plan."""
        return Placements.whole(self._reader.shapes[rows, :2])

    def _gather(self, names: Sequence[str], rows: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch:
        split = self.split
        split.fetch(names, self._rows_of_images(rows))
        placements, columns = list[Placements](), dict[str, Value]()
        if "image" in names:  # first, because replacements of damaged images change the rows
            if self._places or is_decoded(split.fields["image"]):
                rows, placements, images = self._decoded(rows, pool, draw)
                columns.update(zip(self.image_names, images, strict=True))
        elif not self.whole_images:
            placements = [self.placed(rows)]
        of_images, dropped = self._rows_of_images(rows), None
        moves = bool(placements) and self._places
        for name in names:
            if name == "image" and columns.keys() >= {*self.image_names}:
                continue
            field, views = split.fields[name], zip(self._columns_of([name]), placements, strict=False)
            if moves and field.moves and isinstance(column := split[name], Column):
                outside = field.unknown or 0
                columns |= {view: place_masks(column, of_images, outside, placed) for view, placed in views}
                continue
            columns[name] = value = gatherer_of(field).gather(split, name, of_images, pool)
            if isinstance(value, PackedObjects) and self.outlines:
                columns[name] = value = with_frames(value, of_images, split.image_shapes[of_images, :2])
            if moves and field.moves and isinstance(value, PackedObjects):
                pairs = self._flip_pairs(field)
                columns |= {view: place_objects(value, placed, pairs) for view, placed in views}
                if not isinstance(self.decode, tuple):
                    dropped = value.lengths - cast(PackedObjects, columns[name]).lengths
        return Batch({name: columns[name] for name in self._columns_of(names)}, rows, self, draw, dropped)

    @property
    def _places(self) -> bool:
        """Whether images are placed, with everything that has coordinates in them."""
        return self.decode is not None or not self.whole_images

    def _decoded(
        self, rows: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]
    ) -> tuple[NDArray[np.int64], list[Placements], list[Images]]:
        """Return the rows that were decoded, their placements and images for each plan of `decode`."""
        reader, plans = self._reader, plans_of(self.decode)
        has_one_size = self.split.has_one_size or not self.whole_images
        # A transform may bring whole images of several sizes or channels to one.
        stack = [fixes_size(plan, has_one_size) and not (self._by_sample and self.whole_images) for plan in plans]
        wanted, tried = rows, np.zeros(len(rows), np.int64)
        while True:
            of_images, parts = self._rows_of_images(rows), self.placed(rows)
            by = draws_of(rows) if isinstance(draw, EachDraw) else rows
            placements = [place_on(parts, plan, by, draw[1], view=view) for view, plan in enumerate(plans)]
            if all(stack) and all(only_moves(plan) for plan in plans):
                images = [move(self.split, of_images, each, pool) for each in placements]
                if all(isinstance(each, torch.Tensor) for each in images):
                    return rows, placements, [each for each in images if each is not None]
            try:
                return rows, placements, reader.images(of_images, placements, pool, stack=stack)
            except DamagedImageError as error:
                if self.on_error == "raise":
                    raise
                bad = error.place
                if tried[bad] == _MOST_REPLACED:
                    more = f"So are {_MOST_REPLACED} images that were drawn instead of {self.key(int(wanted[bad]))}."
                    raise SourceError(error.problems, f"{more} Is the store damaged, see `tsds verify`?") from error
                when_used(functools.partial(self._replaced.append, int(rows[bad])))
                tried[bad] += 1  # the random row depends on it: rows that follow from rows alone could form a cycle
                drawn_by = wanted[bad : bad + 1].view(np.uint64)
                other = fold(*draw, drawn_by, int(tried[bad])) % np.uint64(len(self))
                rows = rows.copy()
                rows[bad] = self._store_rows(other.view(np.int64))[0]

    def _flip_pairs(self, field: Field) -> Sequence[tuple[int, int]]:
        """Return the pairs of keypoints that a mirroring plan swaps, its own or those of the store."""
        steps = [step for plan in plans_of(self.decode) if plan is not None for step in steps_of(plan)]
        given = (step.flip_pairs for step in steps if isinstance(step, RandomHorizontalFlip))
        return next((pairs for pairs in given if pairs is not None), getattr(field, "flip_pairs", ()))

    @property
    def _reader(self) -> ImageReader:
        if self._images is None:
            self._images = ImageReader(self.split)
        return self._images

    def with_decode(self, decode: Decode | None) -> Self:
        """Return the same data set with a different decode plan, or with a list of plans for several views."""
        changed = self._changed(decode=frozen(decode), _replaced=[])
        changed._check_plan()
        return changed

    def _check_plan(self) -> None:
        if self.decode is None:
            return
        steps = [step for plan in plans_of(self.decode) if plan is not None for step in steps_of(plan)]
        flips = [step for step in steps if isinstance(step, RandomHorizontalFlip)]
        if "image" not in self.fields:
            raise refusal("decode", "a field image", ", ".join(self.fields))
        if isinstance(self.decode, tuple):
            self._check_views()
        if flips and all(step.flip_pairs is None for step in flips):
            for field in of_kind(self._chosen, ObjectsField).values():
                stored_pairs(field, f"decode, split {self.split_name!r}")

    def _check_views(self) -> None:
        if not self.image_names or None in plans_of(self.decode):
            raise refusal("decode", "a plan for each view", list(plans_of(self.decode)))
        views = [view for name in self.fields for view in self._columns_of([name]) if view != name]
        if taken := [view for view in views if view in self.fields]:
            raise refusal("decode", f"no field {taken[0]}, which is a view: choose other `fields`", taken[0])
        self._check_moving_views()

    def _store_rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the rows of the split for the data set's `indices`, (n,) int64, which are checked."""
        numbers = checked_rows(indices, len(self), self.title)
        return numbers if self.rows is None else self.rows[numbers]

    def key(self, row: int) -> str:
        """Return the name of the sample in a row of the split, as `Split.key`."""
        return self.split.key(row)

    def subset(self, rows: ArrayLike) -> Self:
        """Return a data set of some samples, by their indices in this one, in this order.

        Args:
            rows: (m,) integers, which are copied, or a mask (n,) bool.

        Raises:
            IndexError: an index is out of range, or a mask has another length.
        """
        chosen = np.array(rows)
        if chosen.dtype == np.bool_:
            if chosen.shape != (len(self),):
                raise IndexError(f"subset: expected a mask of shape ({len(self)},), found {chosen.shape}")
            chosen = np.flatnonzero(chosen)
        if chosen.size and (int(chosen.min()) < 0 or int(chosen.max()) >= len(self)):
            raise IndexError(f"subset: expected rows in [0, {len(self)}), found {int(chosen.min())} to {chosen.max()}")
        return self._changed(rows=self._store_rows(chosen))

    def filter(self, predicate: Callable[..., ArrayLike], *names: str) -> Self:
        """Return a data set of the samples that `predicate` selects.

        For example, ``filter(lambda label: label == 3, "label")`` selects class 3.

        Args:
            predicate: function that is called once. Its arguments are the fields `names` of all samples, each as an
                array (n, ...) or a `Ragged`. It returns (n,) bool.
            names: names of fields.

        Raises:
            ValueError: the predicate returns something else.
        """
        if not callable(predicate):
            expected = 'a function and its fields, such as filter(lambda label: label == 3, "label")'
            raise refusal("predicate", expected, repr(predicate))
        rows = self._image_rows
        mask = np.asarray(predicate(*(self.split[name].take(rows) for name in names)))
        if mask.shape != rows.shape or mask.dtype != np.bool_:
            raise ValueError(f"filter: expected ({len(rows)},) bool, found {mask.shape} {mask.dtype}.")
        return self.subset(mask)

    def _check_transform(self) -> None:
        super()._check_transform()
        if not self.outlines:
            return
        objects = next(iter(of_kind(self._chosen, ObjectsField).values()), None)
        if "image" not in self.fields or objects is None or not set(objects.values) & {*LISTS}:
            raise refusal("outlines", "images, and objects with polygons or rle", ", ".join(self.fields))
        if taken := objects.values.keys() & {OUTLINE, FRAME}:
            raise refusal("outlines", f"objects without values of the names {OUTLINE} and {FRAME}", *taken)
        if self._by_sample:
            raise refusal("outlines", "no `transform` of samples and no `as_pil`", "one")

    def _changed(self, **changes: Any) -> Self:
        changed = super()._changed(**changes)
        if self._split is not None:  # the store need not be read again
            changed._split = Split(self._split._files, self._split.name)
        return changed

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_split": None, "_images": None}

    def __repr__(self) -> str:
        return f"<StoreDataset {str(self.path)!r} {self.split_name!r}, {len(self)} samples of {', '.join(self.fields)}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: fields and classes of the split, and a sheet of the data set's samples."""
        from tensorstore_ds.reading.notebook import as_html

        chosen = np.unique(np.linspace(0, max(0, len(self) - 1), 12).astype(np.int64))[: len(self)]
        rows = None if self.rows is None else self._rows_of_images(self._store_rows(chosen)).tolist()
        title = f"StoreDataset {self.store_name}, {self.split_name}, {len(self):,} samples"
        return as_html(title, self.split._facts(self.fields), self.split, rows)
