"""The viewer's own reader of stores, in JavaScript: bytes equal those that other readers find."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numcodecs.zstd import Zstd

import tensorstore_ds as tsds
from browser.conftest import Tab
from stores import detections, store_of

CONFORMANCE = Path(__file__).parents[2] / "formats" / "v1" / "conformance"
CASES = [case for case in json.loads((CONFORMANCE / "cases.json").read_text())["cases"] if case["valid"]]

#: SHA-256 of the bytes of each array that the page's reader offers.
ARRAYS = """async () => {
  const { Source, httpTransport } = await import('./viewer/source.js');
  const { openStore } = await import('./viewer/store.js');
  const store = await openStore(new Source(httpTransport(new URL('store/', location.href).href)));
  const found = {};
  const add = async (array) => {
    const bytes = await array.bytes(0, array.n);
    const hashed = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
    found[array.path] = [...hashed].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  };
  for (const split of store.splits.values()) {
    for (const shard of split.shards) {
      for (const [field, spec] of Object.entries(split.fields)) {
        const names = spec.values ? ['offsets', ...Object.keys(spec.values), ...Object.keys(spec.per_row ?? {})] : [undefined];
        for (const name of names) {
          const array = shard.of(field, name);
          for (const each of array.items ? [array.offsets, array.items] : [array]) await add(each);
        }
      }
    }
  }
  return found;
}"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: Path(case["path"]).stem)
def test_every_array_of_the_conformance_stores(case: Any, tab: Callable[..., Tab], view: Callable[..., str]) -> None:
    url = view(CONFORMANCE / case["path"])
    opened = tab()
    opened.page.goto(url)
    found = opened.page.evaluate(ARRAYS)
    opened.complaints.clear()  # some of these images cannot be shown
    expected = {path: array["sha256"] for path, array in case["arrays"].items()}
    unreadable = {path: digest for path, digest in expected.items() if path not in found}
    assert found == {path: digest for path, digest in expected.items() if path in found}
    fields = tsds.open(CONFORMANCE / case["path"]).manifest.unreadable
    assert {path.split("/")[2] for path in unreadable} <= set(fields)


@pytest.mark.parametrize("layout", ["memmap", "zarr"])
def test_columns_of_several_shards(
    layout: str, tmp_path: Path, tab: Callable[..., Tab], view: Callable[..., str]
) -> None:
    store = store_of(tmp_path / "s.tsds", detections(40), ["a", "b", "c"], layout=layout, shard_nbytes=3000, workers=0)
    split = store["train"]
    assert len(store.manifest.splits["train"].shards) > 2
    opened = tab().open(view(store.path))
    boxes, offsets = opened.page.evaluate(
        """async () => {
          const { Source, httpTransport } = await import('./viewer/source.js');
          const { openStore } = await import('./viewer/store.js');
          const store = await openStore(new Source(httpTransport(new URL('store/', location.href).href)));
          const split = store.splits.get('train');
          const read = async (name) => Array.from(await split.column('objects', name));
          return [await read('boxes'), await read('offsets')];
        }"""
    )
    expected = [split[row]["objects"]["boxes"] for row in range(len(split))]
    np.testing.assert_array_equal(np.float32(boxes).reshape(-1, 4), np.concatenate(expected))
    np.testing.assert_array_equal(offsets, np.cumsum([0, *map(len, expected)]))


def frames() -> list[bytes]:
    """Bytes of many kinds: runs, text, noise, numbers, photographs' statistics; of sizes around the blocks' limits."""
    rng = np.random.default_rng(0)
    made = []
    for size in (1, 7, 255, 256, 4000, 65_791, 131_072, 131_073, 300_000):
        made += [bytes(size), rng.bytes(size), np.arange(size, dtype="<i8").tobytes()[:size]]
        made.append((np.cumsum(rng.integers(-2, 3, size)) % 256).astype(np.uint8).tobytes())
        made.append(rng.choice(np.array([0, 0, 0, 1, 2, 9], np.uint8), size).tobytes())
        made.append((b"the quick brown fox " * (size // 20 + 1))[:size])
        made.append(rng.geometric(0.05, size).clip(0, 255).astype(np.uint8).tobytes())
    return made


DECOMPRESS = """async ([frames, sizes]) => {
  const { decompress } = await import('./viewer/zstd.js');
  const answers = [];
  for (const [i, frame] of frames.entries()) {
    const bytes = Uint8Array.from(atob(frame), (letter) => letter.charCodeAt(0));
    try {
      const hashed = new Uint8Array(await crypto.subtle.digest('SHA-256', decompress(bytes, sizes[i])));
      answers.push([...hashed].map((byte) => byte.toString(16).padStart(2, '0')).join(''));
    } catch (error) {
      answers.push(error.message);
    }
  }
  return answers;
}"""


def answers(page: Any, compressed: list[bytes], sizes: list[int]) -> list[str]:
    import base64

    found = page.evaluate(DECOMPRESS, [[base64.b64encode(frame).decode() for frame in compressed], sizes])
    return list(found)


@pytest.mark.parametrize("level", [1, 3, 9, 19])
def test_zstandard(level: int, tmp_path: Path, tab: Callable[..., Tab], view: Callable[..., str]) -> None:
    url = view(CONFORMANCE / CASES[0]["path"])
    opened = tab().open(url)
    made = frames()
    compressed = [Zstd(level=level, checksum=i % 2 == 0).encode(data) for i, data in enumerate(made)]
    expected = [hashlib.sha256(data).hexdigest() for data in made]
    assert answers(opened.page, compressed, [len(data) for data in made]) == expected


def test_damaged_frames_are_refused_in_words(tab: Callable[..., Tab], view: Callable[..., str]) -> None:
    url = view(CONFORMANCE / CASES[0]["path"])
    opened = tab().open(url)
    rng = np.random.default_rng(1)
    data = (np.cumsum(rng.integers(-2, 3, 3000)) % 256).astype(np.uint8).tobytes() * 2
    whole = Zstd(level=3).encode(data)
    damaged = [whole[:cut] for cut in range(0, len(whole), 97)]
    for _ in range(400):
        bytes_ = bytearray(whole)
        bytes_[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        damaged.append(bytes(bytes_))
    found = answers(opened.page, damaged, [len(data)] * len(damaged))
    right = hashlib.sha256(data).hexdigest()
    assert right not in found[: len(range(0, len(whole), 97))]
    words = [text for text in found if not (len(text) == 64 and " " not in text)]
    assert words and all(text.startswith("this chunk is damaged: ") for text in words)
    assert answers(opened.page, [whole], [len(data) + 1])[0].startswith("this chunk is damaged: ")
