"""What the journeys share. ``JOURNEY_DATA=FOLDER`` makes them with real data, too: see `data_sets.real`."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("journeys.steps", "journeys.agreement")

from journeys.steps import Trip  # noqa: E402  # after the line above


@pytest.fixture(scope="class")
def trip(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Trip:
    """The data set of a class of tests, and its store, which no test changes."""
    return Trip(request.cls.sets[request.cls.data_set], tmp_path_factory.mktemp(request.cls.data_set))
