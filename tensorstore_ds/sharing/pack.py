"""Pack a store into one file, and unpack it: a ZIP file whose members are mapped in place.

``formats/v1/spec.md`` section 12 describes it. The same store always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tensorstore_ds.conversion.partial import Partial, check_new
from tensorstore_ds.durable import check_room, partial_of, replacing, sync, writing
from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.manifest import File
from tensorstore_ds.format.root import parse_root
from tensorstore_ds.format.schema import SIGNATURE
from tensorstore_ds.machine import check_resource
from tensorstore_ds.progress import adding, notebook_bytes
from tensorstore_ds.reading.packed_files import ALIGNMENT, DIRECTORY_MAX_NBYTES, PackedFiles, find_files
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES, StoreFiles
from tensorstore_ds.reading.verification import listed_files
from tensorstore_ds.regular_files import tidied

Progress = Callable[[int, int], None]

#: The extra field that Android's zipalign writes, too: the multiple (uint16), and zeros up to it.
_ALIGNED = 0xD935
#: Members of this size and more have their sizes in 8 bytes; smaller ones never need them.
_ZIP64_NBYTES = 1024**3
_HEADER_NBYTES, _ZIP64_EXTRA_NBYTES = 30, 20
#: Of an entry in the list of members, besides the name: with sizes and place in 8 bytes each.
_ENTRY_NBYTES = 46 + 28
_OLDEST = (1980, 1, 1, 0, 0, 0)  # the first date that a ZIP file can hold
_READ_NBYTES = 8 * 1024**2


def pack(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Store:
    """Pack a store into one uncompressed ZIP file, which `open` and all other readers accept instead of a folder.

    >>> packed = tsds.pack("photos.tsds", "photos.tsds.zip")
    >>> packed.sha256 == tsds.open("photos.tsds").sha256
    True
    >>> tsds.open("photos.tsds.zip")["train"]["image"].shape
    (8, 32, 32, 3)

    Every file begins at a multiple of 4096 bytes, so that arrays are mapped without unpacking. Every file is compared
    with its SHA-256 while it is copied. The same store always gives the same bytes.

    Args:
        store: path of the store, which is not changed.
        out: path of the file, which must not exist. By convention, it ends with ``.tsds.zip``.
        sha256: the expected `Store.sha256`. None accepts any store.
        progress: function that is called with (bytes done, bytes in total). None shows a bar in a notebook.

    Returns:
        The packed store, opened.

    Raises:
        FormatError: the store is damaged, or has a different digest. `out` is removed.
        StoreExistsError: `out` exists.
        OptionError: the folder of `out` does not exist.
        OutputError: `out` cannot be written, for example because the disk is full.
    """
    files, target = find_files(tidied(store), sha256), tidied(out)
    listed = _whole(files)
    check_new(target)
    entries = sum(_ENTRY_NBYTES + len(name) for name in (*listed, "zarr.json"))
    if entries > DIRECTORY_MAX_NBYTES:
        message = f"expected a list of files of at most {DIRECTORY_MAX_NBYTES:,} bytes, found {entries:,}."
        raise OptionError(f"{files.path}: {message} Convert with a larger `shard_nbytes`, and pack that store.")
    total = sum(file.size for file in listed.values()) + files.size("zarr.json")
    check_room(target, total + entries + (len(listed) + 2) * 2 * ALIGNMENT)
    advance = adding(total, progress or notebook_bytes("Packing"))
    with replacing(target) as file, zipfile.ZipFile(file, "w") as archive:
        for name in sorted(listed):
            with _member(archive, name, listed[name].size) as member:
                _copy(files, name, listed[name], member, advance)
        root = _root(files)
        with _member(archive, "zarr.json", len(root)) as member:
            member.write(root)
        for info in archive.infolist():
            info.extra = b""  # it moves the bytes that follow it, and is of no use in the list of members
    advance(len(root))
    return open_store(target, sha256=files.sha256)


def unpack(
    packed: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Store:
    """Unpack a file written by `pack` into the folder of a store.

    >>> _ = tsds.pack("photos.tsds", "photos.tsds.zip")
    >>> store = tsds.unpack("photos.tsds.zip", "again.tsds")
    >>> store.sha256 == tsds.open("photos.tsds").sha256
    True

    Every file is compared with its SHA-256 while it is copied. `out` appears in one step, when it is complete.

    Args:
        packed: path of the file, which is not changed.
        out: path of the new store, which must not exist. It is written to ``OUT.partial`` first.
        sha256: the expected `Store.sha256`. None accepts any store.
        progress: function that is called with (bytes done, bytes in total). None shows a bar in a notebook.

    Returns:
        The store, opened.

    Raises:
        FormatError: the packed store is damaged, has a different digest, or contains files that do not belong to it.
        StoreExistsError: `out` exists.
        OptionError: `packed` is not a file, the folder of `out` does not exist, or ``OUT.partial`` contains something
            else.
        OutputError: `out` cannot be written, for example because the disk is full.
        ConversionError: a different process is writing to `out`, or `out` is complete but its folder could not be
            synced.
    """
    files, target = find_files(tidied(packed), sha256), tidied(out)
    if not isinstance(files, PackedFiles):
        raise OptionError(f"{files.path}: expected a packed store, found a folder. It can be used as it is.")
    listed = _whole(files)
    work = Partial(partial_of(target), "copy")
    check_new(target, work)
    total = sum(file.size for file in listed.values()) + files.size("zarr.json")
    check_room(target, total + (len(listed) + 1) * ALIGNMENT)
    advance = adding(total, progress or notebook_bytes("Unpacking"))
    with writing(target), work:
        partial = work.new_store()
        for name in sorted(listed):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            with open(partial / name, "xb") as file:
                _copy(files, name, listed[name], file, advance)
            sync(partial / name)
        root = _root(files)
        (partial / "zarr.json").write_bytes(root)
        sync(partial / "zarr.json")
        for below, _, _ in os.walk(partial):
            sync(Path(below))
        work.put_store(target)
    advance(len(root))
    return open_store(target, sha256=files.sha256)


def _whole(files: StoreFiles) -> Mapping[str, File]:
    """Every file but the root's ``zarr.json``; raises `FormatError` for missing and extra files and wrong sizes."""
    listed, problems = listed_files(files)
    if problems:
        raise FormatError(problems, f"Check the store with: tsds verify {shlex.quote(str(files.path))}")
    if SIGNATURE in files.names():
        with files.open(SIGNATURE) as file:
            data = file.read()
        return {**listed, SIGNATURE: File(len(data), hashlib.sha256(data).hexdigest())}
    return listed


def _root(files: StoreFiles) -> bytes:
    """The root's ``zarr.json``, which must have the requested digest."""
    with files.open("zarr.json") as file:
        data = file.read(MANIFEST_MAX_NBYTES + 1)
    if parse_root(data)[1] != files.sha256:
        raise FormatError(Problem("zarr.json", "checksum", "this file changed while the store was copied."))
    return data


@contextmanager
def _member(archive: zipfile.ZipFile, name: str, size: int) -> Iterator[IO[bytes]]:
    """Open a new member whose bytes begin at a multiple of `ALIGNMENT`."""
    is_large = size >= _ZIP64_NBYTES
    header = _HEADER_NBYTES + len(name) + (_ZIP64_EXTRA_NBYTES if is_large else 0)
    extra = struct.Struct("<HHH")
    zeros = -(archive.start_dir + header + extra.size) % ALIGNMENT
    info = zipfile.ZipInfo(name, _OLDEST)
    info.create_system = 3  # whose mode this is, on every system alike
    info.external_attr = 0o100644 << 16
    info.file_size = size
    info.extra = extra.pack(_ALIGNED, 2 + zeros, ALIGNMENT) + bytes(zeros)
    with archive.open(info, "w", force_zip64=is_large) as member:
        yield member


def _copy(files: StoreFiles, name: str, listed: File, out: IO[bytes], advance: Callable[[int], None]) -> None:
    """Copy a file, and compare its bytes with their SHA-256."""
    hashed, left = hashlib.sha256(), listed.size
    with files.open(name) as file:
        while left:
            try:
                data = file.read(min(left, _READ_NBYTES))
            except OSError as error:
                check_resource(name, error)
                message = f"this file cannot be read ({error.strerror})."
                raise FormatError(Problem(name, "missing-file", message)) from error
            if not data:
                break
            hashed.update(data)
            out.write(data)
            left -= len(data)
            advance(len(data))
    found = hashed.hexdigest()
    if left or found != listed.sha256:
        message = f"expected SHA-256 {listed.sha256[:12]}..., found {found[:12]}...."
        raise FormatError(Problem(name, "checksum", message), "Copy the store again; a damaged one is not passed on.")
