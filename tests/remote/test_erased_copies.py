"""Samples that were erased from a store are gone from refreshed copies, from its URL and from caches, byte by byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from remote.conftest import write_images
from remote.test_push_update import remote_bytes
from small_stores import tsds as command
from tensorstore_ds.format.history import states_before_erasure

KEY = "b/person.png"
#: Pixels that no other image has.
SECRET = np.random.default_rng(99).integers(0, 256, (24, 24, 3), np.uint8)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of several shards, one of which has the sample."""
    write_images(tmp_path / "images", 0, 40)
    Image.fromarray(SECRET).save(tmp_path / "images" / KEY)
    path = tmp_path / "s.tsds"
    tsds.convert(tmp_path / "images", path, encoding="raw", shard_nbytes=12 * 24**2 * 3, workers=0)
    return path


def files_with_sample(folder: Path) -> list[Path]:
    """Files with its pixels or its key."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and any(part in path.read_bytes() for part in (SECRET.tobytes(), KEY.encode())):
            found.append(path)
    return found


@pytest.mark.parametrize("is_open", [True, False])
def test_no_byte_is_left_in_copies_bucket_and_cache(store: Path, bucket: str, cache: Path, is_open: bool) -> None:
    url, root = f"{bucket}/s.tsds", store.parent
    (root / "copies").mkdir()
    tsds.push(store, url)
    tsds.pull(url, root / "copies" / "pulled.tsds")
    tsds.copy(store, root / "copies" / "copied.tsds")
    reader = tsds.open(url)
    images, (row,) = reader["train"]["image"], [i for i, key in enumerate(reader["train"]["key"][:]) if key == KEY]
    held = images[:]
    assert files_with_sample(root / "copies") and files_with_sample(cache)
    if not is_open:
        del reader, images

    tsds.erase(store, keys=[KEY], receipt=root / "receipt.json")
    assert [
        tsds.editing.check_receipt(root / "copies" / name, root / "receipt.json").state
        for name in ("pulled.tsds", "copied.tsds")
    ] == ["before"] * 2
    tsds.push(store, url, update=True)
    assert not any(SECRET.tobytes() in data or KEY.encode() in data for data in remote_bytes(url).values())
    for name, source in (("pulled.tsds", url), ("copied.tsds", store)):
        tsds.pull(source, root / "copies" / name, update=True)
        assert tsds.verify(root / "copies" / name) == []
        assert tsds.editing.check_receipt(root / "copies" / name, root / "receipt.json").is_erased
    assert files_with_sample(root / "copies") == []

    before = {p: p.stat().st_ino for p in cache.rglob("image/c/**/0") if p.is_file()}
    again = tsds.open(url)
    assert files_with_sample(cache) == []
    assert (held[row] == SECRET).all()  # what a program has in memory stays
    expected = tsds.open(store)["train"]["image"][:]
    assert [image.tobytes() for image in again["train"]["image"][:]] == [image.tobytes() for image in expected]
    inodes = {p.stat().st_ino for p in cache.rglob("image/c/**/0") if p.is_file() and again.sha256 in str(p)}
    assert len(inodes & {*before.values()}) >= 2  # shards that stay are not downloaded again
    assert files_with_sample(cache) == []


def test_other_stores_in_the_cache_stay(store: Path, bucket: str, cache: Path) -> None:
    """A store cannot claim the cached files of a different one as its earlier state."""
    tsds.push(store, f"{bucket}/mine.tsds")
    mine = tsds.open(f"{bucket}/mine.tsds")
    mine.fetch()
    copy = store.parent / "claims.tsds"
    tsds.copy(store, copy)
    tsds.erase(copy, keys=[KEY])
    assert states_before_erasure(tsds.open(copy).manifest.provenance) == {mine.sha256}
    tsds.push(copy, f"{bucket}/claims.tsds")
    tsds.open(f"{bucket}/claims.tsds")
    assert tsds.verify(mine.path) == [] and mine.path.is_relative_to(cache)


def test_receipts(store: Path) -> None:
    """Hashes are computed here, from the text of the specification."""
    receipt, root = store.parent / "receipt.json", store.parent
    old = root / "old.tsds"
    tsds.copy(store, old)
    tsds.erase(store, keys=[KEY], receipt=receipt)
    (group,) = tsds.open(store).manifest.provenance["erased"]

    def digest(person: bytes, data: bytes) -> str:
        return hashlib.blake2b(data, digest_size=12, key=bytes.fromhex(group["salt"]), person=person).hexdigest()

    pixels = b"|u1 (24, 24, 3) " + SECRET.tobytes()
    known = command("verify", store, "--receipt", receipt)
    assert known.exit_code == 0 and "no key or image of the 40 samples is an erased one" in known.stdout
    text = receipt.read_text()
    assert digest(b"tsds key", KEY.encode()) in text and digest(b"tsds image", pixels) in text and KEY not in text
    assert command("verify", old, "--receipt", receipt).exit_code == 1
    tsds.annotate(store, license="CC0-1.0")
    (root / "images" / KEY).rename(root / "images" / "a" / "renamed.png")
    tsds.append(store, root / "images")
    found = tsds.editing.check_receipt(store, receipt)
    assert (found.state, found.found, found.compared, found.erased) == ("erased", {}, 40, {"train": 1})
    again = root / "again.tsds"
    tsds.copy(store, again)
    tsds.append(again, root / "images", restore_erased=True)
    found = tsds.editing.check_receipt(again, receipt)
    assert (found.is_erased, found.found) == (False, {"train": [40]})  # the renamed one
    (root / "images" / "a" / "renamed.png").rename(root / "images" / KEY)
    tsds.append(store, root / "images", restore_erased=True)
    assert tsds.editing.check_receipt(store, receipt).state == "restored"
    assert "were restored" in command("verify", store, "--receipt", receipt).stdout
    assert tsds.editing.check_receipt(again, receipt).state == "erased"
    tsds.editing.filter_store(old, root / "other.tsds", "key != 'a/000.png'")
    assert tsds.editing.check_receipt(root / "other.tsds", receipt).state == "other"
    for wrong in ("{}", "[", text.replace('"samples"', '"sample"'), text.replace('"created": "', '"created": ["')):
        (root / "wrong.json").write_text(wrong)
        with pytest.raises(
            tsds.OptionError, match=r"expected a receipt that tsds erase wrote, found (no member '|no JSON|members)"
        ):
            tsds.editing.check_receipt(store, root / "wrong.json")
