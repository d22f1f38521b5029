"""Doors to the opening of a store: its manifest, its other metadata, its data files, ``skipped.jsonl``."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import jsonschema
import numpy as np

import tensorstore_ds as tsds
from fuzz.door import Door, check_output, run_program
from fuzz.mutations import mutate_bytes, mutate_json
from small_stores import ROOT, VALID, relist
from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.arrays import CRC_NBYTES, encode_index
from tensorstore_ds.format.chunks import chunk_crcs
from tensorstore_ds.format.manifest import dump
from tensorstore_ds.format.manifest_parser import parse
from tensorstore_ds.reading.columns import RaggedColumn

_SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "formats/v1/manifest.schema.json").read_text("utf-8")))
_ZEROS = b"0" * 64
_DIGEST = re.compile(rb'(?<="tsds_sha256": ")[0-9a-f]{64}(?=")')
_ROWS = 100  # enough for the small stores; a damaged one may claim any number


def read_everything(root: Path) -> None:
    """Values of every column, through the functions that training calls."""
    store = tsds.open(root)
    for name in store:
        split = store[name]
        rows = np.arange(min(len(split), _ROWS))
        for field in split.fields:
            column = split[field]
            column.take(rows)
            if len(rows):
                column[int(rows[-1])]
            if not isinstance(column, RaggedColumn):
                column[:_ROWS]


def judge(root: Path) -> None:
    """`verify` names what is wrong, and what it finds good can be read."""
    problems = tsds.verify(root, threads=1)
    try:
        read_everything(root)
    except FormatError as error:
        if not problems:
            raise AssertionError("expected verify to find what reading refuses, found no problem") from error
        raise
    if problems:
        raise FormatError(problems)


class Manifest(Door):
    """The ``zarr.json`` of a store, with the right files beside it."""

    def __init__(self, folder: Path, store: str) -> None:
        super().__init__(folder, [(VALID / store / "zarr.json").read_bytes()])
        self._root = folder / "store.tsds"
        shutil.copytree(VALID / store, self._root)

    def mutate(self, random: Random, good: bytes) -> bytes:
        changed = mutate_json(random, good)
        return _DIGEST.sub(_ZEROS, changed) if random.random() < 0.8 else changed

    def enter(self, data: bytes) -> None:
        (self._root / "zarr.json").write_bytes(sealed(data))
        try:
            manifest = tsds.open(self._root).manifest
        except FormatError:
            if not tsds.verify(self._root, threads=1):
                raise AssertionError("expected verify to find what open refuses, found no problem") from None
            raise
        _SCHEMA.validate(json.loads((self._root / "zarr.json").read_bytes())["attributes"]["tsds"])
        if parse(dump(manifest)) != manifest:
            raise AssertionError("expected a manifest that is written as it was read")
        judge(self._root)
        for command in ("info", "stats"):
            check_output(run_program(command, str(self._root))[1])


class StoreFile(Door):
    """A file of a store; the manifest is made to list its size and its checksum, as one who forges a store would."""

    def __init__(self, folder: Path, store: str, path: str, mutate: Callable[[Random, bytes], bytes]) -> None:
        file = VALID / store / path
        super().__init__(folder, [file.read_bytes() if file.exists() else _SKIPPED])
        self._root = folder / "store.tsds"
        shutil.copytree(VALID / store, self._root)
        self._path = path
        self._mutate = mutate

    def mutate(self, random: Random, good: bytes) -> bytes:
        return self._mutate(random, good)

    def enter(self, data: bytes) -> None:
        (self._root / self._path).write_bytes(data)
        relist(self._root, self._path)
        if self._path == "skipped.jsonl":
            shutil.rmtree(self.folder / "repacked.tsds", ignore_errors=True)
            tsds.repack(self._root, self.folder / "repacked.tsds", layout="zarr")
        judge(self._root)


class Packed(Door):
    """A store in one file: its list of members, their headers, and its end."""

    def __init__(self, folder: Path, store: str) -> None:
        self._file = tsds.pack(VALID / store, folder / "packed.tsds.zip").path
        super().__init__(folder, [self._file.read_bytes()])
        with zipfile.ZipFile(self._file) as archive:
            self._places = [info.header_offset for info in archive.infolist()]
            self._list = archive.start_dir

    def mutate(self, random: Random, good: bytes) -> bytes:
        if random.random() < 0.5:
            return good[: self._list] + mutate_bytes(random, good[self._list :])
        place = random.choice(self._places)
        return good[:place] + mutate_bytes(random, good[place : place + 64]) + good[place + 64 :]

    def enter(self, data: bytes) -> None:
        self._file.write_bytes(data)
        out = self.folder / "out.tsds"
        shutil.rmtree(out, ignore_errors=True)
        judge(self._file)
        tsds.unpack(self._file, out)


_SKIPPED = (
    b'{"where": "train/a.png", "reason": "truncated-image", "message": "this image is damaged."}\n'
    b'{"where": "b.png", "reason": "box-range", "message": "expected x1 < x2, found 3 and 3."}\n'
)


def sealed(data: bytes) -> bytes:
    """A ``zarr.json`` with the digest of its bytes in the place of zeros, as one who forges a store would have it."""
    return data.replace(_ZEROS, hashlib.sha256(data).hexdigest().encode(), 1)


def mutate_lines(random: Random, data: bytes) -> bytes:
    """Lines of JSON, one of them changed."""
    lines = data.splitlines()
    at = random.randrange(len(lines))
    lines[at] = mutate_json(random, lines[at])
    return b"\n".join(lines)


def mutate_values(random: Random, data: bytes) -> bytes:
    """A data file of an uncompressed array, of the same length, with numbers replaced by extremes."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = 8 * random.randrange(max(1, len(changed) // 8))
        number = random.choice((0, -1, 1, 2, 7, 255, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63)))
        changed[at : at + 8] = number.to_bytes(8, "little", signed=True)[: len(changed) - at]
    return bytes(changed)


def mutate_shard(random: Random, data: bytes) -> bytes:
    """A data file of one chunk of a compressed array: chunk or index changed, often with right checksums."""
    way = random.random()
    if way < 0.2:
        return mutate_bytes(random, data)
    chunk, index = data[: -16 - 2 * CRC_NBYTES], data[-16 - CRC_NBYTES : -CRC_NBYTES]
    if way < 0.6:
        chunk = mutate_bytes(random, chunk, (b"\x28\xb5\x2f\xfd", b"\xff" * 8, b"\0\0\0\0"))
        return _with_crc(chunk) + encode_index(np.array([[0, len(chunk)]], np.uint64))
    entry = np.frombuffer(index, "<u8").copy()
    for _ in range(random.choice((1, 2))):
        near = (0, 1, len(data), len(chunk) - 1, len(chunk) + 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1)
        entry[random.randrange(2)] = random.choice(near)
    return _with_crc(chunk) + encode_index(entry.reshape(1, 2))


def _with_crc(chunk: bytes) -> bytes:
    return chunk + chunk_crcs(io.BytesIO(chunk), [len(chunk)])
