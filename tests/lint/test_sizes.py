"""The packages and the documents do not grow: see `sizes`."""

from __future__ import annotations

import pytest

import sizes


@pytest.mark.parametrize("name", sizes.SUFFIXES)
def test_nothing_is_larger_than_the_table_allows(name: str) -> None:
    allowed = sizes.table()[name]
    found = sizes.found(allowed, sizes.SUFFIXES[name])
    assert {folder: f"{found[folder]:,}" for folder, most in allowed.items() if found[folder] > most} == {}, (
        "remove lines, or raise the number in pyproject.toml, with a reason there and in the message of the commit"
    )


@pytest.mark.parametrize("name", sizes.SUFFIXES)
def test_the_table_follows_what_was_removed(name: str) -> None:
    allowed = sizes.table()[name]
    found = sizes.found(allowed, sizes.SUFFIXES[name])
    slack = {folder: most for folder, most in allowed.items() if found[folder] < most - most // 50 - 20}
    assert slack == {}, "run: python tests/sizes.py"


def test_each_file_that_is_installed_is_counted() -> None:
    allowed = sizes.table()["lines"]
    rooms = [path.parent for path in (sizes.ROOT / "tensorstore_ds").glob("*/__init__.py")]
    rooms += (path.parent for path in (sizes.ROOT / "tensorstore_ds" / "annex").glob("*/__init__.py"))
    assert {path.relative_to(sizes.ROOT).as_posix() for path in rooms} <= allowed.keys()
