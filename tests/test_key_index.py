"""Rows by their keys, compared with a dict."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from tensorstore_ds.format.kinds import key_index
from tensorstore_ds.format.kinds.key_index import KeyIndex, Keys, repeated_key


class Table:
    """Keys as a store has them."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = Keys.of(keys)
        self.offsets = self._keys.offsets

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, name: str) -> NDArray[np.uint8]:
        assert name == "bytes"
        return self._keys.data


def collide(keys: Keys) -> NDArray[np.uint64]:
    return np.zeros(len(keys), np.uint64)


def by_length(keys: Keys) -> NDArray[np.uint64]:
    return np.diff(keys.offsets).astype(np.uint64)


@pytest.fixture(params=["hashes", "by length", "all collide"])
def forced(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "hashes":
        monkeypatch.setattr(key_index, "hashed", {"all collide": collide, "by length": by_length}[request.param])


def some_keys(count: int, seed: int) -> list[bytes]:
    """Keys that differ: prefixes of each other, long ones, unicode, zeros, and none at all."""
    rng = random.Random(seed)
    found = {b"": None, b"\0": None, b"\0\0": None, b"a": None, b"a\0": None}
    while len(found) < count:
        base = rng.choice(["n01/img_", "ä/", "日本語", "a", "\x00"]) * rng.choice([1, 1, 1, 2, 400])
        key = (base + str(rng.randrange(3 * count))).encode()
        found.setdefault(key)
        found.setdefault(key[: rng.randrange(len(key) + 1)])
    keys = list(found)[:count]
    rng.shuffle(keys)
    return keys


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("parts", [1, 3])
def test_rows_are_found_as_a_dict_finds_them(parts: int) -> None:
    keys = some_keys(300, 1)
    others = some_keys(300, 2)
    known = {key: row for row, key in enumerate(keys)}
    indexes = [KeyIndex(Table(keys), part, parts) for part in range(parts)]
    for asked in (keys, keys[::-1], others, others[:1], keys[5:9], []):
        found = np.max([index.find(Keys.of(asked)) for index in indexes], axis=0)
        assert found.tolist() == [known.get(key, -1) for key in asked]
    assert (KeyIndex(Table([])).find(Keys.of(keys)) == -1).all()


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("parts", [1, 4])
def test_the_first_key_that_is_repeated_is_found(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_LEAST_ROWS", 300 // parts)
    monkeypatch.setattr(key_index, "memory_limit", lambda: 10)
    monkeypatch.setattr(key_index, "_ROWS", 64)
    keys = some_keys(300, 3)
    assert repeated_key(Table(keys)) is None
    rng = random.Random(4)
    for _ in range(20):
        twice = [*keys]
        for _ in range(rng.choice([1, 1, 2, 30])):
            twice[rng.randrange(300)] = twice[rng.randrange(300)]
        seen: dict[bytes, int] = {}
        expected = next(((seen[key], row) for row, key in enumerate(twice) if seen.setdefault(key, row) != row), None)
        assert repeated_key(Table(twice)) == expected
    assert repeated_key(Table([b""] * 300)) == repeated_key(Table([b"x" * 5000] * 300)) == (0, 1)


def test_a_key_has_one_hash_whatever_is_beside_it() -> None:
    keys = [b"", b"a", b"a\0", b"x" * 5000, "日".encode() * 1365, b"y" * 4096, b"y" * 4097]
    alone = [int(key_index.hashed(Keys.of([key]))[0]) for key in keys]
    assert key_index.hashed(Keys.of(keys)).tolist() == alone and len({*alone}) == len(keys)
    assert key_index.hashed(Keys.of(keys[::-1])).tolist() == alone[::-1]


def test_an_index_takes_16_bytes_a_row_and_parts_of_it_less() -> None:
    def peak(count: int, parts: int) -> int:
        table = Table([b"train/%08d" % row for row in range(count)])
        tracemalloc.start()
        KeyIndex(table, 0, parts).first_repeated()
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return taken

    few, many = 20_000, 120_000
    assert peak(many, 1) - peak(few, 1) <= 17 * (many - few)
    assert peak(many, 8) - peak(few, 8) <= 6 * (many - few)


@pytest.mark.usefixtures("forced")
def test_commands_find_the_same_keys_whatever_their_hashes(tmp_path: Path) -> None:
    keys = [*dict.fromkeys(key.decode("utf-8", "ignore").replace("\0", "0") for key in some_keys(60, 5))]
    keys = [key for key in keys if key][:40]

    def write(name: str, own: list[str], label: int) -> Path:
        with tsds.Writer(tmp_path / name, classes=["a", "b"]) as writer:
            for key in own:
                writer.append("train", image=np.full((4, 4), keys.index(key), np.uint8), label=label, key=key)
        return tmp_path / name

    one, other = write("one.tsds", keys[:30], 0), write("other.tsds", keys[20:][::-1], 1)
    found = tsds.editing.compare_stores(one, other).splits["train"]
    both = keys[20:30]
    assert (found.both, found.fields["label"].count, found.fields["label"].keys) == (10, 10, both[:5])
    assert (found.only_first.count, found.only_first.keys) == (20, keys[:5])
    assert (found.only_second.count, found.only_second.keys) == (len(keys) - 30, keys[::-1][:5])
    merged = tsds.editing.merge_stores([one, other], tmp_path / "merged.tsds")
    assert any(note.startswith("10 keys are in several stores") and ": 0 of them with" in note for note in merged.notes)
    assert tsds.verify(merged.path) == []
    with pytest.raises(tsds.SourceError, match=r"expected keys that differ|already"):
        write("twice.tsds", [*keys, keys[3]], 0)


def test_a_summary_counts_all_samples_and_names_the_first(tmp_path: Path) -> None:
    (tmp_path / "photos/x").mkdir(parents=True)
    for i in range(8):
        Image.new("L", (4, 4), i).save(tmp_path / f"photos/x/{i}.png")
    store = tmp_path / "s.tsds"
    tsds.convert(tmp_path / "photos", store, workers=0)
    for i in range(1, 8):
        Image.new("L", (4, 4), 100 + i).save(tmp_path / f"photos/x/{i}.png")
    done = tsds.update(store, tmp_path / "photos", workers=0)
    assert done.updated == tsds.editing.SampleCount(7, [f"x/{i}.png" for i in range(1, 6)])
    assert done.already_there == tsds.editing.SampleCount(1, ["x/0.png"]) and done.updated_fields == {"image": 7}
    assert [int(tsds.open(store)["train"]["image"][row].max()) for row in range(8)] == [0, *range(101, 108)]
