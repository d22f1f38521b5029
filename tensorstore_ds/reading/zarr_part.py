"""One shard's array on this disk: mapped, or found through its index and decompressed within limits of memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.format.arrays import ArrayGeometry, decode_index
from tensorstore_ds.format.chunks import decompress_chunk
from tensorstore_ds.machine import check_fits
from tensorstore_ds.reading.mapping import ask, map_array
from tensorstore_ds.reading.store_files import size_of, start_of


class ZarrPart:
    """One shard's array in the layout `zarr`. Its file is opened for each access, because a store can have many.

    `entries` is (chunks, 2), offset and size of every chunk in the file. `open_file` opens the data file of the opened
    store only. Raises `FormatError` if the index is damaged or points outside the file (`shard-index`). Reading raises
    it for a chunk that is not exactly one Zstandard frame of its size (`checksum`) or needs too much memory
    (`too-large`).
    """

    def __init__(self, name: str, geometry: ArrayGeometry, open_file: Callable[[], IO[bytes]]) -> None:
        self._name = name
        self._geometry = geometry
        self._open = open_file
        with open_file() as file:
            self.entries = read_index(file, name, geometry)

    def _will_need(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> tuple[int, int]:
        """Ask the system to read the chunks with these rows [start, stop); returns as `mapping.will_need`."""
        marks = np.zeros(len(self.entries) + 1, np.int64)
        np.add.at(marks, starts // self._geometry.chunk_rows, 1)
        np.add.at(marks, -(-stops // self._geometry.chunk_rows), -1)
        offsets, nbytes = self.entries[np.flatnonzero(marks.cumsum() > 0)].astype(np.int64).T
        order = np.argsort(offsets)
        with self._open() as file:
            begins, fileno = offsets[order] + start_of(file), file.fileno()

            def call(position: int, nbytes: int) -> None:
                if hasattr(os, "posix_fadvise"):
                    with contextlib.suppress(OSError):  # it is advice alone
                        os.posix_fadvise(fileno, position, nbytes, os.POSIX_FADV_WILLNEED)

            return ask(begins, begins + nbytes[order], call)

    def __getitem__(self, item: int | slice) -> Any:
        """A row in [0, rows), or rows of a slice without step; read-only, like a memory map."""
        if not isinstance(item, slice):
            chunk, row = divmod(item, self._geometry.chunk_rows)
            with self._open() as file:
                value = np.array(self.chunk(file, chunk)[row])
        else:
            start, stop, _ = item.indices(self._geometry.rows)
            value = self._rows(start, max(start, stop))
        value.flags.writeable = False
        return value if isinstance(item, slice) or value.ndim else value[()]

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy rows, (n,) in [0, rows), into `out`; each chunk is read once."""
        owners = rows // self._geometry.chunk_rows
        order = np.argsort(owners, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(owners[order])) + 1)
        with self._open() as file:
            for group in groups:
                chunk = self.chunk(file, int(owners[group[0]]))
                out[group] = chunk[rows[group] % self._geometry.chunk_rows]

    def chunk(self, file: IO[bytes], index: int) -> NDArray[Any]:
        """(chunk_rows, ...) of one chunk of the open data file; the last one includes its padding."""
        geometry = self._geometry
        check_fits(self._name, geometry.chunk_nbytes)
        offset, nbytes = self.entries[index].tolist()
        file.seek(offset)
        out = np.empty((geometry.chunk_rows, *geometry.spec.shape), geometry.spec.dtype)
        try:
            decompress_chunk(file.read(nbytes), out.reshape(-1).view(np.uint8))
        except ValueError as error:
            problem = Problem(self._name, "checksum", f"chunk {index} cannot be unpacked: {error}.")
            raise FormatError(problem, "Copy the store again.") from error
        return out

    def _rows(self, start: int, stop: int) -> NDArray[Any]:
        geometry = self._geometry
        check_fits(self._name, (stop - start) * geometry.spec.row_nbytes)
        out = np.empty((stop - start, *geometry.spec.shape), geometry.spec.dtype)
        first, last = start // geometry.chunk_rows, -(-stop // geometry.chunk_rows)
        with self._open() as file:
            for i in range(first, last if stop > start else first):
                begin = i * geometry.chunk_rows
                piece = self.chunk(file, i)[max(start - begin, 0) : stop - begin]
                out[max(begin - start, 0) :][: len(piece)] = piece
        return out


LocalPart = NDArray[Any] | ZarrPart


def open_part(name: str, geometry: ArrayGeometry, open_file: Callable[[], IO[bytes]]) -> LocalPart:
    """One shard's array, which has rows, from its open data file; raises as `ZarrPart`."""
    if geometry.layout == "zarr":
        return ZarrPart(name, geometry, open_file)
    with open_file() as file:
        return map_array(file, geometry.spec.dtype, geometry.shape, start_of(file))


def read_edges(file: IO[bytes], name: str, geometry: ArrayGeometry) -> NDArray[np.int64]:
    """(chunks + 1,) where each chunk of an open data file begins, and the end; raises as `read_index`, and for gaps."""
    offsets, lengths = read_index(file, name, geometry).astype(np.int64).T
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if (edges[:-1] != offsets).any() or edges[-1] != size_of(file) - geometry.tail_nbytes:
        message = "expected chunks back to back from byte 0 to their checksums, found others."
        raise FormatError(Problem(name, "shard-index", message))
    return edges


def read_index(file: IO[bytes], name: str, geometry: ArrayGeometry) -> NDArray[np.uint64]:
    """(chunks, 2) offset and size of every chunk of an open data file; raises `FormatError` (`shard-index`)."""
    size = size_of(file)
    end = size - geometry.tail_nbytes
    least, most = geometry.stored_nbytes
    check_fits(name, geometry.index_nbytes)
    if end < 0:
        message = f"expected checksums and an index of {geometry.tail_nbytes} bytes, found a file of {size}."
        raise FormatError(Problem(name, "shard-index", message))
    file.seek(size - geometry.index_nbytes)
    entries = decode_index(file.read(geometry.index_nbytes))
    if entries is None:
        raise FormatError(Problem(name, "shard-index", "the index does not agree with its checksum."))
    offsets, lengths = entries.T
    if (lengths < least).any() or (lengths > min(most, end)).any() or (offsets > end - lengths).any():
        message = f"expected chunks of {least} to {most} bytes inside of {end}, found another."
        raise FormatError(Problem(name, "shard-index", message))
    return entries
