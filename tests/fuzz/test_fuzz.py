"""Every kept input, and some new ones, at every door: a result, or one error of ours. See ``__main__.py`` for more."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, note, settings, strategies as st

from fuzz.door import Door, attempt
from fuzz.doors import DOORS, share_of
from fuzz.limits import CPU_SECONDS, limited_memory, limited_time

CORPUS = Path(__file__).with_name("corpus")
KEPT = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*"))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Door]:
    """A door by its name, made once."""
    made: dict[str, Door] = {}

    def of(name: str) -> Door:
        if name not in made:
            made[name] = DOORS[name](tmp_path_factory.mktemp(name))
        return made[name]

    return of


def tried(door: Door, data: bytes) -> bool:
    """Whether an input is accepted. Pillow's warnings are no errors here, as in a program that runs."""
    with warnings.catch_warnings(), limited_memory(), limited_time(cpu_seconds=5 * CPU_SECONDS):
        warnings.simplefilter("ignore")
        return attempt(door, data)


@pytest.mark.parametrize("name", DOORS)
def test_what_others_are_made_from_is_accepted(name: str, door: Callable[[str], Door]) -> None:
    for good in door(name).goods:
        assert tried(door(name), good), good


@pytest.mark.parametrize("name", KEPT)
def test_kept_inputs(name: str, door: Callable[[str], Door]) -> None:
    """Those that a name begins with ``good`` are accepted; all others are refused, or do no harm."""
    path = CORPUS / name
    accepted = tried(door(path.parent.name), path.read_bytes())
    assert accepted or not path.name.startswith("good")


@pytest.mark.parametrize("name", DOORS)
def test_mutated_inputs(name: str, door: Callable[[str], Door]) -> None:
    entrance = door(name)

    @settings(
        max_examples=min(30, 4 + 2 * share_of(name)),
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, len(entrance.goods) - 1), st.randoms(use_true_random=False))
    def check(number: int, random: Random) -> None:
        data = entrance.mutate(random, entrance.goods[number])
        note(f"{len(data)} bytes: {data[:5000]!r}")
        tried(entrance, data)

    check()


def test_the_corpus_has_a_folder_for_every_door() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(DOORS)
