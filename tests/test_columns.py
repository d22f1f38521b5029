"""The memory that a slice over several shards asks for."""

from __future__ import annotations

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import VALID
from tensorstore_ds.reading import columns


def test_a_slice_over_shards_asks_for_the_memory_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    split = tsds.open(VALID / "shards.tsds")["train"]
    real, asked = columns.check_fits, []

    def check_fits(what: str, nbytes: int) -> None:
        asked.append(nbytes)
        real(what, nbytes)

    monkeypatch.setattr(columns, "check_fits", check_fits)
    whole = np.asarray(split["image"])
    assert asked == [whole.nbytes]
    part = split["image"][1:]
    np.testing.assert_array_equal(part, whole[1:])
    assert asked == [whole.nbytes, part.nbytes]
