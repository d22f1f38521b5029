"""A newcomer's journeys, through the real command, with data sets as people have them: see `steps.Journey`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from journeys.data_sets import MADE, real
from journeys.steps import Journey

pytestmark = pytest.mark.timeout(900)

REAL = real(Path(os.environ["JOURNEY_DATA"]).resolve()) if "JOURNEY_DATA" in os.environ else {}


def journey(name: str) -> type[Journey]:
    """The steps for a data set, as a class of tests: pytest-xdist gives it to one process as a whole."""
    return type(
        f"Test{name.title()}", (Journey,), {"data_set": name, "sets": {**MADE, **REAL}, "is_real": name in REAL}
    )


TestFolders = journey("folders")
TestPhotographs = journey("photographs")
TestVoc = journey("voc")
TestImglab = journey("imglab")
TestCoco = journey("coco")
TestList = journey("list")
for _name in REAL:
    globals()[f"Test{_name.title()}"] = journey(_name)


def test_real_data_are_there() -> None:
    if not REAL:
        pytest.skip("JOURNEY_DATA is not set")
    assert set(REAL) == {"BCCD", "faces", "MNIST"}
