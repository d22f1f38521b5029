"""Open a store, its splits and their columns. NumPy only.

Opening a store reads only its manifest. A column is mapped into memory when you access it. All processes share the maps
through the page cache.
"""

from __future__ import annotations

import functools
import operator
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import words
from tensorstore_ds.durable import own_nbytes
from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.format.arrays import ArrayGeometry
from tensorstore_ds.format.kinds import EncodedImageField, ImageField, KeyField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, TableField, first_of_kind, of_kind
from tensorstore_ds.format.manifest import File, Manifest
from tensorstore_ds.format.root import content_digest
from tensorstore_ds.format.schema import ArraySpec, Layout
from tensorstore_ds.format.statistics import absent_keypoints, parse_summary
from tensorstore_ds.options import shortened, unknown_name
from tensorstore_ds.reading.checks import Listings, check_data_files, check_metadata, check_root_files
from tensorstore_ds.reading.columns import Column, ColumnPiece, RaggedColumn, array_columns
from tensorstore_ds.reading.mapping import note_of_maps
from tensorstore_ds.reading.mirror import Mirror, open_url
from tensorstore_ds.reading.mirror_cache import Cache
from tensorstore_ds.reading.mirror_file import pool
from tensorstore_ds.reading.packed_files import find_files
from tensorstore_ds.reading.store_files import Origin, StoreFiles, damage, size_of
from tensorstore_ds.reading.zarr_part import open_part
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.remote.location import is_url

if TYPE_CHECKING:
    from zarr import Group

_KEYPOINT_ROWS = 8192  # objects whose keypoints are counted at a time
_CLASSES = 10  # that are counted one by one in notebooks


def open(
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_limit: int | None = None,
) -> Store:
    """Open the store at `path`.

    This reads the manifest, checks its digest, and compares the size of every data file with it. It reads no data.

    A store by URL is downloaded in chunks when you access them. Each chunk is checked and cached on this disk, so it is
    downloaded only once. Reading may raise `RemoteError` if the server fails, and `OutputError` if the disk is full.

    >>> store = tsds.open("photos.tsds")
    >>> list(store)
    ['train', 'val']
    >>> store["train"]["image"][[3, 1, 4]].shape  # rows, height, width, channels
    (3, 32, 32, 3)
    >>> sample = store["train"][0]
    >>> sample["image"].shape, sample["image"].dtype, sample["key"]
    ((32, 32, 3), dtype('uint8'), 'train/cat/0.png')

    Args:
        path: path of the store, which is a folder or a file written by `pack`, or its URL, with ``s3://``, ``gs://``,
            ``az://``, ``hf://``, ``https://`` or ``http://``.
        sha256: the expected `Store.sha256` or `Store.content_sha256`. None accepts any store.
        cache_dir: folder for stores by URL. None takes `$TSDS_CACHE_DIR`, or else the user's cache folder, such as
            ``~/.cache/tensorstore-ds``.
        cache_limit: largest number of bytes of all stores in that folder. If they take more when a store is opened, the
            least recently used stores are removed, except those that a process has open. None takes
            `$TSDS_CACHE_LIMIT`, or no limit.

    Raises:
        FormatError: the store is damaged, or its digest differs from `sha256`. The error lists every problem.
        RemoteError: the server cannot be reached and the store is not in the cache, or the server refuses access.
        OptionError: the URL cannot be used, or needs a package that is not installed.
        OutputError: `cache_dir` cannot be read or written.
    """
    if is_url(path):
        url = os.fspath(path)
        found = open_url(url, sha256, Cache(cache_dir, cache_limit))
        found.origin = Origin(url, cache_dir, cache_limit)
        problems = check_root_files(found.manifest)
        if problems:
            raise FormatError(problems)
        return Store(found)
    return _open_here(tidied(path), sha256)


def _open_here(path: Path, sha256: str | None, root: bytes = b"") -> Store:
    """Open a store on this disk; `root` as in `StoreFiles`."""
    files = find_files(path, sha256, root)
    files.meant = sha256
    problems = check_root_files(files.manifest) or check_data_files(files)
    if problems:
        raise damage(problems, f"Check the copy with: tsds verify {shlex.quote(str(path))}")
    return Store(files)


class Store:
    """An open store, a mapping from names to splits.

    >>> store = tsds.open("photos.tsds")
    >>> list(store), len(store["train"])
    (['train', 'val'], 8)
    >>> store["val"]
    <Split 'val', 4 rows of image, label, size, key>
    >>> store["train"]["image"].take([7, 3, 5]).shape
    (3, 32, 32, 3)
    >>> len(store.sha256), store.layout
    (64, 'memmap')

    A store pickles as its path and manifest. Unpickling opens it again in the same state, even if it has grown since.

    Attributes:
        path: absolute path of the store's folder, or of its packed file. For a store by URL, path of its copy in the
            cache, which you can open by path only when it is complete.
        place: path or URL by which the store was opened, without user, password and query.
        manifest: parsed metadata of the store.
        sha256: digest of the manifest, 64 hexadecimal digits. Two stores with the same digest contain the same bytes.
            `content_sha256` is the digest of the data without the metadata.
    """

    def __init__(self, files: StoreFiles) -> None:
        self.path = files.path
        self.place: str | Path = files.path if files.origin is None else words.shown_path(files.origin.url)
        self.manifest: Manifest = files.manifest
        self.sha256 = files.sha256
        self._meant = files.meant  #: the digest that was passed to `open`, or None if any store was accepted
        self.origin = files.origin  #: URL and cache of a store by URL, used to open it again
        self._files = files

    @property
    def name(self) -> str:
        """The last part of the store's path or URL."""
        return PurePosixPath(self.place).name if isinstance(self.place, str) else self.place.name

    def _check_rewritable(self) -> None:
        """Raise `FormatError` if this version cannot read a field, so that it cannot write the store's rows again."""
        problems = [
            Problem(
                name, "unreadable-field", f"{field.describe()}. Update it, or copy the other fields with tsds copy."
            )
            for name, field in self.manifest.unreadable.items()
        ]
        if problems:
            raise FormatError(problems)

    @functools.cached_property
    def content_sha256(self) -> str:
        """Digest of the store's data, 64 hexadecimal digits. Cite this one, because it stays the same after `annotate`.

        It covers the fields and the samples in their shards. It does not cover license, citation, provenance and
        statistics, so you can add a DOI to the store that the DOI cites.
        """
        return content_digest(self._files.root)

    def fetch(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Download all missing files of a store by URL. You can then open `path` like any other store.

        Args:
            progress: function that is called with (bytes done, total bytes).

        Raises:
            FormatError: a file is damaged on the server.
            RemoteError, OutputError: see `tensorstore_ds.open`.
        """
        if isinstance(self._files, Mirror):
            self._files.fetch_all(progress)

    @property
    def is_remote(self) -> bool:
        """Whether the store was opened by URL and is not completely cached, so that reading may download files."""
        return isinstance(self._files, Mirror) and not self._files.is_whole

    def open_file(self, name: str) -> IO[bytes]:
        """Open a file of the store by its path relative to the store. By URL, the whole file is downloaded first."""
        return self._files.open(name)

    def read_part(self, name: str, part: slice) -> bytes:
        """Read a slice without step of a file's bytes. By URL, only the chunks with these bytes are downloaded."""
        return self._files.read_part(name, part)

    def zarr(self) -> Group:
        """Open the store as a read-only group of zarr-python, for xarray, Dask, napari and other programs.

        This works for a folder, a packed store and a URL. A split is a group of shards, and a shard is a group of
        fields, such as ``train/00000/image``. `Split.shard_paths` lists the shards in row order. By URL, chunks are
        downloaded when they are read.

        zarr-python checks less than this library. It compares only the index of a file with its checksum, and does not
        compare metadata and offsets with the manifest. It may also allocate as much memory as a compressed chunk claims
        to need. Before you open a store from an unknown source this way, `verify` it.

        Raises:
            FormatError: a file is missing, or another store has replaced this one. Reading an array also raises it.
            RemoteError, OutputError: here, or when an array is read. See `tensorstore_ds.open`.

        Example:
        >>> store = tsds.open("photos.tsds")
        >>> store.zarr()["train/00000/image"].shape
        (8, 32, 32, 3)
        """
        from tensorstore_ds.reading.zarr_store import group_of  # here, because zarr takes a while to import

        return group_of(self.place, self.zarr, self._files)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.manifest.splits)

    @property
    def layout(self) -> Layout:
        """Layout of the arrays, ``memmap`` (uncompressed) or ``zarr`` (compressed)."""
        return self.manifest.layout

    @property
    def nbytes(self) -> int:
        """Size of all files except the metadata of the root, in bytes."""
        return self.manifest.nbytes

    @property
    def replaced(self) -> tuple[int, int]:
        """Number and bytes of the replaced shards that are still in the store's folder for open readers.

        Files that a replaced shard shares with a current shard do not count, because they take no extra space.
        """
        if not self.path.is_dir() or self.is_remote:
            return 0, 0
        folders = [self.path / folder for folder in self._files.replaced()]
        return len(folders), sum(map(own_nbytes, folders))

    def listing(self, split: str, shard: int) -> Mapping[str, File]:
        """Size and SHA-256 of the files of a shard, by path relative to it. Raises as `open` if the list is damaged."""
        return self._files.listing(split, shard)

    def __getitem__(self, split: str) -> Split:
        try:
            return self._splits[split]
        except (KeyError, TypeError):
            raise unknown_name(self.name, "split", split, self.splits) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    def __contains__(self, split: object) -> bool:
        return split in self.manifest.splits

    @functools.cached_property
    def _splits(self) -> dict[str, Split]:
        return {name: Split(self._files, name) for name in self.splits}

    def __reduce__(self) -> tuple[Callable[[], Store], tuple[()]]:
        origin = self._files.origin
        if origin is None:
            return functools.partial(_open_here, self.path, self.sha256, self._files.root), ()
        folder, limit = origin.cache_dir, origin.cache_limit
        return functools.partial(open, origin.url, sha256=self.sha256, cache_dir=folder, cache_limit=limit), ()

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {len(split)}" for name, split in self._splits.items())
        return f"<Store {str(self.place)!r}, {self.layout}, {splits}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the splits, and a contact sheet of the first split."""
        from tensorstore_ds.reading.notebook import as_html  # here, because most readers never need it

        facts = {f"split {name}": f"{len(split):,} samples" for name, split in self._splits.items()}
        first = next(iter(self._splits.values()), None)
        fields = first._facts(first.fields) if first is not None else {}
        title = f"Store {self.name}, {self.layout}, {words.size(self.nbytes)}"
        return as_html(title, {**facts, **fields}, first)


class Asked(NamedTuple):
    """Rows that the system was asked to read."""

    nbytes: int  #: bytes of the pages with them
    used: int  #: bytes of the rows
    requests: int  #: number of ranges of pages


class Split:
    """The samples of one split, as columns.

    A name selects a column, a number selects a sample, and a slice selects a list of samples:

    >>> split = tsds.open("photos.tsds")["train"]
    >>> split["image"]
    <Column 'train/image' (8, 32, 32, 3) uint8>
    >>> sample = split[0]
    >>> sample["key"], sample["image"].shape, int(sample["label"])
    ('train/cat/0.png', (32, 32, 3), 0)
    >>> len(split[2:5])
    3
    >>> split.fields["label"].classes
    ('cat', 'dog')
    >>> split.class_counts
    {'label': {'cat': 4, 'dog': 4}}

    Attributes:
        name: name of the split, such as ``train``.
        fields: kind, dtype and shape of every field that this version can read, by name. `Manifest.unreadable` lists
            the others.
        statistics: statistics in the manifest, by field. Use `statistics_of`, `class_counts` and `channel_moments` to
            read them.
    """

    def __init__(self, files: StoreFiles, name: str) -> None:
        manifest = files.manifest
        self.name = name
        self.fields: Mapping[str, Field] = manifest.fields
        self.statistics: Mapping[str, Any] = manifest.splits[name].statistics
        self._files = files
        self._shards = manifest.splits[name].shards
        self._listings = Listings(files, name)
        self._sizes: dict[int, Mapping[str, int]] = {}  # of the files of checked shards that may be compressed
        self._columns: dict[str, Column | RaggedColumn] = {}
        # Fields whose rows may have to be fetched. A cache with the root may have lost a file since.
        self._remote = set(self.fields) if isinstance(files, Mirror) else set[str]()
        self._shapes: NDArray[np.int32] | None = None

    @property
    def shard_paths(self) -> tuple[str, ...]:
        """Folders of the shards in row order, relative to the store, such as ``("train/00000", "train/00001")``.

        A column is the concatenation of a field's arrays in these folders along axis 0.
        """
        return tuple(self._files.manifest.shard_path(self.name, index) for index in range(len(self._shards)))

    @functools.cached_property
    def has_one_size(self) -> bool:
        """Whether all images have the same height and width as they are read. No image is decoded for this.

        Raises:
            KeyError: the split has no field `image`.
        """
        sizes = self.image_shapes[:, :2]
        return bool((sizes == sizes[:1]).all())

    @property
    def image_shapes(self) -> NDArray[np.int32]:
        """(n, 3) int32, height, width and channels of every image as it is read. Read-only.

        No image is decoded for this.

        Raises:
            KeyError: the split has no field `image`.
        """
        column = self["image"]
        if isinstance(column, Column):
            return np.broadcast_to(np.array(column.spec.shape, np.int32), (len(self), 3))
        if self._shapes is None:  # not a cached property, which Python 3.11 computes under a lock of all splits
            self._shapes = np.asarray(column.per_row["shape"])[:]
            self._shapes.flags.writeable = False
        return self._shapes

    @functools.cached_property
    def _channels(self) -> set[int]:
        """The numbers of channels of its images."""
        column = self["image"]
        return {column.spec.shape[2]} if isinstance(column, Column) else {*np.unique(self.image_shapes[:, 2]).tolist()}

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """(shards + 1,) int64, the first row of each shard, followed by the number of rows. Read-only."""
        starts = np.cumsum([0, *(shard.rows for shard in self._shards)])
        starts.flags.writeable = False
        return starts

    @overload
    def __getitem__(self, field: str) -> Column | RaggedColumn: ...
    @overload
    def __getitem__(self, field: int | np.integer[Any]) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, field: slice) -> list[dict[str, Any]]: ...
    def __getitem__(
        self, field: str | int | np.integer[Any] | slice
    ) -> Column | RaggedColumn | dict[str, Any] | list[dict[str, Any]]:
        """Return a field by name, a sample by number, or a list of samples by slice.

        A field is a `Column`, or a `RaggedColumn` if its length varies from sample to sample. Both have a length, rows
        by number or slice, and `take`. With `column` and `table`, a type checker knows which of them it is.

        A sample is a dict with the values of all fields, and images as arrays (H, W, C). A split is therefore a random
        access data source for Grain, JAX and plain loops.

        Raises:
            UnknownNameError: the split has no such field.
            FormatError: this version cannot read the field, or data are damaged.
            IndexError: the number is not in [-len, len).
            TypeError: `field` is not a name, a number or a slice.
        """
        if isinstance(field, str) and field in self._columns:
            return self._columns[field]
        if isinstance(field, int | np.integer):
            return self._sample(field)
        if isinstance(field, slice):
            rows = np.arange(len(self))[field]
            self.fetch(self.fields, rows)
            return [self._sample(row) for row in rows]
        if not isinstance(field, str):
            expected = f"the name of a field, a number or a slice, found {shortened(repr(field))}"
            raise TypeError(
                f"split {self.name}: expected {expected}. For some rows of a field: split[name].take(rows)."
            )
        if field in self._files.manifest.unreadable:
            message = f"{self._files.manifest.unreadable[field].describe()}. Update it, or read the other fields."
            raise FormatError(Problem(f"{self.name}/{field}", "unreadable-field", message))
        if field not in self.fields:
            raise unknown_name(f"split {self.name}", "field", field, self.fields)
        column = self._columns[field] = self._column(field)
        return column

    @property
    def is_remote(self) -> bool:
        """Whether the store was opened by URL and is not completely cached, so that reading may download files."""
        return isinstance(self._files, Mirror) and not self._files.is_whole

    @property
    def store(self) -> Store:
        """The store of this split."""
        return Store(self._files)

    def _read_randomly(self, arrays: Iterable[str]) -> None:
        """Tell the system that some arrays, by their paths in a shard, are read in random order."""
        for path in arrays:
            name = path.split("/")[0]
            array_columns(name, self[name])[path]._read_randomly()

    def _will_need(self, fields: Iterable[str], rows: NDArray[np.int64], *, every: bool = False) -> Asked:
        """Ask the system to read some fields' randomly read arrays, or `every` one, of rows (n,) in [0, len)."""
        asked = [0, 0, 0]
        for column, starts, stops in (each for name in fields for each in self[name]._ranges(rows)):
            some = starts < stops
            if every or column.is_random:
                nbytes, requests = column._will_need(starts[some], stops[some])
                used = int((stops - starts).sum()) * column.spec.row_nbytes
                asked = [a + b for a, b in zip(asked, (nbytes, used, requests), strict=True)]
        return Asked(*asked)

    def notes(self, fields: Iterable[str]) -> list[str]:
        """What the user should know before reading these fields, such as more files than this process may map."""
        layouts = [
            spec.layout or self._files.manifest.layout for f in fields for spec in self.fields[f].arrays.values()
        ]
        is_packed = not self._files.path.is_dir()  # one file is one map
        return [] if is_packed else note_of_maps(self.name, layouts.count("memmap") * len(self._shards))

    def fetch(self, fields: Iterable[str], rows: NDArray[np.int64]) -> None:
        """Download some fields of these rows, (n,) in [0, len), together, if the store was opened by URL.

        Reading these rows one by one afterwards does not wait for the server. With other stores, this does nothing.

        Raises:
            FormatError, RemoteError, OutputError: see `tensorstore_ds.open`.
        """
        names = [name for name in fields if name in self._remote]
        if not names or not len(rows):
            return

        def fetch(name: str) -> None:
            is_remote = False
            for column, starts, stops in self[name]._ranges(rows):
                column.fetch(starts, stops)
                is_remote |= column._is_remote
            if not is_remote:
                self._remote.discard(name)

        _ = list(pool("fields").map(fetch, names))

    def _sample(self, row: int | np.integer[Any]) -> dict[str, Any]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"split {self.name!r}: sample {row} is outside of [0, {len(self)})")
        row = int(row) % len(self)
        self.fetch(self.fields, np.array([row]))
        sample = {name: self[name][row] for name in self.fields}
        for name in of_kind(self.fields, EncodedImageField):
            from tensorstore_ds.reading.stored_images import decode_stored  # here, because Pillow takes a while

            sample[name] = decode_stored(sample[name], key=self.key(row))
        return sample

    def column(self, field: str) -> Column:
        """Return a field of fixed shape, such as images stored as pixels. Raises `TypeError` for a table."""
        found = self[field]
        if not isinstance(found, Column):
            raise TypeError(f"split {self.name!r}: expected {field} to have a fixed shape, found a table: use table().")
        return found

    def table(self, field: str) -> RaggedColumn:
        """Return a field of varying length, such as objects or keys. Raises `TypeError` for a fixed shape."""
        found = self[field]
        if not isinstance(found, RaggedColumn):
            raise TypeError(f"split {self.name!r}: expected {field} to be a table, found a fixed shape: use column().")
        return found

    def statistics_of(self, field: str) -> dict[str, Any]:
        """Return the statistics of one field from the manifest, or an empty dict if none are stored.

        Entries whose type does not match the kind of the field are left out, because a manifest may contain anything.
        `formats/v1/spec.md` section 4.5 lists the entries of each kind.

        >>> tsds.open("photos.tsds")["train"].statistics_of("label")
        {'class_counts': [4, 4]}
        """
        kind = self.fields[field].kind if field in self.fields else ""
        found = parse_summary(kind, self.statistics.get(field), len(self))
        return {} if found is None else found.summary()

    @property
    def channel_moments(self) -> tuple[list[float], list[float], float] | None:
        """Mean and standard deviation of each channel, and the scale that values are divided by, or None.

        The result is None if the store contains no such statistics.

        The field is `image`, or the first field of images if none has this name.
        """
        images = of_kind(self.fields, ImageField)
        found = self.statistics_of("image" if "image" in images else next(iter(images), ""))
        return (found["mean"], found["std"], found["scale"]) if "mean" in found else None

    def first(self, kind: type[Field]) -> str | None:
        """Return the name of the first field of a kind, such as `KeyField`, or None if the split has no such field."""
        return first_of_kind(self.fields, kind)

    def key(self, row: int) -> str:
        """Return the name of a sample, as used in messages, tables and pictures.

        This is its key, or split and row if the store has no keys.

        Args:
            row: number of the row, in [0, len).

        Example:
        >>> tsds.open("photos.tsds")["train"].key(7)
        'train/dog/3.png'
        """
        keys = self._keys
        return f"{self.name}/{row:05d}" if keys is None else str(keys[row])

    @functools.cached_property
    def _keys(self) -> RaggedColumn | None:
        keys = self.first(KeyField)
        return None if keys is None else self.table(keys)

    @property
    def class_counts(self) -> dict[str, dict[str, int]]:
        """Number of samples, objects or mask pixels of each class, by field and class name.

        The conversion counted them, so no data is read. Fields without counts are left out.
        """
        counts = {name: self.statistics_of(name).get("class_counts", ()) for name in self.fields}
        return {
            name: dict(zip(field.classes, counts[name], strict=True))
            for name, field in self.fields.items()
            if field.classes and len(counts[name]) == len(field.classes)
        }

    @property
    def unlabelled(self) -> dict[str, int]:
        """Number of samples without a label, for each field of labels in `class_counts`. No data is read."""
        counts = {name: found for name, found in self.class_counts.items() if self.fields[name].kind == "label"}
        return {name: max(0, len(self) - sum(found.values())) for name, found in counts.items()}

    @property
    def absent_keypoints(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Number of objects in which each keypoint is absent, and number of objects, by field and keypoint name.

        Objects without any keypoint are not counted. This reads all keypoints. Fields without keypoints are left out.

        >>> names, pixels = tsds.Keypoints(("nose", "chin")), np.zeros((32, 32, 3), np.uint8)
        >>> with tsds.Writer("faces.tsds", keypoints=names) as writer:
        ...     writer.append("train", image=pixels, keypoints=[[[9.0, 9.0], [np.nan, np.nan]]])
        >>> tsds.open("faces.tsds")["train"].absent_keypoints["objects"]["chin"]
        (1, 1)
        """
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for name, field in of_kind(self.fields, ObjectsField).items():
            if "keypoints" in field.values:
                keypoints, counts = self.table(name)["keypoints"], np.zeros(len(field.keypoints) + 1, np.int64)
                for start in range(0, len(keypoints), _KEYPOINT_ROWS):
                    counts += absent_keypoints(keypoints[start : start + _KEYPOINT_ROWS])
                objects, *absent = counts.tolist()
                found[name] = {each: (n, objects) for each, n in zip(field.keypoints, absent, strict=True)}
        return found

    def __repr__(self) -> str:
        return f"<Split {self.name!r}, {len(self)} rows of {', '.join(self.fields)}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the fields, the classes, and a contact sheet."""
        from tensorstore_ds.reading.notebook import as_html

        return as_html(f"Split {self.name}, {len(self):,} samples", self._facts(self.fields), self)

    def _facts(self, fields: Iterable[str]) -> dict[str, str]:
        """Return the description of each field, by name, and the frequency of each class."""
        facts, counts = {name: self.fields[name].describe() for name in fields}, self.class_counts
        for name in [name for name in facts if name in counts]:
            most = sorted(counts[name].items(), key=lambda item: -item[1])
            rest = f" and {len(most) - _CLASSES:,} more" if len(most) > _CLASSES else ""
            unlabelled = self.unlabelled.get(name)
            rest += f"; {unlabelled:,} unlabelled" if unlabelled else ""
            facts[f"classes of {name}"] = ", ".join(f"{c} {n:,}" for c, n in most[:_CLASSES]) + rest
        return facts

    def __reduce__(self) -> tuple[Callable[[Store, str], Split], tuple[Store, str]]:
        return operator.getitem, (Store(self._files), self.name)

    def _column(self, name: str) -> Column | RaggedColumn:
        field = self.fields[name]
        columns = {}
        for path, spec in field.arrays.items():
            array = f"{name}/{path}" if path else name
            lengths = [field.array_rows(name, path, shard.rows, shard.lengths) for shard in self._shards]
            load, is_remote = (
                functools.partial(self._part, array, spec, lengths, set()),
                isinstance(self._files, Mirror),
            )
            columns[path] = Column(f"{self.name}/{array}", spec, lengths, load, is_remote=is_remote)
        return RaggedColumn.of(f"{self.name}/{name}", field, columns) if isinstance(field, TableField) else columns[""]

    def _part(self, path: str, spec: ArraySpec, lengths: Sequence[int], checked: set[int], index: int) -> ColumnPiece:
        """One shard's part of an array: mapped, or read through its index. Metadata of `checked` are not read."""
        files, manifest = self._files, self._files.manifest
        geometry = ArrayGeometry(spec, lengths[index], spec.layout or manifest.layout, manifest.chunk_size)
        if isinstance(files, Mirror):
            return files.part(self.name, index, path, geometry)
        if index not in self._sizes:
            sizes = self._listings.sizes(index)
            self._sizes[index] = sizes if self._is_compressed else {}  # else they follow from the manifest
        directory = f"{manifest.shard_path(self.name, index)}/{path}"
        if index not in checked:
            check_metadata(files, directory, geometry)
            checked.add(index)
        if not geometry.rows:
            return np.empty(geometry.shape, geometry.spec.dtype)
        name, data = f"{directory}/{geometry.data_path}", f"{path}/{geometry.data_path}"
        size = self._sizes[index][data] if geometry.layout == "zarr" else geometry.file_nbytes[0]
        return open_part(name, geometry, functools.partial(_open_data, files, name, size))

    @functools.cached_property
    def _is_compressed(self) -> bool:
        layouts = (
            spec.layout or self._files.manifest.layout for f in self.fields.values() for spec in f.arrays.values()
        )
        return "zarr" in layouts


def _open_data(files: StoreFiles, name: str, expected: int) -> IO[bytes]:
    """Open a data file that must have the listed size."""
    file = files.open(name)
    size = size_of(file)
    if size != expected:
        file.close()
        raise FormatError(Problem(name, "file-size", f"expected {expected} bytes, found {size}."))
    return file
