"""A store of several MB, in files that the page cache can be told to drop."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import image_field, label_field, write_store
from tensorstore_ds.page_cache.residency import evict

linux = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is asked about on Linux only")


def make_store(path: Path) -> tsds.Store:
    """Two splits of images and labels: 11.8 MB in train, 4.7 MB in val."""
    images = np.arange(60 * 256 * 256 * 3, dtype=np.uint8).reshape(60, 256, 256, 3)
    labels = np.arange(60) % 2
    fields = {"image": image_field(images), "label": label_field("ant", "bee")}
    splits = [(name, n, {"image": images[:n], "label": labels[:n]}) for name, n in (("train", 60), ("val", 24))]
    return tsds.open(write_store(path, fields, *splits))


def make_cold(store: tsds.Store) -> tsds.Store:
    """Drop the store from memory; skip the test where that cannot be done."""
    gc.collect()  # pages that are mapped stay
    left = evict(store).left
    if left is None or left > 0:
        pytest.skip(f"this file system keeps its files in memory: {store.path}")
    return store
