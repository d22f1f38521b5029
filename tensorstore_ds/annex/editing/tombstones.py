"""What was erased from a store, as keyed hashes that name no sample: ``provenance["erased"]``, formats/v1/spec.md 4.6.

Each erased sample has two hashes of 12 bytes: one of its key, and one of its stored image, by which a renamed copy is
recognized. They are BLAKE2b with a salt of the store. A fast hash is chosen on purpose: `append` computes both for each
new sample, in 3 us for a key and 2 us for each kB of an image. So with the store you can test whether a key that you
guess was erased.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ImageField, KeyField
from tensorstore_ds.format.kinds.base import first_of_kind
from tensorstore_ds.reading.store import Store

#: The member of the provenance.
ERASED = "erased"
_NBYTES = 12  # of a hash: of 10^6 erased and 10^9 other samples, two are equal once in 10^13 cases
_PAIR = 2 * _NBYTES
_MOST = 1_000_000  # in a store: 32 MB of its root

Pair = tuple[bytes, bytes]


@dataclass
class _Group:
    """The tombstones with one salt. A store has its own salt, and after a merge also the salts of other stores."""

    salt: bytes
    pairs: list[Pair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.put(self.pairs)

    def put(self, pairs: Iterable[Pair]) -> None:
        """Replace the pairs; of equal ones, the first is kept."""
        self.pairs = [*dict.fromkeys(pairs)]
        self.keys = {key for key, _ in self.pairs}
        self.images = {image for _, image in self.pairs}

    def dump(self) -> dict[str, str]:
        """The JSON form for the provenance."""
        return {"salt": self.salt.hex(), "samples": base64.b64encode(b"".join(map(b"".join, self.pairs))).decode()}


class Tombstones:
    """Tombstones of one or more stores; entries of `provenances` that are not tombstones are ignored."""

    def __init__(self, *provenances: Mapping[str, Any]) -> None:
        groups: dict[bytes, dict[Pair, None]] = {}
        for provenance in provenances:
            found = provenance.get(ERASED)
            for each in found if isinstance(found, list) else ():
                salt, pairs = _parsed(each)
                groups.setdefault(salt, {}).update(dict.fromkeys(pairs))
        self._groups = [_Group(salt, list(pairs)) for salt, pairs in groups.items() if pairs]

    def __len__(self) -> int:
        return sum(len(group.pairs) for group in self._groups)

    def of(self, pairs: Sequence[Pair]) -> Tombstones:
        """Tombstones of some samples with the salts of these."""
        made = Tombstones()
        made._groups = [_Group(group.salt, [*pairs]) for group in self._groups]
        return made

    def without(self, other: Tombstones) -> Tombstones:
        """Copy without the tombstones of another store."""
        theirs = {group.salt: {*group.pairs} for group in other._groups}
        made = Tombstones()
        for group in self._groups:
            left = [pair for pair in group.pairs if pair not in theirs.get(group.salt, ())]
            made._groups += [_Group(group.salt, left)] * bool(left)
        return made

    def has(self, pair: Pair) -> bool:
        """Whether there is a tombstone of the sample, whatever remains of its image."""
        return any(pair[0] in group.keys for group in self._groups)

    def has_key(self, key: str) -> bool:
        """Whether a sample of this key was erased."""
        return any(_hashed(group.salt, _KEY, key_bytes(key)) in group.keys for group in self._groups)

    def has_image(self, store: Store, split: str, row: int) -> bool:
        """Whether a sample with the stored image of this row was erased."""
        if not self._groups or (image := image_bytes(store, split, row)) is None:
            return False
        return any(_hashed(group.salt, _IMAGE, image) in group.images for group in self._groups)

    def rows_of(self, store: Store) -> Iterator[tuple[str, int]]:
        """Split and row of each sample with an erased key or image."""
        has_keys = first_of_kind(store.manifest.fields, KeyField) is not None
        for name in store if len(self) else ():
            for row in range(len(store[name])):
                if (has_keys and self.has_key(store[name].key(row))) or self.has_image(store, name, row):
                    yield name, row

    def add(self, store: Store, rows: Iterable[tuple[str, int]]) -> list[Pair]:
        """Add the samples of these rows at the end, and return their hashes without repeats.

        The salt follows from the state of the store at its first erasure, so that the same commands make the same
        bytes. The salts of two stores differ. Raises `OptionError` if there are too many.
        """
        if not self._groups:
            salt = hashlib.blake2b(store.sha256.encode(), digest_size=16, person=b"tsds salt").digest()
            self._groups.append(_Group(salt))
        group = self._groups[0]
        added = {_pair(group.salt, key, image): None for key, image in _keys_and_images(store, rows)}
        group.put([*(pair for pair in group.pairs if pair not in added), *added])
        if len(self) > _MOST:
            message = f"expected at most {_MOST:,} erased samples in the tombstones of a store, found more."
            raise OptionError(f"{store.path}: {message} Pass `tombstones=False`.")
        return [*added]

    def last(self, count: int) -> list[Pair]:
        """The most recently added tombstones."""
        return self._groups[0].pairs[-count:] if self._groups and count else []

    def remove(self, store: Store, rows: Iterable[tuple[str, int]]) -> None:
        """Remove the samples of these rows, which will be stored again.

        A different sample with the same image stays erased under its key. Its image no longer counts.
        """
        again = [(group, set[bytes](), set[bytes]()) for group in self._groups]
        for key, image in _keys_and_images(store, rows):
            for group, keys, images in again:
                keyed, pictured = _pair(group.salt, key, image)
                keys |= {keyed} & group.keys
                images |= {pictured} & group.images
        for group, keys, images in again:
            left = (pair for pair in group.pairs if pair[0] not in keys)
            group.put((key, _hashed(group.salt, _NOTHING, key) if image in images else image) for key, image in left)

    def noted(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """A provenance in which these tombstones replace the old ones."""
        groups = [group.dump() for group in self._groups if group.pairs]
        others = {name: value for name, value in provenance.items() if name != ERASED}
        return {**others, ERASED: groups} if groups else others


_KEY, _IMAGE, _NOTHING = b"tsds key", b"tsds image", b"tsds nothing"


def _hashed(salt: bytes, kind: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_NBYTES, key=salt, person=kind).digest()


def _pair(salt: bytes, key: bytes | None, image: bytes | None) -> Pair:
    """Hashes of a sample. A missing key or image gets a unique hash."""
    keyed = _hashed(salt, _NOTHING, image or b"") if key is None else _hashed(salt, _KEY, key)
    return keyed, _hashed(salt, _NOTHING, keyed) if image is None else _hashed(salt, _IMAGE, image)


def _keys_and_images(store: Store, rows: Iterable[tuple[str, int]]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and stored image of each row; None where the store has none."""
    has_keys = first_of_kind(store.manifest.fields, KeyField) is not None
    for split, row in rows:
        yield key_bytes(store[split].key(row)) if has_keys else None, image_bytes(store, split, row)


def key_bytes(key: str) -> bytes:
    """Bytes of a key, even if it is not valid UTF-8."""
    return key.encode("utf-8", "surrogatepass")


def image_bytes(store: Store, split: str, row: int) -> bytes | None:
    """The stored image of a row, with its size and type if it is pixels; None in a store without images."""
    name = first_of_kind(store.manifest.fields, ImageField)
    if name is None:
        return None
    stored = store[split][name][row]
    if isinstance(stored, bytes):
        return stored
    pixels = np.ascontiguousarray(stored)
    return f"{pixels.dtype.str} {pixels.shape} ".encode() + pixels.tobytes()


def _parsed(group: object) -> tuple[bytes, Sequence[Pair]]:
    """Salt and pairs of a group; empty if it is malformed."""
    if not isinstance(group, Mapping):
        return b"", ()
    try:
        salt, data = bytes.fromhex(group["salt"]), base64.b64decode(group["samples"], validate=True)
    except (KeyError, TypeError, ValueError):  # binascii's error is one, too
        return b"", ()
    if not 1 <= len(salt) <= 64 or len(data) % _PAIR:
        return b"", ()
    starts = range(0, len(data), _PAIR)
    return salt, [(data[i : i + _NBYTES], data[i + _NBYTES : i + _PAIR]) for i in starts]
