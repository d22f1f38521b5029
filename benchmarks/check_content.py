"""Checking a store's content: 100,000 made-up small images; and the search for pairs of hashes alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, as_result, in_fresh_process, peak_nbytes, seconds_of
from tensorstore_ds.annex.checking.search import near_pairs

SECONDS, SEARCH_SECONDS, MEGABYTES = 120, 3, 500
_IMAGES, _HASHES, _PLANTED, _DISTANCE = 100_000, 1_000_000, 2_000, 3


def measure(settings: Settings) -> dict[str, Any]:
    """In a fresh process, whose memory is its own."""
    rng = np.random.default_rng(0)
    store = settings.scratch / "check.tsds"
    with tsds.Writer(store, tsds.ConvertOptions(classes=tuple("0123456789"))) as writer:
        for i in range(_IMAGES):
            small = rng.integers(0, 256, (5, 5), np.uint8)
            writer.append("train", {"image": np.kron(small, np.ones((6, 6), np.uint8))[1:29, 1:29], "label": i % 10})
    checked = in_fresh_process(check, store)
    hashes = rng.integers(0, 2**63, _HASHES, np.uint64)
    hashes[-_PLANTED:] = hashes[:_PLANTED] ^ (np.uint64(1) << rng.integers(0, 63, _PLANTED, np.uint64))
    began = time.perf_counter()
    found = len(near_pairs(hashes, _DISTANCE).pairs)
    seconds = time.perf_counter() - began
    assert found >= _PLANTED
    note = f"made-up images of 28 x 28 pixels; {found:,} pairs of hashes were found, {_PLANTED:,} of them planted"
    figures = [
        Figure(f"check {_IMAGES:,} small images: time", checked["seconds"], SECONDS, "s", 1, note=note),
        Figure(
            f"check {_IMAGES:,} small images: memory of the process, with the store mapped",
            checked["rss"] / 1e6,
            MEGABYTES,
            "MB",
            0,
        ),
        Figure(f"pairs among {_HASHES:,} hashes at distance {_DISTANCE}", seconds, SEARCH_SECONDS, "s", 1),
    ]
    return as_result(figures)


def check(store: Path) -> dict[str, float]:
    """Time and memory of `tensorstore_ds.check_store`."""
    seconds = seconds_of(lambda: tsds.check_store(store))
    return {"seconds": seconds, "rss": peak_nbytes()}
