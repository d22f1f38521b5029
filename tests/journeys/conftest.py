"""Which journeys are made: drawn by a seed, which the head of the report prints. ``JOURNEYS=all`` makes all of them.

``JOURNEYS=SEED`` repeats those of a seed. ``JOURNEY_DATA=FOLDER`` makes them with real data, too: see `data_sets.real`.
"""

from __future__ import annotations

import os
import random
import secrets

import pytest

pytest.register_assert_rewrite("journeys.steps", "journeys.agreement")

from journeys.data_sets import MADE  # noqa: E402  # after the line above
from journeys.steps import Trip  # noqa: E402

#: Of the journeys that train, which take most of the time, so many data sets are drawn.
DRAWN = 2

# Here, before pytest-xdist starts its processes, so that all of them draw the same.
CHOICE = os.environ.setdefault("JOURNEYS", str(secrets.randbelow(10**6)))


def pytest_report_header() -> str:
    return f"journeys: JOURNEYS={CHOICE}"


@pytest.fixture(scope="class")
def trip(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Trip:
    """The data set of a class of tests, and its store, which no test changes."""
    return Trip(request.cls.sets[request.cls.data_set], tmp_path_factory.mktemp(request.cls.data_set))


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """What a journey chooses by itself, such as a size or a fraction: the same for a seed and a test."""
    return random.Random(f"{CHOICE} {request.node.name} {request.cls.__name__}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if CHOICE == "all":
        return
    left_out = [item for item in items if (mark := item.get_closest_marker("drawn")) and not is_drawn(item, mark)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def is_drawn(item: pytest.Item, mark: pytest.Mark) -> bool:
    possible = sorted(mark.args or MADE)
    data_set = item.cls.data_set  # type: ignore[attr-defined]
    name = item.originalname  # type: ignore[attr-defined]
    return data_set not in MADE or data_set in random.Random(f"{CHOICE} {name}").sample(possible, DRAWN)
